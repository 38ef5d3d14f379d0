//! Operations as pipelines: what a rank does in each step, and what each step needs.

use std::time::{Duration, Instant};

use crate::Error;
use crate::abort::AbortReason;
use crate::call::Call;
use crate::operation::Whole;
use crate::rank::{LocalRank, ring};
use crate::shm::arena::Arena;
use crate::shm::wait::Interrupted;
use crate::sync::until;

/// Which peers a rank waits for before it takes data out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    All,
    Only(LocalRank),
    Nobody,
}

/// Why an operation stops in the middle.
#[derive(Debug)]
pub(super) enum StepError {
    Interrupted(Interrupted),
    Abort(AbortReason),
    /// Another channel stopped, or could not be started.
    Failed(Error),
}

impl Needs {
    pub(super) fn includes(self, peer: LocalRank) -> bool {
        match self {
            Needs::All => true,
            Needs::Only(only) => only == peer,
            Needs::Nobody => false,
        }
    }
}

impl From<Interrupted> for StepError {
    fn from(interrupted: Interrupted) -> StepError {
        StepError::Interrupted(interrupted)
    }
}

pub(super) type StepResult = Result<(), StepError>;

/// What the closures of a pipeline see.
pub(super) struct View<'a> {
    pub(super) arena: &'a Arena,
    pub(super) rank: LocalRank,
    pub(super) world: usize,
    /// The arena's number of the pipeline's first step.
    pub(super) base: u64,
    /// The most a step puts into a slot.
    pub(super) step_bytes: usize,
    /// The cores this process may use.
    pub(super) cores: usize,
}

impl View<'_> {
    pub(super) fn slot(&self, rank: LocalRank, step: usize) -> *mut u8 {
        self.arena.slot(rank, self.base + step as u64)
    }

    /// The other ranks, starting after this one so that not all read from the same.
    pub(super) fn peers(&self) -> impl Iterator<Item = LocalRank> + use<> {
        ring(self.rank.0, self.world).map(LocalRank)
    }
}

/// What a rank does in one step, by its number.
pub(super) type StepFn<'f> = Box<dyn FnMut(&View<'_>, usize) -> StepResult + 'f>;

/// An operation as steps through the slots of the arena, double buffered.
pub(super) struct Pipeline<'f> {
    pub(super) steps: usize,
    /// Writes to the own slot.
    pub(super) fill: Option<StepFn<'f>>,
    /// Whose slots must be filled before `take`.
    pub(super) needs: Needs,
    /// Works on the others' slots; after it this rank is done with them.
    pub(super) take: Option<StepFn<'f>>,
    /// Reads what the others have put into the own slot or kept in theirs, when all are done.
    pub(super) collect: Option<StepFn<'f>>,
}

impl Pipeline<'_> {
    /// Ranks wait for each other, and nothing moves.
    pub(super) fn new(steps: usize) -> Self {
        Pipeline { steps, fill: None, needs: Needs::Nobody, take: None, collect: None }
    }
}

/// What every wait of an operation needs to know.
pub(super) struct StepContext {
    pub(super) call: Call,
    /// Which operation of the arena.
    pub(super) sequence: u64,
    /// Which operation of the caller, without the transport's own at the start.
    pub(super) user_sequence: u64,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
}

impl StepContext {
    pub(super) fn left(&self) -> Duration {
        until(self.deadline)
    }

    /// What channels do a share of.
    pub(super) fn whole(&self, ranks: usize) -> Whole {
        Whole { call: self.call, sequence: self.user_sequence, ranks, timeout: self.timeout }
    }
}
