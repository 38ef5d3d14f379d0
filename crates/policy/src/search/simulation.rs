//! A search played without a cluster: trials that train at a pace of their own on so many slots, and report.
//!
//! The caller stands between the two, `while let Some(event) = simulation.next() { simulation.apply(search.on(event)?) }`,
//! so it can look at, time, store and restore the search at every event.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use serde_json::{Map, Value};

use super::{Action, Event};

/// Some trials are this many times as fast as others.
const PACES: u32 = 5;

/// How trials behave.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// How many trials run at the same time; the others wait.
    pub slots: usize,
    /// A trial reports after this many steps, and again after as many.
    pub report_every: u64,
    /// After this many steps a trial that nobody stopped ends.
    pub length: u64,
    /// Whether a trial reports before its first step.
    pub report_first: bool,
}

/// A trial of a simulation.
#[derive(Debug, Clone)]
pub struct SimulatedTrial {
    /// How many were made before it.
    pub number: usize,
    /// What the search gave it.
    pub hyperparameters: Map<String, Value>,
    /// How far it is, or was when it ended.
    pub steps: u64,
    /// Why it stopped, if the search stopped it.
    pub stopped: Option<String>,
    reports: u64,
    /// How long it takes from one report to the next.
    pace: u64,
}

/// A simulation. `metrics` says what a trial reports after so many steps.
pub struct Simulation<M> {
    habits: Habits,
    metrics: M,
    trials: BTreeMap<String, SimulatedTrial>,
    waiting: VecDeque<String>,
    running: usize,
    /// When who reports next; the number makes the order of equal times the order of asking.
    agenda: BinaryHeap<Reverse<(u64, u64, String)>>,
    asked: u64,
    soon: VecDeque<Event>,
    /// How the search ended, with whether it failed.
    ended: Option<bool>,
}

impl<M: FnMut(&SimulatedTrial, u64) -> Map<String, Value>> Simulation<M> {
    /// A cluster that waits for a search to begin.
    pub fn new(habits: Habits, metrics: M) -> Simulation<M> {
        Simulation {
            habits,
            metrics,
            trials: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: 0,
            agenda: BinaryHeap::new(),
            asked: 0,
            soon: VecDeque::from([Event::Started]),
            ended: None,
        }
    }

    /// Does what the search wants.
    pub fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Create { request, seed, hyperparameters } => {
                    let number = self.trials.len();
                    let trial = SimulatedTrial {
                        number,
                        hyperparameters,
                        steps: 0,
                        stopped: None,
                        reports: 0,
                        pace: 1 + u64::from(seed % PACES),
                    };
                    self.trials.insert(request.clone(), trial);
                    self.soon.push_back(Event::TrialCreated { request: request.clone() });
                    self.waiting.push_back(request);
                }
                Action::Stop { request, reason } => {
                    if let Some(trial) = self.trials.get_mut(&request) {
                        trial.stopped = Some(reason);
                    }
                }
                Action::Warn { .. } => {}
                Action::Shutdown { failed, .. } => self.ended = Some(failed),
            }
        }
    }

    /// What happens next; `None` when nothing does any more.
    #[expect(clippy::should_implement_trait, reason = "what comes next depends on what the caller did")]
    pub fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.soon.pop_front() {
            return Some(event);
        }
        self.fill_slots(self.agenda.peek().map_or(0, |Reverse((time, ..))| *time));
        let Reverse((time, _, request)) = self.agenda.pop()?;
        let trial = self.trials.get_mut(&request)?;
        if trial.stopped.is_some() || trial.steps >= self.habits.length {
            self.running -= 1;
            self.fill_slots(time);
            return Some(Event::Exited { request });
        }
        trial.reports += 1;
        let so_far = trial.reports - u64::from(self.habits.report_first);
        trial.steps = (so_far * self.habits.report_every).min(self.habits.length);
        let (steps, pace) = (trial.steps, trial.pace);
        let metrics = (self.metrics)(trial, steps);
        self.ask(time + pace, request.clone());
        Some(Event::Validated { request, metrics, steps })
    }

    fn fill_slots(&mut self, time: u64) {
        while self.running < self.habits.slots
            && let Some(request) = self.waiting.pop_front()
        {
            self.running += 1;
            let pace = self.trials.get(&request).map_or(1, |trial| trial.pace);
            self.ask(time + pace, request);
        }
    }

    fn ask(&mut self, time: u64, request: String) {
        self.asked += 1;
        self.agenda.push(Reverse((time, self.asked, request)));
    }

    /// All trials, in the order in which they were made.
    pub fn trials(&self) -> Vec<&SimulatedTrial> {
        let mut trials: Vec<&SimulatedTrial> = self.trials.values().collect();
        trials.sort_by_key(|trial| trial.number);
        trials
    }

    /// Whether the search has failed; `None` while it has not ended.
    pub fn ended(&self) -> Option<bool> {
        self.ended
    }
}
