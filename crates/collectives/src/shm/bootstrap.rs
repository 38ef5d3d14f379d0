//! How the arena of rank 0 reaches the other ranks of the host.
//!
//! ```text
//! rank r → rank 0   magic(8) token(16) generation(8) world(4) rank(4) slot bytes(8)
//! rank 0 → rank r   0(4) bytes of text = 0(4)          with file descriptors: arena, one process handle per rank
//!                   1(4) bytes of text(4) text         when it cannot be
//! ```
//! Everybody gets the answer when all have come. Callers who are another user, do not know the token or are of another
//! generation are refused and do not disturb the others. The socket's name is abstract: it dies with its process.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg};

use super::arena::Arena;
use crate::deadline::Deadline;
use crate::partition::NetworkChannels;
use crate::rank::{LocalRank, join_ranks};
use crate::socket::poll_timeout;
use crate::{Address, Error, Rank};

const MAGIC: [u8; 8] = *b"instepH1";
const HELLO_BYTES: usize = 48;
const WELCOME: u32 = 0;
const REFUSED: u32 = 1;
/// What one message can carry (SCM_MAX_FD in Linux), less the arena.
pub(crate) const MAX_RANKS: usize = 252;
/// A caller who connects and says nothing is given up after this.
const HELLO_DEADLINE: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// What a rank asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShmHello {
    token: [u8; 16],
    generation: u64,
    world: u32,
    rank: u32,
    slot_bytes: u64,
}

impl ShmHello {
    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.token);
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.world.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.rank.to_le_bytes());
        bytes[40..].copy_from_slice(&self.slot_bytes.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<ShmHello> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        (bytes[..8] == MAGIC).then(|| ShmHello {
            token: std::array::from_fn(|index| bytes[8 + index]),
            generation: word(24),
            world: word(32) as u32,
            rank: (word(32) >> 32) as u32,
            slot_bytes: word(40),
        })
    }
}

/// Opens the socket where ranks of this host ask for the arena, should this process be the first of them.
///
/// Two ranks share memory when they run under the same kernel, reach each other at abstract sockets (network namespace), mean the same
/// process by a number (process namespace), and are the same user.
pub(crate) fn bind(host: String) -> Result<(UnixListener, Address), Error> {
    let mut token = [0; 16];
    let mut name = [0; 8];
    let fill = |bytes: &mut [u8]| File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
    fill(&mut token).and_then(|()| fill(&mut name)).map_err(|error| Error::system("read /dev/urandom", error))?;
    let socket = format!("instep-{}-{:016x}", std::process::id(), u64::from_le_bytes(name)).into_bytes();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    let network = format!("{}/{}", boot.trim(), namespace("net").display());
    let memory = format!("{network}/{}/{}", namespace("pid").display(), nix::unistd::geteuid());
    let listener = SocketAddr::from_abstract_name(&socket)
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Error::system("listen on a Unix socket", error))?;
    let (endpoints, p2p_port, canonical, encrypted) = (Vec::new(), 0, false, false);
    let channels = NetworkChannels::ONE;
    let address = Address { host, memory, socket, token, network, endpoints, p2p_port, canonical, encrypted, channels };
    Ok((listener, address))
}

/// Whether these ranks can share an arena.
pub(crate) fn can_share(addresses: &[Address]) -> bool {
    addresses.len() <= MAX_RANKS && addresses.windows(2).all(|pair| pair[0].memory == pair[1].memory)
}

/// How one rank gets the arena, or gives it to the others.
pub(crate) struct ShmBootstrap<'a> {
    pub(crate) listener: &'a UnixListener,
    pub(crate) local_rank: LocalRank,
    /// What users call the ranks: those of the whole group.
    pub(crate) group_ranks: &'a [Rank],
    pub(crate) addresses: &'a [Address],
    pub(crate) generation: u64,
    pub(crate) slot_bytes: usize,
    /// What rank 0 makes.
    pub(crate) channels: usize,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Deadline,
}

/// The shared memory, and a handle on every rank's process.
pub(crate) struct SharedArena {
    pub(crate) arena: Arena,
    pub(crate) processes: Vec<OwnedFd>,
}

impl ShmBootstrap<'_> {
    /// Shares the arena with the other ranks, which [`can_share`] memory.
    pub(crate) fn run(&self) -> Result<SharedArena, Error> {
        if self.local_rank == LocalRank(0) { self.accept_ranks() } else { self.join_first_rank() }
    }

    fn hello(&self) -> ShmHello {
        ShmHello {
            token: self.addresses[0].token,
            generation: self.generation,
            world: self.addresses.len() as u32,
            rank: self.local_rank.0 as u32,
            slot_bytes: self.slot_bytes as u64,
        }
    }

    fn failed(&self, what: impl Into<String>) -> Error {
        Error::Connect { timeout: self.timeout, what: what.into() }
    }

    /// Rank 0: makes the arena, waits for all, gives it to them.
    fn accept_ranks(&self) -> Result<SharedArena, Error> {
        let world = self.addresses.len();
        let (arena, file) = Arena::create(world, self.slot_bytes, self.channels)?;
        let mut joined: Vec<Option<(UnixStream, OwnedFd)>> = (0..world).map(|_| None).collect();
        let missing =
            |joined: &[Option<_>]| -> Vec<usize> { (1..world).filter(|rank| joined[*rank].is_none()).collect() };
        while !missing(&joined).is_empty() {
            if !await_readable(self.listener, &self.deadline) {
                let late: Vec<Rank> = missing(&joined).iter().map(|rank| self.group_ranks[*rank]).collect();
                let what = format!("rank {} did not arrive", join_ranks(&late));
                for (stream, _) in joined.iter_mut().flatten() {
                    refuse(stream, &what);
                }
                return Err(self.failed(what));
            }
            let Ok((stream, _)) = self.listener.accept() else { continue };
            if let Some((rank, stream, process)) = self.admit(stream) {
                // A second hello of the same rank replaces the first, whose process gave up.
                joined[rank] = Some((stream, process));
            }
        }
        let own =
            process_handle(std::process::id() as i32).map_err(|error| Error::system("open a process handle", error))?;
        let mut processes = vec![own];
        let mut waiting = Vec::new();
        for (stream, process) in joined.into_iter().flatten() {
            waiting.push(stream);
            processes.push(process);
        }
        let handles: Vec<RawFd> = [&file].into_iter().chain(&processes).map(AsRawFd::as_raw_fd).collect();
        for (index, stream) in waiting.iter().enumerate() {
            welcome(stream, &handles)
                .map_err(|error| self.failed(format!("rank {} went away: {error}", self.group_ranks[index + 1])))?;
        }
        Ok(SharedArena { arena, processes })
    }

    /// Listens to a caller; strangers are refused.
    fn admit(&self, mut stream: UnixStream) -> Option<(usize, UnixStream, OwnedFd)> {
        let credentials = getsockopt(&stream, PeerCredentials).ok()?;
        if credentials.uid() != nix::unistd::geteuid().as_raw() {
            return None;
        }
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(HELLO_DEADLINE)).ok()?;
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).ok()?;
        let hello = ShmHello::from_bytes(&bytes)?;
        let rank = hello.rank as usize;
        let expected = ShmHello { rank: hello.rank, ..self.hello() };
        if hello.token != expected.token || rank == 0 || rank >= self.addresses.len() {
            return None;
        }
        if hello != expected {
            let (theirs, ours, first) = (hello.generation, self.generation, self.group_ranks[0]);
            let what = if theirs == ours {
                format!("rank {first} expects another world size or slot size")
            } else {
                format!("rank {first} is at generation {ours}, rank {} at {theirs}", self.group_ranks[rank])
            };
            refuse(&mut stream, &what);
            return None;
        }
        match process_handle(credentials.pid()) {
            Ok(process) => Some((rank, stream, process)),
            Err(error) => {
                refuse(
                    &mut stream,
                    &format!("rank {} cannot watch process {}: {error}", self.group_ranks[0], credentials.pid()),
                );
                None
            }
        }
    }

    /// Other ranks: ask rank 0 for the arena.
    fn join_first_rank(&self) -> Result<SharedArena, Error> {
        let first = self.group_ranks[0];
        let address = SocketAddr::from_abstract_name(&self.addresses[0].socket)
            .map_err(|error| Error::system("name the socket of rank 0", error))?;
        let mut stream = loop {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => break stream,
                // Its queue of callers may be full for a moment.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.deadline.has_passed() => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(error) => return Err(self.failed(format!("rank {first} does not answer: {error}"))),
            }
        };
        stream
            .write_all(&self.hello().to_bytes())
            .map_err(|error| self.failed(format!("rank {first} went away: {error}")))?;
        if !await_readable(&stream, &self.deadline) {
            return Err(self.failed(format!("rank {first} did not answer")));
        }
        let (status, handles) =
            receive(&mut stream).map_err(|error| self.failed(format!("rank {first} went away: {error}")))?;
        if let Err(what) = status {
            return Err(self.failed(what));
        }
        let mut handles = handles.into_iter();
        let file = handles.next().ok_or_else(|| self.failed(format!("rank {first} sent no memory")))?;
        let processes: Vec<OwnedFd> = handles.collect();
        if processes.len() != self.addresses.len() {
            return Err(
                self.failed(format!("rank {first} sent too few process handles: is the limit on open files reached?"))
            );
        }
        let arena = Arena::open(&file, self.addresses.len(), self.slot_bytes)?;
        Ok(SharedArena { arena, processes })
    }
}

/// Waits until there is something to accept or read; false at the deadline.
fn await_readable(socket: &impl AsFd, deadline: &Deadline) -> bool {
    loop {
        let mut handles = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut handles, poll_timeout(deadline.nap())).is_ok_and(|ready| ready > 0) {
            return true;
        }
        if deadline.has_passed() {
            return false;
        }
    }
}

fn welcome(stream: &UnixStream, handles: &[RawFd]) -> io::Result<()> {
    let answer = [WELCOME.to_le_bytes(), 0u32.to_le_bytes()].concat();
    let rights = [ControlMessage::ScmRights(handles)];
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&answer)], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

fn refuse(stream: &mut UnixStream, what: &str) {
    let answer = [&REFUSED.to_le_bytes(), &(what.len() as u32).to_le_bytes(), what.as_bytes()].concat();
    // A caller that is gone needs no answer.
    let _ = stream.write_all(&answer);
}

type Reply = (Result<(), String>, Vec<OwnedFd>);

fn receive(stream: &mut UnixStream) -> io::Result<Reply> {
    let mut answer = [0; 8];
    let mut space = cmsg_space!([RawFd; MAX_RANKS + 1]);
    let mut handles = Vec::new();
    let read = {
        let mut parts = [IoSliceMut::new(&mut answer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                // SAFETY: the kernel has just made these descriptors for us; nobody else owns them.
                handles.extend(received.into_iter().map(|handle| unsafe { OwnedFd::from_raw_fd(handle) }));
            }
        }
        message.bytes
    };
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.set_read_timeout(Some(HELLO_DEADLINE))?;
    stream.read_exact(&mut answer[read..])?;
    let [status, length] = [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|index| answer[at + index])));
    if status == WELCOME {
        return Ok((Ok(()), handles));
    }
    let mut text = vec![0; (length as usize).min(4096)];
    stream.read_exact(&mut text)?;
    Ok((Err(String::from_utf8_lossy(&text).into_owned()), handles))
}

/// A descriptor that becomes readable when the process ends.
fn process_handle(process: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if handle < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(handle as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn hellos_survive_the_socket_and_noise_is_none() {
        let hello = ShmHello { token: [9; 16], generation: 1 << 40, world: 5, rank: 4, slot_bytes: 1 << 18 };
        assert_eq!(ShmHello::from_bytes(&hello.to_bytes()), Some(hello));
        assert_eq!(ShmHello::from_bytes(&[0x55; HELLO_BYTES]), None);
    }

    #[test]
    fn a_process_handle_shows_the_end_of_a_process() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let handle = process_handle(child.id() as i32).unwrap();
        let within = |seconds| Deadline::fixed(Instant::now() + Duration::from_secs(seconds));
        assert!(!await_readable(&handle, &within(0)));
        child.kill().unwrap();
        assert!(await_readable(&handle, &within(10)));
        child.wait().unwrap();
    }
}
