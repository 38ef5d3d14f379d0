//! Whose things are: what the master asks before it lets anybody change one.

use std::collections::HashMap;
use std::fmt;

use instep_api::identifiers::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::sql::{self, Connection, OptionalExtension, Row};
use crate::workspaces::project_by_names;

/// A thing that belongs to somebody, as requests name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// By its number.
    Experiment(ExperimentId),
    /// By the id that whoever runs it elsewhere has given it.
    ExternalExperiment(String),
    /// By its number, which is also that of its run.
    Trial(TrialId),
    /// A trial's task, or a command.
    Task(String),
    /// `<task>.<run>`
    Allocation(String),
    /// By its UUID.
    Checkpoint(String),
    /// By its name or its number.
    Model(String),
    /// By its model's name or number, and its own number.
    ModelVersion(String, i64),
    /// By its number.
    Workspace(WorkspaceId),
    /// By its number.
    Project(ProjectId),
    /// By its name.
    Template(String),
    /// A place in the queue: an experiment's, or a command's.
    Job(String),
}

impl Subject {
    /// What people call it.
    pub fn noun(&self) -> &'static str {
        match self {
            Subject::Experiment(_) | Subject::ExternalExperiment(_) => "experiment",
            Subject::Trial(_) => "trial",
            Subject::Task(_) => "task",
            Subject::Allocation(_) => "allocation",
            Subject::Checkpoint(_) => "checkpoint",
            Subject::Model(_) => "model",
            Subject::ModelVersion(..) => "version of a model",
            Subject::Workspace(_) => "workspace",
            Subject::Project(_) => "project",
            Subject::Template(_) => "template",
            Subject::Job(_) => "job",
        }
    }
}

impl Subject {
    /// How the request names it.
    pub fn name(&self) -> String {
        match self {
            Subject::Experiment(id) => id.to_string(),
            Subject::Trial(id) => id.to_string(),
            Subject::Workspace(id) => id.to_string(),
            Subject::Project(id) => id.to_string(),
            Subject::ModelVersion(name, number) => format!("{name}/{number}"),
            Subject::ExternalExperiment(name)
            | Subject::Task(name)
            | Subject::Allocation(name)
            | Subject::Checkpoint(name)
            | Subject::Model(name)
            | Subject::Template(name)
            | Subject::Job(name) => name.clone(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::ModelVersion(model, number) => write!(formatter, "model {model} version {number}"),
            _ => write!(formatter, "{} {}", self.noun(), self.name()),
        }
    }
}

/// Whose a thing is, and what it is part of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Who may change it, besides administrators.
    pub owners: Vec<UserId>,
    /// The experiment that it is, or is part of.
    pub experiment: Option<ExperimentId>,
    /// The trial that it is, or is part of.
    pub trial: Option<TrialId>,
    /// The task that it is, or is part of.
    pub task: Option<String>,
    /// The workspace that it lies in.
    pub workspace: Option<WorkspaceId>,
    /// The workspaces of the experiments that it shows, if it is a TensorBoard.
    pub shown: Vec<WorkspaceId>,
}

/// A row of owner, experiment, trial, task and workspace.
fn ownership_of(row: &Row<'_>) -> sql::Result<Ownership> {
    let owner: Option<i64> = row.get(0)?;
    Ok(Ownership {
        owners: owner.map(UserId).into_iter().collect(),
        experiment: row.get::<_, Option<i64>>(1)?.map(ExperimentId),
        trial: row.get::<_, Option<i64>>(2)?.map(TrialId),
        task: row.get(3)?,
        workspace: row.get::<_, Option<i64>>(4)?.map(WorkspaceId),
        shown: Vec::new(),
    })
}

fn one(connection: &Connection, sql: &str, key: impl sql::ToSql) -> Result<Option<Ownership>> {
    Ok(connection.prepare_cached(sql)?.query_row([key], ownership_of).optional()?)
}

/// A task belongs to its trial's experiment, or is a command.
fn of_task(connection: &Connection, task: &str) -> Result<Option<Ownership>> {
    let sql = "SELECT COALESCE(experiments.user_id, commands.user_id), experiments.id, trials.id, tasks.id, \
               COALESCE(projects.workspace_id, commands.workspace_id) FROM tasks \
               LEFT JOIN trials ON trials.id = tasks.trial_id \
               LEFT JOIN experiments ON experiments.id = COALESCE(trials.experiment_id, tasks.experiment_id) \
               LEFT JOIN projects ON projects.id = experiments.project_id \
               LEFT JOIN commands ON commands.task_id = tasks.id WHERE tasks.id = ?";
    let Some(found) = one(connection, sql, task)? else { return Ok(None) };
    let shown = if found.experiment.is_none() { shown_by(connection, task)? } else { Vec::new() };
    Ok(Some(Ownership { shown, ..found }))
}

/// The workspaces of what a TensorBoard shows: its details name experiments and trials. What is gone shows nothing.
pub(crate) fn shown_by(connection: &Connection, task: &str) -> Result<Vec<WorkspaceId>> {
    let sql = "SELECT details FROM commands WHERE task_id = ?";
    let details: Option<String> = connection.prepare_cached(sql)?.query_row([task], |row| row.get(0)).optional()?;
    let details: Value = details.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let mut found = Vec::new();
    for (field, sql) in [
        (
            "experiments",
            "SELECT workspace_id FROM experiments JOIN projects ON projects.id = project_id WHERE experiments.id = ?",
        ),
        (
            "trials",
            "SELECT workspace_id FROM trials JOIN experiments ON experiments.id = experiment_id \
             JOIN projects ON projects.id = project_id WHERE trials.id = ?",
        ),
    ] {
        for id in details[field].as_array().into_iter().flatten().filter_map(Value::as_i64) {
            let workspace: Option<i64> =
                connection.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
            found.extend(workspace.map(WorkspaceId));
        }
    }
    Ok(found)
}

const EXPERIMENTS: &str = "SELECT experiments.user_id, experiments.id, NULL, NULL, projects.workspace_id \
    FROM experiments JOIN projects ON projects.id = experiments.project_id";

fn find(connection: &Connection, subject: &Subject) -> Result<Option<Ownership>> {
    match subject {
        Subject::Experiment(id) => one(connection, &format!("{EXPERIMENTS} WHERE experiments.id = ?"), id.0),
        Subject::ExternalExperiment(id) => {
            one(connection, &format!("{EXPERIMENTS} WHERE experiments.external_id = ?"), id)
        }
        Subject::Trial(id) => {
            let sql = "SELECT experiments.user_id, experiments.id, trials.id, trials.task_id, projects.workspace_id \
                       FROM trials JOIN experiments ON experiments.id = trials.experiment_id \
                       JOIN projects ON projects.id = experiments.project_id WHERE trials.id = ?";
            one(connection, sql, id.0)
        }
        Subject::Task(id) => of_task(connection, id),
        Subject::Allocation(id) => match id.rsplit_once('.') {
            Some((task, _)) => of_task(connection, task),
            None => Ok(None),
        },
        Subject::Checkpoint(uuid) => {
            let sql = "SELECT task_id FROM checkpoints WHERE uuid = ?";
            let task: Option<String> =
                connection.prepare_cached(sql)?.query_row([uuid], |row| row.get(0)).optional()?;
            task.map_or(Ok(None), |task| of_task(connection, &task))
        }
        Subject::Model(name) => of_model(connection, name),
        Subject::ModelVersion(name, number) => {
            let Some(mut found) = of_model(connection, name)? else { return Ok(None) };
            let column = model_column(name);
            let sql = format!(
                "SELECT model_versions.user_id FROM model_versions JOIN models ON models.id = model_versions.model_id \
                 WHERE {column} AND model_versions.version = ?"
            );
            let owner: Option<i64> =
                connection.prepare_cached(&sql)?.query_row(sql::params![name, number], |row| row.get(0)).optional()?;
            found.owners.extend(owner.map(UserId));
            Ok(owner.map(|_| found))
        }
        Subject::Workspace(id) => {
            one(connection, "SELECT user_id, NULL, NULL, NULL, id FROM workspaces WHERE id = ?", id.0)
        }
        Subject::Project(id) => {
            one(connection, "SELECT user_id, NULL, NULL, NULL, workspace_id FROM projects WHERE id = ?", id.0)
        }
        Subject::Template(name) => {
            one(connection, "SELECT user_id, NULL, NULL, NULL, workspace_id FROM templates WHERE name = ?", name)
        }
        Subject::Job(id) => {
            let sql = format!(
                "{EXPERIMENTS} WHERE experiments.job_id = ?1 UNION ALL \
                 SELECT user_id, NULL, NULL, task_id, workspace_id FROM commands WHERE job_id = ?1 LIMIT 1"
            );
            one(connection, &sql, id)
        }
    }
}

/// Numbers name models by their ids, everything else by their names.
fn model_column(name: &str) -> &'static str {
    if name.parse::<i64>().is_ok() { "models.id = CAST(? AS BIGINT)" } else { "models.name = ?" }
}

fn of_model(connection: &Connection, name: &str) -> Result<Option<Ownership>> {
    let sql = format!("SELECT user_id, NULL, NULL, NULL, workspace_id FROM models WHERE {}", model_column(name));
    one(connection, &sql, name)
}

impl Database {
    /// Whose a thing is; `None` if there is no such thing.
    pub async fn ownership(&self, subject: Subject) -> Result<Option<Ownership>> {
        self.executor.read(move |connection| find(connection, &subject)).await
    }

    /// In which workspaces jobs lie now, as far as they are known; an experiment moves while it runs.
    pub async fn workspaces_of_jobs(&self, jobs: Vec<String>) -> Result<HashMap<String, WorkspaceId>> {
        self.workspaces_of(jobs, Subject::Job).await
    }

    /// In which workspaces tasks lie now, as far as they are known.
    pub async fn workspaces_of_tasks(&self, tasks: Vec<String>) -> Result<HashMap<String, WorkspaceId>> {
        self.workspaces_of(tasks, Subject::Task).await
    }

    async fn workspaces_of(
        &self,
        names: Vec<String>,
        subject: impl Fn(String) -> Subject + Send + 'static,
    ) -> Result<HashMap<String, WorkspaceId>> {
        self.executor
            .read(move |connection| {
                let mut found = HashMap::new();
                for name in names {
                    let workspace = find(connection, &subject(name.clone()))?.and_then(|found| found.workspace);
                    found.extend(workspace.map(|workspace| (name, workspace)));
                }
                Ok(found)
            })
            .await
    }

    /// The workspace of the project in which an experiment is to be made: by number, by names, or the first one.
    pub async fn workspace_of_project(
        &self,
        id: Option<ProjectId>,
        names: Option<(String, String)>,
    ) -> Result<WorkspaceId> {
        self.executor
            .read(move |connection| {
                let project = match (id, names) {
                    (Some(id), _) => id,
                    (None, Some((workspace, project))) => project_by_names(connection, &workspace, &project)?,
                    (None, None) => ProjectId(1),
                };
                let found = find(connection, &Subject::Project(project))?.and_then(|found| found.workspace);
                found.ok_or_else(|| Error::not_found("project", project))
            })
            .await
    }
}
