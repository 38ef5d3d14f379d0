//! What a rank lets the others see of its progress.

use std::sync::atomic::Ordering;

use super::event::{AtomicU32, AtomicU64, Event};
use crate::call::{CALL_WORDS, Call};

/// Buffers per rank: one is filled while the other is read.
pub(crate) const DEPTH: u64 = 2;

/// One rank's counters. What peers look at together lies together; what different events change lies apart.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct Control {
    arrival: Arrival,
    progress: StepCounters,
    sleep: Sleep,
    identity: Identity,
}

/// Words that travel with the counter itself.
pub(crate) const CARRIED_WORDS: usize = 2;

/// The first cache line is all that peers read of a call on a few bytes that is like their own.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Arrival {
    ready: AtomicU64,
    /// Of the operation whose first step uses this buffer.
    fingerprints: [AtomicU64; DEPTH as usize],
    /// Its input, if that is so small.
    carried: [[AtomicU64; CARRIED_WORDS]; DEPTH as usize],
    /// Keeps the calls off the line.
    _rest_of_line: u64,
    calls: [[AtomicU64; CALL_WORDS]; DEPTH as usize],
}

#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct StepCounters {
    done: AtomicU64,
    /// Operations begun and finished since the arena was made.
    entered: AtomicU64,
    completed: AtomicU64,
}

#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Sleep {
    /// Changes when a counter of this rank moves while somebody sleeps on it.
    event: Event,
    sleepers: AtomicU32,
    left: AtomicU32,
}

#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Identity {
    process: AtomicU64,
    probe: AtomicU64,
    can_read: AtomicU64,
    cores: AtomicU64,
    channels: AtomicU64,
    channel_bytes: AtomicU64,
    /// Operations finished in the generation before, plus one; 0 for a newcomer.
    history: AtomicU64,
}

/// Which counter a wait is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Ready,
    Done,
}

impl Control {
    fn counter(&self, counter: Counter) -> &AtomicU64 {
        match counter {
            Counter::Ready => &self.arrival.ready,
            Counter::Done => &self.progress.done,
        }
    }

    #[inline]
    pub(crate) fn reached(&self, counter: Counter, target: u64) -> bool {
        self.counter(counter).load(Ordering::Acquire) >= target
    }

    /// Moves a counter of this rank and wakes who sleeps on it.
    #[inline]
    pub(crate) fn publish(&self, counter: Counter, value: u64) {
        // Either a sleeper sees the counter or we see the sleeper: both sides write first, then read, all four in the one
        // order of sequentially consistent accesses. No fence: a fence costs more than such a store.
        self.counter(counter).store(value, Ordering::SeqCst);
        if self.sleep.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    pub(crate) fn wake(&self) {
        self.sleep.event.happen();
    }

    /// Announces a sleeper, until it [woke up](Self::woke_up); gives it the event to sleep on and that one's value, unless
    /// the counter is there by now.
    pub(in crate::shm) fn fall_asleep(&self, counter: Counter, target: u64) -> Option<(&Event, u32)> {
        self.sleep.sleepers.fetch_add(1, Ordering::SeqCst);
        let value = self.sleep.event.value();
        // The other side of `publish`.
        let reached = self.counter(counter).load(Ordering::SeqCst) >= target;
        (!reached).then_some((&self.sleep.event, value))
    }

    pub(in crate::shm) fn woke_up(&self) {
        self.sleep.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Writes down what this rank calls, before its `ready` says so.
    pub(crate) fn enter(&self, sequence: u64, step: u64, call: &Call, fingerprint: u64) {
        let buffer = (step % DEPTH) as usize;
        for (word, value) in self.arrival.calls[buffer].iter().zip(call.words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.arrival.fingerprints[buffer].store(fingerprint, Ordering::Relaxed);
        self.progress.entered.store(sequence + 1, Ordering::Release);
    }

    /// Puts a small input beside the counter, before `ready` says so.
    #[inline]
    pub(crate) fn carry(&self, step: u64, words: [u64; CARRIED_WORDS]) {
        for (carried, word) in self.arrival.carried[(step % DEPTH) as usize].iter().zip(words) {
            carried.store(word, Ordering::Relaxed);
        }
    }

    /// A small input, once `ready` says that it is there.
    #[inline]
    pub(crate) fn carried(&self, step: u64) -> [u64; CARRIED_WORDS] {
        let carried = &self.arrival.carried[(step % DEPTH) as usize];
        std::array::from_fn(|index| carried[index].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn fingerprint(&self, step: u64) -> u64 {
        self.arrival.fingerprints[(step % DEPTH) as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn call(&self, step: u64) -> Option<Call> {
        let words = &self.arrival.calls[(step % DEPTH) as usize];
        Call::from_words(std::array::from_fn(|index| words[index].load(Ordering::Relaxed)))
    }

    pub(crate) fn complete(&self, sequence: u64) {
        self.progress.completed.store(sequence + 1, Ordering::Release);
    }

    pub(crate) fn has_entered(&self, sequence: u64) -> bool {
        self.progress.entered.load(Ordering::Acquire) > sequence
    }

    pub(crate) fn has_completed(&self, sequence: u64) -> bool {
        self.progress.completed.load(Ordering::Acquire) > sequence
    }

    /// This rank takes part no more.
    pub(crate) fn leave(&self) {
        self.sleep.left.store(1, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.sleep.left.load(Ordering::SeqCst) != 0
    }

    /// Says who this rank is; read by peers after the first barrier.
    pub(crate) fn publish_identity(
        &self,
        process: u32,
        probe: u64,
        cores: usize,
        (channels, channel_bytes): (usize, usize),
        history: Option<u64>,
    ) {
        self.identity.cores.store(cores as u64, Ordering::Relaxed);
        self.identity.channels.store(channels as u64, Ordering::Relaxed);
        self.identity.channel_bytes.store(channel_bytes as u64, Ordering::Relaxed);
        self.identity.process.store(u64::from(process), Ordering::Relaxed);
        self.identity.probe.store(probe, Ordering::Relaxed);
        self.identity.history.store(history.map_or(0, |completed| completed + 1), Ordering::Relaxed);
    }

    pub(crate) fn process(&self) -> i32 {
        self.identity.process.load(Ordering::Relaxed) as i32
    }

    pub(crate) fn cores(&self) -> usize {
        self.identity.cores.load(Ordering::Relaxed) as usize
    }

    /// How many channels it has cores for.
    pub(crate) fn channels(&self) -> usize {
        self.identity.channels.load(Ordering::Relaxed) as usize
    }

    /// What it wants each of them to move at least.
    pub(crate) fn channel_bytes(&self) -> usize {
        self.identity.channel_bytes.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn probe(&self) -> u64 {
        self.identity.probe.load(Ordering::Relaxed)
    }

    pub(crate) fn history(&self) -> Option<u64> {
        self.identity.history.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether this rank can read everybody's memory.
    pub(crate) fn set_can_read(&self, can_read: bool) {
        self.identity.can_read.store(u64::from(can_read), Ordering::Relaxed);
    }

    pub(crate) fn can_read(&self) -> bool {
        self.identity.can_read.load(Ordering::Relaxed) != 0
    }
}
