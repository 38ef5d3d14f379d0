//! Waiting for the master's word that a task should make room, in the background.
//!
//! The training asks in every step, so the question must cost nothing: a thread of its own waits at the master, and the
//! step looks at one word in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use serde::Deserialize;

use crate::client::Client;
use crate::error::Error;
use crate::path::segment;
use crate::sync::{lock, wait_timeout};

/// For how long the master may hold a question open.
const POLL_SECONDS: u32 = 60;
/// The pause after a question that was not answered.
const PAUSE: Duration = Duration::from_secs(1);

/// Knows whether an allocation should make room.
pub struct Preemption {
    shared: Arc<Shared>,
}

struct Shared {
    preempt: AtomicBool,
    closed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether the master has answered once.
    answered: bool,
    /// Why it will not answer any more.
    refused: Option<Error>,
    /// Sentences for people, each once.
    news: Vec<String>,
}

#[derive(Deserialize)]
struct Signal {
    preempt: bool,
}

impl Preemption {
    /// Starts to wait for the word about an allocation.
    ///
    /// The thread ends when the word has come, when the master refuses to answer, or some time after this is dropped:
    /// it holds nothing that the end of the process could harm, so nobody waits for it.
    pub fn watch(client: Arc<Client>, allocation: &str) -> io::Result<Preemption> {
        let shared = Arc::new(Shared {
            preempt: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let path = format!("/api/v1/allocations/{}/signals/preemption", segment(allocation));
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("instep-preempt".to_owned()).spawn(move || theirs.poll_loop(&client, &path))?;
        Ok(Preemption { shared })
    }

    /// Whether to make room. Waits for the master's first answer, `timeout` at most, so that a task that starts while
    /// it should stop learns so in its first step; a master that does not answer asks for nothing.
    pub fn preempt(&self, timeout: Duration) -> Result<bool, String> {
        if self.shared.preempt.load(Ordering::Acquire) {
            return Ok(true);
        }
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        while !state.answered && state.refused.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            state = wait_timeout(&self.shared.changed, state, left);
        }
        match &state.refused {
            Some(error) => Err(format!("cannot ask the master whether to stop: {error}")),
            None => Ok(self.shared.preempt.load(Ordering::Acquire)),
        }
    }

    /// What people should know, once.
    pub fn news(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().news)
    }
}

impl Drop for Preemption {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn poll_loop(&self, client: &Client, path: &str) {
        // The first question is answered at once.
        let mut seconds = 0;
        let mut away = false;
        while !self.closed.load(Ordering::Acquire) {
            match client.get::<Signal>(&format!("{path}?timeout_seconds={seconds}")) {
                Ok(signal) => {
                    self.preempt.store(signal.preempt, Ordering::Release);
                    self.update(|state| state.answered = true);
                    if signal.preempt {
                        return;
                    }
                    (seconds, away) = (POLL_SECONDS, false);
                }
                Err(error) if error.is_temporary() => {
                    if !away {
                        self.update(|state| state.news.push(format!("{error}; retrying until it answers")));
                    }
                    away = true;
                    thread::sleep(PAUSE);
                }
                Err(error) => return self.update(|state| state.refused = Some(error)),
            }
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}
