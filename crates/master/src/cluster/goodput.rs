//! Goodput of trials: what became of the time for which they had slots.
//!
//! ```text
//!  gets slots                                             its share ends      the others' end
//!  │── start or restart ──┃ the launcher's own classes ┃── the same ──│── idle ──│
//! ```
//!
//! The launcher on each node reports the classes of its ranks when it ends. What it does not cover, the code's download and the
//! wait for other nodes among it, belongs to the start; of later allocations to the restart, because the trial has begun by
//! then. So the classes add up to the time of the allocations for each rank, by construction. A report that cannot be true
//! is none, and the time of a share without one is unobserved.

use std::sync::Mutex;

use instep_api::goodput::{ClassSeconds, NodeGoodput, StepCount, TrialGoodput};
use instep_api::wire::Timestamp;
use instep_database::AllocationRow;
use serde::{Deserialize, Serialize};

use super::allocation::Share;
use crate::sync::lock;

/// The end of a share, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShareEnd {
    at: Timestamp,
    /// What its launcher said, if that can be.
    goodput: Option<NodeGoodput>,
}

impl ShareEnd {
    /// One that began at a moment and ends at another, with this report.
    pub(super) fn new(began: Timestamp, at: Timestamp, goodput: Option<NodeGoodput>) -> ShareEnd {
        ShareEnd { at, goodput: goodput.filter(|said| said.is_plausible(seconds_between(began, at))) }
    }
}

/// Seconds of each class of all trials since the master started.
#[derive(Debug, Default)]
pub(crate) struct GoodputTotals(Mutex<ClassSeconds>);

impl GoodputTotals {
    pub(crate) fn seconds(&self) -> ClassSeconds {
        *lock(&self.0)
    }

    pub(super) fn add(&self, usage: &Usage) {
        lock(&self.0).add(&usage.seconds);
    }
}

/// What became of the time of one allocation.
pub(super) struct Usage {
    wall_seconds: f64,
    ranks: u32,
    seconds: ClassSeconds,
    steps: Option<StepCount>,
}

impl Usage {
    /// Of an allocation that had slots from one moment to another; `first` if the trial began with it.
    pub(super) fn new(began: Timestamp, ended: Timestamp, shares: &[Share], first: bool) -> Usage {
        let wall_seconds = seconds_between(began, ended);
        let mut usage = Usage { wall_seconds, ranks: 0, seconds: ClassSeconds::default(), steps: None };
        for share in shares {
            let slots = u32::try_from(share.devices.len()).unwrap_or(u32::MAX).max(1);
            match share.ended.as_ref().and_then(|end| Some((end.at, end.goodput?))) {
                Some((at, said)) => usage.add(&said, slots, seconds_between(began, at), first),
                None => {
                    usage.ranks += slots;
                    usage.seconds.unobserved += f64::from(slots) * wall_seconds;
                }
            }
        }
        usage
    }

    fn add(&mut self, said: &NodeGoodput, slots: u32, share_seconds: f64, first: bool) {
        // Where nothing was started the slots were taken all the same.
        let ranks = if said.ranks == 0 { slots } else { said.ranks };
        let mut seconds = said.seconds;
        seconds.start += f64::from(ranks) * (share_seconds - said.wall_seconds).max(0.0);
        seconds.idle += f64::from(ranks) * (self.wall_seconds - share_seconds).max(0.0);
        if !first {
            seconds.restart += std::mem::take(&mut seconds.start);
        }
        self.ranks += ranks;
        self.seconds.add(&seconds);
        self.steps = match (self.steps, said.steps) {
            (Some(one), Some(other)) => Some(StepCount {
                first: one.first.min(other.first),
                done: one.done.max(other.done),
                redone: one.redone.max(other.redone),
                taken_back: one.taken_back.max(other.taken_back),
            }),
            (one, other) => one.or(other),
        };
    }
}

/// What became of the time of a trial, from its allocations in their order; `None` if none that had slots has ended.
pub(crate) fn of_trial(rows: &[AllocationRow]) -> Option<TrialGoodput> {
    let had_slots = rows.iter().filter_map(|row| Some((row, row.started_at?, row.ended_at?)));
    let usages = had_slots.enumerate().map(|(index, (row, began, ended))| {
        let shares: Vec<Share> = serde_json::from_value(row.shares.clone()).unwrap_or_default();
        Usage::new(began, ended, &shares, index == 0)
    });
    sum(usages.collect())
}

fn sum(mut usages: Vec<Usage>) -> Option<TrialGoodput> {
    let last = usages.last()?;
    let mut total = TrialGoodput {
        allocations: u32::try_from(usages.len()).unwrap_or(u32::MAX),
        wall_seconds: usages.iter().map(|usage| usage.wall_seconds).sum(),
        ranks: last.ranks,
        seconds: ClassSeconds::default(),
        ettr: None,
        steps: None,
        redone_steps: None,
        taken_back_steps: None,
    };
    // From the last to the first: where the next one began decides what a run has done in vain.
    let mut resumed_at = None;
    for usage in usages.iter_mut().rev() {
        if let Some(steps) = usage.steps {
            let done = steps.done - steps.first;
            let again = resumed_at.map_or(0, |step| steps.done.saturating_sub(step)).min(done);
            if again > 0 {
                usage.seconds.lose(again as f64 / done as f64);
            }
            total.steps.get_or_insert(steps.done);
            *total.redone_steps.get_or_insert(0) += steps.redone;
            *total.taken_back_steps.get_or_insert(0) += steps.taken_back + again;
            resumed_at = Some(steps.first);
        }
        total.seconds.add(&usage.seconds);
    }
    total.ettr = total.seconds.ettr();
    Some(total)
}

fn seconds_between(began: Timestamp, ended: Timestamp) -> f64 {
    ended.0.saturating_sub(began.0).max(0) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    /// A share of two slots that ends after so many seconds.
    fn share(ended: i64, goodput: Option<NodeGoodput>) -> Share {
        Share {
            agent: "one".to_owned(),
            resources: "r".to_owned(),
            container: "c".to_owned(),
            devices: vec![0, 1],
            address: "127.0.0.1".to_owned(),
            started: true,
            ended: Some(ShareEnd::new(at(0), at(ended), goodput)),
        }
    }

    /// Two ranks that start for two seconds and train for the rest, ten steps from the first on.
    fn report(wall: f64, first: u64) -> Option<NodeGoodput> {
        let seconds = ClassSeconds { start: 4.0, compute: 2.0 * (wall - 2.0), ..ClassSeconds::default() };
        let steps = Some(StepCount { first, done: first + 10, redone: 1, taken_back: 0 });
        Some(NodeGoodput { ranks: 2, wall_seconds: wall, seconds, steps })
    }

    #[test]
    fn a_trial_that_was_restarted_has_lost_the_steps_since_its_checkpoint() {
        let run = |first, begins| Usage::new(at(0), at(12), &[share(12, report(10.0, first))], begins);
        let total = sum(vec![run(0, true), run(6, false)]).unwrap();
        let expected = ClassSeconds {
            start: 2.0 * (2.0 + 2.0),
            compute: 16.0 * 0.6 + 16.0,
            restart: 2.0 * (2.0 + 2.0),
            lost: 16.0 * 0.4,
            ..ClassSeconds::default()
        };
        assert_eq!((total.seconds, total.allocations, total.wall_seconds), (expected, 2, 24.0));
        assert_eq!(total.seconds.sum(), 2.0 * 24.0);
        let steps = (total.steps, total.redone_steps, total.taken_back_steps);
        assert_eq!(steps, (Some(16), Some(2), Some(4)));
        assert_eq!(total.ettr, Some((16.0 * 0.6 + 16.0) / 48.0));
    }

    #[test]
    fn nodes_are_added_up_and_wait_for_each_other() {
        let shares = [share(12, report(10.0, 0)), share(15, report(15.0, 0))];
        let total = sum(vec![Usage::new(at(0), at(15), &shares, true)]).unwrap();
        assert_eq!((total.ranks, total.seconds.sum()), (4, 4.0 * 15.0));
        assert_eq!((total.seconds.start, total.seconds.idle), (4.0 + 4.0 + 4.0, 6.0));
        assert_eq!((total.steps, total.redone_steps), (Some(10), Some(1)), "they count the same steps");
    }

    #[test]
    fn nonsense_is_no_report_and_what_never_ran_did_nothing() {
        let too_long = share(12, report(1000.0, 0));
        let total = sum(vec![Usage::new(at(0), at(12), &[too_long], true)]).unwrap();
        assert_eq!(total.seconds, ClassSeconds { unobserved: 24.0, ..ClassSeconds::default() });
        assert_eq!((total.ettr, total.steps), (None, None));
        let never_ran = share(12, Some(NodeGoodput::default()));
        let total = sum(vec![Usage::new(at(0), at(12), &[never_ran], true)]).unwrap();
        assert_eq!(total.seconds, ClassSeconds { start: 24.0, ..ClassSeconds::default() });
        assert_eq!(total.ettr, Some(0.0));
        assert!(sum(vec![]).is_none());
    }
}
