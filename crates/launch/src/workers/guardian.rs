//! A small process that outlives the launcher just long enough to end its workers.
//!
//! Workers die with the launcher because the kernel signals them (`PR_SET_PDEATHSIG`), but that reaches only our
//! children, not theirs: a shell started with `--no-python`, killed, leaves its Python behind. So the launcher starts a
//! guardian first, and every worker writes its process group to the guardian's pipe before it becomes the user's
//! program. When the launcher's end of the pipe closes, however that came about, the guardian kills the groups left.
//!
//! The guardian is this program again under another name ([`NAME`]), so that a `pkill -9 instep` does not hit it too.
//!
//! ```text
//! record on the pipe: i32 process group, native byte order; positive = started, negative = ended
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, execv, fork, setpgid};

/// What the guardian is called, as its first argument and in process lists. A program that calls
/// [`crate::supervisor::run`] must call [`run`] when it is started under this name.
pub const NAME: &str = "ranks-guardian";

/// The launcher's end of the pipe. Dropping it waits until the guardian has ended too.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// `None` if there is no guardian.
    process: Option<Pid>,
    /// Non-blocking: a guardian that somebody stopped must not stop the job. `None` once closed.
    pipe: Option<File>,
    /// Kept open so that a write never fails with SIGPIPE, should somebody kill the guardian.
    _reader: OwnedFd,
}

impl Guardian {
    /// Starts the guardian.
    ///
    /// Not through [`std::process::Command`], which waits until the new program runs: the first worker must not wait.
    #[expect(unsafe_code, reason = "code between fork and exec")]
    pub(crate) fn start() -> io::Result<Guardian> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let nowhere = File::options().write(true).open("/dev/null")?;
        // SAFETY: the child makes only direct system calls before it becomes another program.
        let process = match unsafe { fork() }? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let _ = become_guardian(&reader, &nowhere);
                // SAFETY: ends the process; nothing of it is used any more.
                unsafe { libc::_exit(127) }
            }
        };
        Ok(Guardian { process: Some(process), pipe: Some(File::from(writer)), _reader: reader })
    }

    /// Nobody: in a test, this program again would be all tests again.
    #[cfg(test)]
    pub(crate) fn absent() -> io::Result<Guardian> {
        let (reader, _) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        Ok(Guardian { process: None, pipe: None, _reader: reader })
    }

    /// Where a worker writes its process id before it becomes another program: from then on its group is guarded.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Nothing of this process group needs to be ended any more.
    pub(crate) fn ended(&mut self, group: Pid) {
        self.send(-group.as_raw());
    }

    fn send(&mut self, record: i32) {
        // The guardian cannot be gone before us unless somebody killed it; the parent-death signal is left then.
        let _ = self.pipe.as_mut().map(|pipe| pipe.write_all(&record.to_ne_bytes()));
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // What the guardian waits for.
        self.pipe = None;
        let _ = self.process.map(|process| waitpid(process, None));
    }
}

fn become_guardian(reader: &OwnedFd, nowhere: &File) -> nix::Result<()> {
    // Ctrl-C at the terminal must not end it before its work is done.
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    dup2_stdin(reader)?;
    // Whoever reads the launcher's output must see its end even while the guardian lives.
    dup2_stdout(nowhere)?;
    dup2_stderr(nowhere)?;
    execv(c"/proc/self/exe", &[c"ranks-guardian"]).map(|never| match never {})
}

/// The guardian's whole life: reads until the launcher is gone, then ends what it left.
pub fn run() {
    // A failure here only means that the guardian can be killed by a signal, as any process can.
    let _ = SigSet::all().thread_block();
    let _ = nix::sys::prctl::set_name(c"ranks-guardian");
    let mut groups: Vec<i32> = Vec::new();
    let mut pipe = io::stdin().lock();
    let mut record = [0u8; 4];
    while pipe.read_exact(&mut record).is_ok() {
        let group = i32::from_ne_bytes(record);
        if group > 0 {
            groups.push(group);
        } else {
            groups.retain(|known| *known != -group);
        }
    }
    for group in groups {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}
