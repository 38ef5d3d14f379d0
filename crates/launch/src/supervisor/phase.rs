//! Where this node is in its job, what follows when its workers are gone, and how the run ends.

use nix::sys::signal::Signal;

#[derive(Debug)]
pub(super) enum Phase {
    Waiting,
    Running,
    /// `then` is what happens once the workers are gone, where it is known already.
    Stopping {
        then: Option<AfterStop>,
    },
    Finished,
}

/// What happens when the workers are gone.
#[derive(Debug, Clone)]
pub(super) enum AfterStop {
    Rejoin,
    End(RunEnd),
}

/// How the run ends.
#[derive(Debug, Clone)]
pub(super) struct RunEnd {
    pub(super) success: bool,
    pub(super) reason: Option<String>,
    pub(super) signal: Option<Signal>,
}

impl RunEnd {
    pub(super) fn success() -> RunEnd {
        RunEnd { success: true, reason: None, signal: None }
    }

    pub(super) fn failure(reason: String) -> RunEnd {
        RunEnd { success: false, reason: Some(reason), signal: None }
    }
}
