//! Hosts that feel each other's pulse: silence is noticed within a second, also when nobody has anything to say.
//!
//! The first rank of every host has a connection of its own to the first of every other host, and a thread that writes a byte
//! to it several times a second. What the other side's kernel does not acknowledge for [`UNACKNOWLEDGED`] is lost: the kernel
//! here says so. A process that is stopped, or busy, is not: its kernel still answers, and the timeout of the operation is
//! what ends the wait for it. (The connections of collectives have no such limit: a rank that is late with reading would
//! look like a host that is gone.)
//!
//! The same connection carries the verdict when a group ends, so that hosts hear of it whose ranks are busy with other things.
//!
//! ```text
//! 0            a beat
//! 1 verdict    the group is aborted; the words follow
//! 2            goodbye: from here on silence means nothing
//! ```
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

use super::Alarm;
use super::wire::{self, VERDICT_BYTES};
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

const BEAT_BYTE: u8 = 0;
const VERDICT_BYTE: u8 = 1;
const GOODBYE_BYTE: u8 = 2;

/// What a host said.
#[derive(Debug, PartialEq)]
pub(crate) enum Word {
    Verdict(Box<Verdict>),
    Goodbye,
    /// Nothing that this version understands.
    Garbled,
}

/// Takes bytes apart as they come.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    /// The words of a verdict, as far as they are there.
    words: Option<Vec<u8>>,
}

impl Ear {
    /// What these bytes complete, if it is more than a beat.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Option<Word> {
        for byte in bytes {
            if let Some(words) = &mut self.words {
                words.push(*byte);
                if words.len() == VERDICT_BYTES {
                    let verdict = wire::verdict_from_bytes(words);
                    return Some(verdict.map_or(Word::Garbled, |verdict| Word::Verdict(Box::new(verdict))));
                }
                continue;
            }
            match *byte {
                BEAT_BYTE => {}
                VERDICT_BYTE => self.words = Some(Vec::with_capacity(VERDICT_BYTES)),
                GOODBYE_BYTE => return Some(Word::Goodbye),
                _ => return Some(Word::Garbled),
            }
        }
        None
    }
}

/// The thread, as its owner holds it.
pub(crate) struct Pulse {
    closing: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// Who made it: in a forked child there is no such thread.
    process: u32,
}

impl Pulse {
    /// Starts to feel the pulse of these ranks (of the group), for this one.
    pub(crate) fn start(
        rank: usize,
        connections: Vec<Option<TcpStream>>,
        fate: Fate,
        alarm: Arc<Alarm>,
    ) -> Result<Pulse, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags);
        let wake = Arc::new(wake.map_err(|error| Error::system("create an event handle", error))?);
        let closing = Arc::new(AtomicBool::new(false));
        let numbered = connections.into_iter().enumerate();
        let hosts = numbered.filter_map(|(rank, socket)| Some(Host { rank, socket: socket?, ear: Ear::default() }));
        let hosts: Vec<Host> = hosts.collect();
        for host in &hosts {
            SockRef::from(&host.socket)
                .set_tcp_user_timeout(Some(UNACKNOWLEDGED))
                .map_err(|error| Error::system("tune a connection", error))?;
        }
        let shared_memory = matches!(fate, Fate::Mixed(..));
        let (closing_too, wake_too) = (Arc::clone(&closing), Arc::clone(&wake));
        let mut watch =
            Watch { rank, hosts, fate, alarm, closing: closing_too, wake: wake_too, told: false, shared_memory };
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
}

/// What the thread has.
struct Watch {
    rank: usize,
    hosts: Vec<Host>,
    fate: Fate,
    alarm: Arc<Alarm>,
    closing: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    /// The hosts know the verdict.
    told: bool,
    /// Other ranks of this host may abort the group without a sign.
    shared_memory: bool,
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
        for host in &self.hosts {
            // SAFETY: one byte on this stack.
            let sent = unsafe { crate::socket::send(&host.socket, &[BEAT_BYTE], std::ptr::null(), 0, 0) };
            match sent {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => lost.push((host.rank, Noticed::from_connection(&error))),
            }
        }
        self.lose(&lost);
    }

    fn listen(&mut self) {
        let (mut lost, mut gone, mut verdict) = (Vec::new(), Vec::new(), None);
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
                match host.ear.hear(&bytes[..read]) {
                    None => {}
                    Some(Word::Verdict(words)) => {
                        verdict.get_or_insert(words);
                        gone.push(host.rank);
                        break;
                    }
                    Some(Word::Goodbye) => {
                        gone.push(host.rank);
                        break;
                    }
                    Some(Word::Garbled) => {
                        lost.push((host.rank, Noticed::Garbled));
                        break;
                    }
                }
            }
        }
        if let Some(verdict) = verdict {
            self.fate.abort(&verdict);
        }
        self.lose(&lost);
        // Who has said goodbye or why may do what it wants; it still wants to hear the verdict of others.
        if self.told || self.fate.is_aborted() {
            self.tell();
        }
        self.hosts.retain(|host| !gone.contains(&host.rank));
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
            send_all(&host.socket, &bytes, until);
        }
    }

    fn leave(&mut self) {
        let until = Instant::now() + GRACE;
        for host in self.hosts.iter().filter(|_| !self.told) {
            send_all(&host.socket, &[GOODBYE_BYTE], until);
            let _ = host.socket.shutdown(Shutdown::Write);
        }
        crate::socket::linger(self.hosts.iter().map(|host| &host.socket));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_heard_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1500), cut in 0usize..1500) {
            let mut ear = Ear::default();
            let cut = cut.min(bytes.len());
            let first = ear.hear(&bytes[..cut]);
            let _ = first.is_none().then(|| ear.hear(&bytes[cut..]));
        }

        #[test]
        fn a_verdict_is_heard_however_it_is_cut(beats in 0usize..9, cut in 0usize..700) {
            let verdict = Verdict::Aborted { by: 7 };
            let mut bytes = vec![BEAT_BYTE; beats];
            bytes.push(VERDICT_BYTE);
            bytes.extend(wire::verdict_to_bytes(&verdict));
            let mut ear = Ear::default();
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(ear.hear(&bytes[..cut]), None);
            prop_assert_eq!(ear.hear(&bytes[cut..]), Some(Word::Verdict(Box::new(verdict))));
            prop_assert_eq!(Ear::default().hear(&[0, 0, GOODBYE_BYTE]), Some(Word::Goodbye));
            prop_assert_eq!(Ear::default().hear(&[9]), Some(Word::Garbled));
        }
    }
}
