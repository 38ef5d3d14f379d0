//! What a project's tables can show: columns, between which values metrics lie, and values of metadata.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::identifiers::ProjectId;
use instep_api::runs::{ColumnsResponse, MetadataValuesResponse, MetricRange, MetricRangesResponse, ProjectColumn};
use instep_api::trials::Trial;
use instep_api::wire::Timestamp;
use instep_policy::filter::{self, Kind, Table};
use serde_json::Value;

use super::blocking::blocking;
use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use super::search::{FoundRun, at_path, seen_experiments, seen_runs};
use crate::clock::now;

/// What a summary has of a metric that is a number.
const QUALIFIERS: [&str; 4] = ["last", "max", "mean", "min"];

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "COLUMN_TYPE_TEXT",
        Kind::Number => "COLUMN_TYPE_NUMBER",
        Kind::Date => "COLUMN_TYPE_DATE",
        Kind::Other => "COLUMN_TYPE_UNSPECIFIED",
    }
}

fn column(column: String, location: &str, kind: &str, title: &str) -> ProjectColumn {
    ProjectColumn {
        column,
        location: format!("LOCATION_TYPE_{location}"),
        kind: kind.to_owned(),
        display_name: title.to_owned(),
    }
}

/// The type of a column that holds such values.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Number(_) => "COLUMN_TYPE_NUMBER",
        Value::String(text) if Timestamp::parse(text).is_some() => "COLUMN_TYPE_DATE",
        Value::String(_) | Value::Bool(_) => "COLUMN_TYPE_TEXT",
        Value::Array(_) => "COLUMN_TYPE_ARRAY",
        Value::Null | Value::Object(_) => "COLUMN_TYPE_UNSPECIFIED",
    }
}

/// Columns by name; one that holds values of several types has none in particular.
#[derive(Default)]
struct Kinds(BTreeMap<String, &'static str>);

impl Kinds {
    fn add(&mut self, name: String, kind: &'static str) {
        let known = self.0.entry(name).or_insert(kind);
        if *known != kind {
            *known = "COLUMN_TYPE_UNSPECIFIED";
        }
    }

    fn columns(self, prefix: &str, location: &str) -> impl Iterator<Item = ProjectColumn> {
        self.0.into_iter().map(move |(name, kind)| column(format!("{prefix}{name}"), location, kind, ""))
    }
}

/// Adds every value inside an object by the path that leads to it.
fn add_leaves(kinds: &mut Kinds, prefix: &str, value: &Value, is_leaf: &dyn Fn(&Value) -> Option<&'static str>) {
    if let Some(kind) = is_leaf(value) {
        return kinds.add(prefix.to_owned(), kind);
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        add_leaves(kinds, &path, inner, is_leaf);
    }
}

fn is_value(value: &Value) -> Option<&'static str> {
    (!value.is_object()).then(|| kind_of(value))
}

/// A hyperparameter as a search is told it.
fn is_hyperparameter(value: &Value) -> Option<&'static str> {
    match value.get("type").and_then(Value::as_str) {
        Some("int" | "double" | "log") => Some("COLUMN_TYPE_NUMBER"),
        Some("const") => Some(kind_of(&value["val"])),
        Some("categorical") => Some("COLUMN_TYPE_UNSPECIFIED"),
        _ => is_value(value),
    }
}

/// The group's name in columns, and where they say that they are from.
fn group_name(group: &str) -> (&str, &'static str) {
    match group {
        "avg_metrics" => ("training", "TRAINING"),
        "validation_metrics" => ("validation", "VALIDATIONS"),
        other => (other, "CUSTOM_METRIC"),
    }
}

/// The columns of all metrics that some trials reported.
fn metric_columns<'a>(trials: impl Iterator<Item = &'a Trial>) -> Vec<ProjectColumn> {
    let mut kinds: BTreeMap<String, Kinds> = BTreeMap::new();
    for trial in trials {
        for (group, metrics) in trial.summary_metrics.as_object().into_iter().flatten() {
            for (name, summary) in metrics.as_object().into_iter().flatten() {
                let kind = match summary["type"].as_str().unwrap_or_default() {
                    "number" => "COLUMN_TYPE_NUMBER",
                    "string" | "boolean" => "COLUMN_TYPE_TEXT",
                    "date" => "COLUMN_TYPE_DATE",
                    "array" => "COLUMN_TYPE_ARRAY",
                    _ => "COLUMN_TYPE_UNSPECIFIED",
                };
                kinds.entry(group.clone()).or_default().add(name.clone(), kind);
            }
        }
    }
    let mut columns = Vec::new();
    for (group, kinds) in &kinds {
        let (shown, location) = group_name(group);
        for (name, kind) in &kinds.0 {
            let qualifiers = if *kind == "COLUMN_TYPE_NUMBER" { &QUALIFIERS[..] } else { &QUALIFIERS[..1] };
            let named = qualifiers.iter().map(|qualifier| format!("{shown}.{name}.{qualifier}"));
            columns.extend(named.map(|name| column(name, location, kind, "")));
        }
    }
    columns
}

async fn best_trials(call: &Call, project: ProjectId) -> Result<Vec<Trial>, Failure> {
    let experiments = seen_experiments(call, Some(project)).await?;
    let ids = experiments.iter().map(|experiment| experiment.id).collect();
    Ok(call.application.database.best_trials(ids, now()).await?.into_values().map(|(trial, _)| trial).collect())
}

pub(crate) async fn of_project(call: Call) -> Result<Json<ColumnsResponse>, Failure> {
    let project: ProjectId = call.id("id")?;
    let table = match call.query.text("tableType") {
        Some("TABLE_TYPE_RUN") => Table::Runs,
        None | Some("TABLE_TYPE_UNSPECIFIED" | "TABLE_TYPE_EXPERIMENT") => Table::Experiments,
        Some(other) => return Err(Failure::invalid(format!("there is no table `{other}`"))),
    };
    let location = if table == Table::Runs { "RUN" } else { "EXPERIMENT" };
    let own =
        table.columns().iter().map(|(name, title, kind)| column((*name).to_owned(), location, kind_name(*kind), title));
    let mut columns: Vec<ProjectColumn> = own.collect();
    let runs = seen_runs(&call, Some(project), None, true).await?;
    columns.extend(metric_columns(runs.iter().map(|run| &run.0.trial)));
    let mut hyperparameters = Kinds::default();
    match table {
        Table::Experiments => {
            for experiment in seen_experiments(&call, Some(project)).await? {
                add_leaves(&mut hyperparameters, "", &experiment.hyperparameters, &is_hyperparameter);
            }
            columns.extend(hyperparameters.columns("hp.", "HYPERPARAMETERS"));
        }
        Table::Runs => {
            let mut metadata = Kinds::default();
            for FoundRun(run) in &runs {
                add_leaves(&mut hyperparameters, "", &run.trial.hparams, &is_value);
                if let Some(found) = &run.trial.metadata {
                    add_leaves(&mut metadata, "", found, &is_value);
                }
            }
            columns.extend(hyperparameters.columns("hp.", "RUN_HYPERPARAMETERS"));
            columns.extend(metadata.columns("metadata.", "RUN_METADATA"));
        }
    }
    Ok(Json(ColumnsResponse { columns }))
}

pub(crate) async fn metric_ranges(call: Call) -> Result<Json<MetricRangesResponse>, Failure> {
    let mut ranges: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut add = |name: String, value: f64| {
        let (least, most) = ranges.entry(name).or_insert((value, value));
        (*least, *most) = (least.min(value), most.max(value));
    };
    for trial in best_trials(&call, call.id("id")?).await? {
        if let Some(value) = trial.searcher_metric_value {
            add("searcherMetricsVal".to_owned(), value);
        }
        for (group, metrics) in trial.summary_metrics.as_object().into_iter().flatten() {
            for (name, summary) in metrics.as_object().into_iter().flatten() {
                for qualifier in QUALIFIERS.iter().filter(|_| summary["type"] == "number") {
                    if let Some(value) = summary[qualifier].as_f64() {
                        add(format!("{}.{name}.{qualifier}", group_name(group).0), value);
                    }
                }
            }
        }
    }
    let ranges = ranges.into_iter().map(|(metrics_name, (min, max))| MetricRange { metrics_name, min, max });
    Ok(Json(MetricRangesResponse { ranges: ranges.collect() }))
}

/// The texts that runs of a project have at one place of their metadata.
pub(crate) async fn metadata_values(call: Call) -> Result<Json<MetadataValuesResponse>, Failure> {
    let path = filter::path(call.part("key")).map_err(Failure::invalid)?;
    let runs = seen_runs(&call, Some(call.id("id")?), None, false).await?;
    let values = blocking(move || {
        let found = runs.iter().filter_map(|run| at_path(run.0.trial.metadata.as_ref()?, &path)?.as_str());
        let values: BTreeSet<&str> = found.collect();
        values.into_iter().map(str::to_owned).collect()
    });
    Ok(Json(MetadataValuesResponse { values: values.await? }))
}
