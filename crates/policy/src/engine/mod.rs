//! Which jobs an engine, such as Slurm, is to run for allocations, and whose agents are let in.
//!
//! An engine delivers agents that are bound to one allocation: its job starts one on each node, and when all are there,
//! the allocation starts on them as on any others. The engine remembers its jobs, each by the allocation's name; this table
//! remembers nothing over a restart, and asks for a list first. It does no I/O and reads no clock: what happened comes in
//! as calls, and what is to be done goes out as [`Action`]s. Whoever carries these out does one at a time for each engine,
//! so that a list shows every job whose submission was answered before.
//!
//! Invariants, cited by the tests:
//!
//! - E1: a job is submitted only for an allocation that waits, and after a failed or forgotten attempt only when a list
//!   shows none.
//! - E2: only agents of the one job that counts are let in, one on each of its nodes; the others are told to leave.
//! - E3: a job whose allocation has ended, and every second job of an allocation, is cancelled until it has ended.
//! - E4: an allocation that waits ends with its job, and for the reason that the engine gives.

mod jobs;
mod seen;

pub use jobs::{Action, Jobs, Ready, Wanted};
pub use seen::{JobId, Phase, Seen};
