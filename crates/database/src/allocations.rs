//! Allocations: attempts to run tasks on slots.

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::states::AllocationState;
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, json, optional_json, optional_time, text_of, time, word};
use crate::sql::{self, Connection, OptionalExtension, Row, params};
use crate::usage;

/// One attempt to run a task, from the moment it waits for slots.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct AllocationRow {
    /// `<task>.<run>`.
    pub id: String,
    pub task_id: String,
    /// The trial of the task, if it is one's.
    pub trial: Option<TrialId>,
    /// The experiment of that.
    pub experiment: Option<ExperimentId>,
    /// Which attempt; counts from 1.
    pub run: i64,
    /// What it is doing.
    pub state: AllocationState,
    /// Whether all of it runs and has met.
    pub ready: bool,
    pub pool: String,
    pub slots: i64,
    /// What each agent runs of it.
    pub shares: Value,
    /// Its ports, by name.
    pub ports: Value,
    /// What it was told.
    pub signals: Value,
    /// How it ended, if it has.
    pub exit: Option<Value>,
    /// Why it is in this state, for people.
    pub reason: String,
    /// Since when it waits, or waited.
    pub queued_at: Timestamp,
    /// When it got its slots.
    pub started_at: Option<Timestamp>,
    /// When nothing of it ran any more.
    pub ended_at: Option<Timestamp>,
}

pub(crate) fn allocation_of(row: &Row<'_>) -> sql::Result<AllocationRow> {
    Ok(AllocationRow {
        id: column(row, "id")?,
        task_id: column(row, "task_id")?,
        trial: column::<Option<i64>>(row, "trial_id")?.map(TrialId),
        experiment: column::<Option<i64>>(row, "experiment_id")?.map(ExperimentId),
        run: column(row, "run")?,
        state: word(row, "state")?,
        ready: column(row, "ready")?,
        pool: column(row, "pool")?,
        slots: column(row, "slots")?,
        shares: json(row, "shares")?,
        ports: json(row, "ports")?,
        signals: json(row, "signals")?,
        exit: optional_json(row, "exit")?,
        reason: column(row, "reason")?,
        queued_at: time(row, "queued_at")?,
        started_at: optional_time(row, "started_at")?,
        ended_at: optional_time(row, "ended_at")?,
    })
}

/// Stores an allocation as it is now, and what it has used. With its end its tokens end.
pub(crate) fn put(connection: &Connection, row: &AllocationRow) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO allocations (id, task_id, trial_id, experiment_id, run, state, ready, pool, slots, shares, \
             ports, signals, exit, reason, queued_at, started_at, ended_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (id) DO UPDATE SET state = excluded.state, ready = excluded.ready, pool = excluded.pool, \
             slots = excluded.slots, shares = excluded.shares, ports = excluded.ports, signals = excluded.signals, \
             exit = excluded.exit, reason = excluded.reason, queued_at = excluded.queued_at, \
             started_at = excluded.started_at, ended_at = excluded.ended_at",
        )?
        .execute(params![
            row.id,
            row.task_id,
            row.trial.map(|id| id.0),
            row.experiment.map(|id| id.0),
            row.run,
            row.state.as_str(),
            row.ready,
            row.pool,
            row.slots,
            text_of(&row.shares)?,
            text_of(&row.ports)?,
            text_of(&row.signals)?,
            row.exit.as_ref().map(text_of).transpose()?,
            row.reason,
            row.queued_at.0,
            row.started_at.map(|time| time.0),
            row.ended_at.map(|time| time.0)
        ])?;
    if row.started_at.is_some() {
        usage::note(connection, &row.id)?;
    }
    if row.ended_at.is_some() {
        connection.prepare_cached("DELETE FROM sessions WHERE allocation_id = ?")?.execute([&row.id])?;
    }
    Ok(())
}

impl Database {
    /// Allocations that have not ended, the oldest first.
    pub async fn open_allocations(&self) -> Result<Vec<AllocationRow>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT * FROM allocations WHERE ended_at IS NULL ORDER BY queued_at, id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], allocation_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// One allocation.
    pub async fn allocation(&self, id: String) -> Result<AllocationRow> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT * FROM allocations WHERE id = ?")?;
                let found = statement.query_row([&id], allocation_of).optional()?;
                found.ok_or_else(|| Error::not_found("allocation", id))
            })
            .await
    }

    /// All allocations of a task, the newest first.
    pub async fn task_allocations(&self, task: String) -> Result<Vec<AllocationRow>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT * FROM allocations WHERE task_id = ? ORDER BY run DESC";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([&task], allocation_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// All allocations of a trial that had slots, the first one first.
    pub async fn trial_allocations(&self, trial: TrialId) -> Result<Vec<AllocationRow>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT * FROM allocations WHERE trial_id = ? AND started_at IS NOT NULL ORDER BY started_at";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([trial.0], allocation_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// The machines on which tasks are not tried again: (task, agent).
    pub async fn excluded_agents(&self) -> Result<Vec<(String, String)>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT task_id, agent FROM excluded_agents \
                           JOIN tasks ON tasks.id = task_id WHERE tasks.ended_at IS NULL";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }
}
