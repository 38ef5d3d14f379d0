//! Turns the tail of metrics into chunks, in the background.
//!
//! A group of a trial is due when its tail has grown to [`WEIGHT_PER_MERGE`], or when its trial has ended. The
//! merger reads it in a snapshot, packs it without disturbing anybody, and hands one small write to the executor, which
//! moves all or nothing: it refuses when a row of the tail or the last chunk has changed in the meantime, and the group
//! is due again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use instep_api::identifiers::TrialId;
use instep_api::metrics::{PROFILING, VALIDATION};

use super::block::REPORTS_PER_ROW;
use super::chunk::{Point, decode};
use super::rollback::{EncodedChunk, put_encoded};
use super::summary::RollUp;
use super::tail;
use crate::error::{Error, Result};
use crate::executor::{Executor, in_snapshot};
use crate::rows::text_of;
use crate::sql::{self, Connection, OptionalExtension, Place, params, params_from_iter};
use crate::sync::{join_until, lock, wait};

/// What a group's tail weighs when it becomes chunks, and what one merge takes: as many reports as a chunk has points,
/// if they lie in columns, so that most points are packed once.
const WEIGHT_PER_MERGE: usize = POINTS_PER_CHUNK;
/// Points of a full chunk.
pub(crate) const POINTS_PER_CHUNK: usize = 4096;
/// How long the merger rests after a failure.
const REST: Duration = Duration::from_secs(1);

type Group = (TrialId, String);

/// What a row with so many reports weighs. A single report is JSON, which is slower to read than columns: a tail of those
/// is kept half as long, although their points may then be packed twice.
pub(super) fn weight_of(reports: usize) -> usize {
    if reports == 1 { 2 } else { reports }
}

#[derive(Default)]
struct MergeQueue {
    weights: HashMap<Group, usize>,
    due: BTreeSet<Group>,
    ended: bool,
}

/// The merging thread and its queue.
pub(crate) struct Merger {
    queue: Arc<(Mutex<MergeQueue>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
    patience: Option<Duration>,
}

impl Merger {
    /// Starts the thread; it begins with what a former process left.
    pub(crate) fn start(place: &Place, executor: Arc<Executor>) -> Result<Merger> {
        let mut reader = place.open_reader()?;
        let mut queue = MergeQueue::default();
        for (group, weight, over) in in_snapshot(&mut reader, left_over)? {
            if over || weight >= WEIGHT_PER_MERGE {
                queue.due.insert(group.clone());
            }
            queue.weights.insert(group, weight);
        }
        let queue = Arc::new((Mutex::new(queue), Condvar::new()));
        let shared = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("instep-db-merge".to_owned())
            .spawn(move || merge_loop(&mut reader, &executor, &shared))
            .map_err(|source| Error::File { path: place.shown(), source })?;
        Ok(Merger { queue, thread: Mutex::new(Some(thread)), patience: place.closing_patience() })
    }

    /// Notes so many reports more in a group's tail, that came together.
    pub(crate) fn note(&self, trial: TrialId, group: String, reports: usize) {
        // What may have to be joined, or is about the machine, never shares a row.
        let alone = reports == 1 || group == VALIDATION || PROFILING.contains(&group.as_str());
        let more = if alone { reports * weight_of(1) } else { reports };
        let mut queue = lock(&self.queue.0);
        let group = (trial, group);
        let weight = queue.weights.entry(group.clone()).or_insert(0);
        *weight += more;
        if *weight >= WEIGHT_PER_MERGE && queue.due.insert(group) {
            self.queue.1.notify_one();
        }
    }

    /// Merges what is left of a trial that has ended.
    pub(crate) fn finish(&self, trial: TrialId) {
        let mut queue = lock(&self.queue.0);
        let groups: Vec<Group> = queue.weights.keys().filter(|(owner, _)| *owner == trial).cloned().collect();
        if !groups.is_empty() {
            queue.due.extend(groups);
            self.queue.1.notify_one();
        }
    }

    /// Ends the thread, after the merge that it is at.
    pub(crate) fn close(&self) {
        lock(&self.queue.0).ended = true;
        self.queue.1.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            join_until(thread, self.patience.map(|patience| Instant::now() + patience));
        }
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.close();
    }
}

/// The tails in the database: the group, what it weighs at most, and whether its trial has ended.
pub(super) fn left_over(connection: &Connection) -> Result<Vec<(Group, usize, bool)>> {
    let sql = format!(
        "SELECT trial_id, group_name, SUM(CASE WHEN last_step IS NULL THEN 2 ELSE {REPORTS_PER_ROW} END), \
         MAX(CASE WHEN trials.ended_at IS NULL THEN 0 ELSE 1 END) \
         FROM metric_tail JOIN trials ON trials.id = trial_id GROUP BY trial_id, group_name"
    );
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([], |row| {
        let over: i64 = row.get(3)?;
        Ok(((TrialId(row.get(0)?), row.get(1)?), row.get::<_, i64>(2)? as usize, over == 1))
    })?;
    Ok(rows.collect::<sql::Result<_>>()?)
}

fn merge_loop(reader: &mut Connection, executor: &Executor, queue: &(Mutex<MergeQueue>, Condvar)) {
    let (queue, changed) = queue;
    loop {
        let (trial, group) = {
            let mut queue = lock(queue);
            loop {
                if queue.ended {
                    return;
                }
                if let Some(next) = queue.due.pop_first() {
                    queue.weights.remove(&next);
                    break next;
                }
                queue = wait(changed, queue);
            }
        };
        let outcome = merge(reader, executor, trial, &group);
        let mut queue = lock(queue);
        match outcome {
            Ok(false) => {}
            // There is more of it, or it was changed meanwhile.
            Ok(true) => {
                queue.due.insert((trial, group));
            }
            Err(error) => {
                tracing::error!(trial = trial.0, group, %error, "cannot pack metrics; they stay readable as they are");
                // It is due again
                // with the next report, or the next start: what is damaged does not mend by trying once a second.
                queue.weights.insert((trial, group), WEIGHT_PER_MERGE);
                drop(changed.wait_timeout_while(queue, REST, |queue| !queue.ended));
            }
        }
    }
}

/// What one merge changes of a series.
struct SeriesMerge {
    name: String,
    /// The series as it was read: its id and roll-up.
    before: Option<(i64, String)>,
    roll_up: String,
    /// The number of the first of the new chunks, and how many points the one with that number had.
    first_number: i64,
    points_before: i64,
    chunks: Vec<EncodedChunk>,
}

/// Merges a part of a group's tail; gives whether to go on with it.
fn merge(reader: &mut Connection, executor: &Executor, trial: TrialId, group: &str) -> Result<bool> {
    let prepared = in_snapshot(reader, |connection| prepare(connection, trial, group))?;
    if prepared.ids.is_empty() {
        return Ok(false);
    }
    let more = prepared.weight >= WEIGHT_PER_MERGE;
    let name = group.to_owned();
    let outcome = executor.write_blocking(move |connection| apply(connection, trial, &name, &prepared));
    match outcome {
        Ok(()) => Ok(more),
        Err(Error::Aborted) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Merges a part of a group's tail in the caller's transaction, where nobody else writes; gives whether to go on with it.
pub(super) fn merge_here(connection: &Connection, trial: TrialId, group: &str) -> Result<bool> {
    let prepared = prepare(connection, trial, group)?;
    if prepared.ids.is_empty() {
        return Ok(false);
    }
    apply(connection, trial, group, &prepared)?;
    Ok(prepared.weight >= WEIGHT_PER_MERGE)
}

/// What one merge changes.
struct Prepared {
    /// The rows of the tail that it takes, and what they weigh.
    ids: Vec<i64>,
    weight: usize,
    last_step: i64,
    merges: Vec<SeriesMerge>,
}

fn prepare(connection: &Connection, trial: TrialId, group: &str) -> Result<Prepared> {
    let (mut ids, mut weight, mut last_step) = (Vec::new(), 0, 0);
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    tail::each_row(connection, trial, Some(group), (i64::MIN, i64::MAX), |row| {
        ids.push(row.id);
        let places = row.places()?;
        weight += weight_of(places.len());
        last_step = places.iter().map(|(step, _)| *step).fold(last_step, i64::max);
        row.each(
            |_| true,
            |name, points| match series.get_mut(name) {
                Some(known) => known.extend(points),
                None => {
                    series.insert(name.to_owned(), points.collect());
                }
            },
        )?;
        Ok(if weight < WEIGHT_PER_MERGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    let merges = series.into_iter().map(|(name, points)| prepare_series(connection, trial, group, name, points));
    let merges = merges.collect::<Result<_>>()?;
    Ok(Prepared { ids, weight, last_step, merges })
}

fn prepare_series(
    connection: &Connection,
    trial: TrialId,
    group: &str,
    name: String,
    new: Vec<Point>,
) -> Result<SeriesMerge> {
    let before: Option<(i64, String)> = connection
        .prepare_cached("SELECT id, roll_up FROM metric_series WHERE trial_id = ? AND group_name = ? AND name = ?")?
        .query_row(params![trial.0, group, name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let mut roll_up = match &before {
        Some((_, text)) => RollUp::parse(text)?,
        None => RollUp::empty(),
    };
    new.iter().for_each(|point| roll_up.add(point));
    let last: Option<(i64, i64, Vec<u8>)> = match &before {
        Some((id, _)) => connection
            .prepare_cached(
                "SELECT number, points, content FROM metric_chunks WHERE series_id = ? ORDER BY number DESC LIMIT 1",
            )?
            .query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?,
        None => None,
    };
    // A chunk that is not full is filled up, so that their number stays small.
    let (first_number, points_before, mut points) = match last {
        Some((number, count, content)) if (count as usize) < POINTS_PER_CHUNK => match decode(&content) {
            Ok(points) => (number, count, points),
            // What is damaged stays as it is, for whoever reads it to be told; new points go behind it.
            Err(_) => (number + 1, 0, Vec::new()),
        },
        Some((number, _, _)) => (number + 1, 0, Vec::new()),
        None => (0, 0, Vec::new()),
    };
    points.extend(new);
    points.sort_by_key(|point| (point.step, point.time));
    let chunks = points.chunks(POINTS_PER_CHUNK).map(EncodedChunk::of).collect();
    Ok(SeriesMerge { name, before, roll_up: text_of(&roll_up)?, first_number, points_before, chunks })
}

/// Moves what was prepared, unless something of it has changed.
fn apply(connection: &Connection, trial: TrialId, group: &str, prepared: &Prepared) -> Result<()> {
    let Prepared { ids, last_step, merges, .. } = prepared;
    // SQLite and PostgreSQL both take a few hundred parameters without complaint.
    for part in ids.chunks(256) {
        let sql = format!("DELETE FROM metric_tail WHERE id IN ({})", vec!["?"; part.len()].join(", "));
        if connection.prepare_cached(&sql)?.execute(params_from_iter(part))? != part.len() {
            return Err(Error::Aborted);
        }
    }
    for merge in merges {
        let series = series_as_read(connection, trial, group, merge)?;
        for (offset, chunk) in merge.chunks.iter().enumerate() {
            put_encoded(connection, series, merge.first_number + offset as i64, chunk)?;
        }
    }
    connection
        .prepare_cached(
            "INSERT INTO metric_groups (trial_id, group_name, last_chunked_step) VALUES (?, ?, ?) \
             ON CONFLICT (trial_id, group_name) DO UPDATE SET last_chunked_step = \
             CASE WHEN excluded.last_chunked_step > metric_groups.last_chunked_step \
             THEN excluded.last_chunked_step ELSE metric_groups.last_chunked_step END",
        )?
        .execute(params![trial.0, group, last_step])?;
    Ok(())
}

/// The id of the series, if it and its last chunk are as they were read; its roll-up is replaced.
fn series_as_read(connection: &Connection, trial: TrialId, group: &str, merge: &SeriesMerge) -> Result<i64> {
    let Some((id, roll_up)) = &merge.before else {
        return connection
            .prepare_cached(
                "INSERT INTO metric_series (trial_id, group_name, name, roll_up) VALUES (?, ?, ?, ?) \
                 ON CONFLICT (trial_id, group_name, name) DO NOTHING RETURNING id",
            )?
            .query_row(params![trial.0, group, merge.name, merge.roll_up], |row| row.get(0))
            .optional()?
            .ok_or(Error::Aborted);
    };
    let changed = connection
        .prepare_cached("UPDATE metric_series SET roll_up = ? WHERE id = ? AND roll_up = ?")?
        .execute(params![merge.roll_up, id, roll_up])?;
    let points: Option<i64> = connection
        .prepare_cached("SELECT points FROM metric_chunks WHERE series_id = ? AND number = ?")?
        .query_row([*id, merge.first_number], |row| row.get(0))
        .optional()?;
    if changed == 1 && points.unwrap_or(0) == merge.points_before { Ok(*id) } else { Err(Error::Aborted) }
}
