//! Who is in a job, and when a round of it starts, restarts and ends.
//!
//! One [`Membership`] lives in the server at the rendezvous endpoint. Launchers, one per node, tell it what happens to
//! them ([`Event`]); it answers with what they must do ([`Action`]). A *round* is one life of the workers on all
//! nodes: any failure ends it everywhere, and the next one starts only when no worker of the old one is alive.
//!
//! A job is *elastic* if it has a range of nodes and no fixed ranks. Then nodes that come and go are *membership
//! changes*, with a budget and a cause of their own beside the restarts after failures:
//!
//! - Lost, left and draining nodes: the others stop, and start again at once if enough remain.
//! - Newcomers: after a moment in which more may come, the round is stopped and formed again with them.
//! - A failure is judged when every other member has answered the order to stop. If one of them turns out to be lost,
//!   and had not reported a failure of its own, the loss was the cause: workers fall when a peer vanishes. So a node
//!   cannot turn its own failure into a change by leaving, and nobody pays a restart for somebody else's machine.
//! - A node that fell silent may be alive behind a cut link, where others may go on without us. So after silence a round
//!   needs a majority of the nodes of the round before ([`Quorum::Majority`], module `view`). The round *before* is the
//!   newest one of which a majority of its own predecessor is known to have started ([`Action::Commit`]): an order to
//!   start that never arrived behind a cut link commits nobody. Whoever did start and has not heard of the commitment
//!   tells of that round when it comes back ([`Vote`]), and is counted only together with a majority of that one.
//!
//! In all other jobs a lost node is a failure.
//!
//! Where [`crate::recovery`] replaces lost ranks inside a round, newcomers stand by: a round that keeps its step is not
//! stopped for them. Whose ranks have moved is gone ([`Event::Replaced`]), unless too few are left to go on
//! ([`Membership::may_continue_without`]). Who stood by and gets some of them is a member from then on
//! ([`Event::Promoted`]), and does not count for a majority: all sides of a cut count the nodes with which the round began.
//!
//! Invariants, cited by the simulations in `tests/integration`:
//!
//! - M1: a round starts only with nodes that said they have no worker alive.
//! - M2: a round never has fewer than `min_nodes` or more than `max_nodes` nodes.
//! - M3: after the first, at most `max_restarts` rounds follow a failure and at most `max_changes` another change.
//! - M4: ranks of a round are `0..world_size`, each given once; group rank 0 is the host of the endpoint if it is in.
//! - M5: after [`Action::Complete`] or [`Action::Fail`] nothing follows.
//! - M6: of two sides that are silent to each other at most one starts a round, unless [`Quorum::Minimum`] lets both.
//!
//! Deliberately absent: sockets, messages, key spaces and the details of a failure. The coordinator in `launch`
//! translates.

mod messages;
mod ranks;
mod round;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use messages::{Action, Event, MembershipTerms, NodeFacts};
pub use ranks::RoundMember;
use ranks::{RankCandidate, assign_ranks};
use view::{Presence, RoundView};
pub use view::{Quorum, Resumption, Vote};

/// What the reason of a failure ends with where the launcher was told not to restart.
pub const RESTARTS_OFF: &str = "restarts are off (--max-restarts 0)";

/// How many nodes are named to people; the rest is counted.
const SHOWN: usize = 8;

/// A node's connection to the coordinator; never reused within a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A launcher's own number, random and the same for its whole life: it may connect again, its successor has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct LauncherId(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Ready,
    Running,
    Finished,
    Stopping,
    Draining,
}

#[derive(Debug)]
struct Node {
    facts: NodeFacts,
    state: NodeState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RoundPhase {
    /// Nodes come together; `last_call` is set once enough are there.
    Gathering {
        since: Duration,
        last_call: Option<Duration>,
    },
    /// The workers run; `settled` is when those who wait are taken in.
    Running {
        settled: Option<Duration>,
    },
    Ended,
}

/// Why an elastic round was stopped, until all of its nodes have answered.
#[derive(Debug, Default)]
struct StopReason {
    failure: Option<String>,
    /// Nodes that reported a failure: their loss explains nobody else's.
    failed: BTreeSet<NodeId>,
    change: Option<String>,
}

/// The decisions about one job. See the module documentation.
#[derive(Debug)]
pub struct Membership {
    terms: MembershipTerms,
    nodes: BTreeMap<NodeId, Node>,
    phase: RoundPhase,
    /// Members of the newest round that are still counted on.
    members: Vec<NodeId>,
    rounds: u64,
    restarts: u32,
    changes: u32,
    /// How many nodes the newest round started with.
    round_size: usize,
    /// The newest round that is committed, as all who may be alive know it.
    view: Option<RoundView>,
    /// Launchers that have ended, as far as their systems said so.
    ended: BTreeSet<LauncherId>,
    /// The round that was started here and is not committed yet, with those who have started.
    pending: Option<(RoundView, BTreeSet<LauncherId>)>,
    stop_reason: Option<StopReason>,
    /// Since when workers of a silent side may still run.
    silent_since: Option<Duration>,
    /// Why the next round will start.
    reason: Option<String>,
    announced: Option<String>,
}

impl Membership {
    /// A job without nodes, at time `now` (any monotonic offset).
    pub fn new(terms: MembershipTerms, now: Duration) -> Membership {
        Membership {
            terms,
            nodes: BTreeMap::new(),
            phase: RoundPhase::Gathering { since: now, last_call: None },
            members: Vec::new(),
            rounds: 0,
            restarts: 0,
            changes: 0,
            round_size: 0,
            view: None,
            ended: BTreeSet::new(),
            pending: None,
            stop_reason: None,
            silent_since: None,
            reason: None,
            announced: None,
        }
    }

    /// A job whose coordinator was lost, to be led from here on.
    pub fn resume(terms: MembershipTerms, resumption: Resumption, now: Duration) -> Membership {
        let stop_reason = StopReason { change: Some(resumption.reason.clone()), ..StopReason::default() };
        Membership {
            rounds: resumption.round + 1,
            restarts: resumption.restarts,
            changes: resumption.changes,
            round_size: resumption.size,
            view: Some(RoundView::resumed(&resumption)),
            ended: resumption.dead.iter().copied().collect(),
            stop_reason: Some(stop_reason),
            silent_since: (!resumption.dead.contains(&resumption.host)).then_some(now),
            ..Membership::new(terms, now)
        }
    }

    /// What the job was started with.
    pub fn terms(&self) -> &MembershipTerms {
        &self.terms
    }

    /// The newest committed round.
    pub fn round(&self) -> Option<u64> {
        self.view.as_ref().map(RoundView::round)
    }

    /// Whether workers run.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, RoundPhase::Running { .. })
    }

    /// Members of the newest round that fell silent: they may be alive.
    pub fn unaccounted(&self) -> Vec<LauncherId> {
        let here: BTreeSet<LauncherId> = self.nodes.values().map(|node| node.facts.launcher).collect();
        let members = self.view.iter().flat_map(|view| view.unaccounted(&here));
        let voted = self.nodes.values().flat_map(|node| self.votes(&node.facts)).flat_map(|vote| &vote.order);
        let known = |id: &&LauncherId| {
            here.contains(id) || self.ended.contains(id) || self.view.as_ref().is_some_and(|view| view.has_ended(**id))
        };
        let voted = voted.filter(|launcher| !known(launcher));
        members.chain(voted.copied()).collect::<BTreeSet<LauncherId>>().into_iter().collect()
    }

    /// A launcher's place in the newest round; earlier ones lead rather than later ones.
    pub fn precedence(&self, launcher: LauncherId) -> usize {
        self.view.as_ref().map_or(usize::MAX, |view| view.precedence(launcher))
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.phase {
            RoundPhase::Gathering { since, last_call } => Some(last_call.unwrap_or(since + self.terms.join_timeout)),
            RoundPhase::Running { settled } => settled,
            RoundPhase::Ended => None,
        }
    }

    /// Takes in what happened and returns what is to be done.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        if self.phase == RoundPhase::Ended {
            return match event {
                Event::Joined { node, .. } => {
                    vec![Action::Refuse { node, reason: "the job has already ended".to_owned() }]
                }
                _ => Vec::new(),
            };
        }
        match event {
            Event::Joined { node, facts } => self.joined(node, facts, now),
            Event::Stopped { node } if self.state(node) == Some(NodeState::Running) => self.not_started(node, now),
            Event::Stopped { node } => {
                let is_news = self.state(node) == Some(NodeState::Stopping);
                self.change(node, NodeState::Stopping, NodeState::Ready);
                match self.phase {
                    RoundPhase::Running { .. } if is_news => self.newcomer(node, now),
                    _ => self.gather(now),
                }
            }
            Event::Started { node } => self.started(node, now),
            // Said before the order to stop arrived: the round is over, and the order stands.
            Event::Finished { node } => {
                self.change(node, NodeState::Running, NodeState::Finished);
                self.complete_if_finished()
            }
            Event::Failed { node, cause } => self.failed(node, cause, now),
            Event::Unrecoverable { reason } => self.fail(reason),
            Event::Draining { node, cause } => self.draining(node, &cause, now),
            Event::Left { node, cause, failed } => {
                let mut actions = Vec::new();
                if failed && self.terms.elastic() {
                    let name = self.nodes.get(&node).map_or_else(String::new, |node| describe(&node.facts));
                    actions = self.failed(node, format!("node {name} left: {cause}"), now);
                }
                actions.extend(self.gone(node, "left", cause, false, now));
                actions
            }
            Event::Lost { node, cause, silent } => self.gone(node, "was lost", cause, silent, now),
            Event::Replaced { node, cause, silent } => {
                self.remove(node, &cause, silent);
                self.complete_if_finished()
            }
            Event::Promoted { node } => {
                self.change(node, NodeState::Ready, NodeState::Running);
                if !self.has_member(node) {
                    self.members.push(node);
                }
                Vec::new()
            }
            Event::Silent { nodes } => {
                for (node, _) in &nodes {
                    self.change(*node, NodeState::Ready, NodeState::Draining);
                }
                let each = nodes.into_iter();
                each.flat_map(|(node, cause)| self.gone(node, "was lost", cause, true, now)).collect()
            }
            Event::Dead { launcher } => {
                self.views().for_each(|view| view.found_dead(launcher));
                self.gather(now)
            }
            Event::Tick => match self.phase {
                RoundPhase::Running { settled: Some(due) } if now >= due => self.take_in_newcomers(now),
                _ => self.gather(now),
            },
        }
    }

    /// Whether a node is one of the newest round.
    pub fn has_member(&self, node: NodeId) -> bool {
        self.members.contains(&node)
    }

    /// Whether others may take over the ranks of these nodes, some of which may be alive, while the round runs on. Where
    /// those that are silent could be a majority, they may be about to form a round of their own (M6).
    pub fn may_continue_without(&self, lost: &[(NodeId, bool)]) -> bool {
        if !self.terms.elastic() {
            return true;
        }
        // Of a round that is not committed yet it is not known who may go on.
        let (Some(view), None) = (&self.view, &self.pending) else { return false };
        let mut view = view.clone();
        for (id, silent) in lost {
            if let Some(node) = self.nodes.get(id) {
                view.gone(node.facts.launcher, String::new(), *silent);
            }
        }
        let here = self.nodes.iter().filter(|(id, _)| !lost.iter().any(|(lost, _)| lost == *id));
        view.quorum_objection(self.terms.quorum, &Presence::of(here.map(|(_, node)| &node.facts))).is_none()
    }

    fn views(&mut self) -> impl Iterator<Item = &mut RoundView> {
        let pending = self.pending.as_mut().map(|(view, _)| view);
        self.view.iter_mut().chain(pending)
    }

    fn state(&self, node: NodeId) -> Option<NodeState> {
        self.nodes.get(&node).map(|node| node.state)
    }

    fn change(&mut self, node: NodeId, from: NodeState, to: NodeState) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.state == from) {
            node.state = to;
        }
    }

    fn joined(&mut self, node: NodeId, facts: NodeFacts, now: Duration) -> Vec<Action> {
        if let Some(reason) = self.refusal(&facts) {
            return vec![Action::Refuse { node, reason }];
        }
        self.views().for_each(|view| view.returned(facts.launcher));
        if facts.after_silence {
            self.silent_since = Some(now);
        }
        let state = if facts.busy { NodeState::Stopping } else { NodeState::Ready };
        self.nodes.insert(node, Node { facts, state });
        match self.phase {
            RoundPhase::Running { .. } if state == NodeState::Ready => self.newcomer(node, now),
            RoundPhase::Running { .. } => Vec::new(),
            _ => {
                let mut actions = self.gather(now);
                if let [Action::Waiting { node: whom, .. }] = actions.as_mut_slice()
                    && !self.is_worth_telling_all()
                {
                    *whom = Some(node);
                }
                actions
            }
        }
    }

    /// Many nodes come one after the other: if all were told of each, the messages would grow with the square.
    fn is_worth_telling_all(&self) -> bool {
        const FEW: usize = 16;
        let present = self.nodes.len();
        present <= FEW || present.is_power_of_two() || self.terms.min_nodes.saturating_sub(present) < 4
    }

    fn refusal(&self, facts: &NodeFacts) -> Option<String> {
        if let Some(theirs) = facts.last_round.filter(|round| self.round().is_none_or(|ours| *round > ours)) {
            return Some(format!("the node took part in round {theirs}, which is unknown here"));
        }
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

    /// Somebody waits while a round runs: it is taken in after a moment, if there is room and the job is not ending.
    fn newcomer(&mut self, node: NodeId, now: Duration) -> Vec<Action> {
        let (running, most) = (self.members.len(), self.terms.max_nodes);
        let waits = |why: &str| {
            let reason = format!("the job runs with {running} of at most {most} nodes; {why}");
            vec![Action::Waiting { node: Some(node), reason }]
        };
        if self.terms.step_recovery && self.standbys(&[]).0.contains(&node) {
            return waits("they keep their step, and a new node stands by for the ranks of a lost one");
        }
        if !self.terms.elastic() {
            return waits("a new node waits for the next round");
        }
        if running >= most {
            return waits("an additional node waits as a spare");
        }
        if self.terms.step_recovery {
            return waits("a new node waits until they start again, because they keep their step");
        }
        if self.some_finished() {
            return waits("a node has already finished, so no new node is accepted");
        }
        let (welcome, _) = self.candidates(|state| state != NodeState::Draining);
        if !welcome.contains(&node) {
            return waits("this node comes from a later round that may continue elsewhere");
        }
        if self.changes >= self.terms.max_changes {
            return waits("all membership changes are used up, so no new node is accepted");
        }
        let due = match self.phase {
            RoundPhase::Running { settled: Some(due) } => due,
            _ => now + self.terms.settle,
        };
        self.phase = RoundPhase::Running { settled: Some(due) };
        waits(&format!("a new node joins after {} s", self.terms.settle.as_secs_f64()))
    }

    fn some_finished(&self) -> bool {
        self.members.iter().any(|id| self.state(*id) == Some(NodeState::Finished))
    }

    fn take_in_newcomers(&mut self, now: Duration) -> Vec<Action> {
        self.phase = RoundPhase::Running { settled: None };
        let (welcome, _) = self.candidates(|state| state != NodeState::Draining);
        let ready = welcome.iter().filter_map(|id| self.nodes.get(id)).filter(|node| node.state == NodeState::Ready);
        let waiting: Vec<String> = ready.map(|node| describe(&node.facts)).collect();
        if waiting.is_empty() || self.some_finished() || self.members.len() >= self.terms.max_nodes {
            return Vec::new();
        }
        let plural = if waiting.len() == 1 { "node" } else { "nodes" };
        self.stop_for_change(format!("{plural} {} joined", listed(&waiting)), now)
    }

    fn failed(&mut self, node: NodeId, cause: String, now: Duration) -> Vec<Action> {
        match (self.state(node), &mut self.stop_reason) {
            // Its peers' workers fall with the first: only the first failure of a round counts.
            (Some(NodeState::Running | NodeState::Finished), _) if !self.terms.elastic() => self.restart(cause, now),
            (Some(NodeState::Running | NodeState::Finished), _) => {
                let mut stop_reason = StopReason { failure: Some(cause.clone()), ..StopReason::default() };
                stop_reason.failed.insert(node);
                self.stop(stop_reason, cause, now)
            }
            (Some(NodeState::Stopping), Some(stop_reason)) => {
                stop_reason.failed.insert(node);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A failure in a job that is not elastic: end the round everywhere and, within the budget, gather again.
    fn restart(&mut self, cause: String, now: Duration) -> Vec<Action> {
        if self.restarts >= self.terms.max_restarts {
            return self.fail(self.out_of_restarts(&cause));
        }
        self.restarts += 1;
        let reason = format!("{cause}; restart {} of {}", self.restarts, self.terms.max_restarts);
        self.reason = Some(reason.clone());
        self.stop_members(reason, now)
    }

    fn out_of_restarts(&self, cause: &str) -> String {
        let budget = match self.terms.max_restarts {
            0 => RESTARTS_OFF.to_owned(),
            1 => "the only restart is used up".to_owned(),
            many => format!("all {many} restarts are used up"),
        };
        format!("{cause}; {budget}")
    }

    fn fail(&mut self, reason: String) -> Vec<Action> {
        self.phase = RoundPhase::Ended;
        vec![Action::Fail { reason }]
    }

    fn stop_for_change(&mut self, cause: String, now: Duration) -> Vec<Action> {
        let stop_reason = StopReason { change: Some(cause.clone()), ..StopReason::default() };
        self.stop(stop_reason, cause, now)
    }

    fn stop(&mut self, stop_reason: StopReason, reason: String, now: Duration) -> Vec<Action> {
        self.stop_reason = Some(stop_reason);
        self.pending = None;
        self.stop_members(reason, now)
    }

    fn stop_members(&mut self, reason: String, now: Duration) -> Vec<Action> {
        self.phase = RoundPhase::Gathering { since: now, last_call: None };
        self.announced = None;
        let mut nodes = Vec::new();
        for id in &self.members {
            match self.nodes.get_mut(id) {
                Some(node) if node.facts.foreign => node.state = NodeState::Ready,
                Some(node) if !matches!(node.state, NodeState::Draining | NodeState::Ready) => {
                    node.state = NodeState::Stopping;
                    nodes.push(*id);
                }
                _ => {}
            }
        }
        let mut actions = vec![Action::Stop { nodes, reason, at_once: false }];
        actions.extend(self.gather(now));
        actions
    }

    fn draining(&mut self, id: NodeId, cause: &str, now: Duration) -> Vec<Action> {
        let Some(node) = self.nodes.get_mut(&id).filter(|_| self.terms.elastic()) else { return Vec::new() };
        let before = std::mem::replace(&mut node.state, NodeState::Draining);
        let reason = format!("node {} is draining: {cause}", describe(&node.facts));
        match (self.is_running(), before) {
            (true, NodeState::Running | NodeState::Finished) => self.stop_for_change(reason, now),
            _ => self.gather(now),
        }
    }

    fn gone(&mut self, id: NodeId, how: &str, cause: String, silent: bool, now: Duration) -> Vec<Action> {
        let was_member = self.members.contains(&id);
        let Some(node) = self.remove(id, &cause, silent) else { return Vec::new() };
        if node.facts.host {
            return self.host_gone(how, &cause);
        }
        let mut urgent = Vec::new();
        if silent && self.may_be_superseded() {
            let alive = |id: &&NodeId| !matches!(self.state(**id), None | Some(NodeState::Ready));
            let nodes: Vec<NodeId> = self.members.iter().filter(alive).copied().collect();
            let reason = "too few nodes are reachable: the others may continue without this side".to_owned();
            urgent.push(Action::Stop { nodes, reason, at_once: true });
        }
        let mut actions = self.without(id, node, was_member, how, &cause, now);
        actions.extend(urgent);
        actions
    }

    /// A node is there no more, as others will remember it.
    fn remove(&mut self, id: NodeId, cause: &str, silent: bool) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        self.members.retain(|member| *member != id);
        if !silent {
            self.ended.insert(node.facts.launcher);
        }
        let name = describe(&node.facts);
        self.views().for_each(|view| view.gone(node.facts.launcher, format!("{name}: {cause}"), silent));
        Some(node)
    }

    /// Whether those who are heard are too few to go on.
    fn may_be_superseded(&self) -> bool {
        self.quorum_objection(self.nodes.values()).is_some()
    }

    fn without(
        &mut self,
        id: NodeId,
        node: Node,
        was_member: bool,
        how: &str,
        cause: &str,
        now: Duration,
    ) -> Vec<Action> {
        let elastic = self.terms.elastic();
        let what = format!("node {} {how}: {cause}", describe(&node.facts));
        match (&self.phase, node.state) {
            (RoundPhase::Running { .. }, NodeState::Finished) => self.complete_if_finished(),
            (RoundPhase::Running { .. }, NodeState::Running) if was_member && elastic => {
                self.stop_for_change(what, now)
            }
            (RoundPhase::Running { .. }, NodeState::Running) if was_member => self.restart(what, now),
            (RoundPhase::Running { .. }, _) => Vec::new(),
            (_, state) => {
                if let Some(stop_reason) = &mut self.stop_reason
                    && state == NodeState::Stopping
                    && !stop_reason.failed.contains(&id)
                {
                    stop_reason.change.get_or_insert(what);
                }
                self.gather(now)
            }
        }
    }

    /// The coordinator ends with its host. An elastic job is taken over by the next node; any other has no leader.
    fn host_gone(&mut self, how: &str, cause: &str) -> Vec<Action> {
        self.phase = RoundPhase::Ended;
        match self.terms.elastic() {
            true => Vec::new(),
            false => vec![Action::Fail { reason: format!("the first node {how}: {cause}") }],
        }
    }

    fn complete_if_finished(&mut self) -> Vec<Action> {
        let all_finished = self.members.iter().all(|id| self.state(*id) == Some(NodeState::Finished));
        if self.is_running() && all_finished {
            self.phase = RoundPhase::Ended;
            return vec![Action::Complete];
        }
        Vec::new()
    }
}

/// How a node is named to people.
fn describe(facts: &NodeFacts) -> String {
    format!("{} (pid {})", facts.address, facts.process)
}

/// The first few of many.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
