//! What is known of tasks and their allocations: how many there are, how one stands, and which devices it had.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::link::Device;
use instep_api::tasks::{AcceleratorData, AcceleratorsResponse, ActiveTasksResponse, Allocation, AllocationResponse};
use instep_database::Subject;
use serde::Deserialize;

use super::call::Call;
use super::failure::Failure;
use super::reply::Json;

pub(crate) async fn allocation(call: Call) -> Result<Json<AllocationResponse>, Failure> {
    let row = call.application.database.allocation(call.part("id").to_owned()).await?;
    let exit_reason = if row.ended_at.is_some() { row.reason } else { String::new() };
    let status_code = row.exit.as_ref().and_then(|exit| exit["code"].as_i64());
    let allocation = Allocation {
        allocation_id: row.id,
        task_id: row.task_id,
        state: row.state,
        is_ready: row.ready,
        slots: row.slots,
        start_time: row.started_at,
        end_time: row.ended_at,
        exit_reason,
        status_code,
    };
    Ok(Json(AllocationResponse { allocation }))
}

/// Tasks beside experiments that have not ended, of those that the caller may see.
pub(crate) async fn count(call: Call) -> Result<Json<ActiveTasksResponse>, Failure> {
    call.note_asked();
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for row in call.application.database.live_commands().await? {
        if call.may_read(Subject::Task(row.task.clone())).await.is_ok() {
            *counts.entry(row.kind).or_default() += 1;
        }
    }
    let count = |kind: &str| counts.get(kind).copied().unwrap_or(0);
    Ok(Json(ActiveTasksResponse {
        commands: count("TASK_TYPE_COMMAND"),
        notebooks: count("TASK_TYPE_NOTEBOOK"),
        shells: count("TASK_TYPE_SHELL"),
        tensorboards: count("TASK_TYPE_TENSORBOARD"),
    }))
}

/// What an agent runs of an allocation, as it is stored.
#[derive(Deserialize)]
struct Share {
    agent: String,
    container: String,
    devices: Vec<u32>,
}

pub(crate) async fn accelerators(call: Call) -> Result<Json<AcceleratorsResponse>, Failure> {
    let database = &call.application.database;
    let task_id = call.part("id").to_owned();
    database.task(task_id.clone()).await?;
    let agents = database.agents().await?;
    let mut accelerator_data = Vec::new();
    for row in database.task_allocations(task_id.clone()).await? {
        let shares: Vec<Share> = serde_json::from_value(row.shares).unwrap_or_default();
        for share in shares {
            let agent = agents.iter().find(|agent| agent.name == share.agent);
            let devices: Vec<Device> =
                agent.and_then(|agent| serde_json::from_value(agent.devices.clone()).ok()).unwrap_or_default();
            let used: Vec<&Device> =
                devices.iter().filter(|device| share.devices.contains(&device.id) && !device.uuid.is_empty()).collect();
            if used.is_empty() {
                continue;
            }
            let kinds: BTreeSet<&str> = used.iter().map(|device| device.brand.as_str()).collect();
            accelerator_data.push(AcceleratorData {
                container_id: share.container,
                allocation_id: row.id.clone(),
                node_name: share.agent,
                task_id: task_id.clone(),
                accelerator_type: kinds.into_iter().collect::<Vec<_>>().join(", "),
                accelerator_uuids: used.iter().map(|device| device.uuid.clone()).collect(),
                resource_pool: row.pool.clone(),
            });
        }
    }
    Ok(Json(AcceleratorsResponse { accelerator_data }))
}
