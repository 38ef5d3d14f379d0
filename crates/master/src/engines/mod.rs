//! Engines: schedulers of a site, such as Slurm, which start agents for allocations in place of agents that lend slots.
//!
//! A pool of the master names its engine ([`options`]). For each allocation there the engine runs one job, which starts
//! `instep agent --for ALLOCATION` on each of its nodes. Which jobs there are to be is decided by
//! [`instep_policy::engine`], inside the cluster's task; here is what speaks with an engine (`ResourceManager`), one
//! call at a time (`line`). `slurm` does so for Slurm, with its commands, whose output `slurm_output` reads.

pub(crate) mod line;
pub mod options;
pub(crate) mod slurm;
pub(crate) mod slurm_output;

use instep_policy::engine::{JobId, Seen};

/// What an engine is to run for one allocation.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Gang {
    pub allocation: String,
    /// For people: what it runs, and whose it is.
    pub title: String,
    pub pool: String,
    pub nodes: u32,
    /// Of each node; 0 for a task without slots.
    pub slots_per_node: u32,
    /// Instead of the pool's own.
    pub gpu_type: Option<String>,
    /// What the task's configuration says besides, in the engine's own words.
    pub arguments: Vec<String>,
    /// Nodes that it must not get.
    pub excluded: Vec<String>,
    /// What its agents show.
    pub token: String,
}

/// Something that runs jobs. Calls come one at a time, and each has a deadline of its own.
pub(crate) trait ResourceManager: Send + Sync + 'static {
    /// Submits a job of an allocation. Nobody knows of a job whose call failed: it is looked for in the list.
    fn submit(&self, gang: &Gang) -> impl Future<Output = Result<JobId, String>> + Send;

    /// Cancels jobs; those that have ended are no error.
    fn cancel(&self, jobs: &[JobId]) -> impl Future<Output = Result<(), String>> + Send;

    /// Lists all jobs of this cluster that the engine knows, the oldest first.
    fn list(&self) -> impl Future<Output = Result<Vec<Seen>, String>> + Send;
}
