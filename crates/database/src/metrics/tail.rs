//! Reading the tail: rows with one report or with several, in any of the forms that were ever written.

use std::ops::ControlFlow;

use instep_api::identifiers::TrialId;
use instep_api::values::Values;

use super::block::{Block, each_line};
use super::chunk::Point;
use super::values;
use crate::error::{Error, Result};
use crate::rows::json;
use crate::sql::{Connection, OptionalExtension, Row as SqlRow, params};

/// How the reports of a row lie.
pub(super) enum Form<'a> {
    /// The JSON of one.
    Single(&'a str),
    /// Lines of step, time and JSON.
    Lines(&'a str),
    /// A [`Block`].
    Columns(&'a [u8]),
}

/// A row of the tail.
pub(crate) struct Row<'a> {
    pub id: i64,
    pub group: &'a str,
    run: i64,
    /// Of a single report.
    step: i64,
    time: i64,
    form: Form<'a>,
    /// The first and the last that are asked for.
    steps: (i64, i64),
}

fn damaged(error: &dyn std::fmt::Display) -> Error {
    Error::Damaged(format!("a report: {error}"))
}

impl Row<'_> {
    fn asks_for(&self, step: i64) -> bool {
        (self.steps.0..=self.steps.1).contains(&step)
    }

    /// The steps and times of its reports.
    pub(crate) fn places(&self) -> Result<Vec<(i64, i64)>> {
        let mut places = match &self.form {
            Form::Single(_) => vec![(self.step, self.time)],
            Form::Lines(text) => {
                let mut places = Vec::new();
                each_line(text, |step, time, _| {
                    places.push((step, time));
                    Ok(())
                })
                .map_err(|error| damaged(&error))?;
                places
            }
            Form::Columns(content) => {
                let block = Block::open(content).map_err(|error| damaged(&error))?;
                block.steps.into_iter().zip(block.times).collect()
            }
        };
        places.retain(|(step, _)| self.asks_for(*step));
        Ok(places)
    }

    /// Hands over the points of every metric that is wanted: one by one, or a metric's all together.
    pub(crate) fn each(
        &self,
        wanted: impl Fn(&str) -> bool,
        mut take: impl FnMut(&str, &mut dyn Iterator<Item = Point>),
    ) -> Result<()> {
        let run = self.run;
        match &self.form {
            Form::Single(text) => values::each(text, &wanted, |name, value| {
                let point = Point { step: self.step, run, time: self.time, value };
                take(&name, &mut std::iter::once(point));
            })
            .map_err(|error| damaged(&error)),
            Form::Lines(text) => each_line(text, |step, time, text| {
                if !self.asks_for(step) {
                    return Ok(());
                }
                values::each(text, &wanted, |name, value| {
                    take(&name, &mut std::iter::once(Point { step, run, time, value }));
                })
            })
            .map_err(|error| damaged(&error)),
            Form::Columns(content) => {
                let block = Block::open(content).map_err(|error| damaged(&error))?;
                let give = |name: &str, column: Vec<_>| {
                    let places = block.steps.iter().zip(&block.times);
                    let points = places.zip(column).filter_map(|((&step, &time), datum)| {
                        self.asks_for(step).then_some(())?;
                        Some(Point { step, run, time, value: datum? })
                    });
                    let mut points = points.peekable();
                    if points.peek().is_some() {
                        take(name, &mut points);
                    }
                };
                block.each(&wanted, give).map_err(|error| damaged(&error))
            }
        }
    }
}

/// Hands over the rows of a trial's tail with reports between two steps, both included, of one group or of all, by step,
/// until told to stop.
pub(crate) fn each_row(
    connection: &Connection,
    trial: TrialId,
    group: Option<&str>,
    (first, last): (i64, i64),
    mut take: impl FnMut(&Row<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let which = if group.is_some() { "group_name = ?2" } else { "CAST(?2 AS TEXT) IS NULL" };
    let columns = "id, group_name, step, run_id, reported_at, metric_values, last_step, content";
    let sql = format!(
        "SELECT {columns} FROM metric_tail WHERE trial_id = ?1 AND {which} AND step BETWEEN ?3 AND ?4 \
         UNION ALL \
         SELECT {columns} FROM metric_tail WHERE trial_id = ?1 AND {which} AND last_step >= ?3 AND step < ?3 \
         ORDER BY step, id"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![trial.0, group, first, last])?;
    while let Some(row) = rows.next()? {
        let group = row.get_ref(1)?.as_str().map_err(|error| damaged(&error))?;
        let text = row.get_ref(5)?.as_str().map_err(|error| damaged(&error))?;
        let content = row.get_ref(7)?.as_blob_or_null().map_err(|error| damaged(&error))?;
        let form = match (content, row.get::<_, Option<i64>>(6)?) {
            (Some(content), _) => Form::Columns(content),
            (None, Some(_)) => Form::Lines(text),
            (None, None) => Form::Single(text),
        };
        let (id, step, run, time) = (row.get(0)?, row.get(2)?, row.get(3)?, row.get(4)?);
        if take(&Row { id, group, run, step, time, form, steps: (first, last) })?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Hands over the points of a trial's tail, of one group or of all, whose metric is wanted, with their groups and names.
pub(crate) fn each_point(
    connection: &Connection,
    trial: TrialId,
    group: Option<&str>,
    steps: (i64, i64),
    wanted: impl Fn(&str) -> bool,
    mut take: impl FnMut(&str, &str, &mut dyn Iterator<Item = Point>),
) -> Result<()> {
    each_row(connection, trial, group, steps, |row| {
        row.each(&wanted, |name, points| take(row.group, name, points))?;
        Ok(ControlFlow::Continue(()))
    })
}

/// The tail's row of a single report at a step, of which there is one at most: its id and its values.
pub(crate) fn single(connection: &Connection, trial: TrialId, group: &str, step: i64) -> Result<Option<(i64, Values)>> {
    let sql = "SELECT id, metric_values FROM metric_tail \
               WHERE trial_id = ? AND group_name = ? AND step = ? AND last_step IS NULL ORDER BY id LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    let row_of = |row: &SqlRow<'_>| Ok((row.get("id")?, json(row, "metric_values")?));
    Ok(statement.query_row(params![trial.0, group, step], row_of).optional()?)
}
