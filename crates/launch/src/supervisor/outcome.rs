//! How a run ended: for the report, the summary and the exit code.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use crate::drill;
use crate::failure::cause::Cause;
use crate::failure::{self, Failure};
use crate::goodput::Goodput;

/// How a run ended.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Outcome {
    /// All ranks on all nodes ended with 0.
    pub success: bool,
    pub reason: Option<String>,
    /// The signal that ended it.
    pub signal: Option<Signal>,
    /// Workers of the last round that did not end well, in order of observation, and the one that caused that; those of
    /// other nodes only if they caused the end.
    pub failures: Vec<Failure>,
    /// Who caused the end.
    pub cause: Option<Cause>,
    pub rounds: u64,
    /// Restarts spent.
    pub restarts: u32,
    /// Ranks replaced inside rounds, over all nodes.
    pub replacements: u64,
    /// How often the ranks met again after that, and kept their step.
    pub recoveries: u64,
    /// Workers in the last round, over all nodes.
    pub world_size: usize,
    /// Rank of this node in the last round.
    pub group_rank: Option<usize>,
    /// When the launcher started.
    pub started: SystemTime,
    /// How long it ran.
    pub duration: Duration,
    /// Where the logs are.
    pub log_directory: Option<PathBuf>,
    /// What became of the time of this node's ranks; none if none was started.
    pub goodput: Option<Goodput>,
    /// What a drill found, if there was one.
    pub drill: Option<drill::Report>,
}

impl Outcome {
    /// What is known of the rank that caused the end; `None` if it is not known, or not from here.
    pub fn root_cause(&self) -> Option<&Failure> {
        let rank = self.cause.as_ref()?.rank()?;
        self.failures.iter().find(|failure| failure.rank == rank)
    }

    /// The first failure that was seen, cause or not.
    pub fn first_failure(&self) -> Option<&Failure> {
        let by_time = |a: &&Failure, b: &&Failure| a.time.total_cmp(&b.time);
        let failed = || self.failures.iter().filter(|failure| !failure.exit.success());
        failed().filter(|failure| !failure.after_stop).min_by(by_time).or_else(|| failed().next())
    }

    /// Why it ended, in a sentence.
    pub fn explanation(&self) -> Option<String> {
        self.cause.as_ref().map(|cause| failure::explain(cause, &self.failures))
    }
}
