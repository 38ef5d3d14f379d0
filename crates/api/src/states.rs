//! States of experiments, trials and checkpoints, spelled as Determined spells them.

use serde::{Deserialize, Serialize};

macro_rules! wire_enum {
    ($(#[$note:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$note])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "the names are Determined's own")]
        pub enum $name {
            $(#[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// All values, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The spelling in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                $name::ALL.iter().copied().find(|value| value.as_str() == text)
                    .ok_or_else(|| format!("`{text}` is not one of {}", $name::ALL.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(", ")))
            }
        }
    };
}

wire_enum!(
    /// What an experiment or a trial is doing. (Trials never have one of the states of deletion.)
    State {
        Unspecified = "STATE_UNSPECIFIED",
        Active = "STATE_ACTIVE",
        Paused = "STATE_PAUSED",
        StoppingCompleted = "STATE_STOPPING_COMPLETED",
        StoppingCanceled = "STATE_STOPPING_CANCELED",
        StoppingError = "STATE_STOPPING_ERROR",
        StoppingKilled = "STATE_STOPPING_KILLED",
        Completed = "STATE_COMPLETED",
        Canceled = "STATE_CANCELED",
        Error = "STATE_ERROR",
        Deleted = "STATE_DELETED",
        Deleting = "STATE_DELETING",
        DeleteFailed = "STATE_DELETE_FAILED",
        Queued = "STATE_QUEUED",
        Pulling = "STATE_PULLING",
        Starting = "STATE_STARTING",
        Running = "STATE_RUNNING",
    }
);

wire_enum!(
    /// What is known of a checkpoint's files.
    CheckpointState {
        Unspecified = "STATE_UNSPECIFIED",
        Active = "STATE_ACTIVE",
        Completed = "STATE_COMPLETED",
        Error = "STATE_ERROR",
        Deleted = "STATE_DELETED",
        PartiallyDeleted = "STATE_PARTIALLY_DELETED",
    }
);

wire_enum!(
    /// What a trial works with a checkpoint for.
    SourceKind {
        Unspecified = "TRIAL_SOURCE_INFO_TYPE_UNSPECIFIED",
        Inference = "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
        FineTuning = "TRIAL_SOURCE_INFO_TYPE_FINE_TUNING",
    }
);

wire_enum!(
    /// What an attempt to run a task on slots is doing.
    AllocationState {
        Unspecified = "STATE_UNSPECIFIED",
        Queued = "STATE_QUEUED",
        Waiting = "STATE_WAITING",
        Pulling = "STATE_PULLING",
        Starting = "STATE_STARTING",
        Running = "STATE_RUNNING",
        Terminating = "STATE_TERMINATING",
        Terminated = "STATE_TERMINATED",
    }
);

wire_enum!(
    /// How important a log line is.
    LogLevel {
        Unspecified = "LOG_LEVEL_UNSPECIFIED",
        Trace = "LOG_LEVEL_TRACE",
        Debug = "LOG_LEVEL_DEBUG",
        Info = "LOG_LEVEL_INFO",
        Warning = "LOG_LEVEL_WARNING",
        Error = "LOG_LEVEL_ERROR",
        Critical = "LOG_LEVEL_CRITICAL",
    }
);

impl State {
    /// Whether nothing more happens by itself.
    pub fn is_terminal(self) -> bool {
        match self {
            State::Completed | State::Canceled | State::Error | State::Deleted | State::DeleteFailed => true,
            State::Unspecified
            | State::Active
            | State::Paused
            | State::StoppingCompleted
            | State::StoppingCanceled
            | State::StoppingError
            | State::StoppingKilled
            | State::Deleting
            | State::Queued
            | State::Pulling
            | State::Starting
            | State::Running => false,
        }
    }

    /// Whether it has been told to end, or ends by itself, and is about to have.
    pub fn is_stopping(self) -> bool {
        use State::{StoppingCanceled, StoppingCompleted, StoppingError, StoppingKilled};
        matches!(self, StoppingCompleted | StoppingCanceled | StoppingError | StoppingKilled)
    }

    /// The state of an experiment whose trials run elsewhere: that of the most advanced one, by
    /// paused < error < completed < running; paused without trials.
    pub fn of_detached_experiment(trials: impl IntoIterator<Item = State>) -> State {
        let advancement = |state: &State| match state {
            State::Running => 3,
            State::Completed => 2,
            State::Error => 1,
            State::Paused => 0,
            // What a client may set that has no place in the order counts as not yet started.
            _ => -1,
        };
        trials.into_iter().max_by_key(advancement).filter(|state| advancement(state) >= 0).unwrap_or(State::Paused)
    }
}

impl LogLevel {
    /// The word that a line of output starts with.
    pub fn word(self) -> &'static str {
        match self {
            LogLevel::Unspecified => "",
            LogLevel::Trace => "TRACE",
            LogLevel::Debug => "DEBUG",
            LogLevel::Info => "INFO",
            LogLevel::Warning => "WARNING",
            LogLevel::Error => "ERROR",
            LogLevel::Critical => "CRITICAL",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn a_detached_experiment_follows_its_most_advanced_trial() {
        use State::{Completed, Error, Paused, Running};
        let cases: &[(&[State], State)] = &[
            (&[], Paused),
            (&[Paused], Paused),
            (&[Paused, Error], Error),
            (&[Completed, Error, Paused], Completed),
            (&[Completed, Running, Error], Running),
        ];
        for (trials, expected) in cases {
            assert_eq!(State::of_detached_experiment(trials.iter().copied()), *expected, "{trials:?}");
        }
    }
}
