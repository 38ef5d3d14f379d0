//! Experiments: a name, a configuration, and trials.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{Configuration, ConfigurationText};
use crate::identifiers::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::states::State;
use crate::wire::{Base64, Long, Timestamp, Whole};

/// One experiment, with everything that lists show.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Experiment {
    pub id: ExperimentId,
    pub name: String,
    pub description: String,
    pub labels: Vec<String>,
    pub notes: String,
    pub config: Configuration,
    pub original_config: ConfigurationText,
    pub archived: bool,
    pub job_id: String,
    pub num_trials: i64,
    pub trial_ids: Vec<TrialId>,
    pub project_id: ProjectId,
    pub project_name: String,
    pub project_owner_id: UserId,
    pub workspace_id: WorkspaceId,
    pub workspace_name: String,
    pub parent_archived: bool,
    pub searcher_type: String,
    pub searcher_metric: String,
    pub hyperparameters: Value,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
    pub state: State,
    pub username: String,
    pub display_name: String,
    pub user_id: UserId,
    pub resource_pool: String,
    pub progress: Option<f64>,
    pub forked_from: Option<ExperimentId>,
    pub checkpoint_size: Long,
    pub checkpoint_count: i64,
    pub unmanaged: bool,
    pub external_experiment_id: Option<String>,
    pub external_trial_id: Option<String>,
    pub model_definition_size: i64,
    pub best_trial_id: Option<TrialId>,
    pub best_trial_searcher_metric: Option<f64>,
    /// Seconds from start to end, or to now.
    pub duration: i64,
    /// When the first of its trials got slots, or began elsewhere; not Determined's.
    pub first_run_time: Option<Timestamp>,
    pub pachyderm_integration: Option<Value>,
}

impl Experiment {
    /// Seconds from the first run to the end, or to now; none while it waits for slots.
    pub fn run_seconds(&self) -> Option<i64> {
        let waited = self.first_run_time?.seconds_since(self.start_time) as i64;
        Some((self.duration - waited).max(0))
    }
}

/// `POST /experiments` and `PUT /experiments/by-external-id/{id}`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CreateExperimentRequest {
    pub config: Option<String>,
    pub unmanaged: Option<bool>,
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
    #[serde(alias = "validate_only")]
    pub validate_only: Option<bool>,
    pub activate: Option<bool>,
    #[serde(alias = "parent_id")]
    pub parent_id: Option<ExperimentId>,
    pub template: Option<String>,
    #[serde(alias = "model_definition")]
    pub model_definition: Option<Vec<ModelFile>>,
}

/// A file or a folder of the code that comes with an experiment or a task.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelFile {
    pub path: Option<String>,
    /// As tar numbers kinds of entries.
    #[serde(rename = "type")]
    pub kind: Option<Whole>,
    pub content: Option<Base64>,
    pub mtime: Option<Long>,
    pub mode: Option<Whole>,
}

/// `GET /experiments/{id}/model_def` and `GET /tasks/{id}/context_directory`: a tar in gzip.
#[derive(Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelDefinitionResponse {
    #[serde(rename = "b64Tgz")]
    pub b64_tgz: Base64,
}

/// The answer to a creation.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CreateExperimentResponse {
    pub experiment: Experiment,
    pub config: Configuration,
    pub warnings: Vec<String>,
}

/// `GET /experiments/{id}`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GetExperimentResponse {
    pub experiment: Experiment,
    pub config: Configuration,
    pub job_summary: Option<Value>,
}

/// `PATCH /experiments/{id}`: what is not given stays.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchExperimentRequest {
    pub name: Option<String>,
    pub description: Option<String>,
    pub labels: Option<Vec<String>>,
    pub notes: Option<String>,
    pub resources: Option<PatchResources>,
    #[serde(rename = "checkpointStorage", alias = "checkpoint_storage")]
    pub checkpoint_storage: Option<PatchStorage>,
}

/// What changes about the slots that an experiment gets.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchResources {
    /// `null`: as many as there are.
    #[serde(alias = "max_slots", deserialize_with = "given")]
    pub max_slots: Option<Option<i64>>,
    pub weight: Option<f64>,
    pub priority: Option<i64>,
}

/// How many checkpoints are kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchStorage {
    #[serde(alias = "save_experiment_best")]
    pub save_experiment_best: Option<i64>,
    #[serde(alias = "save_trial_best")]
    pub save_trial_best: Option<i64>,
    #[serde(alias = "save_trial_latest")]
    pub save_trial_latest: Option<i64>,
}

/// Reads a value that is there, though it may be `null`.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<i64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// An answer that is one experiment.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ExperimentResponse {
    pub experiment: Experiment,
}

/// A list of experiments.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ExperimentsResponse {
    pub experiments: Vec<Experiment>,
    pub pagination: Pagination,
}

/// The labels of an experiment after a change.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LabelsResponse {
    pub labels: Vec<String>,
}

/// `POST /experiments/{id}/move`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MoveExperimentRequest {
    #[serde(alias = "destination_project_id")]
    pub destination_project_id: Option<ProjectId>,
}

/// `GET /experiments/{id}/searcher/best_searcher_validation_metric`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct BestMetricResponse {
    pub metric: f64,
}

/// An answer without content.
pub type Nothing = Map<String, Value>;

/// `GET /experiments/{id}/file_tree`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelTreeResponse {
    pub files: Vec<FileNode>,
}

/// A file or folder of an experiment's code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct FileNode {
    pub path: String,
    pub name: String,
    pub modified_time: Timestamp,
    pub content_length: i64,
    pub is_dir: bool,
    pub content_type: String,
    pub files: Vec<FileNode>,
}

/// `POST /experiments/{id}/file`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelFileRequest {
    pub path: Option<String>,
}

/// The content of a file.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelFileResponse {
    pub file: Base64,
}
