//! Which checkpoints of an experiment are kept once it is over.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The best of the whole experiment.
    pub experiment_best: usize,
    /// The best of each trial.
    pub trial_best: usize,
    /// The latest of each trial.
    pub trial_latest: usize,
}

/// A checkpoint, as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Saved {
    pub uuid: String,
    /// Of which trial.
    pub trial: i64,
    /// After how many steps.
    pub steps: i64,
    /// When. An experiment that was continued has several after the same steps.
    pub time: i64,
    /// The searcher's metric of the validation at the same step, if there was one.
    pub metric: Option<f64>,
    /// It is kept whatever the rest says: others depend on it.
    pub pinned: bool,
}

/// The checkpoints that are not kept, in the order given.
pub fn given_up(all: &[Saved], keep: Keep, smaller_is_better: bool) -> Vec<String> {
    let mut kept: Vec<bool> = all.iter().map(|saved| saved.pinned).collect();
    let everywhere: Vec<usize> = (0..all.len()).collect();
    let mut trials: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (index, saved) in all.iter().enumerate() {
        trials.entry(saved.trial).or_default().push(index);
    }
    best(all, &everywhere, keep.experiment_best, smaller_is_better, &mut kept);
    for of_trial in trials.values() {
        best(all, of_trial, keep.trial_best, smaller_is_better, &mut kept);
        let mut latest = of_trial.clone();
        latest.sort_by_key(|index| Reverse((all[*index].steps, all[*index].time)));
        latest.iter().take(keep.trial_latest).for_each(|index| kept[*index] = true);
    }
    all.iter().zip(kept).filter(|(_, kept)| !kept).map(|(saved, _)| saved.uuid.clone()).collect()
}

/// Keeps the best of some, of equal ones the last. Those without a metric are never among them.
fn best(all: &[Saved], some: &[usize], count: usize, smaller_is_better: bool, kept: &mut [bool]) {
    let mut ranked: Vec<(f64, usize)> =
        some.iter().filter_map(|index| all[*index].metric.map(|metric| (metric, *index))).collect();
    ranked.sort_by(|(one, first), (other, second)| {
        let order = one.total_cmp(other);
        let order = if smaller_is_better { order } else { order.reverse() };
        order.then(all[*second].time.cmp(&all[*first].time))
    });
    ranked.iter().take(count).for_each(|(_, index)| kept[*index] = true);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One trial with a checkpoint after each step.
    fn trial(metrics: &[f64]) -> Vec<Saved> {
        let saved = |(index, metric): (usize, &f64)| Saved {
            uuid: (index + 1).to_string(),
            trial: 1,
            steps: index as i64 + 1,
            time: index as i64,
            metric: Some(*metric),
            pinned: false,
        };
        metrics.iter().enumerate().map(saved).collect()
    }

    fn survivors(all: &[Saved], (experiment_best, trial_best, trial_latest): (usize, usize, usize)) -> Vec<i64> {
        let gone = given_up(all, Keep { experiment_best, trial_best, trial_latest }, true);
        all.iter().filter(|saved| !gone.contains(&saved.uuid)).map(|saved| saved.steps).collect()
    }

    #[test]
    fn one_trial_with_metrics_that_get_worse() {
        let all = trial(&[6.0, 7.0, 8.0, 9.0]);
        let cases = [
            ((0, 0, 0), vec![]),
            ((0, 0, 1), vec![4]),
            ((0, 1, 0), vec![1]),
            ((0, 1, 1), vec![1, 4]),
            ((1, 1, 1), vec![1, 4]),
        ];
        for (keep, expected) in cases {
            assert_eq!(survivors(&all, keep), expected, "{keep:?}");
        }
    }

    #[test]
    fn best_and_latest_of_ten() {
        let falling: Vec<f64> = (0..10).map(|step| -f64::from(step)).collect();
        let rising: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(survivors(&trial(&falling), (3, 1, 2)), [8, 9, 10]);
        assert_eq!(survivors(&trial(&rising), (3, 1, 2)), [1, 2, 3, 9, 10]);
    }

    #[test]
    fn of_checkpoints_after_the_same_steps_the_last_is_kept() {
        let mut all = trial(&[5.0, 5.0]);
        all[0].steps = 2;
        for keep in [(0, 0, 1), (0, 1, 0), (1, 0, 0)] {
            let gone = given_up(&all, Keep { experiment_best: keep.0, trial_best: keep.1, trial_latest: keep.2 }, true);
            assert_eq!(gone, ["1"], "{keep:?}");
        }
    }

    #[test]
    fn without_a_validation_only_the_latest_counts_and_pins_hold() {
        let mut all = trial(&[1.0, 2.0, 3.0]);
        all[2].metric = None;
        assert_eq!(survivors(&all, (0, 3, 0)), [1, 2]);
        assert_eq!(survivors(&all, (0, 0, 1)), [3]);
        all[1].pinned = true;
        assert_eq!(survivors(&all, (0, 0, 0)), [2]);
        let gone = given_up(&all, Keep { experiment_best: 1, trial_best: 0, trial_latest: 0 }, false);
        assert_eq!(gone, ["1", "3"]);
    }
}
