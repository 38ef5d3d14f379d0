//! A connection to another rank: bytes as they are, or encrypted in frames of [`instep_noise`].
//!
//! What is encrypted is sealed in pieces of one frame: while the kernel sends one, the next is sealed. Memory for frames is
//! made with the first ones and then stays. Neither direction ever waits.
#![expect(unsafe_code, reason = "reads and writes memory that callers vouch for")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use instep_noise::{FRAME_OVERHEAD, MAX_PLAINTEXT, Opener, Sealer, Session};
use nix::poll::{PollFd, PollFlags, poll};

use crate::socket::{peek, poll_timeout, receive, send};
use crate::sync::ForkGuard;

/// Up to so many bytes a header and what follows it share a frame; longer payloads are sealed where they lie.
const GATHERED: usize = 4 << 10;
/// The longest frame.
const FRAME_BYTES: usize = MAX_PLAINTEXT + FRAME_OVERHEAD;
/// What is read from the socket at once where much comes, and where little does.
const READ_BYTES: usize = 3 * FRAME_BYTES;
const FIRST_READ_BYTES: usize = 4 << 10;

/// One connection.
pub(crate) struct Stream {
    socket: OwnedFd,
    cipher: Option<Box<Cipher>>,
}

/// Both directions of an encrypted connection.
struct Cipher {
    /// A forked child would number its frames as its parent does, and so give their keys away.
    owner: ForkGuard,
    outgoing: Outgoing,
    incoming: Incoming,
}

/// Frames on their way out.
struct Outgoing {
    sealer: Sealer,
    /// Room for frames, of which `filled` bytes are sealed and `sent` are out.
    frames: Vec<u8>,
    filled: usize,
    sent: usize,
    /// How many bytes of the caller it holds.
    holds: usize,
    /// A header with the bytes after it.
    gathered: Vec<u8>,
}

/// What came in.
struct Incoming {
    opener: Opener,
    /// Frames that are not opened yet, between `start` and `end`.
    frames: Vec<u8>,
    start: usize,
    end: usize,
    /// What was opened and not taken yet, between `taken` and `filled`.
    opened: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Something came that the peer did not send.
    altered: bool,
}

impl Stream {
    /// A connection that is encrypted if there is a session for it.
    pub(crate) fn new(socket: impl Into<OwnedFd>, session: Option<Session>) -> Stream {
        let cipher = session.map(|Session { sealer, opener }| {
            let (frames, gathered) = (Vec::new(), Vec::with_capacity(GATHERED));
            let outgoing = Outgoing { sealer, frames, filled: 0, sent: 0, holds: 0, gathered };
            let (frames, opened) = (vec![0; FIRST_READ_BYTES], Vec::new());
            let incoming = Incoming { opener, frames, start: 0, end: 0, opened, taken: 0, filled: 0, altered: false };
            Box::new(Cipher { owner: ForkGuard::new(), outgoing, incoming })
        });
        Stream { socket: socket.into(), cipher }
    }

    /// Writes what goes of a header and the bytes after it, of which `done` are out; how many are out now besides those.
    /// Whoever begins with some bytes goes on with them, until the other side has all: they may be sealed already.
    ///
    /// # Safety
    /// `length` bytes are readable at `payload`.
    pub(crate) unsafe fn send(
        &mut self,
        header: &[u8],
        payload: *const u8,
        length: usize,
        done: usize,
    ) -> io::Result<usize> {
        let Some(cipher) = &mut self.cipher else {
            // SAFETY: the caller's promise.
            return unsafe { send(&self.socket, header, payload, length, done) };
        };
        if !cipher.owner.is_owner() {
            return Err(io::Error::other("a forked process cannot use the encrypted connections of its parent"));
        }
        // SAFETY: the caller's promise.
        unsafe { cipher.outgoing.send(&self.socket, header, payload, length, done) }
    }

    /// Whether something is sealed that is not all out.
    pub(crate) fn is_sending(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.outgoing.holds > 0)
    }

    /// Reads what there is, at most so much; 0 at the end.
    ///
    /// # Safety
    /// `length` bytes are writable at `to`.
    pub(crate) unsafe fn receive(&mut self, to: *mut u8, length: usize) -> io::Result<usize> {
        let Some(cipher) = &mut self.cipher else {
            // SAFETY: the caller's promise.
            return unsafe { receive(&self.socket, to, length) };
        };
        if length == 0 {
            return Ok(0);
        }
        // SAFETY: the caller's promise.
        let into = unsafe { std::slice::from_raw_parts_mut(to, length) };
        cipher.incoming.receive(&self.socket, into)
    }

    /// Whether something can be read that is not in the socket any more: polling does not show it.
    pub(crate) fn holds_input(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.incoming.holds_input())
    }

    /// What would be read next, without taking it.
    pub(crate) fn peek(&mut self, to: &mut [u8]) -> usize {
        match &mut self.cipher {
            None => peek(&self.socket, to),
            Some(cipher) => cipher.incoming.peek(&self.socket, to),
        }
    }

    /// Writes all of this, waiting for room until then; whether it went.
    pub(crate) fn send_all(&mut self, bytes: &[u8], until: Instant) -> bool {
        // SAFETY: the slice is readable for its length.
        unsafe { self.send_rest(&[], bytes.as_ptr(), bytes.len(), 0, until) }
    }

    /// Writes the rest of a header and the bytes after it, waiting for room until then; whether it went.
    ///
    /// # Safety
    /// As for [`Stream::send`].
    pub(crate) unsafe fn send_rest(
        &mut self,
        header: &[u8],
        payload: *const u8,
        length: usize,
        mut done: usize,
        until: Instant,
    ) -> bool {
        while done < header.len() + length {
            // SAFETY: the caller's promise.
            match unsafe { self.send(header, payload, length, done) } {
                Ok(sent) => done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let _ = poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLOUT)], poll_timeout(left));
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Says that nothing more comes from this side.
    pub(crate) fn shut_down_writing(&self) {
        // It may be closed already.
        let _ = socket2::SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Outgoing {
    /// See [`Stream::send`]. Only what the kernel has counts as out.
    ///
    /// # Safety
    /// As there.
    unsafe fn send(
        &mut self,
        socket: &OwnedFd,
        header: &[u8],
        payload: *const u8,
        length: usize,
        done: usize,
    ) -> io::Result<usize> {
        if self.holds == 0 {
            let of_header = done.min(header.len());
            // SAFETY: the caller's promise.
            let payload = unsafe { rest_of(payload, length, done - of_header) };
            self.seal(&header[of_header..], payload)?;
        }
        while self.sent < self.filled {
            // SAFETY: our own bytes.
            self.sent += unsafe { send(socket, &[], self.frames.as_ptr(), self.filled, self.sent) }?;
        }
        Ok(std::mem::take(&mut self.holds))
    }

    /// Seals a header, and a frame's worth of what follows it.
    fn seal(&mut self, header: &[u8], payload: &[u8]) -> io::Result<()> {
        (self.filled, self.sent) = (0, 0);
        if header.len() + payload.len() <= GATHERED {
            let mut gathered = std::mem::take(&mut self.gathered);
            gathered.clear();
            gathered.extend_from_slice(header);
            gathered.extend_from_slice(payload);
            let sealed = self.seal_frame(&gathered);
            (self.holds, self.gathered) = (gathered.len(), gathered);
            return sealed;
        }
        let payload = &payload[..payload.len().min(MAX_PLAINTEXT)];
        if !header.is_empty() {
            self.seal_frame(header)?;
        }
        self.seal_frame(payload)?;
        self.holds = header.len() + payload.len();
        Ok(())
    }

    fn seal_frame(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.filled + bytes.len() + FRAME_OVERHEAD;
        if self.frames.len() < end {
            self.frames.resize(end, 0);
        }
        self.sealer.seal_frame(bytes, &mut self.frames[self.filled..end]).map_err(io::Error::other)?;
        self.filled = end;
        Ok(())
    }
}

/// The bytes of a payload after those that are skipped.
///
/// # Safety
/// `length` bytes are readable at `payload`, as long as the slice is used.
unsafe fn rest_of<'a>(payload: *const u8, length: usize, skipped: usize) -> &'a [u8] {
    if skipped >= length {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(payload.wrapping_add(skipped), length - skipped) }
}

impl Incoming {
    fn receive(&mut self, socket: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.taken < self.filled {
                let taken = into.len().min(self.filled - self.taken);
                into[..taken].copy_from_slice(&self.opened[self.taken..self.taken + taken]);
                self.taken += taken;
                return Ok(taken);
            }
            (self.taken, self.filled) = (0, 0);
            let Some(frame) = self.next_frame()? else {
                match self.fill(socket)? {
                    0 => return Ok(0),
                    _ => continue,
                }
            };
            if frame > into.len() {
                self.open_behind(frame)?;
                continue;
            }
            // The frame's overhead is written over by what comes next, or was not there before.
            let held = self.opener.open_frame(&self.frames[self.start..self.start + frame], into);
            match self.opened(frame, held)? {
                0 => continue,
                held => return Ok(held),
            }
        }
    }

    fn peek(&mut self, socket: &OwnedFd, to: &mut [u8]) -> usize {
        while self.filled - self.taken < to.len() {
            self.opened.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
            // What is wrong is found again by whoever receives.
            let found = match self.next_frame() {
                Ok(Some(frame)) => self.open_behind(frame).is_ok(),
                Ok(None) => self.fill(socket).is_ok_and(|read| read > 0),
                Err(_) => false,
            };
            if !found {
                break;
            }
        }
        let found = to.len().min(self.filled - self.taken);
        to[..found].copy_from_slice(&self.opened[self.taken..self.taken + found]);
        found
    }

    fn holds_input(&self) -> bool {
        self.taken < self.filled || self.altered || !matches!(self.whole_frame(), Ok(None))
    }

    /// The length of the next frame, if all of it is there.
    fn next_frame(&mut self) -> io::Result<Option<usize>> {
        if self.altered {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.whole_frame().or_else(|_| self.fail())
    }

    fn whole_frame(&self) -> Result<Option<usize>, instep_noise::Error> {
        let there = &self.frames[self.start..self.end];
        Ok(instep_noise::frame_length(there)?.filter(|length| *length <= there.len()))
    }

    /// Opens the next frame behind what was opened before.
    fn open_behind(&mut self, frame: usize) -> io::Result<()> {
        if self.opened.len() < self.filled + frame {
            self.opened.resize(self.filled + frame, 0);
        }
        let held =
            self.opener.open_frame(&self.frames[self.start..self.start + frame], &mut self.opened[self.filled..]);
        self.filled += self.opened(frame, held)?;
        Ok(())
    }

    fn opened(&mut self, frame: usize, held: Result<usize, instep_noise::Error>) -> io::Result<usize> {
        self.start += frame;
        held.or_else(|_| self.fail())
    }

    fn fail<T>(&mut self) -> io::Result<T> {
        self.altered = true;
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Reads more of the next frame; 0 at the end.
    fn fill(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        self.frames.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.frames.len() {
            // Much comes here: so it is from now on.
            self.frames.resize(READ_BYTES, 0);
        }
        let (to, length) = (self.frames[self.end..].as_mut_ptr(), self.frames.len() - self.end);
        // SAFETY: our own bytes.
        let read = unsafe { receive(socket, to, length) }?;
        self.end += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
