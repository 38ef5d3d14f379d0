//! Who had which slots, and for how long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::identifiers::{ExperimentId, UserId};
use crate::wire::Timestamp;

/// `GET /resources/allocation/raw`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RawUsageResponse {
    pub resource_entries: Vec<RawUsage>,
}

/// Slots that a task had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RawUsage {
    pub kind: String,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
    pub experiment_id: Option<ExperimentId>,
    pub username: String,
    pub user_id: UserId,
    pub labels: Vec<String>,
    /// Of the time that was asked about.
    pub seconds: f64,
    pub slots: i64,
}

/// `GET /resources/allocation/aggregated`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AggregatedUsageResponse {
    pub resource_entries: Vec<AggregatedUsage>,
}

/// Seconds of slots in a day or a month, in all and by who and what had them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AggregatedUsage {
    /// The first day.
    pub period_start: String,
    pub period: String,
    pub seconds: f64,
    pub by_username: BTreeMap<String, f64>,
    pub by_experiment_label: BTreeMap<String, f64>,
    pub by_resource_pool: BTreeMap<String, f64>,
}
