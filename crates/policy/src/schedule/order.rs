//! Who is before whom in a pool's queue, and how jobs are moved.

use instep_api::wire::Timestamp;

use super::model::{Job, Queue};

/// A place in the queue: compares as the queue is ordered, the first being the least.
pub type QueuePosition<'a> = (u32, i64, Timestamp, &'a str, Timestamp, &'a str);

/// The place of a job's request: by priority, position in the queue and time of submission; within a job by when it was
/// asked for.
pub fn queue_position<'a>(job: &Job, job_id: &'a str, asked: Timestamp, id: &'a str) -> QueuePosition<'a> {
    (job.priority, job.position, job.submitted, job_id, asked, id)
}

/// The jobs of a pool in the order of its queue.
pub fn jobs_in_order<'a>(queue: &'a Queue, pool: &str) -> Vec<&'a str> {
    let mut jobs: Vec<(&str, &Job)> =
        queue.jobs.iter().filter(|(_, job)| job.pool == pool).map(|(id, job)| (id.as_str(), job)).collect();
    jobs.sort_by_key(|(id, job)| (job.priority, job.position, job.submitted, *id));
    jobs.into_iter().map(|(id, _)| id).collect()
}

/// Which side of another job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Just before it.
    Ahead,
    /// Just after it.
    Behind,
}

/// A job's new place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Moved {
    pub job: String,
    /// Its priority now.
    pub priority: u32,
    /// Its position now.
    pub position: i64,
}

/// Moves a job next to another one of its pool. It takes on the other's priority; the positions of that priority are
/// dealt out again, so the answer names every job that changes.
pub fn move_job(queue: &Queue, job: &str, side: Side, anchor: &str) -> Result<Vec<Moved>, String> {
    let find = |id: &str| queue.jobs.get(id).ok_or_else(|| format!("there is no job {id} in the queue"));
    let (moving, beside) = (find(job)?, find(anchor)?);
    if job == anchor {
        return Err(format!("{} cannot be moved next to itself", moving.name));
    }
    if moving.pool != beside.pool {
        let (name, other) = (&moving.name, &beside.name);
        return Err(format!("{name} is in pool {}, {other} is in pool {}", moving.pool, beside.pool));
    }
    let mut order: Vec<&str> = jobs_in_order(queue, &beside.pool)
        .into_iter()
        .filter(|id| *id != job && queue.jobs[*id].priority == beside.priority)
        .collect();
    let at = order.iter().position(|id| *id == anchor).unwrap_or(order.len());
    order.insert(at + usize::from(side == Side::Behind), job);
    Ok(deal(queue, &order, beside.priority))
}

/// Gives these jobs, in this order, the positions that they have between them.
fn deal(queue: &Queue, order: &[&str], priority: u32) -> Vec<Moved> {
    let mut positions: Vec<i64> = order.iter().map(|id| queue.jobs[*id].position).collect();
    positions.sort_unstable();
    for index in 1..positions.len() {
        positions[index] = positions[index].max(positions[index - 1] + 1);
    }
    order
        .iter()
        .zip(positions)
        .filter(|(id, position)| {
            let job = &queue.jobs[**id];
            (job.priority, job.position) != (priority, *position)
        })
        .map(|(id, position)| Moved { job: (*id).to_owned(), priority, position })
        .collect()
}
