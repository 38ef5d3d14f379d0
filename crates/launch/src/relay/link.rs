//! One worker's connection and the one to the store that belongs to it.
//!
//! A side is read only while what is to be sent to the other is short, so that memory is bounded and whoever is slow holds
//! up its own connection. When one side has closed, what it had sent is written to the other, and then both are closed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use instep_noise::{ANSWER_BYTES, Initiator, MAX_PLAINTEXT};
use nix::poll::PollFlags;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::control::channel::{self, Channel};
use crate::control::token::JobToken;

/// A side is not read while the other has so much to receive.
const PAUSE_BYTES: usize = 1 << 20;
/// A host that has vanished is noticed after about 60 + 3 × 20 seconds, as by the store.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_PROBES: u32 = 3;

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Worker,
    Store,
}

/// One of the two sockets.
#[derive(Debug)]
struct End {
    stream: TcpStream,
    unsent: Vec<u8>,
    /// It has sent all it will send.
    closed: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Link {
    worker: End,
    store: End,
    channel: State,
    /// What has come from the store and is not complete.
    arrived: Vec<u8>,
    /// Nothing more can be done.
    over: bool,
}

#[derive(Debug)]
enum State {
    /// The store's launcher has not answered.
    Handshake(Option<Box<Initiator>>),
    Open(Box<Channel>),
}

impl End {
    fn new(stream: TcpStream) -> End {
        End { stream, unsent: Vec::new(), closed: false }
    }

    /// Writes what can be written now.
    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == self.unsent.len() {
                break Ok(());
            }
            match self.stream.write(&self.unsent[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.unsent.drain(..written);
        result
    }

    /// Reads once; nothing where there is nothing to read, or no more.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.closed = true;
                    return Ok(0);
                }
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Link {
    /// Begins to connect a worker with the store; nothing is waited for.
    pub(super) fn open(worker: TcpStream, store: SocketAddr, token: &JobToken) -> io::Result<Link> {
        worker.set_nonblocking(true)?;
        worker.set_nodelay(true)?;
        let mut store = End::new(connect(store)?);
        let (initiator, opening) = channel::initiate(token)?;
        store.unsent = opening;
        let channel = State::Handshake(Some(Box::new(initiator)));
        Ok(Link { worker: End::new(worker), store, channel, arrived: Vec::new(), over: false })
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// What to poll, and for what.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Side, BorrowedFd<'_>, PollFlags)> {
        let is_open = matches!(self.channel, State::Open(_));
        let flags = |end: &End, other: &End, reads: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, reads && !end.closed && other.unsent.len() < PAUSE_BYTES);
            flags.set(PollFlags::POLLOUT, !end.unsent.is_empty());
            flags
        };
        // A side that has closed and to which nothing is to be written would only wake us again and again.
        let used = |end: &End| !end.closed || !end.unsent.is_empty();
        let ends = [
            (Side::Worker, &self.worker, flags(&self.worker, &self.store, is_open)),
            (Side::Store, &self.store, flags(&self.store, &self.worker, true)),
        ];
        ends.into_iter()
            .filter(move |(_, end, _)| used(end))
            .map(|(side, end, flags)| (side, end.stream.as_fd(), flags))
    }

    /// Moves what can be moved, after poll has said this of a side.
    pub(super) fn ready(&mut self, side: Side, flags: PollFlags) {
        let broken = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let moved = match side {
            // Both directions are closed: nobody is there to receive what is left.
            Side::Worker if flags.intersects(broken) => Err(io::ErrorKind::ConnectionReset.into()),
            Side::Worker => self.serve_worker(flags),
            Side::Store => self.serve_store(flags, flags.intersects(broken)),
        };
        let closed_behind = |from: &End, to: &End| from.closed && to.unsent.is_empty();
        self.over |=
            moved.is_err() || closed_behind(&self.worker, &self.store) || closed_behind(&self.store, &self.worker);
    }

    fn serve_worker(&mut self, flags: PollFlags) -> io::Result<()> {
        self.worker.flush()?;
        if !flags.contains(PollFlags::POLLIN) {
            return Ok(());
        }
        let State::Open(channel) = &mut self.channel else { return Ok(()) };
        let mut buffer = [0; MAX_PLAINTEXT];
        let count = self.worker.read(&mut buffer)?;
        if count > 0 {
            self.store.unsent.extend(channel.outbound.wrap(&buffer[..count])?);
        }
        self.store.flush()
    }

    fn serve_store(&mut self, flags: PollFlags, broken: bool) -> io::Result<()> {
        if flags.contains(PollFlags::POLLOUT) && !broken {
            self.store.flush()?;
        }
        if !flags.contains(PollFlags::POLLIN) && !broken {
            return Ok(());
        }
        let mut buffer = [0; MAX_PLAINTEXT];
        loop {
            let count = self.store.read(&mut buffer)?;
            self.arrived.extend_from_slice(&buffer[..count]);
            self.receive()?;
            // Nothing more will be told of a connection that has broken: the rest is read now.
            if !broken || count == 0 {
                break;
            }
        }
        self.store.closed |= broken;
        self.worker.flush()
    }

    /// Takes what has come from the store's launcher.
    fn receive(&mut self) -> io::Result<()> {
        if let State::Handshake(initiator) = &mut self.channel {
            let Some(answer) = self.arrived.first_chunk::<ANSWER_BYTES>() else { return Ok(()) };
            let initiator = initiator.take().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let (channel, proof) = channel::answered(*initiator, answer)?;
            self.arrived.drain(..ANSWER_BYTES);
            self.store.unsent.extend(proof);
            self.store.flush()?;
            self.channel = State::Open(Box::new(channel));
        }
        let State::Open(channel) = &mut self.channel else { return Ok(()) };
        let opened = channel.inbound.unwrap(&mut self.arrived, &mut self.worker.unsent);
        opened.map_err(|cause| io::Error::other(cause.to_string()))
    }
}

/// Begins to connect.
fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) => {}
        Err(error) => return Err(error),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE_IDLE).with_interval(KEEP_ALIVE_INTERVAL);
    SockRef::from(&stream).set_tcp_keepalive(&keep_alive.with_retries(KEEP_ALIVE_PROBES))?;
    Ok(stream)
}
