//! Reading metrics: chunks and tail joined.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use instep_api::identifiers::TrialId;
use instep_api::metrics::PROFILING;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use serde_json::{Map, Value};

use super::chunk::{Datum, Point, decode};
use super::{block, outline, values};
use crate::error::{Error, Result};
use crate::rows::json;

/// A row of the tail with a single report.
#[derive(Debug)]
pub(crate) struct TailRow {
    pub id: i64,
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

/// Where and when a value of the tail was reported.
pub(crate) struct TailPlace<'a> {
    pub group: &'a str,
    pub step: i64,
    pub run: i64,
    pub time: i64,
}

/// Hands over every value of a trial's tail, of one group or of all, whose metric is wanted.
pub(crate) fn each_of_tail(
    connection: &Connection,
    trial: TrialId,
    group: Option<&str>,
    steps: (i64, i64),
    wanted: impl Fn(&str) -> bool,
    mut take: impl FnMut(&TailPlace<'_>, &str, Value),
) -> Result<()> {
    each_report_of_tail(connection, trial, group, steps, |_, place, text| {
        values::each(text, &wanted, |name, value| take(place, &name, value))?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Hands over the reports of a trial's tail, of one group or of all, by step, until told to stop at the end of a row:
/// the row's id, its place and the text of its values.
pub(crate) fn each_report_of_tail(
    connection: &Connection,
    trial: TrialId,
    group: Option<&str>,
    (first, last): (i64, i64),
    mut take: impl FnMut(i64, &TailPlace<'_>, &str) -> serde_json::Result<ControlFlow<()>>,
) -> Result<()> {
    let which = if group.is_some() { "group_name = ?2" } else { "?2 IS NULL" };
    let columns = "group_name, step, run_id, reported_at, metric_values, id, last_step";
    let sql = format!(
        "SELECT {columns} FROM metric_tail WHERE trial_id = ?1 AND {which} AND step BETWEEN ?3 AND ?4 \
         UNION ALL \
         SELECT {columns} FROM metric_tail WHERE trial_id = ?1 AND {which} AND last_step >= ?3 AND step < ?3 \
         ORDER BY step, id"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![trial.0, group, first, last])?;
    while let Some(row) = rows.next()? {
        let damaged = |error: &dyn std::fmt::Display| Error::Damaged(format!("a report: {error}"));
        let group = row.get_ref(0)?.as_str().map_err(|error| damaged(&error))?;
        let place = TailPlace { group, step: row.get(1)?, run: row.get(2)?, time: row.get(3)? };
        let text = row.get_ref(4)?.as_str().map_err(|error| damaged(&error))?;
        let id = row.get(5)?;
        let mut flow = ControlFlow::Continue(());
        match row.get::<_, Option<i64>>(6)? {
            None => flow = take(id, &place, text).map_err(|error| damaged(&error))?,
            Some(_) => block::each(text, |step, time, values| {
                if (first..=last).contains(&step) {
                    flow = take(id, &TailPlace { step, time, ..place }, values)?;
                }
                Ok(())
            })
            .map_err(|error| damaged(&error))?,
        }
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// The tail's row of a single report at a step; there is one at most.
pub(crate) fn tail_row(connection: &Connection, trial: TrialId, group: &str, step: i64) -> Result<Option<TailRow>> {
    let sql = "SELECT id, metric_values FROM metric_tail \
               WHERE trial_id = ? AND group_name = ? AND step = ? AND last_step IS NULL ORDER BY id LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    let row_of = |row: &SqlRow<'_>| Ok(TailRow { id: row.get("id")?, values: json(row, "metric_values")? });
    Ok(statement.query_row(params![trial.0, group, step], row_of).optional()?)
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

/// Everything reported in a group between two steps, both included, by step; in a group about the machine, between two
/// times.
pub(crate) fn rows(connection: &Connection, trial: TrialId, group: &str, first: i64, last: i64) -> Result<Vec<Row>> {
    // The machine's groups have no steps: there, reports are told apart by their times.
    let by_time = PROFILING.contains(&group);
    let key = |step: i64, time: i64| (step, if by_time { time } else { 0 });
    let (first_step, last_step) = if by_time { (i64::MIN, i64::MAX) } else { (first, last) };
    let within = |time: i64| !by_time || (first..=last).contains(&time);
    let mut found: BTreeMap<(i64, i64), Row> = BTreeMap::new();
    let mut add = |step: i64, run: i64, time: i64, name: String, value: Value| {
        let empty = || Row { step, run, time, values: Map::new(), batches: None };
        let row = found.entry(key(step, time)).or_insert_with(empty);
        row.time = row.time.max(time);
        row.run = row.run.max(run);
        row.values.insert(name, value);
    };
    for (id, name) in series(connection, trial, group)? {
        for point in
            chunked_points(connection, id, first_step, last_step)?.into_iter().filter(|point| within(point.time))
        {
            add(point.step, point.run, point.time, name.clone(), point.value.value());
        }
    }
    each_of_tail(
        connection,
        trial,
        Some(group),
        (first_step, last_step),
        |_| true,
        |place, name, value| {
            if within(place.time) {
                add(place.step, place.run, place.time, name.to_owned(), value);
            }
        },
    )?;
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
        found.entry(key(step, time)).or_insert_with(empty).batches = Some(json(row, "batches")?);
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
    each_of_tail(
        connection,
        trial,
        Some(group),
        (first, last),
        |name| wanted.contains(name),
        |place, name, value| {
            let point = Point { step: place.step, run: place.run, time: place.time, value: Datum::of(&value) };
            if let Some(points) = found.get_mut(name) {
                points.push(point);
            }
        },
    )?;
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
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The metrics that a trial reported in a group.
pub(crate) fn names(connection: &Connection, trial: TrialId, group: &str) -> Result<BTreeSet<String>> {
    let chunked: HashSet<String> = series(connection, trial, group)?.into_iter().map(|(_, name)| name).collect();
    let mut names = BTreeSet::new();
    // Most names are known from the chunks already, and their values need not be looked at.
    let unknown = |name: &str| !chunked.contains(name);
    each_of_tail(connection, trial, Some(group), (i64::MIN, i64::MAX), unknown, |_, name, _| {
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
