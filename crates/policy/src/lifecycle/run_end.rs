//! What becomes of a trial whose allocation has ended.

use instep_api::states::State;
use serde::{Deserialize, Serialize};

use super::states::terminal_of;

/// How an allocation ended, all of its shares together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// All shares ended by themselves: with 0, or the first failure was this one.
    Exited {
        /// 128 + n after signal n.
        code: i32,
    },
    /// The master ended it while nothing of it had ended by itself.
    Killed,
    /// It did not get as far as its entrypoint, for no fault of the script: launching it failed, or it was not to be
    /// found after a restart of the master.
    NotStarted {
        /// For people.
        why: String,
    },
    /// Its agent is gone.
    Lost {
        /// For people.
        why: String,
    },
    /// Trying again changes nothing: no arrangement of the cluster could run it, or it may not start any more.
    Impossible {
        /// For people.
        why: String,
    },
}

/// What is known of a trial when its allocation ends.
#[derive(Debug, Clone, Copy)]
pub struct RunContext<'a> {
    /// Of the trial.
    pub state: State,
    /// The script said that it stops without being done.
    pub acknowledged: bool,
    /// The name of a log policy that matched and forbids further attempts.
    pub no_retries: Option<&'a str>,
    /// Restarts counted so far.
    pub restarts: u32,
    /// How many are allowed.
    pub max_restarts: u32,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterRun {
    /// The trial is over.
    Finished {
        /// Where it ends.
        state: State,
        /// For people.
        why: String,
    },
    /// It is to run again as soon as it is active.
    Again {
        /// Whether this counts against the allowed restarts.
        counted: bool,
        /// Whether a new attempt at once would only fail again.
        wait: bool,
        /// For people.
        why: String,
    },
}

/// Decides. The rows of the table are the rows of the test below.
pub fn after_run(of: RunContext<'_>, end: &End) -> AfterRun {
    let failed = matches!(end, End::Exited { code } if *code != 0);
    if let Some(terminal) = terminal_of(of.state) {
        return match end {
            End::Exited { code } if failed => {
                finished(State::Error, format!("it ended with exit code {code} while it was being stopped"))
            }
            _ => finished(terminal, "it was stopped".to_owned()),
        };
    }
    match end {
        End::Exited { code: 0 } if of.acknowledged => again(false, "it stopped when it was asked to".to_owned()),
        End::Exited { code: 0 } => finished(State::Completed, "its script ended with exit code 0".to_owned()),
        End::Exited { code } => after_failure(of, *code),
        End::Killed => again(false, "the master stopped it".to_owned()),
        End::Lost { why } => again(false, format!("its agent was lost: {why}")),
        End::NotStarted { why } => {
            AfterRun::Again { counted: false, wait: true, why: format!("it could not be started: {why}") }
        }
        End::Impossible { why } => finished(State::Error, why.clone()),
    }
}

fn after_failure(of: RunContext<'_>, code: i32) -> AfterRun {
    if let Some(policy) = of.no_retries {
        return finished(State::Error, format!("trial failed and matched logs to a don't retry policy: {policy}"));
    }
    if of.restarts >= of.max_restarts {
        let why = format!("its script ended with exit code {code} and all {} restarts are used up", of.max_restarts);
        return finished(State::Error, why);
    }
    again(true, format!("its script ended with exit code {code}: restart {} of {}", of.restarts + 1, of.max_restarts))
}

fn finished(state: State, why: String) -> AfterRun {
    AfterRun::Finished { state, why }
}

fn again(counted: bool, why: String) -> AfterRun {
    AfterRun::Again { counted, wait: false, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{
        Active, Canceled, Completed, Error, Paused, StoppingCanceled, StoppingCompleted, StoppingError, StoppingKilled,
    };

    const FRESH: RunContext<'static> =
        RunContext { state: Active, acknowledged: false, no_retries: None, restarts: 0, max_restarts: 2 };

    fn lost() -> End {
        End::Lost { why: "no word of it".to_owned() }
    }

    fn not_started() -> End {
        End::NotStarted { why: "the disk is full".to_owned() }
    }

    /// A row's expectation: where it ends, or whether the new attempt counts.
    #[derive(Debug, PartialEq)]
    enum Row {
        Ends(State),
        Counted,
        Uncounted,
    }

    fn row(of: RunContext<'_>, end: &End) -> Row {
        match after_run(of, end) {
            AfterRun::Finished { state, .. } => Row::Ends(state),
            AfterRun::Again { counted: true, .. } => Row::Counted,
            AfterRun::Again { counted: false, .. } => Row::Uncounted,
        }
    }

    #[test]
    fn a_trial_that_is_being_stopped_ends_where_it_was_going() {
        let ends = [End::Exited { code: 0 }, End::Killed, lost(), not_started()];
        for (state, terminal) in [
            (StoppingCompleted, Completed),
            (StoppingCanceled, Canceled),
            (StoppingKilled, Canceled),
            (StoppingError, Error),
        ] {
            for end in &ends {
                for acknowledged in [false, true] {
                    let of = RunContext { state, acknowledged, ..FRESH };
                    assert_eq!(row(of, end), Row::Ends(terminal), "{state:?} {end:?}");
                }
            }
            assert_eq!(row(RunContext { state, ..FRESH }, &End::Exited { code: 1 }), Row::Ends(Error));
        }
    }

    #[test]
    fn every_row_of_the_table_for_trials_that_go_on() {
        let acknowledged = RunContext { acknowledged: true, ..FRESH };
        let forbidden = RunContext { no_retries: Some("CUDA OOM"), ..FRESH };
        let spent = RunContext { restarts: 2, ..FRESH };
        let none_allowed = RunContext { max_restarts: 0, ..FRESH };
        let impossible = End::Impossible { why: "no pool of that name".to_owned() };
        let rows = [
            (FRESH, End::Killed, Row::Uncounted),
            (none_allowed, End::Killed, Row::Uncounted),
            (acknowledged, End::Exited { code: 0 }, Row::Uncounted),
            (FRESH, End::Exited { code: 0 }, Row::Ends(Completed)),
            (FRESH, End::Exited { code: 1 }, Row::Counted),
            (acknowledged, End::Exited { code: 1 }, Row::Counted),
            (forbidden, End::Exited { code: 1 }, Row::Ends(Error)),
            (forbidden, End::Exited { code: 0 }, Row::Ends(Completed)),
            (forbidden, End::Killed, Row::Uncounted),
            (spent, End::Exited { code: 1 }, Row::Ends(Error)),
            (none_allowed, End::Exited { code: 137 }, Row::Ends(Error)),
            (none_allowed, lost(), Row::Uncounted),
            (none_allowed, not_started(), Row::Uncounted),
            (FRESH, impossible, Row::Ends(Error)),
        ];
        for state in [Active, Paused] {
            for (of, end, expected) in &rows {
                assert_eq!(row(RunContext { state, ..*of }, end), *expected, "{state:?} {of:?} {end:?}");
            }
        }
    }

    #[test]
    fn only_a_failed_start_waits_before_the_next() {
        assert!(matches!(after_run(FRESH, &not_started()), AfterRun::Again { wait: true, .. }));
        assert!(matches!(after_run(FRESH, &lost()), AfterRun::Again { wait: false, .. }));
    }
}
