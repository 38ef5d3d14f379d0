//! How this node's workers are stopped, because one failed, on a signal or by order of the coordinator, and what follows
//! when the last one is gone.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::Supervisor;
use super::phase::{AfterStop, Phase, RunEnd};
use super::timers::Escalation;
use crate::console::Note;
use crate::control::ToCoordinator;
use crate::failure;
use crate::failure::cause::Cause;

impl Supervisor<'_> {
    /// Where workers have failed, their peers here are stopped, and the coordinator decides what follows: at once if
    /// one failed by itself, else when the rank is known because of which they did, or some seconds later. Until then the
    /// coordinator may tell of a failure on another node.
    pub(super) fn report_root_cause(&mut self) {
        if !matches!(self.phase, Phase::Running) || self.rounds.first_failure().is_none() {
            return;
        }
        self.rounds.ends.extend(self.recovery.take_losses());
        let Some(seen) = self.rounds.first_failure() else { return };
        let is_final = self.timers.await_root_cause(Instant::now());
        let Some(cause) = self.rounds.root_cause(is_final) else { return };
        let ends = &self.rounds.ends;
        let known = cause.rank().and_then(|rank| ends.iter().find(|end| end.rank == rank));
        let mut first = known.unwrap_or(seen).clone();
        let mut sentence = failure::explain(&cause, ends);
        let not_recovered = self.why_not_recovered();
        if let Some(why) = &not_recovered {
            sentence = format!("{sentence}; {why}");
        }
        let (rank, exit) = (cause.rank(), known.map(|end| end.exit.0));
        self.workers.hang.failed(rank.unwrap_or(first.rank));
        self.reports.events.note("worker_failed", json!({"rank": rank, "exit": exit, "cause": sentence}));
        self.note_stop(&sentence);
        self.stop(Signal::SIGTERM, self.plan.grace_period, None);
        let is_plain = matches!(cause, Cause::Failed { .. }) && not_recovered.is_none();
        first.sentence = (!is_plain).then_some(sentence);
        self.leadership.send(&ToCoordinator::Failed(Box::new(first)));
    }

    /// The workers are about to end, for this reason.
    pub(super) fn note_stop(&mut self, reason: &str) {
        self.rounds.stop(reason, self.workers.any(), &self.reports.events);
    }

    /// Tells all workers to end.
    pub(super) fn stop(&mut self, signal: Signal, grace_period: Duration, then: Option<AfterStop>) {
        self.workers.signal(signal);
        self.timers.start_stop(Instant::now(), grace_period);
        self.phase = Phase::Stopping { then };
    }

    /// Carries out what the coordinator decided.
    pub(super) fn apply(&mut self, next: AfterStop) -> Option<RunEnd> {
        match &mut self.phase {
            Phase::Stopping { then } => {
                // A signal to this launcher has the last word.
                if !matches!(then, Some(AfterStop::End(RunEnd { signal: Some(_), .. }))) {
                    *then = Some(next);
                }
            }
            Phase::Running => self.stop(Signal::SIGTERM, self.plan.grace_period, Some(next)),
            Phase::Waiting | Phase::Finished => self.phase = Phase::Stopping { then: Some(next) },
        }
        self.finish_stop_unless_alive()
    }

    pub(super) fn handle_signal(&mut self, signal: Signal) -> Option<RunEnd> {
        if let Phase::Stopping { then: Some(AfterStop::End(RunEnd { signal: Some(_), .. })) } = &self.phase {
            self.console.note(Note::Warning(format!("{signal} again: killing the workers")));
            self.timers.escalate_now(Instant::now());
            return None;
        }
        let reason = format!("received {signal}");
        let then =
            if matches!(self.phase, Phase::Waiting) { "leaving the job" } else { "forwarding it to the workers" };
        self.console.note(Note::Progress(format!("{reason}: {then}")));
        self.note_stop(&reason);
        self.leadership.send(&if self.plan.terms.elastic() {
            ToCoordinator::Draining { cause: reason.clone() }
        } else {
            ToCoordinator::Leaving { cause: reason.clone(), failed: false }
        });
        let end = RunEnd { success: false, reason: Some(reason), signal: Some(signal) };
        self.stop(signal, self.plan.shutdown_timeout, Some(AfterStop::End(end)));
        self.finish_stop_unless_alive()
    }

    /// Kills workers that have ignored the signal to end for too long, and abandons those that cannot be killed.
    pub(super) fn escalate_stop(&mut self) -> Option<RunEnd> {
        let escalation = self.timers.escalation(Instant::now())?;
        let pids = self.workers.alive_pids();
        match escalation {
            Escalation::Kill => {
                let text = format!("{} workers ignore the signal to stop: killing them", pids.len());
                self.console.note(Note::Warning(text));
                self.workers.signal(Signal::SIGKILL);
                None
            }
            Escalation::Abandon => {
                self.console.note(Note::Warning(format!(
                    "processes {pids:?} did not exit even after SIGKILL and are left behind; they may be stuck in a driver"
                )));
                self.workers.reap(self.console);
                self.finish_stop()
            }
        }
    }

    /// All workers are gone: do what was decided, if it is known yet.
    pub(super) fn finish_stop(&mut self) -> Option<RunEnd> {
        let Phase::Stopping { then } = &self.phase else { return None };
        match then.clone()? {
            AfterStop::Rejoin => {
                self.phase = Phase::Waiting;
                self.timers.stop_ended();
                self.leadership.send(&ToCoordinator::Stopped {});
                None
            }
            AfterStop::End(end) => Some(end),
        }
    }

    /// As [`Supervisor::finish_stop`], unless workers are still alive.
    pub(super) fn finish_stop_unless_alive(&mut self) -> Option<RunEnd> {
        if self.workers.any() { None } else { self.finish_stop() }
    }
}
