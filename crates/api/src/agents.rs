//! Agents, their slots, and the pools that they form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::wire::Timestamp;

/// A machine that lends slots.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Agent {
    pub id: String,
    pub registered_time: Option<Timestamp>,
    pub slots: BTreeMap<String, Slot>,
    pub containers: BTreeMap<String, Container>,
    pub addresses: Vec<String>,
    pub enabled: bool,
    pub draining: bool,
    /// Whether the master has a connection to it: Determined's has no word for an agent that it waits for.
    pub connected: bool,
    /// The version of Determined whose agents it stands for; clients compare it with the master's.
    pub version: String,
    /// Its own.
    pub instep_version: String,
    pub resource_pools: Vec<String>,
    pub slot_stats: SlotStats,
}

/// One device that an agent lends.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Slot {
    pub id: String,
    pub device: Device,
    pub enabled: bool,
    pub draining: bool,
    pub container: Option<Container>,
}

/// What a slot is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Device {
    pub id: u32,
    pub brand: String,
    pub uuid: String,
    #[serde(rename = "type")]
    pub kind: String,
}

/// What an agent runs of an allocation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Container {
    pub id: String,
    pub parent: String,
    pub state: String,
    pub devices: Vec<Device>,
    pub permission_denied: bool,
}

/// How many slots of which kind and brand, and what is done with them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SlotStats {
    pub type_stats: BTreeMap<String, DeviceStats>,
    pub brand_stats: BTreeMap<String, DeviceStats>,
}

/// See [`SlotStats`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct DeviceStats {
    pub states: BTreeMap<String, i64>,
    pub draining: i64,
    pub disabled: i64,
    pub total: i64,
}

/// `GET /agents`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AgentsResponse {
    pub agents: Vec<Agent>,
    pub pagination: crate::pages::Pagination,
}

/// An answer that is one agent.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AgentResponse {
    pub agent: Agent,
}

/// An answer that is one slot.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SlotResponse {
    pub slot: Slot,
}

/// `GET /agents/{id}/slots`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SlotsResponse {
    pub slots: Vec<Slot>,
}

/// `POST /agents/{id}/disable` and the same of a slot
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct DisableRequest {
    pub drain: Option<bool>,
}

/// Agents that work is placed on together. Most of it describes clusters in somebody's cloud, and is empty here.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ResourcePool {
    pub name: String,
    pub description: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub num_agents: i64,
    pub slots_available: i64,
    pub slots_used: i64,
    pub slot_type: String,
    pub slots_per_agent: i64,
    pub aux_container_capacity: i64,
    pub aux_containers_running: i64,
    pub aux_container_capacity_per_agent: i64,
    pub default_compute_pool: bool,
    pub default_aux_pool: bool,
    pub preemptible: bool,
    pub min_agents: i64,
    pub max_agents: i64,
    pub scheduler_type: String,
    pub scheduler_fitting_policy: String,
    pub location: String,
    pub image_id: String,
    pub instance_type: String,
    pub master_url: String,
    pub master_cert_name: String,
    pub container_startup_script: String,
    pub agent_docker_network: String,
    pub agent_docker_runtime: String,
    pub agent_docker_image: String,
    pub agent_fluent_image: String,
    pub max_idle_agent_period: f64,
    pub max_agent_starting_period: f64,
    pub startup_script: String,
    pub cluster_name: String,
    pub accelerator: String,
    pub resource_manager_name: String,
    pub resource_manager_metadata: Map<String, Value>,
    pub details: PoolDetails,
    pub stats: QueueStats,
}

/// What belongs to one kind of pool or scheduler.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PoolDetails {
    pub aws: Option<Value>,
    pub gcp: Option<Value>,
    pub priority_scheduler: Option<PrioritySchedulerDetails>,
}

/// How a pool's scheduler decides by priority.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PrioritySchedulerDetails {
    pub preemption: bool,
    pub default_priority: i64,
    pub k8_priorities: Vec<Value>,
}

/// How much waits in a pool, and how much runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct QueueStats {
    pub queued_count: i64,
    pub scheduled_count: i64,
}

/// `GET /resource-pools`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ResourcePoolsResponse {
    pub resource_pools: Vec<ResourcePool>,
    pub pagination: crate::pages::Pagination,
}
