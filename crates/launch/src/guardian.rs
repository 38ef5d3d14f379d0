//! A small process that outlives the launcher just long enough to end its workers.
//!
//! Workers die with the launcher because the kernel signals them (`PR_SET_PDEATHSIG`), but that reaches only our
//! children, not theirs: a shell started with `--no-python`, killed, leaves its Python behind. So the launcher forks a
//! guardian before anything else and tells it through a pipe which process groups are alive. When the pipe closes,
//! however the launcher ended, the guardian kills the groups that are left.
//!
//! ```text
//! record on the pipe: i32 process group, native byte order; positive = started, negative = ended
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, sigprocmask};
use nix::unistd::{ForkResult, Pid, fork, pipe2, setsid};

/// The launcher's end of the pipe.
#[derive(Debug)]
pub struct Guardian {
    pipe: File,
}

impl Guardian {
    /// Forks the guardian. Call it while the process still has one thread.
    #[expect(unsafe_code, reason = "fork")]
    pub fn start() -> io::Result<Guardian> {
        let (reader, writer) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // SAFETY: called before any other thread exists, so the child may go on using the allocator and std.
        match unsafe { fork() }? {
            ForkResult::Parent { .. } => Ok(Guardian { pipe: File::from(writer) }),
            ForkResult::Child => {
                drop(writer);
                watch(reader);
                std::process::exit(0);
            }
        }
    }

    /// A worker leads this process group.
    pub fn started(&mut self, group: Pid) {
        self.tell(group.as_raw());
    }

    /// Nothing of this process group needs to be ended any more.
    pub fn ended(&mut self, group: Pid) {
        self.tell(-group.as_raw());
    }

    fn tell(&mut self, record: i32) {
        // The guardian cannot be gone before us unless somebody killed it; the parent-death signal is left then.
        let _ = self.pipe.write_all(&record.to_ne_bytes());
    }
}

/// The guardian's whole life.
fn watch(pipe: OwnedFd) {
    // Neither the terminal's Ctrl-C nor a signal to the launcher's group may end the guardian before its work is done.
    let _ = setsid();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let _ = nix::sys::prctl::set_name(c"instep-guardian");
    close_all_but(pipe.as_raw_fd());
    let mut groups: Vec<i32> = Vec::new();
    let mut pipe = File::from(pipe);
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

/// Whoever reads the launcher's output must see its end even while the guardian lives.
#[expect(unsafe_code, reason = "close_range on descriptors that belong to the forked copy")]
fn close_all_but(kept: i32) {
    let Ok(kept) = u32::try_from(kept) else { return };
    // SAFETY: the child uses no descriptor but `kept` from here on.
    unsafe {
        if kept > 0 {
            libc::syscall(libc::SYS_close_range, 0u32, kept - 1, 0u32);
        }
        if libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0u32) != 0 {
            // Kernels before 5.9: close what a launcher has open this early.
            for descriptor in (0..64).filter(|descriptor| *descriptor != kept) {
                libc::close(descriptor as i32);
            }
        }
    }
}
