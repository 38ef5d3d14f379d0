//! The database through its public calls, each test with a file of its own.

mod audit;
mod chunks;
mod history;
mod made;
mod managed;
mod metrics;
mod templates;
mod trials;
