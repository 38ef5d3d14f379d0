//! The lifecycle of experiments: every action in every situation, and random sequences of events.
//!
//! `SEED=... cargo test -p instep-policy lifecycle` replays one sequence.

mod actions;
pub(crate) mod double;
mod ends;
mod life;
mod random;
mod searched;
