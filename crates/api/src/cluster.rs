//! What the master says about itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::preferences::ClusterMessage;
use crate::states::LogLevel;
use crate::wire::Timestamp;

/// The version of Determined whose API this is; its client compares it with its own.
pub const COMPATIBLE_VERSION: &str = "0.38.1";

/// `GET /info`, in snake_case because it is a plain route.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Info {
    pub version: String,
    pub master_id: String,
    pub cluster_id: String,
    pub cluster_name: String,
    pub telemetry: TelemetryInfo,
    pub sso_providers: Option<Value>,
}

/// Nothing is sent to anybody.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TelemetryInfo {
    pub enabled: bool,
}

/// `GET /api/v1/master`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MasterResponse {
    pub version: String,
    pub master_id: String,
    pub cluster_id: String,
    pub cluster_name: String,
    pub telemetry_enabled: bool,
    pub external_login_uri: String,
    pub external_logout_uri: String,
    pub branding: String,
    pub rbac_enabled: bool,
    pub product: String,
    pub feature_switches: Vec<String>,
    pub user_management_enabled: bool,
    pub strict_job_queue_control: bool,
    pub has_custom_logo: bool,
    pub sso_providers: Vec<Value>,
    pub cluster_message: Option<ClusterMessage>,
}

/// A line of `GET /api/v1/master/logs`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MasterLogsElement {
    pub log_entry: LogEntry,
}

/// What the master logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogEntry {
    pub id: i64,
    pub level: LogLevel,
    pub message: String,
    pub timestamp: Timestamp,
}

/// `GET /master/telemetry`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TelemetryResponse {
    pub enabled: bool,
    pub segment_key: String,
}
