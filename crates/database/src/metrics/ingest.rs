//! Taking a report in.

use std::collections::BTreeMap;

use instep_api::identifiers::{RunId, TrialId};
use instep_api::metrics::{PROFILING, Report, VALIDATION};
use instep_api::values::{Datum, Values};
use serde_json::{Map, Value};

use super::{block, read, rollback, tail, validation};
use crate::Database;
use crate::error::{Error, Result};
use crate::rows::text_of;
use crate::sql::{Connection, OptionalExtension, params};

impl Database {
    /// Stores a report; when this returns, it is on disk.
    pub async fn report_metrics(&self, report: Report) -> Result<()> {
        let (trial, group, points) = (report.trial, report.group.clone(), report.values.len());
        let store = move |connection: &Connection| {
            let mut intake = Intake::begin(connection, report.trial)?;
            intake.store(connection, &report)?;
            intake.end(connection)
        };
        self.executor.write(store).await?;
        self.executor.count_points(points);
        self.merger.note(trial, group, 1);
        Ok(())
    }
}

/// Takes reports of one trial in, in one transaction. What it has read of the trial it need not read again for the next
/// report: most reports bring steps that are later than everything known, and cost one row each.
#[derive(Clone)]
pub(super) struct Intake<'a> {
    trial: TrialId,
    run: i64,
    total_batches: i64,
    batches_before: i64,
    earlier_run_step: Option<i64>,
    /// The last step known of a group; `i64::MIN` if there is none.
    last_steps: BTreeMap<String, i64>,
    /// What is taken in and will be written as one row.
    waiting: Vec<&'a Report>,
}

impl<'a> Intake<'a> {
    pub(super) fn begin(connection: &Connection, trial: TrialId) -> Result<Intake<'a>> {
        let (run, total_batches, earlier_run_step) = connection
            .prepare_cached("SELECT run_id, total_batches, earlier_run_step FROM trials WHERE id = ?")?
            .query_row([trial.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?
            .ok_or_else(|| Error::not_found("trial", trial))?;
        let last_steps = BTreeMap::new();
        Ok(Intake {
            trial,
            run,
            total_batches,
            batches_before: total_batches,
            earlier_run_step,
            last_steps,
            waiting: Vec::new(),
        })
    }

    /// Takes what follows as reported by this run.
    pub(super) fn continue_run(&mut self, run: RunId) {
        self.run = run.0;
    }

    /// Stores a report. One that is refused may leave a part of itself behind, unless it [`is_plain`](Intake::is_plain).
    pub(super) fn store(&mut self, connection: &Connection, report: &'a Report) -> Result<()> {
        if report.run.0 != self.run {
            let what = format!("invalid run id, {} (reported) != {} (expected)", report.run, self.run);
            return Err(Error::Invalid(what));
        }
        if PROFILING.contains(&report.group.as_str()) {
            return block::write_single(connection, report, &report.values);
        }
        if self.is_plain(connection, report)? {
            self.append(connection, report)?;
        } else {
            self.flush(connection)?;
            self.join(connection, report)?;
        }
        self.total_batches = self.total_batches.max(report.step);
        if let Some(last) = self.last_steps.get_mut(&report.group) {
            *last = (*last).max(report.step);
        }
        Ok(())
    }

    /// Adds a plain report to those that will share a row.
    fn append(&mut self, connection: &Connection, report: &'a Report) -> Result<()> {
        if !block::has_room(&self.waiting, report) {
            self.flush(connection)?;
        }
        self.waiting.push(report);
        Ok(())
    }

    /// Writes what waits.
    pub(super) fn flush(&mut self, connection: &Connection) -> Result<()> {
        block::write(connection, &std::mem::take(&mut self.waiting))
    }

    /// Whether a report only adds a step behind all others of its group, so that nothing can contradict it.
    pub(super) fn is_plain(&mut self, connection: &Connection, report: &Report) -> Result<bool> {
        let is_simple = report.group != VALIDATION && report.batches.is_none() && !report.values.is_empty();
        if !is_simple || self.rolls_back(report) {
            return Ok(false);
        }
        if let Some(last) = self.last_steps.get(&report.group) {
            return Ok(report.step > *last);
        }
        let last = last_step(connection, report)?;
        self.last_steps.insert(report.group.clone(), last);
        Ok(report.step > last)
    }

    fn rolls_back(&self, report: &Report) -> bool {
        self.earlier_run_step.is_some_and(|step| step >= report.step)
    }

    /// Joins a report with what is known of its step.
    fn join(&mut self, connection: &Connection, report: &Report) -> Result<()> {
        if self.rolls_back(report) {
            self.write(connection)?;
            rollback::roll_back(connection, report)?;
            *self = Intake::begin(connection, self.trial)?;
        }
        let known = known(connection, report)?;
        let reported = report.values.object();
        let added = joined(&known.values, &reported)?;
        if let Some(batches) = &report.batches {
            store_batches(connection, report, batches)?;
        }
        if !added.is_empty() {
            put_row(connection, report, known.tail_row, added)?;
        }
        if report.group == VALIDATION {
            let mut values = known.values;
            values.extend(reported);
            let validation = validation::Validation { step: report.step, time: report.time.0, values };
            validation::note(connection, report.trial, &validation)?;
        }
        Ok(())
    }

    /// Writes down what the reports together have changed of the trial.
    pub(super) fn end(mut self, connection: &Connection) -> Result<()> {
        self.flush(connection)?;
        self.write(connection)
    }

    fn write(&self, connection: &Connection) -> Result<()> {
        if self.total_batches > self.batches_before {
            connection
                .prepare_cached("UPDATE trials SET total_batches = ? WHERE id = ?")?
                .execute([self.total_batches, self.trial.0])?;
        }
        Ok(())
    }
}

/// The last step known of a report's group, in chunks or in the tail.
fn last_step(connection: &Connection, report: &Report) -> Result<i64> {
    let group = params![report.trial.0, report.group];
    let in_tail: Option<i64> = connection
        .prepare_cached(
            "SELECT COALESCE(last_step, step) FROM metric_tail WHERE trial_id = ? AND group_name = ? \
             ORDER BY step DESC LIMIT 1",
        )?
        .query_row(group, |row| row.get(0))
        .optional()?;
    let in_chunks = last_chunked_step(connection, report)?;
    Ok(in_tail.max(in_chunks).unwrap_or(i64::MIN))
}

fn last_chunked_step(connection: &Connection, report: &Report) -> Result<Option<i64>> {
    let found = connection
        .prepare_cached("SELECT last_chunked_step FROM metric_groups WHERE trial_id = ? AND group_name = ?")?
        .query_row(params![report.trial.0, report.group], |row| row.get(0))
        .optional()?;
    Ok(found)
}

/// What is known of a group at a step.
struct Known {
    /// In chunks and tail together.
    values: Map<String, Value>,
    /// The tail's row of the step, of which there is one at most: its id and values.
    tail_row: Option<(i64, Values)>,
}

fn known(connection: &Connection, report: &Report) -> Result<Known> {
    let (trial, group, step) = (report.trial, report.group.as_str(), report.step);
    block::break_up(connection, trial, group, step, step)?;
    let tail_row = tail::single(connection, trial, group, step)?;
    let values = if last_chunked_step(connection, report)?.is_some_and(|chunked| chunked >= step) {
        read::row_at(connection, trial, group, step)?.map(|row| row.values)
    } else {
        tail_row.as_ref().map(|(_, values)| values.object())
    };
    Ok(Known { values: values.unwrap_or_default(), tail_row })
}

/// What a report adds to what is known of its step. A key must not change its value.
fn joined(known: &Map<String, Value>, reported: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut added = Map::new();
    for (name, value) in reported {
        match known.get(name) {
            None => {
                added.insert(name.clone(), value.clone());
            }
            Some(before) if same(before, value) => {}
            Some(_) => {
                let what = format!("overwriting existing metric keys is not supported, conflicting key: {name}");
                return Err(Error::Invalid(what));
            }
        }
    }
    Ok(added)
}

/// Whether two values are the same, however the number is written.
fn same(one: &Value, other: &Value) -> bool {
    one == other
        || match (Datum::of(one).number(), Datum::of(other).number()) {
            (Some(one), Some(other)) => one == other || one.is_nan() && other.is_nan(),
            _ => false,
        }
}

/// Adds to the tail's row of the step, or makes one. A changed row is a new one, so that its id names its content.
fn put_row(
    connection: &Connection,
    report: &Report,
    tail_row: Option<(i64, Values)>,
    added: Map<String, Value>,
) -> Result<()> {
    let mut all = added;
    if let Some((id, before)) = tail_row {
        connection.prepare_cached("DELETE FROM metric_tail WHERE id = ?")?.execute([id])?;
        all.extend(before.object());
    }
    block::write_single(connection, report, &Values::from(&all))
}

fn store_batches(connection: &Connection, report: &Report, batches: &Value) -> Result<()> {
    let inserted = connection
        .prepare_cached(
            "INSERT INTO metric_batches (trial_id, group_name, step, run_id, reported_at, batches) \
             VALUES (?, ?, ?, ?, ?, ?) \
             ON CONFLICT (trial_id, group_name, step) DO NOTHING",
        )?
        .execute(params![report.trial.0, report.group, report.step, report.run.0, report.time.0, text_of(batches)?])?;
    if inserted == 0 {
        let what = format!("batch metrics of step {} were reported before", report.step);
        return Err(Error::Invalid(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_of_a_step_are_joined_and_contradictions_refused() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let known = object(json!({"loss": 1, "nan": "NaN", "name": "x"}));
        let joining = |reported: Value| joined(&known, &object(reported));
        assert_eq!(joining(json!({"loss": 1.0, "nan": "NaN", "name": "x"})).unwrap(), Map::new());
        assert_eq!(joining(json!({"loss": 1, "other": 2})).unwrap(), object(json!({"other": 2})));
        let refused = joining(json!({"loss": 2})).unwrap_err().to_string();
        assert_eq!(refused, "overwriting existing metric keys is not supported, conflicting key: loss");
        assert!(joining(json!({"name": 1})).is_err());
        assert_eq!(joined(&Map::new(), &known).unwrap(), known);
    }
}
