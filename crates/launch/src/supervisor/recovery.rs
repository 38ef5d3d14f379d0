//! `--recover step` on this node: workers that were lost are told to the coordinator and replaced when it says so, while
//! their peers run.
//!
//! Which losses it decides about: workers that failed by themselves. One that failed because of another rank had no session
//! to wait in, so that it ends the round as it would without recovery, and the rank that was lost is named as the cause.

use std::collections::BTreeMap;
use std::time::Instant;

use instep_policy::membership::LauncherId;
use nix::sys::signal::Signal;
use serde_json::json;

use super::phase::Phase;
use super::{LaunchError, Supervisor};
use crate::console::Note;
use crate::control::{LostWorker, MovedRank, Replace, Start, ToCoordinator};
use crate::failure::Failure;
use crate::failure::hang_detector::HungRank;
use crate::output::fold::describe_ranks;
use crate::workers::environment::Incarnation;

/// What this node knows of the losses of its job.
#[derive(Debug, Default)]
pub(super) struct StepRecovery {
    /// Ranks of this node that were lost and have no process yet, and since when.
    awaited: BTreeMap<usize, Instant>,
    /// How ranks ended, here and elsewhere, since the job last resumed.
    losses: Vec<Failure>,
    /// Ranks of this node that hang, and which of their processes.
    hung: BTreeMap<usize, (u32, HungRank)>,
    /// The round that runs while this node waits: it may get ranks of it.
    standby: Option<Start>,
    /// Ranks replaced, over all nodes and rounds.
    pub(super) replacements: u64,
    /// How often the ranks met again after that.
    pub(super) recoveries: u64,
}

impl StepRecovery {
    pub(super) fn round_started(&mut self) {
        self.awaited.clear();
        self.losses.clear();
        self.hung.clear();
        self.standby = None;
    }

    /// Whether a rank of this node waits for its next process.
    pub(super) fn awaits_replacement(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// The round that runs without this node, for which it keeps spares while it waits.
    pub(super) fn standby(&self) -> Option<&Start> {
        self.standby.as_ref()
    }

    /// The losses that may have caused a failure.
    pub(super) fn take_losses(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.losses)
    }
}

impl Supervisor<'_> {
    /// Tells the coordinator of workers that ended; gives those about which it does not decide.
    pub(super) fn report_losses(&mut self, ended: Vec<Failure>) -> Vec<Failure> {
        if !self.plan.terms.step_recovery || !matches!(self.phase, Phase::Running) {
            return ended;
        }
        let by_itself = |end: &Failure| !end.exit.success() && end.blame.is_none();
        let (lost, others): (Vec<Failure>, Vec<Failure>) = ended.into_iter().partition(by_itself);
        let finished = others.iter().filter(|end| end.exit.success());
        let ends: Vec<Failure> = finished.map(Failure::without_output).collect();
        if !ends.is_empty() {
            self.leadership.send(&ToCoordinator::RanksFinished { ends });
        }
        let lost: Vec<LostWorker> = lost.into_iter().map(|failure| self.lost_worker(failure)).collect();
        self.send_losses(lost);
        others
    }

    fn lost_worker(&mut self, mut failure: Failure) -> LostWorker {
        let incarnation = self.workers.incarnation(failure.local_rank);
        let hung = self.recovery.hung.remove(&failure.rank).filter(|(of, _)| *of == incarnation);
        let hung = hung.filter(|_| failure.exit.0 == -(Signal::SIGKILL as i32)).map(|(_, hung)| hung);
        if let Some(hung) = &hung {
            failure.sentence = Some(hung.describe(&failure.host));
        }
        LostWorker { incarnation, hung: hung.is_some_and(|hung| !hung.stopped), failure }
    }

    /// A rank of this node keeps the others waiting: the coordinator knows whether a replacement would help.
    pub(super) fn report_hung(&mut self, hung: HungRank) {
        let Some(incarnation) = self.workers.alive_incarnation(hung.process) else { return };
        if matches!(self.phase, Phase::Running) {
            let rank = hung.rank;
            self.recovery.hung.insert(rank, (incarnation, hung));
            self.leadership.send(&ToCoordinator::Hung { rank, incarnation });
        }
    }

    /// Kills a rank that hangs: its end is a loss like any other.
    pub(super) fn kill_hung(&mut self, rank: usize, incarnation: u32) {
        let hung = self.recovery.hung.get(&rank).filter(|(of, _)| *of == incarnation);
        if let (Some((_, hung)), Phase::Running) = (hung, &self.phase) {
            self.workers.kill(hung.process);
        }
    }

    fn send_losses(&mut self, workers: Vec<LostWorker>) {
        if workers.is_empty() {
            return;
        }
        for LostWorker { incarnation, failure, .. } in &workers {
            let (rank, exit) = (failure.rank, failure.exit.0);
            let cause = failure.describe();
            let lost = json!({"rank": rank, "incarnation": incarnation, "exit": exit, "cause": cause});
            self.reports.events.note("rank_lost", lost);
            self.recovery.awaited.entry(rank).or_insert_with(Instant::now);
            if let Some(drill) = &mut self.workers.drill {
                drill.lost(rank, Instant::now());
            }
            self.recovery.losses.push(failure.clone());
        }
        self.leadership.send(&ToCoordinator::Lost { workers });
    }

    /// A round runs without this node, which may get ranks of it.
    pub(super) fn stand_by(&mut self, start: Start) {
        if matches!(self.phase, Phase::Waiting) {
            self.recovery.standby = Some(start);
        }
    }

    /// Whether this node has stood by, and gets its first ranks.
    pub(super) fn is_promoted(&self, replace: &Replace) -> bool {
        let to_us = |moved: &MovedRank| moved.launcher == self.leadership.launcher();
        matches!(self.phase, Phase::Waiting) && self.recovery.standby.is_some() && replace.moved.iter().any(to_us)
    }

    /// This node becomes one of the round, without workers of its own.
    pub(super) fn begin_if_promoted(&mut self, replace: &Replace) -> Result<(), LaunchError> {
        if !self.is_promoted(replace) {
            return Ok(());
        }
        let Some(start) = self.recovery.standby.take() else { return Ok(()) };
        self.phase = Phase::Running;
        self.timers.round_started();
        self.recovery.round_started();
        self.rounds.start(&start, 0, &self.reports.events);
        self.start_workers(start, 0)?;
        Ok(())
    }

    /// A generation begins: the ranks of this node that were lost get new processes, and so do those that have moved here.
    pub(super) fn replace(&mut self, replace: Replace) {
        // Workers that are told to end have no peers to be replaced for.
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let Replace { generation, incarnations, moved, reason, lost } = replace;
        let what = describe_replacement(&incarnations, &moved);
        self.console.note(Note::Progress(format!("{reason}; {what} (generation {generation})")));
        self.recovery.replacements += incarnations.len() as u64;
        self.recovery.losses.extend(lost.into_iter().filter(|failure| !self.workers.has_rank(failure.rank)));
        let mut not_started = Vec::new();
        for (rank, number) in incarnations {
            let incarnation = Incarnation { number, generation };
            let since = self.recovery.awaited.remove(&rank);
            let to_us = |moved: &&MovedRank| moved.rank == rank && moved.launcher == self.leadership.launcher();
            let moved = moved.iter().find(to_us).cloned();
            let from_another = moved.is_some();
            match self.workers.replace(rank, moved, incarnation, &self.reports, self.console) {
                None => {}
                Some(Ok(worker)) => {
                    let seconds = since.map(|since| since.elapsed().as_secs_f64());
                    let replaced = json!({"rank": rank, "incarnation": number, "generation": generation,
                        "pid": worker.pid, "warm": worker.warm, "hot": worker.hot, "moved": from_another,
                        "seconds": seconds});
                    self.reports.events.note("rank_replaced", replaced);
                }
                Some(Err(failure)) => {
                    not_started.push(LostWorker { incarnation: number, hung: false, failure: *failure });
                }
            }
        }
        self.send_losses(not_started);
    }

    /// The ranks of a generation train again.
    pub(super) fn recovered(&mut self, generation: u64, step: u64, milliseconds: u64) {
        let seconds = milliseconds as f64 / 1000.0;
        let text = format!("recovered in {seconds:.2} s: step {step} is next (generation {generation})");
        self.console.note(Note::Progress(text));
        let recovered = json!({"generation": generation, "step": step, "seconds": seconds});
        self.reports.events.note("step_recovered", recovered);
        self.recovery.recoveries += 1;
        if let Some(drill) = &mut self.workers.drill {
            drill.recovered(step, Instant::now());
        }
        if !self.recovery.awaits_replacement() {
            self.recovery.losses.clear();
        }
    }

    /// What to add to a cause that ends a round under recovery: who failed because of it without waiting in a session.
    pub(super) fn why_not_recovered(&self) -> Option<String> {
        if !self.plan.terms.step_recovery {
            return None;
        }
        let consequences = self.rounds.ends.iter().filter(|end| end.blame.is_some() && !end.exit.success());
        let ranks: Vec<usize> = consequences.map(|end| end.rank).collect();
        let who = (!ranks.is_empty()).then(|| describe_ranks(&ranks))?;
        Some(format!(
            "{who} failed because of it outside of a step of an instep.elastic.Session, so all workers restart"
        ))
    }
}

/// What is done about lost ranks, for people: "replacing it", or "moving rank 2 to a and rank 3 to b".
fn describe_replacement(incarnations: &BTreeMap<usize, u32>, moved: &[MovedRank]) -> String {
    let mut places: BTreeMap<LauncherId, (&str, Vec<usize>)> = BTreeMap::new();
    for rank in moved {
        places.entry(rank.launcher).or_insert((&rank.address, Vec::new())).1.push(rank.rank);
    }
    let mut places: Vec<(&str, Vec<usize>)> = places.into_values().collect();
    places.sort_by_key(|(_, ranks)| ranks.first().copied());
    let moves: Vec<String> =
        places.into_iter().map(|(address, ranks)| format!("{} to {address}", describe_ranks(&ranks))).collect();
    let in_place: Vec<usize> =
        incarnations.keys().filter(|rank| !moved.iter().any(|moved| moved.rank == **rank)).copied().collect();
    match (moves.as_slice(), in_place.as_slice()) {
        ([], [_]) => "replacing it".to_owned(),
        ([], _) => "replacing them".to_owned(),
        (_, []) => format!("moving {}", moves.join(", ")),
        _ => format!("moving {}, replacing {}", moves.join(", "), describe_ranks(&in_place)),
    }
}

#[cfg(test)]
mod tests {
    use super::describe_replacement;
    use crate::control::MovedRank;
    use instep_policy::membership::LauncherId;
    use std::collections::BTreeMap;

    fn moved(rank: usize, launcher: u64, address: &str) -> MovedRank {
        let (launcher, address) = (LauncherId(launcher), address.to_owned());
        MovedRank { rank, launcher, address, local_rank: 0, local_world_size: 1, group_rank: 1, role_rank: rank }
    }

    #[test]
    fn people_are_told_who_goes_where() {
        let lost = |ranks: &[usize]| ranks.iter().map(|rank| (*rank, 1)).collect::<BTreeMap<usize, u32>>();
        for (ranks, moves, text) in [
            (vec![3], vec![], "replacing it"),
            (vec![3, 4], vec![], "replacing them"),
            (vec![2, 3], vec![moved(2, 9, "a"), moved(3, 1, "b")], "moving rank 2 to a, rank 3 to b"),
            (vec![0, 2, 3], vec![moved(2, 9, "a"), moved(3, 9, "a")], "moving ranks 2-3 to a, replacing rank 0"),
        ] {
            assert_eq!(describe_replacement(&lost(&ranks), &moves), text);
        }
    }
}
