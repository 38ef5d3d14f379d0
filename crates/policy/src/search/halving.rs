//! One bracket of asynchronous successive halving: rungs at which trials are compared, and the worse ones stop.
//!
//! A trial that reaches a rung's time is put in order with all that reached it before, at once and never again. If it is
//! among the best `1 / divisor` of those it goes on to the next rung, otherwise it stops and makes room for a new one.
//! The first to reach a rung always goes on.

use serde::{Deserialize, Serialize};

/// A rung and how the trials did that reached it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Rung {
    /// The time at which trials are compared here.
    pub units: u64,
    /// Their metrics, the best first: the smaller the better.
    metrics: Vec<f64>,
}

/// One bracket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Bracket {
    rungs: Vec<Rung>,
    pub max_trials: u32,
    concurrent: u32,
    divisor: f64,
    /// Trials that were made here, without those that had invalid hyperparameters.
    valid: u32,
    /// Trials that have ended.
    completed: u32,
}

/// Which rungs of its bracket a trial has reached, and with which metrics.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct RungHistory {
    /// The rung that it has not yet passed.
    rung: usize,
    /// What it was judged by on each rung that it reached.
    metrics: Vec<f64>,
}

/// Whether a trial continues after a report.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReportDecision {
    Continue,
    /// With the reason.
    Stop(String),
}

impl Bracket {
    pub(super) fn new(units: Vec<u64>, max_trials: u32, concurrent: u32, divisor: f64) -> Bracket {
        let rungs = units.into_iter().map(|units| Rung { units, metrics: Vec::new() }).collect();
        Bracket { rungs, max_trials, concurrent, divisor, valid: 0, completed: 0 }
    }

    /// The times of `count` rungs up to `max_time`.
    pub(super) fn units(count: u32, max_time: u64, divisor: f64) -> Vec<u64> {
        let unit = |rung: u32| {
            let units = (max_time as f64 / divisor.powi((count - 1 - rung) as i32)).floor();
            (units as u64).max(1)
        };
        (0..count).map(unit).collect()
    }

    /// How many trials run from the start.
    pub(super) fn initial(&self) -> u32 {
        if self.concurrent > 0 {
            return self.concurrent.min(self.max_trials);
        }
        let halvings = self.rungs.len().saturating_sub(1) as i32;
        (self.divisor.powi(halvings).floor().min(f64::from(u32::MAX)) as u32).clamp(1, self.max_trials)
    }

    /// The rungs' times.
    pub(super) fn times(&self) -> impl Iterator<Item = u64> {
        self.rungs.iter().map(|rung| rung.units)
    }

    /// Whether one more trial may be made.
    pub(super) fn wants_more(&self) -> bool {
        self.valid < self.max_trials
    }

    /// A trial was made here.
    pub(super) fn made(&mut self) {
        self.valid += 1;
    }

    /// A trial has reported `metric`, the smaller the better, at `time`.
    pub(super) fn decide(&mut self, trial: &mut RungHistory, metric: f64, time: u64) -> ReportDecision {
        let top = self.rungs.len() - 1;
        loop {
            let rung = &mut self.rungs[trial.rung];
            if time < rung.units {
                return ReportDecision::Continue;
            }
            let position = rung.insert(metric);
            trial.metrics.push(metric);
            let all = rung.metrics.len();
            let kept = ((all as f64 / self.divisor).floor() as usize).max(1);
            if trial.rung == top {
                return ReportDecision::Stop(format!("it has reached the end, {}", rung.units));
            }
            if position >= kept {
                let units = rung.units;
                return ReportDecision::Stop(format!(
                    "at {units} it is number {} of {all}, and the best {kept} continue",
                    position + 1
                ));
            }
            trial.rung += 1;
        }
    }

    /// A trial failed or was cancelled: it is the worst of its rung.
    pub(super) fn failed(&mut self, trial: &mut RungHistory) {
        self.rungs[trial.rung].insert(f64::MAX);
        trial.metrics.push(f64::MAX);
    }

    /// A trial could not be run at all: as if it had never been.
    pub(super) fn forget(&mut self, trial: &mut RungHistory) {
        for (rung, metric) in self.rungs.iter_mut().zip(trial.metrics.drain(..)) {
            // Equal metrics are interchangeable, so any of them will do.
            let position = rung.metrics.partition_point(|known| *known < metric);
            if rung.metrics.get(position) == Some(&metric) {
                rung.metrics.remove(position);
            }
        }
        self.valid = self.valid.saturating_sub(1);
    }

    /// A trial has ended.
    pub(super) fn ended(&mut self) {
        self.completed += 1;
    }

    /// How much of the bracket is done, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        let (most, reached) = (f64::from(self.max_trials), self.rungs[0].metrics.len());
        let progress = reached as f64 / (1.2 * most);
        if reached == self.max_trials as usize { progress.max(f64::from(self.completed) / most) } else { progress }
    }
}

impl Rung {
    /// Puts `metric` in order, before equal ones, and says where.
    fn insert(&mut self, metric: f64) -> usize {
        let position = self.metrics.partition_point(|known| *known < metric);
        self.metrics.insert(position, metric);
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_are_a_divisor_apart() {
        let cases: &[(u32, u64, f64, &[u64])] = &[
            (3, 9, 3.0, &[1, 3, 9]),
            (4, 10, 2.0, &[1, 2, 5, 10]),
            (1, 9, 3.0, &[9]),
            (3, 900, 3.0, &[100, 300, 900]),
            (6, 3, 4.0, &[1, 1, 1, 1, 1, 3]),
        ];
        for (count, max_time, divisor, units) in cases {
            assert_eq!(Bracket::units(*count, *max_time, *divisor), *units);
        }
    }

    #[test]
    fn metrics_are_kept_in_order_the_newest_first_of_equals() {
        let cases: &[(&[f64], f64, usize)] = &[
            (&[0.0, 1.5, 2.1], 1.2, 1),
            (&[0.0, 1.5, 2.0], 3.0, 3),
            (&[-3.0, -2.0, -1.0], -3.4, 0),
            (&[1.0, 2.0], 2.0, 1),
        ];
        for (metrics, metric, position) in cases {
            let mut rung = Rung { units: 1, metrics: metrics.to_vec() };
            assert_eq!(rung.insert(*metric), *position);
            assert!(rung.metrics.is_sorted());
        }
    }

    fn bracket() -> Bracket {
        Bracket::new(vec![1, 3, 9], 10, 3, 3.0)
    }

    #[test]
    fn the_first_goes_on_and_then_the_best_third() {
        let mut bracket = bracket();
        let mut first = RungHistory::default();
        assert_eq!(bracket.decide(&mut first, 0.5, 1), ReportDecision::Continue);
        assert_eq!(first.rung, 1);
        let mut better = bracket.clone();
        assert_eq!(better.decide(&mut RungHistory::default(), 0.4, 1), ReportDecision::Continue);
        let worse = bracket.decide(&mut RungHistory::default(), 0.6, 1);
        assert_eq!(worse, ReportDecision::Stop("at 1 it is number 2 of 2, and the best 1 continue".to_owned()));
    }

    /// The table of docs/concepts/search.md.
    #[test]
    fn the_documented_trials_go_on_or_stop() {
        let mut bracket = Bracket::new(vec![25, 100], 7, 7, 4.0);
        let losses = [0.90, 0.80, 0.85, 0.95, 0.70, 0.75, 0.60];
        let goes_on =
            losses.map(|loss| bracket.decide(&mut RungHistory::default(), loss, 25) == ReportDecision::Continue);
        assert_eq!(goes_on, [true, true, false, false, true, false, true]);
    }

    #[test]
    fn one_report_can_pass_several_rungs() {
        let mut bracket = bracket();
        let mut trial = RungHistory::default();
        assert_eq!(bracket.decide(&mut trial, 0.5, 4), ReportDecision::Continue);
        assert_eq!((trial.rung, trial.metrics.len()), (2, 2));
        assert_eq!(bracket.decide(&mut trial, 0.5, 9), ReportDecision::Stop("it has reached the end, 9".to_owned()));
    }

    #[test]
    fn an_invalid_trial_leaves_no_metric_on_its_rungs() {
        let mut bracket = bracket();
        bracket.made();
        bracket.decide(&mut RungHistory::default(), 0.5, 1);
        let before = bracket.clone();
        let mut trial = RungHistory::default();
        bracket.made();
        bracket.decide(&mut trial, 0.5, 4);
        bracket.failed(&mut trial);
        bracket.forget(&mut trial);
        assert_eq!(bracket, before);
    }
}
