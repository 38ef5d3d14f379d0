//! This node's workers: their environment, their processes, and the guardian that outlives the launcher.

pub mod environment;
pub(crate) mod exit_watch;
pub(crate) mod group;
pub mod guardian;
pub(crate) mod process;
pub(crate) mod spawn;
