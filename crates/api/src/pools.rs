//! Which workspaces a resource pool is for, and what configurations must be.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::identifiers::WorkspaceId;
use crate::pages::Pagination;
use crate::states::LogLevel;

/// `POST`, `PUT` and `DELETE` of `/resource-pools/{pool}/workspace-bindings`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PoolBindingRequest {
    #[serde(alias = "workspace_ids")]
    pub workspace_ids: Option<Vec<WorkspaceId>>,
    #[serde(alias = "workspace_names")]
    pub workspace_names: Option<Vec<String>>,
}

/// `GET /resource-pools/{pool}/workspace-bindings`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PoolBindingsResponse {
    pub workspace_ids: Vec<WorkspaceId>,
    pub pagination: Pagination,
}

/// `GET /workspaces/{id}/available-resource-pools`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AvailablePoolsResponse {
    pub resource_pools: Vec<String>,
    pub pagination: Pagination,
}

/// `PUT` of configuration policies.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigPoliciesRequest {
    /// YAML.
    #[serde(alias = "config_policies")]
    pub config_policies: Option<String>,
}

/// Configuration policies; an empty object if there are none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ConfigPoliciesResponse {
    pub config_policies: Value,
}

/// `GET /k8s-resource-managers`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct KubernetesManagersResponse {
    pub resource_managers: Vec<String>,
}

/// `GET /workspaces/{id}/get-k8s-resource-quotas`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ResourceQuotasResponse {
    pub resource_quotas: Map<String, Value>,
}

/// `GET /workspaces/{id}/list-namespace-bindings`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct NamespaceBindingsResponse {
    pub namespace_bindings: Map<String, Value>,
}

/// `GET /namespace-bindings/workspace-ids-with-default-bindings`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UnboundWorkspacesResponse {
    pub workspace_ids: Vec<WorkspaceId>,
}

/// `PATCH /master/config`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchMasterConfigRequest {
    pub config: Option<MasterConfigChange>,
    #[serde(alias = "field_mask")]
    pub field_mask: Option<Value>,
}

/// What can be changed while the master runs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MasterConfigChange {
    pub log: Option<LogConfig>,
}

/// How the master logs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogConfig {
    pub level: Option<LogLevel>,
    pub color: Option<bool>,
}
