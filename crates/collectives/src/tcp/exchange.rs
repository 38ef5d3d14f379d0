//! Executes a schedule: sends, receives and reduces, all at once, on the thread of its channel.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::TcpTransport;
use super::buffers::{OperationBuffers, collective, totals};
use super::context::{ExchangeContext, ExchangeError, ExchangeResult};
use super::peer::{IncomingMessage, Unsent};
use super::share::Share;
use super::wire::{HEADER_BYTES, MessageHeader, MessageKind};
use crate::LossCause;
use crate::abort::{ABORT_BYTES, AbortReason};
use crate::call::Call;
use crate::operation::{Operation, hold_apart};
use crate::schedule::{Buffer, Cursor, Primitive, Schedule, Thresholds, schedule};
use crate::socket::poll_timeout;

/// The other side has closed its end; not among the flags that nix names.
const HUNG_UP: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);

/// How often to see what the other ranks of the host have found out.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Where schedules change, in bytes. Tuned with `bench/collectives.py --hosts`.
pub(super) const THRESHOLDS: Thresholds =
    Thresholds { small: 16 << 10, direct: 256 << 10, message: 256 << 10, scratch: 12 << 20 };

/// A schedule that is being executed.
struct Execution<'a> {
    schedule: &'a Schedule,
    memory: &'a OperationBuffers,
    context: &'a ExchangeContext,
    cursor: Cursor<'a>,
}

impl Execution<'_> {
    /// All bytes for a peer and from it, where the call does not say it.
    fn totals(&self, peer: usize) -> (u64, u64) {
        self.memory.totals.get(peer).copied().unwrap_or_default()
    }
}

impl TcpTransport {
    pub(super) fn perform(&mut self, operation: &Operation, share: Share, context: &ExchangeContext) -> ExchangeResult {
        let part = share.of(operation, self.world());
        let schedule = schedule(&collective(&part, share.is_first()), self.world(), self.index, &self.thresholds);
        let mut memory = OperationBuffers::new(&part, context.ranks);
        memory.totals = totals(operation);
        // What overlaps is sent from a copy: it may be written over before it is all out.
        let held = if memory.totals.is_empty() { None } else { hold_apart(&memory.inputs, &memory.outputs) };
        if let Some((_, sources)) = &held {
            memory.inputs.clone_from(sources);
        }
        if self.scratch.len() < schedule.scratch {
            // Fresh from the kernel: what a schedule has room for and does not use takes no memory.
            self.scratch = vec![0; schedule.scratch];
        }
        memory.scratch = self.scratch.as_mut_ptr();
        // SAFETY: the caller of `run` vouches for the buffers, whose sizes `Operation::check` has compared; scratch holds
        // what the schedule asks for.
        unsafe { self.execute(&schedule, &memory, context) }
    }

    /// Executes this rank's part of a schedule.
    ///
    /// # Safety
    /// The schedule is for this memory, which is valid and used by nobody else.
    pub(super) unsafe fn execute(
        &mut self,
        schedule: &Schedule,
        memory: &OperationBuffers,
        context: &ExchangeContext,
    ) -> ExchangeResult {
        for link in self.peers.iter_mut().flatten() {
            (link.sent, link.received, link.sending, link.incoming) = (0, 0, None, None);
        }
        let mut run = Execution { schedule, memory, context, cursor: Cursor::new(schedule, self.world()) };
        let mut idle = 0;
        loop {
            let mut moved = false;
            for peer in self.peers() {
                moved |= self.push(peer, &mut run)?;
                moved |= self.pull(peer, &mut run)?;
            }
            while let Some(step) = run.cursor.local() {
                // SAFETY: the caller's promise.
                self.touched |= unsafe { memory.work(&schedule.steps[step].primitive, self.index, self.world()) };
                run.cursor.finish(step);
                moved = true;
            }
            if run.cursor.is_over() {
                return Ok(());
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle > self.spins_before_sleep {
                self.sleep(&mut run)?;
            } else if idle > 0 {
                std::hint::spin_loop();
            }
        }
    }

    /// Sends what goes; whether anything did.
    fn push(&mut self, peer: usize, run: &mut Execution<'_>) -> Result<bool, ExchangeError> {
        let mut moved = false;
        loop {
            let (generation, context) = (self.generation, run.context);
            let Some(link) = &mut self.peers[peer] else { return Ok(moved) };
            let step = match link.sending {
                Some(step) => step,
                None => {
                    let Some(step) = run.cursor.send(peer) else { return Ok(moved) };
                    let Primitive::Send { span, .. } = run.schedule.steps[step].primitive else { return Ok(moved) };
                    let (sends, expects) = run.totals(peer);
                    let header = MessageHeader {
                        kind: MessageKind::Data,
                        generation,
                        sequence: context.sequence,
                        step: link.sent,
                        call: context.call.words(),
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
                // SAFETY: the payload is of the schedule under way.
                match unsafe { link.stream.send(&unsent.header, unsent.payload, unsent.length, unsent.done) } {
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
                        let noticed = LossCause::from_connection(&error);
                        // It may have said why it went.
                        return Err(self.final_message(peer, 0).unwrap_or(ExchangeError::Lost(peer, noticed)));
                    }
                }
            }
            link.sending = None;
            run.cursor.finish(step);
        }
    }

    /// Receives what there is; whether anything was.
    fn pull(&mut self, peer: usize, run: &mut Execution<'_>) -> Result<bool, ExchangeError> {
        let mut moved = false;
        loop {
            let Some(link) = &mut self.peers[peer] else { return Ok(moved) };
            let mut incoming = match link.incoming.take() {
                Some(incoming) => incoming,
                None => {
                    let Some(step) = run.cursor.receive(peer) else { return Ok(moved) };
                    let Primitive::Receive { span, .. } = run.schedule.steps[step].primitive else { return Ok(moved) };
                    IncomingMessage { step, span, header: [0; HEADER_BYTES], checked: false, done: 0 }
                }
            };
            if !self.pull_message(peer, &mut incoming, run, &mut moved)? {
                if let Some(link) = &mut self.peers[peer] {
                    link.incoming = Some(incoming);
                }
                return Ok(moved);
            }
            if let Some(link) = &mut self.peers[peer] {
                link.received += 1;
            }
            run.cursor.finish(incoming.step);
        }
    }

    /// Receives what there is of a message; whether it is complete.
    fn pull_message(
        &mut self,
        peer: usize,
        incoming: &mut IncomingMessage,
        run: &Execution<'_>,
        moved: &mut bool,
    ) -> Result<bool, ExchangeError> {
        while !(incoming.checked && incoming.done == incoming.span.bytes) {
            let Some(link) = &mut self.peers[peer] else { return Ok(true) };
            let (to, length) = if incoming.checked {
                (run.memory.at(incoming.span).wrapping_add(incoming.done), incoming.span.bytes - incoming.done)
            } else {
                (incoming.header[incoming.done..].as_mut_ptr(), HEADER_BYTES - incoming.done)
            };
            // SAFETY: the rest of our header, or of memory of the schedule under way.
            match unsafe { link.stream.receive(to, length) } {
                Ok(0) => return Err(ExchangeError::Lost(peer, LossCause::ConnectionClosed)),
                Ok(read) => incoming.done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(ExchangeError::Lost(peer, LossCause::from_connection(&error))),
            }
            *moved = true;
            if !incoming.checked && incoming.done == HEADER_BYTES {
                let (step, totals) = (link.received, run.totals(peer));
                self.check(peer, incoming, step, totals, run.context)?;
                (incoming.checked, incoming.done) = (true, 0);
                self.touched |= incoming.span.bytes > 0 && matches!(incoming.span.buffer, Buffer::Output(_));
            }
        }
        Ok(true)
    }

    /// Compares what a peer says with what this rank expects of it.
    fn check(
        &mut self,
        peer: usize,
        incoming: &IncomingMessage,
        step: u64,
        (sends, expects): (u64, u64),
        context: &ExchangeContext,
    ) -> ExchangeResult {
        let garbled = || ExchangeError::Lost(peer, LossCause::Garbled);
        let header = MessageHeader::from_bytes(&incoming.header).ok_or_else(garbled)?;
        match header.kind {
            MessageKind::Goodbye => return Err(ExchangeError::Lost(peer, LossCause::LeftGroup)),
            MessageKind::Abort => return Err(self.receive_abort(peer, context)),
            MessageKind::Data => {}
        }
        if header.generation != self.generation || header.sequence != context.sequence {
            return Err(garbled());
        }
        self.entered[peer].store(true, Ordering::Relaxed);
        let theirs = Call::from_words(header.call).ok_or_else(garbled)?;
        let (sequence, element) = (context.user_sequence, context.call.dtype.size() as u64);
        let mismatch = |rank: usize, call: Call, other_rank: usize, other: Call| {
            let (rank, other_rank) = (self.members[rank], self.members[other_rank]);
            Some(ExchangeError::Abort(AbortReason::Mismatch { rank, call, other_rank, other, sequence }))
        };
        // What one rank sends to another is compared by both.
        let pair = |from: usize, to: usize, sent: u64, expected: u64| {
            let [sender, receiver] = [from, to].map(|member| self.members[member]);
            let sending = context.call.sending(sent / element, receiver);
            mismatch(from, sending, to, context.call.expecting(expected / element, sender))
        };
        let differs = if theirs != context.call {
            mismatch(peer, theirs, self.index, context.call)
        } else if header.sends != expects {
            pair(peer, self.index, header.sends, expects)
        } else if step == 0 && header.expects != sends {
            pair(self.index, peer, sends, header.expects)
        } else {
            None
        };
        if let Some(own) = differs {
            // It may have found out, or given up, and said so behind these bytes.
            let skipped = usize::try_from(header.length).unwrap_or(usize::MAX);
            return Err(self.final_message(peer, skipped).unwrap_or(own));
        }
        if header.step != step || header.length != incoming.span.bytes as u64 {
            return Err(garbled());
        }
        Ok(())
    }

    /// The reason that follows the header of an abort; its sender has it ready.
    fn receive_abort(&mut self, peer: usize, context: &ExchangeContext) -> ExchangeError {
        let lost = ExchangeError::Lost(peer, LossCause::ConnectionClosed);
        let Some(link) = &mut self.peers[peer] else { return lost };
        let mut bytes = [0; ABORT_BYTES];
        let mut done = 0;
        while done < bytes.len() {
            // SAFETY: the rest of our own bytes.
            match unsafe { link.stream.receive(bytes[done..].as_mut_ptr(), bytes.len() - done) } {
                Ok(0) => return lost,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = context.deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return lost;
                    }
                    let _ = poll(&mut [PollFd::new(link.stream.as_fd(), PollFlags::POLLIN)], poll_timeout(left));
                }
                Err(_) => return lost,
            }
        }
        AbortReason::from_bytes(&bytes).map_or(ExchangeError::Lost(peer, LossCause::Garbled), ExchangeError::Abort)
    }

    /// The abort of a peer that sent all its parts of an operation that went well here, and then gave it up itself.
    pub(super) fn check_for_late_abort(&mut self, context: &ExchangeContext) -> ExchangeResult {
        for peer in self.peers() {
            let Some((header, found)) = self.peek_message(peer) else { continue };
            if header.kind == MessageKind::Abort
                && header.sequence <= context.sequence
                && let Some(reason) = found
            {
                return Err(ExchangeError::Abort(reason));
            }
        }
        Ok(())
    }

    /// The abort or goodbye of a peer that goes, if that is what follows the next `skipped` bytes.
    fn final_message(&mut self, peer: usize, mut skipped: usize) -> Option<ExchangeError> {
        let link = self.peers[peer].as_mut()?;
        let mut rest = [0; 4096];
        while skipped > 0 {
            // SAFETY: our own bytes.
            match unsafe { link.stream.receive(rest.as_mut_ptr(), skipped.min(rest.len())) } {
                Ok(read) if read > 0 => skipped -= read,
                _ => return None,
            }
        }
        match self.peek_message(peer)? {
            (MessageHeader { kind: MessageKind::Goodbye, .. }, _) => {
                Some(ExchangeError::Lost(peer, LossCause::LeftGroup))
            }
            (_, reason) => reason.map(ExchangeError::Abort),
        }
    }

    /// The next message of a peer, and the reason if it is an abort, without taking it.
    fn peek_message(&mut self, peer: usize) -> Option<(MessageHeader, Option<AbortReason>)> {
        let link = self.peers[peer].as_mut()?;
        let mut bytes = [0; HEADER_BYTES + ABORT_BYTES];
        let found = link.stream.peek(&mut bytes);
        let (header, body) = bytes.split_at(HEADER_BYTES);
        let header = MessageHeader::from_bytes(header.try_into().ok()?).filter(|_| found >= HEADER_BYTES)?;
        let whole = header.kind == MessageKind::Abort && found == bytes.len();
        Some((header, whole.then(|| AbortReason::from_bytes(body)).flatten()))
    }

    /// Waits until something moves, or something is wrong.
    fn sleep(&mut self, run: &mut Execution<'_>) -> ExchangeResult {
        let left = run.context.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ExchangeError::Deadline);
        }
        // An abort of a later operation is none of this one, and stays where it is.
        let of_later = self.abort_flag.abort_reason().is_some_and(|reason| !reason.concerns(run.context.user_sequence));
        let wanted = if of_later { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut handles = vec![PollFd::new(self.abort_flag.handle(), wanted)];
        let mut settled = vec![None];
        for (peer, link) in self.peers.iter().enumerate() {
            let Some(link) = link else { continue };
            let mut events = PollFlags::empty();
            if link.unsent.is_some() {
                events |= PollFlags::POLLOUT;
            }
            if link.incoming.is_some() || run.cursor.receive(peer).is_some() {
                events |= PollFlags::POLLIN;
            }
            // Who has done its part may still have something to say about the others.
            let is_settled = events.is_empty();
            if is_settled && link.closed {
                continue;
            }
            handles.push(PollFd::new(link.stream.as_fd(), if is_settled { HUNG_UP } else { events }));
            settled.push(is_settled.then_some(peer));
        }
        // Other ranks of this host abort the group in their shared memory, which wakes nobody here.
        let most = if self.arena.is_some() { ABORT_POLL_INTERVAL } else { left };
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(left.min(most)));
        let arena = self.arena.as_ref().filter(|arena| arena.is_aborted());
        if let Some(reason) =
            arena.and_then(|arena| arena.abort_reason()).filter(|reason| reason.concerns(run.context.user_sequence))
        {
            return Err(ExchangeError::Abort(reason));
        }
        let moved = |handle: &PollFd<'_>| handle.any() == Some(true);
        if moved(&handles[0])
            && self.abort_flag.abort_reason().is_none_or(|reason| reason.concerns(run.context.user_sequence))
        {
            return Err(ExchangeError::Aborted);
        }
        let closed: Vec<usize> =
            handles.iter().zip(settled).filter(|(handle, _)| moved(handle)).filter_map(|(_, peer)| peer).collect();
        for peer in closed {
            if let Some(ExchangeError::Abort(reason)) = self.final_message(peer, 0)
                && reason.concerns(run.context.user_sequence)
            {
                return Err(ExchangeError::Abort(reason));
            }
            // Whoever needs it finds out.
            if let Some(link) = &mut self.peers[peer] {
                link.closed = true;
            }
        }
        Ok(())
    }
}
