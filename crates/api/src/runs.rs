//! Searching experiments and runs, and one wish for many runs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::experiments::Experiment;
use crate::identifiers::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::states::State;
use crate::trials::Trial;
use crate::wire::{Long, Timestamp, Whole};

/// `POST /experiments-search` and `POST /runs`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SearchRequest {
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
    /// JSON, in the filter language.
    pub filter: Option<String>,
    /// `COLUMN=asc,COLUMN=desc`
    pub sort: Option<String>,
    pub limit: Option<Whole>,
    pub offset: Option<Whole>,
}

/// The answer to a search for experiments.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SearchExperimentsResponse {
    pub experiments: Vec<FoundExperiment>,
    pub pagination: Pagination,
}

/// An experiment, and its trial with the best validation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct FoundExperiment {
    pub experiment: Experiment,
    pub best_trial: Option<Trial>,
}

/// The answer to a search for runs.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SearchRunsResponse {
    pub runs: Vec<FlatRun>,
    pub pagination: Pagination,
}

/// A trial with what is known of its experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct FlatRun {
    pub id: TrialId,
    /// The project's key and the run's number.
    pub local_id: String,
    pub state: State,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
    /// Seconds from start to end, or to now.
    pub duration: i64,
    pub hyperparameters: Value,
    pub summary_metrics: Value,
    pub searcher_metric_value: Option<f64>,
    pub checkpoint_count: i64,
    pub checkpoint_size: Long,
    pub labels: Vec<String>,
    pub user_id: UserId,
    pub project_id: ProjectId,
    pub project_name: String,
    pub workspace_id: WorkspaceId,
    pub workspace_name: String,
    pub parent_archived: bool,
    pub archived: bool,
    pub external_run_id: Option<String>,
    pub metadata: Option<Value>,
    pub log_policy_matched: Option<String>,
    pub experiment: FlatRunExperiment,
}

/// What a run says about its experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct FlatRunExperiment {
    pub id: ExperimentId,
    pub name: String,
    pub description: String,
    pub searcher_type: String,
    pub searcher_metric: String,
    pub resource_pool: String,
    pub progress: f64,
    pub is_multitrial: bool,
    pub unmanaged: bool,
    pub forked_from: Option<ExperimentId>,
    pub external_experiment_id: Option<String>,
    pub pachyderm_integration: Option<Value>,
}

/// `POST /runs/{wish}`: those that are named, or all that a filter finds.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RunsRequest {
    #[serde(alias = "run_ids")]
    pub run_ids: Option<Vec<TrialId>>,
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
    pub filter: Option<String>,
}

/// `POST /runs/move`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MoveRunsRequest {
    #[serde(alias = "run_ids")]
    pub run_ids: Option<Vec<TrialId>>,
    #[serde(alias = "source_project_id")]
    pub source_project_id: Option<ProjectId>,
    #[serde(alias = "destination_project_id")]
    pub destination_project_id: Option<ProjectId>,
    pub filter: Option<String>,
    #[serde(alias = "skip_multitrial")]
    pub skip_multitrial: Option<bool>,
}

/// What became of each.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RunsResponse {
    pub results: Vec<RunResult>,
}

/// What became of one; an empty error if all is well.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RunResult {
    pub id: TrialId,
    pub error: String,
}

/// `GET /projects/{id}/columns`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ColumnsResponse {
    pub columns: Vec<ProjectColumn>,
}

/// What can be shown, filtered and sorted by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ProjectColumn {
    pub column: String,
    pub location: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub display_name: String,
}

/// `GET /projects/{id}/experiments/metric-ranges`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricRangesResponse {
    pub ranges: Vec<MetricRange>,
}

/// Between which values a metric's summaries lie.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricRange {
    pub metrics_name: String,
    pub min: f64,
    pub max: f64,
}

/// `GET /projects/{id}/metadata/{key}`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetadataValuesResponse {
    pub values: Vec<String>,
}
