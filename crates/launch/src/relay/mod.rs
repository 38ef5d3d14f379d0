//! The store of a job with a token, for the workers of this node: served on loopback only, to this user only, and relayed
//! through encrypted connections to the launcher that leads.
//!
//! ```text
//! worker ── TCPStore, loopback ──▶ relay ══ control channel ══▶ coordinator ──▶ store
//! ```
//!
//! torch's clients can prove nothing, so that the launcher does it for them. Each of their connections has one of its own
//! to the store, on which nothing is interpreted here: a worker that ends is gone there too, a worker of an old round stays
//! in its generation, and one that reads slowly holds up itself alone.
//!
//! One thread, level-triggered: a node has a handful of connections for each worker. The thread ends when its
//! [`StoreRelay`] is dropped.

mod link;
mod owner;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use instep_policy::election::HostPort;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::link::{Link, Side};
use self::owner::Owner;
use crate::background::BackgroundThread;
use crate::console::Note;
use crate::control::token::JobToken;
use crate::lock::lock;
use crate::rendezvous::this_machine;

/// Connections at once. Workers have a few each; whoever wants more than this is closed at once.
const MAX_LINKS: usize = 8192;
/// How long nobody is accepted once the process is out of files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// At most one refusal in this time is shown.
const REFUSAL_NOTE_EVERY: Duration = Duration::from_secs(30);

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct StoreRelay {
    address: HostPort,
    upstream: Arc<Mutex<Option<SocketAddr>>>,
    /// Closing it ends the thread: it is dropped before the thread is joined.
    _stop: UnixStream,
    _thread: BackgroundThread<()>,
}

impl StoreRelay {
    /// Listens on loopback. Refusals are told to `notes`.
    pub(crate) fn start(token: JobToken, notes: Sender<Note>) -> io::Result<StoreRelay> {
        // Without it the relay still works, for fewer connections.
        let _ = instep_store::raise_file_limit();
        let listeners = instep_store::listen_loopback(0)?;
        let port = listeners.first().map(TcpListener::local_addr).transpose()?.map_or(0, |address| address.port());
        let upstream = Arc::new(Mutex::new(None));
        let (stop, stopped) = UnixStream::pair()?;
        let target = upstream.clone();
        let thread = BackgroundThread::start("instep-relay", move |_| {
            let links = Vec::new();
            let relay = Relay { listeners, upstream: target, token, notes, links, accept_at: None, noted_at: None };
            relay.run(&stopped);
        })?;
        let address = HostPort { host: this_machine(), port };
        Ok(StoreRelay { address, upstream, _stop: stop, _thread: thread })
    }

    /// What workers are told to connect to.
    pub(crate) fn address(&self) -> &HostPort {
        &self.address
    }

    /// Where the store is from now on; connections that exist stay where they are.
    pub(crate) fn set_upstream(&self, leader: SocketAddr) {
        *lock(&self.upstream) = Some(leader);
    }
}

/// What the thread has.
struct Relay {
    listeners: Vec<TcpListener>,
    upstream: Arc<Mutex<Option<SocketAddr>>>,
    token: JobToken,
    notes: Sender<Note>,
    links: Vec<Link>,
    /// Until when nobody is accepted.
    accept_at: Option<Instant>,
    noted_at: Option<Instant>,
}

/// What a place in the list of polled sockets is.
#[derive(Clone, Copy)]
enum Source {
    Stop,
    Listener(usize),
    Link(usize, Side),
}

impl Relay {
    fn run(mut self, stopped: &UnixStream) {
        loop {
            let ready = match self.wait(stopped) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(cause) => {
                    let _ = self.notes.send(Note::Warning(format!("the store is no longer relayed: {cause}")));
                    return;
                }
            };
            for (source, flags) in ready {
                match source {
                    Source::Stop => return,
                    Source::Listener(listener) => self.accept(listener),
                    Source::Link(link, side) => self.links[link].ready(side, flags),
                }
            }
            self.links.retain(|link| !link.is_over());
        }
    }

    /// Sleeps until something can be done, and says what.
    fn wait(&self, stopped: &UnixStream) -> nix::Result<Vec<(Source, PollFlags)>> {
        let pause = self.accept_at.map(|at| at.saturating_duration_since(Instant::now()));
        let mut sources = vec![Source::Stop];
        let mut polled = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        if pause.is_none_or(|pause| pause.is_zero()) {
            for (index, listener) in self.listeners.iter().enumerate() {
                sources.push(Source::Listener(index));
                polled.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
            }
        }
        for (index, link) in self.links.iter().enumerate() {
            for (side, descriptor, flags) in link.sources() {
                sources.push(Source::Link(index, side));
                polled.push(PollFd::new(descriptor, flags));
            }
        }
        let timeout = pause.map_or(PollTimeout::NONE, |pause| {
            PollTimeout::from(u8::try_from(pause.as_millis() + 1).unwrap_or(u8::MAX))
        });
        poll(&mut polled, timeout)?;
        let flags = polled.iter().map(|source| source.revents().unwrap_or(PollFlags::empty()));
        Ok(sources.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn accept(&mut self, listener: usize) {
        self.accept_at = None;
        loop {
            match self.listeners[listener].accept() {
                Ok((stream, peer)) => {
                    let Ok(own) = stream.local_addr() else { continue };
                    match owner::of(peer, own) {
                        Owner::ThisUser if self.links.len() < MAX_LINKS => {
                            let upstream = *lock(&self.upstream);
                            // Without a store to connect to, the worker finds its connection closed, and tries again.
                            let link = upstream.map(|upstream| Link::open(stream, upstream, &self.token));
                            self.links.extend(link.and_then(Result::ok));
                        }
                        Owner::ThisUser => self.note(format!("more than {MAX_LINKS} connections to the job's store")),
                        Owner::Other(why) => self.note(format!("refused a connection to the job's store: {why}")),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ECONNABORTED)) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.accept_at = Some(Instant::now() + ACCEPT_RETRY);
                    return self.note(format!("cannot accept connections of workers to the job's store: {error}"));
                }
            }
        }
    }

    fn note(&mut self, text: String) {
        let now = Instant::now();
        if self.noted_at.is_none_or(|at| now >= at + REFUSAL_NOTE_EVERY) {
            self.noted_at = Some(now);
            // The launcher is ending if nobody listens any more.
            let _ = self.notes.send(Note::Warning(text));
        }
    }
}

#[cfg(test)]
mod tests;
