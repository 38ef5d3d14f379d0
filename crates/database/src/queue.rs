//! What people ask and say about tasks and jobs: their attempts to run, their place in the queue, what they keep.

use std::collections::HashMap;

use instep_api::experiments::Experiment;
use instep_api::identifiers::ExperimentId;
use instep_api::jobs::{Task, TaskAllocation};
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::experiments::experiment_by_id;
use crate::rows::{optional_json, optional_time, text_of, time};
use crate::sql::{self, OptionalExtension, Row, params};

impl Database {
    /// Lays values over sections of an experiment's configuration: name of the section, key, value.
    pub async fn change_config(
        &self,
        id: ExperimentId,
        changes: Vec<(&'static str, &'static str, Value)>,
        now: Timestamp,
    ) -> Result<Experiment> {
        self.executor
            .write(move |connection| {
                let mut config = experiment_by_id(connection, id, now)?.config.into_value();
                for (section, key, value) in changes {
                    if !config[section].is_object() {
                        config[section] = Value::Object(serde_json::Map::new());
                    }
                    if (section, key) == ("resources", "resource_pool")
                        && let Some(pool) = value.as_str()
                    {
                        let sql = "UPDATE experiments SET resource_pool = ? WHERE id = ?";
                        connection.execute(sql, params![pool, id.0])?;
                    }
                    config[section][key] = value;
                }
                let sql = "UPDATE experiments SET config = ? WHERE id = ?";
                connection.execute(sql, params![text_of(&config)?, id.0])?;
                experiment_by_id(connection, id, now)
            })
            .await
    }

    /// Gives an experiment another configuration, which names the pool.
    pub async fn replace_config(
        &self,
        id: ExperimentId,
        config: Value,
        pool: String,
        now: Timestamp,
    ) -> Result<Experiment> {
        self.executor
            .write(move |connection| {
                let sql = "UPDATE experiments SET config = ?, resource_pool = ? WHERE id = ?";
                connection.execute(sql, params![text_of(&config)?, pool, id.0])?;
                experiment_by_id(connection, id, now)
            })
            .await
    }

    /// A task with its attempts to run, the newest first.
    pub async fn task(&self, id: String) -> Result<Task> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM tasks WHERE id = ?")?;
                let found = statement.query_row([&id], |row| {
                    Ok(Task {
                        task_id: row.get("id")?,
                        task_type: row.get("kind")?,
                        start_time: time(row, "started_at")?,
                        end_time: optional_time(row, "ended_at")?,
                        allocations: Vec::new(),
                        task_state: None,
                        parent_id: None,
                        forked_from: None,
                        no_pause: None,
                        config: None,
                    })
                });
                let mut task = found.optional()?.ok_or_else(|| Error::not_found("task", &id))?;
                let sql = "SELECT * FROM allocations WHERE task_id = ? ORDER BY run DESC";
                let mut statement = connection.prepare_cached(sql)?;
                let allocations = statement.query_map([&id], allocation)?;
                task.allocations = allocations.collect::<sql::Result<_>>()?;
                Ok(task)
            })
            .await
    }

    /// Gives jobs their places among those of the same priority.
    pub async fn set_job_positions(&self, positions: Vec<(String, i64)>) -> Result<()> {
        self.executor
            .write(move |connection| {
                for (job, position) in &positions {
                    connection.execute(
                        "INSERT INTO job_positions (job_id, position) VALUES (?1, ?2) \
                         ON CONFLICT (job_id) DO UPDATE SET position = excluded.position",
                        params![job, *position as f64],
                    )?;
                }
                Ok(())
            })
            .await
    }

    /// The places that people gave to jobs.
    pub async fn job_positions(&self) -> Result<HashMap<String, i64>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT job_id, position FROM job_positions")?;
                let found = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, f64>(1)? as i64)))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }
}

fn allocation(row: &Row<'_>) -> sql::Result<TaskAllocation> {
    let moment = |name: &str| optional_time(row, name).map(|time| time.map(|time| time.to_string()));
    let ended = optional_time(row, "ended_at")?.is_some();
    // How it ended, as the policy writes it down; only what ended by itself has a code.
    let exit: Option<Value> = optional_json(row, "exit")?;
    Ok(TaskAllocation {
        task_id: row.get("task_id")?,
        allocation_id: row.get("id")?,
        state: row.get("state")?,
        is_ready: row.get("ready")?,
        start_time: moment("started_at")?,
        end_time: moment("ended_at")?,
        slots: row.get("slots")?,
        exit_reason: if ended { Some(row.get("reason")?) } else { None },
        status_code: exit.and_then(|exit| exit.get("code")?.as_i64()),
    })
}
