//! Agents, their slots, and the pools that they form.

use instep_api::agents::{
    Agent, AgentResponse, AgentsResponse, DisableRequest, ResourcePoolsResponse, SlotResponse, SlotsResponse,
};

use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use crate::cluster::Availability;

pub(crate) async fn list(call: Call) -> Result<Json<AgentsResponse>, Failure> {
    let mut agents = call.application.cluster.read(|state| state.shown_agents()).await?;
    let (range, pagination) = call.query.slice(None)?.of(agents.len());
    Ok(Json(AgentsResponse { agents: agents.drain(range).collect(), pagination }))
}

async fn agent(call: &Call) -> Result<Agent, Failure> {
    let name = call.part("agent").to_owned();
    let wanted = name.clone();
    let found = call.application.cluster.read(move |state| state.shown_agent(&wanted)).await?;
    found.ok_or_else(|| Failure::not_found(format!("agent '{name}' not found")))
}

pub(crate) async fn get(call: Call) -> Result<Json<AgentResponse>, Failure> {
    Ok(Json(AgentResponse { agent: agent(&call).await? }))
}

async fn set(call: &Call, availability: Availability) -> Result<Json<AgentResponse>, Failure> {
    let name = call.part("agent").to_owned();
    let agent = call.application.cluster.set_availability(name, None, availability).await?;
    Ok(Json(AgentResponse { agent }))
}

fn disabled(call: &Call) -> Result<Availability, Failure> {
    let request: DisableRequest = call.json()?;
    Ok(if request.drain == Some(true) { Availability::Draining } else { Availability::Disabled })
}

pub(crate) async fn enable(call: Call) -> Result<Json<AgentResponse>, Failure> {
    set(&call, Availability::Enabled).await
}

pub(crate) async fn disable(call: Call) -> Result<Json<AgentResponse>, Failure> {
    let availability = disabled(&call)?;
    set(&call, availability).await
}

pub(crate) async fn slots(call: Call) -> Result<Json<SlotsResponse>, Failure> {
    Ok(Json(SlotsResponse { slots: agent(&call).await?.slots.into_values().collect() }))
}

fn slot_of(mut agent: Agent, slot: &str) -> Result<Json<SlotResponse>, Failure> {
    let found = agent.slots.remove(slot);
    let missing = || Failure::not_found(format!("slot '{slot}' of agent '{}' not found", agent.id));
    Ok(Json(SlotResponse { slot: found.ok_or_else(missing)? }))
}

pub(crate) async fn slot(call: Call) -> Result<Json<SlotResponse>, Failure> {
    slot_of(agent(&call).await?, call.part("slot"))
}

async fn set_slot(call: &Call, availability: Availability) -> Result<Json<SlotResponse>, Failure> {
    let (name, slot) = (call.part("agent").to_owned(), call.id("slot")?);
    let agent = call.application.cluster.set_availability(name, Some(slot), availability).await?;
    slot_of(agent, call.part("slot"))
}

pub(crate) async fn enable_slot(call: Call) -> Result<Json<SlotResponse>, Failure> {
    set_slot(&call, Availability::Enabled).await
}

pub(crate) async fn disable_slot(call: Call) -> Result<Json<SlotResponse>, Failure> {
    let availability = disabled(&call)?;
    set_slot(&call, availability).await
}

pub(crate) async fn pools(call: Call) -> Result<Json<ResourcePoolsResponse>, Failure> {
    let mut resource_pools = call.application.cluster.read(|state| state.shown_pools()).await?;
    if call.query.value("unbound")?.unwrap_or(false) {
        let bound = super::pools::all_bound(&call).await?;
        resource_pools.retain(|pool| !bound.contains(&pool.name));
    }
    let (range, pagination) = call.query.slice(None)?.of(resource_pools.len());
    Ok(Json(ResourcePoolsResponse { resource_pools: resource_pools.drain(range).collect(), pagination }))
}
