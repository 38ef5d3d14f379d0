//! One wish for many experiments: those that are named, or all that a filter finds.

use serde::{Deserialize, Serialize};

use crate::identifiers::{ExperimentId, ProjectId, UserId};
use crate::states::State;
use crate::wire::Whole;

/// `POST /projects/{id}/experiments/{wish}`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct BulkRequest {
    #[serde(alias = "experiment_ids")]
    pub experiment_ids: Option<Vec<ExperimentId>>,
    pub filters: Option<BulkFilters>,
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
    /// Where to, if they are moved.
    #[serde(alias = "destination_project_id")]
    pub destination_project_id: Option<ProjectId>,
}

/// `PUT /projects/{id}/experiments/retain_logs`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RetainLogsOfSeveralRequest {
    #[serde(alias = "experiment_ids")]
    pub experiment_ids: Option<Vec<ExperimentId>>,
    pub filters: Option<BulkFilters>,
    /// -1 for ever.
    #[serde(alias = "num_days")]
    pub num_days: Option<Whole>,
}

/// Which experiments are meant when none are named.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct BulkFilters {
    pub archived: Option<bool>,
    pub description: Option<String>,
    #[serde(alias = "excluded_experiment_ids")]
    pub excluded_experiment_ids: Option<Vec<ExperimentId>>,
    pub labels: Option<Vec<String>>,
    pub name: Option<String>,
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
    pub states: Option<Vec<State>>,
    #[serde(alias = "user_ids")]
    pub user_ids: Option<Vec<UserId>>,
}

/// What became of each.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct BulkResponse {
    pub results: Vec<BulkResult>,
}

/// What became of one; an empty error if all is well.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct BulkResult {
    pub id: ExperimentId,
    pub error: String,
}
