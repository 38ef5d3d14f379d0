//! Goes through the tables in the order in which they refer to each other.
//!
//! A stage reads one table. Rows become records as they come; records are written by the thousand, each time with how
//! far the stage has come, so that an import that was killed continues behind the last transaction.

mod people;
mod reports;
mod work;

use std::collections::BTreeMap;

use instep_api::wire::Timestamp;
use instep_database::import::{Batch, Progress, WorkingCopy};
use serde::{Deserialize, Serialize};

use crate::Observer;
use crate::error::{Error, Result};
use crate::plan::{Fate, Fates, Plan};
use crate::source::{Marker, Source, Table};
use crate::summary::{Summary, Tally};
use crate::text::Row;

/// Rows of one transaction at most.
const ROWS: usize = 20_000;
/// Bytes of rows of one transaction at most, because a row may hold the code of an experiment.
const BYTES: usize = 32 << 20;

/// What a stage remembers between transactions.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    tally: Tally,
    rows: u64,
    passwords: u64,
    #[serde(default)]
    unix_users_left: u64,
}

struct Importer<'a> {
    source: &'a mut dyn Source,
    copy: WorkingCopy,
    plan: &'a Plan,
    cluster: &'a str,
    now: Timestamp,
    counts: &'a BTreeMap<String, u64>,
    observer: &'a mut dyn Observer,
    summary: &'a mut Summary,
}

/// Writes everything that the plan takes over.
#[expect(clippy::too_many_arguments, reason = "they become the fields of one struct")]
pub(crate) fn carry_out(
    source: &mut dyn Source,
    copy: WorkingCopy,
    plan: &Plan,
    cluster: &str,
    now: Timestamp,
    counts: &BTreeMap<String, u64>,
    observer: &mut dyn Observer,
    summary: &mut Summary,
) -> Result<WorkingCopy> {
    let mut importer = Importer { source, copy, plan, cluster, now, counts, observer, summary };
    importer.users()?;
    importer.groups()?;
    importer.workspaces()?;
    importer.projects()?;
    importer.roles()?;
    importer.experiments()?;
    let trials = importer.trials()?;
    importer.allocations(&trials)?;
    importer.checkpoints(&trials)?;
    importer.models()?;
    importer.reports()?;
    importer.logs(&trials)?;
    importer.pack()?;
    importer.summary.add_left(counts);
    Ok(importer.copy)
}

impl Importer<'_> {
    /// Reads a table and writes what `map` makes of its rows.
    fn stage<T>(
        &mut self,
        table: &Table,
        mut map: impl FnMut(&Row<'_>, &mut Notes) -> Result<Option<T>>,
        mut write: impl FnMut(&Batch<'_>, Vec<T>, &mut Tally) -> Result<()>,
    ) -> Result<()> {
        let stage = table.name;
        let progress = self.copy.progress(stage)?;
        let mut notes: Notes = serde_json::from_str(&progress.notes).unwrap_or_default();
        let total = self.counts.get(stage).copied().unwrap_or(0);
        if !progress.done {
            let (mut records, mut bytes) = (Vec::new(), 0);
            let (copy, observer) = (&mut self.copy, &mut self.observer);
            let mut flush = |records: &mut Vec<T>, notes: &mut Notes, marker: Option<Marker>, done: bool| {
                let records = std::mem::take(records);
                copy.write(stage, |batch| {
                    write(batch, records, &mut notes.tally)?;
                    let text = serde_json::to_string(notes).unwrap_or_default();
                    Ok::<_, Error>(Progress { marker: marker.map(|marker| marker.0), done, notes: text })
                })?;
                observer.progress(stage, notes.rows, total);
                Ok::<_, Error>(())
            };
            let mut last = progress.marker.map(Marker);
            let mut waiting = 0;
            self.source.read(table, last, &mut |row, marker| {
                notes.rows += 1;
                waiting += 1;
                records.extend(map(row, &mut notes)?);
                bytes += row.size();
                last = Some(marker);
                // A table without an order is read from its start again, and so written at once.
                if table.order.is_some() && (waiting >= ROWS || bytes >= BYTES) {
                    flush(&mut records, &mut notes, last, false)?;
                    (waiting, bytes) = (0, 0);
                }
                Ok(())
            })?;
            flush(&mut records, &mut notes, last, true)?;
        }
        self.summary.passwords += notes.passwords;
        self.summary.unix_users_left += notes.unix_users_left;
        self.summary.tables.insert(stage.to_owned(), notes.tally);
        Ok(())
    }

    /// Reads a small table that others refer to.
    fn each(&mut self, table: &Table, mut take: impl FnMut(&Row<'_>) -> Result<()>) -> Result<()> {
        self.source.read(table, None, &mut |row, _| take(row))
    }
}

/// Counts a thing that is not written.
fn decline(fates: &Fates, id: i64, tally: &mut Tally) {
    match fates.of(id) {
        Some(Fate::There(_)) => tally.there_already += 1,
        Some(Fate::Refused(why)) => tally.lose(why),
        // It was not there when the plan was made, or what it belongs to is not here.
        Some(Fate::New(_) | Fate::Replaces(_)) | None => tally.lose("it appeared during the import"),
    }
}

/// Counts a row of a trial that is not added now.
fn decline_below(trials: &Fates, trial: Option<i64>, tally: &mut Tally) {
    match trial.and_then(|trial| trials.id(trial)) {
        Some(_) => tally.there_already += 1,
        None => tally.lose("not of a trial that is taken over"),
    }
}

/// Notes what is the same thing by its name, so that it stays the same when one of them is renamed.
fn note_there(batch: &Batch<'_>, cluster: &str, kind: &str, fates: &Fates) -> Result<()> {
    for (source, fate) in &fates.0 {
        if let Fate::There(id) = fate {
            batch.note(cluster, kind, &source.to_string(), *id)?;
        }
    }
    Ok(())
}

/// Whose something is: the user here, or the first administrator for what belongs to nobody.
fn owner(plan: &Plan, row: &Row<'_>, column: &'static str) -> Result<i64> {
    let known = row.optional_integer(column)?.and_then(|id| plan.users.id(id));
    Ok(known.or_else(|| plan.users.id(1)).unwrap_or(1))
}
