//! Heartbeats between hosts: silence is noticed within a second, also when nobody has anything to send.
//!
//! The first rank of every host has a connection of its own to the first of every other host, and a thread that writes a byte
//! to it several times a second. What the other side's kernel does not acknowledge for [`UNACKNOWLEDGED`] is lost: the kernel
//! here says so. A process that is stopped, or busy, is not: its kernel still answers, and the timeout of the operation is
//! what ends the wait for it. (The connections of collectives have no such limit: a rank that is late with reading would
//! look like a host that is gone.)
//!
//! The same connection carries the reason when a group is aborted, so that hosts whose ranks are busy with other things learn
//! of it. And it carries which ranks of a host are late for an operation, once that has not changed for a beat: the others only
//! see that nothing comes from ranks which wait for those. The format is in `messages`.
//!
//! The thread belongs to the transport: it starts with it, and is joined when the transport is dropped.
#![expect(unsafe_code, reason = "reads sockets")]

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::EventFd;
use socket2::SockRef;

use super::messages::{ABORT_BYTE, BEAT_BYTE, Decoder, GOODBYE_BYTE, HeartbeatMessage, LateReport};
use super::stream::Stream;
use crate::abort::{Abort, AbortFlag, AbortReason, Position};
use crate::rank::LocalRank;
use crate::socket::{linger, poll_timeout};
use crate::sync::{ForkGuard, event_fd, join, until};
use crate::{Error, LossCause, Rank};

/// Between two beats.
const BEAT: Duration = Duration::from_millis(150);
/// How long a host may take to acknowledge one, counted by the kernel from when it sends the byte again, after 200 ms.
const UNACKNOWLEDGED: Duration = Duration::from_millis(450);
/// How often to see whether other ranks of this host have aborted the group.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long what is sent last may take to go out.
const GRACE: Duration = Duration::from_millis(200);
/// What a host that does not read is kept for, in bytes: more is not sent to it.
const MAX_UNSENT: usize = 4096;

/// The thread, as its owner holds it.
pub(crate) struct Heartbeat {
    closing: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    owner: ForkGuard,
}

impl Heartbeat {
    /// Starts heartbeats with these ranks, for this one and the others of its host.
    pub(crate) fn start(
        rank: Rank,
        members: Vec<Rank>,
        connections: Vec<Option<Stream>>,
        abort: Abort,
        abort_flag: &Arc<AbortFlag>,
    ) -> Result<Heartbeat, Error> {
        let wake = Arc::new(event_fd()?);
        let closing = Arc::new(AtomicBool::new(false));
        let numbered = connections.into_iter().enumerate();
        let hosts = numbered.filter_map(|(rank, stream)| {
            Some(HostConnection {
                rank: Rank(rank),
                stream: stream?,
                decoder: Decoder::default(),
                late: None,
                unsent: Vec::new(),
            })
        });
        let hosts: Vec<HostConnection> = hosts.collect();
        for host in &hosts {
            SockRef::from(&host.stream)
                .set_tcp_user_timeout(Some(UNACKNOWLEDGED))
                .map_err(|error| Error::system("tune a connection", error))?;
        }
        let shared_memory = matches!(abort, Abort::Hierarchical(..));
        let (closing_too, wake_too) = (Arc::clone(&closing), Arc::clone(&wake));
        let mut monitor = Monitor {
            rank,
            members,
            hosts,
            abort,
            abort_flag: Arc::clone(abort_flag),
            closing: closing_too,
            wake: wake_too,
            abort_sent: false,
            shared_memory,
            seen: None,
            reported: None,
        };
        let thread = std::thread::Builder::new()
            .name("instep-liveness".to_owned())
            .spawn(move || monitor.run())
            .map_err(|error| Error::system("start a thread", error))?;
        Ok(Heartbeat { closing, wake, thread: Some(thread), owner: ForkGuard::new() })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        if !self.owner.is_owner() {
            return;
        }
        self.closing.store(true, Ordering::SeqCst);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
    }
}

struct HostConnection {
    /// Of the group.
    rank: Rank,
    stream: Stream,
    decoder: Decoder,
    /// What it said last about its ranks.
    late: Option<LateReport>,
    /// What found no room yet.
    unsent: Vec<u8>,
}

impl HostConnection {
    /// Sends something, as far as there is room.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.unsent.len() + bytes.len() <= MAX_UNSENT {
            self.unsent.extend_from_slice(bytes);
        }
        while !self.unsent.is_empty() {
            // SAFETY: our own bytes.
            match unsafe { self.stream.send(&[], self.unsent.as_ptr(), self.unsent.len(), 0) } {
                // An encrypted stream may have finished something longer that was begun before.
                Ok(sent) => drop(self.unsent.drain(..sent.min(self.unsent.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends something last, and waits a little for that.
    fn send_last(&mut self, bytes: &[u8], deadline: Instant) {
        let last = [&std::mem::take(&mut self.unsent)[..], bytes].concat();
        self.stream.send_all(&last, deadline);
    }
}

/// What the thread has.
struct Monitor {
    rank: Rank,
    /// The ranks of this host, where they share memory.
    members: Vec<Rank>,
    hosts: Vec<HostConnection>,
    abort: Abort,
    abort_flag: Arc<AbortFlag>,
    closing: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    /// The hosts know the abort reason.
    abort_sent: bool,
    /// Other ranks of this host may abort the group without a sign.
    shared_memory: bool,
    /// Who of this host had not come at the last beat, and what other hosts know of that.
    seen: Option<LateReport>,
    reported: Option<LateReport>,
}

impl Monitor {
    fn run(&mut self) {
        let mut next = Instant::now();
        loop {
            if !self.abort_sent && self.abort.is_aborted() {
                self.broadcast_abort();
            }
            if self.closing.load(Ordering::SeqCst) {
                return self.leave();
            }
            if Instant::now() >= next {
                next = Instant::now() + BEAT;
                self.beat();
                self.report_late_ranks();
            }
            self.sleep(next);
            self.receive();
        }
    }

    fn sleep(&self, next: Instant) {
        let mut handles = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if !self.abort_sent {
            handles.push(PollFd::new(self.abort_flag.handle(), PollFlags::POLLIN));
        }
        handles.extend(self.hosts.iter().map(|host| PollFd::new(host.stream.as_fd(), PollFlags::POLLIN)));
        let left = until(next);
        let most = if self.shared_memory && !self.abort_sent { ABORT_POLL_INTERVAL } else { BEAT };
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(left.min(most)));
    }

    /// Where a beat finds no room nobody reads, but the kernel answers: that is for the operation's timeout to judge.
    fn beat(&mut self) {
        let mut lost = Vec::new();
        for host in &mut self.hosts {
            // What waits already is a beat as well.
            let beat: &[u8] = if host.unsent.is_empty() { &[BEAT_BYTE] } else { &[] };
            if let Err(error) = host.send(beat) {
                lost.push((host.rank, LossCause::from_connection(&error)));
            }
        }
        self.handle_lost(&lost);
    }

    fn receive(&mut self) {
        let (mut lost, mut gone, mut reason, mut news) = (Vec::new(), Vec::new(), None, false);
        for host in &mut self.hosts {
            loop {
                let mut bytes = [0; 1024];
                // SAFETY: bytes on this stack.
                let read = match unsafe { host.stream.receive(bytes.as_mut_ptr(), bytes.len()) } {
                    Ok(0) => {
                        lost.push((host.rank, LossCause::ConnectionClosed));
                        break;
                    }
                    Ok(read) => read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        lost.push((host.rank, LossCause::from_connection(&error)));
                        break;
                    }
                };
                let mut over = false;
                for message in host.decoder.feed(&bytes[..read]) {
                    over = !matches!(message, HeartbeatMessage::Late(_));
                    match message {
                        HeartbeatMessage::Late(late) => {
                            host.late = Some(late);
                            news = true;
                        }
                        HeartbeatMessage::Abort(body) => {
                            reason.get_or_insert(body);
                            gone.push(host.rank);
                        }
                        HeartbeatMessage::Goodbye => gone.push(host.rank),
                        HeartbeatMessage::Garbled => lost.push((host.rank, LossCause::Garbled)),
                    }
                }
                if over {
                    break;
                }
            }
        }
        if let Some(reason) = reason {
            self.abort.abort(&reason);
        }
        if news {
            self.record_late_ranks();
        }
        self.handle_lost(&lost);
        // Who has said goodbye or why may do what it wants; it still wants the abort reason of others.
        if self.abort_sent || self.abort.is_aborted() {
            self.broadcast_abort();
        }
        self.hosts.retain(|host| !gone.contains(&host.rank));
    }

    /// Tells the other hosts which ranks of this one are late for the operation that the others are in.
    fn report_late_ranks(&mut self) {
        let Abort::Hierarchical(arena, _) = &self.abort else { return };
        let Position { operation, part } = self.abort_flag.position();
        let late = |local: &LocalRank| !arena.control(*local).has_entered(part);
        let ranks = LocalRank::all(self.members.len()).filter(late).map(|local| self.members[local.0]).collect();
        let found = Some(LateReport { operation, ranks });
        let settled = self.seen == found;
        if settled && self.reported != found && !self.abort_sent {
            let bytes = found.as_ref().map(LateReport::to_bytes).unwrap_or_default();
            for host in &mut self.hosts {
                // A connection that is broken is noticed by the next beat.
                let _ = host.send(&bytes);
            }
            self.reported.clone_from(&found);
        }
        self.seen = found;
    }

    /// Writes down for this host which ranks of the others are late.
    fn record_late_ranks(&self) {
        let Abort::Hierarchical(arena, _) = &self.abort else { return };
        let reports = || self.hosts.iter().filter_map(|host| host.late.as_ref());
        let Some(operation) = reports().map(|late| late.operation).max() else { return };
        let of_it = reports().filter(|late| late.operation == operation);
        let mut ranks: Vec<Rank> = of_it.flat_map(|late| late.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        arena.set_late_elsewhere(operation, &ranks);
    }

    /// Aborts the group because of the first host that is silent. A connection that ends otherwise is noticed at once by
    /// whoever needs that rank, who knows what for. There are no more heartbeats with any of them.
    fn handle_lost(&mut self, lost: &[(Rank, LossCause)]) {
        let silent = lost
            .iter()
            .find(|(_, noticed)| matches!(noticed, LossCause::NoAnswer | LossCause::Garbled | LossCause::Altered));
        if let Some(&(rank, noticed)) = silent {
            let (call, sequence) = self.abort_flag.under_way();
            self.abort.abort(&AbortReason::Lost { rank, call, sequence, noticed, by: self.rank });
        }
        self.hosts.retain(|host| lost.iter().all(|(rank, _)| *rank != host.rank));
    }

    /// Tells the hosts why the group is aborted, once.
    fn broadcast_abort(&mut self) {
        let Some(reason) = self.abort.abort_reason() else { return };
        if std::mem::replace(&mut self.abort_sent, true) {
            return;
        }
        // Also for this process, where another one of this host has found out.
        self.abort_flag.abort(&reason);
        let bytes = [&[ABORT_BYTE][..], &reason.to_bytes()].concat();
        let deadline = Instant::now() + GRACE;
        for host in &mut self.hosts {
            host.send_last(&bytes, deadline);
        }
    }

    fn leave(&mut self) {
        let deadline = Instant::now() + GRACE;
        for host in self.hosts.iter_mut().filter(|_| !self.abort_sent) {
            host.send_last(&[GOODBYE_BYTE], deadline);
            host.stream.shut_down_writing();
        }
        linger(self.hosts.iter().map(|host| &host.stream));
    }
}
