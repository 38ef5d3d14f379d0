//! What goes into the decisions about a job and what comes out of them.

use std::time::Duration;

use super::ranks::RoundMember;
use super::view::{Quorum, Vote};
use super::{LauncherId, NodeId};

/// What a job was started with; the same for all of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipTerms {
    /// A round needs this many nodes.
    pub min_nodes: usize,
    /// A round takes no more nodes than this.
    pub max_nodes: usize,
    /// Group ranks are given by the user (`static` rendezvous) instead of being assigned.
    pub fixed_ranks: bool,
    /// How many times the workers may be started again after a failure.
    pub max_restarts: u32,
    /// How long to wait for further nodes once `min_nodes` are there.
    pub last_call: Duration,
    /// How long to wait for `min_nodes`.
    pub join_timeout: Duration,
    /// How many times the workers may be started again because nodes came or went.
    pub max_changes: u32,
    /// How long after a newcomer the round is let run, so that several newcomers cost one change; and the least time
    /// before an elastic job's first round.
    pub settle: Duration,
    /// How long a job that was taken over waits for the nodes of its last round.
    pub rejoin_window: Duration,
    /// How long a job that was taken over from a silent coordinator waits in any case: until workers on that one's side,
    /// which notices the silence later, have been killed.
    pub fence: Duration,
    /// Who may go on after silence.
    pub quorum: Quorum,
    /// Lost ranks are replaced inside a round where that can be: [`crate::recovery`].
    pub step_recovery: bool,
}

impl MembershipTerms {
    /// Whether nodes may come and go.
    pub fn elastic(&self) -> bool {
        !self.fixed_ranks && self.min_nodes < self.max_nodes
    }
}

/// What a node says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Who it is, over all of its connections.
    pub launcher: LauncherId,
    /// The newest committed round it took part in, if it comes back.
    pub last_round: Option<u64>,
    /// Later rounds that it was told to start, and that may be committed without its knowing.
    pub votes: Vec<Vote>,
    /// It still ends workers of that round, and will say [`Event::Stopped`].
    pub busy: bool,
    /// It comes from a coordinator that had fallen silent, on whose side workers may still run for a moment.
    pub after_silence: bool,
    /// The address under which the node can be reached, as shown to people.
    pub address: String,
    /// Process id of its launcher.
    pub process: u32,
    /// How many workers it will start.
    pub workers: usize,
    /// The role of its workers.
    pub role: String,
    /// The group rank the user asked for (`--node-rank`): binding with `fixed_ranks`, a wish otherwise.
    pub node_rank: usize,
    /// The node hosts the endpoint.
    pub host: bool,
    /// The node is run by another launcher (torchrun) that follows the store's keys and takes no orders.
    pub foreign: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Event {
    /// A node is there; unless it says otherwise, it has no worker alive.
    Joined {
        node: NodeId,
        /// What it said of itself.
        facts: NodeFacts,
    },
    /// A node that was told to stop has no worker alive any more; or one that was told to start has not done it.
    Stopped { node: NodeId },
    /// A node has started its workers.
    Started { node: NodeId },
    /// All workers of a node ended with 0.
    Finished { node: NodeId },
    /// A worker of a node failed.
    Failed {
        node: NodeId,
        /// What happened, for people: "rank 1 exited with code 3".
        cause: String,
    },
    /// The job cannot succeed, however many restarts are left.
    Unrecoverable {
        /// Why, for people.
        reason: String,
    },
    /// A node is about to leave, and ends its workers.
    Draining {
        node: NodeId,
        /// Why, for people: "received SIGTERM".
        cause: String,
    },
    /// A node said goodbye; it has no worker alive.
    Left {
        node: NodeId,
        /// Why, for people: "received SIGTERM".
        cause: String,
        /// Because its own part failed.
        failed: bool,
    },
    /// A node is there no more.
    Lost {
        node: NodeId,
        /// How it was noticed.
        cause: String,
        /// Nothing is known but that it is silent: it may be alive.
        silent: bool,
    },
    /// A node is there no more, and others have its ranks: the round goes on without it ([`crate::recovery`]).
    Replaced {
        node: NodeId,
        /// How it was noticed.
        cause: String,
        /// Nothing is known but that it is silent: it may be alive.
        silent: bool,
    },
    /// A node that stood by has ranks of lost nodes from now on, and will start them.
    Promoted { node: NodeId },
    /// Several nodes are silent at the same time: no round may start with some of them because others are looked at first.
    Silent {
        /// Who, and how it was noticed.
        nodes: Vec<(NodeId, String)>,
    },
    /// A launcher that had fallen silent is found to have ended.
    Dead { launcher: LauncherId },
    /// Time passed.
    Tick,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Action {
    /// All members start their workers.
    Start {
        /// Counts from 0.
        round: u64,
        /// How many restarts have been spent.
        restarts: u32,
        /// How many membership changes there have been.
        changes: u32,
        /// In order of group rank.
        members: Vec<RoundMember>,
        /// Number of workers in the round.
        world_size: usize,
        /// Why there is another round, for people; nothing for the first.
        reason: Option<String>,
    },
    /// Enough nodes of the round before have started: from here on this round is the one that others would take over.
    Commit { round: u64 },
    /// These nodes end their workers and say [`Event::Stopped`].
    Stop {
        nodes: Vec<NodeId>,
        /// Why, for people.
        reason: String,
        /// By force: others may take their ranks any moment.
        at_once: bool,
    },
    /// The node cannot take part.
    Refuse {
        node: NodeId,
        /// Why, for people.
        reason: String,
    },
    /// The state of the wait, for people.
    Waiting {
        /// Who is told; everybody where nobody is named.
        node: Option<NodeId>,
        /// What is missing.
        reason: String,
    },
    /// The job failed: everyone ends its workers and exits.
    Fail {
        /// Why, for people.
        reason: String,
    },
    /// The job succeeded: everyone exits.
    Complete,
}
