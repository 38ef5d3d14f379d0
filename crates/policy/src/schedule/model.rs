//! What a scheduling pass looks at, and what it answers.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::link::Serves;
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};

use super::reason::Reason;

/// The machines, by pool.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Cluster {
    pub pools: BTreeMap<String, Pool>,
}

/// Machines that share a queue.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    /// How its slots are given away.
    pub settings: Settings,
    /// Its machines, in any order.
    pub agents: Vec<Agent>,
}

/// How the slots of a pool are given away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// By which rule.
    pub rule: Rule,
    /// Which agent a task goes to.
    pub fitting: Fitting,
    /// Whether a task may span agents with different numbers of slots.
    pub heterogeneous: bool,
    /// How many tasks without slots an agent takes.
    pub most_without_slots: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rule: Rule::Priority { preemption: false },
            fitting: Fitting::Best,
            heterogeneous: false,
            most_without_slots: 100,
        }
    }
}

/// By which rule slots are given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Rule {
    /// The more important first; what is less important makes room if `preemption` is set.
    Priority {
        /// Whether running work makes room.
        preemption: bool,
    },
    /// Every job has its share.
    FairShare,
}

/// Which of the agents with room takes a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fitting {
    /// The fullest, so that large tasks find empty ones.
    Best,
    /// The emptiest, so that tasks disturb each other least.
    Worst,
}

/// A machine.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Agent {
    pub id: String,
    /// Whether it takes new work: connected, neither disabled nor draining.
    pub takes_work: bool,
    /// Whose tasks it takes.
    pub serves: Serves,
    /// What it lends.
    pub slots: Vec<Slot>,
}

/// One slot of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its number on the machine.
    pub id: u32,
    /// Whether it may be used.
    pub enabled: bool,
}

/// The work there is.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// By identifier.
    pub jobs: BTreeMap<String, Job>,
    /// What waits for slots, in any order.
    pub waiting: Vec<Request>,
    /// What has slots.
    pub running: Vec<Holder>,
}

/// An experiment, or a command: its tasks are scheduled alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// How people call it: "experiment 12".
    pub name: String,
    /// In which pool it runs.
    pub pool: String,
    /// From 1 to 99; the lower, the more important.
    pub priority: u32,
    /// Its share in a pool with fair shares.
    pub weight: f64,
    /// The most slots that it may hold at a time in a pool with fair shares.
    pub max_slots: Option<usize>,
    /// Its place among jobs of the same priority: the lower, the earlier. The time of submission in microseconds, unless
    /// somebody moved it.
    pub position: i64,
    /// When it was submitted.
    pub submitted: Timestamp,
}

/// An allocation that waits for slots.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Request {
    pub id: String,
    pub job: String,
    /// Whose it is: some machines serve one user only.
    pub user: String,
    /// How many it needs, all at once.
    pub slots: usize,
    /// Whether they must be on one machine.
    pub single_node: bool,
    /// Whether it can be asked to stop when others need its slots.
    pub preemptible: bool,
    /// Machines that it must not run on.
    pub excluded: BTreeSet<String>,
    /// When it was asked for: the order within a job.
    pub asked: Timestamp,
}

/// An allocation that has slots.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Holder {
    pub id: String,
    pub job: String,
    /// What it has.
    pub placement: Vec<Grant>,
    /// Whether it can be asked to stop when others need its slots.
    pub preemptible: bool,
    /// Whether it is stopping already, for whatever reason.
    pub stopping: bool,
    /// When it was asked for: the order within a job.
    pub asked: Timestamp,
}

/// What an allocation has on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Grant {
    pub agent: String,
    /// Which of its slots.
    pub slots: Vec<u32>,
}

/// What a pass decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedule {
    /// What starts now.
    pub start: Vec<Start>,
    /// What is asked to stop.
    pub preempt: Vec<Preempt>,
    /// What waits, the first in the queue first.
    pub waiting: Vec<Waiting>,
}

/// An allocation that starts now.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Start {
    pub request: String,
    /// Where, in the order of the nodes' ranks.
    pub placement: Vec<Grant>,
    /// It uses what somebody more important cannot use yet, and makes room for them when they can.
    pub backfilled: bool,
}

/// An allocation that is asked to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Preempt {
    pub allocation: String,
    /// For people.
    pub reason: String,
}

/// An allocation that waits.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Waiting {
    pub request: String,
    pub reason: Reason,
}
