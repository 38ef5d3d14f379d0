//! Turns rows of Determined into records of ours. Pure: what they need to know of other rows is an argument.

pub mod metrics;
pub mod people;
pub mod work;

use instep_api::states::State;

/// The state of something that has ended, or that ends by being taken over.
fn ended(state: &str) -> State {
    match state {
        "COMPLETED" | "STOPPING_COMPLETED" => State::Completed,
        "ERROR" | "STOPPING_ERROR" => State::Error,
        _ => State::Canceled,
    }
}
