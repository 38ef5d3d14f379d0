//! Files that were given up. What is to be deleted is noted together with the change that gives it up, so that neither a
//! crash nor a failing disk leaves files behind that nobody knows of.

use std::collections::BTreeMap;

use instep_api::checkpoints::Checkpoint;
use instep_api::identifiers::{ExperimentId, StorageId, TrialId, UserId};
use instep_api::states::CheckpointState;
use instep_api::wire::Long;
use serde_json::Value;

use crate::Database;
use crate::checkpoints::{checkpoint_by_uuid, shrink};
use crate::error::{Error, Result};
use crate::models::must_not_be_registered;
use crate::rows::{json, optional_json, text_of};
use crate::sql::{self, Connection, OptionalExtension, params};

/// Files of one checkpoint that are to be deleted, or those that an experiment wrote for TensorBoard: then the UUID is the
/// experiment's number.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Deletion {
    /// Identifies the note.
    pub id: i64,
    pub uuid: String,
    /// The folder of the storage that it lies in; `None` for the storage's own.
    pub folder: Option<String>,
    /// The configuration of where they are.
    pub storage: Value,
    /// Which of them, below the checkpoint's folder; `None` for all.
    pub paths: Option<Vec<String>>,
    /// The owner of the checkpoint's experiment; `None` if it was given up by a version that did not note it.
    pub owner: Option<UserId>,
    /// The experiment, which may be gone; `None` if it was given up by a version that did not note it.
    pub experiment: Option<ExperimentId>,
}

/// The configuration of where a checkpoint's files are: that of its run, else that of its experiment.
fn storage_of(connection: &Connection, checkpoint: &Checkpoint) -> Result<Option<Value>> {
    find_storage(connection, checkpoint.storage_id, &checkpoint.training.experiment_config["checkpoint_storage"])
}

fn find_storage(connection: &Connection, of_run: Option<StorageId>, of_experiment: &Value) -> Result<Option<Value>> {
    let mut found: Option<String> = None;
    if let Some(id) = of_run {
        let mut statement = connection.prepare_cached("SELECT config FROM storages WHERE id = ?")?;
        found = statement.query_row([id.0], |row| row.get(0)).optional()?;
    }
    let config = match found {
        Some(text) => serde_json::from_str(&text).map_err(|error| Error::Damaged(error.to_string()))?,
        None => of_experiment.clone(),
    };
    Ok(Some(config).filter(Value::is_object))
}

fn note(connection: &Connection, checkpoint: &Checkpoint, paths: Option<&[String]>) -> Result<()> {
    let Some(storage) = storage_of(connection, checkpoint)? else { return Ok(()) };
    let paths = paths.map(|paths| text_of(&paths)).transpose()?;
    connection
        .prepare_cached(
            "INSERT INTO file_deletions (checkpoint_uuid, storage, paths, user_id, experiment_id) \
             VALUES (?1, ?2, ?3, (SELECT user_id FROM experiments WHERE id = ?4), ?4)",
        )?
        .execute(params![
            checkpoint.uuid,
            text_of(&storage)?,
            paths,
            checkpoint.training.experiment_id.map(|id| id.0)
        ])?;
    Ok(())
}

/// Notes the files of all checkpoints of an experiment as to be deleted.
pub(crate) fn give_up_all(connection: &Connection, id: ExperimentId) -> Result<()> {
    let mut statement = connection.prepare_cached("SELECT id FROM trials WHERE experiment_id = ? ORDER BY id")?;
    let trials: Vec<i64> = statement.query_map([id.0], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for trial in trials {
        give_up_of_trial(connection, TrialId(trial))?;
    }
    Ok(())
}

/// The same for one trial; which they were.
pub(crate) fn give_up_of_trial(connection: &Connection, id: TrialId) -> Result<Vec<String>> {
    let sql = "SELECT uuid FROM checkpoints WHERE trial_id = ? AND state <> 'STATE_DELETED' ORDER BY uuid";
    let mut statement = connection.prepare_cached(sql)?;
    let uuids: Vec<String> = statement.query_map([id.0], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for uuid in &uuids {
        must_not_be_registered(connection, uuid)?;
        note(connection, &checkpoint_by_uuid(connection, uuid)?, None)?;
    }
    Ok(uuids)
}

/// Notes what an experiment wrote for TensorBoard as to be deleted. It lies where Determined's client puts it.
pub(crate) fn give_up_tensorboard(connection: &Connection, id: ExperimentId, cluster: &str) -> Result<()> {
    let sql = "SELECT config, user_id FROM experiments WHERE id = ?";
    let row = connection
        .prepare_cached(sql)?
        .query_row([id.0], |row| Ok((json::<Value>(row, "config")?, row.get::<_, i64>("user_id")?)));
    let (mut config, owner) = row.optional()?.ok_or_else(|| Error::not_found("experiment", id))?;
    let storage = config["checkpoint_storage"].take();
    if storage.is_object() {
        let sql = "INSERT INTO file_deletions (checkpoint_uuid, folder, storage, user_id, experiment_id) \
                   VALUES (?, ?, ?, ?, ?)";
        let folder = format!("{cluster}/tensorboard/experiment");
        connection.execute(sql, params![id.to_string(), folder, text_of(&storage)?, owner, id.0])?;
    }
    Ok(())
}

impl Database {
    /// Gives up what an experiment wrote for TensorBoard.
    pub async fn delete_tensorboard_files(&self, id: ExperimentId) -> Result<()> {
        let cluster = self.cluster_id().to_owned();
        self.executor.write(move |connection| give_up_tensorboard(connection, id, &cluster)).await
    }

    /// The configuration of where the files of a checkpoint are that a task reports, if there is one.
    pub async fn storage_of_report(&self, task: String, storage: Option<StorageId>) -> Result<Option<Value>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT experiments.config FROM tasks JOIN trials ON trials.id = tasks.trial_id \
                           JOIN experiments ON experiments.id = trials.experiment_id WHERE tasks.id = ?";
                let config = connection.prepare_cached(sql)?.query_row([task], |row| json::<Value>(row, "config"));
                let config = config.optional()?.unwrap_or_default();
                find_storage(connection, storage, &config["checkpoint_storage"])
            })
            .await
    }

    /// A checkpoint, and the configuration of where its files are, if there is one.
    pub async fn checkpoint_storage(&self, uuid: String) -> Result<(Checkpoint, Option<Value>)> {
        self.executor
            .read(move |connection| {
                let checkpoint = checkpoint_by_uuid(connection, &uuid)?;
                let storage = storage_of(connection, &checkpoint)?;
                Ok((checkpoint, storage))
            })
            .await
    }

    /// Gives checkpoints up: all of these, or none if one cannot be. Those that are deleted already stay that way.
    pub async fn delete_checkpoints(&self, uuids: Vec<String>) -> Result<()> {
        self.executor
            .write(move |connection| {
                for uuid in &uuids {
                    let checkpoint = checkpoint_by_uuid(connection, uuid)?;
                    if checkpoint.state != CheckpointState::Deleted {
                        shrink(connection, uuid, &BTreeMap::new())?;
                        note(connection, &checkpoint, None)?;
                    }
                }
                Ok(())
            })
            .await
    }

    /// Gives some files of a checkpoint up; `left` are the others.
    pub async fn delete_checkpoint_files(
        &self,
        uuid: String,
        left: BTreeMap<String, Long>,
        paths: Vec<String>,
    ) -> Result<()> {
        self.executor
            .write(move |connection| {
                let checkpoint = checkpoint_by_uuid(connection, &uuid)?;
                shrink(connection, &uuid, &left)?;
                // Without paths too: to have looked at the files is a collection, as it is with Determined.
                note(connection, &checkpoint, Some(&paths))
            })
            .await
    }

    /// What is still to be deleted, the oldest first.
    pub async fn deletions(&self) -> Result<Vec<Deletion>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM file_deletions ORDER BY id")?;
                let found = statement.query_map([], |row| {
                    Ok(Deletion {
                        id: row.get("id")?,
                        uuid: row.get("checkpoint_uuid")?,
                        folder: row.get("folder")?,
                        storage: json(row, "storage")?,
                        paths: optional_json(row, "paths")?,
                        owner: row.get::<_, Option<i64>>("user_id")?.map(UserId),
                        experiment: row.get::<_, Option<i64>>("experiment_id")?.map(ExperimentId),
                    })
                })?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Notes that files are gone.
    pub async fn deletion_done(&self, id: i64) -> Result<()> {
        self.executor
            .write(move |connection| {
                connection.prepare_cached("DELETE FROM file_deletions WHERE id = ?")?.execute([id])?;
                Ok(())
            })
            .await
    }
}
