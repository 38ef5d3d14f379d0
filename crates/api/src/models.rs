//! The model registry: names for checkpoints that people want to find again, as numbered versions of a model.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoints::Checkpoint;
use crate::identifiers::{ModelId, ModelVersionId, UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::wire::Timestamp;

/// A named list of versions.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Model {
    pub id: ModelId,
    pub name: String,
    pub description: String,
    pub metadata: Map<String, Value>,
    pub labels: Vec<String>,
    pub notes: String,
    pub archived: bool,
    pub creation_time: Timestamp,
    pub last_updated_time: Timestamp,
    pub num_versions: i64,
    pub username: String,
    pub user_id: UserId,
    pub workspace_id: WorkspaceId,
}

/// One checkpoint that was registered.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelVersion {
    pub id: ModelVersionId,
    pub model: Model,
    pub checkpoint: Checkpoint,
    /// Counts from 1 and is never given twice within a model.
    pub version: i64,
    pub name: String,
    pub comment: String,
    pub notes: String,
    pub metadata: Map<String, Value>,
    pub labels: Vec<String>,
    pub creation_time: Timestamp,
    pub last_updated_time: Timestamp,
    pub username: String,
    pub user_id: UserId,
}

/// `POST /models`, and `PATCH /models/{name}`, where what is not given stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelRequest {
    pub name: Option<String>,
    pub description: Option<String>,
    pub metadata: Option<Map<String, Value>>,
    pub labels: Option<Vec<String>>,
    pub notes: Option<String>,
    #[serde(alias = "workspace_name")]
    pub workspace_name: Option<String>,
    #[serde(alias = "workspace_id")]
    pub workspace_id: Option<WorkspaceId>,
}

/// `POST /models/{name}/versions`, and `PATCH` of one, where what is not given stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelVersionRequest {
    #[serde(alias = "checkpoint_uuid")]
    pub checkpoint_uuid: Option<String>,
    pub name: Option<String>,
    pub comment: Option<String>,
    pub notes: Option<String>,
    pub metadata: Option<Map<String, Value>>,
    pub labels: Option<Vec<String>>,
}

/// `POST /models/{name}/move`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MoveModelRequest {
    #[serde(alias = "destination_workspace_id")]
    pub destination_workspace_id: Option<WorkspaceId>,
}

/// One model.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelResponse {
    pub model: Model,
}

/// A list of models.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelsResponse {
    pub models: Vec<Model>,
    pub pagination: Pagination,
}

/// One version of a model.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelVersionResponse {
    pub model_version: ModelVersion,
}

/// A list of versions, and the model that they are of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ModelVersionsResponse {
    pub model: Model,
    pub model_versions: Vec<ModelVersion>,
    pub pagination: Pagination,
}
