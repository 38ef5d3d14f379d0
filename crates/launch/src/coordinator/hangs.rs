//! A job of several nodes hangs: what each of them sees is put together by the launcher in the coordinator's own process.
//!
//! The coordinator asks and passes on, once for all nodes that say so at about the same time. It concludes nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use instep_diagnosis::remote::NodeEvidence;
use instep_policy::membership::NodeId;
use instep_store::Context;

use super::Coordinator;
use crate::control::{Examination, FromCoordinator};

/// Between two questions: a rank that comes late again and again must not keep all nodes asking for stacks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Of one node's answer, and of all answers together, in bytes: less than a connection may have unread.
const MOST_OF_ONE: usize = 128 << 10;
const MOST_OF_ALL: usize = 4 << 20;

/// The newest question, and who has not answered it.
#[derive(Debug, Default)]
pub(super) struct HangInquiry {
    number: u64,
    asked: Option<Instant>,
    outstanding: BTreeSet<NodeId>,
}

impl Coordinator {
    /// A node's ranks wait for too long: all nodes are to say what theirs do.
    pub(super) fn handle_overdue(&mut self, context: &mut Context<'_>) {
        let inquiry = &mut self.hang_inquiry;
        if inquiry.asked.is_some_and(|asked| context.now < asked + INTERVAL) {
            return;
        }
        inquiry.number += 1;
        inquiry.asked = Some(context.now);
        inquiry.outstanding = self.joined.keys().copied().collect();
        let (number, nodes) = (inquiry.number, inquiry.outstanding.len());
        let limit = MOST_OF_ONE.min(MOST_OF_ALL / nodes.max(1));
        let asked: Vec<(NodeId, bool)> = self.joined.iter().map(|(node, joined)| (*node, joined.host)).collect();
        for (node, host) in asked {
            let examination = Examination { number, limit, concludes_from: host.then_some(nodes) };
            self.send_to(node, &FromCoordinator::Examine(examination), context);
        }
    }

    /// A node's answer goes to the launcher that concludes, once.
    pub(super) fn handle_evidence(
        &mut self,
        node: NodeId,
        number: u64,
        evidence: Box<NodeEvidence>,
        context: &mut Context<'_>,
    ) {
        let inquiry = &mut self.hang_inquiry;
        if number != inquiry.number || !inquiry.outstanding.remove(&node) {
            return;
        }
        let host = self.joined.iter().find(|(_, joined)| joined.host).map(|(host, _)| *host);
        if let Some(host) = host {
            self.send_to(host, &FromCoordinator::Evidence { number, evidence }, context);
        }
    }
}
