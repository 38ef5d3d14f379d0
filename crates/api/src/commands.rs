//! Commands, TensorBoards, notebooks and shells: tasks beside experiments.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agents::Container;
use crate::config::Configuration;
use crate::experiments::ModelFile;
use crate::identifiers::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::states::AllocationState;
use crate::wire::Timestamp;

/// A command, a TensorBoard, a notebook or a shell.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Command {
    pub id: String,
    pub description: String,
    pub state: AllocationState,
    pub start_time: Timestamp,
    pub container: Option<Container>,
    pub display_name: String,
    pub user_id: UserId,
    pub username: String,
    pub resource_pool: String,
    /// How it ended, for people; empty while it has not.
    pub exit_status: String,
    pub job_id: String,
    pub workspace_id: WorkspaceId,
    /// Why it waits, or what it does. Ours: Determined's clients do not look at it.
    #[serde(default)]
    pub reason: String,
    /// What a TensorBoard shows; nothing for a command.
    pub experiment_ids: Vec<ExperimentId>,
    pub trial_ids: Vec<TrialId>,
    /// Where it serves, below the master's address.
    pub service_address: Option<String>,
    /// As whom a shell runs on its machine: `user` is with whom SSH logs in.
    #[serde(default)]
    pub agent_user_group: Option<Value>,
    /// What opens a shell, for those who may open it; nothing in lists.
    #[serde(default)]
    pub private_key: Option<String>,
    #[serde(default)]
    pub public_key: Option<String>,
}

/// `POST /commands`, `POST /tensorboards`, `POST /notebooks` and `POST /shells`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LaunchRequest {
    pub config: Option<Value>,
    #[serde(alias = "template_name")]
    pub template_name: Option<String>,
    pub files: Option<Vec<ModelFile>>,
    #[serde(alias = "workspace_id")]
    pub workspace_id: Option<WorkspaceId>,
    /// For TensorBoards.
    #[serde(alias = "experiment_ids")]
    pub experiment_ids: Option<Vec<ExperimentId>>,
    /// For TensorBoards.
    #[serde(alias = "trial_ids")]
    pub trial_ids: Option<Vec<TrialId>>,
    /// For notebooks: show the configuration, and start nothing.
    pub preview: Option<bool>,
}

/// The answer to `POST /commands`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LaunchCommandResponse {
    pub command: Command,
    pub config: Configuration,
    pub warnings: Vec<String>,
}

/// The answer to `POST /tensorboards`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LaunchTensorboardResponse {
    pub tensorboard: Command,
    pub config: Configuration,
    pub warnings: Vec<String>,
}

/// The answer to `POST /notebooks`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LaunchNotebookResponse {
    pub notebook: Command,
    pub config: Configuration,
    pub warnings: Vec<String>,
}

/// The answer to `POST /shells`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LaunchShellResponse {
    pub shell: Command,
    pub config: Configuration,
    pub warnings: Vec<String>,
}

/// `GET /commands`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CommandsResponse {
    pub commands: Vec<Command>,
    pub pagination: Pagination,
}

/// `GET /tensorboards`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TensorboardsResponse {
    pub tensorboards: Vec<Command>,
    pub pagination: Pagination,
}

/// `GET /notebooks`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct NotebooksResponse {
    pub notebooks: Vec<Command>,
    pub pagination: Pagination,
}

/// `GET /shells`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ShellsResponse {
    pub shells: Vec<Command>,
    pub pagination: Pagination,
}

/// `GET /commands/{id}`, and what follows a wish about one.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CommandResponse {
    pub command: Command,
    #[serde(default)]
    pub config: Configuration,
}

/// The same for TensorBoards.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TensorboardResponse {
    pub tensorboard: Command,
    #[serde(default)]
    pub config: Configuration,
}

/// The same for notebooks.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct NotebookResponse {
    pub notebook: Command,
    #[serde(default)]
    pub config: Configuration,
}

/// The same for shells.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ShellResponse {
    pub shell: Command,
    #[serde(default)]
    pub config: Configuration,
}

/// `PUT /notebooks/{id}/report_idle`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdleNotebookRequest {
    /// Which one; the path says so too.
    #[serde(alias = "notebook_id")]
    pub notebook_id: Option<String>,
    /// Whether nobody works in it.
    pub idle: Option<bool>,
}

/// `POST /commands/{id}/set_priority`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PriorityRequest {
    pub priority: Option<i64>,
}

/// `POST /generic-tasks`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GenericTaskRequest {
    /// YAML.
    pub config: Option<String>,
    /// The task's files.
    #[serde(alias = "context_directory")]
    pub context_directory: Option<Vec<ModelFile>>,
    /// Whose workspace it is in.
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
    /// A task whose configuration, and files if there are none, are taken.
    #[serde(alias = "forked_from")]
    pub forked_from: Option<String>,
    /// The task that starts this one.
    #[serde(alias = "parent_id")]
    pub parent_id: Option<String>,
    /// Whether the files are those of the parent.
    #[serde(alias = "inherit_context")]
    pub inherit_context: Option<bool>,
    /// Whether it runs on while others of its tree are paused; tasks that another one started do unless this says no.
    #[serde(alias = "no_pause")]
    pub no_pause: Option<bool>,
}

/// A generic task that was made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GenericTaskResponse {
    pub task_id: String,
    pub warnings: Vec<String>,
}

/// `GET /tasks/{id}/config`
#[derive(Debug, Serialize, Deserialize)]
pub struct GenericConfigResponse {
    /// JSON.
    pub config: String,
}

/// `POST /tasks/{id}/kill`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KillGenericRequest {
    /// Also what the first of its ancestors started.
    #[serde(alias = "kill_from_root")]
    pub kill_from_root: Option<bool>,
}
