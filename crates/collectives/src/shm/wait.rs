//! Waiting for another rank: spin briefly, yield, then sleep in the kernel.
//!
//! Spinning is for ranks that have a core each; with more ranks than cores it only keeps the awaited rank from running.
//! A sleeper wakes up every [`LIVENESS_INTERVAL`] to see who is still alive, so nobody needs a thread for that.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::arena::Arena;
use super::arena::control::Counter;
use crate::LossCause;
use crate::rank::LocalRank;

/// How long a sleeper sleeps before it looks who is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(20);
/// How long to yield before sleeping, with a core for each rank.
const YIELD_FOR: Duration = Duration::from_micros(50);
/// And with more ranks than cores: about what falling asleep and being woken costs. Yielding longer helps on an idle
/// machine, but on one where others work it hands them whole time slices.
const YIELD_CROWDED_FOR: Duration = Duration::from_micros(20);
/// Pauses before yielding, a few microseconds.
const SPINS: u32 = 200;

/// Why a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The group is aborted.
    Aborted,
    /// The deadline passed.
    Deadline,
    /// This rank will never do its part.
    Lost(LocalRank, LossCause),
}

/// What a wait has to know.
#[derive(Clone)]
pub(crate) struct Waiter {
    /// This process's handle on every rank's process, in the order of ranks.
    pub(crate) processes: Arc<[OwnedFd]>,
    pub(crate) rank: LocalRank,
    /// The cores this process may use.
    pub(crate) cores: usize,
    /// Which operation of the group is under way.
    pub(crate) operation: u64,
    spins: u32,
    yield_for: Duration,
}

impl Waiter {
    pub(crate) fn new(processes: Arc<[OwnedFd]>, rank: LocalRank, world: usize, cores: usize) -> Waiter {
        let (spins, yield_for) = if cfg!(loom) {
            // A model tries every order anyway, and shows nothing outdated to who has yielded.
            (0, Duration::ZERO)
        } else if world > cores {
            (0, YIELD_CROWDED_FOR)
        } else {
            (SPINS, YIELD_FOR)
        };
        Waiter { processes, rank, cores, operation: u64::MAX, spins, yield_for }
    }

    /// Waits until `peer`'s counter is at least `target`.
    #[inline]
    pub(crate) fn wait(
        &self,
        arena: &Arena,
        peer: LocalRank,
        counter: Counter,
        target: u64,
        sequence: u64,
        deadline: Instant,
    ) -> Result<(), Interrupted> {
        let control = arena.control(peer);
        if control.reached(counter, target) {
            return Ok(());
        }
        for _ in 0..self.spins {
            std::hint::spin_loop();
            if control.reached(counter, target) {
                return Ok(());
            }
        }
        self.wait_long(arena, peer, counter, target, sequence, deadline)
    }

    #[cold]
    fn wait_long(
        &self,
        arena: &Arena,
        peer: LocalRank,
        counter: Counter,
        target: u64,
        sequence: u64,
        deadline: Instant,
    ) -> Result<(), Interrupted> {
        let control = arena.control(peer);
        // What the rank wrote before it went, or before another gave the group up, counts: look once more.
        let unless_reached = |why| if control.reached(counter, target) { Ok(()) } else { Err(why) };
        let yield_until = Instant::now() + self.yield_for;
        while Instant::now() < yield_until {
            std::thread::yield_now();
            if control.reached(counter, target) {
                return Ok(());
            }
            if arena.is_aborted_for(self.operation) {
                return unless_reached(Interrupted::Aborted);
            }
        }
        loop {
            if let Some((event, value)) = control.fall_asleep(counter, target)
                && !arena.is_aborted_for(self.operation)
                && !control.has_left()
            {
                let left = deadline.saturating_duration_since(Instant::now());
                event.wait(value, left.min(LIVENESS_INTERVAL));
            }
            control.woke_up();
            if control.reached(counter, target) {
                return Ok(());
            }
            if arena.is_aborted_for(self.operation) {
                return unless_reached(Interrupted::Aborted);
            }
            if let Some((lost, noticed)) = self.lost(arena, sequence) {
                return unless_reached(Interrupted::Lost(lost, noticed));
            }
            if Instant::now() >= deadline {
                return Err(Interrupted::Deadline);
            }
        }
    }

    /// A rank that is gone without having completed the operation.
    pub(crate) fn lost(&self, arena: &Arena, sequence: u64) -> Option<(LocalRank, LossCause)> {
        let owes = |peer: LocalRank| peer != self.rank && !arena.control(peer).has_completed(sequence);
        let left = LocalRank::all(arena.world()).find(|peer| arena.control(*peer).has_left() && owes(*peer));
        if let Some(peer) = left {
            return Some((peer, LossCause::LeftGroup));
        }
        let mut handles: Vec<PollFd<'_>> =
            self.processes.iter().map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)).collect();
        if poll(&mut handles, PollTimeout::ZERO).unwrap_or(0) == 0 {
            return None;
        }
        let ended = LocalRank::all(handles.len()).find(|peer| handles[peer.0].any() == Some(true) && owes(*peer));
        ended.map(|peer| (peer, LossCause::ProcessEnded))
    }
}
