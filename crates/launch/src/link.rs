//! The launcher's connection to the coordinator: lines of JSON on a non-blocking stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::control::{self, FromCoordinator, ToCoordinator};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Link {
    stream: File,
    received: Vec<u8>,
    unsent: Vec<u8>,
    closed: bool,
}

impl Link {
    /// Takes over a connected socket, with bytes that were read from it already.
    pub(crate) fn new(stream: OwnedFd, received: Vec<u8>) -> io::Result<Link> {
        fcntl(&stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Link { stream: File::from(stream), received, unsent: Vec::new(), closed: false })
    }

    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Sends what can be sent now, keeps the rest. A broken connection shows when reading.
    pub(crate) fn send(&mut self, message: &ToCoordinator) {
        self.unsent.extend(control::encode(message));
        self.flush();
    }

    pub(crate) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.closed |= error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    /// The messages that have arrived, in order.
    pub(crate) fn receive(&mut self) -> Vec<FromCoordinator> {
        let mut buffer = [0u8; 16 << 10];
        while !self.closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        let mut messages = Vec::new();
        let mut consumed = 0;
        loop {
            match control::decode(&self.received[consumed..]) {
                Ok(Some((message, length))) => {
                    consumed += length;
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
}
