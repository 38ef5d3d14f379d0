//! Metrics of a whole experiment: which there are, at which steps, of which trials; and how its best validation rose.
//!
//! Streams say what is new, look again after a while, and end when the experiment has.

use std::collections::BTreeSet;
use std::time::Duration;

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::metrics::{
    MetricBatchesElement, MetricIdentifier, MetricNamesElement, SampledTrial, SnapshotTrial, TRAINING,
    TrialsSampleElement, TrialsSnapshotElement, VALIDATION, ValidationHistoryEntry, ValidationHistoryResponse,
};
use instep_api::pages::{Order, Slice};
use instep_api::trials::Trial;
use instep_database::Subject;

use super::call::Call;
use super::failure::Failure;
use super::metrics::group_of;
use super::reply::{Json, LineSender, Reply, Stop, lines};
use crate::clock::now;

/// How long a stream waits before it looks again, if nobody says how long.
const PERIOD: u64 = 30;
const LONGEST_PERIOD: u64 = 3600;
/// Trials of a sample, and points of each, if nobody says how many.
const SAMPLED_TRIALS: usize = 25;
const SAMPLED_POINTS: usize = 1000;
/// Steps around the one that is asked for.
const WIDEST_MARGIN: i64 = 100;
/// As many points as there are.
const ALL_POINTS: usize = usize::MAX >> 1;

/// The group and name of the metric that a query asks for.
fn metric(call: &Call) -> Result<(String, String), Failure> {
    let missing = |what: &str| Failure::invalid(format!("must specify a metric {what}"));
    let name = call.query.text("metricName").ok_or_else(|| missing("name"))?;
    let group = group_of(call).ok_or_else(|| missing("group"))?;
    Ok((group.to_owned(), name.to_owned()))
}

fn period(call: &Call) -> Result<Duration, Failure> {
    let seconds: u64 = call.query.value("periodSeconds")?.filter(|seconds| *seconds > 0).unwrap_or(PERIOD);
    Ok(Duration::from_secs(seconds.min(LONGEST_PERIOD)))
}

async fn experiment(call: &Call, id: ExperimentId) -> Result<Experiment, Stop> {
    Ok(call.application.database.experiment(id, now()).await?)
}

async fn trials(call: &Call, id: ExperimentId) -> Result<Vec<Trial>, Stop> {
    let database = &call.application.database;
    Ok(database.trials(id, Vec::new(), Order::Ascending, Slice::ALL, now()).await?.0)
}

/// What a stream says in each of its rounds.
trait Rounds: Send + 'static {
    /// Says what is new; whether there is nothing more to come.
    fn round(&mut self, call: &Call, sender: &LineSender) -> impl Future<Output = Result<bool, Stop>> + Send;
}

/// Streams what `rounds` say, until there is nothing more to come or the reader goes away.
fn stream(call: Call, period: Duration, mut rounds: impl Rounds) -> Reply {
    let (sender, lines) = lines();
    tokio::spawn(async move {
        loop {
            match rounds.round(&call, &sender).await {
                Ok(true) | Err(Stop::Gone) => return,
                Ok(false) => {}
                Err(Stop::Failed(failure)) => return sender.fail(&failure).await,
            }
            if tokio::time::timeout(period, sender.closed()).await.is_ok() {
                return;
            }
        }
    });
    Reply::Lines(lines)
}

/// The names of the metrics of several experiments.
struct Names {
    experiments: Vec<ExperimentId>,
    said: Option<MetricNamesElement>,
}

impl Rounds for Names {
    async fn round(&mut self, call: &Call, sender: &LineSender) -> Result<bool, Stop> {
        let mut is_end = true;
        let (mut searched, mut named) = (BTreeSet::new(), BTreeSet::new());
        for id in &self.experiments {
            let found = experiment(call, *id).await?;
            is_end &= found.state.is_terminal();
            searched.insert(found.searcher_metric);
            named.extend(call.application.database.metric_names(*id).await?);
        }
        let of_group = |wanted: &str| {
            let names = named.iter().filter(|(group, _)| group == wanted).map(|(_, name)| name.clone());
            names.collect::<Vec<String>>()
        };
        let names = MetricNamesElement {
            searcher_metrics: searched.into_iter().filter(|name| !name.is_empty()).collect(),
            training_metrics: of_group(TRAINING),
            validation_metrics: of_group(VALIDATION),
            metric_names: named.iter().cloned().map(|(group, name)| MetricIdentifier { group, name }).collect(),
        };
        if self.said.as_ref() != Some(&names) {
            sender.send(&names).await?;
            self.said = Some(names);
        }
        Ok(is_end)
    }
}

pub(crate) async fn names(call: Call) -> Result<Reply, Failure> {
    let experiments: Vec<ExperimentId> = call.query.values("ids")?;
    call.note_asked();
    if experiments.is_empty() {
        return Err(Failure::invalid("must specify at least one experiment id"));
    }
    for id in &experiments {
        call.must_see(Subject::Experiment(*id)).await?;
    }
    let period = period(&call)?;
    Ok(stream(call, period, Names { experiments, said: None }))
}

/// The steps at which a metric was reported.
struct Batches {
    experiment: ExperimentId,
    metric: (String, String),
    said: BTreeSet<i64>,
}

impl Rounds for Batches {
    async fn round(&mut self, call: &Call, sender: &LineSender) -> Result<bool, Stop> {
        let is_end = experiment(call, self.experiment).await?.state.is_terminal();
        let mut new = BTreeSet::new();
        for trial in trials(call, self.experiment).await? {
            let (group, name) = self.metric.clone();
            let chart = call.application.database.chart(trial.id, group, vec![name], 0, i64::MAX, ALL_POINTS);
            new.extend(chart.await?.into_iter().map(|point| point.batches).filter(|step| !self.said.contains(step)));
        }
        sender.send(&MetricBatchesElement { batches: new.iter().copied().collect() }).await?;
        self.said.append(&mut new);
        Ok(is_end)
    }
}

pub(crate) async fn batches(call: Call) -> Result<Reply, Failure> {
    let (metric, period) = (metric(&call)?, period(&call)?);
    let rounds = Batches { experiment: call.id("id")?, metric, said: BTreeSet::new() };
    Ok(stream(call, period, rounds))
}

/// An experiment's best trials, with the history of a metric.
struct Sample {
    experiment: ExperimentId,
    metric: (String, String),
    steps: (i64, i64),
    most_trials: usize,
    most_points: usize,
    /// The trials of the last round, and up to which step each was said.
    current: Vec<(TrialId, i64)>,
}

impl Rounds for Sample {
    async fn round(&mut self, call: &Call, sender: &LineSender) -> Result<bool, Stop> {
        let found = experiment(call, self.experiment).await?;
        let smaller_is_better = smaller_is_better(&found);
        let mut best = trials(call, self.experiment).await?;
        best.sort_by(|one, other| {
            let value = |trial: &Trial| match trial.searcher_metric_value {
                Some(value) if smaller_is_better => value,
                Some(value) => -value,
                None => f64::INFINITY,
            };
            value(one).total_cmp(&value(other)).then(one.id.cmp(&other.id))
        });
        best.truncate(self.most_trials);
        let (mut shown, mut promoted, mut current) = (Vec::new(), Vec::new(), Vec::new());
        for trial in best {
            let known = self.current.iter().find(|(id, _)| *id == trial.id).map(|(_, step)| *step);
            if known.is_none() {
                promoted.push(trial.id);
            }
            let first = known.map_or(self.steps.0, |step| step + 1);
            let (group, name) = self.metric.clone();
            let chart =
                call.application.database.chart(trial.id, group, vec![name], first, self.steps.1, self.most_points);
            let data = chart.await?;
            let last = data.last().map_or(first - 1, |point| point.batches);
            current.push((trial.id, last));
            shown.push(SampledTrial { trial_id: trial.id, hparams: trial.hparams, data });
        }
        let is_gone = |(id, _): &&(TrialId, i64)| !current.iter().any(|(known, _)| known == id);
        let demoted_trials = self.current.iter().filter(is_gone).map(|(id, _)| *id).collect();
        self.current = current;
        sender.send(&TrialsSampleElement { trials: shown, promoted_trials: promoted, demoted_trials }).await?;
        Ok(found.state.is_terminal())
    }
}

pub(crate) async fn sample(call: Call) -> Result<Reply, Failure> {
    let (metric, period) = (metric(&call)?, period(&call)?);
    let query = &call.query;
    let rounds = Sample {
        experiment: call.id("id")?,
        metric,
        steps: (
            query.value("startBatches")?.unwrap_or(0),
            query.value("endBatches")?.filter(|last| *last > 0).unwrap_or(i64::MAX),
        ),
        most_trials: query.value("maxTrials")?.filter(|most| *most > 0).unwrap_or(SAMPLED_TRIALS),
        most_points: query.value("maxDatapoints")?.filter(|most| *most > 0).unwrap_or(SAMPLED_POINTS),
        current: Vec::new(),
    };
    Ok(stream(call, period, rounds))
}

/// What an experiment's trials reported at one step, or close to it.
struct Snapshot {
    experiment: ExperimentId,
    metric: (String, String),
    step: i64,
    margin: i64,
}

impl Rounds for Snapshot {
    async fn round(&mut self, call: &Call, sender: &LineSender) -> Result<bool, Stop> {
        let is_end = experiment(call, self.experiment).await?.state.is_terminal();
        let steps = ((self.step - self.margin).max(0), self.step.saturating_add(self.margin));
        let mut shown = Vec::new();
        for trial in trials(call, self.experiment).await? {
            let (group, name) = self.metric.clone();
            let chart =
                call.application.database.chart(trial.id, group, vec![name.clone()], steps.0, steps.1, ALL_POINTS);
            let points = chart.await?.into_iter();
            let values = points.filter_map(|point| Some((point.batches, point.values.get(&name)?.number()?)));
            let nearest = values.min_by_key(|(step, _)| (step - self.step).abs());
            if let Some((batches_processed, metric)) = nearest.filter(|(_, value)| value.is_finite()) {
                shown.push(SnapshotTrial { trial_id: trial.id, hparams: trial.hparams, metric, batches_processed });
            }
        }
        sender.send(&TrialsSnapshotElement { trials: shown }).await?;
        Ok(is_end)
    }
}

pub(crate) async fn snapshot(call: Call) -> Result<Reply, Failure> {
    let (metric, period) = (metric(&call)?, period(&call)?);
    let step = call.query.value("batchesProcessed")?.unwrap_or(0);
    let margin = call.query.value("batchesMargin")?.unwrap_or(0);
    if !(0..=WIDEST_MARGIN).contains(&margin) {
        return Err(Failure::invalid(format!("margin must be <= {WIDEST_MARGIN}, and not negative")));
    }
    let rounds = Snapshot { experiment: call.id("id")?, metric, step, margin };
    Ok(stream(call, period, rounds))
}

fn smaller_is_better(experiment: &Experiment) -> bool {
    experiment.config.clone().into_value()["searcher"]["smaller_is_better"].as_bool().unwrap_or(true)
}

/// The validations that were better than all before them.
pub(crate) async fn validation_history(call: Call) -> Result<Json<ValidationHistoryResponse>, Failure> {
    let database = &call.application.database;
    let found = database.experiment(call.id("id")?, now()).await?;
    let metric = found.searcher_metric.clone();
    let mut validations = Vec::new();
    for trial in &found.trial_ids {
        let chart = database.chart(*trial, VALIDATION.to_owned(), vec![metric.clone()], 0, i64::MAX, ALL_POINTS);
        for point in chart.await? {
            let value = point.values.get(&metric).and_then(|value| value.number()).filter(|value| value.is_finite());
            validations.extend(value.map(|searcher_metric| ValidationHistoryEntry {
                trial_id: *trial,
                end_time: point.time,
                searcher_metric,
            }));
        }
    }
    validations.sort_by_key(|entry| (entry.end_time, entry.trial_id));
    let smaller_is_better = smaller_is_better(&found);
    let mut best: Option<f64> = None;
    validations.retain(|entry| {
        let value = entry.searcher_metric;
        let is_better = best.is_none_or(|best| if smaller_is_better { value < best } else { value > best });
        if is_better {
            best = Some(value);
        }
        is_better
    });
    Ok(Json(ValidationHistoryResponse { validation_history: validations }))
}
