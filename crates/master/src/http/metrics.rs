//! Metrics: taking reports in, and giving them out as histories, streams and charts.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::identifiers::{RunId, TrialId};
use instep_api::metrics::{
    ComparableTrial, CompareTrialsResponse, DownsampledMetrics, MetricsStreamElement, RefusedReport, Report,
    ReportBatch, ReportBatchRequest, ReportBatchResponse, ReportMetricsRequest, TRAINING, VALIDATION,
};
use instep_api::trials::WorkloadsResponse;
use instep_database::Subject;
use serde_json::{Map, Value};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, LineSender, Nothing, Reply, Stop, lines};
use crate::clock::now;
use crate::cluster::TrialReport;

/// Points of a chart, for each metric, if nobody says how many.
const DEFAULT_POINTS: usize = 1000;
/// Steps of a trial and a group in one answer; trials in it; and values in all of it.
const MOST_POINTS: usize = 100_000;
const MOST_TRIALS: usize = 100;
const MOST_VALUES: usize = 2_000_000;
/// Bytes of a reporter's name.
const LONGEST_NAME: usize = 100;

pub(crate) async fn report(call: Call) -> Result<Json<Nothing>, Failure> {
    store(&call, call.json()?).await
}

/// The same in the shape of older clients.
pub(crate) async fn report_training(call: Call) -> Result<Json<Nothing>, Failure> {
    store(&call, ReportMetricsRequest { group: Some(TRAINING.to_owned()), metrics: Some(call.json()?) }).await
}

/// The same in the shape of older clients.
pub(crate) async fn report_validation(call: Call) -> Result<Json<Nothing>, Failure> {
    store(&call, ReportMetricsRequest { group: Some(VALIDATION.to_owned()), metrics: Some(call.json()?) }).await
}

async fn store(call: &Call, request: ReportMetricsRequest) -> Result<Json<Nothing>, Failure> {
    let report = checked(request, call.id("id")?)?;
    let validation = validation_of(&report);
    call.application.database.report_metrics(report).await?;
    tell_search(call, validation).await?;
    Ok(Json(Nothing {}))
}

/// Many reports and lines of output at once, each stored exactly once however often the batch arrives.
pub(crate) async fn report_batch(call: Call) -> Result<Json<ReportBatchResponse>, Failure> {
    let request: ReportBatchRequest = call.json()?;
    let trial: TrialId = call.id("id")?;
    let reporter = request.reporter.unwrap_or_default();
    if reporter.is_empty() || reporter.len() > LONGEST_NAME {
        return Err(Failure::invalid("`reporter` must be a text of 1 to 100 bytes"));
    }
    let sequence = request.sequence.unwrap_or_default().0;
    if sequence < 1 {
        return Err(Failure::invalid("`sequence` must count from 1"));
    }
    let (mut reports, mut refused) = (Vec::new(), Vec::new());
    for (index, report) in request.reports.unwrap_or_default().into_iter().enumerate() {
        match checked(report, trial) {
            Ok(report) => reports.push((index, report)),
            Err(failure) => refused.push(RefusedReport { index, message: failure.message }),
        }
    }
    let logs: Vec<_> = request.logs.unwrap_or_default().into_iter().map(super::logs::line_without_task).collect();
    let validations: Vec<(usize, Validation)> =
        reports.iter().filter_map(|(index, report)| Some((*index, validation_of(report)?))).collect();
    let with_logs = !logs.is_empty();
    let batch = ReportBatch { trial, reporter, sequence, reports, refused, logs };
    let refused = call.application.database.report_batch(batch).await?;
    if with_logs {
        call.application.logs_arrived();
    }
    let taken = validations.into_iter().filter(|(index, _)| !refused.iter().any(|one| one.index == *index));
    tell_search(&call, taken.map(|(_, validation)| validation)).await?;
    Ok(Json(ReportBatchResponse { refused }))
}

type Validation = (TrialId, Map<String, Value>, i64);

/// What a search learns from a report, if anything.
fn validation_of(report: &Report) -> Option<Validation> {
    (report.group == VALIDATION).then(|| (report.trial, report.values.object(), report.step))
}

/// Lets the search know of validations that are stored, before the trial hears that they are: a trial that goes on has
/// been judged by what it has reported. A trial that runs elsewhere has no search.
async fn tell_search(call: &Call, validations: impl IntoIterator<Item = Validation>) -> Result<(), Failure> {
    for (trial, metrics, step) in validations {
        call.application.cluster.trial_reported(trial, TrialReport::Validated(metrics, step)).await?;
    }
    Ok(())
}

fn checked(request: ReportMetricsRequest, trial: TrialId) -> Result<Report, Failure> {
    let group = request.group.unwrap_or_default();
    if group.is_empty() || group.contains('.') {
        return Err(Failure::invalid(format!(
            "`{group}` cannot be a group of metrics: it must not be empty or contain a dot"
        )));
    }
    let metrics = request.metrics.ok_or_else(|| Failure::invalid("the report has no metrics"))?;
    if metrics.trial_id.is_some_and(|given| given != trial && given.0 != 0) {
        return Err(Failure::invalid("the report belongs to another trial than its address"));
    }
    // Zero values may be left out, and groups about the machine have no steps.
    let step = metrics.steps_completed.unwrap_or_default().0;
    if step < 0 {
        return Err(Failure::invalid(format!("{step} steps cannot have been completed")));
    }
    let reported = metrics.metrics.ok_or_else(|| Failure::invalid("the report has no metrics"))?;
    let values = reported.avg_metrics.unwrap_or_default();
    for name in ["epoch", "epochs"] {
        if values.get(name).is_some_and(|datum| !datum.value().is_number()) {
            return Err(Failure::invalid(format!("the metric `{name}` must be a number")));
        }
    }
    let batches = match reported.batch_metrics {
        Some(Value::Array(batches)) if batches.is_empty() => None,
        Some(batches @ Value::Array(_)) => Some(batches),
        Some(_) => return Err(Failure::invalid("batchMetrics must be a list")),
        None => None,
    };
    Ok(Report {
        trial,
        run: metrics.trial_run_id.unwrap_or(RunId(0)),
        group,
        step,
        time: metrics.report_time.unwrap_or_else(now),
        values,
        batches,
    })
}

pub(crate) async fn workloads(call: Call) -> Result<Json<WorkloadsResponse>, Failure> {
    let with_batches = call.query.value("includeBatchMetrics")?.unwrap_or(false);
    let order = call.query.order()?.unwrap_or_default();
    let slice = call.query.slice(Some(100))?;
    let (workloads, pagination) =
        call.application.database.workloads(call.id("id")?, with_batches, order, slice).await?;
    Ok(Json(WorkloadsResponse { workloads, pagination }))
}

pub(crate) async fn stream(call: Call) -> Result<Reply, Failure> {
    let group = match call.part("kind") {
        "training_metrics" => Some(TRAINING.to_owned()),
        "validation_metrics" => Some(VALIDATION.to_owned()),
        "trial_metrics" => call.query.text("group").map(str::to_owned),
        other => return Err(Failure::not_found(format!("there is no stream `{other}`"))),
    };
    let trials: Vec<TrialId> = call.query.values("trialIds")?;
    call.note_asked();
    for trial in &trials {
        call.may_read(Subject::Trial(*trial)).await?;
    }
    let (sender, lines) = lines();
    // The task ends with its stream: when everything is sent, or when the reader goes away.
    tokio::spawn(async move {
        for trial in trials {
            if let Err(Stop::Failed(failure)) = send_reports(&call, trial, group.clone(), &sender).await {
                return sender.fail(&failure).await;
            }
        }
    });
    Ok(Reply::Lines(lines))
}

/// Sends what one trial reported, part by part, so that no more of it than that is in memory.
async fn send_reports(call: &Call, trial: TrialId, group: Option<String>, sender: &LineSender) -> Result<(), Stop> {
    let database = &call.application.database;
    let mut id = 0;
    for part in database.metric_history(trial, group).await? {
        let mut metrics = database.metric_reports(trial, part).await?;
        for report in &mut metrics {
            id += 1;
            report.id = id;
        }
        if !metrics.is_empty() {
            sender.send(&MetricsStreamElement { metrics }).await?;
        }
    }
    Ok(())
}

/// The group of metrics that a query asks for; older clients know two types in place of groups.
pub(super) fn group_of(call: &Call) -> Option<&str> {
    match call.query.text("metricType") {
        Some("METRIC_TYPE_TRAINING") => Some(TRAINING),
        Some("METRIC_TYPE_VALIDATION") => Some(VALIDATION),
        _ => call.query.text("group").filter(|group| !group.is_empty()),
    }
}

/// Charts of several trials: `metricIds=group.name`, or `metricNames` of a group (or of training and validation), or
/// everything.
pub(crate) async fn compare(call: Call) -> Result<Json<CompareTrialsResponse>, Failure> {
    let query = &call.query;
    let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in query.texts("metricIds") {
        let (group, name) =
            id.split_once('.').ok_or_else(|| Failure::invalid(format!("`{id}` is not GROUP.METRIC")))?;
        wanted.entry(group.to_owned()).or_default().push(name.to_owned());
    }
    let named = query.texts("metricNames");
    if let Some(group) = group_of(&call) {
        wanted.entry(group.to_owned()).or_default().extend(named);
    } else if !named.is_empty() {
        for group in [TRAINING, VALIDATION] {
            wanted.entry(group.to_owned()).or_default().extend(named.iter().cloned());
        }
    }
    let first = query.value("startBatches")?.unwrap_or(0);
    let last = query.value("endBatches")?.filter(|last| *last > 0).unwrap_or(i64::MAX);
    let limit = query.value("maxDatapoints")?.filter(|limit| *limit > 0).unwrap_or(DEFAULT_POINTS);
    if limit > MOST_POINTS {
        return Err(Failure::invalid(format!("maxDatapoints is {limit}: at most {MOST_POINTS}")));
    }
    let mut ids: Vec<TrialId> = query.values("trialIds")?;
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    if ids.len() > MOST_TRIALS {
        return Err(Failure::invalid(format!("trialIds names {} trials: at most {MOST_TRIALS}", ids.len())));
    }
    let mut values = 0;
    let all_values = query.value("allValues")?.unwrap_or(false);
    let database = &call.application.database;
    call.note_asked();
    let mut trials = Vec::new();
    for id in ids {
        call.may_read(Subject::Trial(id)).await?;
        let trial = database.trial(id, now()).await?;
        let mut groups = wanted.clone();
        if groups.is_empty() {
            groups.extend(database.metric_groups(id).await?.into_iter().map(|group| (group, Vec::new())));
        }
        let mut metrics = Vec::new();
        for (group, names) in groups {
            let kind = match group.as_str() {
                TRAINING => "METRIC_TYPE_TRAINING",
                VALIDATION => "METRIC_TYPE_VALIDATION",
                _ => "METRIC_TYPE_UNSPECIFIED",
            };
            let data = match all_values {
                true => database.values(id, group.clone(), names, (first, last), limit).await?,
                false => database.chart(id, group.clone(), names, first, last, limit).await?,
            };
            values += data.iter().map(|point| point.values.len()).sum::<usize>();
            if values > MOST_VALUES {
                let what = format!("the answer would have more than {MOST_VALUES} values");
                return Err(Failure::invalid(format!("{what}\nhint: ask for fewer trials, metrics or maxDatapoints")));
            }
            metrics.push(DownsampledMetrics { group, kind: kind.to_owned(), data });
        }
        trials.push(ComparableTrial { trial, metrics });
    }
    Ok(Json(CompareTrialsResponse { trials }))
}
