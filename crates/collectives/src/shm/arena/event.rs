//! What the counters are made of: atomics, and a word to sleep on in the kernel.
//!
//! With `--cfg loom` they are models, with which `make soak` tries every order of the ranks' accesses: see
//! [`crate::shm::arena`]'s `model`.

use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicU64},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicU64},
    thread::yield_now,
};

pub(crate) fn load(word: &AtomicU64) -> u64 {
    // Ordered by the acquire load of the counter that says the word is written.
    word.load(Ordering::Relaxed)
}

pub(crate) fn store(word: &AtomicU64, value: u64) {
    // Ordered by the release store of the counter that follows.
    word.store(value, Ordering::Relaxed);
}

/// A word that changes when something happens, for those who sleep until then.
#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), repr(transparent))]
pub(in crate::shm) struct Event {
    word: AtomicU32,
    #[cfg(loom)]
    kernel: loom::sync::Mutex<()>,
    #[cfg(loom)]
    sleepers: loom::sync::Condvar,
}

impl Event {
    /// To sleep on, unless what is awaited is found to be there after this.
    pub(super) fn value(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Changes the word and wakes everybody who sleeps on it.
    pub(super) fn happen(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }
}

#[cfg(not(loom))]
impl Event {
    /// Sleeps while the word has this value, at most so long. Wakes up for no reason, too.
    pub(in crate::shm) fn wait(&self, value: u32, at_most: Duration) {
        let timeout =
            libc::timespec { tv_sec: at_most.as_secs() as libc::time_t, tv_nsec: at_most.subsec_nanos().into() };
        // SAFETY: the word lies in mapped memory and the timeout on this stack; the kernel reads both and keeps neither.
        // Not a private futex: sleepers of other processes share the word.
        unsafe { libc::syscall(libc::SYS_futex, self.word.as_ptr(), libc::FUTEX_WAIT, value, &raw const timeout) };
    }

    fn wake(&self) {
        // SAFETY: the word lies in mapped memory; the kernel only uses its address.
        unsafe { libc::syscall(libc::SYS_futex, self.word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// What the kernel promises of a futex: the look at the word and falling asleep are one act for who wakes. No sleep ends
/// by itself here, so that a model in which nobody wakes a sleeper stops, and loom says so.
#[cfg(loom)]
impl Event {
    pub(in crate::shm) fn wait(&self, value: u32, _at_most: Duration) {
        let kernel = self.kernel.lock().expect("no thread panics in here");
        if self.word.load(Ordering::Relaxed) == value {
            drop(self.sleepers.wait(kernel));
        }
    }

    fn wake(&self) {
        let _kernel = self.kernel.lock().expect("no thread panics in here");
        self.sleepers.notify_all();
    }
}
