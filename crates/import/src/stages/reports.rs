//! Metrics and lines of output: the tables with most of the rows.

use instep_database::import::Progress;

use super::work::Trials;
use super::{Importer, decline_below};
use crate::error::{Error, Result};
use crate::mapping::{metrics, work};
use crate::tables;

/// Tails of metrics that are packed in one transaction.
const TAILS: usize = 500;
/// What packing is called where progress is noted.
const PACKING: &str = "packing of metrics";

impl Importer<'_> {
    /// Adds metrics: training, validation, other groups, and those about machines.
    pub(super) fn reports(&mut self) -> Result<()> {
        let plan = self.plan;
        for (table, group) in tables::REPORTS {
            self.stage(
                table,
                |row, notes| {
                    let source = row.integer("trial_id")?;
                    if plan.trials.id(source).is_some() && row.truth("archived")? {
                        notes.tally.lose("taken back by a later run of its trial");
                        return Ok(None);
                    }
                    let Some(trial) = plan.trials.new_id(source) else {
                        decline_below(&plan.trials, Some(source), &mut notes.tally);
                        return Ok(None);
                    };
                    let report = metrics::report(row, trial, group)?;
                    if report.is_none() {
                        notes.tally.lose("it has no values");
                    }
                    Ok(report)
                },
                |batch, mut reports, tally| {
                    reports.sort_by(|one, other| {
                        (one.trial, &one.group, one.step, one.time).cmp(&(
                            other.trial,
                            &other.group,
                            other.step,
                            other.time,
                        ))
                    });
                    let refused = batch.reports(&reports)?;
                    tally.taken_over += (reports.len() - refused.len()) as u64;
                    for _ in refused {
                        tally.lose("it contradicts another report of its step");
                    }
                    Ok(())
                },
            )?;
        }
        Ok(())
    }

    /// Adds what trials printed.
    pub(super) fn logs(&mut self, trials: &Trials) -> Result<()> {
        let plan = self.plan;
        self.stage(
            &tables::TASK_LOGS,
            |row, notes| {
                let task = row.text("task_id")?;
                let trial = trials.of_task(&task);
                if trial.and_then(|trial| plan.trials.new_id(trial)).is_none() {
                    decline_below(&plan.trials, trial, &mut notes.tally);
                    return Ok(None);
                }
                work::line(row, task, false).map(Some)
            },
            |batch, lines, tally| {
                for line in lines {
                    batch.line(&line)?;
                    tally.taken_over += 1;
                }
                Ok(())
            },
        )?;
        self.stage(
            &tables::TRIAL_LOGS,
            |row, notes| {
                let trial = row.integer("trial_id")?;
                match trials.first_task(trial).filter(|_| plan.trials.new_id(trial).is_some()) {
                    Some(task) => work::line(row, task.to_owned(), true).map(Some),
                    None => {
                        decline_below(&plan.trials, Some(trial), &mut notes.tally);
                        Ok(None)
                    }
                }
            },
            |batch, lines, tally| {
                for line in lines {
                    batch.line(&line)?;
                    tally.taken_over += 1;
                }
                Ok(())
            },
        )
    }

    /// Packs the metrics, which the master would do otherwise when it starts.
    pub(super) fn pack(&mut self) -> Result<()> {
        let mut left = 1;
        let mut total = None;
        while left > 0 {
            let (copy, observer) = (&mut self.copy, &mut self.observer);
            copy.write(PACKING, |batch| {
                left = batch.pack(TAILS)?;
                Ok::<_, Error>(Progress::default())
            })?;
            // So many series in all, if the first part was a whole one.
            let total: usize = *total.get_or_insert(left + TAILS);
            if left > 0 {
                observer.progress(PACKING, total.saturating_sub(left) as u64, total as u64);
            }
        }
        Ok(())
    }
}
