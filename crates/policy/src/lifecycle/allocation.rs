//! One run of a trial, from the wish for slots to the end of its last process.

use std::time::Duration;

use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};

/// A kill that nothing has come of is said again after this long.
pub const KILL_AGAIN: Duration = Duration::from_secs(30);

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for slots.
    Asked,
    /// It has slots; its shares are being started.
    Assigned,
    /// All shares have started.
    Running,
    /// Its script can hear signals.
    Ready,
}

/// How it is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The script is asked to.
    Gently,
    /// Its processes are ended.
    AtOnce,
}

/// What has been done to stop it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Stopping {
    /// Nothing.
    Not,
    /// The script was asked to.
    Asked {
        /// When the grace period ends.
        deadline: Timestamp,
        /// For people.
        why: String,
    },
    /// Its processes are being ended.
    Killing {
        /// When to say it again.
        again: Timestamp,
        /// For people.
        why: String,
    },
}

/// What stopping an allocation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Nothing runs yet: it is only taken out of the queue.
    Withdraw,
    /// Ask the script.
    Preempt(Timestamp),
    /// End its processes.
    Kill,
    /// All that can be done was done before.
    Nothing,
}

/// One run of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The run's number.
    pub run: u32,
    /// How far it has come.
    pub phase: Phase,
    /// What has been done to stop it.
    pub stopping: Stopping,
    /// The script said that it stops although it is not done.
    pub acknowledged: bool,
}

impl Allocation {
    /// A run that waits for slots.
    pub fn asked(run: u32) -> Allocation {
        Allocation { run, phase: Phase::Asked, stopping: Stopping::Not, acknowledged: false }
    }

    /// It has come further; never back.
    pub fn reached(&mut self, phase: Phase) -> bool {
        let news = phase > self.phase;
        self.phase = self.phase.max(phase);
        news
    }

    /// Stops it in the gentlest way that works: a script that cannot hear yet is not asked.
    pub fn stop(&mut self, manner: Manner, why: &str, grace_period: Duration, now: Timestamp) -> Measure {
        match (self.phase, &self.stopping, manner) {
            (Phase::Asked, ..) => Measure::Withdraw,
            (_, Stopping::Killing { .. }, _) | (_, Stopping::Asked { .. }, Manner::Gently) => Measure::Nothing,
            (Phase::Ready, Stopping::Not, Manner::Gently) => {
                let deadline = after(now, grace_period);
                self.stopping = Stopping::Asked { deadline, why: why.to_owned() };
                Measure::Preempt(deadline)
            }
            _ => {
                self.stopping = Stopping::Killing { again: after(now, KILL_AGAIN), why: why.to_owned() };
                Measure::Kill
            }
        }
    }

    /// When something must be done even if nothing happens.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.stopping {
            Stopping::Not => None,
            Stopping::Asked { deadline, .. } => Some(deadline),
            Stopping::Killing { again, .. } => Some(again),
        }
    }
}

/// A moment, and this long after it.
pub fn after(moment: Timestamp, grace_period: Duration) -> Timestamp {
    let microseconds = i64::try_from(grace_period.as_micros()).unwrap_or(i64::MAX);
    Timestamp(moment.0.saturating_add(microseconds))
}
