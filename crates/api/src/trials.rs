//! Trials: one run of a script with one set of hyperparameters, resumed as often as it takes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::identifiers::{ExperimentId, ModelId, RunId, StorageId, TrialId};
use crate::metrics::Metrics;
use crate::pages::Pagination;
use crate::states::{CheckpointState, SourceKind, State};
use crate::wire::{Long, Timestamp};

/// One trial.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Trial {
    pub id: TrialId,
    pub experiment_id: ExperimentId,
    pub state: State,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
    pub hparams: Value,
    pub restarts: i64,
    pub total_batches_processed: i64,
    pub task_id: String,
    pub task_ids: Vec<String>,
    pub runner_state: String,
    pub summary_metrics: Value,
    pub best_validation: Option<MetricsWorkload>,
    pub latest_validation: Option<MetricsWorkload>,
    pub best_checkpoint: Option<CheckpointWorkload>,
    pub searcher_metric_value: Option<f64>,
    pub warm_start_checkpoint_uuid: Option<String>,
    /// Seconds for which it has had slots, or has run elsewhere.
    pub wall_clock_time: f64,
    /// When it first got slots, or began elsewhere; not Determined's.
    pub first_run_time: Option<Timestamp>,
    pub checkpoint_count: i64,
    pub total_checkpoint_size: Long,
    pub metadata: Option<Value>,
    pub log_policy_matched: Option<String>,
    pub log_retention_days: Option<i64>,
}

/// Metrics as a step of a trial's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricsWorkload {
    pub metrics: Metrics,
    pub num_inputs: i64,
    pub total_batches: i64,
    pub end_time: Option<Timestamp>,
}

/// A checkpoint as a step of a trial's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CheckpointWorkload {
    pub uuid: String,
    pub state: CheckpointState,
    pub total_batches: i64,
    pub end_time: Option<Timestamp>,
    pub resources: BTreeMap<String, Long>,
    pub metadata: Value,
}

/// A step of a trial's history: exactly one of the three is set.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Workload {
    pub training: Option<MetricsWorkload>,
    pub validation: Option<MetricsWorkload>,
    pub checkpoint: Option<CheckpointWorkload>,
}

/// `GET /trials/{id}/workloads`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WorkloadsResponse {
    pub workloads: Vec<Workload>,
    pub pagination: Pagination,
}

/// `POST /trials`
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CreateTrialRequest {
    #[serde(alias = "experiment_id")]
    pub experiment_id: Option<ExperimentId>,
    pub hparams: Option<Value>,
    pub unmanaged: Option<bool>,
}

/// `PUT /trials`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PutTrialRequest {
    #[serde(alias = "create_trial_request")]
    pub create_trial_request: Option<CreateTrialRequest>,
    #[serde(alias = "external_trial_id")]
    pub external_trial_id: Option<String>,
}

/// An answer that is one trial.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TrialResponse {
    pub trial: Trial,
}

/// A list of trials.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TrialsResponse {
    pub trials: Vec<Trial>,
    pub pagination: Pagination,
}

/// `POST /trials/{id}/start`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct StartTrialRequest {
    pub resume: Option<bool>,
}

/// Where a started trial goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct StartTrialResponse {
    pub trial_run_id: RunId,
    pub steps_completed: i64,
    pub latest_checkpoint: Option<String>,
}

/// `PATCH /trials/{id}`: with a state, or bare as a heartbeat.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchTrialRequest {
    pub state: Option<State>,
}

/// `POST /trials/{id}/progress`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ProgressRequest {
    pub progress: Option<f64>,
    #[serde(alias = "is_raw")]
    pub is_raw: Option<bool>,
}

/// `POST /trials/{id}/early_exit`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct EarlyExitRequest {
    pub reason: Option<String>,
}

/// `POST /trials/{id}/runner/metadata`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RunnerMetadataRequest {
    pub state: Option<String>,
}

/// `POST /runs/start`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct StartRunRequest {
    #[serde(alias = "run_id")]
    pub run_id: Option<TrialId>,
    #[serde(alias = "checkpoint_storage")]
    pub checkpoint_storage: Option<Value>,
}

/// The storage that a run's checkpoints belong to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct StartRunResponse {
    pub storage_id: Option<StorageId>,
}

/// `POST` and `GET` of `/runs/{id}/metadata`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RunMetadata {
    pub metadata: Option<Value>,
}

/// `POST /trial-source-info`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ReportSourceRequest {
    #[serde(alias = "trial_source_info")]
    pub trial_source_info: Option<TrialSourceInfo>,
}

/// A trial that works with a checkpoint, be it a version of a model.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TrialSourceInfo {
    #[serde(alias = "trial_id")]
    pub trial_id: Option<TrialId>,
    #[serde(alias = "checkpoint_uuid")]
    pub checkpoint_uuid: Option<String>,
    #[serde(alias = "trial_source_info_type")]
    pub trial_source_info_type: Option<SourceKind>,
    #[serde(alias = "model_id")]
    pub model_id: Option<ModelId>,
    #[serde(alias = "model_version")]
    pub model_version: Option<i64>,
}

/// What was remembered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ReportSourceResponse {
    pub trial_id: TrialId,
    pub checkpoint_uuid: String,
}
