//! Outlines: chunks thinned out beforehand, so that a chart of a hundred thousand steps need not read them all.

use std::collections::HashMap;

use super::chunk::{Point, decode, encode_open};
use super::downsample::thin;
use crate::error::{Error, Result};
use crate::sql::{self, Connection, ValueRef, params};

/// Points of an outline at most.
const POINTS: usize = 64;

/// The outline of a chunk that has more points than that.
pub(super) fn outline(points: &[Point]) -> Option<Vec<u8>> {
    if points.len() <= POINTS {
        return None;
    }
    let numbers: Vec<(f64, &Point)> = points.iter().filter_map(|point| Some((point.value.number()?, point))).collect();
    let values: Vec<f64> = numbers.iter().map(|(number, _)| *number).collect();
    let kept: Vec<Point> = thin(&values, POINTS).into_iter().map(|index| numbers[index].1.clone()).collect();
    Some(encode_open(&kept))
}

/// The chunked points of a series between two steps, both included, for a chart of `limit` points: outlines where they
/// are fine enough for that, else everything.
pub(super) fn points_to_draw(
    connection: &Connection,
    series: i64,
    (first, last): (i64, i64),
    limit: usize,
) -> Result<Vec<Point>> {
    let sql = "SELECT number, first_step >= ?2 AND last_step <= ?3 FROM metric_chunks \
               WHERE series_id = ?1 AND last_step >= ?2 AND first_step <= ?3 ORDER BY number";
    let mut statement = connection.prepare_cached(sql)?;
    let chunks: Vec<(i64, bool)> = statement
        .query_map([series, first, last], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<sql::Result<_>>()?;
    let are_fine_enough = chunks.iter().filter(|(_, inside)| *inside).count() * POINTS >= limit;
    let mut outlines = match (chunks.first(), chunks.last()) {
        (Some((first, _)), Some((last, _))) if are_fine_enough => outlines(connection, series, *first, *last)?,
        _ => HashMap::new(),
    };
    let mut points = Vec::new();
    for (number, inside) in chunks {
        let found = match outlines.remove(&number).filter(|_| inside) {
            Some(found) => found,
            None => content(connection, series, number)?,
        };
        points.extend(found.into_iter().filter(|point| (first..=last).contains(&point.step)));
    }
    Ok(points)
}

/// The outlines of chunks with numbers from `first` to `last`.
fn outlines(connection: &Connection, series: i64, first: i64, last: i64) -> Result<HashMap<i64, Vec<Point>>> {
    let sql = "SELECT number, content FROM metric_outlines WHERE series_id = ? AND number BETWEEN ? AND ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([series, first, last])?;
    let mut found = HashMap::new();
    while let Some(row) = rows.next()? {
        found.insert(row.get(0)?, decoded(row.get_ref(1)?)?);
    }
    Ok(found)
}

fn content(connection: &Connection, series: i64, number: i64) -> Result<Vec<Point>> {
    let sql = "SELECT content FROM metric_chunks WHERE series_id = ? AND number = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![series, number])?;
    let Some(row) = rows.next()? else { return Ok(Vec::new()) };
    decoded(row.get_ref(0)?)
}

fn decoded(content: ValueRef<'_>) -> Result<Vec<Point>> {
    let damaged = |error: &dyn std::fmt::Display| Error::Damaged(error.to_string());
    decode(content.as_blob().map_err(|error| damaged(&error))?).map_err(|error| damaged(&error))
}
