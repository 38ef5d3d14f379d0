//! What others may ask of metrics.

use std::collections::BTreeSet;

use instep_api::identifiers::{ExperimentId, RunId, TrialId};
use instep_api::metrics::{DataPoint, Metrics, MetricsReport, PROFILING, TRAINING, VALIDATION};
use instep_api::pages::{Order, Pagination, Slice};
use instep_api::trials::{MetricsWorkload, Workload};
use instep_api::wire::Timestamp;
use serde_json::{Value, json};

use super::chunk::Point;
use super::downsample::thin;
use super::history::{self, Part};
use super::read;
use crate::Database;
use crate::checkpoints;
use crate::error::Result;
use crate::sql;
use crate::trials::must_exist;

/// Values of one answer at most, so that a wish for everything does not fill the memory; readers ask for the rest.
const VALUES_PER_ANSWER: usize = 200_000;

/// The slice, or the beginning of it.
fn at_most(slice: Slice, most: usize) -> Slice {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let wanted = if slice.limit == 0 { slice.default_limit.unwrap_or(-1) } else { slice.limit };
    let everything = wanted == -1 || wanted > most;
    if everything { Slice { limit: most, ..slice } } else { slice }
}

fn workload_of(row: read::Row, with_batches: bool) -> MetricsWorkload {
    let batches = row.batches.filter(|_| with_batches);
    let batch_metrics = Some(batches.unwrap_or_else(|| Value::Array(Vec::new())));
    MetricsWorkload {
        metrics: Metrics { avg_metrics: row.values, batch_metrics },
        num_inputs: 0,
        total_batches: row.step,
        end_time: Some(Timestamp(row.time)),
    }
}

fn steps_and_time(workload: &Workload) -> (i64, Option<Timestamp>) {
    let metrics = workload.training.as_ref().or(workload.validation.as_ref());
    let metrics = metrics.map(|metrics| (metrics.total_batches, metrics.end_time));
    let checkpoint = workload.checkpoint.as_ref().map(|checkpoint| (checkpoint.total_batches, checkpoint.end_time));
    metrics.or(checkpoint).unwrap_or((0, None))
}

impl Database {
    /// The history of a trial: training, validation and checkpoints, by step and time.
    pub async fn workloads(
        &self,
        trial: TrialId,
        with_batches: bool,
        order: Order,
        slice: Slice,
    ) -> Result<(Vec<Workload>, Pagination)> {
        self.executor
            .read(move |connection| {
                must_exist(connection, trial)?;
                let checkpoints = checkpoints::workloads(connection, trial)?;
                let training = history::keys(connection, trial, TRAINING)?;
                let validation = history::keys(connection, trial, VALIDATION)?;
                let mut steps: Vec<i64> = checkpoints.iter().map(|checkpoint| checkpoint.total_batches).collect();
                steps.extend(training.into_iter().chain(validation));
                steps.sort_unstable();
                let widths =
                    [TRAINING, VALIDATION].map(|group| read::names(connection, trial, group).map(|all| all.len()));
                let width = widths.into_iter().sum::<Result<usize>>()?.max(1);
                let (range, page) = at_most(slice, (VALUES_PER_ANSWER / width).max(1)).of(steps.len());
                if range.is_empty() {
                    return Ok((Vec::new(), page));
                }
                let upwards = match order {
                    Order::Ascending => range,
                    Order::Descending => steps.len() - range.end..steps.len() - range.start,
                };
                let (first, last) = (steps[upwards.start], steps[upwards.end - 1]);
                let mut workloads = Vec::new();
                for row in read::rows(connection, trial, TRAINING, first, last)? {
                    let training = Some(workload_of(row, with_batches));
                    workloads.push(Workload { training, ..Workload::default() });
                }
                for row in read::rows(connection, trial, VALIDATION, first, last)? {
                    let validation = Some(workload_of(row, with_batches));
                    workloads.push(Workload { validation, ..Workload::default() });
                }
                for checkpoint in checkpoints {
                    if (first..=last).contains(&checkpoint.total_batches) {
                        workloads.push(Workload { checkpoint: Some(checkpoint), ..Workload::default() });
                    }
                }
                workloads.sort_by_key(steps_and_time);
                // Of what has the first step, some may belong to the part before.
                let skipped = upwards.start - steps.partition_point(|step| *step < first);
                let mut wanted: Vec<Workload> = workloads.into_iter().skip(skipped).take(upwards.len()).collect();
                if order == Order::Descending {
                    wanted.reverse();
                }
                Ok((wanted, page))
            })
            .await
    }

    /// The parts in which to read everything that a trial reported, in all groups or in one.
    pub async fn metric_history(&self, trial: TrialId, group: Option<String>) -> Result<Vec<Part>> {
        self.executor
            .read(move |connection| {
                must_exist(connection, trial)?;
                let groups = match group {
                    Some(group) => vec![group],
                    None => read::groups(connection, trial)?.into_iter().collect(),
                };
                history::parts(connection, trial, groups)
            })
            .await
    }

    /// What a trial reported in a part of its history, by run and step. Their ids are counted from 0.
    pub async fn metric_reports(&self, trial: TrialId, part: Part) -> Result<Vec<MetricsReport>> {
        self.executor
            .read(move |connection| {
                let mut reports = Vec::new();
                for group in &part.groups {
                    for row in read::rows(connection, trial, group, part.first, part.last)? {
                        reports.push(report_of(trial, group, row));
                    }
                }
                reports.sort_by_key(|report| (report.trial_run_id, report.total_batches));
                Ok(reports)
            })
            .await
    }

    /// The points of a chart: the named metrics of a group, or all of it, between two steps, thinned out to `limit`
    /// points each. What is no number is left out.
    pub async fn chart(
        &self,
        trial: TrialId,
        group: String,
        names: Vec<String>,
        first: i64,
        last: i64,
        limit: usize,
    ) -> Result<Vec<DataPoint>> {
        let steps = (first, last);
        self.executor
            .read(move |connection| points(connection, trial, &group, names, steps, Thinned { limit, numbers: true }))
            .await
    }

    /// What a chart has, together with the values that are no numbers.
    pub async fn values(
        &self,
        trial: TrialId,
        group: String,
        names: Vec<String>,
        steps: (i64, i64),
        limit: usize,
    ) -> Result<Vec<DataPoint>> {
        self.executor
            .read(move |connection| points(connection, trial, &group, names, steps, Thinned { limit, numbers: false }))
            .await
    }

    /// The metrics that an experiment's trials reported, as group and name; the machine's left out.
    pub async fn metric_names(&self, experiment: ExperimentId) -> Result<BTreeSet<(String, String)>> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT id FROM trials WHERE experiment_id = ?")?;
                let trials = statement.query_map([experiment.0], |row| row.get(0).map(TrialId))?;
                let mut found = BTreeSet::new();
                for trial in trials.collect::<sql::Result<Vec<TrialId>>>()? {
                    for group in read::groups(connection, trial)? {
                        if !PROFILING.contains(&group.as_str()) {
                            let names = read::names(connection, trial, &group)?;
                            found.extend(names.into_iter().map(|name| (group.clone(), name)));
                        }
                    }
                }
                Ok(found)
            })
            .await
    }

    /// The groups in which a trial reported.
    pub async fn metric_groups(&self, trial: TrialId) -> Result<Vec<String>> {
        self.executor
            .read(move |connection| {
                must_exist(connection, trial)?;
                Ok(read::groups(connection, trial)?.into_iter().collect())
            })
            .await
    }
}

/// The points of several metrics, each with the place of its name, as one for each step and time.
/// How many points of a metric are shown, and whether numbers alone are.
struct Thinned {
    limit: usize,
    numbers: bool,
}

/// The points of metrics of a group, or of all, between two steps.
fn points(
    connection: &sql::Connection,
    trial: TrialId,
    group: &str,
    names: Vec<String>,
    steps: (i64, i64),
    thinned: Thinned,
) -> Result<Vec<DataPoint>> {
    must_exist(connection, trial)?;
    let names: BTreeSet<String> =
        if names.is_empty() { read::names(connection, trial, group)? } else { names.into_iter().collect() };
    let names: Vec<String> = names.into_iter().collect();
    let mut tail = read::tail_points(connection, trial, group, &names, steps)?;
    let mut drawn: Vec<(usize, Point)> = Vec::new();
    let Thinned { limit, numbers } = thinned;
    for (index, name) in names.iter().enumerate() {
        let recent = tail.remove(name).unwrap_or_default();
        let mut points = read::points_of(connection, trial, group, name, steps, limit, recent)?;
        points.retain(|point| !numbers || point.value.number().is_some());
        let values: Vec<f64> = points.iter().map(|point| point.value.number().unwrap_or(f64::NAN)).collect();
        drawn.extend(thin(&values, limit).into_iter().map(|kept| (index, points[kept].clone())));
    }
    Ok(by_step(&names, drawn))
}

fn by_step(names: &[String], mut points: Vec<(usize, Point)>) -> Vec<DataPoint> {
    points.sort_by_key(|(index, point)| (point.step, point.time, *index));
    let at_once = points.chunk_by(|(_, one), (_, other)| (one.step, one.time) == (other.step, other.time));
    let drawn = at_once.map(|together| {
        let Point { step, time, .. } = together[0].1;
        let values = together.iter().map(|(index, point)| (names[*index].as_str(), point.value.clone())).collect();
        DataPoint { batches: step, values, time: Timestamp(time), epoch: None }
    });
    drawn.collect()
}

fn report_of(trial: TrialId, group: &str, row: read::Row) -> MetricsReport {
    let metrics = if group == VALIDATION {
        json!({"validation_metrics": row.values})
    } else {
        json!({"avg_metrics": row.values, "batch_metrics": row.batches})
    };
    MetricsReport {
        id: 0,
        trial_id: trial,
        trial_run_id: RunId(row.run),
        total_batches: row.step,
        end_time: Timestamp(row.time),
        archived: false,
        group: group.to_owned(),
        metrics,
    }
}
