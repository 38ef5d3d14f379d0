//! A command beside the experiments: a command that runs to its end, or a service that people look at.
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
pub enum CommandEvent {
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
    /// Time has passed: [`Command::deadline`] says when this is next needed.
    Tick,
}

/// What is to be done now, in this order. Doing something twice changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum CommandEffect {
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

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// How people call it.
    name: String,
    allocation: Allocation,
    /// How long it serves without being used.
    idle_limit: Option<Duration>,
    /// When it was last used, or began to serve.
    used: Timestamp,
    over: bool,
}

impl Command {
    /// One that waits for slots.
    pub fn new(name: String, idle_limit: Option<Duration>, now: Timestamp) -> Command {
        Command { name, allocation: Allocation::asked(1), idle_limit, used: now, over: false }
    }

    /// One that the master knew before it was started again: where it stood follows from its allocation. It counts as
    /// used now, for nobody could reach it meanwhile.
    pub fn restored(mut self, state: AllocationState, ready: bool, reason: &str, now: Timestamp) -> Command {
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
    pub fn on(&mut self, event: CommandEvent, now: Timestamp) -> Vec<CommandEffect> {
        if self.over {
            return Vec::new();
        }
        match event {
            CommandEvent::Assigned => self.reached(Phase::Assigned, "was assigned to an agent"),
            CommandEvent::Running => {
                // That it has started says the task itself: a line from here could come after its first output.
                self.allocation.reached(Phase::Running);
                Vec::new()
            }
            CommandEvent::Ready => {
                self.used = now;
                self.reached(Phase::Ready, "is ready")
            }
            CommandEvent::Used => {
                self.used = now;
                Vec::new()
            }
            CommandEvent::Kill { why } => self.kill(&why, now),
            CommandEvent::Ended { end } => {
                self.over = true;
                vec![end_reason(&end), CommandEffect::Over]
            }
            CommandEvent::Tick => self.tick(now),
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

    fn reached(&mut self, phase: Phase, what: &str) -> Vec<CommandEffect> {
        let text = format!("{} {what}", self.name);
        let note = CommandEffect::Note { level: LogLevel::Info, text };
        if self.allocation.reached(phase) { vec![note] } else { Vec::new() }
    }

    fn kill(&mut self, why: &str, now: Timestamp) -> Vec<CommandEffect> {
        let note = CommandEffect::Note { level: LogLevel::Info, text: format!("{} is ended: {why}", self.name) };
        match self.allocation.stop(Manner::AtOnce, why, Duration::ZERO, now) {
            Measure::Withdraw => {
                self.over = true;
                vec![note, CommandEffect::Withdraw { why: why.to_owned() }, CommandEffect::Over]
            }
            Measure::Kill => vec![note, CommandEffect::Kill { why: why.to_owned() }],
            Measure::Preempt(_) | Measure::Nothing => Vec::new(),
        }
    }

    fn tick(&mut self, now: Timestamp) -> Vec<CommandEffect> {
        if let Stopping::Killing { again, why } = &mut self.allocation.stopping {
            if *again > now {
                return Vec::new();
            }
            *again = after(now, super::allocation::KILL_AGAIN);
            return vec![CommandEffect::Kill { why: why.clone() }];
        }
        match (self.idle_deadline(), self.idle_limit) {
            (Some(deadline), Some(limit)) if deadline <= now => {
                self.kill(&format!("it was idle for {} s", limit.as_secs()), now)
            }
            _ => Vec::new(),
        }
    }
}

fn end_reason(end: &End) -> CommandEffect {
    let (level, text) = match end {
        End::Exited { code: 0 } => (LogLevel::Info, "resources exited successfully with a zero exit code".to_owned()),
        End::Exited { code } => (LogLevel::Error, super::trial::crashed(*code)),
        End::Killed => (LogLevel::Info, "all of its processes were stopped".to_owned()),
        End::NotStarted { why } => (LogLevel::Error, format!("it could not be started: {why}")),
        End::Lost { why } => (LogLevel::Error, format!("it was lost and is not restarted: {why}")),
        End::Impossible { why } => (LogLevel::Error, why.clone()),
    };
    CommandEffect::Note { level, text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command(idle: Option<u64>) -> Command {
        Command::new("Command 1".to_owned(), idle.map(Duration::from_secs), Timestamp(0))
    }

    fn second(number: i64) -> Timestamp {
        Timestamp(number * 1_000_000)
    }

    fn kill() -> CommandEvent {
        CommandEvent::Kill { why: "asked to".to_owned() }
    }

    fn without_notes(effects: Vec<CommandEffect>) -> Vec<CommandEffect> {
        effects.into_iter().filter(|effect| !matches!(effect, CommandEffect::Note { .. })).collect()
    }

    #[test]
    fn what_waits_is_withdrawn_and_what_runs_is_killed_until_it_has_ended() {
        let mut one = command(None);
        let why = "asked to".to_owned();
        let withdrawn = vec![CommandEffect::Withdraw { why: why.clone() }, CommandEffect::Over];
        assert_eq!(without_notes(one.on(kill(), second(1))), withdrawn);
        assert!(one.on(CommandEvent::Assigned, second(2)).is_empty(), "it is over");

        let mut one = command(None);
        one.on(CommandEvent::Assigned, second(1));
        assert_eq!(without_notes(one.on(kill(), second(2))), vec![CommandEffect::Kill { why: why.clone() }]);
        assert!(one.on(kill(), second(3)).is_empty(), "once is enough");
        let again = one.deadline().unwrap();
        assert_eq!(without_notes(one.on(CommandEvent::Tick, again)), vec![CommandEffect::Kill { why }]);
        let over = one.on(CommandEvent::Ended { end: End::Killed }, second(99));
        assert_eq!(without_notes(over), vec![CommandEffect::Over]);
        assert_eq!(one.deadline(), None);
    }

    #[test]
    fn a_service_that_nobody_uses_ends() {
        let mut one = command(Some(10));
        one.on(CommandEvent::Assigned, second(1));
        one.on(CommandEvent::Running, second(1));
        assert_eq!(one.deadline(), None, "it does not serve yet");
        one.on(CommandEvent::Ready, second(5));
        assert_eq!(one.deadline(), Some(second(15)));
        one.on(CommandEvent::Used, second(12));
        assert!(one.on(CommandEvent::Tick, second(15)).is_empty());
        let ended = without_notes(one.on(CommandEvent::Tick, second(22)));
        assert_eq!(ended, vec![CommandEffect::Kill { why: "it was idle for 10 s".to_owned() }]);
    }

    #[test]
    fn a_command_keeps_its_state_across_a_restart_of_the_master() {
        let waiting = command(None).restored(AllocationState::Queued, false, "", second(9));
        assert_eq!(waiting, Command { used: second(9), ..command(None) });
        let mut serving = command(Some(10)).restored(AllocationState::Running, true, "", second(100));
        assert_eq!(serving.deadline(), Some(second(110)), "nobody could use it meanwhile");
        assert!(serving.on(CommandEvent::Ready, second(101)).is_empty());
        let mut ending = command(None).restored(AllocationState::Terminating, false, "asked to", second(9));
        assert_eq!(ending.deadline(), Some(second(9)));
        assert_eq!(ending.on(CommandEvent::Tick, second(9)), vec![CommandEffect::Kill { why: "asked to".to_owned() }]);
    }

    proptest! {
        /// Whatever happens in whatever order: it is over at most once, and nothing follows after that.
        #[test]
        fn a_command_ends_once(events in proptest::collection::vec(0..7u8, 0..40)) {
            let mut one = command(Some(1));
            let mut ends = 0;
            for (moment, number) in events.into_iter().enumerate() {
                let event = match number {
                    0 => CommandEvent::Assigned,
                    1 => CommandEvent::Running,
                    2 => CommandEvent::Ready,
                    3 => CommandEvent::Used,
                    4 => kill(),
                    5 => CommandEvent::Ended { end: End::Exited { code: 1 } },
                    _ => CommandEvent::Tick,
                };
                let effects = one.on(event, second(i64::try_from(moment).unwrap()));
                prop_assert!(ends == 0 || effects.is_empty());
                ends += effects.iter().filter(|effect| **effect == CommandEffect::Over).count();
            }
            prop_assert!(ends <= 1);
            prop_assert!(ends == 0 || one.deadline().is_none());
        }
    }
}
