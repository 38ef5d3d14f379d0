//! What running tasks ask the master: where the others are, whether to stop.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::states::AllocationState;
use crate::wire::{Timestamp, Whole};

/// `GET /allocations/{id}/resources/{id}/rendezvous`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RendezvousResponse {
    pub rendezvous_info: RendezvousInfo,
}

/// Where the shares of an allocation are, all lists in the order of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RendezvousInfo {
    pub addresses: Vec<String>,
    pub rank: i64,
    pub slots: Vec<i64>,
}

/// `GET /allocations/{id}/signals/preemption`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PreemptionResponse {
    pub preempt: bool,
}

/// `POST /allocations/{id}/all_gather`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AllGatherRequest {
    #[serde(alias = "request_uuid")]
    pub request_uuid: Option<String>,
    #[serde(alias = "num_peers")]
    pub num_peers: Option<Whole>,
    pub data: Option<Value>,
}

/// What all who were waited for brought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AllGatherResponse {
    pub data: Vec<Value>,
}

/// `GET /allocations/{id}`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AllocationResponse {
    pub allocation: Allocation,
}

/// One attempt to run a task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Allocation {
    pub allocation_id: String,
    pub task_id: String,
    pub state: AllocationState,
    pub is_ready: bool,
    pub slots: i64,
    pub start_time: Option<Timestamp>,
    pub end_time: Option<Timestamp>,
    pub exit_reason: String,
    pub status_code: Option<i64>,
}

/// `GET /tasks/count`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ActiveTasksResponse {
    pub commands: i64,
    pub notebooks: i64,
    pub shells: i64,
    pub tensorboards: i64,
}

/// `GET /tasks/{id}/acceleratorData`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AcceleratorsResponse {
    pub accelerator_data: Vec<AcceleratorData>,
}

/// The devices of one machine that an allocation had.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AcceleratorData {
    pub container_id: String,
    pub allocation_id: String,
    pub node_name: String,
    pub task_id: String,
    pub accelerator_type: String,
    pub accelerator_uuids: Vec<String>,
    pub resource_pool: String,
}
