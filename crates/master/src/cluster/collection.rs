//! Checkpoints that an experiment does not keep once it is over.

use std::sync::Arc;

use instep_api::checkpoints::Checkpoint;
use instep_api::identifiers::ExperimentId;
use instep_api::states::CheckpointState;
use instep_database::{Database, Error};
use instep_policy::retention::{Keep, Saved, given_up};

use crate::clock::now;
use crate::notices::Notices;

/// Looks an experiment's checkpoints through, beside everything else. If it fails, the next start of the master tries
/// again; the experiment is none the worse for it.
pub(super) fn collect(database: Database, notices: Arc<Notices>, id: ExperimentId) {
    tokio::spawn(async move {
        match give_up(&database, id).await {
            Ok(0) => {}
            Ok(count) => {
                tracing::info!(experiment = id.0, count, "checkpoints are given up");
                notices.deletions_wanted();
            }
            Err(error) => tracing::error!(experiment = id.0, %error, "cannot look through the checkpoints"),
        }
    });
}

async fn give_up(database: &Database, id: ExperimentId) -> instep_database::Result<usize> {
    let experiment = match database.experiment(id, now()).await {
        Ok(experiment) => experiment,
        // It was deleted meanwhile, with everything.
        Err(Error::NotFound { .. }) => return Ok(0),
        Err(error) => return Err(error),
    };
    let storage = &experiment.config["checkpoint_storage"];
    let count = |name: &str, default: usize| {
        storage[name].as_u64().map_or(default, |count| usize::try_from(count).unwrap_or(usize::MAX))
    };
    let keep = Keep {
        experiment_best: count("save_experiment_best", 0),
        trial_best: count("save_trial_best", 1),
        trial_latest: count("save_trial_latest", 1),
    };
    let gone: Vec<String> =
        given_up_by(database, id, keep).await?.into_iter().map(|checkpoint| checkpoint.uuid).collect();
    let number = gone.len();
    database.delete_checkpoints(gone).await?;
    database.collected(id).await?;
    Ok(number)
}

/// The checkpoints of an experiment that would not be kept.
pub(crate) async fn given_up_by(
    database: &Database,
    id: ExperimentId,
    keep: Keep,
) -> instep_database::Result<Vec<Checkpoint>> {
    let wanted = vec![CheckpointState::Completed, CheckpointState::PartiallyDeleted];
    let (checkpoints, smaller_is_better) = database.experiment_checkpoints(id, wanted, now()).await?;
    let registered = database.kept_checkpoints().await?;
    let saved: Vec<Saved> = checkpoints
        .iter()
        .map(|checkpoint| Saved {
            uuid: checkpoint.uuid.clone(),
            trial: checkpoint.training.trial_id.map_or(0, |trial| trial.0),
            steps: checkpoint.metadata["steps_completed"].as_i64().unwrap_or(0),
            time: checkpoint.report_time.0,
            metric: checkpoint.training.searcher_metric,
            pinned: registered.contains(&checkpoint.uuid),
        })
        .collect();
    let gone = given_up(&saved, keep, smaller_is_better);
    Ok(checkpoints.into_iter().filter(|checkpoint| gone.contains(&checkpoint.uuid)).collect())
}
