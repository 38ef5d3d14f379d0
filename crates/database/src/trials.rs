//! Trials: creating, starting, their state and their history.

use instep_api::identifiers::{ExperimentId, RunId, StorageId, TrialId};
use instep_api::pages::{Order, Pagination, Slice};
use instep_api::states::State;
use instep_api::trials::{StartTrialResponse, Trial};
use instep_api::wire::{Long, Timestamp};
use serde_json::Value;

use crate::Database;
use crate::checkpoints::{best_checkpoint, newest_checkpoint};
use crate::error::{Error, Result};
use crate::experiments::follow_trials;
use crate::metrics::{read, summary, validation};
use crate::rows::{column, json, optional_json, optional_time, text_of, time, word};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

/// A trial to be made.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Trial")]
pub struct NewTrial {
    pub experiment: ExperimentId,
    pub external_id: Option<String>,
    pub hparams: Value,
    /// What follows the experiment's id in the task's, if there is no external id.
    pub task_suffix: String,
}

const COLUMNS: &str = "SELECT trials.*, \
    (SELECT COUNT(*) FROM checkpoints WHERE trial_id = trials.id AND state <> 'STATE_DELETED') AS checkpoint_count, \
    (SELECT CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM checkpoints \
        WHERE trial_id = trials.id AND state <> 'STATE_DELETED') AS checkpoint_size, \
    (SELECT unmanaged FROM experiments WHERE experiments.id = trials.experiment_id) AS unmanaged, \
    (SELECT MIN(started_at) FROM allocations WHERE trial_id = trials.id) AS first_run_at, \
    (SELECT CAST(COALESCE(SUM(ended_at - started_at), 0) AS BIGINT) FROM allocations WHERE trial_id = trials.id) \
        AS run_micros, \
    (SELECT MAX(started_at) FROM allocations WHERE trial_id = trials.id AND ended_at IS NULL) AS running_since, \
    (CASE WHEN trials.state = 'STATE_ACTIVE' THEN COALESCE((SELECT CASE state WHEN 'STATE_TERMINATING' \
        THEN 'STATE_RUNNING' WHEN 'STATE_WAITING' THEN 'STATE_QUEUED' ELSE state END FROM allocations \
        WHERE trial_id = trials.id AND ended_at IS NULL ORDER BY run DESC LIMIT 1), 'STATE_QUEUED') \
        ELSE trials.state END) AS shown_state FROM trials";

fn trial_of(row: &Row<'_>, now: Timestamp) -> sql::Result<Trial> {
    let start_time = time(row, "started_at")?;
    let end_time = optional_time(row, "ended_at")?;
    let first_run_time = if column(row, "unmanaged")? { Some(start_time) } else { optional_time(row, "first_run_at")? };
    let task_id: String = column(row, "task_id")?;
    let best: Option<validation::Validation> = optional_json(row, "best_validation")?;
    let latest: Option<validation::Validation> = optional_json(row, "latest_validation")?;
    Ok(Trial {
        id: TrialId(column(row, "id")?),
        experiment_id: ExperimentId(column(row, "experiment_id")?),
        state: word(row, "shown_state")?,
        start_time,
        end_time,
        hparams: json(row, "hparams")?,
        restarts: column(row, "restarts")?,
        total_batches_processed: column(row, "total_batches")?,
        task_ids: vec![task_id.clone()],
        task_id,
        runner_state: column(row, "runner_state")?,
        summary_metrics: Value::Null,
        searcher_metric_value: column(row, "best_validation_value")?,
        best_validation: best.map(validation::Validation::workload),
        latest_validation: latest.map(validation::Validation::workload),
        best_checkpoint: None,
        warm_start_checkpoint_uuid: column(row, "warm_start_checkpoint")?,
        wall_clock_time: if column(row, "unmanaged")? {
            end_time.unwrap_or(now).seconds_since(start_time).max(0.0)
        } else {
            let running = optional_time(row, "running_since")?.map_or(0.0, |since| now.seconds_since(since).max(0.0));
            column::<i64>(row, "run_micros")? as f64 / 1e6 + running
        },
        first_run_time,
        checkpoint_count: column(row, "checkpoint_count")?,
        total_checkpoint_size: Long(column(row, "checkpoint_size")?),
        metadata: optional_json(row, "metadata")?,
        log_policy_matched: column(row, "log_policy_matched")?,
        log_retention_days: column(row, "log_retention_days")?,
    })
}

/// Adds what has to be read from other tables.
pub(crate) fn complete(connection: &Connection, mut trial: Trial) -> Result<Trial> {
    // One for each time it was continued; the first has the first name.
    let mut tasks = connection.prepare_cached("SELECT id FROM tasks WHERE trial_id = ? ORDER BY started_at, id")?;
    trial.task_ids = tasks.query_map([trial.id.0], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    trial.summary_metrics = summary::of_trial(connection, trial.id)?;
    trial.best_checkpoint = best_checkpoint(connection, trial.id)?;
    Ok(trial)
}

pub(crate) fn trial_by_id(connection: &Connection, id: TrialId, now: Timestamp) -> Result<Trial> {
    let trial = connection
        .prepare_cached(&format!("{COLUMNS} WHERE id = ?"))?
        .query_row([id.0], |row| trial_of(row, now))
        .optional()?
        .ok_or_else(|| Error::not_found("trial", id))?;
    complete(connection, trial)
}

/// The trials of an experiment, by id, without what [`complete`] adds.
pub(crate) fn trials_of(connection: &Connection, experiment: ExperimentId, now: Timestamp) -> Result<Vec<Trial>> {
    let sql = format!("{COLUMNS} WHERE experiment_id = ? ORDER BY id");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map([experiment.0], |row| trial_of(row, now))?;
    Ok(found.collect::<sql::Result<_>>()?)
}

/// Fails unless there is such a trial.
pub(crate) fn must_exist(connection: &Connection, id: TrialId) -> Result<ExperimentId> {
    let found: Option<i64> = connection
        .prepare_cached("SELECT experiment_id FROM trials WHERE id = ?")?
        .query_row([id.0], |row| row.get(0))
        .optional()?;
    found.map(ExperimentId).ok_or_else(|| Error::not_found("trial", id))
}

/// Fails if the master itself runs an experiment's trials: nobody else says what they do.
fn must_run_elsewhere(connection: &Connection, experiment: ExperimentId) -> Result<()> {
    let unmanaged: bool = connection
        .prepare_cached("SELECT unmanaged FROM experiments WHERE id = ?")?
        .query_row([experiment.0], |row| row.get(0))?;
    if unmanaged {
        return Ok(());
    }
    Err(Error::Precondition(format!("experiment {experiment} is run by the master, which controls its trials")))
}

/// Removes a trial and everything that belongs to it.
pub(crate) fn forget(connection: &Connection, id: TrialId) -> Result<()> {
    for sql in [
        "DELETE FROM metric_outlines WHERE series_id IN (SELECT id FROM metric_series WHERE trial_id = ?)",
        "DELETE FROM metric_chunks WHERE series_id IN (SELECT id FROM metric_series WHERE trial_id = ?)",
        "DELETE FROM metric_series WHERE trial_id = ?",
        "DELETE FROM metric_groups WHERE trial_id = ?",
        "DELETE FROM metric_batches WHERE trial_id = ?",
        "DELETE FROM metric_tail WHERE trial_id = ?",
        "DELETE FROM reporters WHERE trial_id = ?",
        "DELETE FROM checkpoints WHERE trial_id = ?",
        "DELETE FROM allocations WHERE trial_id = ?",
        "DELETE FROM excluded_agents WHERE task_id IN (SELECT id FROM tasks WHERE trial_id = ?)",
        "DELETE FROM task_contexts WHERE task_id IN (SELECT id FROM tasks WHERE trial_id = ?)",
        "DELETE FROM task_logs WHERE task_id IN (SELECT id FROM tasks WHERE trial_id = ?)",
        "DELETE FROM tasks WHERE trial_id = ?",
        "DELETE FROM trials WHERE id = ?",
    ] {
        connection.prepare_cached(sql)?.execute([id.0])?;
    }
    Ok(())
}

fn start(connection: &Connection, id: TrialId, resume: bool, now: Timestamp) -> Result<StartTrialResponse> {
    let experiment = must_exist(connection, id)?;
    must_run_elsewhere(connection, experiment)?;
    let run: i64 = connection.query_row("SELECT run_id FROM trials WHERE id = ?", [id.0], |row| row.get(0))?;
    if run > 0 && !resume {
        return Err(Error::Precondition("trial has already been started".to_owned()));
    }
    // From now on everything there is belongs to an earlier run, and gives way where this run reports.
    let earlier = if run > 0 { read::highest_step(connection, id)? } else { None };
    connection.execute(
        "UPDATE trials SET run_id = run_id + 1, state = 'STATE_RUNNING', ended_at = NULL, last_activity_at = ?, \
         earlier_run_step = ? WHERE id = ?",
        params![now.0, earlier, id.0],
    )?;
    follow_trials(connection, experiment, now)?;
    let newest = if run > 0 { newest_checkpoint(connection, id)? } else { None };
    let (latest_checkpoint, steps_completed) = newest.map_or((None, 0), |(uuid, steps)| (Some(uuid), steps));
    Ok(StartTrialResponse { trial_run_id: RunId(run + 1), steps_completed, latest_checkpoint })
}

fn set_state(connection: &Connection, id: TrialId, state: Option<State>, now: Timestamp) -> Result<()> {
    let experiment = must_exist(connection, id)?;
    connection.prepare_cached("UPDATE trials SET last_activity_at = ? WHERE id = ?")?.execute([now.0, id.0])?;
    if let Some(state) = state {
        must_run_elsewhere(connection, experiment)?;
        let ended_at = state.is_terminal().then_some(now.0);
        connection.prepare_cached("UPDATE trials SET state = ?, ended_at = ? WHERE id = ?")?.execute(params![
            state.as_str(),
            ended_at,
            id.0
        ])?;
        follow_trials(connection, experiment, now)?;
    }
    Ok(())
}

impl Database {
    /// Makes a trial. With an external id that the experiment knows already, that trial is given instead.
    pub async fn create_trial(&self, new: NewTrial, now: Timestamp) -> Result<Trial> {
        self.executor
            .write(move |connection| {
                crate::experiments::experiment_by_id(connection, new.experiment, now)?;
                must_run_elsewhere(connection, new.experiment)?;
                if let Some(external) = &new.external_id {
                    let known: Option<i64> = connection
                        .query_row(
                            "SELECT id FROM trials WHERE experiment_id = ? AND external_id = ?",
                            params![new.experiment.0, external],
                            |row| row.get(0),
                        )
                        .optional()?;
                    if let Some(id) = known {
                        return trial_by_id(connection, TrialId(id), now);
                    }
                }
                let suffix = new.external_id.as_deref().unwrap_or(&new.task_suffix);
                let task = format!("{}.{suffix}", new.experiment);
                let hparams = text_of(&new.hparams)?;
                let id: i64 = connection.query_row(
                    "INSERT INTO trials (experiment_id, external_id, task_id, state, hparams, run_id, restarts, \
                     runner_state, total_batches, started_at, last_activity_at) \
                     VALUES (?, ?, ?, 'STATE_PAUSED', ?, 0, 0, '', 0, ?, ?) RETURNING id",
                    params![new.experiment.0, new.external_id, task, hparams, now.0, now.0],
                    |row| row.get(0),
                )?;
                connection.execute(
                    "INSERT INTO tasks (id, kind, trial_id, started_at) VALUES (?, 'TASK_TYPE_TRIAL', ?, ?)",
                    params![task, id, now.0],
                )?;
                follow_trials(connection, new.experiment, now)?;
                trial_by_id(connection, TrialId(id), now)
            })
            .await
    }

    /// One trial.
    pub async fn trial(&self, id: TrialId, now: Timestamp) -> Result<Trial> {
        self.executor.read(move |connection| trial_by_id(connection, id, now)).await
    }

    /// The trial with these external ids.
    pub async fn trial_by_external_id(&self, experiment: String, trial: String, now: Timestamp) -> Result<Trial> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT trials.id FROM trials JOIN experiments ON experiments.id = trials.experiment_id \
                           WHERE experiments.external_id = ? AND trials.external_id = ?";
                let found: Option<i64> =
                    connection.query_row(sql, [&experiment, &trial], |row| row.get(0)).optional()?;
                let id = found.ok_or_else(|| Error::not_found("trial", format!("{experiment}/{trial}")))?;
                trial_by_id(connection, TrialId(id), now)
            })
            .await
    }

    /// The trials of an experiment, by id.
    pub async fn trials(
        &self,
        experiment: ExperimentId,
        states: Vec<State>,
        order: Order,
        slice: Slice,
        now: Timestamp,
    ) -> Result<(Vec<Trial>, Pagination)> {
        self.executor
            .read(move |connection| {
                crate::experiments::experiment_by_id(connection, experiment, now)?;
                let mut trials = trials_of(connection, experiment, now)?;
                let active = [State::Queued, State::Pulling, State::Starting, State::Running];
                let wanted =
                    |state: &State| states.contains(state) || states.contains(&State::Active) && active.contains(state);
                trials.retain(|trial| states.is_empty() || wanted(&trial.state));
                if order == Order::Descending {
                    trials.reverse();
                }
                let (range, page) = slice.of(trials.len());
                // Only what is shown is completed: summaries have to be read from metrics.
                let shown = trials.drain(range).map(|trial| complete(connection, trial));
                Ok((shown.collect::<Result<_>>()?, page))
            })
            .await
    }

    /// Starts a trial, for the first time or again, and says where it goes on.
    pub async fn start_trial(&self, id: TrialId, resume: bool, now: Timestamp) -> Result<StartTrialResponse> {
        self.executor.write(move |connection| start(connection, id, resume, now)).await
    }

    /// Notes that a trial lives, and its new state if there is one.
    pub async fn set_trial_state(&self, id: TrialId, state: Option<State>, now: Timestamp) -> Result<Trial> {
        let trial = self
            .executor
            .write(move |connection| {
                set_state(connection, id, state, now)?;
                trial_by_id(connection, id, now)
            })
            .await?;
        if trial.state.is_terminal() {
            self.merger.finish(id);
        }
        Ok(trial)
    }

    /// Running trials of which nothing was heard for a while: the trial, and when it was last heard of.
    pub async fn running_trials(&self) -> Result<Vec<(TrialId, Timestamp)>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT trials.id, last_activity_at FROM trials JOIN experiments ON experiments.id = experiment_id \
                           WHERE trials.state = 'STATE_RUNNING' AND experiments.unmanaged";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], |row| Ok((TrialId(row.get(0)?), Timestamp(row.get(1)?))))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Ends a trial in error as of when it was last heard of, unless it was heard of since.
    pub async fn give_up_trial(&self, id: TrialId, last_heard: Timestamp) -> Result<bool> {
        self.executor
            .write(move |connection| {
                let experiment = must_exist(connection, id)?;
                let changed = connection.execute(
                    "UPDATE trials SET state = 'STATE_ERROR', ended_at = last_activity_at \
                     WHERE id = ? AND state = 'STATE_RUNNING' AND last_activity_at = ?",
                    [id.0, last_heard.0],
                )?;
                follow_trials(connection, experiment, last_heard)?;
                Ok(changed > 0)
            })
            .await
    }

    /// Sets the progress of a trial's experiment.
    pub async fn set_progress(&self, id: TrialId, progress: f64) -> Result<()> {
        self.executor
            .write(move |connection| {
                let experiment = must_exist(connection, id)?;
                connection
                    .prepare_cached("UPDATE experiments SET progress = ? WHERE id = ?")?
                    .execute(params![progress, experiment.0])?;
                Ok(())
            })
            .await
    }

    /// Sets what a trial says it is doing.
    pub async fn set_runner_state(&self, id: TrialId, state: String) -> Result<()> {
        self.executor
            .write(move |connection| {
                must_exist(connection, id)?;
                connection.execute("UPDATE trials SET runner_state = ? WHERE id = ?", params![state, id.0])?;
                Ok(())
            })
            .await
    }

    /// Replaces what a user wrote on a trial.
    pub async fn set_trial_metadata(&self, id: TrialId, metadata: Value) -> Result<()> {
        self.executor
            .write(move |connection| {
                must_exist(connection, id)?;
                let text = text_of(&metadata)?;
                connection.execute("UPDATE trials SET metadata = ? WHERE id = ?", params![text, id.0])?;
                Ok(())
            })
            .await
    }

    /// The id of a place for checkpoints: the same for the same configuration.
    pub async fn storage_id(&self, trial: TrialId, config: Value) -> Result<StorageId> {
        self.executor
            .write(move |connection| {
                must_exist(connection, trial)?;
                // Maps of serde_json are sorted, so equal configurations have equal texts.
                let text = text_of(&config)?;
                connection
                    .execute("INSERT INTO storages (config) VALUES (?) ON CONFLICT (config) DO NOTHING", [&text])?;
                let id = connection.query_row("SELECT id FROM storages WHERE config = ?", [&text], |row| row.get(0))?;
                Ok(StorageId(id))
            })
            .await
    }
}
