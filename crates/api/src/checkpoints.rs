//! Checkpoints: which files a trial saved at which step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::Configuration;
use crate::identifiers::{ExperimentId, StorageId, TrialId};
use crate::metrics::Metrics;
use crate::pages::Pagination;
use crate::states::CheckpointState;
use crate::wire::{Long, Timestamp};

/// The files saved under one UUID.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Checkpoint {
    pub uuid: String,
    pub task_id: String,
    pub allocation_id: Option<String>,
    pub report_time: Timestamp,
    pub state: CheckpointState,
    pub storage_id: Option<StorageId>,
    pub resources: BTreeMap<String, Long>,
    pub metadata: Value,
    pub training: Training,
}

/// What the trial had reported when it saved a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Training {
    pub trial_id: Option<TrialId>,
    pub experiment_id: Option<ExperimentId>,
    pub experiment_config: Configuration,
    pub hparams: Value,
    pub training_metrics: Option<Metrics>,
    pub validation_metrics: Option<Metrics>,
    pub searcher_metric: Option<f64>,
}

/// `POST /checkpoints`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ReportCheckpointRequest {
    pub uuid: Option<String>,
    #[serde(alias = "task_id")]
    pub task_id: Option<String>,
    #[serde(alias = "allocation_id")]
    pub allocation_id: Option<String>,
    pub state: Option<CheckpointState>,
    #[serde(alias = "storage_id")]
    pub storage_id: Option<StorageId>,
    #[serde(alias = "report_time")]
    pub report_time: Option<Timestamp>,
    pub metadata: Option<Map<String, Value>>,
    pub resources: Option<BTreeMap<String, Long>>,
}

/// One checkpoint.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CheckpointResponse {
    pub checkpoint: Checkpoint,
}

/// A list of checkpoints.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CheckpointsResponse {
    pub checkpoints: Vec<Checkpoint>,
    pub pagination: Pagination,
}

/// `PATCH /checkpoints`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchCheckpointsRequest {
    pub checkpoints: Option<Vec<PatchCheckpoint>>,
}

/// What is left of one checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchCheckpoint {
    pub uuid: Option<String>,
    pub resources: Option<OptionalResources>,
}

/// Files that are left; none means that the checkpoint is gone.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct OptionalResources {
    pub resources: Option<BTreeMap<String, Long>>,
}

/// `POST /checkpoints/{uuid}/metadata`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PostCheckpointMetadataRequest {
    pub checkpoint: Option<CheckpointMetadata>,
}

/// The new metadata of a checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CheckpointMetadata {
    pub metadata: Option<Map<String, Value>>,
}

/// `DELETE /checkpoints`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct DeleteCheckpointsRequest {
    #[serde(alias = "checkpoint_uuids")]
    pub checkpoint_uuids: Option<Vec<String>>,
}

/// `POST /checkpoints/rm`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoveFilesRequest {
    /// Which checkpoints.
    #[serde(alias = "checkpoint_uuids")]
    pub checkpoint_uuids: Option<Vec<String>>,
    /// Which of their files; none only looks again what is there.
    #[serde(alias = "checkpoint_globs")]
    pub checkpoint_globs: Option<Vec<String>>,
}
