//! What happens to experiments, and what follows from it.

use std::collections::BTreeSet;

use instep_api::states::{LogLevel, State};
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::run_end::End;

/// One run of one trial. There is at most one allocation for each, ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The trial, as its search named it.
    pub request: String,
    /// Counts from 1, and never back.
    pub number: u32,
}

/// What a log policy asks for when its pattern matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum PolicyAction {
    /// If the script fails now, it is not tried again.
    CancelRetries,
    /// The trial never again runs on the agent that the line came from.
    ExcludeNode { agent: String },
    /// The match is shown, nothing more.
    Mark,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Event {
    /// The experiment begins: the first event.
    Started,
    /// Somebody wants it to go on.
    Activate,
    /// Somebody wants it to rest.
    Pause,
    /// Somebody wants it to end in good order.
    Cancel,
    /// Somebody wants it to end now.
    Kill,
    /// Somebody wants one of its trials to end now.
    KillTrial { request: String },
    /// A trial that was to be made is in the database.
    TrialMade {
        request: String,
        /// Its number.
        trial: i32,
    },
    /// A trial reported validation metrics.
    Validated {
        request: String,
        metrics: Map<String, Value>,
        /// The report's `steps_completed`.
        steps: u64,
    },
    /// A trial said how far it is.
    Progressed {
        request: String,
        /// From 0 to 1.
        progress: f64,
    },
    /// The script said that its hyperparameters make no sense; it ends by itself now.
    InvalidHyperparameters { request: String },
    /// Slots were given to a run; its shares are being started.
    Assigned { run: Run },
    /// All shares of a run have started.
    Running { run: Run },
    /// The script of a run can hear signals: its rendezvous is complete, or it said so.
    Ready { run: Run },
    /// The script of a run said that it stops although it is not done.
    Acknowledged { run: Run },
    /// The scheduler needs the slots of a run.
    Displaced {
        run: Run,
        /// For people.
        why: String,
    },
    /// The slots of a run are taken away at once: its agent was disabled.
    Evicted {
        run: Run,
        /// For people.
        why: String,
    },
    /// Nothing of a run is alive any more.
    Ended { run: Run, end: End },
    /// A line in the log of a run matched a log policy.
    LogMatched {
        run: Run,
        /// The policy's name.
        policy: String,
        /// Its pattern.
        pattern: String,
        /// The line.
        line: String,
        /// What it asks for.
        action: PolicyAction,
    },
    /// Time has passed: [`super::Experiment::deadline`] says when this is next needed.
    Tick,
}

/// What is to be done now, in this order. Doing something twice changes nothing: each names what it is about.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Effect {
    /// Put a trial into the database and answer with [`Event::TrialMade`].
    MakeTrial {
        request: String,
        /// For the script.
        seed: u32,
        /// What it tries.
        hyperparameters: Map<String, Value>,
        /// In which it begins.
        state: State,
        /// Its task; the allocations' names begin with it.
        task: String,
    },
    /// A trial of an earlier life of the experiment goes on with these.
    ReviseTrial {
        request: String,
        /// For the script.
        seed: u32,
        /// What it tries now.
        hyperparameters: Map<String, Value>,
        /// Its task from now on.
        task: String,
    },
    /// Queue a run for slots.
    Ask {
        run: Run,
        /// The name of its allocation: `<task>.<run>`.
        allocation: String,
        /// How many restarts of the trial count so far.
        restarts: u32,
        /// Agents that it must not run on.
        excluded: BTreeSet<String>,
    },
    /// Take a run out of the queue. It is over.
    Withdraw {
        run: Run,
        /// For people.
        why: String,
    },
    /// Let the script of a run know that it is to stop in good order.
    Preempt {
        run: Run,
        /// When the grace period ends.
        deadline: Timestamp,
        /// For people.
        why: String,
    },
    /// End everything of a run.
    Kill {
        run: Run,
        /// For people.
        why: String,
    },
    /// The experiment's new state.
    ExperimentState {
        state: State,
        /// For people.
        why: String,
    },
    /// A trial's new state.
    TrialState {
        request: String,
        state: State,
        /// For people.
        why: String,
    },
    /// A named log policy matched: the trial shows it.
    PolicyMatched {
        request: String,
        /// The policy's name.
        policy: String,
    },
    /// The experiment has ended: remove the checkpoints that its policy does not keep.
    CollectCheckpoints,
    /// A line for the log of a trial's task.
    Note {
        request: String,
        /// How important.
        level: LogLevel,
        text: String,
    },
}
