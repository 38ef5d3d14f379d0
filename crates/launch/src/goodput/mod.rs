//! Goodput: what became of the time of this node's ranks, from the launcher's start to its end.
//!
//! A rank's time is a line of processes, its spans, with gaps between them. Inside a span the process's own [`Account`] says
//! what it did; the gaps are the launcher's. So the classes of a rank add up to the wall time by construction; those of a
//! rank that moved here from a lost node, to the time since then.
//!
//! ```text
//!  launcher starts                     a rank is lost                          the job ends
//!  │── start ──┃ span: start, compute, … ┃── restart ──┃ span: restart, …  ┃── idle ──│
//! ```
//!
//! What is lost: attempts of steps that were given up, which accounts know; the attempt in which a process died, unless
//! its successor begins behind it; and, after a restart of all ranks, the share of steps that are done again. The
//! module is pure: `Book` is told what happened and when, `tally` adds it up.

mod book;
mod report;

pub(crate) use book::{Book, account_of};
pub use report::to_json;

use std::collections::BTreeMap;

use instep_recorder::{Account, Activity};

/// What a second of a rank was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// From the launcher's start until the rank trains for the first time.
    Start,
    /// Computing, in steps that count.
    Compute,
    /// Waiting for other ranks, where computing did not hide that.
    Communication,
    /// Waiting for a batch.
    Data,
    /// Saving and restoring with `instep.core`.
    Checkpoint,
    /// Between the loss of a process and training again.
    Restart,
    /// Work that had to be done again.
    Lost,
    /// After the rank's work: its process ends or has ended, and nothing follows.
    Idle,
    /// A process ran that kept no ledger.
    Unobserved,
}

impl Class {
    /// All, in the order in which they are shown.
    pub const ALL: [Class; 9] = [
        Class::Start,
        Class::Compute,
        Class::Communication,
        Class::Data,
        Class::Checkpoint,
        Class::Restart,
        Class::Lost,
        Class::Idle,
        Class::Unobserved,
    ];
    const TRAINING: [Class; 3] = [Class::Compute, Class::Communication, Class::Data];

    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Start => "start",
            Class::Compute => "compute",
            Class::Communication => "communication",
            Class::Data => "data",
            Class::Checkpoint => "checkpoint",
            Class::Restart => "restart",
            Class::Lost => "lost",
            Class::Idle => "idle",
            Class::Unobserved => "unobserved",
        }
    }
}

/// Nanoseconds of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times([u64; Class::ALL.len()]);

impl Times {
    /// So many seconds of each class, in the order of [`Class::ALL`].
    pub fn from_seconds(seconds: [u64; Class::ALL.len()]) -> Times {
        Times(seconds.map(|each| each.saturating_mul(1_000_000_000)))
    }

    /// Of one class.
    pub fn of(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    /// Of all.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Of what is training and counts.
    pub fn training(&self) -> u64 {
        Class::TRAINING.iter().map(|class| self.of(*class)).sum()
    }

    /// The effective training time ratio; none where processes ran of which nothing is known, or no time has passed.
    pub fn ettr(&self) -> Option<f64> {
        let sum = self.sum();
        (sum > 0 && self.of(Class::Unobserved) == 0).then(|| self.training() as f64 / sum as f64)
    }

    fn add(&mut self, class: Class, nanoseconds: u64) {
        self.0[class as usize] += nanoseconds;
    }

    fn add_all(&mut self, other: &Times) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, each)| *sum += each);
    }

    fn lose(&mut self, class: Class, nanoseconds: u64) {
        let lost = nanoseconds.min(self.of(class));
        self.0[class as usize] -= lost;
        self.add(Class::Lost, lost);
    }
}

/// The life of one process of a rank. Times are nanoseconds of the clock that accounts have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) local_rank: usize,
    /// The rank it had.
    pub(crate) rank: usize,
    /// The round it belongs to.
    pub(crate) round: u64,
    /// It took over a rank of a lost node: what that rank did before is not this node's.
    pub(crate) moved: bool,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// It ended otherwise than with 0.
    pub(crate) failed: bool,
    /// What it says of itself, if anything that can be.
    pub(crate) account: Option<Account>,
}

impl Span {
    /// The account, unless it tells of times at which the process was not there.
    fn believed(&self) -> Option<&Account> {
        self.account.as_ref().filter(|account| self.started <= account.born && account.since <= self.ended)
    }

    /// What the process did; `opening` is what its start counts as, `unknown` what it did if it does not say, `redone` whether
    /// the attempt was in vain in which it ended.
    fn times(&self, opening: Class, unknown: Class, redone: bool) -> Times {
        let mut times = Times::default();
        let Some(account) = self.believed() else {
            times.add(unknown, self.ended.saturating_sub(self.started));
            return times;
        };
        let class = |activity: Activity| match activity {
            Activity::Start => opening,
            Activity::Compute => Class::Compute,
            Activity::Communication => Class::Communication,
            Activity::Data => Class::Data,
            Activity::Checkpoint => Class::Checkpoint,
            Activity::Restart => Class::Restart,
            Activity::Lost => Class::Lost,
            Activity::Idle => Class::Idle,
        };
        times.add(opening, account.born - self.started);
        Activity::ALL.iter().for_each(|activity| times.add(class(*activity), account.spent(*activity)));
        let last = self.ended - account.since;
        times.add(class(account.activity), last);
        if let Some(attempt) = account.attempt().filter(|_| redone) {
            for (activity, nanoseconds) in Activity::PRODUCTIVE.into_iter().zip(attempt) {
                times.lose(class(activity), nanoseconds);
            }
            if Activity::PRODUCTIVE.contains(&account.activity) {
                times.lose(class(account.activity), last);
            }
        }
        times
    }
}

/// What a rank of this node did with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankGoodput {
    /// The rank it had last.
    pub rank: usize,
    /// Its number on this node.
    pub local_rank: usize,
    /// They add up to the wall time; for a rank that moved here, to the time since then.
    pub times: Times,
}

/// How far sessions came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCount {
    /// Steps that were done when training began.
    pub first: u64,
    /// Steps done.
    pub done: u64,
    /// Steps that were begun again because a rank was lost.
    pub redone: u64,
    /// Steps that were done and had to be done again because all ranks restarted.
    pub taken_back: u64,
}

/// What became of the time of this node's ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Goodput {
    /// From the launcher's start to the end of the last process, in nanoseconds.
    pub wall: u64,
    /// In the order of local ranks.
    pub ranks: Vec<RankGoodput>,
    /// None without a session.
    pub steps: Option<StepCount>,
}

impl Goodput {
    /// Of all ranks together.
    pub fn total(&self) -> Times {
        let mut total = Times::default();
        self.ranks.iter().for_each(|rank| total.add_all(&rank.times));
        total
    }
}

/// Adds up what happened between two moments. Spans of a local rank follow each other and lie in between.
pub(crate) fn tally(began: u64, ended: u64, spans: &[Span]) -> Goodput {
    let mut lines: BTreeMap<usize, Vec<&Span>> = BTreeMap::new();
    for span in spans {
        lines.entry(span.local_rank).or_default().push(span);
    }
    let restarts = Restarts::of(spans);
    let mut redone = None;
    let mut ranks = Vec::new();
    for (local_rank, line) in &lines {
        let mut times = Times::default();
        let moved = line.first().filter(|first| first.moved);
        let mut cursor = moved.map_or(began, |first| first.started);
        let mut attempts = None;
        let keeps_ledger = line.iter().any(|span| span.believed().is_some());
        for (index, span) in line.iter().enumerate() {
            let opening = if index == 0 && moved.is_none() { Class::Start } else { Class::Restart };
            let in_vain = span.failed && is_redone(span, line.get(index + 1).copied());
            times.add(opening, span.started.saturating_sub(cursor));
            // Where others of the rank have a ledger, one without had not come so far.
            let unknown = if span.failed && keeps_ledger { opening } else { Class::Unobserved };
            let mut own = span.times(opening, unknown, in_vain);
            restarts.take_back(span, &mut own);
            times.add_all(&own);
            if let Some(steps) = span.believed().and_then(|account| account.steps) {
                let died_in_one = span.believed().is_some_and(|account| account.attempt().is_some());
                let last = in_vain && died_in_one && index + 1 < line.len();
                attempts = Some(attempts.unwrap_or(0) + steps.redone + u64::from(last));
            }
            cursor = span.ended;
        }
        times.add(Class::Idle, ended.saturating_sub(cursor));
        let rank = line.last().map_or(0, |span| span.rank);
        ranks.push(RankGoodput { rank, local_rank: *local_rank, times });
        redone = redone.max(attempts);
    }
    let counts = || spans.iter().filter_map(|span| span.believed()?.steps);
    let steps = counts().map(|steps| steps.done).max().map(|done| StepCount {
        first: counts().next().map_or(0, |steps| steps.first),
        done,
        redone: redone.unwrap_or(0),
        taken_back: restarts.taken_back(),
    });
    Goodput { wall: ended.saturating_sub(began), ranks, steps }
}

/// Whether the attempt in which a process died was done again: its peers finish a step for which they had its part, and then
/// the successor begins behind it.
fn is_redone(span: &Span, successor: Option<&Span>) -> bool {
    let steps = |span: &Span| span.believed().and_then(|account| account.steps);
    let successor = successor.filter(|successor| successor.round == span.round).and_then(steps);
    match (steps(span), successor) {
        (Some(own), Some(successor)) => successor.first <= own.done,
        _ => true,
    }
}

/// What restarts of all ranks have taken back: from which step to which, in the rounds that were followed by another.
struct Restarts(BTreeMap<u64, TakenBack>);

#[derive(Clone, Copy)]
struct TakenBack {
    done_in_round: u64,
    again: u64,
}

impl Restarts {
    fn of(spans: &[Span]) -> Restarts {
        // The steps with which a round began, and that it reached.
        let mut rounds: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for span in spans {
            let Some(steps) = span.believed().and_then(|account| account.steps) else { continue };
            let (first, done) = rounds.entry(span.round).or_insert((steps.first, steps.done));
            *first = (*first).min(steps.first);
            *done = (*done).max(steps.done);
        }
        let followed = rounds.iter().zip(rounds.iter().skip(1)).map(|((round, (first, done)), (_, (resumed, _)))| {
            let done_in_round = done.saturating_sub(*first);
            (*round, TakenBack { done_in_round, again: done.saturating_sub(*resumed).min(done_in_round) })
        });
        Restarts(followed.collect())
    }

    fn taken_back(&self) -> u64 {
        self.0.values().map(|round| round.again).sum()
    }

    /// Steps cost alike: the share of those of the round that are done again is lost.
    fn take_back(&self, span: &Span, times: &mut Times) {
        let Some(TakenBack { done_in_round, again }) = self.0.get(&span.round).filter(|round| round.again > 0) else {
            return;
        };
        for class in Class::TRAINING {
            let share = u128::from(times.of(class)) * u128::from(*again) / u128::from(*done_in_round);
            times.lose(class, u64::try_from(share).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests;
