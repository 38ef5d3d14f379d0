//! Whether a group is aborted, and why: the first verdict counts, for collectives and messages alike.

use std::sync::Arc;

use crate::arena::Arena;
use crate::arena::verdict::Verdict;
use crate::streams::Alarm;

/// What all parts of a group look at, and any of them can decide.
#[derive(Clone)]
pub(crate) enum Fate {
    /// In shared memory: all ranks see it at once.
    Arena(Arc<Arena>),
    /// In this process: the peers must be told.
    Streams(Arc<Alarm>),
    /// In the memory of this host, and in this process for those of other hosts, which must be told.
    Mixed(Arc<Arena>, Arc<Alarm>),
}

impl Fate {
    /// Aborts the group for this reason, unless it is aborted already.
    pub(crate) fn abort(&self, verdict: &Verdict) {
        match self {
            Fate::Arena(arena) => arena.abort(verdict),
            Fate::Streams(alarm) => alarm.abort(verdict),
            Fate::Mixed(arena, alarm) => {
                arena.abort(verdict);
                alarm.abort(&arena.verdict().unwrap_or_else(|| verdict.clone()));
            }
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        match self {
            Fate::Arena(arena) => arena.is_aborted(),
            Fate::Streams(alarm) => alarm.verdict().is_some(),
            Fate::Mixed(arena, alarm) => arena.is_aborted() || alarm.verdict().is_some(),
        }
    }

    /// Why the group is aborted, once it is.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self {
            Fate::Arena(arena) => arena.verdict(),
            Fate::Streams(alarm) => alarm.verdict().cloned(),
            Fate::Mixed(arena, alarm) => arena.verdict().or_else(|| alarm.verdict().cloned()),
        }
    }
}
