//! Workspaces and projects.

use instep_api::identifiers::{ExperimentId, ProjectId, UserId, WorkspaceId};
use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_api::workspaces::{Project, RESTING, Workspace};
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::roles::{self, HeldRole, Holder};
use crate::rows::{column, json, optional_json, optional_time, text_of, word};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

const WORKSPACES: &str = "SELECT workspaces.*, users.username AS username, \
    (SELECT COUNT(*) FROM projects WHERE projects.workspace_id = workspaces.id) AS project_count, \
    (SELECT COUNT(*) FROM experiments JOIN projects ON projects.id = experiments.project_id \
        WHERE projects.workspace_id = workspaces.id) AS experiment_count \
    FROM workspaces JOIN users ON users.id = workspaces.user_id";

const PROJECTS: &str = "SELECT projects.*, users.username AS username, workspaces.name AS workspace_name, \
    projects.archived OR workspaces.archived AS shown_archived, \
    (SELECT COUNT(*) FROM experiments WHERE experiments.project_id = projects.id) AS experiment_count, \
    (SELECT COUNT(*) FROM experiments WHERE experiments.project_id = projects.id \
        AND experiments.state IN ('STATE_RUNNING', 'STATE_ACTIVE')) AS active_count, \
    (SELECT COUNT(*) FROM trials JOIN experiments ON experiments.id = trials.experiment_id \
        WHERE experiments.project_id = projects.id) AS run_count, \
    (SELECT MAX(started_at) FROM experiments WHERE experiments.project_id = projects.id) AS last_started_at \
    FROM projects JOIN users ON users.id = projects.user_id JOIN workspaces ON workspaces.id = projects.workspace_id";

fn workspace_of(row: &Row<'_>) -> sql::Result<Workspace> {
    Ok(Workspace {
        id: WorkspaceId(column(row, "id")?),
        name: column(row, "name")?,
        archived: column(row, "archived")?,
        username: column(row, "username")?,
        user_id: UserId(column(row, "user_id")?),
        immutable: column(row, "immutable")?,
        num_projects: column(row, "project_count")?,
        num_experiments: column(row, "experiment_count")?,
        pinned: false,
        pinned_at: None,
        state: RESTING.to_owned(),
        error_message: String::new(),
        agent_user_group: optional_json(row, "agent_user_group")?,
        checkpoint_storage_config: optional_json(row, "checkpoint_storage")?,
        default_compute_pool: String::new(),
        default_aux_pool: String::new(),
    })
}

fn project_of(row: &Row<'_>) -> sql::Result<Project> {
    Ok(Project {
        id: ProjectId(column(row, "id")?),
        name: column(row, "name")?,
        description: column(row, "description")?,
        workspace_id: WorkspaceId(column(row, "workspace_id")?),
        workspace_name: column(row, "workspace_name")?,
        archived: column(row, "shown_archived")?,
        username: column(row, "username")?,
        user_id: UserId(column(row, "user_id")?),
        immutable: column(row, "immutable")?,
        notes: json(row, "notes")?,
        num_experiments: column(row, "experiment_count")?,
        num_active_experiments: column(row, "active_count")?,
        num_runs: column(row, "run_count")?,
        last_experiment_started_at: optional_time(row, "last_started_at")?,
        state: RESTING.to_owned(),
        error_message: String::new(),
        key: column(row, "key")?,
    })
}

pub(crate) fn workspace_by_id(connection: &Connection, id: WorkspaceId) -> Result<Workspace> {
    connection
        .prepare_cached(&format!("{WORKSPACES} WHERE workspaces.id = ?"))?
        .query_row([id.0], workspace_of)
        .optional()?
        .ok_or_else(|| Error::not_found("workspace", id))
}

pub(crate) fn project_by_id(connection: &Connection, id: ProjectId) -> Result<Project> {
    connection
        .prepare_cached(&format!("{PROJECTS} WHERE projects.id = ?"))?
        .query_row([id.0], project_of)
        .optional()?
        .ok_or_else(|| Error::not_found("project", id))
}

/// Whether a query finds a row.
fn exists(connection: &Connection, query: &str, parameters: impl sql::Params) -> Result<bool> {
    let sql = format!("SELECT EXISTS ({query})");
    Ok(connection.prepare_cached(&sql)?.query_row(parameters, |row| row.get(0))?)
}

fn must_not_be_archived(archived: bool, what: &str, name: &str) -> Result<()> {
    if !archived {
        return Ok(());
    }
    let hint = "hint: take it out of the archive first";
    Err(Error::Precondition(format!("{what} '{name}' is archived, and cannot be changed\n{hint}")))
}

/// Refuses to put something into a project that is archived, or to take something out of it.
pub(crate) fn must_be_open(connection: &Connection, id: ProjectId) -> Result<()> {
    let project = project_by_id(connection, id)?;
    must_not_be_archived(project.archived, "project", &project.name)
}

/// What a workspace is to be; what is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct WorkspaceChange {
    /// Its name.
    pub name: Option<String>,
    /// Whether it is archived.
    pub archived: Option<bool>,
    /// Where its experiments keep their checkpoints; `Some(None)`: where the master says.
    pub checkpoint_storage: Option<Option<Value>>,
    /// As whom its tasks run; `Some(None)`: as their owners' accounts say.
    pub agent_user_group: Option<Option<Value>>,
}

impl WorkspaceChange {
    /// Stores the settings.
    fn set(&self, connection: &Connection, id: WorkspaceId) -> Result<()> {
        for (column, setting) in
            [("checkpoint_storage", &self.checkpoint_storage), ("agent_user_group", &self.agent_user_group)]
        {
            let Some(setting) = setting else { continue };
            let text = setting.as_ref().map(text_of).transpose()?;
            connection.execute(&format!("UPDATE workspaces SET {column} = ? WHERE id = ?"), params![text, id.0])?;
        }
        Ok(())
    }
}

/// The Unix user of a task: what its workspace says over what its owner's account says, field by field.
pub(crate) fn unix_user_of(account: Option<Value>, workspace: Option<Value>) -> Option<Value> {
    match (account, workspace) {
        (Some(Value::Object(mut account)), Some(Value::Object(workspace))) => {
            account.extend(workspace.into_iter().filter(|(_, value)| !value.is_null()));
            Some(Value::Object(account))
        }
        (account, workspace) => workspace.or(account),
    }
}

fn must_be_mutable(immutable: bool, what: &str, name: &str) -> Result<()> {
    if immutable { Err(Error::Precondition(format!("{what} '{name}' cannot be changed"))) } else { Ok(()) }
}

/// The project that a configuration names, which gives both names or none.
pub(crate) fn project_by_names(connection: &Connection, workspace: &str, project: &str) -> Result<ProjectId> {
    let sql = "SELECT projects.id FROM projects JOIN workspaces ON workspaces.id = projects.workspace_id \
               WHERE workspaces.name = ? AND projects.name = ?";
    let found: Option<i64> =
        connection.prepare_cached(sql)?.query_row([workspace, project], |row| row.get(0)).optional()?;
    found.map(ProjectId).ok_or_else(|| Error::not_found("project", format!("{workspace}/{project}")))
}

/// A short name in capitals, such as the first letters, that no project has.
fn free_key(connection: &Connection, name: &str) -> Result<String> {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).take(3).collect();
    let stem = if letters.is_empty() { "P".to_owned() } else { letters.to_ascii_uppercase() };
    for number in 0.. {
        let key = if number == 0 { stem.clone() } else { format!("{stem}{number}") };
        if !exists(connection, "SELECT 1 FROM projects WHERE key = ?", [&key])? {
            return Ok(key);
        }
    }
    Ok(stem)
}

/// A key that no other project has.
fn unused_key(connection: &Connection, key: String, project: Option<ProjectId>) -> Result<String> {
    let taken = "SELECT 1 FROM projects WHERE key = ? AND id <> ?";
    if exists(connection, taken, params![key, project.map_or(0, |id| id.0)])? {
        return Err(Error::AlreadyExists(format!("project key {key} is in use by another project")));
    }
    Ok(key)
}

/// Refuses to delete a workspace with things in it that somebody may still want.
fn must_be_empty(connection: &Connection, workspace: &Workspace) -> Result<()> {
    for (what, sql) in [
        ("projects", "SELECT COUNT(*) FROM projects WHERE workspace_id = ?"),
        ("models", "SELECT COUNT(*) FROM models WHERE workspace_id = ?"),
        (
            "tasks that have not ended",
            "SELECT COUNT(*) FROM commands JOIN tasks ON tasks.id = commands.task_id \
             WHERE workspace_id = ? AND tasks.ended_at IS NULL",
        ),
    ] {
        let count: i64 = connection.query_row(sql, [workspace.id.0], |row| row.get(0))?;
        if count > 0 {
            return Err(Error::Precondition(format!("workspace '{}' still holds {what}: {count}", workspace.name)));
        }
    }
    Ok(())
}

/// Forgets what the commands of a workspace were and printed. What stays is whose they were and how they ended.
fn forget_commands(connection: &Connection, id: WorkspaceId) -> Result<()> {
    let of_workspace = "task_id IN (SELECT task_id FROM commands WHERE workspace_id = ?)";
    connection.execute(&format!("DELETE FROM task_logs WHERE {of_workspace}"), [id.0])?;
    connection.execute(&format!("DELETE FROM task_contexts WHERE {of_workspace}"), [id.0])?;
    let sql = "UPDATE commands SET description = '', config = '{}', details = '{}' WHERE workspace_id = ?";
    connection.execute(sql, [id.0])?;
    Ok(())
}

impl Database {
    /// All workspaces, by id.
    pub async fn workspaces(&self) -> Result<Vec<Workspace>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached(&format!("{WORKSPACES} ORDER BY workspaces.id"))?;
                let found = statement.query_map([], workspace_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// One workspace.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<Workspace> {
        self.executor.read(move |connection| workspace_by_id(connection, id)).await
    }

    /// Makes a workspace, which its owner administrates.
    pub async fn create_workspace(
        &self,
        name: String,
        settings: WorkspaceChange,
        owner: UserId,
        now: Timestamp,
    ) -> Result<Workspace> {
        self.executor
            .write(move |connection| {
                let inserted: Option<i64> = connection
                    .query_row(
                        "INSERT INTO workspaces (name, archived, immutable, user_id, created_at) \
                         VALUES (?, FALSE, FALSE, ?, ?) ON CONFLICT (name) DO NOTHING RETURNING id",
                        params![name, owner.0, now.0],
                        |row| row.get(0),
                    )
                    .optional()?;
                match inserted {
                    Some(id) => {
                        let workspace = Some(WorkspaceId(id));
                        let holder = Holder::User(owner);
                        roles::give(connection, &HeldRole { role: roles::WORKSPACE_ADMIN, holder, workspace })?;
                        settings.set(connection, WorkspaceId(id))?;
                        workspace_by_id(connection, WorkspaceId(id))
                    }
                    None => Err(Error::AlreadyExists(format!("workspace '{name}' already exists"))),
                }
            })
            .await
    }

    /// Renames a workspace, changes its settings, archives it or takes it out of the archive.
    pub async fn change_workspace(&self, id: WorkspaceId, change: WorkspaceChange) -> Result<Workspace> {
        self.executor
            .write(move |connection| {
                let current = workspace_by_id(connection, id)?;
                must_be_mutable(current.immutable, "workspace", &current.name)?;
                if change.archived.is_none() {
                    must_not_be_archived(current.archived, "workspace", &current.name)?;
                }
                change.set(connection, id)?;
                let name = change.name.unwrap_or(current.name);
                let same_name = "SELECT 1 FROM workspaces WHERE name = ? AND id <> ?";
                if exists(connection, same_name, params![name, id.0])? {
                    return Err(Error::AlreadyExists(format!("workspace '{name}' already exists")));
                }
                connection.execute(
                    "UPDATE workspaces SET name = ?, archived = ? WHERE id = ?",
                    params![name, change.archived.unwrap_or(current.archived), id.0],
                )?;
                workspace_by_id(connection, id)
            })
            .await
    }

    /// Deletes a workspace that holds nothing any more, with its templates, its secrets and the commands that have ended in
    /// it.
    pub async fn delete_workspace(&self, id: WorkspaceId) -> Result<()> {
        self.executor
            .write(move |connection| {
                let current = workspace_by_id(connection, id)?;
                must_be_mutable(current.immutable, "workspace", &current.name)?;
                must_be_empty(connection, &current)?;
                forget_commands(connection, id)?;
                connection.execute("DELETE FROM templates WHERE workspace_id = ?", [id.0])?;
                connection.execute("DELETE FROM secrets WHERE scope = 'workspace' AND owner_id = ?", [id.0])?;
                roles::forget_workspace(connection, id)?;
                connection.execute("DELETE FROM workspaces WHERE id = ?", [id.0])?;
                Ok(())
            })
            .await
    }

    /// The projects of a workspace, by id.
    pub async fn projects(&self, workspace: WorkspaceId) -> Result<Vec<Project>> {
        self.executor
            .read(move |connection| {
                workspace_by_id(connection, workspace)?;
                let sql = format!("{PROJECTS} WHERE projects.workspace_id = ? ORDER BY projects.id");
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map([workspace.0], project_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// The experiments of projects with their states, by id.
    pub async fn experiments_of_projects(&self, projects: Vec<ProjectId>) -> Result<Vec<(ExperimentId, State)>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT id, state FROM experiments WHERE project_id = ? ORDER BY id";
                let mut statement = connection.prepare_cached(sql)?;
                let mut found = Vec::new();
                for project in projects {
                    let rows = statement
                        .query_map([project.0], |row| Ok((ExperimentId(row.get("id")?), word(row, "state")?)))?;
                    found.extend(rows.collect::<sql::Result<Vec<_>>>()?);
                }
                Ok(found)
            })
            .await
    }

    /// One project.
    pub async fn project(&self, id: ProjectId) -> Result<Project> {
        self.executor.read(move |connection| project_by_id(connection, id)).await
    }

    /// Makes a project.
    pub async fn create_project(
        &self,
        workspace: WorkspaceId,
        name: String,
        description: String,
        key: Option<String>,
        owner: UserId,
        now: Timestamp,
    ) -> Result<Project> {
        self.executor
            .write(move |connection| {
                let place = workspace_by_id(connection, workspace)?;
                must_be_mutable(place.immutable, "workspace", &place.name)?;
                must_not_be_archived(place.archived, "workspace", &place.name)?;
                let key = match key {
                    Some(key) => unused_key(connection, key, None)?,
                    None => free_key(connection, &name)?,
                };
                let inserted: Option<i64> = connection
                    .query_row(
                        "INSERT INTO projects (workspace_id, name, description, key, archived, immutable, user_id, \
                         created_at) VALUES (?, ?, ?, ?, FALSE, FALSE, ?, ?) \
                         ON CONFLICT (workspace_id, name) DO NOTHING RETURNING id",
                        params![workspace.0, name, description, key, owner.0, now.0],
                        |row| row.get(0),
                    )
                    .optional()?;
                match inserted {
                    Some(id) => project_by_id(connection, ProjectId(id)),
                    None => Err(Error::AlreadyExists(format!("project '{name}' already exists in this workspace"))),
                }
            })
            .await
    }

    /// Renames, describes, archives or takes out of the archive.
    pub async fn change_project(
        &self,
        id: ProjectId,
        name: Option<String>,
        description: Option<String>,
        key: Option<String>,
        archived: Option<bool>,
    ) -> Result<Project> {
        self.executor
            .write(move |connection| {
                let current = project_by_id(connection, id)?;
                must_be_mutable(current.immutable, "project", &current.name)?;
                let place = workspace_by_id(connection, current.workspace_id)?;
                must_not_be_archived(place.archived, "workspace", &place.name)?;
                if archived.is_none() {
                    must_not_be_archived(current.archived, "project", &current.name)?;
                }
                let name = name.unwrap_or(current.name);
                let same_name = "SELECT 1 FROM projects WHERE workspace_id = ? AND name = ? AND id <> ?";
                if exists(connection, same_name, params![current.workspace_id.0, name, id.0])? {
                    return Err(Error::AlreadyExists(format!("project '{name}' already exists in this workspace")));
                }
                let key = key.map(|key| unused_key(connection, key, Some(id))).transpose()?;
                connection.execute(
                    "UPDATE projects SET name = ?, description = ?, key = ?, archived = ? WHERE id = ?",
                    params![
                        name,
                        description.unwrap_or(current.description),
                        key.unwrap_or(current.key),
                        archived.unwrap_or(current.archived),
                        id.0
                    ],
                )?;
                project_by_id(connection, id)
            })
            .await
    }

    /// Deletes a project that holds no experiments.
    pub async fn delete_project(&self, id: ProjectId) -> Result<()> {
        self.executor
            .write(move |connection| {
                let current = project_by_id(connection, id)?;
                must_be_mutable(current.immutable, "project", &current.name)?;
                if current.num_experiments > 0 {
                    let count = current.num_experiments;
                    let what = format!("project '{}' still holds {count} experiments", current.name);
                    return Err(Error::Precondition(what));
                }
                connection.execute("DELETE FROM projects WHERE id = ?", [id.0])?;
                Ok(())
            })
            .await
    }
}
