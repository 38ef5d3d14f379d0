//! Plans and the coordinator, through what the crate offers.

mod coordinator;
mod plan;
mod recovery;
mod scheduler;
mod token;
