//! Which workspaces a resource pool is for, and what configurations must be.

use instep_api::pools::{ConfigPoliciesRequest, PatchMasterConfigRequest, PoolBindingRequest};

use super::super::access::Access::{Administrator, Change, Read};
use super::super::access::Thing::{Common, Several, Workspace};
use super::super::route::Method::{Delete, Get, Patch, Post, Put};
use super::super::route::{Route, route};
use super::super::{cluster, config_policies, kubernetes, pools};

pub(super) fn routes() -> Vec<Route> {
    const LISTED: &[&str] = &["limit", "offset"];
    const BINDINGS: &str = "/api/v1/resource-pools/{pool}/workspace-bindings";
    const EVERYWHERE: &str = "/api/v1/config-policies/global/{workload}";
    const IN_WORKSPACE: &str = "/api/v1/config-policies/workspaces/{id}/{workload}";
    vec![
        route(Get, BINDINGS, Read(Several), pools::bindings).query(LISTED),
        route(Post, BINDINGS, Administrator, pools::bind).request::<PoolBindingRequest>(),
        route(Put, BINDINGS, Administrator, pools::rebind).request::<PoolBindingRequest>(),
        route(Delete, BINDINGS, Administrator, pools::unbind).request::<PoolBindingRequest>(),
        route(Get, "/api/v1/workspaces/{id}/available-resource-pools", Read(Workspace), pools::available).query(LISTED),
        route(Get, EVERYWHERE, Read(Common), config_policies::get),
        route(Put, EVERYWHERE, Administrator, config_policies::put).request::<ConfigPoliciesRequest>(),
        route(Delete, EVERYWHERE, Administrator, config_policies::delete),
        route(Get, IN_WORKSPACE, Read(Workspace), config_policies::get),
        route(Put, IN_WORKSPACE, Change(Workspace), config_policies::put).request::<ConfigPoliciesRequest>(),
        route(Delete, IN_WORKSPACE, Change(Workspace), config_policies::delete),
        route(Patch, "/api/v1/master/config", Administrator, cluster::change_config)
            .request::<PatchMasterConfigRequest>(),
        route(Get, "/api/v1/k8s-resource-managers", Read(Common), kubernetes::managers),
        route(Get, "/api/v1/workspaces/{id}/get-k8s-resource-quotas", Read(Workspace), kubernetes::quotas),
        route(Post, "/api/v1/workspaces/{id}/set-resource-quota", Administrator, kubernetes::refuse),
        route(Get, "/api/v1/workspaces/{id}/list-namespace-bindings", Read(Workspace), kubernetes::namespaces),
        route(Post, "/api/v1/workspaces/{id}/namespace-bindings", Administrator, kubernetes::refuse),
        route(Delete, "/api/v1/workspaces/{id}/namespace-bindings", Administrator, kubernetes::refuse),
        route(
            Get,
            "/api/v1/namespace-bindings/workspace-ids-with-default-bindings",
            Read(Common),
            kubernetes::without_namespace,
        ),
        route(Post, "/api/v1/namespace-bindings/bulk-auto-create", Administrator, kubernetes::refuse),
    ]
}
