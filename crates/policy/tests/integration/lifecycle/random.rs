//! Random events, in orders that nobody would think of: the invariants L1 to L6 hold, and everything ends.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_policy::lifecycle::states::{experiment_may, trial_may};
use instep_policy::lifecycle::{Effect, End, Event, Experiment, PolicyAction, Run, Terms};
use instep_testkit::{Random, seeds};
use serde_json::{Map, json};

use crate::lifecycle::double::Double;
use crate::lifecycle::life::TERMS;

const TRIALS: usize = 3;

/// The world around an experiment, as its effects left it.
struct World {
    seed: u64,
    experiment: Experiment<Double>,
    now: Timestamp,
    state: State,
    trials: BTreeMap<String, State>,
    /// Runs that have not ended, and whether they have slots.
    runs: BTreeMap<Run, bool>,
    used: BTreeSet<Run>,
    failures: BTreeMap<String, u32>,
    orders: BTreeSet<Run>,
    births: Vec<String>,
    made: i32,
    ended: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let experiment = Experiment::new(7, Terms { single: false, ..TERMS }, Double::of(TRIALS), false);
        World {
            seed,
            state: experiment.state(),
            experiment,
            now: Timestamp(0),
            trials: BTreeMap::new(),
            runs: BTreeMap::new(),
            used: BTreeSet::new(),
            failures: BTreeMap::new(),
            orders: BTreeSet::new(),
            births: Vec::new(),
            made: 0,
            ended: false,
        }
    }

    fn on(&mut self, event: Event) {
        let mut twin: Experiment<Double> =
            serde_json::from_str(&serde_json::to_string(&self.experiment).expect("stored")).expect("read back");
        let effects = self.experiment.on(event.clone(), self.now);
        assert_eq!(twin.on(event, self.now), effects, "L6, SEED={}", self.seed);
        assert_eq!(twin, self.experiment, "L6, SEED={}", self.seed);
        assert!(!self.ended || effects.is_empty(), "L5, SEED={}: {effects:?}", self.seed);
        effects.into_iter().for_each(|effect| self.check(effect));
    }

    fn check(&mut self, effect: Effect) {
        let seed = self.seed;
        match effect {
            Effect::MakeTrial { request, state, .. } => {
                assert!(self.trials.insert(request.clone(), state).is_none(), "SEED={seed}: {request} is made twice");
                self.births.push(request);
            }
            Effect::Ask { run, restarts, .. } => {
                let live = self.runs.keys().any(|other| other.request == run.request);
                assert!(!live, "L2, SEED={seed}: a second run of {}", run.request);
                assert!(self.used.insert(run.clone()), "L2, SEED={seed}: {run:?} again");
                assert!(restarts <= TERMS.max_restarts, "L3, SEED={seed}");
                assert!(
                    self.failures.get(&run.request).is_none_or(|count| *count <= TERMS.max_restarts),
                    "L3, SEED={seed}"
                );
                assert_eq!(self.trials[&run.request], State::Active, "SEED={seed}: only active trials run");
                self.runs.insert(run, false);
            }
            Effect::Withdraw { run, .. } => assert_eq!(self.runs.remove(&run), Some(false), "SEED={seed}: {run:?}"),
            Effect::Preempt { run, .. } | Effect::Kill { run, .. } => {
                assert_eq!(self.runs.get(&run), Some(&true), "SEED={seed}: {run:?}");
                self.orders.insert(run);
            }
            Effect::ExperimentState { state, .. } => {
                assert!(experiment_may(self.state, state), "L1, SEED={seed}: {:?} to {state:?}", self.state);
                self.state = state;
            }
            Effect::TrialState { request, state, .. } => {
                let had = self.trials.insert(request, state).expect("it was made");
                assert!(trial_may(had, state), "L1, SEED={seed}: {had:?} to {state:?}");
            }
            Effect::CollectCheckpoints => {
                assert!(self.runs.is_empty() && self.state.is_terminal(), "L4, SEED={seed}");
                self.ended = true;
            }
            Effect::ReviseTrial { .. } => panic!("SEED={seed}: nothing was continued"),
            Effect::PolicyMatched { .. } | Effect::Note { .. } => {}
        }
    }

    /// Something random happens.
    fn step(&mut self, random: &mut Random) {
        self.now.0 += random.below(40_000_000) as i64;
        match random.below(20) {
            0 => self.on(Event::Pause),
            1 | 2 => self.on(Event::Activate),
            3 if random.once_in(8) => self.on(if random.once_in(2) { Event::Cancel } else { Event::Kill }),
            4 if random.once_in(4) => {
                let request = format!("r{}", 1 + random.below(TRIALS));
                self.on(Event::KillTrial { request });
            }
            5 => self.report(random),
            6 | 7 => self.on(Event::Tick),
            8 => self.restart(),
            9..=11 if !self.births.is_empty() => self.make_trial(random),
            _ => self.something_of_a_run(random),
        }
    }

    fn make_trial(&mut self, random: &mut Random) {
        let request = self.births.swap_remove(random.below(self.births.len()));
        self.made += 1;
        self.on(Event::TrialMade { request, trial: self.made });
    }

    /// The master is restarted: everything that was decided is said again, and nothing else.
    fn restart(&mut self) {
        let stored = serde_json::to_string(&self.experiment).expect("stored");
        self.experiment = serde_json::from_str(&stored).expect("read back");
        for effect in self.experiment.repeat() {
            let known = match &effect {
                Effect::MakeTrial { request, .. } => self.births.contains(request),
                Effect::Ask { run, .. } => self.runs.get(run) == Some(&false),
                Effect::Preempt { run, .. } | Effect::Kill { run, .. } => self.orders.contains(run),
                _ => false,
            };
            assert!(known, "SEED={}: {effect:?} is new", self.seed);
        }
    }

    fn report(&mut self, random: &mut Random) {
        let request = format!("r{}", 1 + random.below(TRIALS));
        if random.once_in(6) {
            return self.on(Event::InvalidHyperparameters { request });
        }
        let name = if random.once_in(30) { "fail" } else { *random.pick(&["loss", "loss", "loss", "stop"]) };
        self.on(Event::Validated { request, metrics: Map::from_iter([(name.to_owned(), json!(1))]), steps: 1 });
    }

    fn something_of_a_run(&mut self, random: &mut Random) {
        let runs: Vec<(Run, bool)> = self.runs.iter().map(|(run, slots)| (run.clone(), *slots)).collect();
        if runs.is_empty() {
            return;
        }
        let (run, slots) = random.pick(&runs).clone();
        if !slots {
            self.runs.insert(run.clone(), true);
            return self.on(Event::Assigned { run });
        }
        let event = match random.below(9) {
            0 => Event::Running { run },
            1 | 2 => Event::Ready { run },
            3 => Event::Acknowledged { run },
            4 => Event::Displaced { run, why: "others need it".to_owned() },
            5 => Event::Evicted { run, why: "the agent was disabled".to_owned() },
            6 => Event::LogMatched {
                run,
                policy: "p".to_owned(),
                pattern: "x".to_owned(),
                line: "x".to_owned(),
                action: random.pick(&[PolicyAction::Mark, PolicyAction::CancelRetries]).clone(),
            },
            _ => return self.end(run, random),
        };
        self.on(event);
    }

    fn end(&mut self, run: Run, random: &mut Random) {
        let why = "chance".to_owned();
        let end = match random.below(6) {
            0 | 1 => End::Exited { code: 0 },
            2 => End::Exited { code: 1 },
            3 => End::Killed,
            4 => End::Lost { why },
            _ => End::NotStarted { why },
        };
        if end == (End::Exited { code: 1 }) {
            *self.failures.entry(run.request.clone()).or_default() += 1;
        }
        self.runs.remove(&run);
        self.on(Event::Ended { run, end });
    }

    /// From now on nothing unexpected happens: everything must end.
    fn settle(&mut self) {
        for _ in 0..400 {
            if self.ended {
                return;
            }
            self.now.0 += 61_000_000;
            self.on(Event::Activate);
            self.on(Event::Tick);
            while let Some(request) = self.births.pop() {
                self.made += 1;
                self.on(Event::TrialMade { request, trial: self.made });
            }
            let runs: Vec<Run> = self.runs.keys().cloned().collect();
            for run in runs {
                self.runs.insert(run.clone(), true);
                self.on(Event::Assigned { run: run.clone() });
                self.runs.remove(&run);
                self.on(Event::Ended { run, end: End::Exited { code: 0 } });
            }
        }
        panic!("L4, SEED={}: it never ends: {:?}", self.seed, self.experiment);
    }
}

#[test]
fn random_events_keep_every_promise() {
    for seed in seeds(300, 100, &[]) {
        let mut random = Random::new(seed);
        let mut world = World::new(seed);
        world.on(Event::Started);
        for _ in 0..random.below(200) {
            world.step(&mut random);
        }
        world.settle();
    }
}
