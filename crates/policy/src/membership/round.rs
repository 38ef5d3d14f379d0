//! How a round comes about: who may form it, when it starts, and when it is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::view::{Presence, RoundView};
use super::{
    Action, Membership, Node, NodeFacts, NodeId, NodeState, RankCandidate, RoundPhase, SHOWN, Vote, assign_ranks,
    describe,
};

impl Membership {
    /// Starts the round if it can be, else says what is missing.
    pub(super) fn gather(&mut self, now: Duration) -> Vec<Action> {
        let RoundPhase::Gathering { since, last_call } = self.phase else { return Vec::new() };
        let busy = |node: &&Node| matches!(node.state, NodeState::Stopping | NodeState::Draining);
        let stopping = self.nodes.values().filter(busy).count();
        if stopping == 0
            && let Some(reason) = self.charge_budget()
        {
            return self.fail(reason);
        }
        let (ready, quorum) = self.candidates(|state| state == NodeState::Ready);
        let ready = ready.len();
        let enough = ready >= self.terms.min_nodes && stopping == 0 && quorum.is_none();
        if !enough && now >= since + self.terms.join_timeout {
            let limit = self.terms.join_timeout.as_secs_f64();
            return self.fail(format!("gave up after {limit} s {}", self.missing(ready, stopping, quorum)));
        }
        if !enough {
            self.phase = RoundPhase::Gathering { since, last_call: None };
            // Ending workers takes a moment and needs nobody's help: only missing nodes are worth a sentence.
            return if stopping > 0 { Vec::new() } else { self.announce(self.missing(ready, stopping, quorum)) };
        }
        // Spares may fill a job that was taken over while nodes of its last round are missing, whose workers still run.
        let full = ready >= self.terms.max_nodes && (!self.was_taken_over() || self.all_are_accounted_for());
        let deadline = if full { now } else { self.start_by(since, last_call, now) }.max(self.not_before(since));
        if now >= deadline {
            return self.start(now);
        }
        self.phase = RoundPhase::Gathering { since, last_call: Some(deadline) };
        let have = if ready == 1 { "node has" } else { "nodes have" };
        self.announce(match &self.view {
            Some(view) => format!("{ready} {have} joined, the previous round had {}", view.size()),
            None => format!(
                "{ready} {have} joined, up to {} may join within the last call of {} s",
                self.terms.max_nodes,
                self.terms.last_call.as_secs_f64()
            ),
        })
    }

    /// Nodes that wait while a round runs, and may take over ranks of `lost` ones; and how many of them may.
    pub fn standbys(&self, lost: &[NodeId]) -> (Vec<NodeId>, usize) {
        // Of a round that is not committed yet it is not known who may go on.
        if !self.terms.step_recovery || !self.is_running() || self.terms.elastic() && self.pending.is_some() {
            return (Vec::new(), 0);
        }
        let (welcome, _) = self.candidates(|state| state != NodeState::Draining);
        let waits = |id: &NodeId| {
            let is_ready = |node: &Node| node.state == NodeState::Ready && !node.facts.foreign;
            !self.has_member(*id) && self.nodes.get(id).is_some_and(is_ready)
        };
        let left = self.members.iter().filter(|member| !lost.contains(member)).count();
        (welcome.into_iter().filter(waits).collect(), self.terms.max_nodes.saturating_sub(left))
    }

    /// A coordinator that knows of no round may be one that was started again at the endpoint of a job that has moved: it
    /// is told within a moment, and must not have begun another job by then. And where a coordinator has fallen silent, to
    /// us or to a node that has come from there, it is waited until that one must have ended its workers.
    fn not_before(&self, since: Duration) -> Duration {
        match self.silent_since {
            Some(silent_since) => silent_since + self.terms.fence,
            None if self.terms.elastic() && self.view.is_none() => since + self.terms.settle,
            None => Duration::ZERO,
        }
    }

    /// Whether the last round was led elsewhere.
    fn was_taken_over(&self) -> bool {
        self.terms.elastic() && self.view.is_some() && self.members.is_empty()
    }

    /// Whether no workers of the last round can be alive. Under step recovery it may have had nodes that were called up: only
    /// the coordinator that is lost knew of them.
    fn all_are_accounted_for(&self) -> bool {
        !(self.terms.step_recovery && self.was_taken_over()) && self.unaccounted().is_empty()
    }

    /// Until when further nodes are waited for, where enough are there.
    fn start_by(&self, since: Duration, last_call: Option<Duration>, now: Duration) -> Duration {
        let same_as_before = self.rounds > 0
            && self.members.len() == self.round_size
            && self.members.iter().all(|id| self.state(*id) == Some(NodeState::Ready));
        if same_as_before {
            return now;
        }
        match &self.view {
            // Whoever is missing and known to be gone is not waited for.
            Some(_) if self.terms.elastic() && !self.was_taken_over() => now,
            Some(_) if self.all_are_accounted_for() => now,
            Some(_) => since + self.terms.rejoin_window,
            None => last_call.unwrap_or(now + self.terms.last_call),
        }
    }

    /// Every node of an elastic round has answered: was it a failure or a change, and is there a budget left for it?
    fn charge_budget(&mut self) -> Option<String> {
        let stop_reason = self.stop_reason.take()?;
        let reason = match (stop_reason.change, stop_reason.failure) {
            (Some(change), _) if self.changes >= self.terms.max_changes => {
                let limit = self.terms.max_changes;
                return Some(format!("{change}; all {limit} membership changes are used up"));
            }
            (Some(change), _) => {
                self.changes += 1;
                change
            }
            (None, Some(cause)) if self.restarts >= self.terms.max_restarts => {
                return Some(self.out_of_restarts(&cause));
            }
            (None, cause) => {
                self.restarts += 1;
                let cause = cause.unwrap_or_default();
                format!("{cause}; restart {} of {}", self.restarts, self.terms.max_restarts)
            }
        };
        self.reason = Some(reason);
        None
    }

    /// Who of those that stand so may form a round, and why they may not go on without others, if so. Whoever comes from
    /// a later round that may be committed, and of which too few are here, is left out: then it is as if it had not come.
    pub(super) fn candidates(&self, matches: impl Fn(NodeState) -> bool) -> (Vec<NodeId>, Option<String>) {
        let mut nodes: BTreeMap<NodeId, &Node> =
            self.nodes.iter().filter(|(_, node)| matches(node.state)).map(|(id, node)| (*id, node)).collect();
        let mut why = None;
        while let Some((vote, unmet)) = self.unmet_vote(nodes.values().copied(), nodes.values().copied()) {
            nodes.retain(|_, node| !node.facts.votes.contains(&vote));
            why = Some(unmet);
        }
        let quorum_objection = self.quorum_objection(nodes.values().copied());
        (nodes.into_keys().collect(), quorum_objection.map(|quorum_objection| why.unwrap_or(quorum_objection)))
    }

    /// Why these nodes may not go on alone after the newest committed round, if so.
    pub(super) fn quorum_objection<'a>(&self, nodes: impl Iterator<Item = &'a Node>) -> Option<String> {
        let view = self.view.as_ref().filter(|_| self.terms.elastic())?;
        view.quorum_objection(self.terms.quorum, &Presence::of(nodes.map(|node| &node.facts)))
    }

    /// A later round that one of `nodes` has come from, and of which `witnesses` are too few, with the reason.
    fn unmet_vote<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Node>,
        witnesses: impl Iterator<Item = &'a Node>,
    ) -> Option<(Vote, String)> {
        let mut votes = nodes.flat_map(|node| self.votes(&node.facts)).peekable();
        votes.peek()?;
        let presence = Presence::of(witnesses.map(|node| &node.facts));
        votes.find_map(|vote| {
            let reason = RoundView::of_vote(vote, &self.ended).quorum_objection(self.terms.quorum, &presence)?;
            Some((vote.clone(), reason))
        })
    }

    /// The rounds a node has come from that are later than the newest committed one.
    pub(super) fn votes<'a>(&self, facts: &'a NodeFacts) -> impl Iterator<Item = &'a Vote> {
        let newest = self.round();
        facts.votes.iter().filter(move |vote| Some(vote.round) > newest)
    }

    fn announce(&mut self, reason: String) -> Vec<Action> {
        if self.announced.as_ref() == Some(&reason) {
            return Vec::new();
        }
        self.announced = Some(reason.clone());
        vec![Action::Waiting { node: None, reason }]
    }

    fn missing(&self, ready: usize, stopping: usize, quorum: Option<String>) -> String {
        if stopping > 0 {
            return format!("waiting for {stopping} of {} nodes to stop their workers", ready + stopping);
        }
        let name = |node: &Node| format!("{}, pid {}", node.facts.address, node.facts.process);
        let mut present: Vec<String> = self.nodes.values().take(SHOWN).map(name).collect();
        if self.nodes.len() > SHOWN {
            present.push(format!("and {} more", self.nodes.len() - SHOWN));
        }
        let needed = self.terms.min_nodes;
        let more = needed.saturating_sub(ready);
        if more == 0
            && let Some(quorum) = quorum
        {
            return quorum;
        }
        let plural = if more == 1 { "" } else { "s" };
        let mut text = format!("waiting for {more} more node{plural}: {ready} of {needed} have joined");
        if !present.is_empty() {
            text.push_str(&format!(" ({})", present.join("; ")));
        }
        if self.terms.fixed_ranks {
            let absent: Vec<String> = (0..self.terms.max_nodes)
                .filter(|rank| !self.nodes.values().any(|node| node.facts.node_rank == *rank))
                .map(|rank| rank.to_string())
                .collect();
            text.push_str(&format!("; missing: node rank {}", absent.join(", ")));
        } else if let Some(gone) = self.view.as_ref().and_then(RoundView::names_of_the_gone) {
            text.push_str(&format!("; gone: {gone}"));
        }
        text
    }

    fn start(&mut self, now: Duration) -> Vec<Action> {
        let previous_rank = |launcher| self.view.as_ref().map_or(usize::MAX, |view| view.precedence(launcher));
        let (candidates, _) = self.candidates(|state| state == NodeState::Ready);
        let candidates = candidates.iter().filter_map(|id| Some((*id, self.nodes.get(id)?)));
        // A number is given to one committed round at most, so that who was in it can be told by the number.
        let voted =
            candidates.clone().flat_map(|(_, node)| self.votes(&node.facts)).map(|vote| vote.round.saturating_add(1));
        let round = voted.max().unwrap_or(0).max(self.rounds);
        let candidates = candidates.map(|(id, node)| RankCandidate {
            node: id,
            facts: &node.facts,
            first: node.facts.host && !self.terms.fixed_ranks,
            previous_rank: if self.terms.elastic() { previous_rank(node.facts.launcher) } else { usize::MAX },
        });
        let (members, world_size) = assign_ranks(candidates.collect(), self.terms.max_nodes);
        self.rounds = round.saturating_add(1);
        self.members = members.iter().map(|member| member.node).collect();
        self.round_size = self.members.len();
        self.silent_since = None;
        let mut launchers = Vec::with_capacity(members.len());
        for id in &self.members {
            if let Some(node) = self.nodes.get_mut(id) {
                node.state = NodeState::Running;
                launchers.push((node.facts.launcher, node.facts.host));
            }
        }
        self.pending = Some((RoundView::started(round, &launchers), BTreeSet::new()));
        self.announced = None;
        self.phase = RoundPhase::Running { settled: None };
        let (restarts, changes, reason) = (self.restarts, self.changes, self.reason.take());
        let mut actions = vec![Action::Start { round, restarts, changes, members, world_size, reason }];
        actions.extend(self.commit(now));
        actions
    }

    pub(super) fn started(&mut self, node: NodeId, now: Duration) -> Vec<Action> {
        let launcher = self.nodes.get(&node).map(|node| node.facts.launcher);
        if let (true, Some(launcher), Some((_, started))) = (self.is_running(), launcher, &mut self.pending) {
            started.insert(launcher);
            return self.commit(now);
        }
        Vec::new()
    }

    /// A node let the order to start pass, because it was away when it came.
    pub(super) fn not_started(&mut self, id: NodeId, now: Duration) -> Vec<Action> {
        let Some(node) = self.nodes.get_mut(&id).filter(|_| self.terms.elastic()) else { return Vec::new() };
        node.state = NodeState::Ready;
        let cause = format!("node {} was suspended and did not start", describe(&node.facts));
        self.stop_for_change(cause, now)
    }

    /// Takes the new round for the one that counts, once nobody can take over the round before it any more.
    fn commit(&mut self, now: Duration) -> Vec<Action> {
        let Some((view, started)) = &self.pending else { return Vec::new() };
        let witnesses = self.nodes.values().filter(|node| started.contains(&node.facts.launcher));
        let members = self.members.iter().filter_map(|id| self.nodes.get(id));
        if self.quorum_objection(witnesses.clone()).is_some() || self.unmet_vote(members, witnesses).is_some() {
            return Vec::new();
        }
        let round = view.round();
        self.view = self.pending.take().map(|(view, _)| view);
        for id in &self.members {
            if let Some(node) = self.nodes.get_mut(id) {
                node.facts.last_round = Some(round);
                node.facts.votes.clear();
            }
        }
        if !self.terms.elastic() {
            return Vec::new();
        }
        let mut actions = vec![Action::Commit { round }];
        // Whoever was left out because of an earlier round may be welcome now.
        let (welcome, _) = self.candidates(|state| state == NodeState::Ready);
        if let Some(node) = welcome.first().filter(|_| self.members.len() < self.terms.max_nodes) {
            actions.extend(self.newcomer(*node, now));
        }
        actions
    }
}
