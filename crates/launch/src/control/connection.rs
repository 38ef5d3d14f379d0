//! The launcher's connection to the coordinator: lines of JSON on a non-blocking stream.
//!
//! In a c10d job a thread sends heartbeats: the supervisor's loop may be held up by a terminal that nobody reads, and is
//! no less alive for that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

use crate::background::BackgroundThread;
use crate::control::channel::{Channel, Inbound, Outbound};
use crate::control::heartbeat::{CoordinatorMonitor, Heartbeat};
use crate::control::{self, FromCoordinator, ToCoordinator};
use crate::lock::lock;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct CoordinatorConnection {
    outgoing: Arc<Mutex<Outgoing>>,
    stream: File,
    inbound: Inbound,
    /// Bytes as they came, where they are not complete.
    arrived: Vec<u8>,
    received: Vec<u8>,
    closed: bool,
    monitor: Option<CoordinatorMonitor>,
    heartbeats: Option<BackgroundThread<()>>,
}

#[derive(Debug)]
struct Outgoing {
    stream: File,
    outbound: Outbound,
    unsent: Vec<u8>,
    broken: bool,
}

impl CoordinatorConnection {
    /// Takes over a connected socket, with bytes that were read through its channel already.
    pub(crate) fn new(
        stream: OwnedFd,
        channel: Channel,
        received: Vec<u8>,
        heartbeat: Option<Heartbeat>,
    ) -> io::Result<CoordinatorConnection> {
        fcntl(&stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let Channel { outbound, inbound } = channel;
        let outgoing = File::from(stream.try_clone()?);
        let outgoing = Outgoing { stream: outgoing, outbound, unsent: Vec::new(), broken: false };
        let outgoing = Arc::new(Mutex::new(outgoing));
        let began = Instant::now();
        let speak = |heartbeat: Heartbeat| send_heartbeats(outgoing.clone(), heartbeat.interval, began);
        let heartbeats = heartbeat.map(speak).transpose()?;
        let monitor = heartbeat.map(|heartbeat| CoordinatorMonitor::new(heartbeat, began));
        let (stream, arrived) = (File::from(stream), Vec::new());
        Ok(CoordinatorConnection { outgoing, stream, inbound, arrived, received, closed: false, monitor, heartbeats })
    }

    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The address at which the coordinator was reached, with its port; nothing where it is no launcher.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        SockRef::from(&self.stream).peer_addr().ok()?.as_socket()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !lock(&self.outgoing).unsent.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Nothing is said or heard from here on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.heartbeats = None;
    }

    /// Sends what can be sent now, keeps the rest. A broken connection shows when reading.
    pub(crate) fn send(&mut self, message: &ToCoordinator) {
        if !self.closed {
            lock(&self.outgoing).push(&control::encode(message));
            self.flush();
        }
    }

    pub(crate) fn flush(&mut self) {
        let mut outgoing = lock(&self.outgoing);
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
                    self.arrived.extend_from_slice(&buffer[..count]);
                    self.closed |= self.inbound.unwrap(&mut self.arrived, &mut self.received).is_err();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        if let Some(monitor) = self.monitor.as_mut().filter(|_| heard) {
            monitor.heard();
        }
        let mut messages = Vec::new();
        let mut consumed = 0;
        loop {
            match control::decode(&self.received[consumed..]) {
                Ok(Some((message, length))) => {
                    consumed += length;
                    if let (FromCoordinator::Ping { at }, Some(monitor)) = (&message, &mut self.monitor) {
                        monitor.confirmed(*at);
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

    /// Whether the coordinator may have dropped this node, because this process was stopped or the network was cut, so
    /// that what it ordered before is void. The coordinator does so an interval later at the earliest. Ask before every
    /// [`CoordinatorConnection::receive`].
    pub(crate) fn may_have_been_dropped(&mut self) -> bool {
        self.monitor.as_mut().filter(|_| !self.closed).is_some_and(CoordinatorMonitor::may_have_been_dropped)
    }

    /// Why the coordinator counts as lost, once it has been silent for too long. Ask after every
    /// [`CoordinatorConnection::receive`].
    pub(crate) fn coordinator_timeout(&self) -> Option<String> {
        self.monitor.as_ref().filter(|_| !self.closed)?.suspicion()
    }

    /// When [`CoordinatorConnection::coordinator_timeout`] is to be asked at the latest.
    pub(crate) fn check_by(&self) -> Option<Instant> {
        self.monitor.as_ref().filter(|_| !self.closed).map(CoordinatorMonitor::check_by)
    }

    /// Sends a last message and waits until the coordinator has read it, which it shows by closing.
    pub(crate) fn shutdown(&mut self, message: &ToCoordinator, timeout: Duration) {
        self.heartbeats = None;
        self.send(message);
        let deadline = Instant::now() + timeout;
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
    fn push(&mut self, bytes: &[u8]) {
        match self.outbound.wrap(bytes) {
            Ok(sealed) => self.unsent.extend(sealed),
            Err(_) => self.broken = true,
        }
    }

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

/// Speaks for this launcher once an interval.
fn send_heartbeats(
    outgoing: Arc<Mutex<Outgoing>>,
    interval: Duration,
    began: Instant,
) -> io::Result<BackgroundThread<()>> {
    BackgroundThread::start("instep-beat", move |stop| {
        loop {
            stop.wait(interval);
            if stop.is_set() {
                return;
            }
            let mut outgoing = lock(&outgoing);
            // What waits to be sent says the same, and must not grow without bound.
            if outgoing.unsent.is_empty() {
                let at = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                outgoing.push(&control::encode(&ToCoordinator::Ping { at }));
            }
            outgoing.flush();
        }
    })
}
