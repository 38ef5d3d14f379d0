//! What the launcher shows; the binary implements it, so that this crate prints nothing itself.

use std::time::Duration;

use crate::output::logs::Stream;

/// The launcher's own terminal or pipes.
pub trait Console {
    /// Output of workers, ready to be shown: whole lines, or the start of one that did not end in time.
    fn output(&mut self, stream: Stream, bytes: &[u8]);

    /// Something a person should know, as one sentence.
    fn note(&mut self, note: Note);

    /// The state of the job; called about once a second while [`Console::wants_status`].
    fn status(&mut self, status: &Status);

    /// Whether a live status line is shown.
    fn wants_status(&self) -> bool;

    /// Whether this stream of the launcher is a terminal.
    fn is_terminal(&self, stream: Stream) -> bool;

    /// Whether both streams lead to the same place, so that their order matters.
    fn streams_are_one(&self) -> bool;
}

/// One sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// How things stand: waiting for a node, restarting.
    Progress(String),
    /// Something is not as it should be; the job goes on.
    Warning(String),
}

/// The state of the job, for the status line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// "waiting", "running", "stopping", "finished".
    pub phase: &'static str,
    /// Counts from 0.
    pub round: u64,
    /// Nodes in the round.
    pub nodes: usize,
    /// Workers in the round.
    pub world_size: usize,
    /// Workers alive on this node.
    pub alive: usize,
    /// Workers of this node.
    pub workers: usize,
    /// Restarts spent.
    pub restarts: u32,
    /// Restarts allowed.
    pub max_restarts: u32,
    /// Ranks replaced inside rounds.
    pub replacements: u64,
    /// Since the launcher started.
    pub uptime: Duration,
}
