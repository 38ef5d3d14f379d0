//! A command beside the experiments: a command that runs to its end, or a service that people look at.
//!
//! Whatever ends it, it is not started again by itself: nobody but its owner knows whether it may run twice. One that is
//! paused says so: it stops and rests, and runs again when it is resumed.

use std::time::Duration;

use instep_api::states::{AllocationState, LogLevel};
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};

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
    /// Its slots are taken away.
    Evicted {
        /// For people.
        why: String,
    },
    /// It is to stop, and to rest until it is resumed.
    Pause {
        /// For people.
        why: String,
    },
    /// It is to run again.
    Resume,
    /// Nothing of it is alive any more.
    Ended { end: End },
    /// Time has passed: [`Command::deadline`] says when this is next needed.
    Tick,
}

/// What is to be done now, in this order. Doing something twice changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum CommandEffect {
    /// Take its run out of the queue.
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
    /// Store what it does when its run has ended.
    Keep(AfterRun),
    /// Let this run of it wait for slots.
    Queue { run: u32 },
    /// It has ended.
    Over,
}

/// What a command does when its run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterRun {
    /// It ends with it.
    End,
    /// It rests.
    Rest,
    /// It runs again: it was resumed while it stopped.
    RunAgain,
}

/// A run of a command as it is stored.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct StoredRun<'a> {
    pub run: u32,
    pub state: AllocationState,
    pub ready: bool,
    pub reason: &'a str,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// How people call it.
    name: String,
    /// Its run; the next one while it rests.
    allocation: Allocation,
    after_run: AfterRun,
    /// Nothing of it runs or waits for slots.
    resting: bool,
    /// How long it serves without being used.
    idle_limit: Option<Duration>,
    /// When it was last used, or began to serve.
    used: Timestamp,
    over: bool,
}

impl Command {
    /// One that waits for slots.
    pub fn new(name: String, idle_limit: Option<Duration>, now: Timestamp) -> Command {
        let allocation = Allocation::asked(1);
        Command { name, allocation, after_run: AfterRun::End, resting: false, idle_limit, used: now, over: false }
    }

    /// One that the master knew before it was started again: where it stood follows from its allocation. It counts as
    /// used now, for nobody could reach it meanwhile.
    pub fn restored(mut self, stored: StoredRun<'_>, after_run: AfterRun, now: Timestamp) -> Command {
        self.used = now;
        self.after_run = after_run;
        self.allocation.run = stored.run;
        if stored.state == AllocationState::Terminated {
            match after_run {
                AfterRun::Rest => self.rest(),
                AfterRun::End | AfterRun::RunAgain => self.over = true,
            }
            return self;
        }
        self.allocation.phase = match stored.state {
            AllocationState::Queued => Phase::Asked,
            _ if stored.ready => Phase::Ready,
            AllocationState::Running => Phase::Running,
            _ => Phase::Assigned,
        };
        if stored.state == AllocationState::Terminating {
            // Said again at once: the last word may not have been heard.
            self.allocation.stopping = Stopping::Killing { again: now, why: stored.reason.to_owned() };
        }
        self
    }

    /// The number of its run; of the next one while it rests.
    pub fn run(&self) -> u32 {
        self.allocation.run
    }

    /// Whether it rests, or will as soon as it has stopped.
    pub fn is_paused(&self) -> bool {
        self.after_run == AfterRun::Rest
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
            CommandEvent::Evicted { why } if self.allocation.stopping == Stopping::Not => self.kill(&why, now),
            CommandEvent::Evicted { .. } => Vec::new(),
            CommandEvent::Pause { why } => self.pause(&why, now),
            CommandEvent::Resume => self.resume(),
            CommandEvent::Ended { end } => self.ended(&end),
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
        if self.allocation.reached(phase) { vec![self.note(what)] } else { Vec::new() }
    }

    fn note(&self, what: &str) -> CommandEffect {
        CommandEffect::Note { level: LogLevel::Info, text: format!("{} {what}", self.name) }
    }

    fn kill(&mut self, why: &str, now: Timestamp) -> Vec<CommandEffect> {
        let note = self.note(&format!("is ended: {why}"));
        if self.resting {
            self.over = true;
            return vec![note, CommandEffect::Over];
        }
        if self.after_run != AfterRun::End {
            // It is being stopped already; now it stays so.
            self.after_run = AfterRun::End;
            return vec![note, CommandEffect::Keep(AfterRun::End)];
        }
        match self.allocation.stop(Manner::AtOnce, why, Duration::ZERO, now) {
            Measure::Withdraw => {
                self.over = true;
                vec![note, CommandEffect::Withdraw { why: why.to_owned() }, CommandEffect::Over]
            }
            Measure::Kill => vec![note, CommandEffect::Kill { why: why.to_owned() }],
            Measure::Preempt(_) | Measure::Nothing => Vec::new(),
        }
    }

    fn pause(&mut self, why: &str, now: Timestamp) -> Vec<CommandEffect> {
        let keep = CommandEffect::Keep(AfterRun::Rest);
        let effect = match (self.after_run, &self.allocation.stopping) {
            // What is being killed ends.
            (AfterRun::Rest, _) | (AfterRun::End, Stopping::Asked { .. } | Stopping::Killing { .. }) => {
                return Vec::new();
            }
            (AfterRun::RunAgain, _) => {
                self.after_run = AfterRun::Rest;
                return vec![keep];
            }
            (AfterRun::End, Stopping::Not) => match self.allocation.stop(Manner::AtOnce, why, Duration::ZERO, now) {
                Measure::Withdraw => {
                    self.rest();
                    CommandEffect::Withdraw { why: why.to_owned() }
                }
                Measure::Kill | Measure::Preempt(_) | Measure::Nothing => CommandEffect::Kill { why: why.to_owned() },
            },
        };
        self.after_run = AfterRun::Rest;
        vec![self.note(&format!("is paused: {why}")), keep, effect]
    }

    fn resume(&mut self) -> Vec<CommandEffect> {
        match (self.after_run, self.resting) {
            (AfterRun::End | AfterRun::RunAgain, _) => Vec::new(),
            (AfterRun::Rest, true) => self.run_again(),
            (AfterRun::Rest, false) => {
                self.after_run = AfterRun::RunAgain;
                vec![CommandEffect::Keep(self.after_run)]
            }
        }
    }

    fn ended(&mut self, end: &End) -> Vec<CommandEffect> {
        let mut effects = vec![end_reason(end)];
        match self.after_run {
            AfterRun::End => {
                self.over = true;
                effects.push(CommandEffect::Over);
            }
            AfterRun::Rest => self.rest(),
            AfterRun::RunAgain => {
                self.rest();
                effects.extend(self.run_again());
            }
        }
        effects
    }

    fn rest(&mut self) {
        self.allocation = Allocation::asked(self.allocation.run + 1);
        self.resting = true;
    }

    fn run_again(&mut self) -> Vec<CommandEffect> {
        self.resting = false;
        self.after_run = AfterRun::End;
        let run = self.allocation.run;
        vec![self.note("is resumed"), CommandEffect::Keep(self.after_run), CommandEffect::Queue { run }]
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
        let restored = |command: Command, state, ready, reason, moment| {
            command.restored(StoredRun { run: 1, state, ready, reason }, AfterRun::End, moment)
        };
        let waiting = restored(command(None), AllocationState::Queued, false, "", second(9));
        assert_eq!(waiting, Command { used: second(9), ..command(None) });
        let mut serving = restored(command(Some(10)), AllocationState::Running, true, "", second(100));
        assert_eq!(serving.deadline(), Some(second(110)), "nobody could use it meanwhile");
        assert!(serving.on(CommandEvent::Ready, second(101)).is_empty());
        let mut ending = restored(command(None), AllocationState::Terminating, false, "asked to", second(9));
        assert_eq!(ending.deadline(), Some(second(9)));
        assert_eq!(ending.on(CommandEvent::Tick, second(9)), vec![CommandEffect::Kill { why: "asked to".to_owned() }]);
    }

    fn pause() -> CommandEvent {
        CommandEvent::Pause { why: "asked to".to_owned() }
    }

    #[test]
    fn what_is_paused_rests_until_it_is_resumed_or_killed() {
        let why = "asked to".to_owned();
        let again = |run| vec![CommandEffect::Keep(AfterRun::End), CommandEffect::Queue { run }];
        let mut one = command(None);
        let withdrawn = vec![CommandEffect::Keep(AfterRun::Rest), CommandEffect::Withdraw { why: why.clone() }];
        assert_eq!(without_notes(one.on(pause(), second(1))), withdrawn);
        assert!(one.on(pause(), second(2)).is_empty(), "once is enough");
        assert_eq!((one.is_paused(), one.deadline()), (true, None));
        assert_eq!(without_notes(one.on(CommandEvent::Resume, second(3))), again(2));

        one.on(CommandEvent::Assigned, second(4));
        let stopped = vec![CommandEffect::Keep(AfterRun::Rest), CommandEffect::Kill { why: why.clone() }];
        assert_eq!(without_notes(one.on(pause(), second(5))), stopped);
        let evicted = CommandEvent::Evicted { why: "the agent is gone".to_owned() };
        assert!(one.on(evicted, second(6)).is_empty(), "it stops already");
        assert!(without_notes(one.on(CommandEvent::Ended { end: End::Killed }, second(7))).is_empty());
        let stored = StoredRun { run: 2, state: AllocationState::Terminated, ready: false, reason: "" };
        let mut restored = command(None).restored(stored, AfterRun::Rest, second(8));
        assert_eq!(without_notes(restored.on(CommandEvent::Resume, second(9))), again(3));
        assert_eq!(without_notes(one.on(kill(), second(9))), vec![CommandEffect::Over]);
    }

    #[test]
    fn what_is_resumed_or_killed_while_it_stops_runs_again_or_ends_afterwards() {
        let mut one = command(None);
        one.on(CommandEvent::Assigned, second(1));
        one.on(pause(), second(2));
        assert_eq!(one.on(CommandEvent::Resume, second(3)), vec![CommandEffect::Keep(AfterRun::RunAgain)]);
        let stored = StoredRun { run: 1, state: AllocationState::Terminating, ready: false, reason: "asked to" };
        let restored = command(None).restored(stored, AfterRun::RunAgain, second(3));
        for mut one in [one.clone(), restored] {
            let again = without_notes(one.on(CommandEvent::Ended { end: End::Killed }, second(4)));
            assert_eq!(again, vec![CommandEffect::Keep(AfterRun::End), CommandEffect::Queue { run: 2 }]);
        }
        assert_eq!(without_notes(one.on(kill(), second(5))), vec![CommandEffect::Keep(AfterRun::End)]);
        assert!(one.on(pause(), second(6)).is_empty(), "it ends");
        let over = without_notes(one.on(CommandEvent::Ended { end: End::Killed }, second(7)));
        assert_eq!(over, vec![CommandEffect::Over]);
    }

    proptest! {
        /// Whatever happens in whatever order: it is over at most once, and nothing follows after that.
        #[test]
        fn a_command_ends_once(events in proptest::collection::vec(0..10u8, 0..40)) {
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
                    6 => pause(),
                    7 => CommandEvent::Resume,
                    8 => CommandEvent::Evicted { why: "its agent is gone".to_owned() },
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
