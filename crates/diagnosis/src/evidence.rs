//! What is known of each rank before anything is concluded.

use instep_recorder::Snapshot;
use serde::{Deserialize, Serialize};

use crate::stacks::Thread;

/// Everything about one rank, of this machine or as another one sent it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Evidence {
    /// Its number in the job; none for a process that has none.
    pub rank: Option<u32>,
    /// Where it runs.
    pub host: String,
    pub process: u32,
    /// What the kernel says of that.
    pub condition: Condition,
    /// The function of the kernel in which its main thread waits.
    pub waits_in: Option<String>,
    /// Its flight recorder's file, if it has one that can be read.
    pub records: Option<Snapshot>,
    /// What its threads do.
    pub stacks: Stacks,
    /// Its main thread was at the same place whenever it was looked at.
    pub still: bool,
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It lives; the letter is the kernel's.
    Alive(char),
    /// Somebody stopped it, or a debugger holds it.
    Stopped,
    /// It is gone, and did not say that it would.
    Dead,
    /// It is gone, and had said so; or its launcher ended it when another had failed.
    Ended,
}

impl Condition {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Alive('R') => "running",
            Condition::Alive('D') => "in the kernel",
            Condition::Alive(_) => "asleep",
            Condition::Stopped => "stopped",
            Condition::Dead => "dead",
            Condition::Ended => "ended",
        }
    }
}

/// What a process does, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stacks {
    /// Every thread with Python frames.
    Known {
        /// The main one first.
        threads: Vec<Thread>,
        /// Some thread holds the interpreter in native code.
        held: bool,
    },
    /// Why not.
    Unknown(String),
}

impl Stacks {
    /// The main thread's frames, if they are known.
    pub fn main(&self) -> Option<&Thread> {
        match self {
            Stacks::Known { threads, .. } => threads.first(),
            Stacks::Unknown(_) => None,
        }
    }
}
