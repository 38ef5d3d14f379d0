//! What users arrange for themselves and for each other: settings, notes, visits, and a message to everybody.

use serde::{Deserialize, Serialize};

use crate::identifiers::{ProjectId, WorkspaceId};
use crate::wire::{Timestamp, Whole};
use crate::workspaces::Project;

/// One setting of the pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UserSetting {
    pub key: String,
    #[serde(alias = "storage_path")]
    pub storage_path: String,
    pub value: String,
}

/// `GET` and `POST` of `/users/setting`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UserSettings {
    pub settings: Vec<UserSetting>,
}

/// `POST /users/activity`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ActivityRequest {
    #[serde(alias = "activity_type")]
    pub activity_type: Option<String>,
    #[serde(alias = "entity_type")]
    pub entity_type: Option<String>,
    #[serde(alias = "entity_id")]
    pub entity_id: Option<Whole>,
}

/// `GET /user/projects/activity`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct VisitedProjectsResponse {
    pub projects: Vec<Project>,
}

/// A page of a project's notes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Note {
    pub name: String,
    pub contents: String,
}

/// `PUT /projects/{id}/notes`, and all answers about notes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Notes {
    pub notes: Vec<Note>,
}

/// `POST /projects/{id}/move`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MoveProjectRequest {
    #[serde(alias = "destination_workspace_id")]
    pub destination_workspace_id: Option<WorkspaceId>,
    #[serde(alias = "project_id")]
    pub project_id: Option<ProjectId>,
}

/// What administrators say to everybody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ClusterMessage {
    pub message: String,
    pub start_time: Timestamp,
    /// Until it is deleted, if there is none.
    pub end_time: Option<Timestamp>,
    pub created_time: Timestamp,
}

/// `GET /master/cluster_message`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ClusterMessageResponse {
    pub cluster_message: Option<ClusterMessage>,
}

/// `PUT /master/cluster_message`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ClusterMessageRequest {
    pub message: Option<String>,
    #[serde(alias = "start_time")]
    pub start_time: Option<Timestamp>,
    #[serde(alias = "end_time")]
    pub end_time: Option<Timestamp>,
    /// In place of an end; as Go writes durations, such as `1h30m`.
    pub duration: Option<String>,
}
