//! Engines: schedulers of a site, such as Slurm, which start agents for allocations in place of agents that lend slots.
//!
//! A pool of the master names its engine ([`options`]). For each allocation there the engine runs one job, which starts
//! `instep agent --for ALLOCATION` on each of its nodes. Which jobs there are to be is decided by
//! [`instep_policy::engine`], inside the cluster's task; here is what speaks with an engine (`ResourceManager`), one
//! call at a time (`line`). `slurm` does so for Slurm, with its commands, whose output `slurm_output` reads; `kubernetes` for
//! Kubernetes, with its API.

pub mod kubernetes;
pub(crate) mod line;
pub mod options;
pub(crate) mod slurm;
pub(crate) mod slurm_output;

use instep_api::config::Environment;
use instep_policy::engine::{JobId, Seen};
use serde_json::{Map, Value};

use kubernetes::settings::KubernetesSettings;

/// What an engine is to run for one allocation.
#[derive(Clone, PartialEq)]
pub(crate) struct Gang {
    pub allocation: String,
    /// For people: what it runs, and whose it is.
    pub title: String,
    pub user: String,
    pub pool: String,
    pub nodes: u32,
    /// Of each node; 0 for a task without slots.
    pub slots_per_node: u32,
    /// Instead of the pool's own.
    pub gpu_type: Option<String>,
    /// What the task's configuration says besides, in the engine's own words.
    pub arguments: Vec<String>,
    /// What it runs in, for engines with images.
    pub container: Container,
    /// Nodes that it must not get.
    pub excluded: Vec<String>,
    /// What its agents show.
    pub token: String,
}

/// What `environment` of a configuration says about containers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Container {
    /// Instead of the pool's own.
    pub image: Option<String>,
    pub force_pull: bool,
    pub pod_spec: Option<Map<String, Value>>,
}

impl Container {
    pub(crate) fn of(environment: &Environment, has_slots: bool) -> Container {
        Container {
            image: environment.named_image(has_slots).map(str::to_owned),
            force_pull: environment.force_pull_image,
            pod_spec: environment.pod_spec.clone(),
        }
    }

    /// What a user may not say in a pool, for people.
    pub(crate) fn objection(&self, pool: &KubernetesSettings) -> Option<String> {
        let what = kubernetes::template::user_objection(self.pod_spec.as_ref()?, pool)?;
        Some(format!("environment.pod_spec: {what}"))
    }
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
