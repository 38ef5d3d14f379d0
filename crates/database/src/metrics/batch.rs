//! Taking many reports in at once, each exactly once.
//!
//! A reporter numbers its batches. The number of the last one is written in the transaction that stores it, so a batch
//! that is sent again because its answer was lost is recognised, also by a master that was killed in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use instep_api::metrics::{RefusedReport, Report, ReportBatch};

use super::ingest::Intake;
use crate::Database;
use crate::error::{Error, Result};
use crate::log_quota::LogQuota;
use crate::logs;
use crate::rows::text_of;
use crate::sql::{Connection, OptionalExtension, params};

impl Database {
    /// Stores a batch of reports and lines of output, unless it is stored already; when this returns, it is on disk.
    /// Reports that contradict what is known are refused one by one.
    pub async fn report_batch(&self, batch: ReportBatch) -> Result<Vec<RefusedReport>> {
        let trial = batch.trial;
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        for (_, report) in &batch.reports {
            *groups.entry(report.group.clone()).or_insert(0) += 1;
        }
        let points = batch.reports.iter().map(|(_, report)| report.values.len()).sum();
        let quota = Arc::clone(&self.log_quota);
        let refused = self.executor.write(move |connection| store(connection, batch, &quota)).await?;
        self.executor.count_points(points);
        for (group, rows) in groups {
            self.merger.note(trial, group, rows);
        }
        Ok(refused)
    }
}

fn store(connection: &Connection, batch: ReportBatch, quota: &LogQuota) -> Result<Vec<RefusedReport>> {
    let task: Option<String> = connection
        .prepare_cached("SELECT task_id FROM trials WHERE id = ?")?
        .query_row([batch.trial.0], |row| row.get(0))
        .optional()?;
    let task = task.ok_or_else(|| Error::not_found("trial", batch.trial))?;
    if let Some(refused) = stored_before(connection, &batch)? {
        return Ok(refused);
    }
    let (mut refused, reports) = (batch.refused, batch.reports);
    let mut intake = Intake::begin(connection, batch.trial)?;
    for (index, report) in &reports {
        if let Some(message) = try_to_store(connection, &mut intake, report)? {
            refused.push(RefusedReport { index: *index, message });
        }
    }
    intake.end(connection)?;
    refused.sort_by_key(|refusal| refusal.index);
    let mut lines = batch.logs;
    for line in &mut lines {
        line.task_id.clone_from(&task);
    }
    logs::append(connection, quota.admit(connection, lines)?)?;
    connection
        .prepare_cached(
            "INSERT INTO reporters (id, trial_id, last_sequence, refused) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (id) DO UPDATE SET last_sequence = excluded.last_sequence, refused = excluded.refused",
        )?
        .execute(params![batch.reporter, batch.trial.0, batch.sequence, text_of(&refused)?])?;
    Ok(refused)
}

/// What was refused of a batch that is stored already; `None` if it is a new one.
fn stored_before(connection: &Connection, batch: &ReportBatch) -> Result<Option<Vec<RefusedReport>>> {
    let known: Option<(i64, i64, String)> = connection
        .prepare_cached("SELECT trial_id, last_sequence, refused FROM reporters WHERE id = ?")?
        .query_row([&batch.reporter], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (trial, last, refused) = known.unwrap_or((batch.trial.0, 0, "[]".to_owned()));
    if trial != batch.trial.0 {
        return Err(Error::Invalid("this reporter belongs to another trial".to_owned()));
    }
    match batch.sequence - last {
        1 => Ok(None),
        0 => serde_json::from_str(&refused).map(Some).map_err(|error| Error::Damaged(error.to_string())),
        difference if difference < 0 => Ok(Some(Vec::new())),
        _ => {
            let what = format!("batch {} of this reporter came before batch {}", batch.sequence, last + 1);
            Err(Error::Invalid(what))
        }
    }
}

/// Stores one report, or leaves everything as it was and says why.
fn try_to_store<'a>(connection: &Connection, intake: &mut Intake<'a>, report: &'a Report) -> Result<Option<String>> {
    if intake.is_plain(connection, report)? {
        return refusal(intake.store(connection, report));
    }
    intake.flush(connection)?;
    let before = intake.clone();
    connection.command("SAVEPOINT report")?;
    let refusal = refusal(intake.store(connection, report))?;
    if refusal.is_some() {
        connection.command("ROLLBACK TO report")?;
        *intake = before;
    }
    connection.command("RELEASE report")?;
    Ok(refusal)
}

/// Why a report was refused, if it was. After any other error the whole batch is rolled back by whoever runs it.
fn refusal(outcome: Result<()>) -> Result<Option<String>> {
    match outcome {
        Ok(()) => Ok(None),
        Err(error @ (Error::Invalid(_) | Error::Precondition(_))) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}
