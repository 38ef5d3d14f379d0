//! What running tasks ask the master: where the others are, whether to stop.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::wire::Whole;

/// `GET /allocations/{id}/resources/{id}/rendezvous`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RendezvousResponse {
    pub rendezvous_info: RendezvousInfo,
}

/// Where the shares of an allocation are, all lists in the order of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RendezvousInfo {
    pub addresses: Vec<String>,
    pub rank: i64,
    pub slots: Vec<i64>,
}

/// `GET /allocations/{id}/signals/preemption`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PreemptionResponse {
    pub preempt: bool,
}

/// `POST /allocations/{id}/all_gather`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AllGatherRequest {
    #[serde(alias = "request_uuid")]
    pub request_uuid: Option<String>,
    #[serde(alias = "num_peers")]
    pub num_peers: Option<Whole>,
    pub data: Option<Value>,
}

/// What all who were waited for brought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AllGatherResponse {
    pub data: Vec<Value>,
}
