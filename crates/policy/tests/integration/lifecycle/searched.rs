//! Experiments with real searches: everything that a search wants happens, and a restart between any two events changes
//! nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use instep_api::config::{ExperimentConfig, Sources};
use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_policy::lifecycle::{Effect, End, Event, Experiment, Run, Terms};
use instep_policy::search::Search;
use instep_testkit::Random;
use serde_json::{Map, json};

const LENGTH: u64 = 64;

fn experiment(searcher: &str, single: bool) -> Experiment {
    let text = format!(
        "{{name: x, entrypoint: x, searcher: {{metric: loss, {searcher}}}, \
         hyperparameters: {{x: {{type: int, minval: 1, maxval: 8, count: 8}}}}}}"
    );
    let config = ExperimentConfig::parse(&text, &Sources::default()).expect("it makes sense");
    let search = Search::new(&config.searcher, &config.hyperparameters, 7).expect("it makes sense");
    let terms = Terms { max_restarts: 0, preemption_timeout: Duration::from_secs(60), single };
    Experiment::new(1, terms, search, false)
}

/// A cluster where every run has slots at once: trials report every step until they are done or asked to stop.
struct Play {
    experiment: Experiment,
    /// By trial: its hyperparameter, the steps it has done, its run, and whether it was asked to stop.
    running: BTreeMap<String, (u64, u64, Option<Run>, bool)>,
    ends: BTreeMap<String, State>,
    made: i32,
}

impl Play {
    fn of(experiment: Experiment) -> Play {
        Play { experiment, running: BTreeMap::new(), ends: BTreeMap::new(), made: 0 }
    }

    fn on(&mut self, event: Event) {
        let now = Timestamp(0);
        let stored = serde_json::to_string(&self.experiment).expect("stored");
        let mut twin: Experiment = serde_json::from_str(&stored).expect("read back");
        let effects = self.experiment.on(event.clone(), now);
        assert_eq!(twin.on(event, now), effects, "L6");
        self.experiment = twin;
        for effect in effects {
            match effect {
                Effect::MakeTrial { request, hyperparameters, .. } => {
                    let x = hyperparameters["x"].as_u64().expect("a number");
                    self.running.insert(request.clone(), (x, 0, None, false));
                    self.made += 1;
                    self.on(Event::TrialMade { request, trial: self.made });
                }
                Effect::Ask { run, .. } => {
                    let trial = self.running.get_mut(&run.request).expect("it was made");
                    trial.2 = Some(run.clone());
                    self.on(Event::Assigned { run: run.clone() });
                    self.on(Event::Ready { run });
                }
                Effect::Preempt { run, .. } => self.running.get_mut(&run.request).expect("it runs").3 = true,
                Effect::TrialState { request, state, .. } if state.is_terminal() => {
                    self.running.remove(&request);
                    self.ends.insert(request, state);
                }
                _ => {}
            }
        }
    }

    /// One trial does one step, or ends.
    fn step(&mut self, request: &str, fails: bool) {
        let (x, steps, run, stopping) = self.running.get_mut(request).expect("it runs");
        let Some(run) = run.clone() else { return };
        if *stopping || *steps == LENGTH || fails {
            if *stopping {
                self.on(Event::Acknowledged { run: run.clone() });
            }
            return self.on(Event::Ended { run, end: End::Exited { code: i32::from(fails) } });
        }
        *steps += 1;
        let (x, steps) = (*x, *steps);
        let metrics = Map::from_iter([
            ("loss".to_owned(), json!(10.0 / x as f64 + 1.0 / steps as f64)),
            ("batches".to_owned(), json!(steps)),
        ]);
        self.on(Event::Validated { request: request.to_owned(), metrics, steps });
    }

    fn play(&mut self, random: &mut Random, failures: bool) {
        self.on(Event::Started);
        while !self.experiment.state().is_terminal() {
            let trials: Vec<String> = self.running.keys().cloned().collect();
            assert!(!trials.is_empty(), "nothing runs, but {:?}", self.experiment.state());
            let fails = failures && random.once_in(200);
            self.step(&random.pick(&trials).clone(), fails);
        }
    }
}

#[test]
fn every_search_comes_to_its_end() {
    for (searcher, trials) in [
        ("name: single", 1),
        ("name: random, max_trials: 6, max_concurrent_trials: 2", 6),
        ("name: grid, max_concurrent_trials: 3", 8),
        ("name: async_halving, num_rungs: 3, max_trials: 12, time_metric: batches, max_time: 64", 12),
        ("name: adaptive_asha, max_trials: 12, time_metric: batches, max_time: 64, max_concurrent_trials: 4", 12),
    ] {
        let mut play = Play::of(experiment(searcher, trials == 1));
        play.play(&mut Random::new(3), false);
        assert_eq!(play.experiment.state(), State::Completed, "{searcher}");
        assert_eq!(play.ends.len(), trials, "{searcher}");
        assert!(play.ends.values().all(|state| *state == State::Completed), "{searcher}");
        assert!((play.experiment.search().progress() - 1.0).abs() < 0.2, "{searcher}");
    }
}

#[test]
fn a_search_goes_on_with_the_trials_that_do_not_fail() {
    let searcher = "name: adaptive_asha, max_trials: 16, time_metric: batches, max_time: 64, max_concurrent_trials: 6";
    let mut play = Play::of(experiment(searcher, false));
    play.play(&mut Random::new(5), true);
    let failed = play.ends.values().filter(|state| **state == State::Error).count();
    assert!(failed > 0 && failed < play.ends.len(), "{failed} of {}", play.ends.len());
    assert_eq!(play.experiment.state(), State::Completed, "at least one is good");
}

#[test]
fn a_report_that_the_search_cannot_use_ends_the_experiment() {
    let mut play = Play::of(experiment("name: adaptive_asha, max_trials: 2, time_metric: epochs, max_time: 64", false));
    play.on(Event::Started);
    let request = play.running.keys().next().expect("one runs").clone();
    play.step(&request, false);
    assert_eq!(play.experiment.state(), State::StoppingError);
}
