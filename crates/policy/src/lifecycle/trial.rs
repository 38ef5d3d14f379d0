//! One trial: its state, its runs one after the other, and how they are stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use instep_api::states::{LogLevel, State};
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::allocation::{Allocation, KILL_AGAIN, Manner, Measure, Phase, Stopping, after};
use super::events::{Effect, PolicyAction, Run};
use super::experiment::Terms;
use super::run_end::{AfterRun, End, RunContext, after_run};
use super::states::{is_stopping, stopping_for, trial_may};

/// A script that called its hyperparameters invalid has this long to end.
const INVALID_GRACE: Duration = Duration::from_secs(10);
/// The wait after a start that failed; doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A trial that is not in the database yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Birth {
    pub seed: u32,
    pub hyperparameters: Map<String, Value>,
    pub state: State,
}

/// One trial of an experiment. What is empty is not stored: an experiment may have ten thousand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// How its search named it when it was made.
    pub request: String,
    /// How the present search names it, where that is another name: after `continue` with another configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    other_name: Option<String>,
    /// Its number; none until it is in the database.
    pub id: Option<i32>,
    /// Its task; the allocations' names begin with it.
    pub task: String,
    /// What it is doing.
    pub state: State,
    /// How many restarts count.
    pub restarts: u32,
    /// How many runs there have been.
    pub runs: u32,
    /// The present run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Agents that it must not run on.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) birth: Option<Birth>,
    /// The policy by which a failure is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_retries: Option<String>,
    /// Its search knows that it ends before its time.
    pub(super) early: bool,
    /// Starts in a row that failed.
    failed_starts: u32,
    /// When to try again after such a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_at: Option<Timestamp>,
    /// When a script that should end by itself is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overdue_at: Option<Timestamp>,
}

impl Trial {
    pub(super) fn new(request: String, task: String, birth: Birth) -> Trial {
        Trial {
            other_name: None,
            request,
            id: None,
            task,
            state: birth.state,
            restarts: 0,
            runs: 0,
            allocation: None,
            excluded: BTreeSet::new(),
            birth: Some(birth),
            no_retries: None,
            early: false,
            failed_starts: 0,
            retry_at: None,
            overdue_at: None,
        }
    }

    /// How the present search names it.
    pub(super) fn alias(&self) -> &str {
        self.other_name.as_ref().unwrap_or(&self.request)
    }

    pub(super) fn rename(&mut self, alias: String) {
        self.other_name = Some(alias).filter(|alias| *alias != self.request);
    }

    /// Whether it has not ended.
    pub fn is_live(&self) -> bool {
        !self.state.is_terminal()
    }

    /// The present run's allocation: `<task>.<run>`.
    pub fn allocation_name(&self) -> Option<String> {
        self.allocation.as_ref().map(|allocation| format!("{}.{}", self.task, allocation.run))
    }

    fn run(&self, number: u32) -> Run {
        Run { request: self.request.clone(), number }
    }

    pub(super) fn note(&self, level: LogLevel, text: String, out: &mut Vec<Effect>) {
        out.push(Effect::Note { request: self.request.clone(), level, text });
    }

    /// Goes to a state, through the one between where there is no direct way; stays where none leads there.
    pub(super) fn move_to(&mut self, state: State, why: &str, out: &mut Vec<Effect>) -> bool {
        if !trial_may(self.state, state) {
            let between = stopping_for(state);
            if !(state.is_terminal() && trial_may(self.state, between) && trial_may(between, state)) {
                return false;
            }
            self.move_to(between, why, out);
        }
        self.state = state;
        out.push(Effect::TrialState { request: self.request.clone(), state, why: why.to_owned() });
        true
    }

    /// Asks for slots if it should run and does not.
    pub(super) fn ask(&mut self, out: &mut Vec<Effect>) {
        if self.state != State::Active || self.id.is_none() || self.allocation.is_some() || self.retry_at.is_some() {
            return;
        }
        self.runs += 1;
        self.allocation = Some(Allocation::asked(self.runs));
        self.request_again(out);
    }

    /// Asks for the slots of the present run, which waits for them.
    fn request_again(&self, out: &mut Vec<Effect>) {
        let Some(allocation) = self.allocation_name() else { return };
        out.push(Effect::Ask {
            run: self.run(self.runs),
            allocation,
            restarts: self.restarts,
            excluded: self.excluded.clone(),
        });
    }

    /// Stops the present run, if there is one.
    pub(super) fn stop_run(&mut self, manner: Manner, why: &str, terms: &Terms, now: Timestamp, out: &mut Vec<Effect>) {
        let Some(allocation) = &mut self.allocation else { return };
        let number = allocation.run;
        let measure = allocation.stop(manner, why, terms.preemption_timeout, now);
        let (run, why) = (self.run(number), why.to_owned());
        match measure {
            Measure::Nothing => {}
            Measure::Withdraw => {
                self.allocation = None;
                out.push(Effect::Withdraw { run, why });
            }
            Measure::Preempt(deadline) => {
                self.note(LogLevel::Info, gently(&why), out);
                out.push(Effect::Preempt { run, deadline, why });
            }
            Measure::Kill => {
                self.note(LogLevel::Info, forcibly(&why), out);
                out.push(Effect::Kill { run, why });
            }
        }
    }

    /// The script called its hyperparameters invalid: it is given a moment to end by itself.
    pub(super) fn invalid(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let why = "its script reported invalid hyperparameters";
        if self.move_to(State::StoppingCompleted, why, out) {
            self.overdue_at = Some(after(now, INVALID_GRACE));
        }
    }

    /// A line of its log matched a policy.
    pub(super) fn log_matched(
        &mut self,
        policy: &str,
        pattern: &str,
        line: &str,
        action: PolicyAction,
        out: &mut Vec<Effect>,
    ) {
        if !policy.is_empty() {
            out.push(Effect::PolicyMatched { request: self.request.clone(), policy: policy.to_owned() });
        }
        let matched = format!("(log {:?} matched regex {pattern:?})", line.trim_end());
        match action {
            PolicyAction::Mark => {}
            PolicyAction::CancelRetries => {
                let name = if policy.is_empty() { String::new() } else { format!("{policy} ") };
                self.no_retries.get_or_insert(format!("{name}{matched}"));
            }
            PolicyAction::ExcludeNode { agent } => {
                if self.excluded.insert(agent.clone()) {
                    self.note(LogLevel::Info, format!("{matched} therefore will not schedule on {agent}"), out);
                }
            }
        }
    }

    /// The present run has ended. Answers where the trial ends, if it does.
    pub(super) fn run_ended(
        &mut self,
        end: &End,
        terms: &Terms,
        now: Timestamp,
        out: &mut Vec<Effect>,
    ) -> Option<State> {
        let allocation = self.allocation.take()?;
        self.note_end(end, out);
        let of = RunContext {
            state: self.state,
            acknowledged: allocation.acknowledged,
            no_retries: self.no_retries.as_deref(),
            restarts: self.restarts,
            max_restarts: terms.max_restarts,
        };
        match after_run(of, end) {
            AfterRun::Finished { state, why } => {
                if state == State::Error {
                    self.note(LogLevel::Error, why.clone(), out);
                }
                self.finish(state, &why, out);
                Some(state)
            }
            AfterRun::Again { counted, wait, why } => {
                self.restarts += u32::from(counted);
                self.note(LogLevel::Info, why, out);
                self.wait_before_next(wait && allocation.phase < Phase::Running, now, out);
                self.ask(out);
                None
            }
        }
    }

    /// The trial is over.
    pub(super) fn finish(&mut self, state: State, why: &str, out: &mut Vec<Effect>) {
        self.move_to(state, why, out);
        self.retry_at = None;
        self.overdue_at = None;
    }

    fn note_end(&self, end: &End, out: &mut Vec<Effect>) {
        match end {
            End::Exited { code: 0 } => {
                self.note(LogLevel::Info, "resources exited successfully with a zero exit code".to_owned(), out);
            }
            End::Exited { code } => self.note(LogLevel::Error, crashed(*code), out),
            _ => {}
        }
    }

    /// A start that failed may fail again for the same reason: the next one waits, longer each time.
    fn wait_before_next(&mut self, failed_start: bool, now: Timestamp, out: &mut Vec<Effect>) {
        if !failed_start {
            self.failed_starts = 0;
            return;
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.failed_starts.min(6)).min(LONGEST_WAIT);
        self.failed_starts += 1;
        self.retry_at = Some(after(now, wait));
        self.note(LogLevel::Info, format!("retrying in {} s", wait.as_secs()), out);
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, terms: &Terms, now: Timestamp, out: &mut Vec<Effect>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.ask(out);
        }
        if self.overdue_at.is_some_and(|at| at <= now) {
            self.overdue_at = None;
            self.stop_run(Manner::AtOnce, "it reported invalid hyperparameters and did not exit", terms, now, out);
        }
        let Some(allocation) = &mut self.allocation else { return };
        match &mut allocation.stopping {
            Stopping::Asked { deadline, .. } if *deadline <= now => {
                let why = format!("it did not stop within {} s of being asked to", terms.preemption_timeout.as_secs());
                self.stop_run(Manner::AtOnce, &why, terms, now, out);
            }
            Stopping::Killing { again, why } if *again <= now => {
                *again = after(now, KILL_AGAIN);
                let (number, why) = (allocation.run, why.clone());
                out.push(Effect::Kill { run: self.run(number), why });
            }
            _ => {}
        }
    }

    /// When it next needs a tick.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let allocation = self.allocation.as_ref().and_then(Allocation::deadline);
        [allocation, self.retry_at, self.overdue_at].into_iter().flatten().min()
    }

    /// It goes on in another life of its experiment, from its last checkpoint.
    pub(super) fn revive(&mut self, alias: String, task: String, out: &mut Vec<Effect>) {
        self.rename(alias);
        self.task = task;
        self.restarts = 0;
        self.no_retries = None;
        self.early = false;
        self.failed_starts = 0;
        self.move_to(State::Active, "it was continued", out);
        self.ask(out);
    }

    /// What was decided for it before the master was restarted, once more.
    pub(super) fn repeat(&self, out: &mut Vec<Effect>) {
        if let Some(birth) = &self.birth {
            out.push(birth.effect(self));
        }
        let Some(allocation) = &self.allocation else { return };
        let run = self.run(allocation.run);
        match &allocation.stopping {
            _ if allocation.phase == Phase::Asked => self.request_again(out),
            Stopping::Not => {}
            Stopping::Asked { deadline, why } => {
                out.push(Effect::Preempt { run, deadline: *deadline, why: why.clone() });
            }
            Stopping::Killing { why, .. } => out.push(Effect::Kill { run, why: why.clone() }),
        }
    }

    /// Whether it is on its way to an end that leaves nothing to wait for.
    pub(super) fn has_nothing_left(&self) -> bool {
        is_stopping(self.state) && self.allocation.is_none() && self.id.is_some()
    }
}

impl Birth {
    pub(super) fn effect(&self, trial: &Trial) -> Effect {
        Effect::MakeTrial {
            request: trial.request.clone(),
            seed: self.seed,
            hyperparameters: self.hyperparameters.clone(),
            state: self.state,
            task: trial.task.clone(),
        }
    }
}

fn gently(why: &str) -> String {
    format!("gracefully terminating allocation's remaining resources (reason: {why})")
}

fn forcibly(why: &str) -> String {
    format!("forcibly killing allocation's remaining resources (reason: {why})")
}

pub(super) fn crashed(code: i32) -> String {
    format!(
        "crashed: resources failed with non-zero exit code: container failed with non-zero exit code: {code} (exit code {code})"
    )
}
