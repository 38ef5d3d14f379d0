//! Sockets for the handshakes of [`super::handshake`].
#![expect(unsafe_code, reason = "reads sockets")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::handshake::{HandshakeStatus, InitiatorHandshake, Membership, ResponderHandshake, WelcomedHellos};
use super::secret::Nonces;
use super::stream::Stream;
use super::wire::Purpose;
use crate::Rank;
use crate::socket::{receive, send_all};

/// A host that does not answer is lost after this, where `heartbeat` does not find out before.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 5;

/// Starts to connect, and goes on without waiting.
pub(crate) fn dial(endpoint: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(endpoint), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&endpoint.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Whether a connection that was dialled is there; an error if there is nobody, or no way.
pub(crate) fn has_connected(socket: &TcpStream) -> io::Result<bool> {
    match socket.take_error()? {
        Some(error) => Err(error),
        None => Ok(socket.peer_addr().is_ok()),
    }
}

/// What there is to read, at most so much; `None` if nothing is there yet, an error at the end.
pub(crate) fn read_some(socket: &TcpStream, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; most];
    // SAFETY: the bytes are writable for their length.
    match unsafe { receive(socket, bytes.as_mut_ptr(), bytes.len()) } {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => {
            bytes.truncate(read);
            Ok(Some(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// A call of this rank.
pub(crate) struct OutgoingHandshake {
    socket: TcpStream,
    pub(crate) endpoint: SocketAddr,
    /// Nothing until the connection is there and the hello is out.
    handshake: Option<InitiatorHandshake>,
}

impl OutgoingHandshake {
    pub(crate) fn dial(endpoint: SocketAddr) -> io::Result<OutgoingHandshake> {
        Ok(OutgoingHandshake { socket: dial(endpoint)?, endpoint, handshake: None })
    }

    /// Somebody is at that endpoint and has not answered yet.
    pub(crate) fn is_connected(&self) -> bool {
        self.handshake.is_some()
    }

    /// What to wait for.
    pub(crate) fn handle(&self) -> PollFd<'_> {
        let events = if self.handshake.is_some() { PollFlags::POLLIN } else { PollFlags::POLLOUT };
        PollFd::new(self.socket.as_fd(), events)
    }

    pub(crate) fn advance(
        &mut self,
        membership: Membership<'_>,
        peer: Rank,
        purpose: Purpose,
        nonces: &mut Nonces,
    ) -> HandshakeStatus {
        let handshake = match &mut self.handshake {
            Some(handshake) => handshake,
            none => {
                match has_connected(&self.socket) {
                    Ok(true) => {}
                    Ok(false) => return HandshakeStatus::Waiting,
                    Err(error) => return HandshakeStatus::Unreachable(error.kind()),
                }
                let Ok(handshake) = InitiatorHandshake::new(membership, peer, purpose, nonces.draw()) else {
                    return HandshakeStatus::Closed;
                };
                if !send_all(&self.socket, handshake.hello(), Instant::now()) {
                    return HandshakeStatus::Closed;
                }
                none.insert(handshake)
            }
        };
        loop {
            match read_some(&self.socket, handshake.wanted()) {
                Ok(Some(bytes)) => match handshake.feed(&bytes) {
                    HandshakeStatus::Waiting => {}
                    status => return status,
                },
                Ok(None) => return HandshakeStatus::Waiting,
                Err(_) => return HandshakeStatus::Closed,
            }
        }
    }

    /// Takes this connection, which was answered; nothing if it is gone.
    pub(crate) fn confirm(&mut self) -> Option<Stream> {
        let handshake = self.handshake.as_mut()?;
        let sent = send_all(&self.socket, handshake.confirmation(), Instant::now());
        // Its own failure says nothing: the connection works without.
        let _ = configure(&self.socket);
        let socket = self.socket.try_clone().ok().filter(|_| sent)?;
        Some(Stream::new(socket, handshake.take_session()))
    }
}

/// A call to this rank.
pub(crate) struct IncomingHandshake {
    socket: TcpStream,
    handshake: ResponderHandshake,
}

impl IncomingHandshake {
    pub(crate) fn new(socket: TcpStream, nonces: &mut Nonces) -> IncomingHandshake {
        IncomingHandshake { socket, handshake: ResponderHandshake::new(Instant::now(), nonces.draw()) }
    }

    /// See [`ResponderHandshake::claimed`].
    pub(crate) fn claimed(&self) -> Option<(Rank, Purpose)> {
        self.handshake.claimed()
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.handshake.deadline()
    }

    /// What to wait for.
    pub(crate) fn handle(&self) -> PollFd<'_> {
        PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)
    }

    /// The connection, once the caller takes it.
    pub(crate) fn stream(&mut self) -> io::Result<Stream> {
        // As above.
        let _ = configure(&self.socket);
        Ok(Stream::new(self.socket.try_clone()?, self.handshake.take_session()))
    }

    /// See [`ResponderHandshake::feed`].
    pub(crate) fn advance(
        &mut self,
        membership: Membership<'_>,
        expects: impl Fn(Rank, Purpose) -> bool,
        closing: Option<&str>,
        welcomed: &mut WelcomedHellos,
    ) -> HandshakeStatus {
        loop {
            let bytes = match read_some(&self.socket, self.handshake.wanted()) {
                Ok(Some(bytes)) => bytes,
                Ok(None) if Instant::now() >= self.deadline() => return HandshakeStatus::Closed,
                Ok(None) => return HandshakeStatus::Waiting,
                Err(_) => return HandshakeStatus::Closed,
            };
            let (status, reply) = self.handshake.feed(&bytes, membership, &expects, closing, welcomed);
            // A new connection has room for so little.
            let sent = reply.is_empty() || send_all(&self.socket, &reply, Instant::now());
            match status {
                HandshakeStatus::Waiting if sent => {}
                HandshakeStatus::Waiting => return HandshakeStatus::Closed,
                status => return status,
            }
        }
    }
}

/// Sends at once what is written, and notices when the other host does not answer any more.
pub(crate) fn configure(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    // No limit for what is not acknowledged: the kernel would count the time in which the other side does not read.
    socket.set_tcp_keepalive(&keepalive)
}
