//! What an engine says of its jobs.

use std::fmt;

/// How an engine calls one of its jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A job, as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// How the engine calls it.
    pub job: JobId,
    /// What it was submitted for.
    pub allocation: String,
    /// How far it is.
    pub phase: Phase,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It has no nodes yet.
    Waiting {
        /// In the engine's own words.
        reason: String,
    },
    /// It has nodes.
    Running {
        /// As the engine writes them.
        nodes: String,
    },
    /// Its processes are being ended.
    Ending,
    /// Nothing of it is left.
    Ended {
        /// In the engine's own words.
        why: String,
        /// It ended by itself: what its agents have said before is all that there is to know.
        in_order: bool,
    },
}

impl Phase {
    /// Whether it may still start processes.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self, Phase::Waiting { .. } | Phase::Running { .. })
    }
}
