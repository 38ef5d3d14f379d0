//! A job of several nodes hangs: what each of them sees is put together by the launcher in the coordinator's own process.
//!
//! The coordinator asks and passes on, once for all nodes that say so at about the same time. It concludes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use instep_policy::membership::NodeId;

use crate::control::DiagnoseRequest;

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

impl HangInquiry {
    /// Ranks wait for too long: what to ask all nodes, unless they have just been asked. Of each it is known whether its
    /// launcher is in the coordinator's process.
    pub(super) fn begin(&mut self, nodes: &BTreeMap<NodeId, bool>, now: Instant) -> Vec<(NodeId, DiagnoseRequest)> {
        if self.asked.is_some_and(|asked| now < asked + INTERVAL) {
            return Vec::new();
        }
        self.number += 1;
        self.asked = Some(now);
        self.outstanding = nodes.keys().copied().collect();
        let limit = MOST_OF_ONE.min(MOST_OF_ALL / nodes.len().max(1));
        let question =
            |host: bool| DiagnoseRequest { number: self.number, limit, concludes_from: host.then_some(nodes.len()) };
        nodes.iter().map(|(node, host)| (*node, question(*host))).collect()
    }

    /// A node answers this question; whether that is its first answer to the newest one.
    pub(super) fn answered(&mut self, node: NodeId, number: u64) -> bool {
        number == self.number && self.outstanding.remove(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_are_asked_once_and_each_answers_once() {
        let (first, second) = (NodeId(1), NodeId(2));
        let nodes = BTreeMap::from([(first, true), (second, false)]);
        let mut inquiry = HangInquiry::default();
        let now = Instant::now();
        let asked = inquiry.begin(&nodes, now);
        let concludes: Vec<_> = asked.iter().map(|(node, question)| (*node, question.concludes_from)).collect();
        assert_eq!(concludes, [(first, Some(2)), (second, None)]);
        assert!(inquiry.begin(&nodes, now + Duration::from_secs(9)).is_empty(), "they have just been asked");
        let number = asked[0].1.number;
        assert!(!inquiry.answered(second, number + 1), "to no question");
        assert!(inquiry.answered(second, number));
        assert!(!inquiry.answered(second, number), "again");
        assert!(!inquiry.begin(&nodes, now + INTERVAL).is_empty());
        assert!(!inquiry.answered(first, number), "too late");
    }
}
