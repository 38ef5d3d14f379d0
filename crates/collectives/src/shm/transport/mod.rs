//! One operation after the other on an arena.
//!
//! Every operation is a [`Pipeline`]: what a rank puts into its slot for a step, what it takes out of the others' (and may put
//! back), what it then finds. The transport runs the steps, one ahead: a slot is filled while the peers still work on the step
//! before. See [`crate::shm::arena`] for the counters. All ranks derive the same pipeline from the fingerprint, which
//! they compare at the first step.
#![expect(unsafe_code, reason = "copies between tensors and shared memory")]

mod all_to_all;
mod channels;
#[cfg(all(test, loom))]
mod model;
mod operations;
mod pipeline;
mod small;
mod work;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abort::{Abort, AbortReason};
use crate::operation::{Operation, Whole};
use crate::rank::{LocalRank, ring};
use crate::shm::arena::control::Counter;
use crate::shm::arena::{Arena, DEPTH};
use crate::shm::bootstrap::SharedArena;
use crate::shm::remote;
use crate::shm::wait::{Interrupted, Waiter};
use crate::sync::{ForkGuard, MAX_TIMEOUT};
use crate::ticket::Output;
use crate::transport::Transport;
use crate::{Error, LossCause, Rank, partition};
use channels::Channels;
use pipeline::{Needs, Pipeline, StepContext, StepError, StepResult, View};
pub(crate) use work::Work;

/// Barriers of the transport itself before the caller's first operation.
const INTERNAL_OPERATIONS: u64 = 2;

/// Who shares the arena.
pub(crate) struct ShmMembership {
    pub(crate) local_rank: LocalRank,
    /// The group's rank of every rank in the arena.
    pub(crate) members: Vec<Rank>,
    /// Of all ranks of the group, also where they do not share the arena.
    pub(crate) hosts: Vec<String>,
    /// Operations that this rank completed in the generation before, if it was a member.
    pub(crate) history: Option<u64>,
}

/// What a rank has and would like; all do as the most modest.
pub(crate) struct ShmPreferences {
    /// The cores this process may use.
    pub(crate) cores: usize,
    /// Whether peers may read its memory.
    pub(crate) single_copy: bool,
    pub(crate) channels: usize,
    pub(crate) channel_bytes: usize,
}

/// One rank's side of the collectives of an arena.
pub(crate) struct ShmTransport {
    arena: Arc<Arena>,
    waiter: Waiter,
    /// The group's rank of every rank in the arena.
    members: Vec<Rank>,
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
    channels: Channels,
    owner: ForkGuard,
    /// What survivors of the generation before agree to have completed.
    agreed: Option<u64>,
}

impl ShmTransport {
    /// Finds out with the others what all of them can do, and whether they can read each other's memory.
    pub(crate) fn new(
        shared: SharedArena,
        membership: ShmMembership,
        preferences: &ShmPreferences,
        timeout: Duration,
    ) -> Result<ShmTransport, Error> {
        let SharedArena { arena, processes } = shared;
        let ShmMembership { local_rank, members, hosts, history } = membership;
        let world = arena.world();
        let waiter = Waiter::new(processes.into(), local_rank, world, preferences.cores);
        let mut transport = ShmTransport::at_first_step(Arc::new(arena), waiter, members, hosts);
        // A word on the heap: threads of other ranks read it, too.
        let probe = Box::new(0x696e_7374_6570_0000_u64 | local_rank.0 as u64);
        remote::permit();
        transport.arena.control(local_rank).publish_identity(
            std::process::id(),
            (&raw const *probe) as u64,
            transport.waiter.cores,
            (preferences.channels, preferences.channel_bytes),
            history,
        );
        transport.run(&Operation::Barrier, timeout)?;
        let can_read = preferences.single_copy && LocalRank::all(world).all(|peer| transport.can_read(peer));
        transport.arena.control(local_rank).set_can_read(can_read);
        transport.run(&Operation::Barrier, timeout)?;
        drop(probe);
        transport.single_copy = LocalRank::all(world).all(|peer| transport.arena.control(peer).can_read());
        let cores = LocalRank::all(world).map(|peer| transport.arena.control(peer).cores()).min().unwrap_or(1);
        transport.step_bytes = partition::step_bytes(transport.arena.slot_bytes(), world, cores);
        transport.small_bytes = partition::small_bytes(world, cores).min(transport.arena.slot_bytes());
        let channels = LocalRank::all(world).map(|peer| transport.arena.control(peer).channels()).min().unwrap_or(1);
        transport.channels.count = channels.min(transport.arena.channels());
        transport.channels.least_bytes =
            LocalRank::all(world).map(|peer| transport.arena.control(peer).channel_bytes()).max().unwrap_or(0);
        transport.agreed = LocalRank::all(world).filter_map(|peer| transport.arena.control(peer).history()).min();
        Ok(transport)
    }

    /// A transport on an arena that nobody has used yet.
    fn at_first_step(arena: Arc<Arena>, waiter: Waiter, members: Vec<Rank>, hosts: Vec<String>) -> ShmTransport {
        ShmTransport {
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
            channels: Channels::first(),
            owner: ForkGuard::new(),
            agreed: None,
            arena,
        }
    }

    /// The same rank in another channel.
    fn sibling(&self, channel: usize) -> ShmTransport {
        let arena = Arc::new(self.arena.channel(channel));
        let mut transport =
            ShmTransport::at_first_step(arena, self.waiter.clone(), self.members.clone(), self.hosts.clone());
        transport.small_bytes = self.small_bytes.min(transport.arena.slot_bytes());
        transport
    }

    fn can_read(&self, peer: LocalRank) -> bool {
        let control = self.arena.control(peer);
        let mut found = 0u64;
        // SAFETY: eight bytes on this stack.
        let read = unsafe { remote::read(control.process(), control.probe(), (&raw mut found).cast(), 8) };
        read.is_ok() && found == 0x696e_7374_6570_0000 | peer.0 as u64
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn local_rank(&self) -> LocalRank {
        self.waiter.rank
    }

    fn group_rank(&self, rank: LocalRank) -> Rank {
        self.members[rank.0]
    }

    /// The arena's number of the part that comes next, the same on every rank between two operations.
    pub(crate) fn next_part(&self) -> u64 {
        self.sequence
    }

    /// Runs a part of what the group's ranks called, in the time that is left for it; as [`ShmTransport::run`] otherwise.
    pub(crate) fn run_part(&mut self, work: &Work<'_>, whole: &Whole, left: Duration) -> Result<(), Error> {
        self.touched = false;
        let &Whole { call, sequence: user_sequence, timeout, .. } = whole;
        let deadline = Instant::now() + left.min(MAX_TIMEOUT);
        let context = StepContext { call, sequence: self.sequence, user_sequence, timeout, deadline };
        self.waiter.operation = user_sequence;
        match self.perform(work, &context) {
            Ok(()) => {
                self.arena.control(self.local_rank()).complete(self.sequence);
                self.sequence += 1;
                Ok(())
            }
            Err(error) => Err(self.failed(error, &context)),
        }
    }

    fn failed(&self, error: StepError, context: &StepContext) -> Error {
        let by = self.rank();
        let &StepContext { call, user_sequence: sequence, timeout, .. } = context;
        let reason = match error {
            StepError::Abort(reason) => Some(reason),
            StepError::Failed(error) => {
                self.arena.abort(&AbortReason::Aborted { by });
                return error;
            }
            StepError::Interrupted(Interrupted::Aborted) => None,
            StepError::Interrupted(Interrupted::Lost(rank, noticed)) => {
                Some(AbortReason::Lost { rank: self.group_rank(rank), call, sequence, noticed, by })
            }
            StepError::Interrupted(Interrupted::Deadline) => {
                let is_late = |rank: &LocalRank| !self.arena.control(*rank).has_entered(context.sequence);
                let late_here: Vec<Rank> =
                    LocalRank::all(self.arena.world()).filter(is_late).map(|rank| self.group_rank(rank)).collect();
                // All are here: some may wait for other hosts.
                let elsewhere = || self.arena.late_elsewhere(sequence).unwrap_or_default();
                let missing = if late_here.is_empty() { elsewhere() } else { late_here };
                Some(AbortReason::Timeout { call, sequence, timeout, missing, by })
            }
        };
        if let Some(reason) = reason {
            self.arena.abort(&reason);
        }
        self.abort().to_error(by, &self.hosts)
    }

    /// Aborts the group if a rank of this host is gone which has the next part of an operation to do. For a rank that
    /// waits elsewhere meanwhile.
    pub(crate) fn abort_if_peer_is_lost(&self, whole: &Whole) {
        if let Some((rank, noticed)) = self.waiter.lost(&self.arena, self.sequence) {
            let (rank, by) = (self.group_rank(rank), self.rank());
            let &Whole { call, sequence, .. } = whole;
            self.arena.abort(&AbortReason::Lost { rank, call, sequence, noticed, by });
        }
    }

    fn wait(&self, peer: LocalRank, counter: Counter, target: u64, context: &StepContext) -> StepResult {
        Ok(self.waiter.wait(&self.arena, peer, counter, target, context.sequence, context.deadline)?)
    }

    fn wait_all(&self, counter: Counter, target: u64, context: &StepContext) -> StepResult {
        let mut peers = ring(self.local_rank().0, self.arena.world());
        peers.try_for_each(|peer| self.wait(LocalRank(peer), counter, target, context))
    }

    /// Waits until nobody touches any more what this rank wrote for step `step - DEPTH`.
    fn wait_free(&mut self, step: u64, context: &StepContext) -> StepResult {
        let target = (step + 1).saturating_sub(DEPTH);
        if target > self.freed {
            self.wait_all(Counter::Done, target, context)?;
            self.freed = target;
        }
        Ok(())
    }

    fn perform(&mut self, work: &Work<'_>, context: &StepContext) -> StepResult {
        if self.arena.is_aborted_for(context.user_sequence) {
            return Err(Interrupted::Aborted.into());
        }
        self.wait_free(self.step, context)?;
        let control = self.arena.control(self.local_rank());
        let fingerprint = context.call.fingerprint(context.sequence);
        control.enter(context.sequence, self.step, &context.call, fingerprint);
        match work {
            Work::Operation(Operation::AllToAll { inputs, outputs, dtype }) => {
                self.perform_all_to_all(inputs, outputs, *dtype, context)
            }
            Work::Operation(operation) => {
                let channels = self.channels.worth(operation.bytes_of_all(self.arena.world()));
                if channels == 1 {
                    return self.perform_here(operation, fingerprint, context);
                }
                let share = |channel: usize| operation.channel_share(channel, channels);
                let own = |transport: &mut ShmTransport, share: &Operation| {
                    transport.perform_here(share, fingerprint, context)
                };
                self.in_channels(channels, context, share, |share| Work::Operation(share), own)
            }
            Work::ReduceScatter { parts, output, dtype, reduction } => {
                let pipeline =
                    operations::reduce_scatter(parts.clone(), *output, *dtype, *reduction, &self.whole_slots());
                self.run_pipeline(pipeline, Some(fingerprint), context)
            }
            Work::Gather { input, lengths, outputs } => {
                let pipeline = operations::gather(*input, lengths.clone(), outputs.clone(), &self.whole_slots());
                self.run_pipeline(pipeline, Some(fingerprint), context)
            }
            Work::Exchange(exchange) => self.exchange(exchange, Some(fingerprint), context),
        }
    }

    /// An operation, or this channel's share of one.
    fn perform_here(&mut self, operation: &Operation, fingerprint: u64, context: &StepContext) -> StepResult {
        let small = operation.bytes() <= self.small_bytes;
        match operation {
            Operation::AllReduce { input, output, dtype, reduction } if small => {
                self.all_reduce_small(*input, *output, (*dtype, *reduction), fingerprint, context)
            }
            _ => self.run_pipeline(operations::pipeline(operation, &self.view(), small), Some(fingerprint), context),
        }
    }

    fn view(&self) -> View<'_> {
        View {
            arena: &self.arena,
            rank: self.local_rank(),
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

    /// Says that the first slot is filled, and with a fingerprint waits for the peers and compares.
    fn start(&mut self, fingerprint: Option<u64>, context: &StepContext) -> StepResult {
        let base = self.step;
        self.arena.control(self.local_rank()).publish(Counter::Ready, base + 1);
        let Some(fingerprint) = fingerprint else { return Ok(()) };
        let rank = self.local_rank();
        for peer in ring(rank.0, self.arena.world()).map(LocalRank) {
            self.wait(peer, Counter::Ready, base + 1, context)?;
            let control = self.arena.control(peer);
            if control.fingerprint(base) != fingerprint {
                let other = control.call(base).ok_or(Interrupted::Lost(peer, LossCause::LeftGroup))?;
                let sequence = context.user_sequence;
                let (rank, other_rank) = (self.group_rank(rank), self.group_rank(peer));
                let reason = AbortReason::Mismatch { rank, call: context.call, other_rank, other, sequence };
                return Err(StepError::Abort(reason));
            }
        }
        // Who begins with this step is done with those before it.
        self.freed = self.freed.max(base);
        Ok(())
    }

    /// Runs a collective step by step through the slots of the arena. What a step copies in, reduces and copies out is
    /// in the [`Pipeline`]'s functions: for an all_reduce, those of `by_segments` in `operations.rs`.
    fn run_pipeline(
        &mut self,
        mut pipeline: Pipeline<'_>,
        fingerprint: Option<u64>,
        context: &StepContext,
    ) -> StepResult {
        let base = self.step;
        let rank = self.local_rank();
        if fingerprint.is_none() {
            self.wait_free(base, context)?;
        }
        debug_assert!(pipeline.steps >= 1);
        if let Some(fill) = &mut pipeline.fill {
            fill(&self.view(), 0)?;
        }
        self.start(fingerprint, context)?;
        for step in 0..pipeline.steps {
            let number = base + step as u64;
            if step + 1 < pipeline.steps {
                self.wait_free(number + 1, context)?;
                if let Some(fill) = &mut pipeline.fill {
                    fill(&self.view(), step + 1)?;
                }
                self.arena.control(rank).publish(Counter::Ready, number + 2);
            }
            match pipeline.needs {
                Needs::All => self.wait_all(Counter::Ready, number + 1, context)?,
                Needs::Only(peer) if peer != rank => self.wait(peer, Counter::Ready, number + 1, context)?,
                Needs::Only(_) | Needs::Nobody => {}
            }
            if let Some(take) = &mut pipeline.take {
                self.touched = true;
                take(&self.view(), step)?;
            }
            self.arena.control(rank).publish(Counter::Done, number + 1);
            if let Some(collect) = &mut pipeline.collect {
                self.wait_all(Counter::Done, number + 1, context)?;
                collect(&self.view(), step)?;
            }
        }
        self.step = base + pipeline.steps as u64;
        Ok(())
    }
}

impl Transport for ShmTransport {
    fn rank(&self) -> Rank {
        self.group_rank(self.local_rank())
    }

    fn abort(&self) -> Abort {
        Abort::Shm(Arc::clone(&self.arena))
    }

    fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error> {
        let call = operation.check(self.local_rank().0, self.arena.world())?;
        let timeout = timeout.min(MAX_TIMEOUT);
        let whole = Whole { call, sequence: self.completed(), ranks: self.arena.world(), timeout };
        self.run_part(&Work::Operation(operation), &whole, timeout)
    }

    fn completed(&self) -> u64 {
        self.sequence.saturating_sub(INTERNAL_OPERATIONS)
    }

    fn agreed(&self) -> Option<u64> {
        self.agreed
    }

    fn output(&self) -> Output {
        if self.touched { Output::Undefined } else { Output::Untouched }
    }

    fn uses_single_copy(&self) -> bool {
        self.single_copy
    }

    fn shared_memory(&self) -> Option<(Arc<Arena>, Arc<[OwnedFd]>)> {
        Some((Arc::clone(&self.arena), Arc::clone(&self.waiter.processes)))
    }
}

impl Drop for ShmTransport {
    /// Peers that still need this rank learn at once that it is gone.
    fn drop(&mut self) {
        if self.owner.is_owner() {
            self.arena.control(self.local_rank()).leave();
        }
    }
}
