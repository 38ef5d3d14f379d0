//! A single task beside the experiments: a command that runs to its end, or a service that people look at.
//!
//! It runs once. Whatever ends it, it is not started again: nobody but its owner knows whether it may run twice.

use std::time::Duration;

use instep_api::states::{AllocationState, LogLevel};
use instep_api::wire::Timestamp;

use super::allocation::{Allocation, Manner, Measure, Phase, Stopping, after};
use super::run_end::End;

/// What happened to it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum SingleEvent {
    /// Slots were given to it; it is being started.
    Assigned,
    /// It has started.
    Running,
    /// It serves.
    Ready,
    /// Somebody uses what it serves.
    Used,
    /// It is to end now.
    Kill {
        /// For people.
        why: String,
    },
    /// Nothing of it is alive any more.
    Ended { end: End },
    /// Time has passed: [`Single::deadline`] says when this is next needed.
    Tick,
}

/// What is to be done now, in this order. Doing something twice changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum SingleEffect {
    /// Take it out of the queue. It is over.
    Withdraw {
        /// For people.
        why: String,
    },
    /// End everything of it.
    Kill {
        /// For people.
        why: String,
    },
    /// A line for its log.
    Note {
        /// How important.
        level: LogLevel,
        text: String,
    },
    /// It has ended.
    Over,
}

/// One single task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Single {
    /// How people call it.
    name: String,
    allocation: Allocation,
    /// How long it serves without being used.
    idle_limit: Option<Duration>,
    /// When it was last used, or began to serve.
    used: Timestamp,
    over: bool,
}

impl Single {
    /// One that waits for slots.
    pub fn new(name: String, idle_limit: Option<Duration>, now: Timestamp) -> Single {
        Single { name, allocation: Allocation::asked(1), idle_limit, used: now, over: false }
    }

    /// One that the master knew before it was started again: where it stood follows from its allocation. It counts as
    /// used now, for nobody could reach it meanwhile.
    pub fn restored(mut self, state: AllocationState, ready: bool, reason: &str, now: Timestamp) -> Single {
        self.allocation.phase = match state {
            AllocationState::Queued => Phase::Asked,
            _ if ready => Phase::Ready,
            AllocationState::Running => Phase::Running,
            _ => Phase::Assigned,
        };
        if state == AllocationState::Terminating {
            // Said again at once: the last word may not have been heard.
            self.allocation.stopping = Stopping::Killing { again: now, why: reason.to_owned() };
        }
        self.over = state == AllocationState::Terminated;
        self.used = now;
        self
    }

    /// Takes notice of something.
    pub fn on(&mut self, event: SingleEvent, now: Timestamp) -> Vec<SingleEffect> {
        if self.over {
            return Vec::new();
        }
        match event {
            SingleEvent::Assigned => self.reached(Phase::Assigned, "was assigned to an agent"),
            SingleEvent::Running => {
                // That it has started says the task itself: a line from here could come after its first output.
                self.allocation.reached(Phase::Running);
                Vec::new()
            }
            SingleEvent::Ready => {
                self.used = now;
                self.reached(Phase::Ready, "is ready")
            }
            SingleEvent::Used => {
                self.used = now;
                Vec::new()
            }
            SingleEvent::Kill { why } => self.kill(&why, now),
            SingleEvent::Ended { end } => {
                self.over = true;
                vec![end_reason(&end), SingleEffect::Over]
            }
            SingleEvent::Tick => self.tick(now),
        }
    }

    /// When something must be done even if nothing happens.
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.over {
            return None;
        }
        [self.allocation.deadline(), self.idle_deadline()].into_iter().flatten().min()
    }

    fn idle_deadline(&self) -> Option<Timestamp> {
        let serves = self.allocation.phase == Phase::Ready && self.allocation.stopping == Stopping::Not;
        Some(after(self.used, self.idle_limit.filter(|_| serves)?))
    }

    fn reached(&mut self, phase: Phase, what: &str) -> Vec<SingleEffect> {
        let text = format!("{} {what}", self.name);
        let note = SingleEffect::Note { level: LogLevel::Info, text };
        if self.allocation.reached(phase) { vec![note] } else { Vec::new() }
    }

    fn kill(&mut self, why: &str, now: Timestamp) -> Vec<SingleEffect> {
        let note = SingleEffect::Note { level: LogLevel::Info, text: format!("{} is ended: {why}", self.name) };
        match self.allocation.stop(Manner::AtOnce, why, Duration::ZERO, now) {
            Measure::Withdraw => {
                self.over = true;
                vec![note, SingleEffect::Withdraw { why: why.to_owned() }, SingleEffect::Over]
            }
            Measure::Kill => vec![note, SingleEffect::Kill { why: why.to_owned() }],
            Measure::Preempt(_) | Measure::Nothing => Vec::new(),
        }
    }

    fn tick(&mut self, now: Timestamp) -> Vec<SingleEffect> {
        if let Stopping::Killing { again, why } = &mut self.allocation.stopping {
            if *again > now {
                return Vec::new();
            }
            *again = after(now, super::allocation::KILL_AGAIN);
            return vec![SingleEffect::Kill { why: why.clone() }];
        }
        match (self.idle_deadline(), self.idle_limit) {
            (Some(deadline), Some(limit)) if deadline <= now => {
                self.kill(&format!("nobody has used it for {} s", limit.as_secs()), now)
            }
            _ => Vec::new(),
        }
    }
}

fn end_reason(end: &End) -> SingleEffect {
    let (level, text) = match end {
        End::Exited { code: 0 } => (LogLevel::Info, "resources exited successfully with a zero exit code".to_owned()),
        End::Exited { code } => (LogLevel::Error, super::trial::crashed(*code)),
        End::Killed => (LogLevel::Info, "everything of it has been ended".to_owned()),
        End::NotStarted { why } => (LogLevel::Error, format!("it could not be started: {why}")),
        End::Lost { why } => (LogLevel::Error, format!("it was lost, and is not started again: {why}")),
        End::Impossible { why } => (LogLevel::Error, why.clone()),
    };
    SingleEffect::Note { level, text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn single(idle: Option<u64>) -> Single {
        Single::new("Command 1".to_owned(), idle.map(Duration::from_secs), Timestamp(0))
    }

    fn second(number: i64) -> Timestamp {
        Timestamp(number * 1_000_000)
    }

    fn kill() -> SingleEvent {
        SingleEvent::Kill { why: "asked to".to_owned() }
    }

    fn without_notes(effects: Vec<SingleEffect>) -> Vec<SingleEffect> {
        effects.into_iter().filter(|effect| !matches!(effect, SingleEffect::Note { .. })).collect()
    }

    #[test]
    fn what_waits_is_withdrawn_and_what_runs_is_killed_until_it_has_ended() {
        let mut one = single(None);
        let why = "asked to".to_owned();
        let withdrawn = vec![SingleEffect::Withdraw { why: why.clone() }, SingleEffect::Over];
        assert_eq!(without_notes(one.on(kill(), second(1))), withdrawn);
        assert!(one.on(SingleEvent::Assigned, second(2)).is_empty(), "it is over");

        let mut one = single(None);
        one.on(SingleEvent::Assigned, second(1));
        assert_eq!(without_notes(one.on(kill(), second(2))), vec![SingleEffect::Kill { why: why.clone() }]);
        assert!(one.on(kill(), second(3)).is_empty(), "once is enough");
        let again = one.deadline().unwrap();
        assert_eq!(without_notes(one.on(SingleEvent::Tick, again)), vec![SingleEffect::Kill { why }]);
        let over = one.on(SingleEvent::Ended { end: End::Killed }, second(99));
        assert_eq!(without_notes(over), vec![SingleEffect::Over]);
        assert_eq!(one.deadline(), None);
    }

    #[test]
    fn a_service_that_nobody_uses_ends() {
        let mut one = single(Some(10));
        one.on(SingleEvent::Assigned, second(1));
        one.on(SingleEvent::Running, second(1));
        assert_eq!(one.deadline(), None, "it does not serve yet");
        one.on(SingleEvent::Ready, second(5));
        assert_eq!(one.deadline(), Some(second(15)));
        one.on(SingleEvent::Used, second(12));
        assert!(one.on(SingleEvent::Tick, second(15)).is_empty());
        let ended = without_notes(one.on(SingleEvent::Tick, second(22)));
        assert_eq!(ended, vec![SingleEffect::Kill { why: "nobody has used it for 10 s".to_owned() }]);
    }

    #[test]
    fn a_single_task_keeps_its_state_across_a_restart_of_the_master() {
        let waiting = single(None).restored(AllocationState::Queued, false, "", second(9));
        assert_eq!(waiting, Single { used: second(9), ..single(None) });
        let mut serving = single(Some(10)).restored(AllocationState::Running, true, "", second(100));
        assert_eq!(serving.deadline(), Some(second(110)), "nobody could use it meanwhile");
        assert!(serving.on(SingleEvent::Ready, second(101)).is_empty());
        let mut ending = single(None).restored(AllocationState::Terminating, false, "asked to", second(9));
        assert_eq!(ending.deadline(), Some(second(9)));
        assert_eq!(ending.on(SingleEvent::Tick, second(9)), vec![SingleEffect::Kill { why: "asked to".to_owned() }]);
    }

    proptest! {
        /// Whatever happens in whatever order: it is over at most once, and nothing follows after that.
        #[test]
        fn a_single_task_ends_once(events in proptest::collection::vec(0..7u8, 0..40)) {
            let mut one = single(Some(1));
            let mut ends = 0;
            for (moment, number) in events.into_iter().enumerate() {
                let event = match number {
                    0 => SingleEvent::Assigned,
                    1 => SingleEvent::Running,
                    2 => SingleEvent::Ready,
                    3 => SingleEvent::Used,
                    4 => kill(),
                    5 => SingleEvent::Ended { end: End::Exited { code: 1 } },
                    _ => SingleEvent::Tick,
                };
                let effects = one.on(event, second(i64::try_from(moment).unwrap()));
                prop_assert!(ends == 0 || effects.is_empty());
                ends += effects.iter().filter(|effect| **effect == SingleEffect::Over).count();
            }
            prop_assert!(ends <= 1);
            prop_assert!(ends == 0 || one.deadline().is_none());
        }
    }
}
