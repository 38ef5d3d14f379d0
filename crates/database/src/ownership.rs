//! Whose things are: what the master asks before it lets anybody change one.

use instep_api::identifiers::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::Database;
use crate::error::Result;

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
}

/// A row of owner, experiment, trial and task.
fn ownership_of(row: &Row<'_>) -> rusqlite::Result<Ownership> {
    let owner: Option<i64> = row.get(0)?;
    Ok(Ownership {
        owners: owner.map(UserId).into_iter().collect(),
        experiment: row.get::<_, Option<i64>>(1)?.map(ExperimentId),
        trial: row.get::<_, Option<i64>>(2)?.map(TrialId),
        task: row.get(3)?,
    })
}

fn one(connection: &Connection, sql: &str, key: impl rusqlite::ToSql) -> Result<Option<Ownership>> {
    Ok(connection.prepare_cached(sql)?.query_row([key], ownership_of).optional()?)
}

/// A task belongs to its trial's experiment, or is a command.
fn of_task(connection: &Connection, task: &str) -> Result<Option<Ownership>> {
    let sql = "SELECT COALESCE(experiments.user_id, commands.user_id), experiments.id, trials.id, tasks.id FROM tasks \
               LEFT JOIN trials ON trials.id = tasks.trial_id \
               LEFT JOIN experiments ON experiments.id = trials.experiment_id \
               LEFT JOIN commands ON commands.task_id = tasks.id WHERE tasks.id = ?";
    one(connection, sql, task)
}

fn find(connection: &Connection, subject: &Subject) -> Result<Option<Ownership>> {
    match subject {
        Subject::Experiment(id) => {
            one(connection, "SELECT user_id, id, NULL, NULL FROM experiments WHERE id = ?", id.0)
        }
        Subject::ExternalExperiment(id) => {
            one(connection, "SELECT user_id, id, NULL, NULL FROM experiments WHERE external_id = ?", id)
        }
        Subject::Trial(id) => {
            let sql = "SELECT user_id, experiments.id, trials.id, trials.task_id FROM trials \
                       JOIN experiments ON experiments.id = trials.experiment_id WHERE trials.id = ?";
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
            let owner: Option<i64> = connection
                .prepare_cached(&sql)?
                .query_row(rusqlite::params![name, number], |row| row.get(0))
                .optional()?;
            found.owners.extend(owner.map(UserId));
            Ok(owner.map(|_| found))
        }
        Subject::Workspace(id) => {
            one(connection, "SELECT user_id, NULL, NULL, NULL FROM workspaces WHERE id = ?", id.0)
        }
        Subject::Project(id) => one(connection, "SELECT user_id, NULL, NULL, NULL FROM projects WHERE id = ?", id.0),
        Subject::Template(name) => {
            one(connection, "SELECT user_id, NULL, NULL, NULL FROM templates WHERE name = ?", name)
        }
        Subject::Job(id) => {
            let sql = "SELECT user_id, id, NULL, NULL FROM experiments WHERE job_id = ?1 \
                       UNION ALL SELECT user_id, NULL, NULL, task_id FROM commands WHERE job_id = ?1 LIMIT 1";
            one(connection, sql, id)
        }
    }
}

/// Numbers name models by their ids, everything else by their names.
fn model_column(name: &str) -> &'static str {
    if name.parse::<i64>().is_ok() { "models.id = CAST(? AS BIGINT)" } else { "models.name = ?" }
}

fn of_model(connection: &Connection, name: &str) -> Result<Option<Ownership>> {
    let sql = format!("SELECT user_id, NULL, NULL, NULL FROM models WHERE {}", model_column(name));
    one(connection, &sql, name)
}

impl Database {
    /// Whose a thing is; `None` if there is no such thing.
    pub async fn ownership(&self, subject: Subject) -> Result<Option<Ownership>> {
        self.engine.read(move |connection| find(connection, &subject)).await
    }
}
