//! Which checkpoints an experiment keeps: what a policy would delete.

use instep_api::experiments::PatchStorage;
use instep_api::identifiers::ExperimentId;
use instep_policy::retention::Keep;
use serde_json::{Value, json};

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;
use crate::clock::now;
use crate::cluster::given_up_by;

/// What a policy would delete, before somebody wants it.
pub(crate) async fn preview(call: Call) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    let number = |name: &str| call.query.value::<usize>(name).map(Option::unwrap_or_default);
    let keep = Keep {
        experiment_best: number("saveExperimentBest")?,
        trial_best: number("saveTrialBest")?,
        trial_latest: number("saveTrialLatest")?,
    };
    let database = &call.application.database;
    let experiment = database.experiment(id, now()).await?;
    let doomed = given_up_by(database, id, keep).await?;
    let checkpoints: Vec<Value> = doomed
        .iter()
        .map(|checkpoint| {
            json!({
                "TrialID": checkpoint.training.trial_id,
                "StepsCompleted": checkpoint.metadata["steps_completed"],
                "State": checkpoint.state.as_str().trim_start_matches("STATE_"),
                "ValidationMetrics": checkpoint.training.validation_metrics,
                "UUID": checkpoint.uuid,
                "Resources": checkpoint.resources,
                "ReportTime": checkpoint.report_time,
            })
        })
        .collect();
    Reply::json(&json!({"checkpoints": checkpoints, "metric_name": experiment.searcher_metric}))
}

/// Changes what an experiment keeps; one that is over is looked through at once.
pub(crate) async fn keep(call: &Call, id: ExperimentId, wanted: &PatchStorage) -> Result<(), Failure> {
    let mut changes = Vec::new();
    for (key, count) in [
        ("save_experiment_best", wanted.save_experiment_best),
        ("save_trial_best", wanted.save_trial_best),
        ("save_trial_latest", wanted.save_trial_latest),
    ] {
        let Some(count) = count else { continue };
        if count < 0 {
            return Err(Failure::invalid(format!("checkpointStorage: {key} is {count}, and must be 0 or more")));
        }
        changes.push(("checkpoint_storage", key, json!(count)));
    }
    call.application.database.change_config(id, changes, now()).await?;
    Ok(call.application.cluster.collect(id).await?)
}
