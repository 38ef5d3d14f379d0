//! Reports that another cluster took in, stored as if they had been reported here.

use instep_api::metrics::Report;

use super::ingest::Intake;
use super::merger;
use crate::error::{Error, Result};
use crate::sql::Connection;

/// Stores reports that are sorted by trial, group and step; gives those that contradict what is stored, and why.
pub(crate) fn store<'a>(connection: &Connection, reports: &'a [Report]) -> Result<Vec<(&'a Report, String)>> {
    let mut refused = Vec::new();
    for of_trial in reports.chunk_by(|one, other| one.trial == other.trial) {
        let Some(first) = of_trial.first() else { continue };
        let mut intake = Intake::begin(connection, first.trial)?;
        for report in of_trial {
            // What earlier runs reported and later ones did not take back counts too.
            intake.continue_run(report.run);
            match intake.store(connection, report) {
                Ok(()) => {}
                Err(Error::Invalid(why)) => refused.push((report, why)),
                Err(error) => return Err(error),
            }
        }
        intake.end(connection)?;
    }
    Ok(refused)
}

/// Packs some of the tails of trials that have ended into chunks; gives how many tails are left.
pub(crate) fn pack(connection: &Connection, tails: usize) -> Result<usize> {
    let due: Vec<_> = merger::left_over(connection)?.into_iter().filter(|(_, _, over)| *over).collect();
    for ((trial, group), _, _) in due.iter().take(tails) {
        while merger::merge_here(connection, *trial, group)? {}
    }
    Ok(due.len().saturating_sub(tails))
}
