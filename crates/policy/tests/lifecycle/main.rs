//! The lifecycle of experiments: every action in every situation, and random sequences of events.
//!
//! `SEED=... cargo test -p instep-policy --test lifecycle` replays one sequence.

mod actions;
mod double;
mod ends;
mod life;
mod random;
mod searched;
