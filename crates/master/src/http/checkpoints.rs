//! Checkpoints: reports, lists, what is left of them.

use std::cmp::Ordering;

use instep_api::checkpoints::{
    Checkpoint, CheckpointResponse, CheckpointsResponse, PatchCheckpointsRequest, PostCheckpointMetadataRequest,
    ReportCheckpointRequest,
};
use instep_api::identifiers::{CheckpointUuid, NotAUuid};
use instep_api::pages::Order;
use instep_api::states::CheckpointState;
use instep_api::wire::Whole;
use instep_database::{NewCheckpoint, Subject};
use serde::Deserialize;
use serde_json::Value;

use super::call::Call;
use super::failure::Failure;
use super::files::check_reported;
use super::models::undeleted;
use super::reply::{Json, Nothing};
use crate::clock::now;

fn parse_uuid(text: Option<String>) -> Result<CheckpointUuid, Failure> {
    text.unwrap_or_default().parse().map_err(|error: NotAUuid| Failure::invalid(error.to_string()))
}

pub(crate) async fn report(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: ReportCheckpointRequest = call.json()?;
    match request.state {
        None | Some(CheckpointState::Completed | CheckpointState::Unspecified) => {}
        Some(state) => {
            let what = format!("a checkpoint is reported when it is complete, not in {}", state.as_str());
            return Err(Failure::invalid(what));
        }
    }
    let metadata = request.metadata.unwrap_or_default();
    let steps = metadata.get("steps_completed").map(Whole::deserialize);
    let steps = steps
        .and_then(Result::ok)
        .ok_or_else(|| Failure::invalid("metadata.steps_completed must be a whole number"))?;
    let new = NewCheckpoint {
        uuid: parse_uuid(request.uuid)?,
        task_id: request.task_id.unwrap_or_default(),
        allocation_id: request.allocation_id,
        storage_id: request.storage_id.filter(|id| id.0 != 0),
        steps_completed: steps.0,
        reported_at: request.report_time.unwrap_or_else(now),
        metadata,
        resources: request.resources.unwrap_or_default(),
    };
    call.may_change(Subject::Task(new.task_id.clone())).await?;
    // Another report under a known UUID replaces the first.
    call.may_change(Subject::Checkpoint(new.uuid.to_string())).await?;
    let storage = call.application.database.storage_of_report(new.task_id.clone(), new.storage_id).await?;
    check_reported(&call, &new.task_id, new.uuid.as_str(), storage).await?;
    call.application.database.report_checkpoint(new).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn get(call: Call) -> Result<Json<CheckpointResponse>, Failure> {
    let checkpoint = call.application.database.checkpoint(call.part("uuid").to_owned()).await?;
    Ok(Json(CheckpointResponse { checkpoint }))
}

pub(crate) async fn set_metadata(call: Call) -> Result<Json<CheckpointResponse>, Failure> {
    let request: PostCheckpointMetadataRequest = call.json()?;
    let metadata = request.checkpoint.unwrap_or_default().metadata.unwrap_or_default();
    let uuid = call.part("uuid").to_owned();
    let checkpoint = call.application.database.set_checkpoint_metadata(uuid, metadata).await?;
    Ok(Json(CheckpointResponse { checkpoint }))
}

pub(crate) async fn shrink(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: PatchCheckpointsRequest = call.json()?;
    let mut patches = Vec::new();
    for patch in request.checkpoints.unwrap_or_default() {
        let uuid = parse_uuid(patch.uuid)?.to_string();
        call.may_change(Subject::Checkpoint(uuid.clone())).await?;
        patches.extend(patch.resources.map(|left| (uuid, left.resources.unwrap_or_default())));
    }
    for (uuid, left) in patches {
        if let Err(error) = call.application.database.shrink_checkpoint(uuid, left).await {
            return Err(undeleted(&call, error).await);
        }
    }
    Ok(Json(Nothing {}))
}

pub(crate) async fn of_experiment(call: Call) -> Result<Json<CheckpointsResponse>, Failure> {
    let states = call.query.values("states")?;
    let found = call.application.database.experiment_checkpoints(call.id("id")?, states, now()).await?;
    listed(&call, found)
}

pub(crate) async fn of_trial(call: Call) -> Result<Json<CheckpointsResponse>, Failure> {
    let states = call.query.values("states")?;
    let found = call.application.database.trial_checkpoints(call.id("id")?, states).await?;
    listed(&call, found)
}

/// What a list of checkpoints is sorted by.
enum SortKey {
    Uuid,
    Trial,
    Steps,
    Time,
    State,
    /// The value of a validation metric; `None` for the searcher's.
    Metric(Option<String>),
}

fn sort_key(call: &Call) -> Result<SortKey, Failure> {
    if let Some(metric) = call.query.text("sortByMetric") {
        return Ok(SortKey::Metric(Some(metric.to_owned())));
    }
    Ok(match call.query.text("sortByAttr").unwrap_or_default() {
        "SORT_BY_UUID" => SortKey::Uuid,
        "" | "SORT_BY_UNSPECIFIED" | "SORT_BY_TRIAL_ID" => SortKey::Trial,
        "SORT_BY_BATCH_NUMBER" => SortKey::Steps,
        "SORT_BY_END_TIME" => SortKey::Time,
        "SORT_BY_STATE" => SortKey::State,
        "SORT_BY_SEARCHER_METRIC" => SortKey::Metric(None),
        other => return Err(Failure::invalid(format!("checkpoints cannot be sorted by `{other}`"))),
    })
}

fn listed(
    call: &Call,
    (mut checkpoints, smaller_is_better): (Vec<Checkpoint>, bool),
) -> Result<Json<CheckpointsResponse>, Failure> {
    let key = sort_key(call)?;
    // Without a word on the order, metrics are sorted best first and everything else upwards.
    let best_first = matches!(key, SortKey::Metric(_)) && !smaller_is_better;
    let order = call.query.order()?.unwrap_or(if best_first { Order::Descending } else { Order::Ascending });
    checkpoints.sort_by(|one, other| compare(&key, order, one, other));
    let (range, pagination) = call.query.slice(None)?.of(checkpoints.len());
    Ok(Json(CheckpointsResponse { checkpoints: checkpoints.drain(range).collect(), pagination }))
}

fn compare(key: &SortKey, order: Order, one: &Checkpoint, other: &Checkpoint) -> Ordering {
    let turned = |ordering: Ordering| if order == Order::Descending { ordering.reverse() } else { ordering };
    let steps = |checkpoint: &Checkpoint| checkpoint.metadata["steps_completed"].as_i64();
    match key {
        SortKey::Uuid => turned(one.uuid.cmp(&other.uuid)),
        SortKey::Trial => turned(one.training.trial_id.cmp(&other.training.trial_id)),
        SortKey::Steps => turned(steps(one).cmp(&steps(other))),
        SortKey::Time => turned(one.report_time.cmp(&other.report_time)),
        SortKey::State => turned(one.state.as_str().cmp(other.state.as_str())),
        SortKey::Metric(name) => match (metric(one, name.as_deref()), metric(other, name.as_deref())) {
            (Some(one), Some(other)) => turned(one.total_cmp(&other)),
            // Those without the metric come last in either order.
            (one, other) => other.is_some().cmp(&one.is_some()),
        },
    }
}

fn metric(checkpoint: &Checkpoint, name: Option<&str>) -> Option<f64> {
    match name {
        None => checkpoint.training.searcher_metric,
        Some(name) => {
            let metrics = checkpoint.training.validation_metrics.as_ref()?;
            metrics.avg_metrics.get(name).and_then(Value::as_f64)
        }
    }
}
