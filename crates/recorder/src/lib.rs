//! The flight recorder: what each rank did last, in a file of its own that outlives it.
//!
//! | module | what it is for |
//! |---|---|
//! | [`Recorder`], [`GroupRecorder`] | a rank writes: plain stores into mapped memory, no system call |
//! | [`Snapshot`] | anybody reads, whatever the file holds and whoever writes to it meanwhile |
//! | [`Ledger`], [`Account`] | what the rank's time was spent on |
//! | [`stack_request`] | asking a process for its stacks |
//! | [`folder`] | where the files of a job lie, and when they go |
//! | [`clock`] | the time that files of one machine share |
//!
//! One file per process, with all of its groups: what a rank did in which order, over all groups, is what tells a deadlock
//! between two groups from a rank that is late; and a group can be made without a file being made. It has a fixed size of
//! 228 KiB: a header, 64 groups, and a ring of the last 1024 operations in which one that is under way is never overwritten.
//!
//! Promises:
//!
//! 1. Recording never fails an operation and never waits. What does not fit is counted, and left out.
//! 2. A reader never sees half a record: each has a version, odd while it is written.
//! 3. The room is allocated when the file is made. A disk that fills up later cannot end the process.
//! 4. A reader trusts nothing: any bytes give a snapshot or an error.

pub mod clock;
pub mod folder;
mod format;
mod ledger;
pub mod process;
mod reader;
pub mod stack_request;
mod writer;

pub use format::{Class, Group, Identity, Operation, State, Unreadable};
pub use ledger::{Account, Activity, Ledger, Steps};
pub use reader::Snapshot;
pub use writer::{Entry, GroupRecorder, Recorder, Started};
