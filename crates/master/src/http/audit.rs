//! The audit log, for administrators.

use std::collections::BTreeSet;

use instep_api::audit::AuditResponse;
use instep_database::AuditFilter;

use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use super::routes::action_names;

/// Records of an answer, if nobody says how many, and at most.
const DEFAULT_LIMIT: usize = 100;
const MOST: usize = 1000;

/// Refuses what no record is ever called: a mistake in a name would look as if nothing had happened.
fn known_action(action: Option<&str>) -> Result<(), Failure> {
    let Some(wanted) = action else { return Ok(()) };
    let known: BTreeSet<&str> = action_names().chain(["several"]).collect();
    let kinds: BTreeSet<&str> = known.iter().filter_map(|name| Some(name.split_once('.')?.0)).collect();
    if known.contains(wanted) || kinds.contains(wanted) {
        return Ok(());
    }
    let of_its_kind = wanted.split('.').next().filter(|kind| kinds.contains(kind));
    let choice: Vec<&str> = match of_its_kind {
        Some(kind) => known.iter().copied().filter(|name| name.split('.').next() == Some(kind)).collect(),
        None => kinds.into_iter().collect(),
    };
    Err(Failure::invalid(format!("there is no action `{wanted}`\nhint: one of: {}", choice.join(", "))))
}

/// Refuses the name of a user who is not there and never was.
async fn known_user(call: &Call, name: Option<&str>) -> Result<(), Failure> {
    let Some(name) = name else { return Ok(()) };
    let database = &call.application.database;
    let was_here = AuditFilter { user: Some(name.to_owned()), limit: 1, ..AuditFilter::default() };
    if database.account(name.to_owned()).await?.is_some() || !database.audit(was_here).await?.is_empty() {
        return Ok(());
    }
    Err(Failure::not_found(format!("user '{name}' not found\nhint: `instep user list -a` lists all users")))
}

pub(crate) async fn list(call: Call) -> Result<Json<AuditResponse>, Failure> {
    let query = &call.query;
    let limit = query.value::<usize>("limit")?.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MOST).contains(&limit) {
        let hint = "ask for the next ones with afterId or beforeId";
        return Err(Failure::invalid(format!("limit {limit} is not between 1 and {MOST}\nhint: {hint}")));
    }
    known_action(query.text("action"))?;
    known_user(&call, query.text("user")).await?;
    let filter = AuditFilter {
        since: query.time("since")?,
        user: query.text("user").map(str::to_owned),
        action: query.text("action").map(str::to_owned),
        after: query.value("afterId")?,
        before: query.value("beforeId")?,
        limit,
    };
    Ok(Json(AuditResponse { records: call.application.database.audit(filter).await? }))
}
