//! Hosts that feel each other's pulse: silence is noticed within a second, also when nobody has anything to say.
//!
//! The first rank of every host has a connection of its own to the first of every other host, and a thread that writes a byte
//! to it several times a second. What the other side's kernel does not acknowledge for [`UNACKNOWLEDGED`] is lost: the kernel
//! here says so. A process that is stopped, or busy, is not: its kernel still answers, and the timeout of the operation is
//! what ends the wait for it. (The connections of collectives have no such limit: a rank that is late with reading would
//! look like a host that is gone.)
//!
//! The same connection carries the verdict when a group ends, so that hosts hear of it whose ranks are busy with other things.
//! And it carries who of a host has not come to an operation, once that has not changed for a beat: the others only see that
//! nothing comes from ranks which wait for those. What hosts say is in `words`.
//!
//! The thread belongs to the engine: it starts with it, and is joined when the engine is dropped.
#![expect(unsafe_code, reason = "reads sockets")]

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::SockRef;

use super::words::{Absent, BEAT_BYTE, Ear, GOODBYE_BYTE, VERDICT_BYTE, Word};
use super::{Alarm, Position, wire};
use crate::arena::verdict::Verdict;
use crate::fate::Fate;
use crate::socket::{poll_timeout, receive, send_all};
use crate::{Error, Noticed};

/// Between two beats.
const BEAT: Duration = Duration::from_millis(150);
/// How long a host may take to acknowledge one, counted by the kernel from when it sends the byte again, after 200 ms.
const UNACKNOWLEDGED: Duration = Duration::from_millis(450);
/// How often to see whether other ranks of this host have aborted the group.
const LOOK_AROUND: Duration = Duration::from_millis(50);
/// How long a last word may take to go out.
const GRACE: Duration = Duration::from_millis(200);
/// What a host that does not read is kept for, in bytes: more is not said to it.
const MOST_UNSENT: usize = 4096;

/// The thread, as its owner holds it.
pub(crate) struct Pulse {
    closing: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// Who made it: in a forked child there is no such thread.
    process: u32,
}

impl Pulse {
    /// Starts to feel the pulse of these ranks (of the group), for this one and the others of its host.
    pub(crate) fn start(
        rank: usize,
        members: Vec<usize>,
        connections: Vec<Option<TcpStream>>,
        fate: Fate,
        alarm: Arc<Alarm>,
    ) -> Result<Pulse, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags);
        let wake = Arc::new(wake.map_err(|error| Error::system("create an event handle", error))?);
        let closing = Arc::new(AtomicBool::new(false));
        let numbered = connections.into_iter().enumerate();
        let hosts = numbered.filter_map(|(rank, socket)| {
            Some(Host { rank, socket: socket?, ear: Ear::default(), absent: None, unsent: Vec::new() })
        });
        let hosts: Vec<Host> = hosts.collect();
        for host in &hosts {
            SockRef::from(&host.socket)
                .set_tcp_user_timeout(Some(UNACKNOWLEDGED))
                .map_err(|error| Error::system("tune a connection", error))?;
        }
        let shared_memory = matches!(fate, Fate::Mixed(..));
        let (closing_too, wake_too) = (Arc::clone(&closing), Arc::clone(&wake));
        let mut watch = Watch {
            rank,
            members,
            hosts,
            fate,
            alarm,
            closing: closing_too,
            wake: wake_too,
            told: false,
            shared_memory,
            seen: None,
            said: None,
        };
        let thread = std::thread::Builder::new()
            .name("instep-pulse".to_owned())
            .spawn(move || watch.keep())
            .map_err(|error| Error::system("start a thread", error))?;
        Ok(Pulse { closing, wake, thread: Some(thread), process: std::process::id() })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.closing.store(true, Ordering::SeqCst);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            crate::group::join(thread);
        }
    }
}

struct Host {
    /// Of the group.
    rank: usize,
    socket: TcpStream,
    ear: Ear,
    /// What it said last about its ranks.
    absent: Option<Absent>,
    /// What it was told and found no room.
    unsent: Vec<u8>,
}

impl Host {
    /// Says something, as far as there is room.
    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.unsent.len() + bytes.len() <= MOST_UNSENT {
            self.unsent.extend_from_slice(bytes);
        }
        while !self.unsent.is_empty() {
            // SAFETY: our own bytes.
            match unsafe { crate::socket::send(&self.socket, &[], self.unsent.as_ptr(), self.unsent.len(), 0) } {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says something last, and waits a little for that.
    fn say_last(&self, bytes: &[u8], until: Instant) {
        send_all(&self.socket, &[&self.unsent[..], bytes].concat(), until);
    }
}

/// What the thread has.
struct Watch {
    rank: usize,
    /// The ranks of this host, where they share memory.
    members: Vec<usize>,
    hosts: Vec<Host>,
    fate: Fate,
    alarm: Arc<Alarm>,
    closing: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    /// The hosts know the verdict.
    told: bool,
    /// Other ranks of this host may abort the group without a sign.
    shared_memory: bool,
    /// Who of this host had not come at the last beat, and what other hosts know of that.
    seen: Option<Absent>,
    said: Option<Absent>,
}

impl Watch {
    fn keep(&mut self) {
        let mut next = Instant::now();
        loop {
            if !self.told && self.fate.is_aborted() {
                self.tell();
            }
            if self.closing.load(Ordering::SeqCst) {
                return self.leave();
            }
            if Instant::now() >= next {
                next = Instant::now() + BEAT;
                self.beat();
                self.report();
            }
            self.sleep(next);
            self.listen();
        }
    }

    fn sleep(&self, next: Instant) {
        let mut handles = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if !self.told {
            handles.push(PollFd::new(self.alarm.handle(), PollFlags::POLLIN));
        }
        handles.extend(self.hosts.iter().map(|host| PollFd::new(host.socket.as_fd(), PollFlags::POLLIN)));
        let left = next.saturating_duration_since(Instant::now());
        let most = if self.shared_memory && !self.told { LOOK_AROUND } else { BEAT };
        // An error of poll is a signal, or no memory: look again.
        let _ = poll(&mut handles, poll_timeout(left.min(most)));
    }

    /// Where a beat finds no room nobody reads, but the kernel answers: that is for the operation's timeout to judge.
    fn beat(&mut self) {
        let mut lost = Vec::new();
        for host in &mut self.hosts {
            // What waits already is a beat as well.
            let beat: &[u8] = if host.unsent.is_empty() { &[BEAT_BYTE] } else { &[] };
            if let Err(error) = host.say(beat) {
                lost.push((host.rank, Noticed::from_connection(&error)));
            }
        }
        self.lose(&lost);
    }

    fn listen(&mut self) {
        let (mut lost, mut gone, mut verdict, mut news) = (Vec::new(), Vec::new(), None, false);
        for host in &mut self.hosts {
            loop {
                let mut bytes = [0; 1024];
                // SAFETY: bytes on this stack.
                let read = match unsafe { receive(&host.socket, bytes.as_mut_ptr(), bytes.len()) } {
                    Ok(0) => {
                        lost.push((host.rank, Noticed::ConnectionClosed));
                        break;
                    }
                    Ok(read) => read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        lost.push((host.rank, Noticed::from_connection(&error)));
                        break;
                    }
                };
                let mut over = false;
                for word in host.ear.hear(&bytes[..read]) {
                    over = !matches!(word, Word::Absent(_));
                    match word {
                        Word::Absent(absent) => {
                            host.absent = Some(absent);
                            news = true;
                        }
                        Word::Verdict(words) => {
                            verdict.get_or_insert(words);
                            gone.push(host.rank);
                        }
                        Word::Goodbye => gone.push(host.rank),
                        Word::Garbled => lost.push((host.rank, Noticed::Garbled)),
                    }
                }
                if over {
                    break;
                }
            }
        }
        if let Some(verdict) = verdict {
            self.fate.abort(&verdict);
        }
        if news {
            self.note_absent();
        }
        self.lose(&lost);
        // Who has said goodbye or why may do what it wants; it still wants to hear the verdict of others.
        if self.told || self.fate.is_aborted() {
            self.tell();
        }
        self.hosts.retain(|host| !gone.contains(&host.rank));
    }

    /// Tells the other hosts who of this one has not come to the operation that the others are in.
    fn report(&mut self) {
        let Fate::Mixed(arena, _) = &self.fate else { return };
        let Position { operation, part } = self.alarm.position();
        let absent = |local: &usize| !arena.control(*local).has_entered(part);
        let ranks = (0..self.members.len()).filter(absent).map(|local| self.members[local]).collect();
        let found = Some(Absent { operation, ranks });
        let settled = self.seen == found;
        if settled && self.said != found && !self.told {
            let bytes = found.as_ref().map(Absent::to_bytes).unwrap_or_default();
            for host in &mut self.hosts {
                // A connection that is broken is noticed by the next beat.
                let _ = host.say(&bytes);
            }
            self.said.clone_from(&found);
        }
        self.seen = found;
    }

    /// Writes down for this host who of the others has not come.
    fn note_absent(&self) {
        let Fate::Mixed(arena, _) = &self.fate else { return };
        let reports = || self.hosts.iter().filter_map(|host| host.absent.as_ref());
        let Some(operation) = reports().map(|absent| absent.operation).max() else { return };
        let of_it = reports().filter(|absent| absent.operation == operation);
        let mut ranks: Vec<usize> = of_it.flat_map(|absent| absent.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        arena.set_absent_elsewhere(operation, &ranks);
    }

    /// Aborts the group because of the first host that is silent. A connection that ends otherwise is noticed at once by
    /// whoever needs that rank, who knows what for. The pulse of none of them is felt any more.
    fn lose(&mut self, lost: &[(usize, Noticed)]) {
        let silent = lost.iter().find(|(_, noticed)| matches!(noticed, Noticed::NoAnswer | Noticed::Garbled));
        if let Some(&(rank, noticed)) = silent {
            let (call, sequence) = self.alarm.under_way();
            self.fate.abort(&Verdict::Lost { rank, call, sequence, noticed, by: self.rank });
        }
        self.hosts.retain(|host| lost.iter().all(|(rank, _)| *rank != host.rank));
    }

    /// Says why the group is aborted, once.
    fn tell(&mut self) {
        let Some(verdict) = self.fate.verdict() else { return };
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        // Also for this process, where another one of this host has found out.
        self.alarm.abort(&verdict);
        let bytes = [&[VERDICT_BYTE][..], &wire::verdict_to_bytes(&verdict)].concat();
        let until = Instant::now() + GRACE;
        for host in &self.hosts {
            host.say_last(&bytes, until);
        }
    }

    fn leave(&mut self) {
        let until = Instant::now() + GRACE;
        for host in self.hosts.iter().filter(|_| !self.told) {
            host.say_last(&[GOODBYE_BYTE], until);
            let _ = host.socket.shutdown(Shutdown::Write);
        }
        crate::socket::linger(self.hosts.iter().map(|host| &host.socket));
    }
}
