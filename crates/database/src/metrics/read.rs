//! Reading metrics: chunks and tail joined.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::identifiers::TrialId;
use instep_api::metrics::PROFILING;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use serde_json::{Map, Value};

use super::chunk::{Datum, Point, decode};
use crate::error::{Error, Result};
use crate::rows::json;

/// A row of the tail.
#[derive(Debug)]
pub(crate) struct TailRow {
    pub id: i64,
    pub group: String,
    pub step: i64,
    pub run: i64,
    pub time: i64,
    pub values: Map<String, Value>,
}

/// Everything that a trial reported in a group at a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub step: i64,
    pub run: i64,
    pub time: i64,
    pub values: Map<String, Value>,
    pub batches: Option<Value>,
}

fn tail_row_of(row: &SqlRow<'_>) -> rusqlite::Result<TailRow> {
    Ok(TailRow {
        id: row.get("id")?,
        group: row.get("group_name")?,
        step: row.get("step")?,
        run: row.get("run_id")?,
        time: row.get("reported_at")?,
        values: json(row, "metric_values")?,
    })
}

/// The whole tail of a trial.
pub(crate) fn tail(connection: &Connection, trial: TrialId) -> Result<Vec<TailRow>> {
    let mut statement = connection.prepare_cached("SELECT * FROM metric_tail WHERE trial_id = ?")?;
    let rows = statement.query_map([trial.0], tail_row_of)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The tail of a group between two steps, both included, by step; at most `limit` rows.
pub(crate) fn tail_between(
    connection: &Connection,
    trial: TrialId,
    group: &str,
    first: i64,
    last: i64,
    limit: i64,
) -> Result<Vec<TailRow>> {
    let sql = "SELECT * FROM metric_tail WHERE trial_id = ? AND group_name = ? AND step BETWEEN ? AND ? \
               ORDER BY step, id LIMIT ?";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![trial.0, group, first, last, limit], tail_row_of)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The series of a group that have chunks: id and name.
pub(crate) fn series(connection: &Connection, trial: TrialId, group: &str) -> Result<Vec<(i64, String)>> {
    let sql = "SELECT id, name FROM metric_series WHERE trial_id = ? AND group_name = ? ORDER BY name";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![trial.0, group], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The chunked points of a series between two steps, both included, as they are stored.
pub(crate) fn chunked_points(connection: &Connection, series: i64, first: i64, last: i64) -> Result<Vec<Point>> {
    let sql = "SELECT content FROM metric_chunks WHERE series_id = ? AND last_step >= ? AND first_step <= ? \
               ORDER BY number";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([series, first, last])?;
    let mut points = Vec::new();
    while let Some(row) = rows.next()? {
        let content = row.get_ref(0)?.as_blob().map_err(|error| Error::Damaged(error.to_string()))?;
        let decoded = decode(content).map_err(|error| Error::Damaged(error.to_string()))?;
        points.extend(decoded.into_iter().filter(|point| (first..=last).contains(&point.step)));
    }
    Ok(points)
}

/// Everything reported in a group between two steps, both included, by step.
pub(crate) fn rows(connection: &Connection, trial: TrialId, group: &str, first: i64, last: i64) -> Result<Vec<Row>> {
    // The machine's groups have no steps: there, reports are told apart by their times.
    let by_time = PROFILING.contains(&group);
    let key = |step: i64, time: i64| (step, if by_time { time } else { 0 });
    let mut found: BTreeMap<(i64, i64), Row> = BTreeMap::new();
    let mut add = |step: i64, run: i64, time: i64, name: String, value: Value| {
        let empty = || Row { step, run, time, values: Map::new(), batches: None };
        let row = found.entry(key(step, time)).or_insert_with(empty);
        row.time = row.time.max(time);
        row.run = row.run.max(run);
        row.values.insert(name, value);
    };
    for (id, name) in series(connection, trial, group)? {
        for point in chunked_points(connection, id, first, last)? {
            add(point.step, point.run, point.time, name.clone(), point.value.value());
        }
    }
    for row in tail_between(connection, trial, group, first, last, -1)? {
        for (name, value) in row.values {
            add(row.step, row.run, row.time, name, value);
        }
    }
    let sql = "SELECT * FROM metric_batches WHERE trial_id = ? AND group_name = ? AND step BETWEEN ? AND ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut batches = statement.query(params![trial.0, group, first, last])?;
    while let Some(row) = batches.next()? {
        let (step, run, time) = (row.get("step")?, row.get("run_id")?, row.get("reported_at")?);
        // A report may bring metrics of batches and no averages.
        let empty = || Row { step, run, time, values: Map::new(), batches: None };
        found.entry(key(step, time)).or_insert_with(empty).batches = Some(json(row, "batches")?);
    }
    Ok(found.into_values().collect())
}

/// Everything reported in a group at a step.
pub(crate) fn row_at(connection: &Connection, trial: TrialId, group: &str, step: i64) -> Result<Option<Row>> {
    Ok(rows(connection, trial, group, step, step)?.pop())
}

/// The numbers of one metric by step: chunks and tail.
pub(crate) fn points_of(
    connection: &Connection,
    trial: TrialId,
    group: &str,
    name: &str,
    first: i64,
    last: i64,
) -> Result<Vec<Point>> {
    let sql = "SELECT id FROM metric_series WHERE trial_id = ? AND group_name = ? AND name = ?";
    let series: Option<i64> =
        connection.prepare_cached(sql)?.query_row(params![trial.0, group, name], |row| row.get(0)).optional()?;
    let mut points = match series {
        Some(id) => chunked_points(connection, id, first, last)?,
        None => Vec::new(),
    };
    for row in tail_between(connection, trial, group, first, last, -1)? {
        if let Some(value) = row.values.get(name) {
            points.push(Point { step: row.step, run: row.run, time: row.time, value: Datum::of(value) });
        }
    }
    points.sort_by_key(|point| (point.step, point.time));
    Ok(points)
}

/// The groups in which a trial reported.
pub(crate) fn groups(connection: &Connection, trial: TrialId) -> Result<BTreeSet<String>> {
    let sql = "SELECT DISTINCT group_name FROM metric_series WHERE trial_id = ?1 \
               UNION SELECT DISTINCT group_name FROM metric_tail WHERE trial_id = ?1 \
               UNION SELECT DISTINCT group_name FROM metric_batches WHERE trial_id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([trial.0], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The metrics that a trial reported in a group.
pub(crate) fn names(connection: &Connection, trial: TrialId, group: &str) -> Result<BTreeSet<String>> {
    let mut names: BTreeSet<String> = series(connection, trial, group)?.into_iter().map(|(_, name)| name).collect();
    for row in tail_between(connection, trial, group, i64::MIN, i64::MAX, -1)? {
        names.extend(row.values.into_iter().map(|(name, _)| name));
    }
    Ok(names)
}

/// The highest step at which a trial reported anything but about the machine.
pub(crate) fn highest_step(connection: &Connection, trial: TrialId) -> Result<Option<i64>> {
    let sql = "SELECT MAX(step) FROM (\
               SELECT group_name, step FROM metric_tail WHERE trial_id = ?1 \
               UNION ALL SELECT group_name, last_step FROM metric_chunks \
               JOIN metric_series ON metric_series.id = series_id WHERE trial_id = ?1 \
               UNION ALL SELECT group_name, step FROM metric_batches WHERE trial_id = ?1) AS steps \
               WHERE group_name NOT IN ('gpu', 'cpu', 'memory', 'disk', 'network')";
    Ok(connection.prepare_cached(sql)?.query_row([trial.0], |row| row.get(0))?)
}
