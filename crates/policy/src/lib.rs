//! Every decision instep takes, as pure functions of events and time.
//!
//! Nothing in this crate does I/O, reads a clock or draws a random number that does not follow from a seed: time comes in as an argument, and each
//! decision goes out together with the sentence that explains it. The shells that perform the decisions live in the
//! crates that own the sockets and the processes.
//!
//! - [`engine`]: which jobs an engine such as Slurm is to run, and whose agents are let in.
//! - [`filter`]: which experiments or runs a search means, and in which order.
//! - [`heartbeat`]: when a trial that runs elsewhere has been silent for too long.
//! - [`lifecycle`]: experiments, their trials and the trials' runs.
//! - [`membership`]: who is in a job, when a round of it starts, restarts and ends.
//! - [`permissions`]: who may do what in which workspace.
//! - [`recovery`]: what follows when a rank is lost inside a round whose other ranks keep their step.
//! - [`retention`]: which checkpoints are kept.
//! - [`schedule`]: who gets which slots, and why the others wait.
//! - [`failure_detector`]: when a peer that should send heartbeats has been silent for too long.
//! - [`election`]: what a launcher does when its coordinator is gone.
//! - [`versions`]: which agents a master works with.
//! - [`search`]: which trials an experiment runs, and which of them stop early.

pub mod election;
pub mod engine;
pub mod failure_detector;
pub mod filter;
pub mod heartbeat;
pub mod lifecycle;
pub mod membership;
pub mod permissions;
pub mod recovery;
pub mod retention;
pub mod schedule;
pub mod search;
pub mod versions;
