//! Webhooks: who is told when something happens.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::identifiers::{ExperimentId, TrialId, WorkspaceId};

/// Somebody who is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Webhook {
    pub id: i64,
    pub name: String,
    pub url: String,
    pub webhook_type: String,
    pub mode: String,
    /// Of all workspaces, if there is none.
    pub workspace_id: Option<WorkspaceId>,
    pub triggers: Vec<Trigger>,
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Trigger {
    pub id: i64,
    pub webhook_id: i64,
    pub trigger_type: String,
    /// `{"state": …}` or `{"regex": …}`
    pub condition: Value,
}

/// `POST /webhooks`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WebhookRequest {
    pub name: Option<String>,
    pub url: Option<String>,
    #[serde(alias = "webhook_type")]
    pub webhook_type: Option<String>,
    pub mode: Option<String>,
    #[serde(alias = "workspace_id")]
    pub workspace_id: Option<WorkspaceId>,
    pub triggers: Option<Vec<TriggerRequest>>,
}

/// What is to be told.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TriggerRequest {
    #[serde(alias = "trigger_type")]
    pub trigger_type: Option<String>,
    pub condition: Option<Value>,
}

/// `PATCH /webhooks/{id}`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchWebhookRequest {
    pub url: Option<String>,
}

/// `GET /webhooks`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WebhooksResponse {
    pub webhooks: Vec<Webhook>,
}

/// One webhook.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WebhookResponse {
    pub webhook: Webhook,
}

/// `POST /webhooks/{id}/test`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TestWebhookResponse {
    pub completed: bool,
}

/// `POST /webhooks/custom`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CustomEventRequest {
    #[serde(alias = "experiment_id")]
    pub experiment_id: Option<ExperimentId>,
    #[serde(alias = "trial_id")]
    pub trial_id: Option<TrialId>,
    pub data: Option<CustomData>,
}

/// What a script wants to be told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CustomData {
    pub title: String,
    pub description: String,
    pub level: String,
}
