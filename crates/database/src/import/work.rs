//! Experiments of another cluster, and everything below them.

use instep_api::states::{CheckpointState, LogLevel, State};
use instep_api::wire::Timestamp;
use serde_json::Value;

use super::Batch;
use crate::error::Result;
use crate::rows::text_of;
use crate::sql::{OptionalExtension, params};

/// An experiment that has ended.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Experiment")]
pub struct ImportedExperiment {
    pub id: i64,
    pub external_id: Option<String>,
    pub name: String,
    pub description: String,
    pub labels: Vec<String>,
    pub notes: String,
    /// JSON.
    pub config: String,
    pub original_config: String,
    pub archived: bool,
    pub job_id: String,
    pub project: i64,
    pub owner: i64,
    pub searcher_name: String,
    pub searcher_metric: String,
    pub smaller_is_better: bool,
    pub state: State,
    pub progress: Option<f64>,
    pub unmanaged: bool,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub forked_from: Option<i64>,
    pub resource_pool: String,
    /// A tar in gzip; empty for one that has none.
    pub model_definition: Vec<u8>,
}

/// A trial that has ended.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Trial")]
pub struct ImportedTrial {
    pub id: i64,
    pub experiment: i64,
    pub external_id: Option<String>,
    pub request_id: Option<String>,
    pub seed: i64,
    /// The task of its first run.
    pub task: String,
    pub state: State,
    /// JSON.
    pub hparams: String,
    pub run: i64,
    pub restarts: i64,
    pub runner_state: String,
    pub total_batches: i64,
    pub metadata: Option<String>,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub last_activity_at: Timestamp,
    pub archived: bool,
    pub log_retention_days: Option<i64>,
    pub log_policy_matched: Option<String>,
}

/// One attempt to run a trial, which has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in an allocation")]
pub struct ImportedAllocation {
    pub id: String,
    pub task: String,
    pub trial: i64,
    pub experiment: i64,
    pub run: i64,
    pub pool: String,
    pub slots: i64,
    pub reason: String,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
}

/// A checkpoint, whose files stay where they are.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Checkpoint")]
pub struct ImportedCheckpoint {
    pub uuid: String,
    pub task: String,
    pub trial: i64,
    pub allocation: Option<String>,
    /// The configuration of where its files are, if it is not its experiment's.
    pub storage: Option<Value>,
    pub state: CheckpointState,
    pub steps_completed: i64,
    pub reported_at: Timestamp,
    /// JSON.
    pub metadata: String,
    /// JSON.
    pub resources: String,
    pub size: i64,
}

/// A model of the registry.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Model")]
pub struct ImportedModel {
    pub id: i64,
    pub name: String,
    pub description: String,
    /// JSON.
    pub metadata: String,
    pub labels: Vec<String>,
    pub notes: String,
    pub archived: bool,
    pub owner: i64,
    pub workspace: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A version of a model.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in ModelVersion")]
pub struct ImportedModelVersion {
    pub id: i64,
    pub model: i64,
    pub version: i64,
    pub checkpoint: String,
    pub name: String,
    pub comment: String,
    pub notes: String,
    /// JSON.
    pub metadata: String,
    pub labels: Vec<String>,
    pub owner: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A template.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in Template")]
pub struct ImportedTemplate {
    pub name: String,
    /// JSON.
    pub config: String,
    pub workspace: i64,
    pub owner: i64,
    pub created_at: Timestamp,
}

/// A line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in LogLine")]
pub struct ImportedLine {
    pub task: String,
    pub allocation: Option<String>,
    pub agent: Option<String>,
    pub container: Option<String>,
    pub rank: Option<i64>,
    pub logged_at: Timestamp,
    pub level: LogLevel,
    pub source: Option<String>,
    pub stdtype: Option<String>,
    pub line: Vec<u8>,
}

impl Batch<'_> {
    /// Adds an experiment with its code.
    pub fn experiment(&self, experiment: &ImportedExperiment) -> Result<()> {
        let sql = "INSERT INTO experiments (id, external_id, name, description, labels, notes, config, original_config, \
                   archived, job_id, project_id, user_id, searcher_name, searcher_metric, smaller_is_better, state, \
                   progress, unmanaged, started_at, ended_at, forked_from, resource_pool, model_definition_size) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![
            experiment.id,
            experiment.external_id,
            experiment.name,
            experiment.description,
            text_of(&experiment.labels)?,
            experiment.notes,
            experiment.config,
            experiment.original_config,
            experiment.archived,
            experiment.job_id,
            experiment.project,
            experiment.owner,
            experiment.searcher_name,
            experiment.searcher_metric,
            experiment.smaller_is_better,
            experiment.state.as_str(),
            experiment.progress,
            experiment.unmanaged,
            experiment.started_at.0,
            experiment.ended_at.0,
            experiment.forked_from,
            experiment.resource_pool,
            experiment.model_definition.len() as i64
        ])?;
        if !experiment.model_definition.is_empty() {
            let sql = "INSERT INTO model_definitions (experiment_id, content) VALUES (?, ?)";
            self.connection.prepare_cached(sql)?.execute(params![experiment.id, experiment.model_definition])?;
        }
        Ok(())
    }

    /// Adds a trial.
    pub fn trial(&self, trial: &ImportedTrial) -> Result<()> {
        let sql = "INSERT INTO trials (id, experiment_id, external_id, request_id, seed, task_id, state, hparams, run_id, \
                   restarts, runner_state, total_batches, metadata, started_at, ended_at, last_activity_at, archived, \
                   log_retention_days, log_policy_matched) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![
            trial.id,
            trial.experiment,
            trial.external_id,
            trial.request_id,
            trial.seed,
            trial.task,
            trial.state.as_str(),
            trial.hparams,
            trial.run,
            trial.restarts,
            trial.runner_state,
            trial.total_batches,
            trial.metadata,
            trial.started_at.0,
            trial.ended_at.0,
            trial.last_activity_at.0,
            trial.archived,
            trial.log_retention_days,
            trial.log_policy_matched
        ])?;
        Ok(())
    }

    /// Adds a task of a trial.
    pub fn task(&self, task: &str, trial: i64, started_at: Timestamp, ended_at: Timestamp) -> Result<()> {
        let sql = "INSERT INTO tasks (id, kind, trial_id, started_at, ended_at) VALUES (?, 'TASK_TYPE_TRIAL', ?, ?, ?) \
                   ON CONFLICT (id) DO NOTHING";
        self.connection.prepare_cached(sql)?.execute(params![task, trial, started_at.0, ended_at.0])?;
        Ok(())
    }

    /// Whether there is such a task, of whatever kind.
    pub fn has_task(&self, task: &str) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ?)";
        Ok(self.connection.prepare_cached(sql)?.query_row([task], |row| row.get(0))?)
    }

    /// Adds an allocation; says whether it is new.
    pub fn allocation(&self, allocation: &ImportedAllocation) -> Result<bool> {
        let sql = "INSERT INTO allocations (id, task_id, trial_id, experiment_id, run, state, ready, pool, slots, shares, \
                   ports, signals, exit, reason, queued_at, started_at, ended_at) \
                   VALUES (?1, ?2, ?3, ?4, ?5, 'STATE_TERMINATED', FALSE, ?6, ?7, '[]', '{}', '{}', NULL, ?8, ?9, ?9, ?10) \
                   ON CONFLICT (id) DO NOTHING";
        let added = self.connection.prepare_cached(sql)?.execute(params![
            allocation.id,
            allocation.task,
            allocation.trial,
            allocation.experiment,
            allocation.run,
            allocation.pool,
            allocation.slots,
            allocation.reason,
            allocation.started_at.0,
            allocation.ended_at.0
        ])?;
        if added == 1 {
            crate::usage::note(self.connection, &allocation.id)?;
        }
        Ok(added == 1)
    }

    /// Adds a checkpoint; says whether it is new.
    pub fn checkpoint(&self, checkpoint: &ImportedCheckpoint) -> Result<bool> {
        let storage = checkpoint.storage.as_ref().map(|config| self.storage(config)).transpose()?;
        let sql = "INSERT INTO checkpoints (uuid, task_id, trial_id, allocation_id, storage_id, state, steps_completed, \
                   reported_at, metadata, resources, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
                   ON CONFLICT (uuid) DO NOTHING";
        let added = self.connection.prepare_cached(sql)?.execute(params![
            checkpoint.uuid,
            checkpoint.task,
            checkpoint.trial,
            checkpoint.allocation,
            storage,
            checkpoint.state.as_str(),
            checkpoint.steps_completed,
            checkpoint.reported_at.0,
            checkpoint.metadata,
            checkpoint.resources,
            checkpoint.size
        ])?;
        Ok(added == 1)
    }

    /// The id of a storage, which is made if there is none like it.
    fn storage(&self, config: &Value) -> Result<i64> {
        let text = text_of(config)?;
        self.connection
            .prepare_cached("INSERT INTO storages (config) VALUES (?) ON CONFLICT (config) DO NOTHING")?
            .execute([&text])?;
        let sql = "SELECT id FROM storages WHERE config = ?";
        Ok(self.connection.prepare_cached(sql)?.query_row([&text], |row| row.get(0))?)
    }

    /// Says from which checkpoint a trial started.
    pub fn warm_start(&self, trial: i64, checkpoint: &str) -> Result<()> {
        let sql = "UPDATE trials SET warm_start_checkpoint = ? WHERE id = ?";
        self.connection.prepare_cached(sql)?.execute(params![checkpoint, trial])?;
        Ok(())
    }

    /// The trial of a checkpoint; `None` if there is no such checkpoint.
    pub fn has_checkpoint(&self, uuid: &str) -> Result<bool> {
        let sql = "SELECT 1 FROM checkpoints WHERE uuid = ?";
        let found: Option<i64> = self.connection.prepare_cached(sql)?.query_row([uuid], |row| row.get(0)).optional()?;
        Ok(found.is_some())
    }

    /// Adds a model.
    pub fn model(&self, model: &ImportedModel) -> Result<()> {
        let sql = "INSERT INTO models (id, name, description, metadata, labels, notes, archived, user_id, workspace_id, \
                   versions_made, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![
            model.id,
            model.name,
            model.description,
            model.metadata,
            text_of(&model.labels)?,
            model.notes,
            model.archived,
            model.owner,
            model.workspace,
            model.created_at.0,
            model.updated_at.0
        ])?;
        Ok(())
    }

    /// Adds a version of a model; `false` if the model has one with that number.
    pub fn model_version(&self, version: &ImportedModelVersion) -> Result<bool> {
        let sql = "INSERT INTO model_versions (id, model_id, version, checkpoint_uuid, name, comment, notes, metadata, \
                   labels, user_id, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
                   ON CONFLICT (model_id, version) DO NOTHING";
        let added = self.connection.prepare_cached(sql)?.execute(params![
            version.id,
            version.model,
            version.version,
            version.checkpoint,
            version.name,
            version.comment,
            version.notes,
            version.metadata,
            text_of(&version.labels)?,
            version.owner,
            version.created_at.0,
            version.updated_at.0
        ])?;
        let sql = "UPDATE models SET versions_made = ?1 WHERE id = ?2 AND versions_made < ?1";
        self.connection.prepare_cached(sql)?.execute([version.version, version.model])?;
        Ok(added == 1)
    }

    /// Adds a template; says whether its name was free.
    pub fn template(&self, template: &ImportedTemplate) -> Result<bool> {
        let sql = "INSERT INTO templates (name, config, workspace_id, user_id, created_at) VALUES (?, ?, ?, ?, ?) \
                   ON CONFLICT (name) DO NOTHING";
        let added = self.connection.prepare_cached(sql)?.execute(params![
            template.name,
            template.config,
            template.workspace,
            template.owner,
            template.created_at.0
        ])?;
        Ok(added == 1)
    }

    /// Adds a line of output.
    pub fn line(&self, line: &ImportedLine) -> Result<()> {
        let sql = "INSERT INTO task_logs (task_id, allocation_id, agent_id, container_id, rank_id, logged_at, level, \
                   source, stdtype, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![
            line.task,
            line.allocation,
            line.agent,
            line.container,
            line.rank,
            line.logged_at.0,
            line.level.as_str(),
            line.source,
            line.stdtype,
            line.line
        ])?;
        Ok(())
    }
}
