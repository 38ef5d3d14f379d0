//! `--recover step` at the coordinator: carries out the decisions of [`Recovery`] for the round that runs.
//!
//! Ranks and coordinator meet in keys of the round's generation of the store, all below `instep/recovery/`:
//!
//! ```text
//! latest           {"generation": 2, "lost": [3], "incarnations": {"1": 1, "3": 1}, "reason": "rank 3 ..."}      set here
//! generation/2     the same; or {"generation": 2, "abandoned": "why all restart"} where there will be none       set here
//! session/0        which incarnation of rank 0 waits for generations                                     set by each rank
//! resumed/2        {"step": 17}: the ranks of generation 2 have met, and do this step next                set by the ranks
//! impossible       why a rank cannot recover                                                              set by the ranks
//! waiting          {"rank": 0, "generation": 2}: a rank has lost a peer and waits for this generation     set by the ranks
//! failed/1         {"incarnation": 0, "step": 17}: in which step this process of rank 1 fails             set by each rank
//! ```
//!
//! What ranks write is not trusted: only that a key is there counts, a step that is a number, or a line of text.

use std::collections::BTreeMap;
use std::time::Instant;

use instep_policy::membership::{Event, NodeId};
use instep_policy::recovery::{Decision, Loss, LossKind, Recovery};
use instep_store::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Coordinator;
use crate::control::{FromCoordinator, LostWorker, Replace};
use crate::failure::Failure;

/// Keys as the store has them: with the `/` that clients put before each.
const PREFIX: &str = "/instep/recovery";
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

/// The recovery of one round.
#[derive(Debug)]
pub(super) struct RoundRecovery {
    policy: Recovery,
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
    /// The ranks have been told that there will be no further generation.
    abandoned: bool,
}

impl RoundRecovery {
    pub(super) fn new(world_size: usize, now: Instant) -> RoundRecovery {
        RoundRecovery {
            policy: Recovery::new(world_size),
            arrived: Vec::new(),
            finished: Vec::new(),
            ends: BTreeMap::new(),
            failures: BTreeMap::new(),
            since: now,
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

    fn decide(&mut self, losses: &[Loss], context: &Context<'_>) -> Option<Decision> {
        for loss in losses.iter().filter(|loss| loss.kind == LossKind::OwnError) {
            let said: Option<FailedIn> = read(context, &format!("failed/{}", loss.rank));
            if let Some(said) = said.filter(|said| said.incarnation == loss.incarnation) {
                self.policy.failed_in(loss.rank, loss.incarnation, said.step);
            }
        }
        self.policy.lost(losses, |rank| has_session(context, rank))
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
    /// Does what follows from this batch of messages and from what ranks have written.
    pub(super) fn settle_recovery(&mut self, context: &mut Context<'_>) {
        if self.membership.as_ref().is_some_and(|membership| membership.is_running()) {
            self.read_resumed(context);
            self.settle_finished(context);
            self.settle_losses(context);
            self.read_waiting(context);
            self.read_impossible(context);
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
        let Some(recovery) = &mut self.recovery else { return };
        let arrived = std::mem::take(&mut recovery.arrived);
        let Some((node, _)) = arrived.first() else { return };
        let node = *node;
        let losses: Vec<Loss> = arrived.iter().map(|(_, worker)| loss(worker)).collect();
        let misuses = arrived.iter().filter(|(_, worker)| worker.failure.is_session_misuse());
        let mut refused = misuses.filter_map(|(_, worker)| {
            let Failure { rank, .. } = worker.failure;
            recovery.policy.refused(rank, worker.incarnation, &worker.failure.describe())
        });
        let refused = refused.next();
        recovery.failures.extend(arrived.into_iter().map(|(_, worker)| (worker.failure.rank, worker.failure)));
        recovery.since = context.now;
        let decision = refused.or_else(|| recovery.decide(&losses, context));
        self.perform_recovery(decision, Some(node), context);
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

    /// `node` is where a worker ended, if one did.
    fn perform_recovery(&mut self, decision: Option<Decision>, node: Option<NodeId>, context: &mut Context<'_>) {
        let Some(recovery) = &self.recovery else { return };
        match decision {
            None => {}
            Some(Decision::Replace { generation, incarnations, reason }) => {
                let lost = incarnations.keys().filter_map(|rank| recovery.failures.get(rank));
                let lost = lost.map(Failure::without_output).collect();
                let replace = Replace { generation, incarnations, reason, lost };
                recovery.publish(&replace, context);
                self.broadcast(&FromCoordinator::Replace(Box::new(replace)), context);
            }
            Some(Decision::RestartAll { reason, .. }) => {
                self.failures.extend(recovery.failures.values().cloned());
                if let Some(node) = node {
                    self.handle_event(Event::Failed { node, cause: reason }, context);
                }
            }
            Some(Decision::End { rank, reason }) => {
                self.failures.extend(recovery.failures.get(&rank).cloned());
                self.handle_event(Event::Hopeless { reason }, context);
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
