//! Metrics: what a trial reported at which step.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::identifiers::{RunId, TrialId};
use crate::logs::{LogLine, LogRecord};
use crate::trials::Trial;
use crate::values::Values;
use crate::wire::{Timestamp, Whole};

/// The group of metrics from training steps.
pub const TRAINING: &str = "training";
/// The group of metrics from validations.
pub const VALIDATION: &str = "validation";
/// Groups about the machine. They are known by time and not by step, and nothing is merged in them.
pub const PROFILING: &[&str] = &["gpu", "cpu", "memory", "disk", "network"];

/// Metrics of a step: averages, and perhaps one set for every batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Metrics {
    pub avg_metrics: Map<String, Value>,
    pub batch_metrics: Option<Value>,
}

/// `POST /trials/{id}/metrics`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ReportMetricsRequest {
    pub group: Option<String>,
    pub metrics: Option<TrialMetrics>,
}

/// One report.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TrialMetrics {
    #[serde(alias = "trial_id")]
    pub trial_id: Option<TrialId>,
    #[serde(alias = "trial_run_id")]
    pub trial_run_id: Option<RunId>,
    #[serde(alias = "steps_completed")]
    pub steps_completed: Option<Whole>,
    #[serde(alias = "report_time")]
    pub report_time: Option<Timestamp>,
    pub metrics: Option<ReportedMetrics>,
}

/// The values of a report.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ReportedMetrics {
    #[serde(alias = "avg_metrics")]
    pub avg_metrics: Option<Values>,
    #[serde(alias = "batch_metrics")]
    pub batch_metrics: Option<Value>,
}

/// `POST /trials/{id}/reports`: what one reporter has gathered since its last batch.
///
/// This is instep's own. A reporter numbers its batches and sends one after the other; a batch whose number is known is
/// acknowledged and not stored again, so that it may be sent until an answer arrives.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportBatchRequest {
    /// Names the reporter: a random text that no other has.
    pub reporter: Option<String>,
    /// Counts the reporter's batches from 1.
    pub sequence: Option<Whole>,
    /// Metrics, in the order in which they were reported.
    pub reports: Option<Vec<ReportMetricsRequest>>,
    /// Lines of output; they belong to the trial's task, whatever they say.
    pub logs: Option<Vec<LogRecord>>,
}

/// What was wrong with single reports of a batch; the others are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportBatchResponse {
    /// In the order of the batch.
    #[serde(default)]
    pub refused: Vec<RefusedReport>,
}

/// A report that was not stored, and will not be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefusedReport {
    /// Which of the batch, counted from 0.
    pub index: usize,
    /// A sentence for people.
    pub message: String,
}

/// A batch that has been checked and may be stored.
#[derive(Debug, Clone)]
pub struct ReportBatch {
    /// Whose it is.
    pub trial: TrialId,
    /// Who sent it.
    pub reporter: String,
    /// The reporter's number for it.
    pub sequence: i64,
    /// The reports, each with its place in the batch.
    pub reports: Vec<(usize, Report)>,
    /// Those that were refused before they came here.
    pub refused: Vec<RefusedReport>,
    /// Lines of output; the task is filled in from the trial.
    pub logs: Vec<LogLine>,
}

/// A report that has been checked and may be stored.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Report {
    /// Whose it is.
    pub trial: TrialId,
    /// Of which start of the trial.
    pub run: RunId,
    /// `training`, `validation`, or another name.
    pub group: String,
    /// Batches that the trial had completed.
    pub step: i64,
    /// When the script said it was, else when it arrived.
    pub time: Timestamp,
    pub values: Values,
    /// One map for every batch, if given.
    pub batches: Option<Value>,
}

/// A line of the metric streams: everything that one trial reported at one step in one group.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricsReport {
    pub id: i64,
    pub trial_id: TrialId,
    pub trial_run_id: RunId,
    pub total_batches: i64,
    pub end_time: Timestamp,
    pub archived: bool,
    pub group: String,
    /// `{"avg_metrics": …, "batch_metrics": …}`, or `{"validation_metrics": …}`.
    pub metrics: Value,
}

/// Reports: an element of the metric streams, or all that were made with a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricsStreamElement {
    pub metrics: Vec<MetricsReport>,
}

/// `GET /trials/time-series`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CompareTrialsResponse {
    pub trials: Vec<ComparableTrial>,
}

/// One trial's charts.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ComparableTrial {
    pub trial: Trial,
    pub metrics: Vec<DownsampledMetrics>,
}

/// The points of the metrics of one group, thinned out for a chart: minima, maxima and the last point are kept.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct DownsampledMetrics {
    pub group: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub data: Vec<DataPoint>,
}

/// The values of one step.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct DataPoint {
    pub batches: i64,
    pub values: Values,
    pub time: Timestamp,
    pub epoch: Option<f64>,
}

/// An element of the stream of metrics' names.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricNamesElement {
    pub searcher_metrics: Vec<String>,
    pub training_metrics: Vec<String>,
    pub validation_metrics: Vec<String>,
    pub metric_names: Vec<MetricIdentifier>,
}

/// A metric of any group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricIdentifier {
    pub group: String,
    pub name: String,
}

/// An element of the stream of steps at which a metric was reported.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct MetricBatchesElement {
    pub batches: Vec<i64>,
}

/// An element of the stream of an experiment's best trials.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TrialsSampleElement {
    pub trials: Vec<SampledTrial>,
    pub promoted_trials: Vec<TrialId>,
    pub demoted_trials: Vec<TrialId>,
}

/// A trial of a sample, with the points that are new.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SampledTrial {
    pub trial_id: TrialId,
    pub hparams: Value,
    pub data: Vec<DataPoint>,
}

/// An element of the stream of an experiment's trials at one step.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TrialsSnapshotElement {
    pub trials: Vec<SnapshotTrial>,
}

/// A trial at one step.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SnapshotTrial {
    pub trial_id: TrialId,
    pub hparams: Value,
    pub metric: f64,
    pub batches_processed: i64,
}

/// `GET /experiments/{id}/validation-history`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ValidationHistoryResponse {
    pub validation_history: Vec<ValidationHistoryEntry>,
}

/// A validation that was better than all before it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ValidationHistoryEntry {
    pub trial_id: TrialId,
    pub end_time: Timestamp,
    pub searcher_metric: f64,
}
