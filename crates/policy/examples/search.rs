//! Plays a large adaptive search on virtual slots and says how long its decisions took. Used by `bench/search.py`.
//!
//! ```text
//! search TRIALS SLOTS [SEED]      prints one line of JSON; times are microseconds
//! ```
#![expect(clippy::print_stdout, reason = "a program")]
#![expect(clippy::disallowed_methods, reason = "it measures how long things take")]

use std::error::Error;
use std::time::Instant;

use instep_api::config::{ExperimentConfig, Sources};
use instep_policy::search::Search;
use instep_policy::search::simulation::{Habits, SimulatedTrial, Simulation};
use serde_json::{Map, Value, json};

/// A trial that nobody stops runs for this long.
const LENGTH: u64 = 1024;
/// The whole search is stored and restored this many times, evenly spread.
const SNAPSHOTS: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [trials, slots, rest @ ..] = arguments.as_slice() else {
        return Err("usage: search TRIALS SLOTS [SEED]".into());
    };
    let (trials, slots): (u32, usize) = (trials.parse()?, slots.parse()?);
    let seed = rest.first().map_or(Ok(0), |seed| seed.parse())?;
    let search = search(trials, slots, seed)?;
    let habits = Habits { slots, report_every: LENGTH / 16, length: LENGTH, report_first: false };

    let mut decisions = play(search.clone(), habits, |_, _| Ok(()))?;
    let snapshots_every = (decisions.times.len() / SNAPSHOTS).max(1);
    let mut snapshots = Snapshots::default();
    let restored = play(
        search,
        habits,
        |number, search| {
            if number % snapshots_every == 0 { snapshots.take(search) } else { Ok(()) }
        },
    )?;
    if restored.last != decisions.last {
        return Err("the search that was restored ended otherwise".into());
    }
    decisions.times.sort_unstable_by(f64::total_cmp);
    let times = &decisions.times;
    let report = json!({
        "trials": trials,
        "slots": slots,
        "decisions": times.len(),
        "made": decisions.made,
        "mean_us": times.iter().sum::<f64>() / times.len() as f64,
        "median_us": at(times, 0.5),
        "p99_us": at(times, 0.99),
        "longest_us": at(times, 1.0),
        "snapshot_bytes": snapshots.bytes,
        "snapshot_us": late(snapshots.stored),
        "restore_us": late(snapshots.restored),
    });
    println!("{report}");
    Ok(())
}

fn search(trials: u32, slots: usize, seed: u32) -> Result<Search, Box<dyn Error>> {
    let text = format!(
        "searcher: {{name: adaptive_asha, metric: loss, time_metric: batches, max_time: {LENGTH}, max_trials: {trials}, \
         max_concurrent_trials: {slots}}}\n\
         hyperparameters: {{lr: {{type: log, base: 10, minval: -5, maxval: 0}}, width: {{type: int, minval: 16, maxval: 512}}, \
         activation: {{type: categorical, vals: [relu, gelu, tanh]}}, dropout: {{type: double, minval: 0, maxval: 0.5}}}}"
    );
    let config = ExperimentConfig::parse(&text, &Sources::default()).map_err(|errors| format!("{errors:?}"))?;
    Ok(Search::new(&config.searcher, &config.hyperparameters, seed)?)
}

/// What was measured while a search was played.
struct Decisions {
    times: Vec<f64>,
    made: usize,
    last: Search,
}

/// Plays a search to its end; `before` may exchange it before each event.
fn play(
    mut search: Search,
    habits: Habits,
    mut before: impl FnMut(usize, &mut Search) -> Result<(), Box<dyn Error>>,
) -> Result<Decisions, Box<dyn Error>> {
    let mut simulation = Simulation::new(habits, learning);
    let mut times = Vec::new();
    while let Some(event) = simulation.next() {
        before(times.len(), &mut search)?;
        let begin = Instant::now();
        let actions = search.on(event)?;
        times.push(microseconds(begin));
        simulation.apply(actions);
    }
    if simulation.ended() != Some(false) {
        return Err("the search did not end well".into());
    }
    Ok(Decisions { times, made: simulation.trials().len(), last: search })
}

/// A loss that falls with the steps, faster and deeper with better hyperparameters.
fn learning(trial: &SimulatedTrial, steps: u64) -> Map<String, Value> {
    let rate = trial.hyperparameters["lr"].as_f64().unwrap_or(1.0).log10();
    let floor = (rate + 2.5).powi(2) / 10.0 + trial.hyperparameters["dropout"].as_f64().unwrap_or_default() / 5.0;
    let loss = floor + 2.0 / (1.0 + steps as f64 / 50.0);
    Map::from_iter([("loss".to_owned(), json!(loss)), ("batches".to_owned(), json!(steps))])
}

/// How long storing and restoring took.
#[derive(Default)]
struct Snapshots {
    stored: Vec<f64>,
    restored: Vec<f64>,
    bytes: usize,
}

impl Snapshots {
    /// Replaces the search by what a snapshot of it says.
    fn take(&mut self, search: &mut Search) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        let text = serde_json::to_string(search)?;
        self.stored.push(microseconds(begin));
        self.bytes = self.bytes.max(text.len());
        let begin = Instant::now();
        *search = serde_json::from_str(&text)?;
        self.restored.push(microseconds(begin));
        Ok(())
    }
}

fn microseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// The median of the second half, when there is most to store.
fn late(mut times: Vec<f64>) -> f64 {
    let mut late = times.split_off(times.len() / 2);
    late.sort_unstable_by(f64::total_cmp);
    at(&late, 0.5)
}
