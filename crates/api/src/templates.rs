//! Templates: parts of configurations that many experiments share.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Configuration;
use crate::identifiers::WorkspaceId;
use crate::pages::Pagination;

/// A named part of a configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Template {
    pub name: String,
    pub config: Configuration,
    pub workspace_id: WorkspaceId,
}

/// `PATCH /template/rename`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RenameTemplateRequest {
    #[serde(alias = "old_name")]
    pub old_name: Option<String>,
    #[serde(alias = "new_name")]
    pub new_name: Option<String>,
}

/// `POST` and `PUT /templates/{name}`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TemplateRequest {
    pub name: Option<String>,
    pub config: Option<Value>,
    #[serde(alias = "workspace_id")]
    pub workspace_id: Option<WorkspaceId>,
}

/// An answer that is one template.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TemplateResponse {
    pub template: Template,
}

/// `GET /templates`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TemplatesResponse {
    pub templates: Vec<Template>,
    pub pagination: Pagination,
}
