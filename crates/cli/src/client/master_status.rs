//! `instep master status`: which of several masters leads, and whether the others could take over.

use std::time::Duration;

use clap::Args;
use instep_api::wire::Timestamp;
use instep_client::{Address, Client, Error, Settings};
use serde::{Deserialize, Serialize};

use super::dialog::say;
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
    status: Option<String>,
    role: Option<String>,
    address: Option<String>,
    leader: Option<String>,
    epoch: Option<i64>,
    since: Option<Timestamp>,
    lease_age_seconds: Option<f64>,
    can_take_over: Option<bool>,
    message: Option<String>,
    /// A master that cannot do what it is asked says so under a number of the request.
    request_id: Option<String>,
}

/// What an address turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    Leader,
    Standby,
    /// The only master of its database.
    Alone,
    /// A master that says why it cannot do what it is asked.
    Unwell,
    /// Something else answers there.
    Other,
    Unreachable,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Standby => "standby",
            Role::Alone => "alone",
            Role::Unwell => "unwell",
            Role::Other => "no master",
            Role::Unreachable => "unreachable",
        }
    }
}

/// A row of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    address: String,
    role: Role,
    /// The master that answers there, if it calls itself otherwise.
    answered_by: Option<String>,
    leader: Option<String>,
    epoch: Option<i64>,
    since: Option<Timestamp>,
    lease_age_seconds: Option<f64>,
    /// Whether it takes over when the leader is lost, of one that stands by.
    can_take_over: Option<bool>,
    problem: Option<String>,
}

impl Status {
    fn of(address: &Address, answer: Result<(u16, Vec<u8>), Error>) -> Status {
        let unknown = |role, problem: Option<String>| Status {
            address: address.to_string(),
            role,
            answered_by: None,
            leader: None,
            epoch: None,
            since: None,
            lease_age_seconds: None,
            can_take_over: None,
            problem: problem.map(|text| first_line(&text)),
        };
        let (status, body) = match answer {
            Ok(answer) => answer,
            Err(error @ Error::Protocol { .. }) => return unknown(Role::Other, Some(error.to_string())),
            Err(error) => return unknown(Role::Unreachable, Some(chain(&error))),
        };
        let found: Health = serde_json::from_slice(&body).unwrap_or_default();
        let role = match found.role.as_deref() {
            Some("leader") => Role::Leader,
            Some("standby") => Role::Standby,
            _ if status == 200 && found.status.as_deref() == Some("up") => Role::Alone,
            _ if status != 200 && found.request_id.is_some() => Role::Unwell,
            _ => {
                let what = format!("it answers `GET /health` with status {status}, and not as a master does");
                return unknown(Role::Other, Some(what));
            }
        };
        let problem = match (found.can_take_over, found.message) {
            (Some(false), why) => Some(format!("cannot take over: {}", why.as_deref().unwrap_or("see its log"))),
            (_, why) => why,
        };
        Status {
            answered_by: found.address.filter(|own| !is_same(address, own)),
            leader: found.leader,
            epoch: found.epoch,
            since: found.since,
            lease_age_seconds: found.lease_age_seconds,
            can_take_over: found.can_take_over,
            ..unknown(role, problem)
        }
    }

    /// What people should know of it.
    fn note(&self) -> String {
        let is = self.answered_by.as_ref().map(|own| format!("this is {own}"));
        is.into_iter().chain(self.problem.clone()).collect::<Vec<_>>().join("; ")
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Whether two addresses are spelled alike.
fn is_same(asked: &Address, own: &str) -> bool {
    own.parse::<Address>().is_ok_and(|own| own == *asked)
}

/// What all answers together say.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Somebody leads, or needs no others.
    Led,
    /// A leader is known to those who stand by, and cannot be reached from here.
    LedElsewhere {
        leader: String,
        by: String,
    },
    NotLed(String),
}

fn verdict(found: &[Status]) -> Verdict {
    if found.iter().any(|status| matches!(status.role, Role::Leader | Role::Alone)) {
        return Verdict::Led;
    }
    let standbys = found.iter().filter(|status| status.role == Role::Standby);
    if let Some((leader, by)) = standbys.clone().find_map(|status| Some((status.leader.clone()?, &status.address))) {
        return Verdict::LedElsewhere { leader, by: by.clone() };
    }
    let all = |role| found.iter().all(|status| status.role == role);
    Verdict::NotLed(match found.iter().find(|status| status.role == Role::Unwell) {
        Some(unwell) => format!("the master at {} does not work: {}", unwell.address, unwell.note()),
        None if all(Role::Unreachable) => "none of the masters can be reached".to_owned(),
        None if standbys.count() == 0 => "no master answers at these addresses".to_owned(),
        None => "no master leads".to_owned(),
    })
}

/// Asks every master that is named, and the leader that they name.
pub(super) fn run(arguments: &MasterStatusArguments) -> anyhow::Result<()> {
    let (addresses, certificates) = session::master(&arguments.common)?;
    let mut wanted: Vec<Address> = addresses.all().cloned().collect();
    let mut found: Vec<Status> = Vec::new();
    while let Some(address) = wanted.get(found.len()).cloned().filter(|_| found.len() < MOST) {
        let settings =
            Settings { certificates: certificates.clone(), timeout: Duration::ZERO, ..Settings::at(address.clone()) };
        let status = Status::of(&address, Client::new(settings)?.health());
        let leader = status.leader.as_ref().and_then(|leader| leader.parse().ok());
        wanted.extend(leader.filter(|leader| !wanted.contains(leader)));
        found.push(status);
    }
    if arguments.common.json {
        table::json(&found)?;
    } else {
        print(&found);
    }
    match verdict(&found) {
        Verdict::Led => Ok(()),
        Verdict::LedElsewhere { leader, by } => {
            say(&format!(
                "note: {by} says that {} leads, which gives no answer from here",
                table::on_one_line(&leader)
            ));
            Ok(())
        }
        Verdict::NotLed(what) => {
            let hint =
                "name them with --master URL1,URL2; a master that stands by says in its log why it does not lead";
            Err(Hinted::new(what, hint).into())
        }
    }
}

fn print(found: &[Status]) {
    let mut shown = table::Table::new(&["ADDRESS", "ROLE", "TERM", "SINCE", "LEASE AGE", "NOTE"]);
    for status in found {
        shown.row(vec![
            status.address.clone(),
            status.role.word().to_owned(),
            status.epoch.map(|epoch| epoch.to_string()).unwrap_or_default(),
            shown::optional_time(status.since),
            status.lease_age_seconds.map(|age| format!("{age:.1} s")).unwrap_or_default(),
            status.note(),
        ]);
    }
    shown.print("no master was named", "");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, text: &str) -> Status {
        Status::of(&"http://a:1".parse().unwrap(), Ok((status, text.as_bytes().to_vec())))
    }

    #[test]
    fn what_a_master_says_is_its_role() {
        assert_eq!(of(200, r#"{"status": "up"}"#).role, Role::Alone);
        let leader = of(200, r#"{"status": "up", "role": "leader", "address": "http://a:1", "epoch": 3}"#);
        assert_eq!((leader.role, leader.epoch, leader.note().as_str()), (Role::Leader, Some(3), ""));
        let standby = r#"{"role": "standby", "address": "http://c:1", "leader": "http://b:1", "leaseAgeSeconds": 0.5}"#;
        assert_eq!((of(200, standby).role, of(200, standby).note().as_str()), (Role::Standby, "this is http://c:1"));
        let down = of(503, r#"{"status": "down", "role": "standby", "message": "nobody leads"}"#);
        assert_eq!((down.role, down.note().as_str()), (Role::Standby, "nobody leads"));
        let unfit = r#"{"status": "up", "role": "standby", "canTakeOver": false, "message": "settings differ: roles"}"#;
        assert_eq!(of(200, unfit).note(), "cannot take over: settings differ: roles");
        let full = of(503, "{\"message\": \"the disk is full\\nhint: make room\", \"requestId\": \"x\"}");
        assert_eq!((full.role, full.note().as_str()), (Role::Unwell, "the disk is full"));
    }

    #[test]
    fn what_is_no_master_is_none() {
        for (status, text) in [
            (502, "<html>Bad Gateway</html>"),
            (503, ""),
            (404, r#"{"message": "Not Found"}"#),
            (200, r#"{"ok": true}"#),
            (200, "OK"),
            (200, "[]"),
        ] {
            let found = of(status, text);
            assert_eq!(found.role, Role::Other, "{status} {text}");
            assert!(found.note().contains(&format!("status {status}")), "{}", found.note());
        }
    }

    #[test]
    fn an_unreachable_leader_is_not_nobody() {
        let standby = of(200, r#"{"status": "up", "role": "standby", "leader": "http://b:1"}"#);
        let lost = of(503, r#"{"status": "down", "role": "standby", "message": "no master is known to lead"}"#);
        let (leader, other) = (of(200, r#"{"status": "up", "role": "leader"}"#), of(404, ""));
        let gone = Status { role: Role::Unreachable, ..other.clone() };
        let unwell = of(503, r#"{"message": "full", "requestId": "x"}"#);
        let elsewhere = Verdict::LedElsewhere { leader: "http://b:1".to_owned(), by: "http://a:1".to_owned() };
        assert_eq!(verdict(&[standby.clone(), leader]), Verdict::Led);
        assert_eq!(verdict(&[standby, gone.clone()]), elsewhere);
        for (found, expected) in [
            (vec![lost.clone(), gone.clone()], "no master leads"),
            (vec![gone.clone(), gone.clone()], "none of the masters can be reached"),
            (vec![other, gone], "no master answers at these addresses"),
            (vec![lost, unwell], "the master at http://a:1 does not work: full"),
        ] {
            assert_eq!(verdict(&found), Verdict::NotLed(expected.to_owned()));
        }
    }
}
