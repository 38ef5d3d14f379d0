//! For how long logs are kept after their task has ended.

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::error::{Error, Result};
use crate::experiments::experiment_by_id;
use crate::rows::{optional_json, text_of};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

const DAY: i64 = 24 * 3600 * 1_000_000;
/// Lines that are deleted at a time, so that nobody who writes waits for long.
const LINES_AT_ONCE: i64 = 20_000;

/// What decides about a task's logs.
struct Kept {
    task: String,
    ended_at: Option<i64>,
    /// Days, -1 for ever; `None` if only the master says.
    days: Option<i64>,
}

/// A trial's own number of days comes before its experiment's.
const KEPT: &str = "SELECT tasks.id, COALESCE(tasks.ended_at, trials.ended_at), trials.log_retention_days, \
    experiments.config FROM tasks LEFT JOIN trials ON trials.id = tasks.trial_id \
    LEFT JOIN experiments ON experiments.id = trials.experiment_id";

fn kept_of(row: &Row<'_>) -> sql::Result<Kept> {
    let own: Option<i64> = row.get(2)?;
    let config: Option<Value> = optional_json(row, "config")?;
    let said = config.and_then(|config| config["retention_policy"]["log_retention_days"].as_i64());
    Ok(Kept { task: row.get(0)?, ended_at: row.get(1)?, days: own.or(said) })
}

/// How many days are left, of how many and since when; `None` for ever.
fn days_left(kept: &Kept, by_default: Option<i64>, now: Timestamp) -> Option<i64> {
    let days = kept.days.or(by_default).filter(|days| *days >= 0)?;
    let gone = kept.ended_at.map_or(0, |ended| (now.0 - ended).max(0) / DAY);
    Some(days - gone)
}

fn set_days(connection: &Connection, sql: &str, days: i64, id: i64) -> Result<usize> {
    Ok(connection.prepare_cached(sql)?.execute(params![days, id])?)
}

impl Database {
    /// Says for how many days a trial's logs are kept, -1 for ever.
    pub async fn retain_trial_logs(&self, id: TrialId, days: i64) -> Result<()> {
        self.executor
            .write(move |connection| {
                let sql = "UPDATE trials SET log_retention_days = ? WHERE id = ?";
                let changed = set_days(connection, sql, days, id.0)?;
                if changed == 0 { Err(Error::not_found("trial", id)) } else { Ok(()) }
            })
            .await
    }

    /// The same for all trials of an experiment, also those that it has yet to make.
    pub async fn retain_experiment_logs(&self, id: ExperimentId, days: i64, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let mut config = experiment_by_id(connection, id, now)?.config.into_value();
                config["retention_policy"]["log_retention_days"] = days.into();
                let sql = "UPDATE experiments SET config = ? WHERE id = ?";
                connection.execute(sql, params![text_of(&config)?, id.0])?;
                set_days(connection, "UPDATE trials SET log_retention_days = ? WHERE experiment_id = ?", days, id.0)?;
                Ok(())
            })
            .await
    }

    /// For how many more days a trial's logs are kept; `None` for ever.
    pub async fn log_days_left(&self, id: TrialId, by_default: Option<i64>, now: Timestamp) -> Result<Option<i64>> {
        self.executor
            .read(move |connection| {
                let sql = format!("{KEPT} WHERE trials.id = ? ORDER BY tasks.started_at DESC LIMIT 1");
                let kept = connection.prepare_cached(&sql)?.query_row([id.0], kept_of).optional()?;
                let kept = kept.ok_or_else(|| Error::not_found("trial", id))?;
                Ok(days_left(&kept, by_default, now).map(|days| days.max(0)))
            })
            .await
    }

    /// Deletes the logs whose time is over; how many lines they had.
    pub async fn clean_logs(&self, by_default: Option<i64>, now: Timestamp) -> Result<i64> {
        let over: Vec<String> = self
            .executor
            .read(move |connection| {
                let sql = format!("{KEPT} WHERE COALESCE(tasks.ended_at, trials.ended_at) IS NOT NULL");
                let mut statement = connection.prepare_cached(&sql)?;
                let kept = statement.query_map([], kept_of)?.collect::<sql::Result<Vec<Kept>>>()?;
                let is_over = |kept: &Kept| days_left(kept, by_default, now).is_some_and(|days| days <= 0);
                Ok(kept.into_iter().filter(is_over).map(|kept| kept.task).collect())
            })
            .await?;
        let mut removed = 0;
        for task in over {
            loop {
                let task = task.clone();
                let count = self
                    .executor
                    .write(move |connection| {
                        let sql = "DELETE FROM task_logs WHERE id IN \
                                   (SELECT id FROM task_logs WHERE task_id = ? LIMIT ?)";
                        Ok(connection.prepare_cached(sql)?.execute(params![task, LINES_AT_ONCE])? as i64)
                    })
                    .await?;
                removed += count;
                if count < LINES_AT_ONCE {
                    break;
                }
            }
        }
        Ok(removed)
    }
}
