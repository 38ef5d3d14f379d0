//! What Determined keeps of Kubernetes. There is none under a master, and the answers say so.

use instep_api::pools::{
    KubernetesManagersResponse, NamespaceBindingsResponse, ResourceQuotasResponse, UnboundWorkspacesResponse,
};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};

pub(crate) async fn managers(_: Call) -> Result<Json<KubernetesManagersResponse>, Failure> {
    Ok(Json(KubernetesManagersResponse { resource_managers: Vec::new() }))
}

pub(crate) async fn quotas(call: Call) -> Result<Json<ResourceQuotasResponse>, Failure> {
    call.application.database.workspace(call.id("id")?).await?;
    Ok(Json(ResourceQuotasResponse { resource_quotas: Default::default() }))
}

pub(crate) async fn namespaces(call: Call) -> Result<Json<NamespaceBindingsResponse>, Failure> {
    call.application.database.workspace(call.id("id")?).await?;
    Ok(Json(NamespaceBindingsResponse { namespace_bindings: Default::default() }))
}

pub(crate) async fn without_namespace(_: Call) -> Result<Json<UnboundWorkspacesResponse>, Failure> {
    Ok(Json(UnboundWorkspacesResponse { workspace_ids: Vec::new() }))
}

/// Whatever somebody wants of a Kubernetes cluster.
pub(crate) async fn refuse(_: Call) -> Result<Json<Nothing>, Failure> {
    Err(Failure::invalid(
        "there is no Kubernetes cluster: this master runs work on agents\n\
         hint: bind a resource pool to workspaces, or set a configuration policy with constraints.resources.max_slots",
    ))
}
