//! The launcher's connection to the coordinator: lines of JSON on a non-blocking stream.
//!
//! In a job with a pulse a thread says that this launcher is there, once an interval: the loop may be held up by a
//! terminal that nobody reads, and is no less alive for that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use instep_policy::silence::Silence;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::control::{self, FromCoordinator, ToCoordinator};

/// How often both ends of a control connection speak, and how long a silent one is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// `keep_alive_interval`.
    pub interval: Duration,
    /// `keep_alive_max_attempt`.
    pub attempts: u32,
}

impl Pulse {
    /// How long a launcher believes a silent coordinator. Then it ends its workers at once.
    pub fn window(&self) -> Duration {
        self.interval * self.attempts
    }

    /// How long the coordinator believes a silent launcher: longer by the interval since it last spoke and the one in
    /// which it looks, so that the workers behind a cut link have been killed before others take their ranks.
    pub fn coordinator_window(&self) -> Duration {
        self.window() + 2 * self.interval
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: Arc<Mutex<Outgoing>>,
    stream: File,
    received: Vec<u8>,
    closed: bool,
    watch: Option<Watch>,
    beat: Option<Beat>,
}

#[derive(Debug)]
struct Outgoing {
    stream: File,
    unsent: Vec<u8>,
    broken: bool,
}

/// The other side's silence, as we perceive it.
#[derive(Debug)]
struct Watch {
    began: Instant,
    silence: Silence,
    window: Duration,
    interval: Duration,
    /// When it was last heard, by the clock that stands still while we do.
    heard: Duration,
    /// What we said last of which it has told that it was heard, by the clock that does not.
    confirmed: Duration,
}

/// The thread that speaks for this launcher; stopped and joined on drop.
#[derive(Debug)]
struct Beat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Takes over a connected socket, with bytes that were read from it already.
    pub(crate) fn new(stream: OwnedFd, received: Vec<u8>, pulse: Option<Pulse>) -> io::Result<Link> {
        fcntl(&stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let outgoing = Outgoing { stream: File::from(stream.try_clone()?), unsent: Vec::new(), broken: false };
        let outgoing = Arc::new(Mutex::new(outgoing));
        let began = Instant::now();
        let beat = pulse.map(|pulse| Beat::start(outgoing.clone(), pulse.interval, began)).transpose()?;
        let watch = pulse.map(|pulse| Watch {
            began,
            silence: Silence::new(pulse.interval, pulse.window(), Duration::ZERO),
            window: pulse.window(),
            interval: pulse.interval,
            heard: Duration::ZERO,
            confirmed: Duration::ZERO,
        });
        Ok(Link { outgoing, stream: File::from(stream), received, closed: false, watch, beat })
    }

    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !held(&self.outgoing).unsent.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Nothing is said or heard from here on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.beat = None;
    }

    /// Sends what can be sent now, keeps the rest. A broken connection shows when reading.
    pub(crate) fn send(&mut self, message: &ToCoordinator) {
        if !self.closed {
            held(&self.outgoing).unsent.extend(control::encode(message));
            self.flush();
        }
    }

    pub(crate) fn flush(&mut self) {
        let mut outgoing = held(&self.outgoing);
        outgoing.flush();
        self.closed |= outgoing.broken;
    }

    /// The messages that have arrived, in order.
    pub(crate) fn receive(&mut self) -> Vec<FromCoordinator> {
        let mut buffer = [0u8; 16 << 10];
        let mut heard = false;
        while !self.closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(count) => {
                    heard = true;
                    self.received.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        if let Some(watch) = self.watch.as_mut().filter(|_| heard) {
            watch.heard = watch.silence.mark(watch.began.elapsed());
        }
        let mut messages = Vec::new();
        let mut consumed = 0;
        loop {
            match control::decode(&self.received[consumed..]) {
                Ok(Some((message, length))) => {
                    consumed += length;
                    if let (FromCoordinator::Ping { at }, Some(watch)) = (&message, &mut self.watch) {
                        watch.confirmed = Duration::from_millis(*at).min(watch.began.elapsed());
                    }
                    messages.push(message);
                }
                Ok(None) => break,
                Err(_) => {
                    // Not a coordinator we understand: nothing after this can be trusted.
                    self.closed = true;
                    break;
                }
            }
        }
        self.received.drain(..consumed);
        messages
    }

    /// To be asked before every look for messages: whether the coordinator may have given us up, because we were stopped
    /// or the link was cut, so that what it ordered before is void. It does so an interval later at the earliest.
    pub(crate) fn was_away(&mut self) -> bool {
        let Some(watch) = self.watch.as_mut().filter(|_| !self.closed) else { return false };
        let now = watch.began.elapsed();
        watch.silence.look(now);
        now.saturating_sub(watch.confirmed) > watch.window + watch.interval
    }

    /// How the coordinator's silence is put to people, once it is too long. To be asked after every look for messages.
    pub(crate) fn silence(&self) -> Option<String> {
        let watch = self.watch.as_ref().filter(|_| !self.closed)?;
        watch.silence.verdict(watch.heard, watch.began.elapsed())
    }

    /// When [`Link::silence`] is to be asked at the latest.
    pub(crate) fn look_by(&self) -> Option<Instant> {
        self.watch.as_ref().filter(|_| !self.closed).map(|watch| Instant::now() + watch.silence.interval())
    }

    /// Says a last word and waits until the other side has taken it in, which it shows by closing.
    pub(crate) fn farewell(&mut self, message: &ToCoordinator, patience: Duration) {
        self.beat = None;
        self.send(message);
        let deadline = Instant::now() + patience;
        while !self.closed && Instant::now() < deadline {
            let write = if self.wants_to_write() { PollFlags::POLLOUT } else { PollFlags::empty() };
            let mut sources = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN | write)];
            if poll(&mut sources, PollTimeout::from(50u8)).is_err() {
                return;
            }
            self.flush();
            self.receive();
        }
    }
}

impl Outgoing {
    fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.broken {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.broken |= error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }
}

impl Beat {
    fn start(outgoing: Arc<Mutex<Outgoing>>, interval: Duration, began: Instant) -> io::Result<Beat> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let beat = move || {
            loop {
                std::thread::park_timeout(interval);
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let mut outgoing = held(&outgoing);
                // What waits to be sent says the same, and must not grow without bound.
                if outgoing.unsent.is_empty() {
                    let at = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    outgoing.unsent.extend(control::encode(&ToCoordinator::Ping { at }));
                }
                outgoing.flush();
            }
        };
        let thread = std::thread::Builder::new().name("instep-pulse".to_owned()).spawn(beat)?;
        Ok(Beat { stop, thread: Some(thread) })
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// Bytes are added and removed as a whole, so that those from before a panic are still lines.
fn held(outgoing: &Mutex<Outgoing>) -> MutexGuard<'_, Outgoing> {
    outgoing.lock().unwrap_or_else(PoisonError::into_inner)
}
