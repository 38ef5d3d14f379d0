//! One pool and its part of the queue, in order: what the rules work on.

use std::collections::{BTreeSet, HashSet};

use super::board::Board;
use super::fit::{self, Fit};
use super::model::{Agent, Grant, Holder, Job, Queue, Request, Settings, Start};
use super::order::{QueuePosition, queue_position};

/// A request with its job.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub request: &'a Request,
    pub job: &'a Job,
    pub queue_position: QueuePosition<'a>,
}

/// A running allocation with its job.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub holder: &'a Holder,
    pub job: &'a Job,
    pub queue_position: QueuePosition<'a>,
}

/// One pool and its part of the queue.
pub(super) struct View<'a> {
    pub pool: &'a str,
    pub settings: &'a Settings,
    /// As the pass leaves it: with what it promised.
    pub board: Board,
    /// In order.
    pub waiting: Vec<Candidate<'a>>,
    /// As the board numbers them.
    pub running: Vec<Held<'a>>,
}

/// What becomes of a request.
pub(super) enum Decision<'a> {
    /// It starts.
    Start(Start),
    /// It would fit, but nothing more starts in a pass in which work was asked to stop.
    NextPass,
    /// These running allocations are stopping, and their slots are kept for it.
    MakingRoom(Vec<usize>),
    /// There is no room.
    NoRoom,
    /// This one, which is more important, has no room; what comes later must not take any before it.
    Behind(Candidate<'a>),
    /// Its job has its share.
    ShareSpent {
        /// Slots that the job may hold now.
        offered: usize,
        /// Slots that it holds.
        held: usize,
    },
}

/// What a request needs, apart from who it is: alike requests fit or fail alike.
pub(super) type Shape<'a> = (usize, bool, &'a BTreeSet<String>, &'a str);

/// Shapes for which a kind of search was in vain. While a pass only takes slots away, it stays so.
#[derive(Default)]
pub(super) struct Failures<'a> {
    shapes: HashSet<Shape<'a>>,
}

impl<'a> Failures<'a> {
    /// Searches, unless it is known to be in vain.
    pub fn unless_known<T>(&mut self, request: &'a Request, search: impl FnOnce() -> Option<T>) -> Option<T> {
        let shape = shape(request);
        if self.shapes.contains(&shape) {
            return None;
        }
        let found = search();
        if found.is_none() {
            self.shapes.insert(shape);
        }
        found
    }

    /// More will be free than was known.
    pub fn forget(&mut self) {
        self.shapes.clear();
    }
}

/// What a request needs.
pub(super) fn shape(request: &Request) -> Shape<'_> {
    (request.slots, request.single_node, &request.excluded, &request.user)
}

impl<'a> View<'a> {
    /// The part of the queue that belongs to a pool.
    pub fn new(pool: &'a str, settings: &'a Settings, agents: &[Agent], queue: &'a Queue) -> View<'a> {
        let mine = |job: &str| queue.jobs.get(job).filter(|job| job.pool == pool);
        let mut waiting: Vec<Candidate<'a>> = queue
            .waiting
            .iter()
            .filter_map(|request| {
                let job = mine(&request.job)?;
                Some(Candidate {
                    request,
                    job,
                    queue_position: queue_position(job, &request.job, request.asked, &request.id),
                })
            })
            .collect();
        waiting.sort_by(|one, other| one.queue_position.cmp(&other.queue_position));
        // Whoever sits on a machine of this pool takes its slots, also if the job was moved to another pool since.
        let local: HashSet<&str> = agents.iter().map(|agent| agent.id.as_str()).collect();
        let running: Vec<Held<'a>> = queue
            .running
            .iter()
            .filter(|holder| holder.placement.iter().any(|grant| local.contains(grant.agent.as_str())))
            .filter_map(|holder| {
                let job = queue.jobs.get(&holder.job)?;
                Some(Held { holder, job, queue_position: queue_position(job, &holder.job, holder.asked, &holder.id) })
            })
            .collect();
        let board = Board::new(agents, running.iter().map(|held| held.holder));
        View { pool, settings, board, waiting, running }
    }

    /// Where a request fits now.
    pub fn find(&self, request: &Request) -> Option<Fit> {
        fit::find(&self.board, request, self.settings)
    }

    /// Gives slots to a request.
    pub fn promise(&mut self, request: &Request, fit: &Fit) -> Vec<Grant> {
        promise(&mut self.board, request, fit, None)
    }
}

/// Gives slots of a board to a request; see [`Board::promise`].
pub(super) fn promise(board: &mut Board, request: &Request, fit: &Fit, now: Option<&Board>) -> Vec<Grant> {
    fit.iter()
        .map(|(machine, count)| {
            board.machines[*machine].admit(&request.user);
            if *count == 0 {
                board.machines[*machine].zero_slot_tasks += 1;
            }
            board.promise(*machine, *count, now)
        })
        .collect()
}
