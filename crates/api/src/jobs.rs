//! The queue: what waits for slots, what has them, and why.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::agents::QueueStats;
use crate::identifiers::{UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::wire::Timestamp;

/// An experiment or a single task, as the scheduler sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Job {
    pub job_id: String,
    /// The experiment's number, or the task's identifier.
    pub entity_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub submission_time: Timestamp,
    pub username: String,
    pub user_id: UserId,
    pub resource_pool: String,
    pub is_preemptible: bool,
    pub priority: Option<i64>,
    pub weight: f64,
    pub name: String,
    pub requested_slots: i64,
    pub allocated_slots: i64,
    pub workspace_id: WorkspaceId,
    pub progress: f64,
    pub summary: Option<JobSummary>,
    /// Why it waits, in a sentence; empty if it does not. Ours: Determined's clients do not look at it.
    #[serde(default)]
    pub reason: String,
}

/// Where a job stands in the queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct JobSummary {
    pub state: String,
    pub jobs_ahead: i64,
}

/// `GET /job-queues`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct JobsResponse {
    pub jobs: Vec<Job>,
    pub pagination: Pagination,
}

/// `GET /job-queues-v2`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct JobsResponseV2 {
    pub jobs: Vec<FullJob>,
    pub pagination: Pagination,
}

/// A job of which everything may be seen.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct FullJob {
    pub full: Job,
}

/// `POST /job-queues`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UpdateJobsRequest {
    pub updates: Vec<JobUpdate>,
}

/// One change of a job; what is not given stays.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct JobUpdate {
    #[serde(alias = "job_id")]
    pub job_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    #[serde(alias = "resource_pool", skip_serializing_if = "Option::is_none")]
    pub resource_pool: Option<String>,
    /// The job behind which this one goes.
    #[serde(alias = "behind_of", skip_serializing_if = "Option::is_none")]
    pub behind_of: Option<String>,
    /// The job before which this one goes.
    #[serde(alias = "ahead_of", skip_serializing_if = "Option::is_none")]
    pub ahead_of: Option<String>,
}

/// `GET /job-queues/stats`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct JobStatsResponse {
    pub results: Vec<PoolQueueStats>,
}

/// How much waits in a pool.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PoolQueueStats {
    pub resource_pool: String,
    pub stats: QueueStats,
}

/// `GET /api/v1/tasks`: what runs or waits, by allocation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TaskSummariesResponse {
    pub allocation_id_to_summary: BTreeMap<String, AllocationSummary>,
}

/// One allocation that has not ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AllocationSummary {
    pub task_id: String,
    pub allocation_id: String,
    pub name: String,
    pub slots_needed: i64,
    pub registered_time: Option<Timestamp>,
    pub resources: Vec<ResourcesSummary>,
    pub priority: Option<i64>,
    pub scheduler_type: String,
    pub resource_pool: String,
    pub proxy_ports: Vec<serde_json::Value>,
}

/// What one agent runs of an allocation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ResourcesSummary {
    pub resources_id: String,
    pub resources_type: String,
    pub allocation_id: String,
    pub agent_devices: BTreeMap<String, ResourceDevices>,
    pub container_id: Option<String>,
}

/// Devices of one agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ResourceDevices {
    pub devices: Vec<crate::agents::Device>,
}

/// `GET /api/v1/tasks/{id}`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TaskResponse {
    pub task: Task,
}

/// A task with its attempts to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Task {
    pub task_id: String,
    pub task_type: String,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
    pub allocations: Vec<TaskAllocation>,
    /// This and the following are of generic tasks alone.
    pub task_state: Option<GenericTaskState>,
    pub parent_id: Option<String>,
    pub forked_from: Option<String>,
    pub no_pause: Option<bool>,
    pub config: Option<String>,
}

/// Where a generic task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Determined's own")]
pub enum GenericTaskState {
    #[serde(rename = "GENERIC_TASK_STATE_ACTIVE")]
    Active,
    #[serde(rename = "GENERIC_TASK_STATE_STOPPING_PAUSED")]
    StoppingPaused,
    #[serde(rename = "GENERIC_TASK_STATE_PAUSED")]
    Paused,
    #[serde(rename = "GENERIC_TASK_STATE_STOPPING_CANCELED")]
    StoppingCanceled,
    #[serde(rename = "GENERIC_TASK_STATE_CANCELED")]
    Canceled,
    #[serde(rename = "GENERIC_TASK_STATE_COMPLETED")]
    Completed,
    #[serde(rename = "GENERIC_TASK_STATE_ERROR")]
    Error,
}

/// One attempt to run a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TaskAllocation {
    pub task_id: String,
    pub allocation_id: String,
    pub state: String,
    pub is_ready: bool,
    pub start_time: Option<String>,
    pub end_time: Option<String>,
    pub slots: i64,
    pub exit_reason: Option<String>,
    pub status_code: Option<i64>,
}
