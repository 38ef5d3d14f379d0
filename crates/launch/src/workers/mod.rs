//! This node's workers: their environment, their processes, and the guardian that outlives the launcher.

pub(crate) mod attempt;
pub mod environment;
pub mod guardian;
pub(crate) mod process;
pub(crate) mod spawn;
