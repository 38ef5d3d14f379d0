//! One spare interpreter: a process that has imported ahead, and waits to become a worker.
//!
//! It is started with a worker's own command line and held up inside the start of the interpreter by `spare.py`, which
//! says how. Until it is woken it has everything of its slot (interpreter, CPUs, limits, environment, session, guardian,
//! parent-death signal) but no output of its own; what its imports print is kept for the case that they fail.
//!
//! A hot one goes on by itself when it has imported: once every rank of the job has a session it runs the script as a
//! standby of its rank, and stops again where the loop begins. In between it cannot be woken.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::getrlimit;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, send, sendmsg, socketpair};
use nix::unistd::Pid;

use crate::output::logs::{LogBase, LogPolicy, Stream};
use crate::spares::archive;
use crate::spares::priority::LoweredPriority;
use crate::workers::guardian::Guardian;
use crate::workers::process::{SPARE_LIMITS, SpareStart, Spawn, Worker};

/// How the program that waits reaches the interpreter.
const PROGRAM: &str = include_str!("spare.py");
const PROGRAM_NAME: &str = "sitecustomize.py";
/// Where Python looks for modules.
const SEARCH_PATH: &str = "PYTHONPATH";
/// What `spare.py` reads its settings from.
const SETTINGS: &str = "INSTEP_SPARE";
/// The longest message of a spare.
const LONGEST_MESSAGE: usize = 4096;
/// How much of what imports print is kept.
const KEPT_BYTES: usize = 4096;

/// What all spares of a run have in common.
#[derive(Debug)]
pub(crate) struct SpareSettings {
    modules: String,
    /// Absent with `-m`.
    script: Option<OsString>,
    lowered_priority: Option<LoweredPriority>,
    hot: bool,
    archive: OwnedFd,
}

impl SpareSettings {
    pub(crate) fn new(
        modules: &[String],
        script: Option<&OsStr>,
        lowered_priority: Option<LoweredPriority>,
        hot: bool,
    ) -> io::Result<SpareSettings> {
        let mut archive = File::from(memfd_create(c"instep-spare", MFdFlags::MFD_CLOEXEC)?);
        archive.write_all(&archive::of_one_file(PROGRAM_NAME, PROGRAM.as_bytes()))?;
        let script = script.map(OsStr::to_owned);
        Ok(SpareSettings { modules: modules.join(","), script, lowered_priority, hot, archive: archive.into() })
    }

    /// Adds to a worker's variables what makes a spare of it.
    fn add_to(&self, variables: &mut Vec<(&'static str, OsString)>, channel: BorrowedFd<'_>) {
        let archive = self.archive.as_raw_fd();
        let mut path = OsString::from(format!("/proc/self/fd/{archive}"));
        let own = std::env::var_os(SEARCH_PATH);
        if let Some(own) = own.as_ref().filter(|own| !own.is_empty()) {
            path.push(":");
            path.push(own);
        }
        variables.push((SEARCH_PATH, path));
        let nice = self.lowered_priority.map(|lowered_priority| lowered_priority.own.to_string()).unwrap_or_default();
        let (had_path, hot) = (i32::from(own.is_some()), i32::from(self.hot));
        let mut settings =
            OsString::from(format!("{}:{archive}:{nice}:{had_path}:{hot}:{}:", channel.as_raw_fd(), self.modules));
        settings.push(self.script.as_deref().unwrap_or_default());
        variables.push((SETTINGS, settings));
    }
}

/// What a spare has to say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SpareMessage {
    /// It waits where it is to wait, and may begin to import.
    Here,
    /// It has imported everything and can be woken.
    Ready,
    /// It runs the script up to its loop, and cannot be woken meanwhile.
    Rehearsing,
    /// It waits where the loop begins, and can be woken.
    Parked,
    /// It is no more, or will not be; why.
    Failed(String),
}

/// See the module documentation. Ended with [`Spare::end`] or woken with [`Spare::wake`].
#[derive(Debug)]
pub(crate) struct Spare {
    worker: Worker,
    channel: OwnedFd,
    output: File,
    printed: Vec<u8>,
    stage: Stage,
}

/// How far a spare has come since it has imported everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Imported,
    Rehearsing,
    Parked,
}

impl Spare {
    /// Starts one. `spawn` is that of a worker of this slot, except that both of its streams lead to `output`.
    pub(crate) fn start(
        settings: &SpareSettings,
        local_rank: usize,
        mut spawn: Spawn,
        output: OwnedFd,
    ) -> io::Result<Spare> {
        let close = SockFlag::SOCK_CLOEXEC;
        let (channel, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, close)?;
        settings.add_to(&mut spawn.variables, theirs.as_fd());
        let inherited = vec![theirs.as_raw_fd(), settings.archive.as_raw_fd()];
        spawn.spare = Some(SpareStart {
            inherited,
            nice: settings.lowered_priority.map(|lowered_priority| lowered_priority.low),
        });
        let worker = Worker::start(0, local_rank, spawn)?;
        Ok(Spare { worker, channel, output: File::from(output), printed: Vec::new(), stage: Stage::Imported })
    }

    /// What to poll for input.
    pub(crate) fn sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.as_fd(), self.output.as_fd()]
    }

    /// What it has said since the last call; never waits.
    pub(crate) fn message(&mut self) -> Option<SpareMessage> {
        self.take_output();
        let mut message = [0; LONGEST_MESSAGE];
        let text = match recv(self.channel.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Some(SpareMessage::Failed(self.how_it_ended())),
            Ok(length) => String::from_utf8_lossy(&message[..length]).into_owned(),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return None,
            Err(cause) => return Some(SpareMessage::Failed(cause.to_string())),
        };
        match text.as_str() {
            "here" => Some(SpareMessage::Here),
            "ready" => Some(SpareMessage::Ready),
            "rehearsing" => {
                self.stage = Stage::Rehearsing;
                Some(SpareMessage::Rehearsing)
            }
            "parked" => {
                self.stage = Stage::Parked;
                Some(SpareMessage::Parked)
            }
            other => Some(SpareMessage::Failed(other.strip_prefix("failed ").unwrap_or(other).to_owned())),
        }
    }

    /// Lifts the limits it was started with, and lets it import.
    pub(crate) fn go(&self) -> io::Result<()> {
        for (resource, _) in SPARE_LIMITS {
            let (soft, hard) = getrlimit(resource)?;
            set_limit_of(self.worker.pid, resource as libc::c_int, soft, hard)?;
        }
        send(self.channel.as_raw_fd(), b"go", MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// The local rank in whose slot it waits.
    pub(crate) fn local_rank(&self) -> usize {
        self.worker.local_rank
    }

    /// Whether it would take up a call to become a worker at once.
    pub(crate) fn can_be_woken(&self) -> bool {
        self.stage != Stage::Rehearsing
    }

    /// Whether it waits where the script's loop begins.
    pub(crate) fn is_parked(&self) -> bool {
        self.stage == Stage::Parked
    }

    /// Makes it the worker of `rank`, with the streams, CPUs and exactly the variables of `spawn`; gives it back if it
    /// cannot be.
    pub(crate) fn wake(self, rank: usize, local_rank: usize, spawn: &Spawn) -> Result<Worker, Box<(Spare, io::Error)>> {
        let moved = match &spawn.cpus {
            Some(cpus) if local_rank != self.worker.local_rank => self.worker.move_to(cpus),
            _ => Ok(()),
        };
        match moved.and_then(|()| self.send_wake(spawn.stdout.as_fd(), spawn.stderr.as_fd(), &spawn.variables)) {
            Ok(()) => Ok(Worker { rank, local_rank, warm: true, hot: self.is_parked(), ..self.worker }),
            Err(cause) => Err(Box::new((self, cause))),
        }
    }

    fn send_wake(
        &self,
        stdout: BorrowedFd<'_>,
        stderr: BorrowedFd<'_>,
        variables: &[(&'static str, OsString)],
    ) -> io::Result<()> {
        // In a file, not in the message: a large environment must not fill the socket and hold the launcher up.
        let mut environment = File::from(memfd_create(c"environment", MFdFlags::MFD_CLOEXEC)?);
        environment.write_all(&complete_environment(variables))?;
        let folder = File::open(".")?;
        let handles = [stdout.as_raw_fd(), stderr.as_raw_fd(), folder.as_raw_fd(), environment.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&handles)];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(self.channel.as_raw_fd(), &[IoSlice::new(b"wake")], &rights, flags, None)?;
        Ok(())
    }

    /// Keeps it from using a processor, or lets it again.
    pub(crate) fn hold(&self, held: bool) {
        self.worker.signal(if held { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// Tells it to end; [`Spare::end`] must follow.
    pub(crate) fn kill(&self) {
        self.worker.signal(Signal::SIGKILL);
    }

    /// Ends it, and waits until it is gone.
    pub(crate) fn end(mut self, guardian: &mut Guardian) {
        self.kill();
        guardian.ended(self.worker.pid);
        self.worker.await_death();
        self.worker.release();
    }

    fn take_output(&mut self) {
        let mut bytes = [0; KEPT_BYTES];
        // Bounded: what is left comes with the next turn.
        for _ in 0..16 {
            match self.output.read(&mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(length) => self.printed.extend_from_slice(&bytes[..length]),
            }
            let surplus = self.printed.len().saturating_sub(KEPT_BYTES);
            self.printed.drain(..surplus);
        }
    }

    fn how_it_ended(&self) -> String {
        let printed = String::from_utf8_lossy(&self.printed);
        match printed.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => format!("it ended: {}", line.trim()),
            None => "it exited without a message; was it killed?".to_owned(),
        }
    }
}

/// Streams for a spare: what it prints comes out at the reading end.
///
/// Python looks at its streams when it starts, and remembers whether one can be sought. So a worker whose stream will be
/// a file waits with a file there, which nobody reads: should imports fail, the channel says why.
pub(crate) fn quiet_streams(policy: &LogPolicy, local_rank: usize) -> io::Result<(OwnedFd, (OwnedFd, OwnedFd))> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let open = |stream| match policy.base != LogBase::Nowhere && policy.only_to_file(local_rank, stream) {
        true => Ok(memfd_create(c"instep-spare-output", MFdFlags::MFD_CLOEXEC)?),
        false => writer.try_clone(),
    };
    Ok((reader, (open(Stream::Out)?, open(Stream::Err)?)))
}

/// Whether a spare that waits with the streams of one local rank can be the worker of another.
pub(crate) fn same_streams(policy: &LogPolicy, one: usize, other: usize) -> bool {
    let is_file = |local_rank: usize, stream| policy.only_to_file(local_rank, stream);
    let same = |stream| is_file(one, stream) == is_file(other, stream);
    policy.base == LogBase::Nowhere || (same(Stream::Out) && same(Stream::Err))
}

/// The launcher's own environment with these variables, as the kernel keeps it: `NAME=value`, each ended by a zero.
fn complete_environment(variables: &[(&'static str, OsString)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |name: &OsStr, value: &OsStr| {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    };
    for (name, value) in std::env::vars_os() {
        if !variables.iter().any(|(own, _)| OsStr::new(own) == name) {
            add(&name, &value);
        }
    }
    variables.iter().for_each(|(name, value)| add(OsStr::new(name), value));
    bytes
}

#[expect(unsafe_code, reason = "nix does not wrap it")]
fn set_limit_of(process: Pid, resource: libc::c_int, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    let resource = resource as libc::__rlimit_resource_t;
    // SAFETY: `limit` lives for the call, and no old value is asked for.
    let status = unsafe { libc::prlimit(process.as_raw(), resource, &raw const limit, std::ptr::null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
