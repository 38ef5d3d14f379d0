//! `instep master status`: which of several masters leads, and whether the others see it.

use std::time::Duration;

use clap::Args;
use instep_api::wire::Timestamp;
use instep_client::{Address, Client, Error, Settings};
use serde::{Deserialize, Serialize};

use super::options::Common;
use super::{session, shown, table};
use crate::report::{Hinted, chain};

/// Masters that are asked at most: those that were named, and the leader that they name.
const MOST: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct MasterStatusArguments {
    #[command(flatten)]
    common: Common,
}

/// What a master says at `/health`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Health {
    role: Option<String>,
    leader: Option<String>,
    epoch: Option<i64>,
    since: Option<Timestamp>,
    lease_age_seconds: Option<f64>,
}

/// A row of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    address: String,
    /// `leader`, `standby`, `alone`, or `unreachable`.
    role: &'static str,
    leader: Option<String>,
    epoch: Option<i64>,
    since: Option<Timestamp>,
    lease_age_seconds: Option<f64>,
    problem: Option<String>,
}

impl Status {
    fn of(address: &Address, answer: Result<Health, Error>) -> Status {
        let unknown = |role, problem| Status {
            address: address.to_string(),
            role,
            leader: None,
            epoch: None,
            since: None,
            lease_age_seconds: None,
            problem,
        };
        match answer {
            Ok(found) => Status {
                leader: found.leader,
                epoch: found.epoch,
                since: found.since,
                lease_age_seconds: found.lease_age_seconds,
                ..unknown(role(found.role.as_deref()), None)
            },
            // It is there, and answers nothing else.
            Err(Error::Refused { message, .. }) => unknown("standby", Some(message)),
            Err(error) => unknown("unreachable", Some(chain(&error))),
        }
    }
}

/// A master that does not say is the only one of its database.
fn role(said: Option<&str>) -> &'static str {
    match said {
        Some("leader") => "leader",
        Some("standby") => "standby",
        _ => "alone",
    }
}

/// Asks every master that is named, and the leader that they name.
pub(super) fn run(arguments: &MasterStatusArguments) -> anyhow::Result<()> {
    let (addresses, certificates) = session::master(&arguments.common)?;
    let mut wanted: Vec<Address> = addresses.all().cloned().collect();
    let mut found: Vec<Status> = Vec::new();
    while let Some(address) = wanted.get(found.len()).cloned().filter(|_| found.len() < MOST) {
        let settings =
            Settings { certificates: certificates.clone(), patience: Duration::ZERO, ..Settings::at(address.clone()) };
        let status = Status::of(&address, Client::new(settings)?.get("/health"));
        let leader = status.leader.as_ref().and_then(|leader| leader.parse().ok());
        wanted.extend(leader.filter(|leader| !wanted.contains(leader)));
        found.push(status);
    }
    if arguments.common.json {
        table::json(&found)?;
    } else {
        print(&found);
    }
    if found.iter().any(|status| ["leader", "alone"].contains(&status.role)) {
        return Ok(());
    }
    let reached = found.iter().any(|status| status.role != "unreachable");
    let what = if reached { "no master leads" } else { "none of the masters can be reached" };
    let hint = "name them with --master URL1,URL2; a master that stands by says in its log why it does not lead";
    Err(Hinted::new(what, hint).into())
}

fn print(found: &[Status]) {
    let mut shown = table::Table::new(&["ADDRESS", "ROLE", "TERM", "SINCE", "LEASE AGE", "PROBLEM"]);
    for status in found {
        shown.row(vec![
            status.address.clone(),
            status.role.to_owned(),
            status.epoch.map(|epoch| epoch.to_string()).unwrap_or_default(),
            shown::optional_time(status.since),
            status.lease_age_seconds.map(|age| format!("{age:.1} s")).unwrap_or_default(),
            status.problem.clone().unwrap_or_default(),
        ]);
    }
    shown.print("no master was named", "");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_master_says_is_its_role() {
        let address: Address = "http://a:1".parse().unwrap();
        let of = |text: &str| Status::of(&address, Ok(serde_json::from_str(text).unwrap()));
        assert_eq!(of(r#"{"status": "up"}"#).role, "alone");
        let leader = of(r#"{"status": "up", "role": "leader", "leader": "http://a:1", "epoch": 3}"#);
        assert_eq!((leader.role, leader.epoch), ("leader", Some(3)));
        assert_eq!(of(r#"{"role": "standby", "leader": "http://b:1", "leaseAgeSeconds": 0.5}"#).role, "standby");
        let refused = Error::Refused { status: 503, message: "nobody leads".to_owned() };
        let standby = Status::of(&address, Err(refused));
        assert_eq!((standby.role, standby.problem.as_deref()), ("standby", Some("nobody leads")));
    }
}
