//! For how long logs are kept after their task has ended.

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::logs::{CleanupLogsResponse, RemainingDaysResponse, RetainLogsRequest};
use instep_api::wire::Long;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use crate::clock::now;

/// What a client is told of logs that are kept for ever, and what it says for it.
const FOR_EVER: i64 = -1;
const MOST_DAYS: i64 = 32_767;

/// The number of days that a request asks for.
pub(super) fn days(asked: Option<i64>) -> Result<i64, Failure> {
    let days = asked.ok_or_else(|| Failure::invalid("numDays is missing"))?;
    if !(FOR_EVER..=MOST_DAYS).contains(&days) {
        return Err(Failure::invalid(format!(
            "logs cannot be kept for {days} days: 0 to {MOST_DAYS}, or {FOR_EVER} for ever"
        )));
    }
    Ok(days)
}

pub(crate) async fn retain_of_trial(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: RetainLogsRequest = call.json()?;
    let trial: TrialId = call.id("id")?;
    call.application.database.retain_trial_logs(trial, days(request.num_days.map(|days| days.0))?).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn retain_of_experiment(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: RetainLogsRequest = call.json()?;
    let id: ExperimentId = call.id("id")?;
    let days = days(request.num_days.map(|days| days.0))?;
    call.application.database.retain_experiment_logs(id, days, now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn days_left(call: Call) -> Result<Json<RemainingDaysResponse>, Failure> {
    let by_default = call.application.log_retention_days;
    let left = call.application.database.log_days_left(call.id("id")?, by_default, now()).await?;
    Ok(Json(RemainingDaysResponse { remaining_days: left.unwrap_or(FOR_EVER) }))
}

/// Deletes now what would be deleted within the hour.
pub(crate) async fn clean(call: Call) -> Result<Json<CleanupLogsResponse>, Failure> {
    let removed = call.application.database.clean_logs(call.application.log_retention_days, now()).await?;
    Ok(Json(CleanupLogsResponse { removed_count: Long(removed) }))
}
