//! One connection to a peer: frames and the bytes after them, in and out, never waiting.
//!
//! The bytes of messages go from and to the memory of the operations themselves. The progress thread that owns the link gives it
//! only memory of operations that are not over, and drops the link, or forgets the operation here first, before it lets one
//! fail.
#![expect(unsafe_code, reason = "reads and writes memory that callers vouch for")]

use std::io;
use std::time::Instant;

use super::matching::Destination;
use super::wire::{ABORT_BYTES, FRAME_BYTES, Frame, HELLO_BYTES, Hello};
use crate::Rank;
use crate::tcp::stream::Stream;

/// What came in.
pub(super) enum Received {
    /// Nothing more for now.
    Nothing,
    Hello(Hello),
    /// If bytes follow it, [`Link::expect`] must say where they go before the next [`Link::read`].
    Frame(Frame),
    /// The bytes after a frame are all there.
    Payload(Destination, usize),
    Abort(Vec<u8>),
    /// What came makes no sense.
    Garbled,
    /// The end, and how.
    Closed(io::Error),
}

enum Reading {
    Hello { bytes: [u8; HELLO_BYTES], done: usize },
    Header { bytes: [u8; FRAME_BYTES], done: usize },
    Payload { destination: Destination, pointer: *mut u8, length: usize, done: usize },
    Abort { bytes: Vec<u8>, done: usize },
}

impl Reading {
    const HEADER: Reading = Reading::Header { bytes: [0; FRAME_BYTES], done: 0 };
}

/// A frame on its way out.
pub(super) struct Writing {
    pub(super) frame: Frame,
    header: [u8; FRAME_BYTES],
    /// What follows it.
    payload: *const u8,
    length: usize,
    /// Of both together.
    done: usize,
}

impl Writing {
    /// A frame and the bytes after it, which stay valid until the writing is done or dropped.
    pub(super) fn new(frame: Frame, payload: *const u8) -> Writing {
        let length = frame.payload();
        Writing { frame, header: frame.to_bytes(), payload, length, done: 0 }
    }
}

/// One connection.
pub(super) struct Link {
    stream: Stream,
    /// Who is at the other end, once that is known.
    pub(super) peer: Option<Rank>,
    /// The process at the other end, where the kernel says so.
    pub(super) process: i32,
    pub(super) opened: Instant,
    reading: Reading,
    /// What of the hello is not out yet.
    hello: Vec<u8>,
}

impl Link {
    /// Somebody called, and must say hello first.
    pub(super) fn accepted(stream: Stream, process: i32, now: Instant) -> Link {
        let reading = Reading::Hello { bytes: [0; HELLO_BYTES], done: 0 };
        Link { stream, peer: None, process, opened: now, reading, hello: Vec::new() }
    }

    /// This rank called, and says hello first.
    pub(super) fn dialed(stream: Stream, peer: Rank, process: i32, hello: Vec<u8>, now: Instant) -> Link {
        Link { stream, peer: Some(peer), process, opened: now, reading: Reading::HEADER, hello }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether some but not all of a frame is out, or on its way.
    pub(super) fn has_begun(&self, writing: &Writing) -> bool {
        writing.done > 0 || self.stream.is_sending()
    }

    pub(super) fn has_unsent_hello(&self) -> bool {
        !self.hello.is_empty()
    }

    /// Says where the bytes after the last frame go.
    ///
    /// The memory stays valid until they are there or the link is dropped.
    pub(super) fn expect(&mut self, destination: Destination, pointer: *mut u8, length: usize) {
        self.reading = Reading::Payload { destination, pointer, length, done: 0 };
    }

    /// The next thing that came in.
    pub(super) fn read(&mut self) -> Received {
        loop {
            let (pointer, length, done) = match &mut self.reading {
                Reading::Hello { bytes, done } => (bytes.as_mut_ptr(), bytes.len(), done),
                Reading::Header { bytes, done } => (bytes.as_mut_ptr(), bytes.len(), done),
                Reading::Abort { bytes, done } => (bytes.as_mut_ptr(), bytes.len(), done),
                Reading::Payload { pointer, length, done, .. } => (*pointer, *length, done),
            };
            while *done < length {
                // SAFETY: the rest of the buffer, ours or, by the promise at `expect`, that of an operation under way.
                match unsafe { self.stream.receive(pointer.wrapping_add(*done), length - *done) } {
                    Ok(0) => return Received::Closed(io::ErrorKind::UnexpectedEof.into()),
                    Ok(read) => *done += read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
                    Err(error) => return Received::Closed(error),
                }
            }
            match std::mem::replace(&mut self.reading, Reading::HEADER) {
                Reading::Hello { bytes, .. } => {
                    return Hello::from_bytes(&bytes).map_or(Received::Garbled, Received::Hello);
                }
                Reading::Header { bytes, .. } => match Frame::from_bytes(&bytes) {
                    Some(Frame::Abort) => {
                        self.reading = Reading::Abort { bytes: vec![0; ABORT_BYTES], done: 0 };
                    }
                    Some(frame) => return Received::Frame(frame),
                    None => return Received::Garbled,
                },
                Reading::Payload { destination, length, .. } => return Received::Payload(destination, length),
                Reading::Abort { bytes, .. } => return Received::Abort(bytes),
            }
        }
    }

    /// Writes as much as goes; whether all is out.
    pub(super) fn write(&mut self, writing: &mut Writing) -> io::Result<bool> {
        if !self.write_hello()? {
            return Ok(false);
        }
        while writing.done < FRAME_BYTES + writing.length {
            // SAFETY: the payload is valid by the promise at `Writing::new`.
            match unsafe { self.stream.send(&writing.header, writing.payload, writing.length, writing.done) } {
                Ok(sent) => writing.done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes the rest of a frame that was begun, waiting for room until then; whether it went.
    pub(super) fn write_rest(&mut self, writing: &Writing, until: Instant) -> bool {
        // SAFETY: as in `write`.
        unsafe { self.stream.send_rest(&writing.header, writing.payload, writing.length, writing.done, until) }
    }

    /// Writes what is the last, waiting for room until then.
    pub(super) fn write_last(&mut self, bytes: &[u8], until: Instant) {
        self.stream.send_all(bytes, until);
    }

    /// Writes what is left of the hello; whether all is out.
    pub(super) fn write_hello(&mut self) -> io::Result<bool> {
        while !self.hello.is_empty() {
            // SAFETY: our own bytes.
            match unsafe { self.stream.send(&[], self.hello.as_ptr(), self.hello.len(), 0) } {
                Ok(sent) => drop(self.hello.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
