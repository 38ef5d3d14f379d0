//! Who is in a job, and when a round of it starts, restarts and ends.
//!
//! One [`Membership`] lives in the server at the rendezvous endpoint. Launchers, one per node, tell it what happens to
//! them ([`Event`]); it answers with what they must do ([`Action`]). A *round* is one life of the workers on all
//! nodes: any failure ends it everywhere, and the next one starts only when no worker of the old one is alive.
//!
//! Invariants, cited by the simulation in `tests/membership.rs`:
//!
//! - M1: a round starts only with nodes that said they have no worker alive.
//! - M2: a round never has fewer than `min_nodes` or more than `max_nodes` nodes.
//! - M3: at most `max_restarts` rounds follow the first one.
//! - M4: ranks of a round are `0..world_size`, each given once; group rank 0 is the host of the endpoint if it is in.
//! - M5: after [`Action::Complete`] or [`Action::Fail`] nothing follows.
//!
//! Deliberately absent: sockets, messages, key spaces and the details of a failure. The coordinator in `launch`
//! translates.

use std::collections::BTreeMap;
use std::time::Duration;

/// A node's connection to the coordinator; never reused within a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// What a job was started with; the same for all of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// A round needs this many nodes.
    pub min_nodes: usize,
    /// A round takes no more nodes than this.
    pub max_nodes: usize,
    /// Group ranks are given by the user (`static` rendezvous) instead of being assigned.
    pub fixed_ranks: bool,
    /// How many times the workers may be started again.
    pub max_restarts: u32,
    /// How long to wait for further nodes once `min_nodes` are there.
    pub last_call: Duration,
    /// How long to wait for `min_nodes`.
    pub join_timeout: Duration,
}

/// What a node says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
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
pub enum Event {
    /// A node is there and has no worker alive.
    Joined {
        /// Who.
        node: NodeId,
        /// What it said of itself.
        facts: NodeFacts,
    },
    /// A node that was told to stop has no worker alive any more.
    Stopped {
        /// Who.
        node: NodeId,
    },
    /// All workers of a node ended with 0.
    Finished {
        /// Who.
        node: NodeId,
    },
    /// A worker of a node failed.
    Failed {
        /// Where.
        node: NodeId,
        /// What happened, for people: "rank 1 exited with code 3".
        cause: String,
    },
    /// A node said goodbye.
    Left {
        /// Who.
        node: NodeId,
        /// Why, for people: "received SIGTERM".
        cause: String,
    },
    /// A node's connection broke.
    Lost {
        /// Who.
        node: NodeId,
        /// How it was noticed.
        cause: String,
    },
    /// Time passed.
    Tick,
}

/// One node's place in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub node: NodeId,
    /// Rank of the node among the nodes.
    pub group_rank: usize,
    /// How many workers it starts.
    pub workers: usize,
    /// Rank of its first worker.
    pub first_rank: usize,
    /// Rank of its first worker among the workers of the same role.
    pub first_role_rank: usize,
    /// How many workers share the role.
    pub role_world_size: usize,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// All members start their workers.
    Start {
        /// Counts from 0.
        round: u64,
        /// How many restarts have been spent.
        restarts: u32,
        /// In order of group rank.
        members: Vec<Member>,
        /// Number of workers in the round.
        world_size: usize,
    },
    /// These nodes end their workers and say [`Event::Stopped`].
    Stop {
        /// Who.
        nodes: Vec<NodeId>,
        /// Why, for people.
        reason: String,
    },
    /// The node cannot take part.
    Refuse {
        /// Who.
        node: NodeId,
        /// Why, for people.
        reason: String,
    },
    /// The state of the wait, for people.
    Waiting {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Ready,
    Running,
    Finished,
    Stopping,
}

#[derive(Debug)]
struct Node {
    facts: NodeFacts,
    standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Nodes come together; `last_call` is set once enough are there.
    Gathering {
        since: Duration,
        last_call: Option<Duration>,
    },
    Running,
    Ended,
}

/// The decisions about one job. See the module documentation.
#[derive(Debug)]
pub struct Membership {
    terms: Terms,
    nodes: BTreeMap<NodeId, Node>,
    phase: Phase,
    /// Members of the newest round that are still counted on.
    members: Vec<NodeId>,
    rounds: u64,
    restarts: u32,
    /// How many nodes the newest round started with.
    round_size: usize,
    announced: Option<String>,
}

impl Membership {
    /// A job without nodes, at time `now` (any monotonic offset).
    pub fn new(terms: Terms, now: Duration) -> Membership {
        Membership {
            terms,
            nodes: BTreeMap::new(),
            phase: Phase::Gathering { since: now, last_call: None },
            members: Vec::new(),
            rounds: 0,
            restarts: 0,
            round_size: 0,
            announced: None,
        }
    }

    /// What the job was started with.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.phase {
            Phase::Gathering { since, last_call } => Some(last_call.unwrap_or(since + self.terms.join_timeout)),
            Phase::Running | Phase::Ended => None,
        }
    }

    /// Takes in what happened and returns what is to be done.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        if self.phase == Phase::Ended {
            return match event {
                Event::Joined { node, .. } => {
                    vec![Action::Refuse { node, reason: "the job has already ended".to_owned() }]
                }
                _ => Vec::new(),
            };
        }
        match event {
            Event::Joined { node, facts } => self.joined(node, facts, now),
            Event::Stopped { node } => {
                self.change(node, Standing::Stopping, Standing::Ready);
                self.gather(now)
            }
            // Said before the order to stop arrived: the round is over, and the order stands.
            Event::Finished { node } => {
                self.change(node, Standing::Running, Standing::Finished);
                self.complete_if_finished()
            }
            Event::Failed { node, cause } => match self.standing(node) {
                // Its peers' workers fall with the first: only the first failure of a round counts.
                Some(Standing::Running | Standing::Finished) => self.restart(cause, now),
                _ => Vec::new(),
            },
            Event::Left { node, cause } => self.gone(node, "left", cause, now),
            Event::Lost { node, cause } => self.gone(node, "was lost", cause, now),
            Event::Tick => self.gather(now),
        }
    }

    fn standing(&self, node: NodeId) -> Option<Standing> {
        self.nodes.get(&node).map(|node| node.standing)
    }

    fn change(&mut self, node: NodeId, from: Standing, to: Standing) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.standing == from) {
            node.standing = to;
        }
    }

    fn joined(&mut self, node: NodeId, facts: NodeFacts, now: Duration) -> Vec<Action> {
        if let Some(reason) = self.objection(&facts) {
            return vec![Action::Refuse { node, reason }];
        }
        self.nodes.insert(node, Node { facts, standing: Standing::Ready });
        match self.phase {
            Phase::Running => vec![Action::Waiting {
                reason: format!(
                    "the job runs with {} of at most {} nodes; a new node waits for the next round",
                    self.members.len(),
                    self.terms.max_nodes
                ),
            }],
            _ => self.gather(now),
        }
    }

    fn objection(&self, facts: &NodeFacts) -> Option<String> {
        if !self.terms.fixed_ranks {
            return None;
        }
        let (rank, last) = (facts.node_rank, self.terms.max_nodes - 1);
        if rank > last {
            return Some(format!("node rank {rank} is out of range: this job has node ranks 0 to {last}"));
        }
        let holder = self.nodes.values().find(|node| node.facts.node_rank == rank)?;
        Some(format!("node rank {rank} is already taken by {}", describe(&holder.facts)))
    }

    /// A failure, a departure: end the round everywhere and, within the budget, gather again.
    fn restart(&mut self, cause: String, now: Duration) -> Vec<Action> {
        if self.restarts >= self.terms.max_restarts {
            self.phase = Phase::Ended;
            let budget = match self.terms.max_restarts {
                0 => "restarts are off (--max-restarts 0)".to_owned(),
                1 => "the only restart is used up".to_owned(),
                many => format!("all {many} restarts are used up"),
            };
            return vec![Action::Fail { reason: format!("{cause}; {budget}") }];
        }
        self.restarts += 1;
        self.phase = Phase::Gathering { since: now, last_call: None };
        self.announced = None;
        let mut nodes = Vec::new();
        for id in &self.members {
            if let Some(node) = self.nodes.get_mut(id) {
                if node.facts.foreign {
                    node.standing = Standing::Ready;
                } else {
                    node.standing = Standing::Stopping;
                    nodes.push(*id);
                }
            }
        }
        let reason = format!("{cause}; restart {} of {}", self.restarts, self.terms.max_restarts);
        let mut actions = vec![Action::Stop { nodes, reason }];
        actions.extend(self.gather(now));
        actions
    }

    fn gone(&mut self, id: NodeId, how: &str, cause: String, now: Duration) -> Vec<Action> {
        let Some(node) = self.nodes.remove(&id) else { return Vec::new() };
        let was_member = self.members.contains(&id);
        self.members.retain(|member| *member != id);
        if node.facts.host {
            // The coordinator ends with its host: nobody would be left to lead another round.
            self.phase = Phase::Ended;
            return vec![Action::Fail { reason: format!("the first node {how}: {cause}") }];
        }
        match (&self.phase, node.standing) {
            (Phase::Running, Standing::Finished) => self.complete_if_finished(),
            (Phase::Running, Standing::Running) if was_member => {
                self.restart(format!("node {} {how}: {cause}", describe(&node.facts)), now)
            }
            (Phase::Running, _) => Vec::new(),
            _ => self.gather(now),
        }
    }

    fn complete_if_finished(&mut self) -> Vec<Action> {
        let all_finished = self.members.iter().all(|id| self.standing(*id) == Some(Standing::Finished));
        if self.phase == Phase::Running && all_finished {
            self.phase = Phase::Ended;
            return vec![Action::Complete];
        }
        Vec::new()
    }

    /// Starts the round if it can be, else says what is missing.
    fn gather(&mut self, now: Duration) -> Vec<Action> {
        let Phase::Gathering { since, last_call } = self.phase else { return Vec::new() };
        let stopping = self.nodes.values().filter(|node| node.standing == Standing::Stopping).count();
        let ready = self.nodes.len() - stopping;
        let enough = ready >= self.terms.min_nodes && stopping == 0;
        if !enough && now >= since + self.terms.join_timeout {
            self.phase = Phase::Ended;
            let limit = self.terms.join_timeout.as_secs_f64();
            return vec![Action::Fail { reason: format!("gave up after {limit} s {}", self.missing(ready, stopping)) }];
        }
        if !enough {
            self.phase = Phase::Gathering { since, last_call: None };
            // Ending workers takes a moment and needs nobody's help: only missing nodes are worth a sentence.
            return if stopping > 0 { Vec::new() } else { self.announce(self.missing(ready, stopping)) };
        }
        let same_as_before = self.rounds > 0
            && self.members.len() == self.round_size
            && self.members.iter().all(|id| self.standing(*id) == Some(Standing::Ready));
        let deadline = last_call.unwrap_or(now + self.terms.last_call);
        if ready >= self.terms.max_nodes || same_as_before || now >= deadline {
            return self.start();
        }
        self.phase = Phase::Gathering { since, last_call: Some(deadline) };
        self.announce(format!(
            "{ready} nodes are there, up to {} may join within the last call of {} s",
            self.terms.max_nodes,
            self.terms.last_call.as_secs_f64()
        ))
    }

    fn announce(&mut self, reason: String) -> Vec<Action> {
        if self.announced.as_ref() == Some(&reason) {
            return Vec::new();
        }
        self.announced = Some(reason.clone());
        vec![Action::Waiting { reason }]
    }

    fn missing(&self, ready: usize, stopping: usize) -> String {
        let name = |node: &Node| format!("{}, pid {}", node.facts.address, node.facts.process);
        let present: Vec<String> = self.nodes.values().map(name).collect();
        if stopping > 0 {
            return format!("waiting for {stopping} of {} nodes to end their workers", ready + stopping);
        }
        let needed = self.terms.min_nodes;
        let more = needed.saturating_sub(ready);
        let plural = if more == 1 { "" } else { "s" };
        let mut text = format!("waiting for {more} more node{plural}: {ready} of {needed} are there");
        if !present.is_empty() {
            text.push_str(&format!(" ({})", present.join("; ")));
        }
        if self.terms.fixed_ranks {
            let absent: Vec<String> = (0..self.terms.max_nodes)
                .filter(|rank| !self.nodes.values().any(|node| node.facts.node_rank == *rank))
                .map(|rank| rank.to_string())
                .collect();
            text.push_str(&format!("; missing: node rank {}", absent.join(", ")));
        }
        text
    }

    fn start(&mut self) -> Vec<Action> {
        let mut order: Vec<NodeId> = self.nodes.keys().copied().collect();
        order.sort_by_key(|id| {
            let facts = &self.nodes[id].facts;
            (!facts.host || self.terms.fixed_ranks, facts.node_rank, facts.address.clone(), facts.process, *id)
        });
        order.truncate(self.terms.max_nodes);

        let mut role_sizes: BTreeMap<String, usize> = BTreeMap::new();
        for id in &order {
            let facts = &self.nodes[id].facts;
            *role_sizes.entry(facts.role.clone()).or_default() += facts.workers;
        }
        let mut role_given: BTreeMap<String, usize> = BTreeMap::new();
        let mut world_size = 0;
        let mut members = Vec::with_capacity(order.len());
        for (group_rank, id) in order.iter().enumerate() {
            let facts = &self.nodes[id].facts;
            let given = role_given.entry(facts.role.clone()).or_default();
            members.push(Member {
                node: *id,
                group_rank,
                workers: facts.workers,
                first_rank: world_size,
                first_role_rank: *given,
                role_world_size: role_sizes[&facts.role],
            });
            *given += facts.workers;
            world_size += facts.workers;
        }
        for id in &order {
            self.change(*id, Standing::Ready, Standing::Running);
        }
        let round = self.rounds;
        self.rounds += 1;
        self.members = order;
        self.round_size = self.members.len();
        self.announced = None;
        self.phase = Phase::Running;
        vec![Action::Start { round, restarts: self.restarts, members, world_size }]
    }
}

/// How a node is named to people.
fn describe(facts: &NodeFacts) -> String {
    format!("{} (pid {})", facts.address, facts.process)
}
