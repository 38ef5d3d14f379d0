//! Several reports in one row of the tail.
//!
//! Reports of a batch that only add steps behind all others are written and packed away together: one row instead of a
//! hundred. A report that touches a step inside such a row breaks it up first, which is rare.

use instep_api::identifiers::TrialId;
use instep_api::metrics::Report;
use rusqlite::{Connection, params};

use crate::error::{Error, Result};
use crate::rows::text_of;

/// Reports that share a row at most, so that breaking one up stays cheap.
pub(super) const REPORTS_PER_ROW: usize = 256;

/// Reports that wait to be written as one row.
#[derive(Clone)]
pub(super) struct Block {
    trial: TrialId,
    group: String,
    run: i64,
    first_step: i64,
    first_time: i64,
    last_step: i64,
    count: usize,
    /// The values of a single report, or lines of several.
    text: String,
}

impl Block {
    /// Begins with one report.
    pub(super) fn of(report: &Report) -> Result<Block> {
        let (first_step, first_time) = (report.step, report.time.0);
        let text = text_of(&report.values)?;
        let (trial, group, run) = (report.trial, report.group.clone(), report.run.0);
        Ok(Block { trial, group, run, first_step, first_time, last_step: first_step, count: 1, text })
    }

    /// Takes a report in that lies behind all of it; gives whether there was room.
    pub(super) fn take(&mut self, report: &Report) -> Result<bool> {
        if self.group != report.group || self.run != report.run.0 || self.count == REPORTS_PER_ROW {
            return Ok(false);
        }
        if self.count == 1 {
            self.text = line(self.first_step, self.first_time, &self.text);
        }
        self.text.push_str(&line(report.step, report.time.0, &text_of(&report.values)?));
        self.last_step = report.step;
        self.count += 1;
        Ok(true)
    }

    /// Writes it down.
    pub(super) fn write(self, connection: &Connection) -> Result<()> {
        let last_step = (self.count > 1).then_some(self.last_step);
        connection
            .prepare_cached(
                "INSERT INTO metric_tail (trial_id, group_name, step, run_id, reported_at, metric_values, last_step) \
                 VALUES (?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                self.trial.0,
                self.group,
                self.first_step,
                self.run,
                self.first_time,
                self.text,
                last_step
            ])?;
        Ok(())
    }
}

/// A report among several: JSON as we write it has no line breaks.
fn line(step: i64, time: i64, values: &str) -> String {
    format!("{step} {time} {values}\n")
}

/// Hands over the reports of a row with several: step, time and the text of the values.
pub(super) fn each(
    text: &str,
    mut take: impl FnMut(i64, i64, &str) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut number = || parts.next().and_then(|word| word.parse().ok()).ok_or_else(no_report);
        let (step, time) = (number()?, number()?);
        take(step, time, parts.next().ok_or_else(no_report)?)?;
    }
    Ok(())
}

fn no_report() -> serde_json::Error {
    serde::de::Error::custom("a line of the tail is not a step, a time and values")
}

/// Gives every report of a group that lies in a row with steps from `first` to `last` a row of its own.
pub(super) fn break_up(connection: &Connection, trial: TrialId, group: &str, first: i64, last: i64) -> Result<()> {
    let rows: Vec<(i64, i64, String)> = connection
        .prepare_cached(
            "SELECT id, run_id, metric_values FROM metric_tail \
             WHERE trial_id = ? AND group_name = ? AND last_step >= ? AND step <= ?",
        )?
        .query_map(params![trial.0, group, first, last], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (id, run, text) in rows {
        connection.prepare_cached("DELETE FROM metric_tail WHERE id = ?")?.execute([id])?;
        let mut singles = Vec::new();
        each(&text, |step, time, values| {
            singles.push((step, time, values.to_owned()));
            Ok(())
        })
        .map_err(|error| Error::Damaged(format!("a report: {error}")))?;
        for (step, time, text) in singles {
            let (group, count) = (group.to_owned(), 1);
            let single = Block { trial, group, run, first_step: step, first_time: time, last_step: step, count, text };
            single.write(connection)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-0-9a-z{} \n]{0,60}") {
            let _ = each(&text, |_, _, _| Ok(()));
        }
    }

    #[test]
    fn reports_are_found_as_they_were_written() {
        let text = line(1, 10, r#"{"a":1}"#) + &line(2, 20, r#"{"b":[2, "x"]}"#);
        let mut found = Vec::new();
        each(&text, |step, time, values| {
            found.push((step, time, values.to_owned()));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(1, 10, r#"{"a":1}"#.to_owned()), (2, 20, r#"{"b":[2, "x"]}"#.to_owned())]);
    }
}
