//! Reading metrics: chunks and tail joined.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use instep_api::identifiers::TrialId;
use instep_api::metrics::PROFILING;
use serde_json::{Map, Value};

use super::chunk::{Point, decode};
use super::{outline, tail};
use crate::error::{Error, Result};
use crate::rows::json;
use crate::sql::{self, Connection, OptionalExtension, params};

/// Everything that a trial reported in a group at a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub step: i64,
    pub run: i64,
    pub time: i64,
    pub values: Map<String, Value>,
    pub batches: Option<Value>,
}

/// The series of a group that have chunks: id and name.
pub(crate) fn series(connection: &Connection, trial: TrialId, group: &str) -> Result<Vec<(i64, String)>> {
    let sql = "SELECT id, name FROM metric_series WHERE trial_id = ? AND group_name = ? ORDER BY name";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![trial.0, group], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<sql::Result<_>>()?)
}

/// The chunked points of a series between two steps, both included, as they are stored.
pub(crate) fn chunked_points(connection: &Connection, series: i64, first: i64, last: i64) -> Result<Vec<Point>> {
    // Which of them is asked first, and found in an index: chunks are long, and most are not wanted.
    let sql = "SELECT content FROM metric_chunks WHERE series_id = ?1 AND number IN \
               (SELECT number FROM metric_chunks WHERE series_id = ?1 AND last_step >= ?2 AND first_step <= ?3) \
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

/// Everything reported in a group between two steps, both included, by step; in a group about the machine, between two
/// times.
pub(crate) fn rows(connection: &Connection, trial: TrialId, group: &str, first: i64, last: i64) -> Result<Vec<Row>> {
    // The machine's groups have no steps: there, reports are told apart by their times.
    let by_time = PROFILING.contains(&group);
    let key = |step: i64, time: i64| (step, if by_time { time } else { 0 });
    let (first_step, last_step) = if by_time { (i64::MIN, i64::MAX) } else { (first, last) };
    let within = |time: i64| !by_time || (first..=last).contains(&time);
    let mut found: BTreeMap<(i64, i64), Row> = BTreeMap::new();
    let mut add = |name: &str, points: &mut dyn Iterator<Item = Point>| {
        for Point { step, run, time, value } in points.filter(|point| within(point.time)) {
            let empty = || Row { step, run, time, values: Map::new(), batches: None };
            let row = found.entry(key(step, time)).or_insert_with(empty);
            row.time = row.time.max(time);
            row.run = row.run.max(run);
            row.values.insert(name.to_owned(), value.value());
        }
    };
    for (id, name) in series(connection, trial, group)? {
        add(&name, &mut chunked_points(connection, id, first_step, last_step)?.into_iter());
    }
    let steps = (first_step, last_step);
    tail::each_point(connection, trial, Some(group), steps, |_| true, |_, name, points| add(name, points))?;
    let sql = "SELECT * FROM metric_batches WHERE trial_id = ? AND group_name = ? AND step BETWEEN ? AND ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut batches = statement.query(params![trial.0, group, first_step, last_step])?;
    while let Some(row) = batches.next()? {
        let (step, run, time): (i64, i64, i64) = (row.get("step")?, row.get("run_id")?, row.get("reported_at")?);
        if !within(time) {
            continue;
        }
        // A report may bring metrics of batches and no averages.
        let empty = || Row { step, run, time, values: Map::new(), batches: None };
        found.entry(key(step, time)).or_insert_with(empty).batches = Some(json(&row, "batches")?);
    }
    Ok(found.into_values().collect())
}

/// Everything reported in a group at a step.
pub(crate) fn row_at(connection: &Connection, trial: TrialId, group: &str, step: i64) -> Result<Option<Row>> {
    Ok(rows(connection, trial, group, step, step)?.pop())
}

/// The points of some metrics that are still in the tail.
pub(crate) fn tail_points(
    connection: &Connection,
    trial: TrialId,
    group: &str,
    names: &[String],
    (first, last): (i64, i64),
) -> Result<HashMap<String, Vec<Point>>> {
    let mut found: HashMap<String, Vec<Point>> = names.iter().map(|name| (name.clone(), Vec::new())).collect();
    let wanted: HashSet<&str> = names.iter().map(String::as_str).collect();
    let wanted = |name: &str| wanted.contains(name);
    tail::each_point(connection, trial, Some(group), (first, last), wanted, |_, name, points| {
        if let Some(known) = found.get_mut(name) {
            known.extend(points);
        }
    })?;
    Ok(found)
}

/// The points of one metric by step, for a chart of so many: chunks, and what the tail has of it.
pub(crate) fn points_of(
    connection: &Connection,
    trial: TrialId,
    group: &str,
    name: &str,
    steps: (i64, i64),
    limit: usize,
    tail: Vec<Point>,
) -> Result<Vec<Point>> {
    let sql = "SELECT id FROM metric_series WHERE trial_id = ? AND group_name = ? AND name = ?";
    let series: Option<i64> =
        connection.prepare_cached(sql)?.query_row(params![trial.0, group, name], |row| row.get(0)).optional()?;
    let mut points = match series {
        Some(id) => outline::points_to_draw(connection, id, steps, limit)?,
        None => Vec::new(),
    };
    points.extend(tail);
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
    Ok(rows.collect::<sql::Result<_>>()?)
}

/// The metrics that a trial reported in a group.
pub(crate) fn names(connection: &Connection, trial: TrialId, group: &str) -> Result<BTreeSet<String>> {
    let chunked: HashSet<String> = series(connection, trial, group)?.into_iter().map(|(_, name)| name).collect();
    let mut names = BTreeSet::new();
    // Most names are known from the chunks already, and their values need not be looked at.
    let unknown = |name: &str| !chunked.contains(name);
    tail::each_point(connection, trial, Some(group), (i64::MIN, i64::MAX), unknown, |_, name, _| {
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
    })?;
    names.extend(chunked);
    Ok(names)
}

/// The highest step at which a trial reported anything but about the machine.
pub(crate) fn highest_step(connection: &Connection, trial: TrialId) -> Result<Option<i64>> {
    let sql = "SELECT MAX(step) FROM (\
               SELECT group_name, COALESCE(last_step, step) AS step FROM metric_tail WHERE trial_id = ?1 \
               UNION ALL SELECT group_name, last_step FROM metric_chunks \
               JOIN metric_series ON metric_series.id = series_id WHERE trial_id = ?1 \
               UNION ALL SELECT group_name, step FROM metric_batches WHERE trial_id = ?1) AS steps \
               WHERE group_name NOT IN ('gpu', 'cpu', 'memory', 'disk', 'network')";
    Ok(connection.prepare_cached(sql)?.query_row([trial.0], |row| row.get(0))?)
}
