//! `--recover step` at the coordinator: carries out the decisions of [`Recovery`] for the round that runs.
//!
//! Ranks and coordinator meet in keys of the round's generation of the store, all below `instep/recovery/`:
//!
//! ```text
//! latest           {"generation": 2, "lost": [3], "incarnations": {"1": 1, "3": 1}, "reason": "rank 3 ..."}      set here
//! generation/2     the same; or {"generation": 2, "abandoned": "why all restart"} where there will be none       set here
//! session/0        which incarnation of rank 0 waits for generations                                     set by each rank
//! connecting/2/0   rank 0 knows of generation 2, and connects with the others                             set by each rank
//! resumed/2        {"step": 17}: the ranks of generation 2 have met, and do this step next                set by the ranks
//! impossible       why a rank cannot recover                                                              set by the ranks
//! waiting          {"rank": 0, "generation": 2}: a rank has lost a peer and waits for this generation     set by the ranks
//! failed/1         {"incarnation": 0, "step": 17}: in which step this process of rank 1 fails             set by each rank
//! ```
//!
//! What ranks write is not trusted: only that a key is there counts, a step that is a number, or a line of text.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use instep_policy::membership::{Event, Membership, NodeId, RoundMember};
use instep_policy::recovery::{Decision, Loss, LossKind, NodeLoss, Recovery, RoundNode};
use instep_store::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Coordinator, JoinedNode};
use crate::control::{FromCoordinator, LostWorker, MovedRank, Replace, Start};
use crate::failure::Failure;
use crate::output::fold::describe_ranks;

/// Keys as the store has them: with the `/` that clients put before each.
const PREFIX: &str = "/instep/recovery";
/// When people are told whom the others wait for; and again after twice as long.
const MISSED_AFTER: Duration = Duration::from_secs(10);
/// A longer value is none that a session writes.
const MAX_VALUE_BYTES: usize = 1024;

#[derive(Debug, Deserialize)]
struct Resumed {
    step: u64,
}

#[derive(Debug, Deserialize)]
struct Waiting {
    rank: usize,
    generation: u64,
}

#[derive(Debug, Deserialize)]
struct FailedIn {
    incarnation: u32,
    step: u64,
}

/// A node that is gone.
#[derive(Debug)]
pub(super) struct LostNode {
    pub(super) node: NodeId,
    /// For people.
    pub(super) name: String,
    /// How it was noticed.
    pub(super) cause: String,
    /// It may be alive.
    pub(super) silent: bool,
    /// The coordinator is in its process, and ends with it.
    pub(super) host: bool,
}

impl LostNode {
    /// What membership is told where nobody has its ranks.
    pub(super) fn event(self) -> Event {
        Event::Lost { node: self.node, cause: self.cause, silent: self.silent }
    }

    fn loss(&self) -> NodeLoss {
        NodeLoss { node: self.node, cause: format!("node {} was lost: {}", self.name, self.cause) }
    }
}

/// The recovery of one round.
#[derive(Debug)]
pub(super) struct RoundRecovery {
    policy: Recovery,
    /// Who started which ranks.
    members: Vec<RoundMember>,
    /// What nodes are told that stand by, but for a place of their own; and who has been told, with which.
    unassigned: Start,
    standbys: BTreeMap<NodeId, usize>,
    /// Nodes that were lost in this batch.
    lost_nodes: Vec<LostNode>,
    /// Losses of this batch of messages: those that arrive together are one generation.
    arrived: Vec<(NodeId, LostWorker)>,
    /// Ranks that ended with 0, in this batch.
    finished: Vec<(NodeId, usize)>,
    /// How all of them ended.
    ends: BTreeMap<usize, Failure>,
    /// How each rank was lost last.
    failures: BTreeMap<usize, Failure>,
    /// When the newest loss arrived.
    since: Instant,
    /// How long after it people are told next whom the others wait for.
    missed_after: Duration,
    /// The ranks have been told that there will be no further generation.
    abandoned: bool,
}

impl RoundRecovery {
    pub(super) fn new(
        members: &[RoundMember],
        unassigned: Start,
        joined: &BTreeMap<NodeId, JoinedNode>,
        now: Instant,
    ) -> RoundRecovery {
        let round_node = |member: &RoundMember| {
            let (spares, role) =
                joined.get(&member.node).map(|node| (node.spares, node.role.clone())).unwrap_or_default();
            let ranks = member.first_rank..member.first_rank + member.workers;
            RoundNode { node: member.node, ranks, spares, role }
        };
        RoundRecovery {
            policy: Recovery::new(&members.iter().map(round_node).collect::<Vec<_>>()),
            members: members.to_vec(),
            unassigned,
            standbys: BTreeMap::new(),
            lost_nodes: Vec::new(),
            arrived: Vec::new(),
            finished: Vec::new(),
            ends: BTreeMap::new(),
            failures: BTreeMap::new(),
            since: now,
            missed_after: MISSED_AFTER,
            abandoned: false,
        }
    }

    pub(super) fn lost(&mut self, node: NodeId, workers: Vec<LostWorker>) {
        self.arrived.extend(workers.into_iter().map(|worker| (node, worker)));
    }

    pub(super) fn finished(&mut self, node: NodeId, ends: Vec<Failure>) {
        self.finished.extend(ends.iter().map(|end| (node, end.rank)));
        self.ends.extend(ends.into_iter().map(|end| (end.rank, end)));
    }

    /// What ranks of the generations under way have said: the newest of them that resumed, and its step.
    fn resumed(&self, context: &Context<'_>) -> Option<(u64, u64)> {
        let step = |generation: u64| {
            let resumed: Resumed = read(context, &format!("resumed/{generation}"))?;
            Some((generation, resumed.step))
        };
        self.policy.unresumed().rev().find_map(step)
    }

    /// How ranks were lost matters until the newest generation has resumed.
    fn forget_failures(&mut self, resumed: u64) {
        if resumed == self.policy.generation() {
            self.failures.clear();
        }
    }

    /// When it is to be looked whom the others wait for.
    pub(super) fn missed_at(&self) -> Option<Instant> {
        (!self.policy.unresumed().is_empty() && !self.abandoned).then(|| self.since + self.missed_after)
    }

    /// Whom the others wait for, for people, if that takes long.
    fn missed(&mut self, context: &Context<'_>) -> Option<String> {
        self.missed_at().filter(|at| *at <= context.now)?;
        self.missed_after *= 2;
        let generation = self.policy.generation();
        let has_come = |rank: &usize| {
            let key = format!("{PREFIX}/connecting/{generation}/{rank}");
            context.get(key.as_bytes()).is_some() || self.ends.contains_key(rank)
        };
        let world_size = self.members.iter().map(|member| member.workers).sum();
        let missing: Vec<usize> = (0..world_size).filter(|rank| !has_come(rank)).collect();
        let whom = match missing.as_slice() {
            [] => "all ranks are there, and connect or hand on the state".to_owned(),
            ranks => format!("the others wait for {}: starting, or still computing", describe_ranks(ranks)),
        };
        let seconds = context.now.saturating_duration_since(self.since).as_secs();
        Some(format!("not recovered after {seconds} s (generation {generation}): {whom}; see `instep diagnose`"))
    }

    fn decide(&mut self, losses: &[Loss], nodes: &[NodeLoss], context: &Context<'_>) -> Option<Decision> {
        for loss in losses.iter().filter(|loss| loss.kind == LossKind::OwnError) {
            let said: Option<FailedIn> = read(context, &format!("failed/{}", loss.rank));
            if let Some(said) = said.filter(|said| said.incarnation == loss.incarnation) {
                self.policy.failed_in(loss.rank, loss.incarnation, said.step);
            }
        }
        self.policy.lost(losses, nodes, |rank| has_session(context, rank))
    }

    /// What a node is told that stands by, unless it has been. Each has a number of its own, as nodes of the round do: ranks
    /// tell by it which of them share a node.
    fn stand_by(&mut self, node: NodeId) -> Option<Start> {
        if self.standbys.contains_key(&node) {
            return None;
        }
        let group_rank = self.unassigned.group_rank + self.standbys.len();
        self.standbys.insert(node, group_rank);
        Some(Start { group_rank, ..self.unassigned.clone() })
    }

    /// A node without ranks, which has room for as many as it would start itself, and for those of its spares.
    fn standby(&self, node: NodeId, joined: &BTreeMap<NodeId, JoinedNode>) -> Option<RoundNode> {
        let JoinedNode { workers, spares, role, .. } =
            joined.get(&node).filter(|_| self.standbys.contains_key(&node))?;
        Some(RoundNode { node, ranks: 0..0, spares: workers + spares, role: role.clone() })
    }

    /// What a node is told of a rank that it has from now on.
    fn moved_rank(&self, rank: usize, to: &JoinedNode) -> Option<MovedRank> {
        let of = self.members.iter().rfind(|member| member.first_rank <= rank)?;
        let local_rank = rank - of.first_rank;
        Some(MovedRank {
            rank,
            launcher: to.launcher,
            address: to.address.clone(),
            local_rank,
            local_world_size: of.workers,
            group_rank: of.group_rank,
            role_rank: of.first_role_rank + local_rank,
        })
    }

    /// Tells the ranks of a new generation.
    fn publish(&self, replace: &Replace, context: &mut Context<'_>) {
        let value = json!({
            "generation": replace.generation,
            "lost": replace.incarnations.keys().collect::<Vec<_>>(),
            "incarnations": self.policy.incarnations(),
            "reason": replace.reason,
        });
        let value = value.to_string().into_bytes();
        context.set(format!("{PREFIX}/latest").as_bytes(), &value);
        context.set(format!("{PREFIX}/generation/{}", replace.generation).as_bytes(), &value);
    }
}

/// What a rank has written, if it can be read.
fn read<T: DeserializeOwned>(context: &Context<'_>, key: &str) -> Option<T> {
    let value = context.get(format!("{PREFIX}/{key}").as_bytes())?;
    serde_json::from_slice(Some(value).filter(|value| value.len() <= MAX_VALUE_BYTES)?).ok()
}

/// Whether a rank's script waits for generations.
fn has_session(context: &Context<'_>, rank: usize) -> bool {
    context.get(format!("{PREFIX}/session/{rank}").as_bytes()).is_some()
}

/// What a rank has written for people, on one line.
fn line_of(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(&value[..value.len().min(MAX_VALUE_BYTES)]);
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn loss(worker: &LostWorker) -> Loss {
    let failure = &worker.failure;
    let kind = match failure.exit.0 {
        _ if failure.pid == 0 => LossKind::NotStarted,
        _ if worker.hung => LossKind::OwnError,
        ..0 => LossKind::Signal,
        _ => LossKind::OwnError,
    };
    Loss { rank: failure.rank, incarnation: worker.incarnation, kind, cause: failure.describe() }
}

impl Coordinator {
    /// The recovery of the round, while that runs.
    pub(super) fn running_recovery(&mut self) -> Option<&mut RoundRecovery> {
        let runs = self.membership.as_ref().is_some_and(Membership::is_running);
        self.recovery.as_mut().filter(|_| runs)
    }

    /// Keeps lost nodes whose ranks may move until the batch of messages is read; gives those that are membership's.
    pub(super) fn keep_for_recovery(&mut self, lost: Vec<LostNode>) -> Vec<LostNode> {
        let Some(membership) = self.membership.as_ref().filter(|membership| membership.is_running()) else {
            return lost;
        };
        let Some(recovery) = &mut self.recovery else { return lost };
        let may_move = |lost: &LostNode| recovery.policy.has_node(lost.node) && !lost.host;
        let (kept, mut others): (Vec<LostNode>, Vec<LostNode>) = lost.into_iter().partition(may_move);
        let gone = recovery.lost_nodes.iter().chain(&kept).map(|lost| (lost.node, lost.silent));
        match membership.may_continue_without(&gone.collect::<Vec<_>>()) {
            true => recovery.lost_nodes.extend(kept),
            false => others.extend(kept),
        }
        others
    }

    /// Does what follows from this batch of messages and from what ranks have written.
    pub(super) fn settle_recovery(&mut self, context: &mut Context<'_>) {
        if self.running_recovery().is_some() {
            self.read_resumed(context);
            self.settle_finished(context);
            self.settle_losses(context);
            self.read_waiting(context);
            self.read_impossible(context);
            self.tell_standbys(context);
            if let Some(reason) = self.recovery.as_mut().and_then(|recovery| recovery.missed(context)) {
                self.broadcast(&FromCoordinator::Waiting { reason }, context);
            }
        }
        // Those that were lost when the round had ended for another reason.
        let left = self.recovery.as_mut().map(|recovery| std::mem::take(&mut recovery.lost_nodes));
        for lost in left.unwrap_or_default() {
            self.handle_event(lost.event(), context);
        }
    }

    /// Nodes that wait while the round runs learn what they need to take over ranks of it.
    fn tell_standbys(&mut self, context: &mut Context<'_>) {
        let (Some(membership), Some(recovery)) = (&self.membership, &mut self.recovery) else { return };
        let waiting = membership.standbys(&[]).0.into_iter();
        let able = waiting.filter(|node| self.joined.get(node).is_some_and(|joined| joined.stands_by));
        let news: Vec<(NodeId, Start)> = able.filter_map(|node| Some((node, recovery.stand_by(node)?))).collect();
        for (node, start) in news {
            self.send_to(node, &FromCoordinator::StandBy(Box::new(start)), context);
        }
    }

    fn read_resumed(&mut self, context: &mut Context<'_>) {
        let Some(recovery) = &mut self.recovery else { return };
        let Some((generation, step)) = recovery.resumed(context) else { return };
        let time = context.now.saturating_duration_since(recovery.since);
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let decision = recovery.policy.resumed(generation, step);
        self.broadcast(&FromCoordinator::Recovered { generation, step, milliseconds }, context);
        self.perform_recovery(decision, None, context);
        self.recovery.iter_mut().for_each(|recovery| recovery.forget_failures(generation));
    }

    fn settle_finished(&mut self, context: &mut Context<'_>) {
        let Some(recovery) = &mut self.recovery else { return };
        for (node, rank) in std::mem::take(&mut recovery.finished) {
            let decision = self.recovery.as_mut().and_then(|recovery| recovery.policy.finished(rank));
            self.perform_recovery(decision, Some(node), context);
        }
    }

    fn settle_losses(&mut self, context: &mut Context<'_>) {
        let Some(recovery) = self.running_recovery() else { return };
        let arrived = std::mem::take(&mut recovery.arrived);
        let lost_nodes = std::mem::take(&mut recovery.lost_nodes);
        let first = arrived.first().map(|(node, _)| *node).or(lost_nodes.first().map(|lost| lost.node));
        let Some(first) = first else { return };
        // Machines that come and go are no failure of an elastic job.
        let only_nodes = arrived.is_empty() && self.settings.terms.elastic();
        let Some(recovery) = self.running_recovery() else { return };
        let losses: Vec<Loss> = arrived.iter().map(|(_, worker)| loss(worker)).collect();
        let nodes: Vec<NodeLoss> = lost_nodes.iter().map(LostNode::loss).collect();
        let misuses = arrived.iter().filter(|(_, worker)| worker.failure.is_session_misuse());
        let mut refused = misuses.filter_map(|(_, worker)| {
            let Failure { rank, .. } = worker.failure;
            recovery.policy.refused(rank, worker.incarnation, &worker.failure.describe())
        });
        let refused = refused.next();
        recovery.failures.extend(arrived.into_iter().map(|(_, worker)| (worker.failure.rank, worker.failure)));
        (recovery.since, recovery.missed_after) = (context.now, MISSED_AFTER);
        if let (Some(membership), Some(recovery)) = (&self.membership, &mut self.recovery) {
            let (standbys, most) = membership.standbys(&nodes.iter().map(|loss| loss.node).collect::<Vec<_>>());
            let standbys = standbys.into_iter().filter_map(|node| recovery.standby(node, &self.joined));
            recovery.policy.stand_by(&standbys.collect::<Vec<_>>(), most);
        }
        let Some(recovery) = self.running_recovery() else { return };
        let decision = refused.or_else(|| recovery.decide(&losses, &nodes, context));
        let moves = matches!(decision, Some(Decision::Replace { .. }));
        self.perform_recovery(decision, Some(first).filter(|_| !only_nodes), context);
        for lost in lost_nodes {
            let event = match (moves, lost) {
                (true, LostNode { node, cause, silent, .. }) => Event::Replaced { node, cause, silent },
                (false, lost) => lost.event(),
            };
            self.handle_event(event, context);
        }
    }

    /// A rank waits for a peer that has ended with 0, if one has.
    fn read_waiting(&mut self, context: &mut Context<'_>) {
        let Some(recovery) = self.recovery.as_mut().filter(|recovery| recovery.policy.has_finished_ranks()) else {
            return;
        };
        let Some(Waiting { rank, generation }) = read(context, "waiting") else { return };
        let Some((left, decision)) = recovery.policy.awaits(rank, generation) else { return };
        if let (Some(end), Decision::RestartAll { reason, .. }) = (recovery.ends.get(&left), &decision) {
            recovery.failures.insert(left, Failure { sentence: Some(reason.clone()), ..end.clone() });
        }
        let node = self.joined.keys().next().copied();
        self.perform_recovery(Some(decision), node, context);
    }

    fn read_impossible(&mut self, context: &mut Context<'_>) {
        let Some(recovery) = &mut self.recovery else { return };
        let Some(why) = context.get(format!("{PREFIX}/impossible").as_bytes()).map(line_of) else { return };
        let decision = recovery.policy.impossible(&why);
        let node = self.joined.keys().next().copied();
        self.perform_recovery(decision, node, context);
    }

    /// A node has a rank that hangs. It is killed where that helps: its peers wait for generations, and have the state.
    pub(super) fn handle_hung(&mut self, node: NodeId, rank: usize, incarnation: u32, context: &mut Context<'_>) {
        let Some(recovery) = &self.recovery else { return };
        let is_running = self.membership.as_ref().is_some_and(|membership| membership.is_running());
        if is_running && recovery.policy.would_replace(rank, incarnation, |rank| has_session(context, rank)) {
            self.send_to(node, &FromCoordinator::Kill { rank, incarnation }, context);
        }
    }

    /// `node` is one that was lost, or where a worker ended; `None` where that is no failure.
    fn perform_recovery(&mut self, decision: Option<Decision>, node: Option<NodeId>, context: &mut Context<'_>) {
        let Some(recovery) = &self.recovery else { return };
        match decision {
            None => {}
            Some(Decision::Replace { generation, incarnations, moved, reason }) => {
                let lost = incarnations.keys().filter_map(|rank| recovery.failures.get(rank));
                let lost = lost.map(Failure::without_output).collect();
                let promoted: BTreeSet<NodeId> = moved.values().copied().collect();
                let to = |(rank, node)| recovery.moved_rank(rank, self.joined.get(&node)?);
                let moved = moved.into_iter().filter_map(to).collect();
                let replace = Replace { generation, incarnations, moved, reason, lost };
                recovery.publish(&replace, context);
                self.broadcast(&FromCoordinator::Replace(Box::new(replace)), context);
                for node in promoted {
                    let is_member = self.membership.as_ref().is_some_and(|membership| membership.has_member(node));
                    if !is_member {
                        self.handle_event(Event::Promoted { node }, context);
                    }
                }
            }
            Some(Decision::RestartAll { reason, .. }) => {
                self.failures.extend(recovery.failures.values().cloned());
                match node {
                    Some(node) => self.handle_event(Event::Failed { node, cause: reason }, context),
                    None => self.broadcast(&FromCoordinator::Waiting { reason }, context),
                }
            }
            Some(Decision::End { rank, reason }) => {
                self.failures.extend(recovery.failures.get(&rank).cloned());
                self.handle_event(Event::Unrecoverable { reason }, context);
            }
        }
    }

    /// The round ends for this reason: ranks that wait for the next generation are told that there will be none.
    pub(super) fn abandon_recovery(&mut self, reason: &str, context: &mut Context<'_>) {
        let Some(recovery) = self.recovery.as_mut().filter(|recovery| !recovery.abandoned) else { return };
        recovery.abandoned = true;
        let generation = recovery.policy.generation() + 1;
        let value = json!({"generation": generation, "abandoned": reason}).to_string();
        context.set(format!("{PREFIX}/generation/{generation}").as_bytes(), value.as_bytes());
    }
}
