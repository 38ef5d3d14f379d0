//! What the nodes of a job say when ranks wait for too long, until it can be put together: without a clock or a socket.

use std::time::Duration;

use instep_diagnosis::remote::NodeEvidence;

/// How long nodes may take to answer: ranks that do not answer are looked at for some seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The answers to one question.
#[derive(Debug)]
pub(super) struct Inquiry {
    number: u64,
    /// How many were asked.
    nodes: usize,
    answers: Vec<NodeEvidence>,
    /// By the monotonic clock, in nanoseconds.
    due: u64,
}

/// What nodes have said when no more is waited for.
#[derive(Debug, PartialEq)]
pub(super) struct Answers {
    pub(super) nodes: Vec<NodeEvidence>,
    /// What is missing, for people.
    pub(super) remarks: Vec<String>,
}

impl Inquiry {
    /// All nodes have just been asked.
    pub(super) fn new(number: u64, nodes: usize, now: u64) -> Inquiry {
        let due = now.saturating_add(u64::try_from(ANSWER_WITHIN.as_nanos()).unwrap_or(u64::MAX));
        Inquiry { number, nodes, answers: Vec::new(), due }
    }

    /// An answer to an earlier question says nothing about this one.
    pub(super) fn answered(&mut self, number: u64, evidence: NodeEvidence) {
        if number == self.number && self.answers.len() < self.nodes {
            self.answers.push(evidence);
        }
    }

    /// Whether all have answered, or had time to.
    pub(super) fn is_complete(&self, now: u64) -> bool {
        self.answers.len() == self.nodes || now >= self.due
    }

    /// What they said.
    pub(super) fn close(self) -> Answers {
        let mut remarks = Vec::new();
        let silent = self.nodes - self.answers.len();
        if silent > 0 {
            let seconds = ANSWER_WITHIN.as_secs();
            let nodes = self.nodes;
            remarks.push(format!("{silent} of {nodes} nodes did not say within {seconds} s what their ranks do"));
        }
        let partial = self.answers.iter().filter(|node| node.omitted > 0);
        remarks.extend(partial.map(|node| {
            format!("{} more ranks run on {}: run `instep diagnose` there to see them", node.omitted, node.host)
        }));
        Answers { nodes: self.answers, remarks }
    }
}

#[cfg(test)]
mod tests {
    use super::{ANSWER_WITHIN, Inquiry};
    use instep_diagnosis::remote::NodeEvidence;
    use std::collections::BTreeSet;

    fn answer(host: &str, omitted: usize) -> NodeEvidence {
        NodeEvidence { host: host.to_owned(), now: 1, ranks: Vec::new(), code: BTreeSet::new(), omitted }
    }

    #[test]
    fn an_inquiry_ends_with_the_last_answer() {
        let mut inquiry = Inquiry::new(3, 2, 100);
        inquiry.answered(2, answer("late", 0));
        inquiry.answered(3, answer("a", 0));
        assert!(!inquiry.is_complete(200));
        inquiry.answered(3, answer("b", 9));
        assert!(inquiry.is_complete(200));
        inquiry.answered(3, answer("once too often", 0));
        let answers = inquiry.close();
        assert_eq!(answers.nodes, [answer("a", 0), answer("b", 9)]);
        assert_eq!(answers.remarks, ["9 more ranks run on b: run `instep diagnose` there to see them"]);
    }

    #[test]
    fn silent_nodes_are_waited_for_so_long_and_then_named() {
        let mut inquiry = Inquiry::new(1, 3, 100);
        inquiry.answered(1, answer("a", 0));
        let due = 100 + u64::try_from(ANSWER_WITHIN.as_nanos()).expect("small");
        assert!(!inquiry.is_complete(due - 1) && inquiry.is_complete(due));
        let answers = inquiry.close();
        assert_eq!(answers.remarks, ["2 of 3 nodes did not say within 10 s what their ranks do"]);
    }
}
