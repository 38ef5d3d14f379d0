//! One operation after the other on an arena.
//!
//! Every operation is a [`Flow`]: what a rank puts into its slot for a step, what it takes out of the others' (and may put
//! back), what it then finds. The engine runs the steps, one ahead: a slot is filled while the peers still work on the step
//! before. See [`crate::arena`] for the counters. All ranks derive the same flow from the fingerprint, which
//! they compare at the first step.
#![expect(unsafe_code, reason = "copies between tensors and shared memory")]

mod all_to_all;
mod flow;
mod lanes;
#[cfg(all(test, loom))]
mod model;
mod small;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::control::Counter;
use crate::arena::handshake::Met;
use crate::arena::verdict::Verdict;
use crate::arena::wait::{Interrupted, Waiter};
use crate::arena::{Arena, DEPTH, remote};
use crate::call::Call;
use crate::operation::{Operation, Source, Target, Whole};
use crate::ticket::Output;
use crate::{DataType, Error, Noticed, Rank, Reduction, plan};
use all_to_all::Exchange;
use lanes::Lanes;

/// Barriers of the engine itself before the caller's first operation.
const OWN_OPERATIONS: u64 = 2;
/// The longest time an operation can be given: far, but where instants do not overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Which peers a rank waits for before it takes data out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    All,
    Only(usize),
    Nobody,
}

/// Why an operation stops in the middle.
#[derive(Debug)]
enum Stop {
    Interrupted(Interrupted),
    Verdict(Verdict),
    /// Another lane stopped, or could not be started.
    Failed(Error),
}

impl Needs {
    fn includes(self, peer: usize) -> bool {
        match self {
            Needs::All => true,
            Needs::Only(only) => only == peer,
            Needs::Nobody => false,
        }
    }
}

impl From<Interrupted> for Stop {
    fn from(interrupted: Interrupted) -> Stop {
        Stop::Interrupted(interrupted)
    }
}

type Progress = Result<(), Stop>;

/// What the closures of a flow see.
struct View<'a> {
    arena: &'a Arena,
    rank: usize,
    world: usize,
    /// The arena's number of the flow's first step.
    base: u64,
    /// The most a step puts into a slot.
    step_bytes: usize,
    /// The cores this process may use.
    cores: usize,
}

impl View<'_> {
    fn slot(&self, rank: usize, step: usize) -> *mut u8 {
        self.arena.slot(rank, self.base + step as u64)
    }

    /// The other ranks, starting after this one so that not all read from the same.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |distance| (rank + distance) % world)
    }
}

type Move<'f> = Box<dyn FnMut(&View<'_>, usize) -> Progress + 'f>;

/// An operation as steps.
struct Flow<'f> {
    steps: usize,
    /// Writes to the own slot.
    fill: Option<Move<'f>>,
    /// Whose slots must be filled before `take`.
    needs: Needs,
    /// Works on the others' slots; after it this rank is done with them.
    take: Option<Move<'f>>,
    /// Reads what the others have put into the own slot or kept in theirs, when all are done.
    collect: Option<Move<'f>>,
}

impl Flow<'_> {
    /// Meets and moves nothing.
    fn new(steps: usize) -> Self {
        Flow { steps, fill: None, needs: Needs::Nobody, take: None, collect: None }
    }
}

/// What ranks of a host do together.
#[derive(Clone, Debug)]
pub(crate) enum Work<'a> {
    Operation(&'a Operation),
    /// Each rank gets the reduction of its part of all inputs; parts differ in length.
    Spread {
        parts: Vec<Source>,
        output: Target,
        dtype: DataType,
        reduction: Reduction,
    },
    /// Each rank that wants them (and has a list) gets all inputs; they differ in length, and all ranks know them.
    Collect {
        input: Source,
        lengths: Vec<usize>,
        outputs: Vec<Target>,
    },
    /// The bytes of an all_to_all, when the sizes are known.
    Exchange(&'a Exchange),
}

/// What every wait of an operation needs to know.
struct Watch {
    call: Call,
    /// Which operation of the arena.
    sequence: u64,
    /// Which operation of the caller, without the engine's own at the start.
    shown: u64,
    timeout: Duration,
    deadline: Instant,
}

impl Watch {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What lanes do a share of.
    fn whole(&self, ranks: usize) -> Whole {
        Whole { call: self.call, sequence: self.shown, ranks, timeout: self.timeout }
    }
}

/// What a rank has and would like; all do as the most modest.
pub(crate) struct Wishes {
    /// The cores this process may use.
    pub(crate) cores: usize,
    /// Whether peers may read its memory.
    pub(crate) single_copy: bool,
    pub(crate) lanes: usize,
    pub(crate) lane_bytes: usize,
}

/// A rank's place in an arena.
pub(crate) struct Engine {
    arena: Arc<Arena>,
    waiter: Waiter,
    /// The group's rank of every rank in the arena.
    members: Vec<usize>,
    /// In the order of the group's ranks.
    hosts: Vec<String>,
    /// Whether all ranks can read each other's memory, for messages.
    single_copy: bool,
    /// An all_reduce of at most so many bytes is done at once.
    small_bytes: usize,
    /// The most a step puts into a slot, the same on every rank.
    step_bytes: usize,
    step: u64,
    /// Every rank is known to be done with the steps before this one.
    freed: u64,
    sequence: u64,
    touched: bool,
    lanes: Lanes,
    /// Who made it: a forked child has a copy, which must not speak for its parent.
    process: u32,
    /// What survivors of the generation before agree to have completed.
    agreed: Option<u64>,
}

impl Engine {
    /// Takes the place, and finds out with the others whether they can read each other's memory.
    pub(crate) fn new(
        (arena, processes): Met,
        rank: usize,
        members: Vec<usize>,
        hosts: Vec<String>,
        wishes: &Wishes,
        history: Option<u64>,
        timeout: Duration,
    ) -> Result<Engine, Error> {
        let world = arena.world();
        let waiter = Waiter::new(processes.into(), rank, world, wishes.cores);
        let mut engine = Engine::at_first_step(Arc::new(arena), waiter, members, hosts);
        // A word on the heap: threads of other ranks read it, too.
        let probe = Box::new(0x696e_7374_6570_0000_u64 | rank as u64);
        remote::permit();
        engine.arena.control(rank).introduce(
            std::process::id(),
            (&raw const *probe) as u64,
            engine.waiter.cores,
            (wishes.lanes, wishes.lane_bytes),
            history,
        );
        engine.run(&Operation::Barrier, timeout)?;
        let can_read = wishes.single_copy && (0..world).all(|peer| engine.can_read(peer));
        engine.arena.control(rank).set_can_read(can_read);
        engine.run(&Operation::Barrier, timeout)?;
        drop(probe);
        engine.single_copy = (0..world).all(|peer| engine.arena.control(peer).can_read());
        let cores = (0..world).map(|peer| engine.arena.control(peer).cores()).min().unwrap_or(1);
        engine.step_bytes = plan::step_bytes(engine.arena.slot_bytes(), world, cores);
        engine.small_bytes = plan::small_bytes(world, cores).min(engine.arena.slot_bytes());
        let lanes = (0..world).map(|peer| engine.arena.control(peer).lanes()).min().unwrap_or(1);
        engine.lanes.count = lanes.min(engine.arena.lanes());
        engine.lanes.least_bytes = (0..world).map(|peer| engine.arena.control(peer).lane_bytes()).max().unwrap_or(0);
        engine.agreed = (0..world).filter_map(|peer| engine.arena.control(peer).history()).min();
        Ok(engine)
    }

    /// A place in an arena that nobody has used yet.
    fn at_first_step(arena: Arc<Arena>, waiter: Waiter, members: Vec<usize>, hosts: Vec<String>) -> Engine {
        Engine {
            waiter,
            members,
            hosts,
            single_copy: false,
            small_bytes: 0,
            step_bytes: arena.slot_bytes(),
            step: 0,
            freed: 0,
            sequence: 0,
            touched: false,
            lanes: Lanes::first(),
            process: std::process::id(),
            agreed: None,
            arena,
        }
    }

    /// This rank's place in another lane.
    fn sibling(&self, lane: usize) -> Engine {
        let arena = Arc::new(self.arena.lane(lane));
        let mut engine = Engine::at_first_step(arena, self.waiter.clone(), self.members.clone(), self.hosts.clone());
        engine.small_bytes = self.small_bytes.min(engine.arena.slot_bytes());
        engine
    }

    fn can_read(&self, peer: usize) -> bool {
        let control = self.arena.control(peer);
        let mut found = 0u64;
        // SAFETY: eight bytes on this stack.
        let read = unsafe { remote::read(control.process(), control.probe(), (&raw mut found).cast(), 8) };
        read.is_ok() && found == 0x696e_7374_6570_0000 | peer as u64
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// A handle on every rank's process.
    pub(crate) fn processes(&self) -> Arc<[OwnedFd]> {
        Arc::clone(&self.waiter.processes)
    }

    /// The arena's number of the part that comes next, the same on every rank between two operations.
    pub(crate) fn next_part(&self) -> u64 {
        self.sequence
    }

    /// Operations completed since the group was connected.
    pub(crate) fn completed(&self) -> u64 {
        self.sequence.saturating_sub(OWN_OPERATIONS)
    }

    pub(crate) fn agreed(&self) -> Option<u64> {
        self.agreed
    }

    pub(crate) fn uses_single_copy(&self) -> bool {
        self.single_copy
    }

    /// What the last operation that failed did to its output.
    pub(crate) fn output(&self) -> Output {
        if self.touched { Output::Undefined } else { Output::Untouched }
    }

    pub(crate) fn rank(&self) -> usize {
        self.waiter.rank
    }

    /// Runs an operation whose buffers are valid until it returns. After an error the group is aborted, except for an
    /// operation that contradicts itself, of which nothing was sent.
    pub(crate) fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error> {
        let call = operation.check(self.rank(), self.arena.world())?;
        let timeout = timeout.min(LONGEST);
        let whole = Whole { call, sequence: self.completed(), ranks: self.arena.world(), timeout };
        self.run_part(&Work::Operation(operation), &whole, timeout)
    }

    /// Runs a part of what the group's ranks called, in the time that is left for it; as [`Engine::run`] otherwise.
    pub(crate) fn run_part(&mut self, work: &Work<'_>, whole: &Whole, left: Duration) -> Result<(), Error> {
        self.touched = false;
        let &Whole { call, sequence: shown, timeout, .. } = whole;
        let deadline = Instant::now() + left.min(LONGEST);
        let watch = Watch { call, sequence: self.sequence, shown, timeout, deadline };
        self.waiter.operation = shown;
        match self.perform(work, &watch) {
            Ok(()) => {
                self.arena.control(self.rank()).complete(self.sequence);
                self.sequence += 1;
                Ok(())
            }
            Err(stop) => Err(self.failed(stop, &watch)),
        }
    }

    fn failed(&self, stop: Stop, watch: &Watch) -> Error {
        let by = self.members[self.rank()];
        let &Watch { call, shown: sequence, timeout, .. } = watch;
        let verdict = match stop {
            Stop::Verdict(verdict) => Some(verdict),
            Stop::Failed(error) => {
                self.arena.abort(&Verdict::Aborted { by });
                return error;
            }
            Stop::Interrupted(Interrupted::Verdict) => None,
            Stop::Interrupted(Interrupted::Lost(rank, noticed)) => {
                Some(Verdict::Lost { rank: self.members[rank], call, sequence, noticed, by })
            }
            Stop::Interrupted(Interrupted::Deadline) => {
                let absent = |rank: &usize| !self.arena.control(*rank).has_entered(watch.sequence);
                let here: Vec<usize> = (0..self.arena.world()).filter(absent).map(|rank| self.members[rank]).collect();
                // All are here: some may wait for other hosts.
                let elsewhere = || self.arena.absent_elsewhere(sequence).unwrap_or_default();
                let missing = if here.is_empty() { elsewhere() } else { here };
                Some(Verdict::Timeout { call, sequence, timeout, missing, by })
            }
        };
        if let Some(verdict) = verdict {
            self.arena.abort(&verdict);
        }
        self.why_aborted()
    }

    /// The verdict as an error.
    pub(crate) fn why_aborted(&self) -> Error {
        let host = |rank: usize| self.hosts.get(rank).cloned().unwrap_or_default();
        let own = || Error::Aborted { by: Rank(self.members[self.rank()]) };
        self.arena.verdict().map_or_else(own, |verdict| verdict.to_error(host))
    }

    fn wait(&self, peer: usize, counter: Counter, target: u64, watch: &Watch) -> Progress {
        Ok(self.waiter.wait(&self.arena, peer, counter, target, watch.sequence, watch.deadline)?)
    }

    fn wait_all(&self, counter: Counter, target: u64, watch: &Watch) -> Progress {
        let (rank, world) = (self.rank(), self.arena.world());
        (1..world).try_for_each(|distance| self.wait((rank + distance) % world, counter, target, watch))
    }

    /// Waits until nobody touches any more what this rank wrote for step `step - DEPTH`.
    fn wait_free(&mut self, step: u64, watch: &Watch) -> Progress {
        let target = (step + 1).saturating_sub(DEPTH);
        if target > self.freed {
            self.wait_all(Counter::Done, target, watch)?;
            self.freed = target;
        }
        Ok(())
    }

    fn perform(&mut self, work: &Work<'_>, watch: &Watch) -> Progress {
        if self.arena.is_aborted_for(watch.shown) {
            return Err(Interrupted::Verdict.into());
        }
        self.wait_free(self.step, watch)?;
        let control = self.arena.control(self.rank());
        let fingerprint = watch.call.fingerprint(watch.sequence);
        control.enter(watch.sequence, self.step, &watch.call, fingerprint);
        match work {
            Work::Operation(Operation::AllToAll { inputs, outputs, dtype }) => {
                self.perform_all_to_all(inputs, outputs, *dtype, watch)
            }
            Work::Operation(operation) => {
                let lanes = self.lanes.worth(operation.bytes_of_all(self.arena.world()));
                if lanes == 1 {
                    return self.perform_here(operation, fingerprint, watch);
                }
                let share = |lane: usize| operation.moved_to_lane(lane, lanes);
                let own = |engine: &mut Engine, share: &Operation| engine.perform_here(share, fingerprint, watch);
                self.in_lanes(lanes, watch, share, |share| Work::Operation(share), own)
            }
            Work::Spread { parts, output, dtype, reduction } => {
                let flow = flow::spread(parts.clone(), *output, *dtype, *reduction, &self.whole_slots());
                self.run_flow(flow, Some(fingerprint), watch)
            }
            Work::Collect { input, lengths, outputs } => {
                let flow = flow::collect(*input, lengths.clone(), outputs.clone(), &self.whole_slots());
                self.run_flow(flow, Some(fingerprint), watch)
            }
            Work::Exchange(exchange) => self.exchange(exchange, Some(fingerprint), watch),
        }
    }

    /// An operation, or this lane's share of one.
    fn perform_here(&mut self, operation: &Operation, fingerprint: u64, watch: &Watch) -> Progress {
        let small = operation.bytes() <= self.small_bytes;
        match operation {
            Operation::AllReduce { input, output, dtype, reduction } if small => {
                self.all_reduce_small(*input, *output, (*dtype, *reduction), fingerprint, watch)
            }
            _ => self.run_flow(flow::flow(operation, &self.view(), small), Some(fingerprint), watch),
        }
    }

    fn view(&self) -> View<'_> {
        View {
            arena: &self.arena,
            rank: self.rank(),
            world: self.arena.world(),
            base: self.step,
            step_bytes: self.step_bytes,
            cores: self.waiter.cores,
        }
    }

    /// For stages with a network between them, which costs more than what stays in a cache.
    fn whole_slots(&self) -> View<'_> {
        View { step_bytes: self.arena.slot_bytes(), ..self.view() }
    }

    /// Says that the first slot is filled, and with a fingerprint meets the peers and compares.
    fn start(&mut self, fingerprint: Option<u64>, watch: &Watch) -> Progress {
        let base = self.step;
        self.arena.control(self.rank()).publish(Counter::Ready, base + 1);
        let Some(fingerprint) = fingerprint else { return Ok(()) };
        let (rank, world) = (self.rank(), self.arena.world());
        for distance in 1..world {
            let peer = (rank + distance) % world;
            self.wait(peer, Counter::Ready, base + 1, watch)?;
            let control = self.arena.control(peer);
            if control.fingerprint(base) != fingerprint {
                let other = control.call(base).ok_or(Interrupted::Lost(peer, Noticed::LeftGroup))?;
                let sequence = watch.shown;
                let (rank, other_rank) = (self.members[rank], self.members[peer]);
                let verdict = Verdict::Mismatch { rank, call: watch.call, other_rank, other, sequence };
                return Err(Stop::Verdict(verdict));
            }
        }
        // Who begins with this step is done with those before it.
        self.freed = self.freed.max(base);
        Ok(())
    }

    fn run_flow(&mut self, mut flow: Flow<'_>, fingerprint: Option<u64>, watch: &Watch) -> Progress {
        let base = self.step;
        let rank = self.rank();
        if fingerprint.is_none() {
            self.wait_free(base, watch)?;
        }
        debug_assert!(flow.steps >= 1);
        if let Some(fill) = &mut flow.fill {
            fill(&self.view(), 0)?;
        }
        self.start(fingerprint, watch)?;
        for step in 0..flow.steps {
            let number = base + step as u64;
            if step + 1 < flow.steps {
                self.wait_free(number + 1, watch)?;
                if let Some(fill) = &mut flow.fill {
                    fill(&self.view(), step + 1)?;
                }
                self.arena.control(rank).publish(Counter::Ready, number + 2);
            }
            match flow.needs {
                Needs::All => self.wait_all(Counter::Ready, number + 1, watch)?,
                Needs::Only(peer) if peer != rank => self.wait(peer, Counter::Ready, number + 1, watch)?,
                Needs::Only(_) | Needs::Nobody => {}
            }
            if let Some(take) = &mut flow.take {
                self.touched = true;
                take(&self.view(), step)?;
            }
            self.arena.control(rank).publish(Counter::Done, number + 1);
            if let Some(collect) = &mut flow.collect {
                self.wait_all(Counter::Done, number + 1, watch)?;
                collect(&self.view(), step)?;
            }
        }
        self.step = base + flow.steps as u64;
        Ok(())
    }
}

impl Drop for Engine {
    /// Peers that still need this rank learn at once that it will not come.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.arena.control(self.rank()).leave();
        }
    }
}
