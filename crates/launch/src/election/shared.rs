//! What a launcher and its own coordinator know of each other's leadership: they run on different threads.

use std::sync::Mutex;

use instep_policy::election::{Claim, HostPort};
use instep_policy::membership::LauncherId;

use crate::lock::lock;

/// See the module documentation. Each value is replaced as a whole, never changed in place.
#[derive(Debug, Default)]
pub struct SharedLeadership {
    /// Where the coordinator is that this launcher follows.
    leader: Mutex<Option<HostPort>>,
    probe_request: Mutex<Option<ProbeRequest>>,
    /// Where somebody claims to lead, while this launcher follows nobody.
    leader_hint: Mutex<Option<HostPort>>,
    /// The newest committed round of which this launcher knows.
    committed_round: Mutex<Option<u64>>,
}

/// The nodes whose state a coordinator wants to know because they are missing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProbeRequest {
    /// What the coordinator that asks has to show.
    pub(crate) claim: Claim,
    /// Whom to ask, and who is expected there.
    pub(crate) targets: Vec<(HostPort, Option<LauncherId>)>,
}

impl SharedLeadership {
    pub(crate) fn set_leader(&self, leader: Option<HostPort>) {
        *lock(&self.leader) = leader;
    }

    pub(crate) fn leader(&self) -> Option<HostPort> {
        lock(&self.leader).clone()
    }

    pub(crate) fn set_committed_round(&self, round: u64) {
        *lock(&self.committed_round) = Some(round);
    }

    pub(crate) fn committed_round(&self) -> Option<u64> {
        *lock(&self.committed_round)
    }

    pub(crate) fn set_leader_hint(&self, hint: HostPort) {
        *lock(&self.leader_hint) = Some(hint);
    }

    pub(crate) fn take_leader_hint(&self) -> Option<HostPort> {
        lock(&self.leader_hint).take()
    }

    pub(crate) fn set_probe_request(&self, request: Option<ProbeRequest>) {
        *lock(&self.probe_request) = request;
    }

    pub(crate) fn probe_request(&self) -> Option<ProbeRequest> {
        lock(&self.probe_request).clone()
    }
}
