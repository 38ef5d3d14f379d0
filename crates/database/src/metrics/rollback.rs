//! Taking back what earlier runs of a trial reported, where the current run reports anew.
//!
//! A trial that is resumed from a checkpoint repeats the steps behind it. What the earlier run said about these, and
//! about later steps, is removed: in the report's own group from its step on, in other groups beyond it.

use instep_api::metrics::{PROFILING, Report};

use super::chunk::{Point, encode};
use super::outline::outline;
use super::summary::RollUp;
use super::{block, read, validation};
use crate::error::Result;
use crate::rows::text_of;
use crate::sql::{Connection, params};

/// Removes what earlier runs reported at and beyond the step of this report.
pub(crate) fn roll_back(connection: &Connection, report: &Report) -> Result<()> {
    let trial = report.trial;
    let mut changed = 0;
    for group in read::groups(connection, trial)? {
        if PROFILING.contains(&group.as_str()) {
            continue;
        }
        let first = if group == report.group { report.step } else { report.step.saturating_add(1) };
        block::break_up(connection, trial, &group, first, i64::MAX)?;
        for table in ["metric_tail", "metric_batches"] {
            let sql = format!("DELETE FROM {table} WHERE trial_id = ? AND group_name = ? AND run_id < ? AND step >= ?");
            changed += connection.prepare_cached(&sql)?.execute(params![trial.0, group, report.run.0, first])?;
        }
        for (series, _) in read::series(connection, trial, &group)? {
            changed += roll_back_series(connection, series, report.run.0, first)?;
        }
    }
    // What is left of earlier runs lies at or before this step.
    connection
        .prepare_cached("UPDATE trials SET earlier_run_step = ? WHERE id = ?")?
        .execute([report.step, trial.0])?;
    if changed > 0 {
        let highest = read::highest_step(connection, trial)?.unwrap_or(0);
        connection.execute("UPDATE trials SET total_batches = ? WHERE id = ?", [highest, trial.0])?;
        validation::recompute(connection, trial)?;
    }
    Ok(())
}

/// Removes points from the chunks of a series; gives how many chunks changed.
fn roll_back_series(connection: &Connection, series: i64, run: i64, first: i64) -> Result<usize> {
    let sql = "SELECT COUNT(*) FROM metric_chunks WHERE series_id = ? AND last_step >= ?";
    let touched: i64 = connection.prepare_cached(sql)?.query_row([series, first], |row| row.get(0))?;
    if touched == 0 {
        return Ok(0);
    }
    let all = read::chunked_points(connection, series, i64::MIN, i64::MAX)?;
    let before = all.len();
    let kept: Vec<Point> = all.into_iter().filter(|point| point.run >= run || point.step < first).collect();
    if kept.len() == before {
        return Ok(0);
    }
    for table in ["metric_chunks", "metric_outlines"] {
        connection.prepare_cached(&format!("DELETE FROM {table} WHERE series_id = ?"))?.execute([series])?;
    }
    let mut roll_up = RollUp::empty();
    kept.iter().for_each(|point| roll_up.add(point));
    for (number, points) in kept.chunks(super::merger::POINTS_PER_CHUNK).enumerate() {
        put_chunk(connection, series, number as i64, points)?;
    }
    connection
        .prepare_cached("UPDATE metric_series SET roll_up = ? WHERE id = ?")?
        .execute(params![text_of(&roll_up)?, series])?;
    Ok(touched as usize)
}

/// Stores a chunk, in the place of one with the same number.
pub(crate) fn put_chunk(connection: &Connection, series: i64, number: i64, points: &[Point]) -> Result<()> {
    put_encoded(connection, series, number, &EncodedChunk::of(points))
}

/// A chunk that is ready to be stored.
pub(crate) struct EncodedChunk {
    points: i64,
    first_step: i64,
    last_step: i64,
    content: Vec<u8>,
    outline: Option<Vec<u8>>,
}

impl EncodedChunk {
    pub(crate) fn of(points: &[Point]) -> EncodedChunk {
        let steps = || points.iter().map(|point| point.step);
        EncodedChunk {
            points: points.len() as i64,
            first_step: steps().min().unwrap_or(0),
            last_step: steps().max().unwrap_or(0),
            content: encode(points),
            outline: outline(points),
        }
    }
}

pub(crate) fn put_encoded(connection: &Connection, series: i64, number: i64, chunk: &EncodedChunk) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO metric_chunks (series_id, number, points, first_step, last_step, content) \
             VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (series_id, number) DO UPDATE SET points = excluded.points, \
             first_step = excluded.first_step, last_step = excluded.last_step, content = excluded.content",
        )?
        .execute(params![series, number, chunk.points, chunk.first_step, chunk.last_step, chunk.content])?;
    // A chunk only ever grows in its place, so one with an outline keeps having one.
    if let Some(outline) = &chunk.outline {
        connection
            .prepare_cached(
                "INSERT INTO metric_outlines (series_id, number, content) VALUES (?, ?, ?) \
                 ON CONFLICT (series_id, number) DO UPDATE SET content = excluded.content",
            )?
            .execute(params![series, number, outline])?;
    }
    Ok(())
}
