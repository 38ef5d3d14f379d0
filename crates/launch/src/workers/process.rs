//! One worker process: its start, its process group, its end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::CpuSet;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid, getppid, setsid};

use crate::failure::ExitStatus;
use crate::spares::priority;
use crate::workers::environment::NOT_FOR_WORKERS;
use crate::workers::exit_watch::ExitWatch;

/// How long the kernel may take to end a process that was killed.
const KILLED_WITHIN: Duration = Duration::from_secs(2);

/// The limit on open files as the launcher found it: the launcher raises its own, which workers must not inherit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileLimit {
    soft: rlim_t,
    hard: rlim_t,
}

impl FileLimit {
    pub(crate) fn current() -> io::Result<FileLimit> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(FileLimit { soft, hard })
    }
}

/// Everything a worker is started with.
#[derive(Debug)]
pub(crate) struct Spawn {
    pub(crate) command: Vec<OsString>,
    pub(crate) variables: Vec<(&'static str, OsString)>,
    pub(crate) cpus: Option<BTreeSet<usize>>,
    pub(crate) file_limit: FileLimit,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// Where the worker registers with the guardian.
    pub(crate) guardian: Option<RawFd>,
    /// Where it is to wait before it becomes a worker.
    pub(crate) spare: Option<SpareStart>,
}

/// What is different about the start of a spare.
#[derive(Debug)]
pub(crate) struct SpareStart {
    /// Descriptors it is to have.
    pub(crate) inherited: Vec<RawFd>,
    /// Its priority while it imports.
    pub(crate) nice: Option<i32>,
}

/// A started worker.
///
/// Its exit is noticed without reaping it: until [`Worker::release`] the dead process keeps its id, so that a signal
/// to its group reaches children it left behind and can never reach a stranger.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) rank: usize,
    pub(crate) local_rank: usize,
    /// Counts from 0 in each round: which of the workers that had this place one after the other.
    pub(crate) incarnation: u32,
    /// It was a spare, and whether one that had run the script up to its loop.
    pub(crate) warm: bool,
    pub(crate) hot: bool,
    pub(crate) pid: Pid,
    pub(crate) exit: Option<ExitStatus>,
    /// For one whose end is to be known as early as can be.
    pub(crate) watch: Option<Box<ExitWatch>>,
}

impl Worker {
    /// Starts a worker in a session of its own, so that a signal reaches it and all its children at once.
    ///
    /// Must be called on the main thread: the kernel ends the worker when the *thread* that started it ends.
    #[expect(unsafe_code, reason = "code between fork and exec")]
    pub(crate) fn start(rank: usize, local_rank: usize, spawn: Spawn) -> io::Result<Worker> {
        let (program, arguments) = spawn.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).envs(spawn.variables).stdout(spawn.stdout).stderr(spawn.stderr);
        for name in NOT_FOR_WORKERS {
            command.env_remove(name);
        }
        let spare = spawn.spare;
        let (launcher, limit) = (getpid(), spawn.file_limit);
        let cpus = spawn.cpus.as_ref().map(cpu_set).transpose()?;
        // SAFETY: the closure makes only direct system calls, which are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                setsid()?;
                // The launcher blocks the signals it reads as data; a worker must feel them.
                SigSet::empty().thread_set_mask()?;
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                // The launcher may have died before the line above took effect.
                if getppid() != launcher {
                    return Err(io::Error::from(Errno::ESRCH));
                }
                setrlimit(Resource::RLIMIT_NOFILE, limit.soft, limit.hard)?;
                if let Some(cpus) = &cpus {
                    nix::sched::sched_setaffinity(Pid::from_raw(0), cpus)?;
                }
                if let Some(spare) = &spare {
                    become_spare(spare)?;
                }
                if let Some(guardian) = spawn.guardian {
                    // Last, and before the program can have children. If the pipe is full, nobody reads it.
                    let _ = nix::unistd::write(BorrowedFd::borrow_raw(guardian), &getpid().as_raw().to_ne_bytes());
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Worker {
            rank,
            local_rank,
            incarnation: 0,
            warm: false,
            hot: false,
            pid: Pid::from_raw(pid),
            exit: None,
            watch: None,
        })
    }

    /// Notices whether the worker has ended; true the one time it has.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.exit.is_some() {
            return false;
        }
        self.exit = self.status().or_else(|| self.watch.as_mut().and_then(|watch| watch.exit_under_way()));
        self.exit.is_some()
    }

    /// How the process has ended, if nothing of it is left but that.
    fn status(&self) -> Option<ExitStatus> {
        let only_look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.pid), only_look) {
            Ok(WaitStatus::Exited(_, code)) => Some(ExitStatus(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(ExitStatus(-(signal as i32))),
            // Not ours to wait for: it has ended, nobody knows how.
            Err(Errno::ECHILD) => Some(ExitStatus(1)),
            Ok(_) | Err(_) => None,
        }
    }

    /// Signals the worker and its children.
    pub(crate) fn signal(&self, signal: Signal) {
        // An empty group is no error: that is what we want.
        let _ = killpg(self.pid, signal);
        if signal == Signal::SIGTERM {
            // A process that somebody has stopped ends only when it is continued.
            let _ = killpg(self.pid, Signal::SIGCONT);
        }
    }

    /// Moves the process to other CPUs, with the threads that it has so far.
    pub(crate) fn move_to(&self, cpus: &BTreeSet<usize>) -> io::Result<()> {
        let set = cpu_set(cpus)?;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let thread = thread?.file_name().to_string_lossy().parse::<i32>().map_err(io::Error::other)?;
            nix::sched::sched_setaffinity(Pid::from_raw(thread), &set)?;
        }
        Ok(())
    }

    /// Waits for the end of a worker that was killed, but not for one that hangs in the kernel.
    pub(crate) fn await_death(&mut self) {
        let deadline = Instant::now() + KILLED_WITHIN;
        while self.exit.is_none() && !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether nothing of the process is left but how it ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.status().is_some()
    }

    /// Lets the dead process go: waits for one whose end is under way, but not for one that hangs in the kernel.
    pub(crate) fn release(self) {
        let deadline = Instant::now() + KILLED_WITHIN;
        while self.exit.is_some() && !self.is_gone() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }
}

/// Between fork and exec. Until the spare has said that it waits, it can neither write a file nor compute for long:
/// should it ever go past the place where it is to wait, it is a script that nobody asked for.
#[expect(unsafe_code, reason = "descriptors given by number")]
fn become_spare(spare: &SpareStart) -> io::Result<()> {
    for number in &spare.inherited {
        // SAFETY: the launcher holds them open until the spare has been started.
        fcntl(unsafe { BorrowedFd::borrow_raw(*number) }, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    for (resource, most) in SPARE_LIMITS {
        let (soft, hard) = getrlimit(resource)?;
        setrlimit(resource, soft.min(most), hard)?;
    }
    spare.nice.map_or(Ok(()), priority::set)
}

/// What a spare may use before it has said that it waits: seconds of a processor, bytes of a file.
pub(crate) const SPARE_LIMITS: [(Resource, rlim_t); 2] = [(Resource::RLIMIT_CPU, 2), (Resource::RLIMIT_FSIZE, 0)];

fn cpu_set(cpus: &BTreeSet<usize>) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    Ok(set)
}
