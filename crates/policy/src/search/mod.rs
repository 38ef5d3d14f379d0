//! Which trials an experiment runs, with which hyperparameters, and which of them stop early.
//!
//! A [`Search`] hears what happens to its trials and answers with what to do: `Search::on(event) -> actions`. It is a
//! function of its configuration, its seed and the events in their order, and nothing else. Serialised it is its own
//! snapshot: a search restored from one goes on as if nothing had happened. It remembers the trials that are running and,
//! of the others, no more than it compares by; so a decision costs the same at the first trial as at the ten-thousandth.
//!
//! - `single`, `random`, `grid`: trials are made until there are enough, and run to their end.
//! - `halving`: asynchronous successive halving; `adaptive`: several brackets of it side by side.
//! - `seen_metrics`: whether trials report the metric that a search compares by.
//! - `generator`, `sample`: where random hyperparameters, seeds and names of trials come from.
//! - [`preview()`]: what a search will do, told before it begins. [`simulation`]: a search played without a cluster.

mod adaptive;
mod generator;
mod halving;
mod preview;
mod sample;
mod seen_metrics;
pub mod simulation;

use std::collections::BTreeMap;
use std::fmt;

use instep_api::config::{Hyperparameters, Method, SearcherConfig, Span};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use adaptive::brackets;
pub use generator::Generator;
use halving::{Bracket, ReportDecision, RungHistory};
pub use preview::{Ends, Planned, preview};
use seen_metrics::SeenMetrics;

/// The seeds of trials lie below this.
const SEEDS: u64 = 1 << 31;

/// Points of a grid, at most.
pub const MOST_POINTS: u64 = 1_000_000;

/// What a search hears.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Event {
    /// The experiment begins.
    Started,
    /// A trial that was asked for exists.
    TrialCreated {
        /// Which, by the name the search gave it.
        request: String,
    },
    /// A trial has reported validation metrics.
    Validated {
        request: String,
        /// All of the report.
        metrics: Map<String, Value>,
        /// The report's `steps_completed`.
        steps: u64,
    },
    /// A trial says how far it is.
    Progressed {
        request: String,
        /// From 0 to 1.
        progress: f64,
    },
    /// A trial will end before its time. [`Event::Exited`] follows.
    ExitedEarly { request: String, reason: EarlyExit },
    /// A trial has ended, in whatever way.
    Exited { request: String },
    /// A trial was completed in an earlier life of the experiment, which knows what it reported; [`Event::Exited`]
    /// follows.
    CompletedBefore { request: String },
}

impl Event {
    /// The trial that it is about.
    pub fn request(&self) -> Option<&str> {
        match self {
            Event::Started => None,
            Event::TrialCreated { request }
            | Event::Validated { request, .. }
            | Event::Progressed { request, .. }
            | Event::ExitedEarly { request, .. }
            | Event::Exited { request }
            | Event::CompletedBefore { request } => Some(request),
        }
    }
}

/// Why a trial ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyExit {
    /// It failed more often than it may.
    Errored,
    /// Somebody cancelled or killed it.
    UserCancelled,
    /// It says that its hyperparameters make no sense.
    InvalidHyperparameters,
}

/// What a search wants done.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Action {
    /// Make a trial.
    Create {
        /// Its name in the search, a UUID.
        request: String,
        /// From which its own randomness follows.
        seed: u32,
        /// What it is to try.
        hyperparameters: Map<String, Value>,
    },
    /// End a trial in good order.
    Stop {
        request: String,
        /// Why, for people.
        reason: String,
    },
    /// Tell the people who read the log of a trial.
    Warn {
        request: String,
        /// A sentence, with a `hint:` line.
        text: String,
    },
    /// The search is over: every trial has ended.
    Shutdown {
        /// Every trial was cancelled.
        cancelled: bool,
        /// Every trial failed.
        failed: bool,
    },
}

/// Why a search cannot go on; the experiment fails with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchError(String);

impl fmt::Display for SearchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for SearchError {}

/// A search. See the [module](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Search {
    config: SearcherConfig,
    hyperparameters: Hyperparameters,
    generator: Generator,
    plan: Plan,
    /// The trials that have not ended, by their names in the search.
    live: BTreeMap<String, Trial>,
    tally: Tally,
    #[serde(default = "SeenMetrics::of_an_earlier_version", rename = "sightings")]
    seen_metrics: SeenMetrics,
}

/// How trials are chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Plan {
    /// So many are still to be made, with hyperparameters drawn at random.
    Random { left: u32 },
    /// So many points of the grid are still to be tried; the last is the next.
    Grid { left: u64 },
    /// Compared on rungs.
    Halving { brackets: Vec<Bracket> },
}

/// A trial that has not ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Trial {
    bracket: usize,
    #[serde(rename = "standing")]
    rung_history: RungHistory,
    progress: f64,
    early: Option<EarlyExit>,
    /// It was told to stop: what it reports from now on counts for nothing.
    stopped: bool,
    /// It has reported the searcher's metric, or its log says that it has not.
    #[serde(default)]
    settled: bool,
}

/// How many trials ended in which way.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Tally {
    requested: u32,
    closed: u32,
    errored: u32,
    cancelled: u32,
    /// Of those that have closed.
    invalid: u32,
}

impl Search {
    /// A search that has not begun.
    pub fn new(config: &SearcherConfig, hyperparameters: &Hyperparameters, seed: u32) -> Result<Search, SearchError> {
        Ok(Search {
            plan: plan(config, hyperparameters)?,
            config: config.clone(),
            hyperparameters: hyperparameters.clone(),
            generator: Generator::new(seed),
            live: BTreeMap::new(),
            tally: Tally::default(),
            seen_metrics: SeenMetrics::default(),
        })
    }

    /// Hears an event and says what to do, in that order. An event of a trial that has ended, or was never asked for,
    /// changes nothing.
    pub fn on(&mut self, event: Event) -> Result<Vec<Action>, SearchError> {
        match event {
            Event::Started => Ok(self.begin()),
            Event::TrialCreated { .. } => Ok(Vec::new()),
            Event::Validated { request, metrics, steps } => self.validated(&request, &metrics, steps),
            Event::Progressed { request, progress } => {
                if let Some(trial) = self.live.get_mut(&request) {
                    trial.progress = if progress.is_finite() { progress.clamp(0.0, 1.0) } else { 0.0 };
                }
                Ok(Vec::new())
            }
            Event::ExitedEarly { request, reason } => Ok(self.exited_early(&request, reason)),
            Event::Exited { request } => self.exited(&request),
            Event::CompletedBefore { request } => {
                self.live.get_mut(&request).into_iter().for_each(|trial| trial.settled = true);
                self.seen_metrics.metric = true;
                Ok(Vec::new())
            }
        }
    }

    /// How much of the search is done, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let progress = match &self.plan {
            Plan::Halving { brackets } => brackets.iter().map(Bracket::progress).sum::<f64>() / brackets.len() as f64,
            Plan::Random { .. } | Plan::Grid { .. } => {
                let invalid = |trial: &&Trial| trial.early == Some(EarlyExit::InvalidHyperparameters);
                let running = self.live.values().filter(|trial| !invalid(trial));
                let (count, sum) = running.fold((0u32, 0.0), |(count, sum), trial| (count + 1, sum + trial.progress));
                let ended = self.tally.closed - self.tally.invalid;
                (f64::from(ended) + sum) / f64::from(ended + count)
            }
        };
        if progress.is_finite() { progress.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn begin(&mut self) -> Vec<Action> {
        if self.tally.requested > 0 {
            return Vec::new();
        }
        let first: Vec<(usize, u64)> = match &self.plan {
            Plan::Random { left } => vec![(0, self.at_once(u64::from(*left)))],
            Plan::Grid { left } => vec![(0, self.at_once(*left))],
            Plan::Halving { brackets } => {
                brackets.iter().enumerate().map(|(index, bracket)| (index, u64::from(bracket.initial()))).collect()
            }
        };
        let each = first.into_iter().flat_map(|(bracket, count)| (0..count).map(move |_| bracket));
        each.map(|bracket| self.create(bracket)).collect()
    }

    /// How many of `all` trials may run at the same time.
    fn at_once(&self, all: u64) -> u64 {
        match self.config.method {
            Method::Random { max_concurrent_trials: most @ 1.., .. }
            | Method::Grid { max_concurrent_trials: most @ 1.. } => all.min(u64::from(most)),
            _ => all,
        }
    }

    fn create(&mut self, bracket: usize) -> Action {
        let hyperparameters = match &mut self.plan {
            Plan::Grid { left } => {
                *left -= 1;
                sample::point(&self.hyperparameters, *left)
            }
            Plan::Random { left } => {
                *left = left.saturating_sub(1);
                sample::draw(&self.hyperparameters, &mut self.generator)
            }
            Plan::Halving { brackets } => {
                brackets[bracket].made();
                sample::draw(&self.hyperparameters, &mut self.generator)
            }
        };
        let request = self.generator.uuid();
        let seed = self.generator.up_to(SEEDS - 1) as u32;
        self.live.insert(request.clone(), Trial { bracket, ..Trial::default() });
        self.tally.requested += 1;
        Action::Create { request, seed, hyperparameters }
    }

    fn validated(
        &mut self,
        request: &str,
        metrics: &Map<String, Value>,
        steps: u64,
    ) -> Result<Vec<Action>, SearchError> {
        let Some(trial) = self.live.get_mut(request) else { return Ok(Vec::new()) };
        self.seen_metrics.note(&self.config.metric, metrics);
        let reported = metrics.contains_key(&self.config.metric);
        let Plan::Halving { brackets } = &mut self.plan else {
            let first = !std::mem::replace(&mut trial.settled, true);
            let warning = (first && !reported).then(|| seen_metrics::warning(&self.config.metric, Some(metrics)));
            return Ok(warning.map(|text| Action::Warn { request: request.to_owned(), text }).into_iter().collect());
        };
        trial.settled |= reported;
        if trial.stopped || trial.early.is_some() {
            return Ok(Vec::new());
        }
        let (metric, time) = measured(&self.config, metrics, steps)?;
        let bracket = &mut brackets[trial.bracket];
        let ReportDecision::Stop(reason) = bracket.decide(&mut trial.rung_history, metric, time) else {
            return Ok(Vec::new());
        };
        trial.stopped = true;
        let (index, more) = (trial.bracket, bracket.wants_more());
        let mut actions = vec![Action::Stop { request: request.to_owned(), reason }];
        if more {
            actions.push(self.create(index));
        }
        Ok(actions)
    }

    fn exited_early(&mut self, request: &str, reason: EarlyExit) -> Vec<Action> {
        let Some(trial) = self.live.get_mut(request) else { return Vec::new() };
        if trial.early.is_some() {
            return Vec::new();
        }
        trial.early = Some(reason);
        match reason {
            EarlyExit::Errored => self.tally.errored += 1,
            EarlyExit::UserCancelled => self.tally.cancelled += 1,
            EarlyExit::InvalidHyperparameters => {}
        }
        let invalid = reason == EarlyExit::InvalidHyperparameters;
        let (bracket, stopped) = (trial.bracket, std::mem::replace(&mut trial.stopped, true));
        let replaced = match &mut self.plan {
            // Nothing else can be tried at this point of the grid; elsewhere the dice are thrown again.
            Plan::Grid { .. } => false,
            Plan::Random { left } => {
                *left += u32::from(invalid);
                invalid
            }
            Plan::Halving { brackets } if invalid => {
                brackets[bracket].forget(&mut trial.rung_history);
                true
            }
            Plan::Halving { .. } if stopped => false,
            Plan::Halving { brackets } => {
                brackets[bracket].failed(&mut trial.rung_history);
                brackets[bracket].wants_more()
            }
        };
        let halving = matches!(self.plan, Plan::Halving { .. });
        let mut actions = Vec::new();
        if halving && invalid && !stopped {
            let reason = "its hyperparameters are invalid".to_owned();
            actions.push(Action::Stop { request: request.to_owned(), reason });
        }
        if replaced {
            actions.push(self.create(bracket));
        }
        actions
    }

    fn exited(&mut self, request: &str) -> Result<Vec<Action>, SearchError> {
        let Some(trial) = self.live.remove(request) else { return Ok(Vec::new()) };
        let mut actions = Vec::new();
        if trial.early.is_none() && !trial.settled {
            let text = seen_metrics::warning(&self.config.metric, None);
            actions.push(Action::Warn { request: request.to_owned(), text });
        }
        let invalid = trial.early == Some(EarlyExit::InvalidHyperparameters);
        self.tally.closed += 1;
        self.tally.invalid += u32::from(invalid);
        let more = match &mut self.plan {
            // The one that replaces an invalid trial was made already.
            Plan::Random { left } => *left > 0 && !invalid,
            Plan::Grid { left } => *left > 0,
            Plan::Halving { brackets } => {
                brackets[trial.bracket].ended();
                false
            }
        };
        if more {
            actions.push(self.create(trial.bracket));
        } else if self.tally.closed == self.tally.requested {
            actions.push(self.shutdown()?);
        }
        Ok(actions)
    }

    /// The end, if there is something to show for it: a search that compares trials by a metric which none of them
    /// reported has found nothing. A single trial is compared with nothing, and what people cancel is not judged.
    fn shutdown(&self) -> Result<Action, SearchError> {
        let Tally { requested, errored, cancelled, invalid, .. } = self.tally;
        let compares = !matches!(self.config.method, Method::Single);
        let completed = cancelled == 0 && errored + invalid < requested;
        if compares && completed && !self.seen_metrics.metric {
            return Err(SearchError(self.seen_metrics.failure_reason(&self.config.metric)));
        }
        Ok(Action::Shutdown { cancelled: cancelled >= requested, failed: errored >= requested })
    }
}

fn plan(config: &SearcherConfig, hyperparameters: &Hyperparameters) -> Result<Plan, SearchError> {
    Ok(match &config.method {
        Method::Single => Plan::Random { left: 1 },
        Method::Random { max_trials, .. } => Plan::Random { left: *max_trials },
        Method::Grid { .. } => Plan::Grid { left: grid_points(hyperparameters)? },
        Method::AsyncHalving(search) => {
            let units = Bracket::units(search.num_rungs, span(config)?.max_time, search.divisor);
            let bracket = Bracket::new(units, search.max_trials, search.max_concurrent_trials, search.divisor);
            Plan::Halving { brackets: vec![bracket] }
        }
        Method::AdaptiveAsha(search) => Plan::Halving { brackets: brackets(search, span(config)?.max_time) },
    })
}

fn grid_points(hyperparameters: &Hyperparameters) -> Result<u64, SearchError> {
    sample::points(hyperparameters).filter(|points| *points <= MOST_POINTS).ok_or_else(|| {
        SearchError(format!("the grid has more than {MOST_POINTS} points; hint: lower the `count` of hyperparameters"))
    })
}

fn span(config: &SearcherConfig) -> Result<Span, SearchError> {
    config.span().ok_or_else(|| {
        SearchError(format!("the `{}` searcher requires `max_time` and `time_metric` to be set", config.name()))
    })
}

/// The metric of a report, the smaller the better, and its time.
fn measured(config: &SearcherConfig, metrics: &Map<String, Value>, steps: u64) -> Result<(f64, u64), SearchError> {
    let number = |name: &str, what: &str| match metrics.get(name) {
        Some(value) => value
            .as_f64()
            .filter(|number| number.is_finite())
            .ok_or_else(|| SearchError(format!("{what} `{name}` of a validation is {value}, not a finite number"))),
        None => {
            let known: Vec<&str> = metrics.keys().map(String::as_str).collect();
            Err(SearchError(format!("a validation has no {what} `{name}`, only {}", known.join(", "))))
        }
    };
    let metric = number(&config.metric, "searcher metric")?;
    let time = match span(config)?.metric {
        // A time before the first unit is none, whatever its sign.
        Some(name) => number(&name, "time metric")?.floor().max(0.0) as u64,
        None => steps,
    };
    Ok((if config.smaller_is_better { metric } else { -metric }, time))
}
