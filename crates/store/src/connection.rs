//! One connection as the event loop sees it: its socket, what it is, and what is buffered in either direction.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

use crate::companion::Envelope;
use crate::notice::Notice;
use crate::output::Output;
use crate::protocol::{Decoder, HELLO, Limits, Reply};

/// A vanished host is noticed after about 60 + 3 × 20 seconds even when nobody writes to it.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_PROBES: u32 = 3;
/// A companion's peer decides the fate of a job: it is asked for signs of life more often.
const COMPANION_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Not enough bytes yet to tell.
    Unknown,
    Store,
    Companion,
}

/// What the companion put between the store and a client.
pub(crate) struct Sealed {
    pub(crate) envelope: Box<dyn Envelope>,
    /// Bytes opened and not consumed: an incomplete request, or requests held back while the output is full.
    pub(crate) opened: Vec<u8>,
}

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) role: Role,
    /// Bytes received and not consumed: an incomplete request, or requests held back while the output is full.
    pub(crate) input: Vec<u8>,
    /// When the request at the start of `input` began to arrive.
    pub(crate) input_since: Option<Instant>,
    pub(crate) decoder: Decoder,
    pub(crate) output: Output,
    /// Of a client that the companion has handed over.
    pub(crate) sealed: Option<Box<Sealed>>,
    /// `input` may hold whole requests, which were not decoded because the output was full.
    pub(crate) held_back: bool,
    /// The socket may hold bytes that were not read yet. Readiness is edge-triggered, so this has to be remembered.
    pub(crate) readable: bool,
    /// The peer has sent all it will send; known before the last bytes are read.
    pub(crate) read_closed: bool,
    /// Waits in the loop's list of connections to serve again.
    pub(crate) queued: bool,
    /// To be dropped once the output is written.
    pub(crate) closing: bool,
}

fn keep_alive(idle: Duration, interval: Duration) -> TcpKeepalive {
    TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(KEEP_ALIVE_PROBES)
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Connection> {
        let socket = SockRef::from(&stream);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keep_alive(KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL))?;
        Ok(Connection {
            stream,
            peer,
            role: Role::Unknown,
            input: Vec::new(),
            input_since: None,
            decoder: Decoder::default(),
            output: Output::default(),
            sealed: None,
            held_back: false,
            readable: false,
            read_closed: false,
            queued: false,
            closing: false,
        })
    }

    /// The connection is a companion's: a peer that vanished is noticed within seconds, also while something is on
    /// its way to it.
    pub(crate) fn become_companion(&mut self) {
        self.role = Role::Companion;
        let socket = SockRef::from(&self.stream);
        // A socket that takes no options is about to report its end.
        let _ = socket.set_tcp_keepalive(&keep_alive(COMPANION_INTERVAL, COMPANION_INTERVAL));
        let _ = socket.set_tcp_user_timeout(Some(COMPANION_INTERVAL * (KEEP_ALIVE_PROBES + 1)));
    }

    /// The companion hands the connection over: it is a client's that is about to say so.
    pub(crate) fn leave_companion(&mut self, sealed: Sealed) {
        self.role = Role::Unknown;
        self.sealed = Some(Box::new(sealed));
        let socket = SockRef::from(&self.stream);
        let _ = socket.set_tcp_keepalive(&keep_alive(KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL));
        let _ = socket.set_tcp_user_timeout(None);
    }

    /// Bytes that are kept of requests which are not complete, or held back.
    pub(crate) fn incomplete(&self) -> usize {
        self.input.len() + self.sealed.as_ref().map_or(0, |sealed| sealed.opened.len())
    }

    /// Queues a reply; gives how much longer the output is.
    pub(crate) fn reply(&mut self, reply: &Reply) -> u64 {
        let before = self.output.unsent();
        match &mut self.sealed {
            None => reply.write(&mut self.output),
            Some(sealed) => {
                let (mut plain, mut bytes) = (Vec::new(), Vec::new());
                reply.encode(&mut plain);
                match sealed.envelope.seal(&plain, &mut bytes) {
                    Ok(()) => self.output.push(bytes),
                    // The loop reads the end of the stream, and removes the connection.
                    Err(_) => drop(self.stream.shutdown(Shutdown::Both)),
                }
            }
        }
        (self.output.unsent() - before) as u64
    }

    /// Reads once; `None` when there is nothing to read now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(buffer) {
                Ok(length) => {
                    // A short read has emptied the socket (epoll(7)); whatever comes next is a new event. Only the end
                    // of the stream, once announced, has to be read explicitly.
                    if length < buffer.len() && !self.read_closed {
                        self.readable = false;
                    }
                    return Ok(Some(length));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.output.flush(&mut self.stream)
    }
}

/// What the first bytes of a connection say about it.
#[derive(Debug)]
pub(crate) enum Opening {
    /// The start of the store's hello, not all of it.
    Incomplete,
    /// The store's hello, [`HELLO`].
    Store,
    /// A first byte that the companion claims.
    Companion,
    Unknown(Notice),
}

/// Tells what has connected; `claimed`, whether the companion claims a first byte.
pub(crate) fn opening(bytes: &[u8], peer: SocketAddr, claimed: impl FnOnce(u8) -> bool) -> Opening {
    if bytes.first().is_some_and(|first| claimed(*first)) {
        return Opening::Companion;
    }
    if bytes.starts_with(&HELLO) {
        return Opening::Store;
    }
    if HELLO.starts_with(bytes) {
        return Opening::Incomplete;
    }
    Opening::Unknown(unknown_client(bytes, peer))
}

/// torch before 2.2 has no hello: it starts with a request whose code is at most 11 and whose first argument is the
/// length of a key. Zero is its `SET`, three its `ADD`.
fn unknown_client(bytes: &[u8], peer: SocketAddr) -> Notice {
    const LAST_OLD_CODE: u8 = 11;
    let key_length = bytes.get(1..9).and_then(|length| length.try_into().ok());
    let plausible = key_length.is_some_and(|length| u64::from_le_bytes(length) <= Limits::default().key as u64);
    if bytes[0] <= LAST_OLD_CODE && plausible {
        return Notice::OldClient { peer };
    }
    Notice::NotAStoreClient { peer, first: bytes.iter().take(16).copied().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_who_connects() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let cases: &[(&[u8], &str)] = &[
            (b"\x00\xCE\xF7\x85\x3C", "Store"),
            (b"\x00\xCE\xF7\x85\x3C\x0D\x01\x02\x03\x04", "Store"),
            (b"\x00", "Incomplete"),
            (b"\x00\xCE\xF7\x85", "Incomplete"),
            (b"\x00\x05\0\0\0\0\0\0\0init/", "Unknown(OldClient"),
            (b"\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0", "Unknown(OldClient"),
            (b"\x00\xCE\xF7\x85\x3D", "Unknown(NotAStoreClient"),
            (b"GET / HTTP/1.1\r\n", "Unknown(NotAStoreClient"),
            (b"I hello", "Companion"),
        ];
        for (bytes, expected) in cases {
            let found = format!("{:?}", opening(bytes, peer, |first| first == b'I'));
            assert!(found.starts_with(expected), "{}: {found}", bytes.escape_ascii());
        }
    }
}
