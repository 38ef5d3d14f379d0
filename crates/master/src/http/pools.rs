//! Which workspaces a resource pool is for. One that is bound to none is for all.

use std::collections::BTreeSet;

use instep_api::identifiers::WorkspaceId;
use instep_api::pools::{AvailablePoolsResponse, PoolBindingRequest, PoolBindingsResponse};
use instep_policy::permissions::Kind;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use crate::cluster::DEFAULT_POOL;

/// The pool that a request is about, which must be there.
async fn pool(call: &Call) -> Result<String, Failure> {
    let pool = call.part("pool").to_owned();
    if call.application.cluster.room_in(pool.clone()).await?.is_none() {
        return Err(Failure::not_found(format!("resource pool '{pool}' not found")));
    }
    Ok(pool)
}

/// The workspaces that a request names, by number or name.
async fn named(call: &Call, request: PoolBindingRequest) -> Result<Vec<WorkspaceId>, Failure> {
    let known = call.application.database.workspaces().await?;
    let mut found = Vec::new();
    for id in request.workspace_ids.unwrap_or_default() {
        let there = known.iter().any(|workspace| workspace.id == id);
        found.push(there.then_some(id).ok_or_else(|| Failure::not_found(format!("workspace '{id}' not found")))?);
    }
    for name in request.workspace_names.unwrap_or_default() {
        let workspace = known.iter().find(|workspace| workspace.name == name);
        found.push(workspace.ok_or_else(|| Failure::not_found(format!("workspace '{name}' not found")))?.id);
    }
    Ok(found)
}

/// The same for what keeps others out of the pool.
async fn bound(call: &Call) -> Result<(String, Vec<WorkspaceId>), Failure> {
    let pool = pool(call).await?;
    if pool == DEFAULT_POOL {
        return Err(Failure::invalid(format!("default resource pool {pool} cannot be bound to any workspace")));
    }
    let workspaces = named(call, call.json()?).await?;
    Ok((pool, workspaces))
}

pub(crate) async fn bind(call: Call) -> Result<Json<Nothing>, Failure> {
    let (pool, workspaces) = bound(&call).await?;
    if workspaces.is_empty() {
        return Err(Failure::invalid("no workspaces are named"));
    }
    call.application.database.bind_pool(pool, workspaces).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn rebind(call: Call) -> Result<Json<Nothing>, Failure> {
    let (pool, workspaces) = bound(&call).await?;
    call.application.database.rebind_pool(pool, workspaces).await?;
    Ok(Json(Nothing {}))
}

/// Also of a pool whose agents are gone.
pub(crate) async fn unbind(call: Call) -> Result<Json<Nothing>, Failure> {
    let workspaces = named(&call, call.json()?).await?;
    call.application.database.unbind_pool(call.part("pool").to_owned(), workspaces).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn bindings(call: Call) -> Result<Json<PoolBindingsResponse>, Failure> {
    let sight = call.sight(Kind::Workspace);
    let pool = pool(&call).await?;
    let all = call.application.database.pool_bindings().await?.into_iter();
    let mut workspace_ids: Vec<WorkspaceId> = all
        .filter(|(bound, workspace)| *bound == pool && sight.covers(*workspace))
        .map(|(_, workspace)| workspace)
        .collect();
    let (range, pagination) = call.query.slice(None)?.of(workspace_ids.len());
    Ok(Json(PoolBindingsResponse { workspace_ids: workspace_ids.drain(range).collect(), pagination }))
}

/// The pools that are bound at all.
pub(super) async fn all_bound(call: &Call) -> Result<BTreeSet<String>, Failure> {
    Ok(call.application.database.pool_bindings().await?.into_iter().map(|(pool, _)| pool).collect())
}

pub(crate) async fn available(call: Call) -> Result<Json<AvailablePoolsResponse>, Failure> {
    let workspace: WorkspaceId = call.id("id")?;
    call.application.database.workspace(workspace).await?;
    let mut resource_pools = Vec::new();
    for pool in call.application.cluster.read(|state| state.shown_pools()).await? {
        if may_use(&call, &pool.name, workspace).await? {
            resource_pools.push(pool.name);
        }
    }
    let (range, pagination) = call.query.slice(None)?.of(resource_pools.len());
    Ok(Json(AvailablePoolsResponse { resource_pools: resource_pools.drain(range).collect(), pagination }))
}

async fn may_use(call: &Call, pool: &str, workspace: WorkspaceId) -> Result<bool, Failure> {
    let bindings = call.application.database.pool_bindings().await?;
    let mut bound = bindings.iter().filter(|(bound, _)| bound == pool).map(|(_, workspace)| *workspace).peekable();
    Ok(bound.peek().is_none() || bound.any(|bound| bound == workspace))
}

/// The pool that a configuration means.
pub(super) fn named_or_default(pool: &str) -> &str {
    if pool.is_empty() { DEFAULT_POOL } else { pool }
}

/// Refuses work in a pool that is not for its workspace.
pub(super) async fn check(call: &Call, pool: &str, workspace: WorkspaceId) -> Result<(), Failure> {
    let pool = named_or_default(pool);
    if may_use(call, pool, workspace).await? {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "resource pool '{pool}' does not exist or is not available to workspace {workspace}\n\
         hint: name another resources.resource_pool, or ask an administrator to bind this one to the workspace"
    )))
}
