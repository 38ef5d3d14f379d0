//! One exchange: a message to every peer that gets one and one from every peer that owes one, all at once.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, poll};

use super::wire::{self, HEADER_BYTES, Header, Kind, VERDICT_BYTES};
use super::{Engine, Unsent, Watch};
use crate::arena::verdict::Verdict;
use crate::call::Call;
use crate::socket::{peek, poll_timeout, receive, send};
use crate::{Noticed, Rank};

/// The other side has closed its end; not among the flags that nix names.
const HUNG_UP: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);

/// Why an operation stops in the middle.
pub(super) enum Stop {
    /// The group has a verdict.
    Aborted,
    Verdict(Verdict),
    Lost(usize, Noticed),
    Deadline,
}

pub(super) type Progress = Result<(), Stop>;

/// Bytes for a peer.
#[derive(Clone, Copy)]
pub(super) struct Out {
    pub(super) pointer: *const u8,
    pub(super) length: usize,
    /// All bytes of the operation for this peer, where the call does not say it.
    pub(super) total: usize,
}

/// Room for a peer's bytes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) pointer: *mut u8,
    pub(super) length: usize,
    /// All bytes that this rank expects from the peer, where the call does not say it.
    pub(super) total: usize,
    /// It is the caller's memory, not ours.
    pub(super) output: bool,
}

impl Out {
    pub(super) const NOTHING: Out = Out { pointer: std::ptr::null(), length: 0, total: 0 };

    pub(super) fn new(pointer: *const u8, length: usize) -> Out {
        Out { pointer, length, total: 0 }
    }
}

impl Room {
    pub(super) const NOTHING: Room = Room { pointer: std::ptr::null_mut(), length: 0, total: 0, output: false };

    /// In the caller's memory.
    pub(super) fn output(pointer: *mut u8, length: usize) -> Room {
        Room { pointer, length, total: 0, output: true }
    }

    /// In memory of the engine.
    pub(super) fn scratch(pointer: *mut u8, length: usize) -> Room {
        Room { pointer, length, total: 0, output: false }
    }
}

/// What comes from one peer.
struct Coming {
    room: Room,
    /// All bytes that go to the same peer, where the call does not say it.
    sends: usize,
    header: [u8; HEADER_BYTES],
    /// The header is there and fits.
    checked: bool,
    /// Of the header, then of the bytes after it.
    done: usize,
}

impl Coming {
    fn is_over(&self) -> bool {
        self.checked && self.done == self.room.length
    }
}

impl Engine {
    /// Exchanges messages with the peers that have an entry; entries of this rank itself are left out.
    ///
    /// # Safety
    /// The memory of all entries is valid and nobody else uses it; what is sent and what is received do not overlap.
    pub(super) unsafe fn exchange(
        &mut self,
        step: u64,
        out: impl Fn(usize) -> Option<Out>,
        into: impl Fn(usize) -> Option<Room>,
        watch: &Watch,
    ) -> Progress {
        let (rank, generation) = (self.rank, self.generation);
        for (peer, link) in self.peers.iter_mut().enumerate() {
            if let (Some(out), Some(link)) = (out(peer), link) {
                let header = Header {
                    kind: Kind::Data,
                    generation,
                    sequence: watch.sequence,
                    step,
                    call: watch.call.words(),
                    sends: out.total as u64,
                    expects: into(peer).map_or(0, |room| room.total as u64),
                    length: out.length as u64,
                };
                let (payload, length) = (out.pointer, out.length);
                link.unsent = Some(Unsent { header: header.to_bytes(), payload, length, done: 0 });
            }
        }
        let mut coming: Vec<Option<Coming>> = (0..self.world())
            .map(|peer| {
                let room = into(peer).filter(|_| peer != rank)?;
                let sends = out(peer).map_or(0, |out| out.total);
                Some(Coming { room, sends, header: [0; HEADER_BYTES], checked: false, done: 0 })
            })
            .collect();
        loop {
            let mut waiting = false;
            for peer in self.peers() {
                waiting |= !self.push(peer)?;
                if let Some(coming) = &mut coming[peer] {
                    waiting |= !self.pull(peer, coming, step, watch)?;
                }
            }
            if !waiting {
                return Ok(());
            }
            self.sleep(&coming, watch)?;
        }
    }

    /// Sends what goes; whether all is out.
    fn push(&mut self, peer: usize) -> Result<bool, Stop> {
        let Some(link) = &mut self.peers[peer] else { return Ok(true) };
        let Some(unsent) = &mut link.unsent else { return Ok(true) };
        while unsent.done < HEADER_BYTES + unsent.length {
            // SAFETY: the payload is an entry of the exchange under way.
            match unsafe { send(&link.socket, &unsent.header, unsent.payload, unsent.length, unsent.done) } {
                Ok(sent) => unsent.done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    link.unsent = None;
                    let noticed = Noticed::from_connection(&error);
                    // It may have said why it went.
                    return Err(self.last_words(peer, 0).unwrap_or(Stop::Lost(peer, noticed)));
                }
            }
        }
        link.unsent = None;
        Ok(true)
    }

    /// Receives what there is; whether the message is complete.
    fn pull(&mut self, peer: usize, coming: &mut Coming, step: u64, watch: &Watch) -> Result<bool, Stop> {
        while !coming.is_over() {
            let Some(link) = &mut self.peers[peer] else { return Ok(true) };
            let (to, length) = if coming.checked {
                (coming.room.pointer.wrapping_add(coming.done), coming.room.length - coming.done)
            } else {
                (coming.header[coming.done..].as_mut_ptr(), HEADER_BYTES - coming.done)
            };
            // SAFETY: the rest of our header, or of an entry of the exchange under way.
            match unsafe { receive(&link.socket, to, length) } {
                Ok(0) => return Err(Stop::Lost(peer, Noticed::ConnectionClosed)),
                Ok(read) => coming.done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Stop::Lost(peer, Noticed::from_connection(&error))),
            }
            if !coming.checked && coming.done == HEADER_BYTES {
                self.check(peer, coming, step, watch)?;
                (coming.checked, coming.done) = (true, 0);
                self.touched |= coming.room.output && coming.room.length > 0;
            }
        }
        Ok(true)
    }

    /// Compares what a peer says with what this rank expects of it.
    fn check(&mut self, peer: usize, coming: &Coming, step: u64, watch: &Watch) -> Progress {
        let garbled = || Stop::Lost(peer, Noticed::Garbled);
        let header = Header::from_bytes(&coming.header).ok_or_else(garbled)?;
        match header.kind {
            Kind::Goodbye => return Err(Stop::Lost(peer, Noticed::LeftGroup)),
            Kind::Verdict => return Err(self.hear_verdict(peer, watch)),
            Kind::Data => {}
        }
        if header.generation != self.generation || header.sequence != watch.sequence {
            return Err(garbled());
        }
        if let Some(link) = &mut self.peers[peer] {
            link.entered = true;
        }
        let theirs = Call::from_words(header.call).ok_or_else(garbled)?;
        let (sequence, element) = (watch.shown, watch.call.dtype.size() as u64);
        let mismatch = |rank: usize, call: Call, other_rank: usize, other: Call| {
            // It may have found out, or given up, and said so behind these bytes.
            let skipped = usize::try_from(header.length).unwrap_or(usize::MAX);
            let own = Stop::Verdict(Verdict::Mismatch { rank, call, other_rank, other, sequence });
            Err(self.last_words(peer, skipped).unwrap_or(own))
        };
        // What one rank sends to another is compared by both.
        let pair = |from: usize, to: usize, sent: u64, expected: u64| {
            let sending = watch.call.sending(sent / element, Rank(to));
            mismatch(from, sending, to, watch.call.expecting(expected / element, Rank(from)))
        };
        if theirs != watch.call {
            return mismatch(peer, theirs, self.rank, watch.call);
        }
        let (sends, expects) = (coming.sends as u64, coming.room.total as u64);
        if header.sends != expects {
            return pair(peer, self.rank, header.sends, expects);
        }
        if step == 0 && header.expects != sends {
            return pair(self.rank, peer, sends, header.expects);
        }
        if header.step != step || header.length != coming.room.length as u64 {
            return Err(garbled());
        }
        Ok(())
    }

    /// The words that follow the header of a verdict; their sender has them ready.
    fn hear_verdict(&self, peer: usize, watch: &Watch) -> Stop {
        let lost = Stop::Lost(peer, Noticed::ConnectionClosed);
        let Some(link) = &self.peers[peer] else { return lost };
        let mut bytes = [0; VERDICT_BYTES];
        let mut done = 0;
        while done < bytes.len() {
            // SAFETY: the rest of our own bytes.
            match unsafe { receive(&link.socket, bytes[done..].as_mut_ptr(), bytes.len() - done) } {
                Ok(0) => return lost,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = watch.deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return lost;
                    }
                    let _ = poll(&mut [PollFd::new(link.socket.as_fd(), PollFlags::POLLIN)], poll_timeout(left));
                }
                Err(_) => return lost,
            }
        }
        wire::verdict_from_bytes(&bytes).map_or(Stop::Lost(peer, Noticed::Garbled), Stop::Verdict)
    }

    /// A verdict that a peer sent after its part of an operation that went well here, and that it gave up itself.
    pub(super) fn overhear(&self, watch: &Watch) -> Progress {
        for peer in self.peers() {
            let Some((header, words)) = self.next_words(peer) else { continue };
            if header.kind == Kind::Verdict
                && header.sequence <= watch.sequence
                && let Some(verdict) = words
            {
                return Err(Stop::Verdict(verdict));
            }
        }
        Ok(())
    }

    /// The verdict or goodbye of a peer that goes, if that is what follows the next `skipped` bytes.
    fn last_words(&self, peer: usize, mut skipped: usize) -> Option<Stop> {
        let link = self.peers[peer].as_ref()?;
        let mut rest = [0; 4096];
        while skipped > 0 {
            // SAFETY: our own bytes.
            match unsafe { receive(&link.socket, rest.as_mut_ptr(), skipped.min(rest.len())) } {
                Ok(read) if read > 0 => skipped -= read,
                _ => return None,
            }
        }
        match self.next_words(peer)? {
            (Header { kind: Kind::Goodbye, .. }, _) => Some(Stop::Lost(peer, Noticed::LeftGroup)),
            (_, verdict) => verdict.map(Stop::Verdict),
        }
    }

    /// What a peer says next, and the verdict if it is one, without taking it.
    fn next_words(&self, peer: usize) -> Option<(Header, Option<Verdict>)> {
        let link = self.peers[peer].as_ref()?;
        let mut bytes = [0; HEADER_BYTES + VERDICT_BYTES];
        let found = peek(&link.socket, &mut bytes);
        let (header, words) = bytes.split_at(HEADER_BYTES);
        let header = Header::from_bytes(header.try_into().ok()?).filter(|_| found >= HEADER_BYTES)?;
        let whole = header.kind == Kind::Verdict && found == bytes.len();
        Some((header, whole.then(|| wire::verdict_from_bytes(words)).flatten()))
    }

    /// Waits until something moves, or something is wrong.
    fn sleep(&mut self, coming: &[Option<Coming>], watch: &Watch) -> Progress {
        let left = watch.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Stop::Deadline);
        }
        let mut handles = vec![PollFd::new(self.alarm.handle(), PollFlags::POLLIN)];
        let mut settled = vec![None];
        for (peer, link) in self.peers.iter().enumerate() {
            let Some(link) = link else { continue };
            let mut events = PollFlags::empty();
            if link.unsent.is_some() {
                events |= PollFlags::POLLOUT;
            }
            if coming[peer].as_ref().is_some_and(|coming| !coming.is_over()) {
                events |= PollFlags::POLLIN;
            }
            // Who has done its part may still have something to say about the others.
            let is_settled = events.is_empty();
            if is_settled && link.hung_up {
                continue;
            }
            handles.push(PollFd::new(link.socket.as_fd(), if is_settled { HUNG_UP } else { events }));
            settled.push(is_settled.then_some(peer));
        }
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(left));
        let moved = |handle: &PollFd<'_>| handle.any() == Some(true);
        if moved(&handles[0]) {
            return Err(Stop::Aborted);
        }
        let hung_up: Vec<usize> =
            handles.iter().zip(settled).filter(|(handle, _)| moved(handle)).filter_map(|(_, peer)| peer).collect();
        for peer in hung_up {
            if let Some(Stop::Verdict(verdict)) = self.last_words(peer, 0) {
                return Err(Stop::Verdict(verdict));
            }
            // Whoever needs it finds out.
            if let Some(link) = &mut self.peers[peer] {
                link.hung_up = true;
            }
        }
        Ok(())
    }
}
