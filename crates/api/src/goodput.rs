//! Goodput: what became of the time of ranks, by class.
//!
//! The launcher on each node adds it up for its own ranks ([`NodeGoodput`]); the master adds up what it hears of a trial's
//! allocations ([`TrialGoodput`]).

use serde::{Deserialize, Serialize};

/// No node runs more ranks.
const MOST_RANKS: u32 = 4096;
/// Nobody does more steps: who adds such numbers up need not fear for the sum.
const MOST_STEPS: u64 = 1 << 48;
/// By how much the classes of a report may miss the time of its ranks.
const ROUNDING: f64 = 0.001;
/// By how much the clocks of two machines may disagree about a duration: a share of it, and seconds.
const DISAGREEMENT: (f64, f64) = (0.01, 1.0);

/// Seconds of each class, the sum of all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/concepts/goodput.md defines them")]
pub struct ClassSeconds {
    pub start: f64,
    pub compute: f64,
    pub communication: f64,
    pub data: f64,
    pub checkpoint: f64,
    pub restart: f64,
    pub lost: f64,
    pub idle: f64,
    pub unobserved: f64,
}

impl ClassSeconds {
    /// Each with its name, in the order in which they are shown.
    pub fn all(&self) -> [(&'static str, f64); 9] {
        [
            ("start", self.start),
            ("compute", self.compute),
            ("communication", self.communication),
            ("data", self.data),
            ("checkpoint", self.checkpoint),
            ("restart", self.restart),
            ("lost", self.lost),
            ("idle", self.idle),
            ("unobserved", self.unobserved),
        ]
    }

    /// Of all classes.
    pub fn sum(&self) -> f64 {
        self.all().into_iter().map(|(_, seconds)| seconds).sum()
    }

    /// Of what is training and counts.
    pub fn training(&self) -> f64 {
        self.compute + self.communication + self.data
    }

    /// The effective training time ratio; none where processes ran of which nothing is known, or no time has passed.
    pub fn ettr(&self) -> Option<f64> {
        let sum = self.sum();
        (sum > 0.0 && self.unobserved == 0.0).then(|| self.training() / sum)
    }

    /// Adds those of others.
    pub fn add(&mut self, other: &ClassSeconds) {
        self.start += other.start;
        self.compute += other.compute;
        self.communication += other.communication;
        self.data += other.data;
        self.checkpoint += other.checkpoint;
        self.restart += other.restart;
        self.lost += other.lost;
        self.idle += other.idle;
        self.unobserved += other.unobserved;
    }

    /// A share of the training, 0 to 1, was in vain.
    pub fn lose(&mut self, share: f64) {
        for class in [&mut self.compute, &mut self.communication, &mut self.data] {
            self.lost += *class * share;
            *class -= *class * share;
        }
    }
}

/// How far sessions came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCount {
    /// Steps that were done when training began.
    pub first: u64,
    /// Steps that are done.
    pub done: u64,
    /// Steps that were begun again because a rank was lost.
    pub redone: u64,
    /// Steps that were done and had to be done again because all ranks restarted.
    pub taken_back: u64,
}

/// What a launcher says of its node's ranks. Nothing but zeros: none was ever started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeGoodput {
    /// How many there are.
    pub ranks: u32,
    /// How long the launcher ran.
    pub wall_seconds: f64,
    /// They add up to the time that the launcher ran, for each rank; less for ranks that moved there from a lost node.
    pub seconds: ClassSeconds,
    /// None without a session.
    #[serde(default)]
    pub steps: Option<StepCount>,
}

impl NodeGoodput {
    /// Whether it can be true of a node that ran for so many seconds: a task may report anything.
    pub fn is_plausible(&self, allotted_seconds: f64) -> bool {
        let (relative, absolute) = DISAGREEMENT;
        let expected = f64::from(self.ranks) * self.wall_seconds;
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let counts = |steps: StepCount| {
            let StepCount { first, done, redone, taken_back } = steps;
            first <= done && [done, redone, taken_back].iter().all(|count| *count <= MOST_STEPS)
        };
        self.ranks <= MOST_RANKS
            && is_time(self.wall_seconds)
            && self.wall_seconds <= allotted_seconds * (1.0 + relative) + absolute
            && self.seconds.all().iter().all(|(_, seconds)| is_time(*seconds))
            && self.seconds.sum() <= expected * (1.0 + ROUNDING)
            && self.steps.is_none_or(counts)
    }
}

/// What became of the time of a trial, over all its allocations that have ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrialGoodput {
    /// How many there are.
    pub allocations: u32,
    /// For how long they had slots, one after the other.
    pub wall_seconds: f64,
    /// Ranks of the last of them.
    pub ranks: u32,
    /// They add up to the time of the allocations, for each of their ranks.
    pub seconds: ClassSeconds,
    /// The effective training time ratio; null where some time was not observed.
    pub ettr: Option<f64>,
    /// Steps that are done; null without a session.
    pub steps: Option<u64>,
    /// Steps that were begun again because a rank was lost.
    pub redone_steps: Option<u64>,
    /// Steps that were done and had to be done again because all ranks restarted.
    pub taken_back_steps: Option<u64>,
}

/// `GET /trials/{id}/goodput`
#[derive(Debug, Serialize, Deserialize)]
pub struct TrialGoodputResponse {
    /// Null before an allocation of the trial has ended, and for trials that run elsewhere.
    pub goodput: Option<TrialGoodput>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_that_cannot_be_true_are_recognised() {
        let seconds = ClassSeconds { start: 4.0, compute: 15.0, idle: 1.0, ..ClassSeconds::default() };
        let steps = Some(StepCount { first: 3, done: 9, redone: 1, taken_back: 2 });
        let good = NodeGoodput { ranks: 2, wall_seconds: 10.0, seconds, steps };
        assert!(good.is_plausible(10.0));
        assert!(good.is_plausible(9.5), "clocks may disagree");
        assert!(NodeGoodput::default().is_plausible(0.0), "nothing was started");
        let with = |change: fn(&mut NodeGoodput)| {
            let mut changed = good;
            change(&mut changed);
            changed
        };
        let cases: [(&str, NodeGoodput); 8] = [
            ("longer than it had slots", with(|it| (it.wall_seconds, it.seconds.compute) = (100.0, 195.0))),
            ("classes that do not add up", with(|it| it.seconds.compute += 1.0)),
            ("time without ranks", with(|it| it.ranks = 0)),
            ("too many ranks", with(|it| it.ranks = 5000)),
            ("negative time", with(|it| (it.seconds.compute, it.seconds.idle) = (-1.0, 17.0))),
            ("no number", with(|it| it.seconds.compute = f64::NAN)),
            ("more than all", with(|it| it.wall_seconds = f64::INFINITY)),
            ("steps backwards", with(|it| it.steps = Some(StepCount { first: 9, done: 3, ..StepCount::default() }))),
        ];
        for (what, report) in cases {
            assert!(!report.is_plausible(10.0), "{what}");
        }
        assert!(!with(|it| it.steps = Some(StepCount { redone: u64::MAX, ..StepCount::default() })).is_plausible(10.0));
    }

    #[test]
    fn lost_training_stays_in_the_sum() {
        let mut seconds = ClassSeconds { start: 1.0, compute: 6.0, data: 2.0, ..ClassSeconds::default() };
        seconds.lose(0.25);
        assert_eq!((seconds.lost, seconds.compute, seconds.data, seconds.sum()), (2.0, 4.5, 1.5, 9.0));
        assert_eq!(seconds.ettr(), Some(6.0 / 9.0));
    }
}
