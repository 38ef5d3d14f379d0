//! Files that were given up. What is to be deleted is noted together with the change that gives it up, so that neither a
//! crash nor a failing disk leaves files behind that nobody knows of.

use std::collections::BTreeMap;

use instep_api::checkpoints::Checkpoint;
use instep_api::identifiers::{ExperimentId, StorageId, TrialId, UserId};
use instep_api::states::CheckpointState;
use instep_api::wire::Long;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

use crate::Database;
use crate::checkpoints::{checkpoint_by_uuid, shrink};
use crate::error::Result;
use crate::models::must_not_be_registered;
use crate::rows::{json, optional_json, text_of};

/// Files of one checkpoint that are to be deleted.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Deletion {
    /// Identifies the note.
    pub id: i64,
    pub uuid: String,
    /// The configuration of where they are.
    pub storage: Value,
    /// Which of them, below the checkpoint's folder; `None` for all.
    pub paths: Option<Vec<String>>,
    /// The owner of the checkpoint's experiment; `None` if it was given up by a version that did not note it.
    pub owner: Option<UserId>,
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
        Some(text) => serde_json::from_str(&text).map_err(|error| crate::Error::Damaged(error.to_string()))?,
        None => of_experiment.clone(),
    };
    Ok(Some(config).filter(Value::is_object))
}

fn note(connection: &Connection, checkpoint: &Checkpoint, paths: Option<&[String]>) -> Result<()> {
    let Some(storage) = storage_of(connection, checkpoint)? else { return Ok(()) };
    let paths = paths.map(|paths| text_of(&paths)).transpose()?;
    connection
        .prepare_cached(
            "INSERT INTO file_deletions (checkpoint_uuid, storage, paths, user_id) \
             VALUES (?, ?, ?, (SELECT user_id FROM experiments WHERE id = ?))",
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
    let trials: Vec<i64> = statement.query_map([id.0], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for trial in trials {
        give_up_of_trial(connection, TrialId(trial))?;
    }
    Ok(())
}

/// The same for one trial; which they were.
pub(crate) fn give_up_of_trial(connection: &Connection, id: TrialId) -> Result<Vec<String>> {
    let sql = "SELECT uuid FROM checkpoints WHERE trial_id = ? AND state <> 'STATE_DELETED' ORDER BY uuid";
    let mut statement = connection.prepare_cached(sql)?;
    let uuids: Vec<String> = statement.query_map([id.0], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for uuid in &uuids {
        must_not_be_registered(connection, uuid)?;
        note(connection, &checkpoint_by_uuid(connection, uuid)?, None)?;
    }
    Ok(uuids)
}

impl Database {
    /// The configuration of where the files of a checkpoint are that a task reports, if there is one.
    pub async fn storage_of_report(&self, task: String, storage: Option<StorageId>) -> Result<Option<Value>> {
        self.engine
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
        self.engine
            .read(move |connection| {
                let checkpoint = checkpoint_by_uuid(connection, &uuid)?;
                let storage = storage_of(connection, &checkpoint)?;
                Ok((checkpoint, storage))
            })
            .await
    }

    /// Gives checkpoints up: all of these, or none if one cannot be. Those that are deleted already stay that way.
    pub async fn delete_checkpoints(&self, uuids: Vec<String>) -> Result<()> {
        self.engine
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
        self.engine
            .write(move |connection| {
                let checkpoint = checkpoint_by_uuid(connection, &uuid)?;
                shrink(connection, &uuid, &left)?;
                if paths.is_empty() { Ok(()) } else { note(connection, &checkpoint, Some(&paths)) }
            })
            .await
    }

    /// What is still to be deleted, the oldest first.
    pub async fn deletions(&self) -> Result<Vec<Deletion>> {
        self.engine
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM file_deletions ORDER BY id")?;
                let found = statement.query_map([], |row| {
                    Ok(Deletion {
                        id: row.get("id")?,
                        uuid: row.get("checkpoint_uuid")?,
                        storage: json(row, "storage")?,
                        paths: optional_json(row, "paths")?,
                        owner: row.get::<_, Option<i64>>("user_id")?.map(UserId),
                    })
                })?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }

    /// Notes that files are gone.
    pub async fn deletion_done(&self, id: i64) -> Result<()> {
        self.engine
            .write(move |connection| {
                connection.prepare_cached("DELETE FROM file_deletions WHERE id = ?")?.execute([id])?;
                Ok(())
            })
            .await
    }
}
