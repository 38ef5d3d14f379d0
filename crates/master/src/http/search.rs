//! Searching experiments and runs, by the filter language.

use std::collections::BTreeMap;

use instep_api::experiments::{Experiment, LabelsResponse};
use instep_api::identifiers::{ExperimentId, ProjectId};
use instep_api::pages::{Order, Slice};
use instep_api::runs::{
    FlatRun, FlatRunExperiment, FoundExperiment, SearchExperimentsResponse, SearchRequest, SearchRunsResponse,
};
use instep_api::states::State;
use instep_api::trials::Trial;
use instep_database::{ExperimentFilter, ExperimentSort, Run, Subject};
use instep_policy::filter::{Column, Filter, Row, Sort, Table};
use instep_policy::permissions::Kind;
use serde_json::{Value, json};

use super::blocking::blocking;
use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use crate::clock::now;

/// Elements of a page if nobody says how many.
const DEFAULT_LIMIT: i64 = 100;

/// The experiments of a project, or of all, that the caller may see.
pub(super) async fn seen_experiments(call: &Call, project: Option<ProjectId>) -> Result<Vec<Experiment>, Failure> {
    let project = project.filter(|project| project.0 > 0);
    if let Some(project) = project {
        call.may_read(Subject::Project(project)).await?;
        call.application.database.project(project).await?;
    }
    let workspaces = call.seen_workspaces(Kind::Experiment);
    let filter = ExperimentFilter { project, workspaces, ..ExperimentFilter::default() };
    let database = &call.application.database;
    Ok(database.experiments(filter, ExperimentSort::Id, Order::Ascending, Slice::ALL, now()).await?.0)
}

/// The runs of a project, or of all, that the caller may see and a filter means.
pub(super) async fn seen_runs(
    call: &Call,
    project: Option<ProjectId>,
    filter: Option<Filter>,
    with_metrics: bool,
) -> Result<Vec<FoundRun>, Failure> {
    let experiments = seen_experiments(call, project).await?;
    let with_metrics = with_metrics || filter.as_ref().is_some_and(Filter::asks_for_metrics);
    let runs = call.application.database.runs_of(experiments, with_metrics, now()).await?;
    let mut found: Vec<FoundRun> = runs.into_iter().map(FoundRun).collect();
    let Some(filter) = filter else { return Ok(found) };
    blocking(move || {
        found.retain(|run| (filter.show_archived || !run.is_archived()) && filter.matches(run));
        found
    })
    .await
}

/// What a request says about filter, order and page.
fn asked(request: &SearchRequest, table: Table) -> Result<(Option<Filter>, Sort, Slice), Failure> {
    let filter = request.filter.as_deref().filter(|text| !text.is_empty());
    let filter = filter.map(|text| Filter::parse(text, table)).transpose().map_err(Failure::invalid)?;
    let sort = Sort::parse(request.sort.as_deref().unwrap_or_default(), table).map_err(Failure::invalid)?;
    let (offset, limit) = (request.offset.unwrap_or_default().0, request.limit.unwrap_or_default().0);
    if limit < -2 {
        return Err(Failure::invalid(format!("limit {limit} is not valid: -1 for all, -2 for none")));
    }
    Ok((filter, sort, Slice { offset, limit, default_limit: Some(DEFAULT_LIMIT) }))
}

pub(crate) async fn experiments(call: Call) -> Result<Json<SearchExperimentsResponse>, Failure> {
    let request: SearchRequest = call.json()?;
    let (filter, sort, slice) = asked(&request, Table::Experiments)?;
    let database = &call.application.database;
    let experiments = seen_experiments(&call, request.project_id).await?;
    let with_best = sort.asks_for_best() || filter.as_ref().is_some_and(Filter::asks_for_best);
    let ids = |experiments: &[Experiment]| experiments.iter().map(|experiment| experiment.id).collect::<Vec<_>>();
    let mut best = match with_best {
        true => database.best_trials(ids(&experiments), now()).await?,
        false => BTreeMap::new(),
    };
    let mut rows: Vec<ExperimentRow> =
        experiments.into_iter().map(|experiment| ExperimentRow::new(experiment, &mut best)).collect();
    rows = blocking(move || {
        if let Some(filter) = filter {
            rows.retain(|row| (filter.show_archived || !row.experiment.archived) && filter.matches(row));
        }
        sort.apply(&mut rows);
        rows
    })
    .await?;
    let (range, pagination) = slice.of(rows.len());
    let mut shown: Vec<ExperimentRow> = rows.drain(range).collect();
    if !with_best {
        let wanted = shown.iter().map(|row| row.experiment.id).collect();
        let mut best = database.best_trials(wanted, now()).await?;
        shown = shown.into_iter().map(|row| ExperimentRow::new(row.experiment, &mut best)).collect();
    }
    let experiments = shown.into_iter().map(ExperimentRow::shown).collect();
    Ok(Json(SearchExperimentsResponse { experiments, pagination }))
}

pub(crate) async fn runs(call: Call) -> Result<Json<SearchRunsResponse>, Failure> {
    let request: SearchRequest = call.json()?;
    let (filter, sort, slice) = asked(&request, Table::Runs)?;
    let mut rows = seen_runs(&call, request.project_id, filter, sort.asks_for_metrics()).await?;
    rows = blocking(move || {
        sort.apply(&mut rows);
        rows
    })
    .await?;
    let (range, pagination) = slice.of(rows.len());
    let mut runs = Vec::new();
    for FoundRun(run) in rows.drain(range) {
        // Only what is shown is completed.
        let trial = match run.trial.summary_metrics {
            Value::Null => call.application.database.trial(run.trial.id, now()).await?,
            _ => run.trial.clone(),
        };
        runs.push(flat(&Run { trial, ..run }));
    }
    Ok(Json(SearchRunsResponse { runs, pagination }))
}

/// The labels of experiments, the most frequent first.
pub(crate) async fn labels(call: Call) -> Result<Json<LabelsResponse>, Failure> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for experiment in seen_experiments(&call, call.query.value("projectId")?).await? {
        for label in experiment.labels {
            *counts.entry(label).or_default() += 1;
        }
    }
    let mut labels: Vec<(String, usize)> = counts.into_iter().collect();
    labels.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Ok(Json(LabelsResponse { labels: labels.into_iter().map(|(label, _)| label).collect() }))
}

/// An experiment among those that are searched.
struct ExperimentRow {
    experiment: Experiment,
    best: Option<(Trial, Option<String>)>,
}

impl ExperimentRow {
    fn new(experiment: Experiment, best: &mut BTreeMap<ExperimentId, (Trial, Option<String>)>) -> ExperimentRow {
        let best = best.remove(&experiment.id);
        ExperimentRow { experiment, best }
    }

    fn shown(mut self) -> FoundExperiment {
        self.experiment.best_trial_id = self.best.as_ref().map(|(trial, _)| trial.id);
        FoundExperiment { experiment: self.experiment, best_trial: self.best.map(|(trial, _)| trial) }
    }
}

/// A metric of a trial's summary.
fn metric(trial: &Trial, group: &str, name: &str, qualifier: &str) -> Option<Value> {
    trial.summary_metrics.get(group)?.get(name)?.get(qualifier).cloned()
}

/// What lies at the end of a path, which a name with dots may lead to in one step.
pub(super) fn at_path<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    if path.is_empty() {
        return Some(value);
    }
    let fields = value.as_object()?;
    (1..=path.len()).find_map(|length| at_path(fields.get(&path[..length].join("."))?, &path[length..]))
}

fn percent(progress: Option<f64>) -> f64 {
    (progress.unwrap_or(0.0) * 100.0).round()
}

impl Row for ExperimentRow {
    fn value(&self, column: &Column) -> Option<Value> {
        let experiment = &self.experiment;
        let name = match column {
            Column::Plain(name) => *name,
            Column::Hyperparameter(path) => return at_path(&experiment.hyperparameters, path).cloned(),
            Column::Metadata(_) => return None,
            Column::Metric { group, name, qualifier } => return metric(&self.best.as_ref()?.0, group, name, qualifier),
        };
        Some(match name {
            "id" => json!(experiment.id),
            "name" => json!(experiment.name),
            "description" => json!(experiment.description),
            "numTrials" => json!(experiment.num_trials),
            "startTime" => json!(experiment.start_time),
            "endTime" => json!(experiment.end_time),
            "duration" => json!(experiment.duration),
            "state" => json!(experiment.state),
            "progress" => json!(percent(experiment.progress)),
            "checkpointSize" => json!(experiment.checkpoint_size.0),
            "checkpointCount" => json!(experiment.checkpoint_count),
            "searcherMetricsVal" => json!(experiment.best_trial_searcher_metric),
            "externalTrialId" => json!(self.best.as_ref()?.1),
            "archived" => json!(experiment.archived),
            shared => return of_experiment(experiment, shared),
        })
    }
}

/// What experiments and their runs have in the same columns.
fn of_experiment(experiment: &Experiment, column: &str) -> Option<Value> {
    Some(match column {
        "tags" => json!(experiment.labels),
        "searcherType" => json!(experiment.searcher_type),
        "searcherMetric" => json!(experiment.searcher_metric),
        "user" => json!(experiment.user_id),
        "username" if experiment.display_name.is_empty() => json!(experiment.username),
        "username" => json!(experiment.display_name),
        "forkedFrom" => json!(experiment.forked_from),
        "resourcePool" => json!(experiment.resource_pool),
        "projectId" => json!(experiment.project_id),
        "externalExperimentId" => json!(experiment.external_experiment_id),
        "parentArchived" => json!(experiment.parent_archived),
        _ => return None,
    })
}

/// A run among those that are searched.
pub(super) struct FoundRun(pub Run);

impl FoundRun {
    /// By itself, or with its experiment.
    pub(super) fn is_archived(&self) -> bool {
        self.0.archived || self.0.experiment.archived
    }

    /// Whether its experiment searches.
    pub(super) fn is_multitrial(&self) -> bool {
        self.0.experiment.searcher_type != "single"
    }
}

impl Row for FoundRun {
    fn value(&self, column: &Column) -> Option<Value> {
        let Run { trial, experiment, .. } = &self.0;
        let name = match column {
            Column::Plain(name) => *name,
            Column::Hyperparameter(path) => return at_path(&trial.hparams, path).cloned(),
            Column::Metadata(path) => return at_path(trial.metadata.as_ref()?, path).cloned(),
            Column::Metric { group, name, qualifier } => return metric(trial, group, name, qualifier),
        };
        Some(match name {
            "id" => json!(trial.id),
            "experimentId" => json!(experiment.id),
            "experimentName" => json!(experiment.name),
            "experimentDescription" => json!(experiment.description),
            "experimentProgress" => json!(percent(experiment.progress)),
            "startTime" => json!(trial.start_time),
            "endTime" => json!(trial.end_time),
            "duration" => json!(duration(trial)),
            "state" => json!(state_of(trial)),
            "checkpointSize" => json!(trial.total_checkpoint_size.0),
            "checkpointCount" => json!(trial.checkpoint_count),
            "searcherMetricsVal" => json!(trial.searcher_metric_value),
            "externalRunId" => json!(self.0.external_id),
            "localId" => json!(local_id(&self.0)),
            "isExpMultitrial" => json!(self.is_multitrial()),
            "archived" => json!(self.is_archived()),
            shared => return of_experiment(experiment, shared),
        })
    }
}

/// Seconds from start to end, or to now.
fn duration(trial: &Trial) -> i64 {
    trial.end_time.unwrap_or_else(now).seconds_since(trial.start_time).max(0.0) as i64
}

/// The state of a run: one that is to train is active, also while it waits for slots or starts.
fn state_of(trial: &Trial) -> State {
    match trial.state {
        State::Queued | State::Pulling | State::Starting | State::Running => State::Active,
        other => other,
    }
}

fn local_id(run: &Run) -> String {
    format!("{}-{}", run.project_key, run.trial.id)
}

fn flat(run: &Run) -> FlatRun {
    let Run { trial, experiment, .. } = run;
    FlatRun {
        id: trial.id,
        local_id: local_id(run),
        state: state_of(trial),
        start_time: trial.start_time,
        end_time: trial.end_time,
        duration: duration(trial),
        hyperparameters: trial.hparams.clone(),
        summary_metrics: trial.summary_metrics.clone(),
        searcher_metric_value: trial.searcher_metric_value,
        checkpoint_count: trial.checkpoint_count,
        checkpoint_size: trial.total_checkpoint_size,
        labels: experiment.labels.clone(),
        user_id: experiment.user_id,
        project_id: experiment.project_id,
        project_name: experiment.project_name.clone(),
        workspace_id: experiment.workspace_id,
        workspace_name: experiment.workspace_name.clone(),
        parent_archived: experiment.parent_archived,
        archived: run.archived || experiment.archived,
        external_run_id: run.external_id.clone(),
        metadata: trial.metadata.clone(),
        log_policy_matched: trial.log_policy_matched.clone(),
        experiment: FlatRunExperiment {
            id: experiment.id,
            name: experiment.name.clone(),
            description: experiment.description.clone(),
            searcher_type: experiment.searcher_type.clone(),
            searcher_metric: experiment.searcher_metric.clone(),
            resource_pool: experiment.resource_pool.clone(),
            progress: experiment.progress.unwrap_or(0.0),
            is_multitrial: experiment.searcher_type != "single",
            unmanaged: experiment.unmanaged,
            forked_from: experiment.forked_from,
            external_experiment_id: experiment.external_experiment_id.clone(),
            pachyderm_integration: None,
        },
    }
}
