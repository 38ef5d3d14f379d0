//! Checkpoints: which files a trial saved, and what it had reported then.

use std::collections::BTreeMap;

use instep_api::checkpoints::{Checkpoint, Training};
use instep_api::identifiers::{CheckpointUuid, ExperimentId, StorageId, TrialId};
use instep_api::metrics::{Metrics, TRAINING, VALIDATION};
use instep_api::states::CheckpointState;
use instep_api::trials::CheckpointWorkload;
use instep_api::values::finite_number;
use instep_api::wire::{Long, Timestamp};
use serde_json::{Map, Value};

use crate::Database;
use crate::error::{Error, Result};
use crate::metrics::read;
use crate::rows::{column, json, object, optional_json, text_of, time, word};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

/// A checkpoint that was saved.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Checkpoint")]
pub struct NewCheckpoint {
    pub uuid: CheckpointUuid,
    pub task_id: String,
    pub allocation_id: Option<String>,
    pub storage_id: Option<StorageId>,
    pub steps_completed: i64,
    pub reported_at: Timestamp,
    pub metadata: Map<String, Value>,
    pub resources: BTreeMap<String, Long>,
}

const COLUMNS: &str = "SELECT checkpoints.*, trials.experiment_id AS experiment_id, trials.hparams AS hparams, \
    experiments.config AS config, experiments.searcher_metric AS searcher_metric FROM checkpoints \
    LEFT JOIN trials ON trials.id = checkpoints.trial_id \
    LEFT JOIN experiments ON experiments.id = trials.experiment_id";

struct Found {
    checkpoint: Checkpoint,
    step: i64,
    searcher_metric: Option<String>,
}

fn found_of(row: &Row<'_>) -> sql::Result<Found> {
    let checkpoint = Checkpoint {
        uuid: column(row, "uuid")?,
        task_id: column(row, "task_id")?,
        allocation_id: column(row, "allocation_id")?,
        report_time: time(row, "reported_at")?,
        state: word(row, "state")?,
        storage_id: column::<Option<i64>>(row, "storage_id")?.map(StorageId),
        resources: json(row, "resources")?,
        metadata: json(row, "metadata")?,
        training: Training {
            trial_id: column::<Option<i64>>(row, "trial_id")?.map(TrialId),
            experiment_id: column::<Option<i64>>(row, "experiment_id")?.map(ExperimentId),
            experiment_config: object(optional_json(row, "config")?).into(),
            hparams: object(optional_json(row, "hparams")?),
            training_metrics: None,
            validation_metrics: None,
            searcher_metric: None,
        },
    };
    Ok(Found { checkpoint, step: column(row, "steps_completed")?, searcher_metric: column(row, "searcher_metric")? })
}

/// Adds what the trial had reported at the checkpoint's step.
fn complete(connection: &Connection, found: Found) -> Result<Checkpoint> {
    let mut checkpoint = found.checkpoint;
    let Some(trial) = checkpoint.training.trial_id else { return Ok(checkpoint) };
    let metrics = |group| -> Result<Option<Metrics>> {
        let row = read::row_at(connection, trial, group, found.step)?;
        Ok(row.map(|row| Metrics { avg_metrics: row.values, batch_metrics: row.batches }))
    };
    checkpoint.training.training_metrics = metrics(TRAINING)?;
    checkpoint.training.validation_metrics = metrics(VALIDATION)?;
    let searched = found.searcher_metric.as_deref().unwrap_or_default();
    let value = checkpoint.training.validation_metrics.as_ref().and_then(|found| found.avg_metrics.get(searched));
    checkpoint.training.searcher_metric = value.and_then(finite_number);
    Ok(checkpoint)
}

pub(crate) fn checkpoint_by_uuid(connection: &Connection, uuid: &str) -> Result<Checkpoint> {
    let found = connection
        .prepare_cached(&format!("{COLUMNS} WHERE checkpoints.uuid = ?"))?
        .query_row([uuid], found_of)
        .optional()?
        .ok_or_else(|| Error::not_found("checkpoint", uuid))?;
    complete(connection, found)
}

/// The completed checkpoint of a trial with the most steps: its UUID and steps.
pub(crate) fn newest_checkpoint(connection: &Connection, trial: TrialId) -> Result<Option<(String, i64)>> {
    let sql = "SELECT uuid, steps_completed FROM checkpoints WHERE trial_id = ? AND state = 'STATE_COMPLETED' \
               ORDER BY steps_completed DESC, reported_at DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row([trial.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

fn workload_of(row: &Row<'_>) -> sql::Result<CheckpointWorkload> {
    Ok(CheckpointWorkload {
        uuid: column(row, "uuid")?,
        state: word(row, "state")?,
        total_batches: column(row, "steps_completed")?,
        end_time: Some(time(row, "reported_at")?),
        resources: json(row, "resources")?,
        metadata: json(row, "metadata")?,
    })
}

/// The checkpoint at the trial's best validation, if it saved one there.
pub(crate) fn best_checkpoint(connection: &Connection, trial: TrialId) -> Result<Option<CheckpointWorkload>> {
    let best: Option<String> = connection
        .prepare_cached("SELECT best_validation FROM trials WHERE id = ?")?
        .query_row([trial.0], |row| row.get(0))?;
    let Some(best) = best else { return Ok(None) };
    let best: Value = serde_json::from_str(&best).map_err(|error| Error::Damaged(error.to_string()))?;
    let sql = "SELECT * FROM checkpoints WHERE trial_id = ? AND steps_completed = ? AND state = 'STATE_COMPLETED' \
               ORDER BY reported_at DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params![trial.0, best["step"].as_i64()], workload_of).optional()?)
}

/// The checkpoints of a trial as steps of its history.
pub(crate) fn workloads(connection: &Connection, trial: TrialId) -> Result<Vec<CheckpointWorkload>> {
    let sql = "SELECT * FROM checkpoints WHERE trial_id = ? ORDER BY steps_completed, reported_at";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map([trial.0], workload_of)?;
    Ok(found.collect::<sql::Result<_>>()?)
}

fn size_of(resources: &BTreeMap<String, Long>) -> i64 {
    resources.values().map(|size| size.0).sum()
}

impl Database {
    /// Records a checkpoint. The same report again changes nothing; another one under the same UUID replaces it.
    pub async fn report_checkpoint(&self, new: NewCheckpoint) -> Result<()> {
        self.executor
            .write(move |connection| {
                let trial: Option<Option<i64>> = connection
                    .query_row("SELECT trial_id FROM tasks WHERE id = ?", [&new.task_id], |row| row.get(0))
                    .optional()?;
                let trial = trial.ok_or_else(|| Error::not_found("task", &new.task_id))?;
                if let Some(storage) = new.storage_id {
                    let there: bool = connection.query_row(
                        "SELECT EXISTS (SELECT 1 FROM storages WHERE id = ?)",
                        [storage.0],
                        |row| row.get(0),
                    )?;
                    if !there {
                        return Err(Error::not_found("storage", storage));
                    }
                }
                connection.execute(
                    "INSERT INTO checkpoints (uuid, task_id, trial_id, allocation_id, storage_id, state, \
                     steps_completed, reported_at, metadata, resources, size) \
                     VALUES (?, ?, ?, ?, ?, 'STATE_COMPLETED', ?, ?, ?, ?, ?) \
                     ON CONFLICT (uuid) DO UPDATE SET task_id = excluded.task_id, trial_id = excluded.trial_id, \
                     allocation_id = excluded.allocation_id, storage_id = excluded.storage_id, \
                     state = excluded.state, steps_completed = excluded.steps_completed, \
                     reported_at = excluded.reported_at, metadata = excluded.metadata, \
                     resources = excluded.resources, size = excluded.size",
                    params![
                        new.uuid.as_str(),
                        new.task_id,
                        trial,
                        new.allocation_id,
                        new.storage_id.map(|id| id.0),
                        new.steps_completed,
                        new.reported_at.0,
                        text_of(&new.metadata)?,
                        text_of(&new.resources)?,
                        size_of(&new.resources)
                    ],
                )?;
                Ok(())
            })
            .await
    }

    /// One checkpoint.
    pub async fn checkpoint(&self, uuid: String) -> Result<Checkpoint> {
        self.executor.read(move |connection| checkpoint_by_uuid(connection, &uuid)).await
    }

    /// The checkpoints of an experiment, and whether smaller is better for its searcher's metric.
    pub async fn experiment_checkpoints(
        &self,
        id: ExperimentId,
        states: Vec<CheckpointState>,
        now: Timestamp,
    ) -> Result<(Vec<Checkpoint>, bool)> {
        self.executor
            .read(move |connection| {
                crate::experiments::experiment_by_id(connection, id, now)?;
                let found = checkpoints_where(connection, "trials.experiment_id", id.0, &states)?;
                Ok((found, smaller_is_better(connection, id)?))
            })
            .await
    }

    /// The checkpoints of a trial, and whether smaller is better for its searcher's metric.
    pub async fn trial_checkpoints(
        &self,
        id: TrialId,
        states: Vec<CheckpointState>,
    ) -> Result<(Vec<Checkpoint>, bool)> {
        self.executor
            .read(move |connection| {
                let experiment = crate::trials::must_exist(connection, id)?;
                let found = checkpoints_where(connection, "trials.id", id.0, &states)?;
                Ok((found, smaller_is_better(connection, experiment)?))
            })
            .await
    }

    /// Notes what is left of a checkpoint's files; nothing left means deleted.
    pub async fn shrink_checkpoint(&self, uuid: String, left: BTreeMap<String, Long>) -> Result<()> {
        self.executor.write(move |connection| shrink(connection, &uuid, &left)).await
    }

    /// Replaces what is written on a checkpoint.
    pub async fn set_checkpoint_metadata(&self, uuid: String, metadata: Map<String, Value>) -> Result<Checkpoint> {
        self.executor
            .write(move |connection| {
                checkpoint_by_uuid(connection, &uuid)?;
                let text = text_of(&metadata)?;
                connection.execute("UPDATE checkpoints SET metadata = ? WHERE uuid = ?", params![text, uuid])?;
                checkpoint_by_uuid(connection, &uuid)
            })
            .await
    }
}

/// Notes what is left of a checkpoint's files, unless that is too little for a version of a model. Of one that is deleted
/// the names of its last files stay, as with Determined.
pub(crate) fn shrink(connection: &Connection, uuid: &str, left: &BTreeMap<String, Long>) -> Result<()> {
    let current = checkpoint_by_uuid(connection, uuid)?;
    let state = if left.is_empty() {
        CheckpointState::Deleted
    } else if *left == current.resources {
        current.state
    } else {
        CheckpointState::PartiallyDeleted
    };
    if state != current.state {
        crate::models::must_not_be_registered(connection, uuid)?;
    }
    let named = if left.is_empty() { &current.resources } else { left };
    connection.execute(
        "UPDATE checkpoints SET state = ?, resources = ?, size = ? WHERE uuid = ?",
        params![state.as_str(), text_of(named)?, size_of(left), uuid],
    )?;
    Ok(())
}

fn smaller_is_better(connection: &Connection, id: ExperimentId) -> Result<bool> {
    let sql = "SELECT smaller_is_better FROM experiments WHERE id = ?";
    Ok(connection.prepare_cached(sql)?.query_row([id.0], |row| row.get(0))?)
}

fn checkpoints_where(
    connection: &Connection,
    column: &str,
    id: i64,
    states: &[CheckpointState],
) -> Result<Vec<Checkpoint>> {
    let sql = format!("{COLUMNS} WHERE {column} = ? ORDER BY checkpoints.reported_at, checkpoints.uuid");
    let mut statement = connection.prepare_cached(&sql)?;
    let found: Vec<Found> = statement.query_map([id], found_of)?.collect::<sql::Result<_>>()?;
    found
        .into_iter()
        .filter(|found| states.is_empty() || states.contains(&found.checkpoint.state))
        .map(|found| complete(connection, found))
        .collect()
}
