//! Commands, TensorBoards and generic tasks. The newest allocation of each holds its state and how it ended.

use instep_api::identifiers::{ExperimentId, TrialId, UserId, WorkspaceId};
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::allocations::{AllocationRow, allocation_of};
use crate::error::{Error, Result};
use crate::ownership::shown_by;
use crate::rows::{column, json, optional_json, optional_time, text_of, time};
use crate::sql::{self, Connection, OptionalExtension, Row, params};
use crate::workspaces::unix_user_of;

/// A task to be made.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in CommandRow")]
pub struct NewCommand {
    pub task: String,
    pub kind: String,
    pub description: String,
    pub config: Value,
    pub job: String,
    pub owner: UserId,
    pub workspace: WorkspaceId,
    pub pool: String,
    pub priority: Option<u32>,
    pub slots: u32,
    pub details: Value,
    /// Its files, a tar in gzip; empty for none.
    pub context: Vec<u8>,
}

/// A command, or another task that stands alone.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct CommandRow {
    /// A UUID.
    pub task: String,
    /// As Determined names kinds of tasks.
    pub kind: String,
    /// For people.
    pub description: String,
    /// Complete.
    pub config: Value,
    /// Its job in the queue.
    pub job: String,
    /// Whose it is.
    pub owner: UserId,
    /// The owner's name.
    pub username: String,
    /// The owner's other name.
    pub display_name: String,
    /// As whom the owner's tasks run, as the owner's account says.
    pub agent_user_group: Option<Value>,
    /// Where it is listed.
    pub workspace: WorkspaceId,
    pub pool: String,
    /// Its own, if it has one.
    pub priority: Option<u32>,
    pub slots: u32,
    /// What belongs to its kind.
    pub details: Value,
    /// The workspaces of the experiments that it shows, if it is a TensorBoard.
    pub shown: Vec<WorkspaceId>,
    /// When it was submitted.
    pub started_at: Timestamp,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// What it does when its run has ended, in a word of the policy.
    pub after_run: String,
    /// Its newest attempt to run; `None` if the master ended before it was queued.
    pub allocation: Option<AllocationRow>,
}

/// Which of them are wanted; what is empty excludes nothing.
#[derive(Debug, Clone, Default)]
pub struct CommandFilter {
    /// As Determined names kinds of tasks.
    pub kind: String,
    /// Names of owners.
    pub users: Vec<String>,
    /// The owners themselves.
    pub user_ids: Vec<i64>,
    /// Where they are listed.
    pub workspace: Option<WorkspaceId>,
}

/// A trial whose files somebody wants to look at.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ShownTrial {
    pub experiment: ExperimentId,
    pub trial: TrialId,
    /// The experiment's `checkpoint_storage`.
    pub storage: Value,
    /// The experiment's `imagePullSecrets`, null without.
    pub pull_secrets: Value,
}

const SELECT: &str = "SELECT commands.*, tasks.started_at AS task_started_at, tasks.ended_at AS task_ended_at, \
    users.username, users.display_name, users.agent_user_group, workspaces.agent_user_group AS workspace_group \
    FROM commands JOIN tasks ON tasks.id = commands.task_id JOIN users ON users.id = commands.user_id \
    LEFT JOIN workspaces ON workspaces.id = commands.workspace_id";

impl Database {
    /// Makes a task. Its attempt to run comes with the first decision about it.
    pub async fn create_command(&self, new: NewCommand, now: Timestamp) -> Result<CommandRow> {
        self.executor
            .write(move |connection| {
                let there: bool = connection.query_row(
                    "SELECT EXISTS (SELECT 1 FROM workspaces WHERE id = ?)",
                    [new.workspace.0],
                    |row| row.get(0),
                )?;
                if !there {
                    return Err(Error::not_found("workspace", new.workspace));
                }
                connection.execute(
                    "INSERT INTO tasks (id, kind, started_at) VALUES (?, ?, ?)",
                    params![new.task, new.kind, now.0],
                )?;
                connection.execute(
                    "INSERT INTO commands (task_id, kind, description, config, job_id, user_id, workspace_id, pool, \
                     priority, slots, details) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    params![
                        new.task,
                        new.kind,
                        new.description,
                        text_of(&new.config)?,
                        new.job,
                        new.owner.0,
                        new.workspace.0,
                        new.pool,
                        new.priority,
                        new.slots,
                        text_of(&new.details)?
                    ],
                )?;
                connection.execute(
                    "INSERT INTO task_contexts (task_id, content) VALUES (?, ?)",
                    params![new.task, new.context],
                )?;
                by_task(connection, &new.task)
            })
            .await
    }

    /// Those that are not over, the oldest first.
    pub async fn live_commands(&self) -> Result<Vec<CommandRow>> {
        self.executor
            .read(|connection| {
                let sql = format!("{SELECT} WHERE tasks.ended_at IS NULL ORDER BY tasks.started_at, tasks.id");
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map([], command)?.collect::<sql::Result<Vec<_>>>()?;
                found.into_iter().map(|row| with_allocation(connection, row)).collect()
            })
            .await
    }

    /// Those of a workspace that are not over.
    pub async fn live_commands_of(&self, workspace: WorkspaceId) -> Result<Vec<String>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT commands.task_id FROM commands JOIN tasks ON tasks.id = commands.task_id \
                           WHERE workspace_id = ? AND tasks.ended_at IS NULL ORDER BY tasks.started_at, tasks.id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([workspace.0], |row| row.get(0))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// All of a kind whose workspace is there, the oldest first.
    pub async fn commands(&self, filter: CommandFilter) -> Result<Vec<CommandRow>> {
        self.executor
            .read(move |connection| {
                let sql = format!(
                    "{SELECT} WHERE commands.kind = ? AND workspaces.id IS NOT NULL ORDER BY tasks.started_at, tasks.id"
                );
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map([&filter.kind], command)?.collect::<sql::Result<Vec<_>>>()?;
                let named =
                    |row: &CommandRow| filter.users.contains(&row.username) || filter.user_ids.contains(&row.owner.0);
                let anybody = filter.users.is_empty() && filter.user_ids.is_empty();
                found
                    .into_iter()
                    .filter(|row| anybody || named(row))
                    .filter(|row| filter.workspace.is_none_or(|workspace| workspace == row.workspace))
                    .map(|row| with_allocation(connection, row))
                    .collect()
            })
            .await
    }

    /// One of them, whose workspace may be gone.
    pub async fn command(&self, task: String) -> Result<CommandRow> {
        self.executor.read(move |connection| by_task(connection, &task)).await
    }

    /// Changes its place in the queue: its priority, its pool. What is not given stays.
    pub async fn change_command(&self, task: String, priority: Option<u32>, pool: Option<String>) -> Result<()> {
        self.executor
            .write(move |connection| {
                let mut row = by_task(connection, &task)?;
                if let Some(priority) = priority {
                    row.config["resources"]["priority"] = priority.into();
                }
                if let Some(pool) = &pool {
                    row.config["resources"]["resource_pool"] = pool.as_str().into();
                }
                connection.execute(
                    "UPDATE commands SET priority = ?, pool = ?, config = ? WHERE task_id = ?",
                    params![priority.or(row.priority), pool.unwrap_or(row.pool), text_of(&row.config)?, task],
                )?;
                Ok(())
            })
            .await
    }

    /// The trials of experiments, and single trials, with where their files are; at most `most`, in the order of their
    /// numbers.
    pub async fn shown_trials(
        &self,
        experiments: Vec<ExperimentId>,
        trials: Vec<TrialId>,
        most: usize,
    ) -> Result<Vec<ShownTrial>> {
        self.executor
            .read(move |connection| {
                let mut found = Vec::new();
                for id in experiments {
                    let there: bool = connection.query_row(
                        "SELECT EXISTS (SELECT 1 FROM experiments WHERE id = ?)",
                        [id.0],
                        |row| row.get(0),
                    )?;
                    if !there {
                        return Err(Error::not_found("experiment", id));
                    }
                    let sql = "SELECT trials.id, experiment_id, config FROM trials \
                               JOIN experiments ON experiments.id = experiment_id WHERE experiment_id = ? ORDER BY trials.id";
                    let mut statement = connection.prepare_cached(sql)?;
                    let rows = statement.query_map([id.0], shown_trial)?;
                    found.extend(rows.take(most).collect::<sql::Result<Vec<_>>>()?);
                }
                for id in trials {
                    let sql = "SELECT trials.id, experiment_id, config FROM trials \
                               JOIN experiments ON experiments.id = experiment_id WHERE trials.id = ?";
                    let row = connection.prepare_cached(sql)?.query_row([id.0], shown_trial).optional()?;
                    found.push(row.ok_or_else(|| Error::not_found("trial", id))?);
                }
                found.sort_by_key(|shown| (shown.experiment, shown.trial));
                found.dedup();
                found.truncate(most);
                Ok(found)
            })
            .await
    }
}

fn shown_trial(row: &Row<'_>) -> sql::Result<ShownTrial> {
    let mut config: Value = json(row, "config")?;
    Ok(ShownTrial {
        experiment: ExperimentId(row.get("experiment_id")?),
        trial: TrialId(row.get("id")?),
        storage: config["checkpoint_storage"].take(),
        pull_secrets: config["environment"]["pod_spec"]["spec"]["imagePullSecrets"].take(),
    })
}

fn by_task(connection: &Connection, task: &str) -> Result<CommandRow> {
    let sql = format!("{SELECT} WHERE commands.task_id = ?");
    let found = connection.prepare_cached(&sql)?.query_row([task], command).optional()?;
    with_allocation(connection, found.ok_or_else(|| Error::not_found("task", task))?)
}

fn with_allocation(connection: &Connection, row: CommandRow) -> Result<CommandRow> {
    let sql = "SELECT * FROM allocations WHERE task_id = ? ORDER BY run DESC LIMIT 1";
    let allocation = connection.prepare_cached(sql)?.query_row([&row.task], allocation_of).optional()?;
    let shown = shown_by(connection, &row.task)?;
    Ok(CommandRow { allocation, shown, ..row })
}

fn command(row: &Row<'_>) -> sql::Result<CommandRow> {
    Ok(CommandRow {
        task: column(row, "task_id")?,
        kind: column(row, "kind")?,
        description: column(row, "description")?,
        config: json(row, "config")?,
        job: column(row, "job_id")?,
        owner: UserId(row.get("user_id")?),
        username: column(row, "username")?,
        display_name: column(row, "display_name")?,
        agent_user_group: unix_user_of(optional_json(row, "agent_user_group")?, optional_json(row, "workspace_group")?),
        workspace: WorkspaceId(row.get("workspace_id")?),
        pool: column(row, "pool")?,
        priority: column(row, "priority")?,
        slots: column(row, "slots")?,
        details: json(row, "details")?,
        started_at: time(row, "task_started_at")?,
        ended_at: optional_time(row, "task_ended_at")?,
        after_run: column(row, "after_run")?,
        shown: Vec::new(),
        allocation: None,
    })
}
