//! An experiment under test: does what effects ask for as far as the database would, and remembers the rest.

use std::time::Duration;

use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_policy::lifecycle::{Effect, End, Event, Experiment, Run, Terms};
use serde_json::{Map, json};

use crate::lifecycle::double::Double;

pub const TERMS: Terms = Terms { max_restarts: 2, preemption_timeout: Duration::from_secs(3600), single: true };

pub fn run(request: &str, number: u32) -> Run {
    Run { request: request.to_owned(), number }
}

pub fn exited(code: i32) -> End {
    End::Exited { code }
}

pub struct Life {
    pub experiment: Experiment<Double>,
    pub now: Timestamp,
    made: i32,
}

impl Life {
    /// An experiment of so many trials that has just begun.
    pub fn of(trials: usize, paused: bool) -> Life {
        let terms = Terms { single: trials == 1, ..TERMS };
        let mut life =
            Life { experiment: Experiment::new(7, terms, Double::of(trials), paused), now: Timestamp(0), made: 0 };
        life.on(Event::Started);
        life
    }

    /// An experiment of one trial, whose run has come this far.
    pub fn at(situation: &str) -> Life {
        let mut life = Life::of(1, false);
        let run = run("r1", 1);
        let steps = [Event::Assigned { run: run.clone() }, Event::Running { run: run.clone() }, Event::Ready { run }];
        let count = ["asked", "assigned", "running", "ready"].iter().position(|name| *name == situation);
        steps.into_iter().take(count.expect("a situation")).for_each(|event| drop(life.on(event)));
        life
    }

    /// Tells the experiment; trials that are to be made are made at once.
    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = self.experiment.on(event, self.now);
        let made: Vec<String> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::MakeTrial { request, .. } => Some(request.clone()),
                _ => None,
            })
            .collect();
        for request in made {
            self.made += 1;
            effects.extend(self.on(Event::TrialMade { request, trial: self.made }));
        }
        effects
    }

    pub fn later(&mut self, seconds: u64) -> Vec<Effect> {
        self.now.0 += (seconds * 1_000_000) as i64;
        self.on(Event::Tick)
    }

    pub fn ends(&mut self, number: u32, end: End) -> Vec<Effect> {
        self.on(Event::Ended { run: run("r1", number), end })
    }

    pub fn reports(&mut self, metric: &str) -> Vec<Effect> {
        let metrics = Map::from_iter([(metric.to_owned(), json!(1))]);
        self.on(Event::Validated { request: "r1".to_owned(), metrics, steps: 1 })
    }

    pub fn state(&self) -> State {
        self.experiment.state()
    }

    pub fn trial(&self) -> State {
        self.experiment.trials()["r1"].state
    }
}

/// The effects without their reasons: what is done to which run, and who changes to what.
pub fn brief(effects: &[Effect]) -> Vec<String> {
    let short = |effect: &Effect| match effect {
        Effect::MakeTrial { request, .. } => Some(format!("make {request}")),
        Effect::ReviseTrial { request, .. } => Some(format!("revise {request}")),
        Effect::Ask { run, .. } => Some(format!("ask {}", run.number)),
        Effect::Withdraw { run, .. } => Some(format!("withdraw {}", run.number)),
        Effect::Preempt { run, .. } => Some(format!("preempt {}", run.number)),
        Effect::Kill { run, .. } => Some(format!("kill {}", run.number)),
        Effect::ExperimentState { state, .. } => Some(format!("experiment {state:?}")),
        Effect::TrialState { state, .. } => Some(format!("trial {state:?}")),
        Effect::PolicyMatched { policy, .. } => Some(format!("matched {policy}")),
        Effect::CollectCheckpoints => Some("collect".to_owned()),
        Effect::Note { .. } => None,
    };
    effects.iter().filter_map(short).collect()
}

/// The lines for the task's log.
pub fn notes(effects: &[Effect]) -> Vec<&str> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Note { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}
