//! Lines of output, kept in the order in which they arrived.

use std::sync::Arc;

use instep_api::identifiers::TrialId;
use instep_api::logs::{LogFields, LogFilter, LogLine};
use instep_api::pages::Order;
use instep_api::states::LogLevel;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::{Error, Result};
use crate::rows::{column, time, word};
use crate::sql::{self, Connection, FromSql, OptionalExtension, Row, Value as SqlValue, params, params_from_iter};

/// Lines that one look at the database brings at most, so that memory stays bounded however long a log is.
const LINES_PER_READ: usize = 2000;

/// Which lines to read next.
pub struct LogQuery {
    /// Whose lines: one task, or all that a trial has had.
    pub tasks: Vec<String>,
    /// Which of them.
    pub filter: LogFilter,
    /// Forwards from here, or backwards from here if the order is descending; `None` from the first, or the last.
    pub from: Option<i64>,
    /// In the order of arrival, or the opposite.
    pub order: Order,
    /// Lines to give at most.
    pub limit: usize,
}

fn line_of(row: &Row<'_>) -> sql::Result<LogLine> {
    let bytes: Vec<u8> = column(row, "line")?;
    Ok(LogLine {
        id: column(row, "id")?,
        task_id: column(row, "task_id")?,
        allocation_id: column(row, "allocation_id")?,
        agent_id: column(row, "agent_id")?,
        container_id: column(row, "container_id")?,
        rank_id: column(row, "rank_id")?,
        timestamp: time(row, "logged_at")?,
        level: word::<LogLevel>(row, "level")?,
        source: column(row, "source")?,
        stdtype: column(row, "stdtype")?,
        log: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

fn conditions(query: &LogQuery) -> (String, Vec<SqlValue>) {
    let mut clauses = vec![of_tasks(&query.tasks)];
    let mut values: Vec<SqlValue> = query.tasks.iter().cloned().map(SqlValue::from).collect();
    let filter = &query.filter;
    let texts = |wanted: &[String]| wanted.iter().map(|text| SqlValue::from(text.clone())).collect::<Vec<_>>();
    let levels = filter.levels.iter().map(|level| SqlValue::from(level.as_str().to_owned())).collect();
    for (name, wanted) in [
        ("agent_id", texts(&filter.agent_ids)),
        ("allocation_id", texts(&filter.allocation_ids)),
        ("container_id", texts(&filter.container_ids)),
        ("source", texts(&filter.sources)),
        ("stdtype", texts(&filter.stdtypes)),
        ("level", levels),
        // -1 stands for lines without a rank, as nobody has a negative one.
        ("COALESCE(rank_id, -1)", filter.rank_ids.iter().map(|rank| SqlValue::from(*rank)).collect()),
    ] {
        if !wanted.is_empty() {
            clauses.push(format!("{name} IN ({})", vec!["?"; wanted.len()].join(", ")));
            values.extend(wanted);
        }
    }
    let backwards = query.order == Order::Descending;
    for (clause, bound) in [
        ("logged_at < ?", filter.before.map(|time| time.0)),
        ("logged_at > ?", filter.after.map(|time| time.0)),
        (if backwards { "id < ?" } else { "id > ?" }, query.from),
    ] {
        if let Some(bound) = bound {
            clauses.push(clause.to_owned());
            values.push(bound.into());
        }
    }
    (clauses.join(" AND "), values)
}

fn of_tasks(tasks: &[String]) -> String {
    format!("task_id IN ({})", vec!["?"; tasks.len()].join(", "))
}

fn distinct<T: FromSql>(connection: &Connection, tasks: &[String], name: &str) -> Result<Vec<T>> {
    let whose = of_tasks(tasks);
    let sql = format!("SELECT DISTINCT {name} FROM task_logs WHERE {whose} AND {name} IS NOT NULL ORDER BY 1");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map(params_from_iter(tasks), |row| row.get(0))?;
    Ok(found.collect::<sql::Result<_>>()?)
}

/// Keeps lines, all of tasks that exist.
pub(crate) fn append(connection: &Connection, lines: Vec<LogLine>) -> Result<()> {
    let mut known = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ?)")?;
    let mut insert = connection.prepare_cached(
        "INSERT INTO task_logs (task_id, allocation_id, agent_id, container_id, rank_id, logged_at, level, \
         source, stdtype, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    let mut last_known: Option<String> = None;
    for line in lines {
        if last_known.as_deref() != Some(line.task_id.as_str()) {
            if !known.query_row([&line.task_id], |row| row.get::<_, bool>(0))? {
                return Err(Error::not_found("task", line.task_id));
            }
            last_known = Some(line.task_id.clone());
        }
        insert.execute(params![
            line.task_id,
            line.allocation_id,
            line.agent_id,
            line.container_id,
            line.rank_id,
            line.timestamp.0,
            line.level.as_str(),
            line.source,
            line.stdtype,
            line.log.as_bytes()
        ])?;
    }
    Ok(())
}

impl Database {
    /// Keeps lines, up to the limit of their task. Their ids are given here, whatever they say.
    pub async fn append_logs(&self, lines: Vec<LogLine>) -> Result<()> {
        let quota = Arc::clone(&self.log_quota);
        self.executor.write(move |connection| append(connection, quota.admit(connection, lines)?)).await
    }

    /// How many bytes the lines of one task may take from now on; `None` for no limit.
    pub fn limit_logs(&self, limit: Option<u64>) {
        self.log_quota.set(limit);
    }

    /// Reads lines, up to a few thousand. Fewer than asked for means that there are no more now.
    pub async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.executor
            .read(move |connection| {
                let (clauses, mut values) = conditions(&query);
                let direction = if query.order == Order::Descending { "DESC" } else { "ASC" };
                values.push((query.limit.min(LINES_PER_READ) as i64).into());
                let sql = format!("SELECT * FROM task_logs WHERE {clauses} ORDER BY id {direction} LIMIT ?");
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map(params_from_iter(&values), line_of)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// What occurs in the lines of tasks.
    pub async fn log_fields(&self, tasks: Vec<String>) -> Result<LogFields> {
        self.executor
            .read(move |connection| {
                Ok(LogFields {
                    agent_ids: distinct(connection, &tasks, "agent_id")?,
                    allocation_ids: distinct(connection, &tasks, "allocation_id")?,
                    container_ids: distinct(connection, &tasks, "container_id")?,
                    rank_ids: distinct(connection, &tasks, "rank_id")?,
                    stdtypes: distinct(connection, &tasks, "stdtype")?,
                    sources: distinct(connection, &tasks, "source")?,
                })
            })
            .await
    }

    /// The tasks of a trial: the present one, and before it those of the trial's earlier lives.
    pub async fn trial_tasks(&self, id: TrialId) -> Result<Vec<String>> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT task_id FROM trials WHERE id = ?")?;
                let found: Option<String> = statement.query_row([id.0], |row| row.get(0)).optional()?;
                let present = found.ok_or_else(|| Error::not_found("trial", id))?;
                let sql = "SELECT id FROM tasks WHERE trial_id = ? AND id <> ? ORDER BY started_at DESC";
                let mut statement = connection.prepare_cached(sql)?;
                let earlier = statement.query_map(params![id.0, present], |row| row.get(0))?;
                let earlier = earlier.collect::<sql::Result<Vec<String>>>()?;
                Ok([vec![present], earlier].concat())
            })
            .await
    }

    /// When a task ended, which for a trial that runs elsewhere is when the trial did; `None` while it goes on.
    pub async fn task_end(&self, task_id: String) -> Result<Option<Timestamp>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT COALESCE(tasks.ended_at, trials.ended_at) FROM tasks \
                           LEFT JOIN trials ON trials.id = tasks.trial_id WHERE tasks.id = ?";
                let mut statement = connection.prepare_cached(sql)?;
                let found: Option<Option<i64>> = statement.query_row([&task_id], |row| row.get(0)).optional()?;
                Ok(found.ok_or_else(|| Error::not_found("task", task_id))?.map(Timestamp))
            })
            .await
    }
}
