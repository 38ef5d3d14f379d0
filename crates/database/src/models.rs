//! The model registry: models, and the checkpoints that are their versions.

use instep_api::identifiers::{ModelId, ModelVersionId, UserId, WorkspaceId};
use instep_api::models::{Model, ModelRequest, ModelVersion, ModelVersionRequest};
use instep_api::states::CheckpointState;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::checkpoints::checkpoint_by_uuid;
use crate::error::{Error, Result};
use crate::rows::{column, json, text_of, time};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

const MODELS: &str = "SELECT models.*, users.username AS username, \
    (SELECT COUNT(*) FROM model_versions WHERE model_versions.model_id = models.id) AS version_count \
    FROM models JOIN users ON users.id = models.user_id";

const VERSIONS: &str = "SELECT model_versions.*, users.username AS username \
    FROM model_versions JOIN users ON users.id = model_versions.user_id";

/// The workspace of models that name none.
const DEFAULT_WORKSPACE: WorkspaceId = WorkspaceId(1);

fn model_of(row: &Row<'_>) -> sql::Result<Model> {
    Ok(Model {
        id: ModelId(column(row, "id")?),
        name: column(row, "name")?,
        description: column(row, "description")?,
        metadata: json(row, "metadata")?,
        labels: json(row, "labels")?,
        notes: column(row, "notes")?,
        archived: column(row, "archived")?,
        creation_time: time(row, "created_at")?,
        last_updated_time: time(row, "updated_at")?,
        num_versions: column(row, "version_count")?,
        username: column(row, "username")?,
        user_id: UserId(column(row, "user_id")?),
        workspace_id: WorkspaceId(column(row, "workspace_id")?),
    })
}

/// Finds a model by its name, or by its number: names are never numbers.
fn model_by(connection: &Connection, name_or_id: &str) -> Result<Model> {
    let column = if name_or_id.parse::<i64>().is_ok() { "models.id = CAST(? AS BIGINT)" } else { "models.name = ?" };
    connection
        .prepare_cached(&format!("{MODELS} WHERE {column}"))?
        .query_row([name_or_id], model_of)
        .optional()?
        .ok_or_else(|| Error::not_found("model", name_or_id))
}

/// The row of a version without its model and its checkpoint, which need queries of their own.
struct Found {
    id: ModelVersionId,
    version: i64,
    checkpoint: String,
    request: ModelVersionRequest,
    created: Timestamp,
    updated: Timestamp,
    user: (UserId, String),
}

fn found_of(row: &Row<'_>) -> sql::Result<Found> {
    Ok(Found {
        id: ModelVersionId(column(row, "id")?),
        version: column(row, "version")?,
        checkpoint: column(row, "checkpoint_uuid")?,
        request: ModelVersionRequest {
            checkpoint_uuid: None,
            name: Some(column(row, "name")?),
            comment: Some(column(row, "comment")?),
            notes: Some(column(row, "notes")?),
            metadata: Some(json(row, "metadata")?),
            labels: Some(json(row, "labels")?),
        },
        created: time(row, "created_at")?,
        updated: time(row, "updated_at")?,
        user: (UserId(column(row, "user_id")?), column(row, "username")?),
    })
}

fn completed(connection: &Connection, model: &Model, found: Found) -> Result<ModelVersion> {
    Ok(ModelVersion {
        id: found.id,
        model: model.clone(),
        checkpoint: checkpoint_by_uuid(connection, &found.checkpoint)?,
        version: found.version,
        name: found.request.name.unwrap_or_default(),
        comment: found.request.comment.unwrap_or_default(),
        notes: found.request.notes.unwrap_or_default(),
        metadata: found.request.metadata.unwrap_or_default(),
        labels: found.request.labels.unwrap_or_default(),
        creation_time: found.created,
        last_updated_time: found.updated,
        username: found.user.1,
        user_id: found.user.0,
    })
}

fn version_of(connection: &Connection, model: &Model, version: i64) -> Result<ModelVersion> {
    let found = connection
        .prepare_cached(&format!("{VERSIONS} WHERE model_id = ? AND version = ?"))?
        .query_row([model.id.0, version], found_of)
        .optional()?
        .ok_or_else(|| Error::not_found("model version", format!("{}/{version}", model.name)))?;
    completed(connection, model, found)
}

/// The workspace that a request names, by name or number, if it names one.
fn workspace_of(connection: &Connection, request: &ModelRequest) -> Result<Option<WorkspaceId>> {
    let (sql, named) = match (&request.workspace_name, request.workspace_id) {
        (Some(name), _) => ("SELECT id FROM workspaces WHERE name = ?", name.clone()),
        (None, Some(id)) => ("SELECT id FROM workspaces WHERE id = CAST(? AS BIGINT)", id.to_string()),
        (None, None) => return Ok(None),
    };
    let found: Option<i64> = connection.prepare_cached(sql)?.query_row([&named], |row| row.get(0)).optional()?;
    found.map(|id| Some(WorkspaceId(id))).ok_or_else(|| Error::not_found("workspace", named))
}

fn taken(name: &str) -> Error {
    Error::AlreadyExists(format!("model '{name}' already exists"))
}

/// Changes a model that must not be in the archive, and notes when.
fn touch(connection: &Connection, model: &Model, now: Timestamp) -> Result<()> {
    if model.archived {
        return Err(Error::Precondition(format!("model '{}' is archived and cannot be changed", model.name)));
    }
    connection.execute("UPDATE models SET updated_at = ? WHERE id = ?", [now.0, model.id.0])?;
    Ok(())
}

/// Fails if a checkpoint is a version of a model: such files must stay.
pub(crate) fn must_not_be_registered(connection: &Connection, uuid: &str) -> Result<()> {
    let sql = "SELECT models.name, version FROM model_versions JOIN models ON models.id = model_id \
               WHERE checkpoint_uuid = ? ORDER BY model_versions.id LIMIT 1";
    let found: Option<(String, i64)> =
        connection.prepare_cached(sql)?.query_row([uuid], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    match found {
        None => Ok(()),
        Some((model, version)) => Err(Error::Registered { uuid: uuid.to_owned(), model, version }),
    }
}

impl Database {
    /// All models, by number.
    pub async fn models(&self) -> Result<Vec<Model>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached(&format!("{MODELS} ORDER BY models.id"))?;
                let found = statement.query_map([], model_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// One model, by name or number.
    pub async fn model(&self, name_or_id: String) -> Result<Model> {
        self.executor.read(move |connection| model_by(connection, &name_or_id)).await
    }

    /// Makes a model.
    pub async fn create_model(&self, new: ModelRequest, owner: UserId, now: Timestamp) -> Result<Model> {
        self.executor
            .write(move |connection| {
                let workspace = workspace_of(connection, &new)?.unwrap_or(DEFAULT_WORKSPACE);
                let name = new.name.unwrap_or_default();
                let inserted = connection.execute(
                    "INSERT INTO models (name, description, metadata, labels, notes, archived, user_id, workspace_id, \
                     versions_made, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, FALSE, ?6, ?7, 0, ?8, ?8) \
                     ON CONFLICT (name) DO NOTHING",
                    params![
                        name,
                        new.description.unwrap_or_default(),
                        text_of(&new.metadata.unwrap_or_default())?,
                        text_of(&new.labels.unwrap_or_default())?,
                        new.notes.unwrap_or_default(),
                        owner.0,
                        workspace.0,
                        now.0
                    ],
                )?;
                if inserted == 0 { Err(taken(&name)) } else { model_by(connection, &name) }
            })
            .await
    }

    /// Changes a model; what is not given stays.
    pub async fn change_model(&self, name_or_id: String, change: ModelRequest, now: Timestamp) -> Result<Model> {
        self.executor
            .write(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                touch(connection, &model, now)?;
                let workspace = workspace_of(connection, &change)?.unwrap_or(model.workspace_id);
                let name = change.name.unwrap_or(model.name);
                let other: bool = connection.query_row(
                    "SELECT EXISTS (SELECT 1 FROM models WHERE name = ? AND id <> ?)",
                    params![name, model.id.0],
                    |row| row.get(0),
                )?;
                if other {
                    return Err(taken(&name));
                }
                connection.execute(
                    "UPDATE models SET name = ?, description = ?, metadata = ?, labels = ?, notes = ?, \
                     workspace_id = ? WHERE id = ?",
                    params![
                        name,
                        change.description.unwrap_or(model.description),
                        text_of(&change.metadata.unwrap_or(model.metadata))?,
                        text_of(&change.labels.unwrap_or(model.labels))?,
                        change.notes.unwrap_or(model.notes),
                        workspace.0,
                        model.id.0
                    ],
                )?;
                model_by(connection, &name)
            })
            .await
    }

    /// Puts a model into the archive, or takes it out.
    pub async fn archive_model(&self, name_or_id: String, archived: bool, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                connection.execute(
                    "UPDATE models SET archived = ?, updated_at = ? WHERE id = ?",
                    params![archived, now.0, model.id.0],
                )?;
                Ok(())
            })
            .await
    }

    /// Forgets a model and its versions. The checkpoints stay.
    pub async fn delete_model(&self, name_or_id: String) -> Result<()> {
        self.executor
            .write(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                connection.execute("DELETE FROM model_versions WHERE model_id = ?", [model.id.0])?;
                connection.execute("DELETE FROM models WHERE id = ?", [model.id.0])?;
                Ok(())
            })
            .await
    }

    /// A model and its versions, by number.
    pub async fn model_versions(&self, name_or_id: String) -> Result<(Model, Vec<ModelVersion>)> {
        self.executor
            .read(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                let sql = format!("{VERSIONS} WHERE model_id = ? ORDER BY version");
                let mut statement = connection.prepare_cached(&sql)?;
                let found: Vec<Found> = statement.query_map([model.id.0], found_of)?.collect::<sql::Result<_>>()?;
                let versions = found.into_iter().map(|found| completed(connection, &model, found));
                let versions = versions.collect::<Result<_>>()?;
                Ok((model, versions))
            })
            .await
    }

    /// One version of a model.
    pub async fn model_version(&self, name_or_id: String, version: i64) -> Result<ModelVersion> {
        self.executor.read(move |connection| version_of(connection, &model_by(connection, &name_or_id)?, version)).await
    }

    /// Makes a complete checkpoint the next version of a model.
    pub async fn register_version(
        &self,
        name_or_id: String,
        new: ModelVersionRequest,
        owner: UserId,
        now: Timestamp,
    ) -> Result<ModelVersion> {
        self.executor
            .write(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                let uuid = new.checkpoint_uuid.unwrap_or_default();
                let checkpoint = checkpoint_by_uuid(connection, &uuid)?;
                if checkpoint.state != CheckpointState::Completed {
                    let state = checkpoint.state.as_str();
                    return Err(Error::Precondition(format!("checkpoint '{uuid}' is in {state}, not complete")));
                }
                touch(connection, &model, now)?;
                let version: i64 = connection.query_row(
                    "UPDATE models SET versions_made = versions_made + 1 WHERE id = ? RETURNING versions_made",
                    [model.id.0],
                    |row| row.get(0),
                )?;
                connection.execute(
                    "INSERT INTO model_versions (model_id, version, checkpoint_uuid, name, comment, notes, metadata, \
                     labels, user_id, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)",
                    params![
                        model.id.0,
                        version,
                        uuid,
                        new.name.unwrap_or_default(),
                        new.comment.unwrap_or_default(),
                        new.notes.unwrap_or_default(),
                        text_of(&new.metadata.unwrap_or_default())?,
                        text_of(&new.labels.unwrap_or_default())?,
                        owner.0,
                        now.0
                    ],
                )?;
                version_of(connection, &model_by(connection, &model.name)?, version)
            })
            .await
    }

    /// Changes what is written on a version; what is not given stays.
    pub async fn change_version(
        &self,
        name_or_id: String,
        version: i64,
        change: ModelVersionRequest,
        now: Timestamp,
    ) -> Result<ModelVersion> {
        self.executor
            .write(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                let current = version_of(connection, &model, version)?;
                touch(connection, &model, now)?;
                connection.execute(
                    "UPDATE model_versions SET name = ?, comment = ?, notes = ?, metadata = ?, labels = ?, \
                     updated_at = ? WHERE id = ?",
                    params![
                        change.name.unwrap_or(current.name),
                        change.comment.unwrap_or(current.comment),
                        change.notes.unwrap_or(current.notes),
                        text_of(&change.metadata.unwrap_or(current.metadata))?,
                        text_of(&change.labels.unwrap_or(current.labels))?,
                        now.0,
                        current.id.0
                    ],
                )?;
                version_of(connection, &model, version)
            })
            .await
    }

    /// Takes a version out of the registry. Its checkpoint stays.
    pub async fn delete_version(&self, name_or_id: String, version: i64, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let model = model_by(connection, &name_or_id)?;
                let current = version_of(connection, &model, version)?;
                touch(connection, &model, now)?;
                connection.execute("DELETE FROM model_versions WHERE id = ?", [current.id.0])?;
                Ok(())
            })
            .await
    }
}
