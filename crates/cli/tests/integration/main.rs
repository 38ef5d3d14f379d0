//! The commands that run tasks, as processes of their own.

mod agent;
mod scripted_master;
mod task;
mod wrap_rank;
