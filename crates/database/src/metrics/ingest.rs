//! Taking a report in.

use instep_api::metrics::{PROFILING, Report, VALIDATION};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Map, Value};

use super::chunk::Datum;
use super::{read, rollback, validation};
use crate::Database;
use crate::error::{Error, Result};
use crate::rows::text_of;

impl Database {
    /// Stores a report; when this returns, it is on disk.
    pub async fn report_metrics(&self, report: Report) -> Result<()> {
        let (trial, group, points) = (report.trial, report.group.clone(), report.values.len());
        self.engine.write(move |connection| store(connection, &report)).await?;
        self.engine.count_points(points);
        self.merger.note(trial, group, 1);
        Ok(())
    }
}

pub(super) fn store(connection: &Connection, report: &Report) -> Result<()> {
    let trial = report.trial;
    let (run, total_batches, earlier_run_step): (i64, i64, Option<i64>) = connection
        .prepare_cached("SELECT run_id, total_batches, earlier_run_step FROM trials WHERE id = ?")?
        .query_row([trial.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?
        .ok_or_else(|| Error::not_found("trial", trial))?;
    if report.run.0 != run {
        return Err(Error::Invalid(format!("invalid run id, {} (reported) != {run} (expected)", report.run)));
    }
    if PROFILING.contains(&report.group.as_str()) {
        return append(connection, report, &report.values);
    }
    if earlier_run_step.is_some_and(|step| step >= report.step) {
        rollback::roll_back(connection, report)?;
    }
    let known = known(connection, report)?;
    let added = joined(&known.values, &report.values)?;
    if let Some(batches) = &report.batches {
        store_batches(connection, report, batches)?;
    }
    if !added.is_empty() {
        put_row(connection, report, known.tail_row, added)?;
    }
    if report.step > total_batches {
        connection
            .prepare_cached("UPDATE trials SET total_batches = ? WHERE id = ?")?
            .execute([report.step, trial.0])?;
    }
    if report.group == VALIDATION {
        let mut values = known.values;
        values.extend(report.values.clone());
        let validation = validation::Validation { step: report.step, time: report.time.0, values };
        validation::note(connection, trial, &validation)?;
    }
    Ok(())
}

/// What is known of a group at a step.
struct Known {
    /// In chunks and tail together.
    values: Map<String, Value>,
    /// The tail's row of the step; there is one at most.
    tail_row: Option<read::TailRow>,
}

fn known(connection: &Connection, report: &Report) -> Result<Known> {
    let (trial, group, step) = (report.trial, report.group.as_str(), report.step);
    let tail_row = read::tail_between(connection, trial, group, step, step, 1)?.pop();
    let chunked: Option<i64> = connection
        .prepare_cached("SELECT last_chunked_step FROM metric_groups WHERE trial_id = ? AND group_name = ?")?
        .query_row(params![trial.0, group], |row| row.get(0))
        .optional()?;
    let values = if chunked.is_some_and(|chunked| chunked >= step) {
        read::row_at(connection, trial, group, step)?.map(|row| row.values)
    } else {
        tail_row.as_ref().map(|row| row.values.clone())
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
    tail_row: Option<read::TailRow>,
    added: Map<String, Value>,
) -> Result<()> {
    let Some(mut row) = tail_row else { return append(connection, report, &added) };
    connection.prepare_cached("DELETE FROM metric_tail WHERE id = ?")?.execute([row.id])?;
    row.values.extend(added);
    append(connection, report, &row.values)
}

fn append(connection: &Connection, report: &Report, values: &Map<String, Value>) -> Result<()> {
    let text = text_of(values)?;
    connection
        .prepare_cached(
            "INSERT INTO metric_tail (trial_id, group_name, step, run_id, reported_at, metric_values) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![report.trial.0, report.group, report.step, report.run.0, report.time.0, text])?;
    Ok(())
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
