//! Workspaces and the projects in them, which group experiments.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::StorageConfiguration;
use crate::identifiers::{ProjectId, UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::preferences::Note;
use crate::wire::Timestamp;

/// The only state that a workspace or project has here: nothing is happening to it.
pub const RESTING: &str = "WORKSPACE_STATE_UNSPECIFIED";

/// A group of projects.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Workspace {
    pub id: WorkspaceId,
    pub name: String,
    pub archived: bool,
    pub username: String,
    pub user_id: UserId,
    pub immutable: bool,
    pub num_projects: i64,
    pub num_experiments: i64,
    pub pinned: bool,
    pub pinned_at: Option<Timestamp>,
    pub state: String,
    pub error_message: String,
    pub agent_user_group: Option<Value>,
    pub checkpoint_storage_config: Option<StorageConfiguration>,
    pub default_compute_pool: String,
    pub default_aux_pool: String,
}

/// A group of experiments.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Project {
    pub id: ProjectId,
    pub name: String,
    pub description: String,
    pub workspace_id: WorkspaceId,
    pub workspace_name: String,
    pub archived: bool,
    pub username: String,
    pub user_id: UserId,
    pub immutable: bool,
    pub notes: Vec<Note>,
    pub num_experiments: i64,
    pub num_active_experiments: i64,
    pub num_runs: i64,
    pub last_experiment_started_at: Option<Timestamp>,
    pub state: String,
    pub error_message: String,
    pub key: String,
}

/// `POST` and `PATCH` of `/workspaces`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WorkspaceRequest {
    pub name: Option<String>,
    /// Where experiments keep their checkpoints that do not say; an empty one takes it back.
    #[serde(alias = "checkpoint_storage_config")]
    pub checkpoint_storage_config: Option<Value>,
    /// As whom tasks run; one whose fields are all null takes it back.
    #[serde(alias = "agent_user_group")]
    pub agent_user_group: Option<Value>,
    #[serde(alias = "default_compute_pool", alias = "defaultComputeResourcePool")]
    pub default_compute_pool: Option<String>,
    #[serde(alias = "default_aux_pool", alias = "defaultAuxResourcePool")]
    pub default_aux_pool: Option<String>,
}

/// `POST /workspaces/{id}/projects` and `PATCH /projects/{id}`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ProjectRequest {
    pub name: Option<String>,
    pub description: Option<String>,
    pub key: Option<String>,
}

/// One workspace. `namespaceBindings` must be there when one was made: the command line reads it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WorkspaceResponse {
    pub workspace: Workspace,
    pub namespace_bindings: Map<String, Value>,
}

/// A list of workspaces.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WorkspacesResponse {
    pub workspaces: Vec<Workspace>,
    pub pagination: Pagination,
}

/// One project.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ProjectResponse {
    pub project: Project,
}

/// A list of projects.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ProjectsResponse {
    pub projects: Vec<Project>,
    pub pagination: Pagination,
}

/// The answer to a deletion that is done at once.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct DeletionResponse {
    pub completed: bool,
}
