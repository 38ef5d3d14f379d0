//! What a trial reported, in parts, so that a long history is never in memory as a whole.
//!
//! Where the parts begin and end is found by reading no more than the steps (of groups about the machine: the times) of
//! everything; a part is then read from the chunks that it touches.

use std::ops::ControlFlow;

use instep_api::identifiers::TrialId;
use instep_api::metrics::PROFILING;

use super::chunk::decode_steps;
use super::{read, tail};
use crate::error::{Error, Result};
use crate::sql::{self, Connection, params};

/// Values of one part at most, unless a single step has more.
const VALUES_PER_PART: usize = 100_000;
/// Steps of one part at most.
const STEPS_PER_PART: usize = 1000;

/// A part of a history: what these groups reported between two steps, or two times, both included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub(crate) groups: Vec<String>,
    pub(crate) first: i64,
    pub(crate) last: i64,
}

/// Cuts the history of some groups into parts: those about the machine first, each for itself, as they have no steps.
pub(crate) fn parts(connection: &Connection, trial: TrialId, groups: Vec<String>) -> Result<Vec<Part>> {
    let (machine, others): (Vec<String>, Vec<String>) =
        groups.into_iter().partition(|group| PROFILING.contains(&group.as_str()));
    let mut parts = Vec::new();
    for group in machine {
        cut(connection, trial, vec![group], &mut parts)?;
    }
    cut(connection, trial, others, &mut parts)?;
    Ok(parts)
}

fn cut(connection: &Connection, trial: TrialId, groups: Vec<String>, parts: &mut Vec<Part>) -> Result<()> {
    let mut keys = Vec::new();
    let mut widths = 0;
    for group in &groups {
        keys = united(keys, self::keys(connection, trial, group)?);
        widths += read::names(connection, trial, group)?.len();
    }
    let length = (VALUES_PER_PART / widths.max(1)).clamp(1, STEPS_PER_PART);
    for stretch in keys.chunks(length) {
        let (first, last) = (stretch[0], stretch[stretch.len() - 1]);
        parts.push(Part { groups: groups.clone(), first, last });
    }
    Ok(())
}

/// The steps at which a group reported, upwards, each once; of a group about the machine the times.
pub(crate) fn keys(connection: &Connection, trial: TrialId, group: &str) -> Result<Vec<i64>> {
    let by_time = PROFILING.contains(&group);
    let mut found = Vec::new();
    for (series, _) in read::series(connection, trial, group)? {
        let keys = if by_time { times(connection, series)? } else { steps(connection, series)? };
        // Most often all metrics of a group have the same steps.
        if keys != found {
            found = united(found, sorted(keys));
        }
    }
    let mut keys = Vec::new();
    tail::each_row(connection, trial, Some(group), (i64::MIN, i64::MAX), |row| {
        keys.extend(row.places()?.into_iter().map(|(step, time)| if by_time { time } else { step }));
        Ok(ControlFlow::Continue(()))
    })?;
    found = united(found, sorted(keys));
    let column = if by_time { "reported_at" } else { "step" };
    let sql = format!("SELECT {column} FROM metric_batches WHERE trial_id = ? AND group_name = ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let keys = statement.query_map(params![trial.0, group], |row| row.get(0))?;
    Ok(united(found, sorted(keys.collect::<sql::Result<_>>()?)))
}

/// The steps of a series that has chunks.
fn steps(connection: &Connection, series: i64) -> Result<Vec<i64>> {
    let sql = "SELECT number, points, first_step, last_step FROM metric_chunks WHERE series_id = ? ORDER BY number";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([series])?;
    let mut steps = Vec::new();
    while let Some(row) = rows.next()? {
        let (number, points): (i64, i64) = (row.get(0)?, row.get(1)?);
        let (first, last): (i64, i64) = (row.get(2)?, row.get(3)?);
        // A metric has a step once, so as many points as steps are all of them, and need not be unpacked.
        if last.checked_sub(first).is_some_and(|more| more == points - 1) {
            steps.extend(first..=last);
            continue;
        }
        let sql = "SELECT content FROM metric_chunks WHERE series_id = ? AND number = ?";
        let content: Vec<u8> = connection.prepare_cached(sql)?.query_row([series, number], |row| row.get(0))?;
        steps.extend(decode_steps(&content).map_err(|error| Error::Damaged(error.to_string()))?);
    }
    Ok(steps)
}

/// The times of a series about the machine that has chunks.
fn times(connection: &Connection, series: i64) -> Result<Vec<i64>> {
    let points = read::chunked_points(connection, series, i64::MIN, i64::MAX)?;
    Ok(points.into_iter().map(|point| point.time).collect())
}

fn sorted(mut keys: Vec<i64>) -> Vec<i64> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Two lists, each upwards, as one.
fn united(one: Vec<i64>, other: Vec<i64>) -> Vec<i64> {
    if one.is_empty() || other.is_empty() {
        return if one.is_empty() { other } else { one };
    }
    let mut all = one;
    all.extend(other);
    // Both are sorted runs, which the stable sort merges in one pass.
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_united_without_repetitions() {
        assert_eq!(united(vec![1, 3, 5], vec![2, 3, 9]), [1, 2, 3, 5, 9]);
        assert_eq!(united(vec![], vec![2]), [2]);
        assert_eq!(sorted(vec![3, 1, 3]), [1, 3]);
    }
}
