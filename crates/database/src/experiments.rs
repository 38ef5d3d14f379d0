//! Experiments: creating, finding, changing.

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use instep_api::pages::{Order, Pagination, Slice};
use instep_api::states::State;
use instep_api::wire::{Long, Timestamp};
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, json, object, optional_time, text_of, time, word};
use crate::sql::{self, Connection, OptionalExtension, Row, Value as SqlValue, params, params_from_iter};
use crate::workspaces::{must_be_open, project_by_names};

/// An experiment to be made.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Experiment")]
pub struct NewExperiment {
    pub external_id: Option<String>,
    pub name: String,
    pub description: String,
    pub labels: Vec<String>,
    pub config: Value,
    pub original_config: String,
    pub job_id: String,
    /// By number; wins over the names.
    pub project_id: Option<ProjectId>,
    /// Workspace and project by name.
    pub project_names: Option<(String, String)>,
    pub owner: UserId,
    pub searcher_name: String,
    pub searcher_metric: String,
    pub smaller_is_better: bool,
}

/// Which experiments are wanted; what is not given wants all.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "as in the query")]
pub struct ExperimentFilter {
    pub archived: Option<bool>,
    pub users: Vec<String>,
    pub user_ids: Vec<UserId>,
    pub states: Vec<State>,
    pub project: Option<ProjectId>,
    /// Part of the name, in any case.
    pub name: Option<String>,
    /// Part of the description, in any case.
    pub description: Option<String>,
    /// All of these.
    pub labels: Vec<String>,
    /// In one of these; `None` for all, also those that are yet to be made.
    pub workspaces: Option<Vec<WorkspaceId>>,
    /// One of these, if there are any.
    pub ids: Vec<ExperimentId>,
    /// None of these.
    pub excluded: Vec<ExperimentId>,
    /// The smallest and the largest id.
    pub between: (Option<i64>, Option<i64>),
}

/// What a list of experiments is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "named after the columns")]
pub enum ExperimentSort {
    #[default]
    Id,
    Name,
    Description,
    StartTime,
    EndTime,
    State,
    TrialCount,
    Progress,
    User,
    Project,
    ForkedFrom,
    ResourcePool,
    CheckpointSize,
    CheckpointCount,
    BestMetric,
}

// What is worked out of other tables. Macros, so that they can be shown and sorted by; names of columns would do in
// SQLite alone.
macro_rules! trial_count {
    () => {
        "(SELECT COUNT(*) FROM trials WHERE trials.experiment_id = experiments.id)"
    };
}
macro_rules! checkpoint_count {
    () => {
        "(SELECT COUNT(*) FROM checkpoints JOIN trials ON trials.id = checkpoints.trial_id \
         WHERE trials.experiment_id = experiments.id AND checkpoints.state <> 'STATE_DELETED')"
    };
}
macro_rules! checkpoint_size {
    () => {
        "(SELECT CAST(COALESCE(SUM(checkpoints.size), 0) AS BIGINT) FROM checkpoints \
         JOIN trials ON trials.id = checkpoints.trial_id \
         WHERE trials.experiment_id = experiments.id AND checkpoints.state <> 'STATE_DELETED')"
    };
}
macro_rules! best_metric {
    () => {
        "(SELECT CASE WHEN experiments.smaller_is_better THEN MIN(best_validation_value) \
         ELSE MAX(best_validation_value) END FROM trials WHERE trials.experiment_id = experiments.id)"
    };
}

// What an active experiment does is what its allocations do.
macro_rules! shown_state {
    () => {
        "(CASE WHEN experiments.state = 'STATE_ACTIVE' THEN COALESCE((SELECT CASE MAX(CASE state \
         WHEN 'STATE_RUNNING' THEN 4 WHEN 'STATE_TERMINATING' THEN 4 WHEN 'STATE_STARTING' THEN 3 \
         WHEN 'STATE_PULLING' THEN 2 ELSE 1 END) WHEN 4 THEN 'STATE_RUNNING' WHEN 3 THEN 'STATE_STARTING' \
         WHEN 2 THEN 'STATE_PULLING' ELSE 'STATE_QUEUED' END FROM allocations \
         WHERE allocations.experiment_id = experiments.id AND allocations.ended_at IS NULL), 'STATE_QUEUED') \
         ELSE experiments.state END)"
    };
}

impl ExperimentSort {
    fn expression(self) -> &'static str {
        match self {
            ExperimentSort::Id => "experiments.id",
            ExperimentSort::Name => "experiments.name",
            ExperimentSort::Description => "experiments.description",
            ExperimentSort::StartTime => "experiments.started_at",
            ExperimentSort::EndTime => "experiments.ended_at",
            ExperimentSort::State => shown_state!(),
            ExperimentSort::TrialCount => trial_count!(),
            ExperimentSort::Progress => "experiments.progress",
            ExperimentSort::User => "username",
            ExperimentSort::Project => "experiments.project_id",
            ExperimentSort::ForkedFrom => "experiments.forked_from",
            ExperimentSort::ResourcePool => "experiments.resource_pool",
            ExperimentSort::CheckpointSize => checkpoint_size!(),
            ExperimentSort::CheckpointCount => checkpoint_count!(),
            ExperimentSort::BestMetric => best_metric!(),
        }
    }
}

const COLUMNS: &str = concat!(
    "SELECT experiments.*, users.username AS username, users.display_name AS user_display_name, \
     projects.name AS project_name, projects.user_id AS project_owner_id, \
     projects.archived OR workspaces.archived AS parent_archived, \
     workspaces.id AS workspace_id, workspaces.name AS workspace_name, ",
    trial_count!(),
    " AS trial_count, ",
    checkpoint_count!(),
    " AS checkpoint_count, ",
    checkpoint_size!(),
    " AS checkpoint_size, ",
    best_metric!(),
    " AS best_metric, ",
    shown_state!(),
    " AS shown_state, \
     (CASE WHEN experiments.unmanaged THEN experiments.started_at ELSE (SELECT MIN(allocations.started_at) \
     FROM allocations WHERE allocations.experiment_id = experiments.id) END) AS first_run_at"
);

const JOINS: &str = " FROM experiments JOIN users ON users.id = experiments.user_id \
    JOIN projects ON projects.id = experiments.project_id JOIN workspaces ON workspaces.id = projects.workspace_id";

fn experiment_of(row: &Row<'_>, now: Timestamp) -> sql::Result<Experiment> {
    let config: Value = json(row, "config")?;
    let start_time = time(row, "started_at")?;
    let end_time = optional_time(row, "ended_at")?;
    Ok(Experiment {
        id: ExperimentId(column(row, "id")?),
        name: column(row, "name")?,
        description: column(row, "description")?,
        labels: json(row, "labels")?,
        notes: column(row, "notes")?,
        hyperparameters: object(config.get("hyperparameters").cloned()),
        config: config.into(),
        original_config: column::<String>(row, "original_config")?.into(),
        archived: column(row, "archived")?,
        job_id: column(row, "job_id")?,
        num_trials: column(row, "trial_count")?,
        trial_ids: Vec::new(),
        project_id: ProjectId(column(row, "project_id")?),
        project_name: column(row, "project_name")?,
        project_owner_id: UserId(column(row, "project_owner_id")?),
        workspace_id: WorkspaceId(column(row, "workspace_id")?),
        workspace_name: column(row, "workspace_name")?,
        parent_archived: column(row, "parent_archived")?,
        searcher_type: column(row, "searcher_name")?,
        searcher_metric: column(row, "searcher_metric")?,
        start_time,
        end_time,
        state: word(row, "shown_state")?,
        username: column(row, "username")?,
        display_name: column(row, "user_display_name")?,
        user_id: UserId(column(row, "user_id")?),
        resource_pool: column(row, "resource_pool")?,
        progress: column(row, "progress")?,
        forked_from: column::<Option<i64>>(row, "forked_from")?.map(ExperimentId),
        checkpoint_size: Long(column(row, "checkpoint_size")?),
        checkpoint_count: column(row, "checkpoint_count")?,
        unmanaged: column(row, "unmanaged")?,
        external_experiment_id: column(row, "external_id")?,
        external_trial_id: None,
        model_definition_size: column(row, "model_definition_size")?,
        best_trial_id: None,
        best_trial_searcher_metric: column(row, "best_metric")?,
        duration: end_time.unwrap_or(now).seconds_since(start_time).max(0.0) as i64,
        first_run_time: optional_time(row, "first_run_at")?,
        pachyderm_integration: None,
    })
}

/// One experiment with its trials.
pub(crate) fn experiment_by_id(connection: &Connection, id: ExperimentId, now: Timestamp) -> Result<Experiment> {
    let mut experiment = connection
        .prepare_cached(&format!("{COLUMNS}{JOINS} WHERE experiments.id = ?"))?
        .query_row([id.0], |row| experiment_of(row, now))
        .optional()?
        .ok_or_else(|| Error::not_found("experiment", id))?;
    let mut trials = connection.prepare_cached("SELECT id FROM trials WHERE experiment_id = ? ORDER BY id")?;
    experiment.trial_ids = trials.query_map([id.0], |row| row.get(0).map(TrialId))?.collect::<sql::Result<_>>()?;
    experiment.best_trial_id = best_trial(connection, id)?.map(|(trial, _)| trial);
    Ok(experiment)
}

/// The trial with the best validation of an experiment, and its value.
pub(crate) fn best_trial(connection: &Connection, id: ExperimentId) -> Result<Option<(TrialId, f64)>> {
    let sql = "SELECT trials.id, best_validation_value FROM trials JOIN experiments ON experiments.id = experiment_id \
               WHERE experiment_id = ? AND best_validation_value IS NOT NULL \
               ORDER BY CASE WHEN smaller_is_better THEN best_validation_value ELSE -best_validation_value END, trials.id \
               LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row([id.0], |row| Ok((TrialId(row.get(0)?), row.get(1)?))).optional()?)
}

/// The state of an experiment, as it is stored.
pub(crate) fn stored_state(connection: &Connection, id: ExperimentId) -> Result<State> {
    let mut statement = connection.prepare_cached("SELECT state FROM experiments WHERE id = ?")?;
    Ok(statement.query_row([id.0], |row| word(row, "state"))?)
}

/// Derives the state of an experiment whose trials run elsewhere from theirs.
pub(crate) fn follow_trials(connection: &Connection, id: ExperimentId, now: Timestamp) -> Result<()> {
    let mut statement = connection.prepare_cached("SELECT state, ended_at FROM trials WHERE experiment_id = ?")?;
    let trials: Vec<(State, Option<i64>)> =
        statement.query_map([id.0], |row| Ok((word(row, "state")?, row.get(1)?)))?.collect::<sql::Result<_>>()?;
    let state = State::of_detached_experiment(trials.iter().map(|(state, _)| *state));
    let before = stored_state(connection, id)?;
    let ended_at = if state.is_terminal() { trials.iter().filter_map(|(_, ended)| *ended).max() } else { None };
    connection.prepare_cached("UPDATE experiments SET state = ?, ended_at = ? WHERE id = ?")?.execute(params![
        state.as_str(),
        ended_at,
        id.0
    ])?;
    if state == State::Completed {
        connection.prepare_cached("UPDATE experiments SET progress = 1.0 WHERE id = ?")?.execute([id.0])?;
    }
    crate::webhooks::state_changed(connection, id, before, state, now)?;
    Ok(())
}

fn conditions(filter: &ExperimentFilter) -> (String, Vec<SqlValue>) {
    let mut clauses = vec!["TRUE".to_owned()];
    let mut values: Vec<SqlValue> = Vec::new();
    let mut one_of = |column: &str, wanted: Vec<SqlValue>| {
        if !wanted.is_empty() {
            clauses.push(format!("{column} IN ({})", vec!["?"; wanted.len()].join(", ")));
            values.extend(wanted);
        }
    };
    one_of("username", filter.users.iter().map(|name| name.clone().into()).collect());
    one_of("experiments.user_id", filter.user_ids.iter().map(|id| id.0.into()).collect());
    one_of(shown_state!(), wanted_states(&filter.states));
    if let Some(workspaces) = &filter.workspaces {
        // No workspace is 0: whoever sees none sees nothing.
        let ids = workspaces.iter().map(|id| id.0).chain([0]);
        one_of("projects.workspace_id", ids.map(SqlValue::from).collect());
    }
    one_of("experiments.id", filter.ids.iter().map(|id| id.0.into()).collect());
    one_of("experiments.project_id", filter.project.iter().map(|id| id.0.into()).collect());
    let (smallest, largest) = filter.between;
    let bounds = smallest.map(|id| (">= ?", id)).into_iter().chain(largest.map(|id| ("<= ?", id)));
    for (comparison, id) in bounds.chain(filter.excluded.iter().map(|id| ("<> ?", id.0))) {
        clauses.push(format!("experiments.id {comparison}"));
        values.push(id.into());
    }
    if let Some(archived) = filter.archived {
        clauses.push(if archived { "experiments.archived".into() } else { "NOT experiments.archived".into() });
        // Who asks for all that are not archived does not want those of an archived place; who names one does.
        if !archived && filter.project.is_none() {
            clauses.push("NOT projects.archived AND NOT workspaces.archived".into());
        }
    }
    for (column, part) in [("name", &filter.name), ("description", &filter.description)] {
        if let Some(part) = part {
            clauses.push(format!("LOWER(experiments.{column}) LIKE ? ESCAPE '\\'"));
            values.push(format!("%{}%", escaped(&part.to_lowercase())).into());
        }
    }
    for label in &filter.labels {
        // Labels are stored as a JSON list of strings, so a label is there exactly if its JSON is.
        clauses.push("REPLACE(experiments.labels, ?, '') <> experiments.labels".into());
        values.push(Value::from(label.as_str()).to_string().into());
    }
    (clauses.join(" AND "), values)
}

/// States as they are shown: who asks for active ones means all that active ones are shown as.
fn wanted_states(states: &[State]) -> Vec<SqlValue> {
    let shown = [State::Queued, State::Pulling, State::Starting, State::Running];
    let also = if states.contains(&State::Active) { shown.as_slice() } else { &[] };
    states.iter().chain(also).map(|state| state.as_str().to_owned().into()).collect()
}

/// Text that `LIKE` takes literally.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_")
}

fn find_project(connection: &Connection, new: &NewExperiment) -> Result<ProjectId> {
    match (new.project_id, &new.project_names) {
        (Some(id), _) => Ok(id),
        (None, Some((workspace, project))) => project_by_names(connection, workspace, project),
        (None, None) => Ok(ProjectId(1)),
    }
}

/// Makes an experiment, or brings the one with its external id up to date.
pub(crate) fn insert(
    connection: &Connection,
    new: &NewExperiment,
    state: State,
    unmanaged: bool,
    now: Timestamp,
) -> Result<ExperimentId> {
    let project = find_project(connection, new)?;
    must_be_open(connection, project)?;
    if let Some(id) = update_known(connection, new)? {
        return Ok(id);
    }
    let id = connection
        .prepare_cached(
            "INSERT INTO experiments (external_id, name, description, labels, notes, config, \
             original_config, archived, job_id, project_id, user_id, searcher_name, searcher_metric, \
             smaller_is_better, state, unmanaged, started_at) \
             VALUES (?, ?, ?, ?, '', ?, ?, FALSE, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        )?
        .query_row(
            params![
                new.external_id,
                new.name,
                new.description,
                text_of(&new.labels)?,
                text_of(&new.config)?,
                new.original_config,
                new.job_id,
                project.0,
                new.owner.0,
                new.searcher_name,
                new.searcher_metric,
                new.smaller_is_better,
                state.as_str(),
                unmanaged,
                now.0
            ],
            |row| row.get(0),
        )?;
    Ok(ExperimentId(id))
}

/// Brings the experiment with this external id up to date, if there is one. Not an insert that gives way: that would use
/// up a number.
fn update_known(connection: &Connection, new: &NewExperiment) -> Result<Option<ExperimentId>> {
    let Some(external_id) = &new.external_id else { return Ok(None) };
    let id = connection
        .prepare_cached(
            "UPDATE experiments SET name = ?, description = ?, labels = ?, config = ?, original_config = ?, \
             searcher_name = ?, searcher_metric = ?, smaller_is_better = ? WHERE external_id = ? RETURNING id",
        )?
        .query_row(
            params![
                new.name,
                new.description,
                text_of(&new.labels)?,
                text_of(&new.config)?,
                new.original_config,
                new.searcher_name,
                new.searcher_metric,
                new.smaller_is_better,
                external_id
            ],
            |row| row.get(0),
        )
        .optional()?;
    Ok(id.map(ExperimentId))
}

/// What only an experiment that is over allows was asked of one in this state.
fn still_runs(id: ExperimentId, state: State) -> Error {
    let state = state.as_str().trim_start_matches("STATE_").replace('_', " ").to_lowercase();
    Error::Precondition(format!("experiment {id} is {state}, not at its end"))
}

impl Database {
    /// Makes an experiment whose trials run elsewhere. With an external id that is known already, the experiment of
    /// that id is given instead, its configuration brought up to date.
    pub async fn create_experiment(&self, new: NewExperiment, now: Timestamp) -> Result<Experiment> {
        self.executor
            .write(move |connection| {
                let id = insert(connection, &new, State::Paused, true, now)?;
                experiment_by_id(connection, id, now)
            })
            .await
    }

    /// One experiment.
    pub async fn experiment(&self, id: ExperimentId, now: Timestamp) -> Result<Experiment> {
        self.executor.read(move |connection| experiment_by_id(connection, id, now)).await
    }

    /// The experiments that a filter lets through.
    pub async fn experiments(
        &self,
        filter: ExperimentFilter,
        sort: ExperimentSort,
        order: Order,
        slice: Slice,
        now: Timestamp,
    ) -> Result<(Vec<Experiment>, Pagination)> {
        self.executor
            .read(move |connection| {
                let (clauses, mut values) = conditions(&filter);
                let total: i64 = connection
                    .prepare_cached(&format!("SELECT COUNT(*){JOINS} WHERE {clauses}"))?
                    .query_row(params_from_iter(&values), |row| row.get(0))?;
                let (range, page) = slice.of(total as usize);
                let direction = if order == Order::Descending { "DESC" } else { "ASC" };
                let by = sort.expression();
                // Those that have no metric come last in either order; what else may be missing counts as the smallest.
                let last = sort == ExperimentSort::BestMetric || order == Order::Descending;
                let missing = if last { "NULLS LAST" } else { "NULLS FIRST" };
                let by = format!("ORDER BY {by} {direction} {missing}, experiments.id {direction}");
                // What is shown is worked out for the part that is wanted, and for the others only what they are
                // sorted by.
                let sql = format!(
                    "{COLUMNS}{JOINS} WHERE experiments.id IN (SELECT experiments.id{JOINS} WHERE {clauses} \
                     {by} LIMIT ? OFFSET ?) {by}"
                );
                values.push((range.len() as i64).into());
                values.push((range.start as i64).into());
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map(params_from_iter(&values), |row| experiment_of(row, now))?;
                Ok((found.collect::<sql::Result<_>>()?, page))
            })
            .await
    }

    /// Changes what people may write on an experiment; what is `None` stays.
    pub async fn change_experiment(
        &self,
        id: ExperimentId,
        change: instep_api::experiments::PatchExperimentRequest,
        now: Timestamp,
    ) -> Result<Experiment> {
        self.executor
            .write(move |connection| {
                let current = experiment_by_id(connection, id, now)?;
                let labels = text_of(&change.labels.unwrap_or(current.labels))?;
                connection.execute(
                    "UPDATE experiments SET name = ?, description = ?, notes = ?, labels = ? WHERE id = ?",
                    params![
                        change.name.unwrap_or(current.name),
                        change.description.unwrap_or(current.description),
                        change.notes.unwrap_or(current.notes),
                        labels,
                        id.0
                    ],
                )?;
                experiment_by_id(connection, id, now)
            })
            .await
    }

    /// Puts an experiment that is over into the archive, or takes it out.
    pub async fn archive_experiment(&self, id: ExperimentId, archived: bool, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let current = experiment_by_id(connection, id, now)?;
                if !current.state.is_terminal() {
                    return Err(still_runs(id, current.state));
                }
                connection.execute("UPDATE experiments SET archived = ? WHERE id = ?", params![archived, id.0])?;
                Ok(())
            })
            .await
    }

    /// Moves an experiment to another project.
    pub async fn move_experiment(&self, id: ExperimentId, project: ProjectId, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let current = experiment_by_id(connection, id, now)?;
                if current.archived {
                    let what = format!("experiment {id} is archived, and cannot be moved");
                    return Err(Error::Precondition(what));
                }
                for place in [current.project_id, project] {
                    must_be_open(connection, place)?;
                }
                connection.execute("UPDATE experiments SET project_id = ? WHERE id = ?", [project.0, id.0])?;
                Ok(())
            })
            .await
    }

    /// Forgets an experiment that is over, with everything that belongs to it, and notes its checkpoints' files, and
    /// what it wrote for TensorBoard, as to be deleted.
    pub async fn delete_experiment(&self, id: ExperimentId, now: Timestamp) -> Result<()> {
        let cluster = self.cluster_id().to_owned();
        self.executor
            .write(move |connection| {
                let current = experiment_by_id(connection, id, now)?;
                if !current.state.is_terminal() {
                    return Err(still_runs(id, current.state));
                }
                crate::deletions::give_up_all(connection, id)?;
                crate::deletions::give_up_tensorboard(connection, id, &cluster)?;
                for trial in &current.trial_ids {
                    crate::trials::forget(connection, *trial)?;
                }
                crate::collections::forget(connection, id)?;
                for sql in [
                    "DELETE FROM experiment_events WHERE experiment_id = ?",
                    "DELETE FROM experiment_snapshots WHERE experiment_id = ?",
                    "DELETE FROM model_definitions WHERE experiment_id = ?",
                    "DELETE FROM experiments WHERE id = ?",
                ] {
                    connection.execute(sql, [id.0])?;
                }
                Ok(())
            })
            .await
    }

    /// The best value of the searcher's metric among an experiment's validations.
    pub async fn best_validation(&self, id: ExperimentId, now: Timestamp) -> Result<Option<f64>> {
        self.executor
            .read(move |connection| {
                experiment_by_id(connection, id, now)?;
                Ok(best_trial(connection, id)?.map(|(_, value)| value))
            })
            .await
    }
}
