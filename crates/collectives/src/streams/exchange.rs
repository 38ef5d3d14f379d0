//! Carries out a plan: sends, receives and reduces, all at once, on the thread of the caller.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::moves::Memory;
use super::wire::{self, HEADER_BYTES, Header, Kind, VERDICT_BYTES};
use super::{Engine, Unsent, Watch};
use crate::arena::verdict::Verdict;
use crate::call::Call;
use crate::route::{Action, Cursor, Place, Plan, Span};
use crate::socket::{peek, poll_timeout, receive, send};
use crate::{Noticed, Rank};

/// The other side has closed its end; not among the flags that nix names.
const HUNG_UP: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);

/// How often to see what the other ranks of the host have found out.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// Why an operation stops in the middle.
pub(super) enum Stop {
    /// The group has a verdict.
    Aborted,
    Verdict(Verdict),
    Lost(usize, Noticed),
    Deadline,
}

pub(super) type Progress = Result<(), Stop>;

/// A message that comes from one peer.
pub(super) struct Coming {
    /// Which line of the plan.
    step: usize,
    span: Span,
    header: [u8; HEADER_BYTES],
    /// The header is there and fits.
    checked: bool,
    /// Of the header, then of the bytes after it.
    done: usize,
}

/// A plan that is being carried out.
struct Run<'a> {
    plan: &'a Plan,
    memory: &'a Memory,
    watch: &'a Watch,
    cursor: Cursor<'a>,
}

impl Run<'_> {
    /// All bytes for a peer and from it, where the call does not say it.
    fn totals(&self, peer: usize) -> (u64, u64) {
        let Memory { inputs, outputs, uneven, .. } = self.memory;
        if *uneven { (inputs[peer].bytes as u64, outputs[peer].bytes as u64) } else { (0, 0) }
    }
}

impl Engine {
    /// Carries out this rank's part of a plan.
    ///
    /// # Safety
    /// The plan is for this memory, which is valid and used by nobody else.
    pub(super) unsafe fn carry_out(&mut self, plan: &Plan, memory: &Memory, watch: &Watch) -> Progress {
        for link in self.peers.iter_mut().flatten() {
            (link.sent, link.received, link.sending, link.coming) = (0, 0, None, None);
        }
        let mut run = Run { plan, memory, watch, cursor: Cursor::new(plan, self.world()) };
        let mut idle = 0;
        loop {
            let mut moved = false;
            for peer in self.peers() {
                moved |= self.push(peer, &mut run)?;
                moved |= self.pull(peer, &mut run)?;
            }
            while let Some(step) = run.cursor.local() {
                // SAFETY: the caller's promise.
                self.touched |= unsafe { memory.work(&plan.steps[step].action, self.rank, self.world()) };
                run.cursor.finish(step);
                moved = true;
            }
            if run.cursor.is_over() {
                return Ok(());
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle > self.looks {
                self.sleep(&mut run)?;
            } else if idle > 0 {
                std::hint::spin_loop();
            }
        }
    }

    /// Sends what goes; whether anything did.
    fn push(&mut self, peer: usize, run: &mut Run<'_>) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let (generation, watch) = (self.generation, run.watch);
            let Some(link) = &mut self.peers[peer] else { return Ok(moved) };
            let step = match link.sending {
                Some(step) => step,
                None => {
                    let Some(step) = run.cursor.send(peer) else { return Ok(moved) };
                    let Action::Send { span, .. } = run.plan.steps[step].action else { return Ok(moved) };
                    let (sends, expects) = run.totals(peer);
                    let header = Header {
                        kind: Kind::Data,
                        generation,
                        sequence: watch.sequence,
                        step: link.sent,
                        call: watch.call.words(),
                        sends,
                        expects,
                        length: span.bytes as u64,
                    };
                    let (payload, length) = (run.memory.at(span).cast_const(), span.bytes);
                    link.unsent = Some(Unsent { header: header.to_bytes(), payload, length, done: 0 });
                    link.sent += 1;
                    link.sending = Some(step);
                    step
                }
            };
            while let Some(unsent) = &mut link.unsent {
                // SAFETY: the payload is of the plan under way.
                match unsafe { send(&link.socket, &unsent.header, unsent.payload, unsent.length, unsent.done) } {
                    Ok(sent) => {
                        unsent.done += sent;
                        moved = true;
                        if unsent.done == HEADER_BYTES + unsent.length {
                            link.unsent = None;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                    Err(error) => {
                        link.unsent = None;
                        let noticed = Noticed::from_connection(&error);
                        // It may have said why it went.
                        return Err(self.last_words(peer, 0).unwrap_or(Stop::Lost(peer, noticed)));
                    }
                }
            }
            link.sending = None;
            run.cursor.finish(step);
        }
    }

    /// Receives what there is; whether anything was.
    fn pull(&mut self, peer: usize, run: &mut Run<'_>) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let Some(link) = &mut self.peers[peer] else { return Ok(moved) };
            let mut coming = match link.coming.take() {
                Some(coming) => coming,
                None => {
                    let Some(step) = run.cursor.receive(peer) else { return Ok(moved) };
                    let Action::Receive { span, .. } = run.plan.steps[step].action else { return Ok(moved) };
                    Coming { step, span, header: [0; HEADER_BYTES], checked: false, done: 0 }
                }
            };
            if !self.pull_message(peer, &mut coming, run, &mut moved)? {
                if let Some(link) = &mut self.peers[peer] {
                    link.coming = Some(coming);
                }
                return Ok(moved);
            }
            if let Some(link) = &mut self.peers[peer] {
                link.received += 1;
            }
            run.cursor.finish(coming.step);
        }
    }

    /// Receives what there is of a message; whether it is complete.
    fn pull_message(
        &mut self,
        peer: usize,
        coming: &mut Coming,
        run: &Run<'_>,
        moved: &mut bool,
    ) -> Result<bool, Stop> {
        while !(coming.checked && coming.done == coming.span.bytes) {
            let Some(link) = &mut self.peers[peer] else { return Ok(true) };
            let (to, length) = if coming.checked {
                (run.memory.at(coming.span).wrapping_add(coming.done), coming.span.bytes - coming.done)
            } else {
                (coming.header[coming.done..].as_mut_ptr(), HEADER_BYTES - coming.done)
            };
            // SAFETY: the rest of our header, or of memory of the plan under way.
            match unsafe { receive(&link.socket, to, length) } {
                Ok(0) => return Err(Stop::Lost(peer, Noticed::ConnectionClosed)),
                Ok(read) => coming.done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Stop::Lost(peer, Noticed::from_connection(&error))),
            }
            *moved = true;
            if !coming.checked && coming.done == HEADER_BYTES {
                let (step, totals) = (link.received, run.totals(peer));
                self.check(peer, coming, step, totals, run.watch)?;
                (coming.checked, coming.done) = (true, 0);
                self.touched |= coming.span.bytes > 0 && matches!(coming.span.place, Place::Output(_));
            }
        }
        Ok(true)
    }

    /// Compares what a peer says with what this rank expects of it.
    fn check(
        &mut self,
        peer: usize,
        coming: &Coming,
        step: u64,
        (sends, expects): (u64, u64),
        watch: &Watch,
    ) -> Progress {
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
            let (rank, other_rank) = (self.members[rank], self.members[other_rank]);
            let own = Stop::Verdict(Verdict::Mismatch { rank, call, other_rank, other, sequence });
            Err(self.last_words(peer, skipped).unwrap_or(own))
        };
        // What one rank sends to another is compared by both.
        let pair = |from: usize, to: usize, sent: u64, expected: u64| {
            let [sender, receiver] = [from, to].map(|member| Rank(self.members[member]));
            let sending = watch.call.sending(sent / element, receiver);
            mismatch(from, sending, to, watch.call.expecting(expected / element, sender))
        };
        if theirs != watch.call {
            return mismatch(peer, theirs, self.rank, watch.call);
        }
        if header.sends != expects {
            return pair(peer, self.rank, header.sends, expects);
        }
        if step == 0 && header.expects != sends {
            return pair(self.rank, peer, sends, header.expects);
        }
        if header.step != step || header.length != coming.span.bytes as u64 {
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
    fn sleep(&mut self, run: &mut Run<'_>) -> Progress {
        let left = run.watch.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Stop::Deadline);
        }
        // A verdict about a later operation is none about this one, and stays where it is.
        let deaf = self.alarm.verdict().is_some_and(|verdict| !verdict.concerns(run.watch.shown));
        let wanted = if deaf { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut handles = vec![PollFd::new(self.alarm.handle(), wanted)];
        let mut settled = vec![None];
        for (peer, link) in self.peers.iter().enumerate() {
            let Some(link) = link else { continue };
            let mut events = PollFlags::empty();
            if link.unsent.is_some() {
                events |= PollFlags::POLLOUT;
            }
            if link.coming.is_some() || run.cursor.receive(peer).is_some() {
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
        // Other ranks of this host abort the group in their shared memory, which wakes nobody here.
        let most = if self.arena.is_some() { LOOK_AROUND } else { left };
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(left.min(most)));
        let arena = self.arena.as_ref().filter(|arena| arena.is_aborted());
        if let Some(verdict) =
            arena.and_then(|arena| arena.verdict()).filter(|verdict| verdict.concerns(run.watch.shown))
        {
            return Err(Stop::Verdict(verdict));
        }
        let moved = |handle: &PollFd<'_>| handle.any() == Some(true);
        if moved(&handles[0]) && self.alarm.verdict().is_none_or(|verdict| verdict.concerns(run.watch.shown)) {
            return Err(Stop::Aborted);
        }
        let hung_up: Vec<usize> =
            handles.iter().zip(settled).filter(|(handle, _)| moved(handle)).filter_map(|(_, peer)| peer).collect();
        for peer in hung_up {
            if let Some(Stop::Verdict(verdict)) = self.last_words(peer, 0)
                && verdict.concerns(run.watch.shown)
            {
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
