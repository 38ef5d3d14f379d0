//! Threads that call back into Python when operations end.
//!
//! Threads of the collectives never do that themselves: a callback needs the interpreter, may take as long as it likes, and may
//! wait for another operation of the same group, as communication hooks do. So there is a pool for the process. It grows
//! by a thread when something is to be delivered while all others are inside callbacks; a callback that waits for what
//! another callback brings can therefore not wait for ever, up to [`MOST_THREADS`] of them.
//!
//! The queue needs no bound of its own: it holds at most one entry per operation under way, and groups bound these.
//!
//! Shutdown: [`stop`], before the interpreter ends, because a thread that wants it afterwards would take the process down.
//! Threads are joined then, except one that is stuck in a callback, which is left behind after [`JOIN_TIMEOUT`].

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MOST_THREADS: usize = 64;
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

type Delivery = Box<dyn FnOnce() + Send>;

struct Pool {
    waiting: VecDeque<Delivery>,
    threads: usize,
    /// Threads that wait for something to deliver.
    idle: usize,
    stopped: bool,
    /// Whose threads these are; a forked child has none of them.
    process: u32,
}

static POOL: Mutex<Pool> =
    Mutex::new(Pool { waiting: VecDeque::new(), threads: 0, idle: 0, stopped: false, process: 0 });
/// There is something to deliver, a thread has ended, or all shall.
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has this called soon, on a thread of the pool; never after [`stop`].
pub(crate) fn deliver(delivery: Delivery) {
    let mut pool = lock();
    if pool.process != std::process::id() {
        *pool = Pool { waiting: VecDeque::new(), threads: 0, idle: 0, stopped: false, process: std::process::id() };
    }
    if pool.stopped {
        return;
    }
    pool.waiting.push_back(delivery);
    if pool.waiting.len() > pool.idle && pool.threads < MOST_THREADS {
        let started = std::thread::Builder::new().name("instep-callback".to_owned()).spawn(work);
        // Where no thread can be had, those there are will come to it.
        pool.threads += usize::from(started.is_ok());
    }
    CHANGED.notify_one();
}

fn work() {
    let mut pool = lock();
    loop {
        if let Some(delivery) = pool.waiting.pop_front() {
            drop(pool);
            delivery();
            pool = lock();
        } else if pool.stopped {
            pool.threads -= 1;
            CHANGED.notify_all();
            return;
        } else {
            pool.idle += 1;
            pool = CHANGED.wait(pool).unwrap_or_else(PoisonError::into_inner);
            pool.idle -= 1;
        }
    }
}

/// Delivers what is waiting, ends the threads and waits for them. The interpreter must not be held.
pub(crate) fn stop() {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut pool = lock();
    if pool.process != std::process::id() {
        return;
    }
    pool.stopped = true;
    CHANGED.notify_all();
    while pool.threads > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        pool = CHANGED.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
