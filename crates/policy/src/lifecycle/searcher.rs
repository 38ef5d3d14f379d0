//! What an experiment needs of a search: events in, actions out, and a state that can be stored.
//!
//! A trait, so that the lifecycle can be tested with a search that does exactly what a test wants.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Decides which trials there are.
pub trait Searcher: Serialize + DeserializeOwned {
    /// Takes an event and says what follows from it; an error ends the experiment.
    fn on(&mut self, event: Event) -> Result<Vec<Action>, String>;
}

/// Why a trial ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// Its script failed for good.
    Errored,
    /// Somebody ended it.
    UserCancelled,
    /// The script said that its hyperparameters make no sense.
    InvalidHyperparameters,
}

/// What a search is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The experiment begins.
    Started,
    /// A trial that it wanted exists.
    TrialCreated {
        /// Which.
        request: String,
    },
    /// A trial reported validation metrics.
    Validated {
        /// Which.
        request: String,
        /// By name.
        metrics: Map<String, Value>,
    },
    /// A trial said how far it is.
    Progressed {
        /// Which.
        request: String,
        /// From 0 to 1.
        progress: f64,
    },
    /// A trial ends before its time.
    ExitedEarly {
        /// Which.
        request: String,
        /// Why.
        reason: Early,
    },
    /// A trial has ended.
    Exited {
        /// Which.
        request: String,
    },
}

/// What a search wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A new trial.
    Create {
        /// Its identifier: a UUID.
        request: String,
        /// For the script.
        seed: u32,
        /// What it is to try.
        hyperparameters: Map<String, Value>,
    },
    /// No more of a trial.
    Stop {
        /// Which.
        request: String,
    },
    /// The search is over.
    Shutdown {
        /// All trials were cancelled.
        cancelled: bool,
        /// All trials failed.
        failed: bool,
    },
}
