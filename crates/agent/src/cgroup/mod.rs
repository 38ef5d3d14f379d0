//! Limits of tasks: how much memory, how many processes and which part of the CPU each may take, by Linux's control groups.
//!
//! | module | part |
//! |---|---|
//! | [`hierarchy`] | where this process is among the groups; pure |
//! | [`limits`] | what a task may take, and the files that say so; pure |
//! | [`groups`] | the agent's side: makes a group for each task, removes what is left |
//! | [`task_group`] | a task's group: joined, ended, asked whether memory ran out |
//!
//! ```text
//! the agent's own group                      what the administrator gave the agent
//!   instep-NAME-HASH/                        all tasks of the agent together
//!     SHARE/                                 one task, with everything that it starts
//!   instep-agent/                            the agent itself; version 2 alone, where no group with groups holds processes
//! ```
//!
//! Groups lie below the agent's own, so a limit on the agent holds for its tasks. Guardians stay outside of their task's
//! group: neither a lack of memory nor of processes in there stops them from ending it.

pub mod groups;
pub mod hierarchy;
pub mod limits;
pub mod task_group;

use serde::{Deserialize, Serialize};

/// What groups limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    /// All that are used.
    pub const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

    /// As Linux calls it.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
        }
    }

    /// As people call what it limits.
    pub fn limits(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "processes",
            Controller::Cpu => "CPU",
        }
    }
}

/// Which of Linux's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// A tree for each controller.
    V1,
    /// One tree.
    V2,
}
