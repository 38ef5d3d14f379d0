//! The scheduler: the facts that users of Determined rely on, the sentences people see, and random clusters.
//!
//! `SEED=... cargo test -p instep-policy schedule` replays one random cluster.

mod fair_share;
mod fitting;
mod priority;
mod queue;
mod random;
mod reasons;
mod tenants;
mod world;
