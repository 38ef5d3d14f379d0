//! Renews the lease of a master that leads while others stand by: every second, on a connection of its own, so that
//! neither a long change nor a busy reader is taken for a leader that has died.
//!
//! The thread ends when this is closed. Where a server keeps it waiting, [`Renewal::lost`] goes by this machine's clock:
//! what a leader could not renew for as long as a lease lasts may be another's by then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::leadership::LEASE;
use crate::sql::{self, Address, Connection};
use crate::sync::{join_until, lock};

/// Between two renewals.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the thread is waited for at the end.
const CLOSING: Duration = Duration::from_secs(2);

/// Which term is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    epoch: i64,
    /// Not yet while the schema is brought up to date: then the lock is ours, and the lease still an earlier leader's.
    is_ours: bool,
}

#[derive(Debug)]
struct State {
    term: Mutex<Term>,
    /// When the last renewal began that succeeded.
    renewed: Mutex<Instant>,
    superseded: AtomicBool,
}

/// The thread, and what it has found out.
#[derive(Debug)]
pub(crate) struct Renewal {
    state: Arc<State>,
    thread: Mutex<Option<(mpsc::SyncSender<()>, JoinHandle<()>)>>,
}

impl Renewal {
    /// Begins to renew the lease of an earlier leader, by whoever has the lock.
    pub(crate) fn start(address: &Arc<Address>, epoch: i64) -> Result<Renewal> {
        let state = Arc::new(State {
            term: Mutex::new(Term { epoch, is_ours: false }),
            renewed: Mutex::new(Instant::now()),
            superseded: AtomicBool::new(false),
        });
        let (stop, stopped) = mpsc::sync_channel(1);
        let (shared, address) = (Arc::clone(&state), Arc::clone(address));
        let work = move || renew_for_ever(&shared, &address, &stopped);
        let thread = std::thread::Builder::new().name("instep-db-lease".to_owned()).spawn(work);
        let thread = thread.map_err(|source| Error::File { path: "a thread".into(), source })?;
        Ok(Renewal { state, thread: Mutex::new(Some((stop, thread))) })
    }

    /// Goes on with a term of our own.
    pub(crate) fn lead(&self, epoch: i64) {
        *lock(&self.state.renewed) = Instant::now();
        *lock(&self.state.term) = Term { epoch, is_ours: true };
    }

    /// Why the lease may be another's by now, if it may.
    pub(crate) fn lost(&self) -> Option<String> {
        if self.state.superseded.load(Ordering::Relaxed) {
            return Some(Error::Superseded.to_string());
        }
        let expired = lock(&self.state.renewed).elapsed() >= LEASE;
        expired.then(|| format!("the lease could not be renewed for {} s", LEASE.as_secs()))
    }

    pub(crate) fn close(&self) {
        if let Some((stop, thread)) = lock(&self.thread).take() {
            drop(stop);
            join_until(thread, Some(Instant::now() + CLOSING));
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.close();
    }
}

fn renew_for_ever(state: &State, address: &Arc<Address>, stopped: &mpsc::Receiver<()>) {
    let mut connection = None;
    loop {
        let (begin, term) = (Instant::now(), *lock(&state.term));
        match renew(&mut connection, address, term.epoch) {
            Ok(true) => *lock(&state.renewed) = begin,
            Ok(false) if term.is_ours => {
                state.superseded.store(true, Ordering::Relaxed);
                return;
            }
            // There is nothing to renew before the first leader.
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot renew the lease");
                connection = None;
            }
        }
        if stopped.recv_timeout(PAUSE) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn renew(connection: &mut Option<Connection>, address: &Arc<Address>, epoch: i64) -> sql::Result<bool> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open_renewing(address)?),
    };
    // A schema that is being made may not have the table yet.
    Ok(connection.has_table("leader")? && connection.renew(epoch)?)
}
