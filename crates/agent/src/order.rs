//! What an agent writes down for a task: the master's order, and what the master cannot know of this machine.

use std::path::PathBuf;

use instep_api::link::{Device, Exit, RunAs, Share, Start};
use serde::{Deserialize, Serialize};

use crate::cgroup::task_group::TaskGroup;

/// Everything that a task needs. It holds the allocation's token, so only its owner may read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskOrder {
    /// As the master gave it.
    pub start: Start,
    /// Where it runs.
    pub machine: Machine,
    /// What limits it; `None` where nothing does.
    #[serde(default)]
    pub cgroup: Option<TaskGroup>,
}

/// What an agent has to know of a share that an earlier agent started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ShareRecord {
    pub share: Share,
    pub devices: Vec<u32>,
    #[serde(default)]
    pub cgroup: Option<TaskGroup>,
}

impl ShareRecord {
    /// What is kept of an order when the order itself is gone.
    pub fn of(order: &TaskOrder) -> ShareRecord {
        ShareRecord {
            share: order.start.share.clone(),
            devices: order.start.devices.clone(),
            cgroup: order.cgroup.clone(),
        }
    }
}

/// A machine, as its tasks need to know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The agent's name.
    pub agent: String,
    /// The master's address as the agent reaches it.
    pub master: String,
    /// All addresses of the cluster, if there are several.
    #[serde(default)]
    pub masters: String,
    /// A file of certificates to trust instead of the public ones.
    pub certificates: Option<PathBuf>,
    /// Changes with every start of the master.
    pub master_id: String,
    /// Never changes.
    pub cluster_id: String,
    /// The devices of this share.
    pub devices: Vec<Device>,
    /// The interpreter of tasks.
    pub python: PathBuf,
    /// This program.
    pub binary: PathBuf,
    /// How long a task runs on without news of the master.
    pub window_seconds: u32,
    /// As whom tasks of users without a Unix user run, where the agent may choose.
    pub default_user: RunAs,
    /// What tasks of other users may have mounted.
    pub allowed_mounts: Vec<AllowedMount>,
}

/// A folder of the machine that tasks may have mounted, with everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct AllowedMount {
    /// Without links.
    pub path: PathBuf,
    pub writable: bool,
}

/// That a share is to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// Between SIGTERM and SIGKILL.
    pub grace_seconds: u32,
    /// For people.
    pub why: String,
    /// Because agent and master have lost each other, and not on the master's word.
    pub lost: bool,
}

impl StopOrder {
    /// What a share has come to that ended by this.
    pub fn exit(&self) -> Exit {
        if self.lost { Exit::Lost { why: self.why.clone() } } else { Exit::Killed }
    }
}
