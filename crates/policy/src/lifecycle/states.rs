//! Which states may follow which: Determined's tables, as functions.

use instep_api::states::State;

use State::{
    Active, Canceled, Completed, Error, Paused, StoppingCanceled, StoppingCompleted, StoppingError, StoppingKilled,
};

/// Whether an experiment may go from one state to the other.
pub fn experiment_may(from: State, to: State) -> bool {
    match from {
        Active | Paused => match to {
            Active | Paused => from != to,
            StoppingKilled | StoppingCanceled | StoppingCompleted | StoppingError | Error => true,
            _ => false,
        },
        StoppingCanceled => matches!(to, Canceled | StoppingKilled | StoppingError | Error),
        StoppingKilled => matches!(to, Canceled | StoppingError | Error),
        StoppingCompleted => matches!(to, Completed | StoppingError | Error),
        StoppingError => to == Error,
        // Only `continue` wakes what has ended.
        Completed | Canceled | Error => matches!(to, Active | State::Deleting),
        State::Deleting => to == State::DeleteFailed,
        State::DeleteFailed => to == State::Deleting,
        _ => false,
    }
}

/// Whether a trial may go from one state to the other.
pub fn trial_may(from: State, to: State) -> bool {
    match (urgency(from), urgency(to)) {
        (Some(had), Some(wanted)) => wanted > had,
        _ if from == Active && to == Completed => true,
        _ => experiment_may(from, to) && to != State::Deleting,
    }
}

/// How a stopping state ranks: trials only go up.
fn urgency(state: State) -> Option<u8> {
    match state {
        StoppingCompleted => Some(0),
        StoppingCanceled => Some(1),
        StoppingKilled | StoppingError => Some(2),
        _ => None,
    }
}

/// The end that a stopping state leads to.
pub fn terminal_of(stopping: State) -> Option<State> {
    match stopping {
        StoppingCompleted => Some(Completed),
        StoppingCanceled | StoppingKilled => Some(Canceled),
        StoppingError => Some(Error),
        _ => None,
    }
}

/// The state on the way to an end, for what cannot get there directly.
pub fn stopping_for(terminal: State) -> State {
    match terminal {
        Completed => StoppingCompleted,
        Error => StoppingError,
        _ => StoppingCanceled,
    }
}

/// Whether it is on its way to an end.
pub fn is_stopping(state: State) -> bool {
    terminal_of(state).is_some()
}

/// The state as people write it: `ACTIVE`.
pub fn word(state: State) -> &'static str {
    state.as_str().trim_start_matches("STATE_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 9] = [
        Active,
        Paused,
        StoppingCompleted,
        StoppingCanceled,
        StoppingKilled,
        StoppingError,
        Completed,
        Canceled,
        Error,
    ];

    #[test]
    fn experiments_go_where_the_table_says() {
        let table: &[(State, &[State])] = &[
            (Active, &[Paused, StoppingCompleted, StoppingCanceled, StoppingKilled, StoppingError, Error]),
            (Paused, &[Active, StoppingCompleted, StoppingCanceled, StoppingKilled, StoppingError, Error]),
            (StoppingCompleted, &[StoppingError, Completed, Error]),
            (StoppingCanceled, &[StoppingKilled, StoppingError, Canceled, Error]),
            (StoppingKilled, &[StoppingError, Canceled, Error]),
            (StoppingError, &[Error]),
            (Completed, &[Active]),
            (Canceled, &[Active]),
            (Error, &[Active]),
        ];
        for (from, allowed) in table {
            let found: Vec<State> = ALL.into_iter().filter(|to| experiment_may(*from, *to)).collect();
            assert_eq!(found, *allowed, "{from:?}");
        }
        assert!(experiment_may(Completed, State::Deleting) && experiment_may(State::Deleting, State::DeleteFailed));
    }

    #[test]
    fn trials_complete_directly_and_their_stopping_only_escalates() {
        assert!(trial_may(Active, Completed) && !trial_may(Paused, Completed));
        let order = [StoppingCompleted, StoppingCanceled, StoppingKilled];
        for (had, from) in order.into_iter().enumerate() {
            for (wanted, to) in order.into_iter().enumerate() {
                assert_eq!(trial_may(from, to), wanted > had, "{from:?} to {to:?}");
            }
        }
        assert!(!trial_may(StoppingKilled, StoppingError) && !trial_may(StoppingError, StoppingKilled));
        assert!(trial_may(StoppingKilled, Error) && trial_may(Canceled, Active));
    }
}
