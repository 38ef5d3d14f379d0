//! A small process that outlives the launcher just long enough to end its workers.
//!
//! Workers die with the launcher because the kernel signals them (`PR_SET_PDEATHSIG`), but that reaches only our
//! children, not theirs: a shell started with `--no-python`, killed, leaves its Python behind. So the launcher starts a
//! guardian right after its first workers and tells it through a pipe which process groups are alive. When the pipe closes,
//! however the launcher ended, the guardian kills the groups that are left.
//!
//! The guardian is this program again under another name ([`NAME`]), so that a `pkill -9 instep` does not hit it too.
//!
//! ```text
//! record on the pipe: i32 process group, native byte order; positive = started, negative = ended
//! ```

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

/// What the guardian is called, as its first argument and in process lists. A program that calls
/// [`crate::supervisor::run`] must call [`stand_guard`] when it is started under this name.
pub const NAME: &str = "ranks-guardian";

/// The launcher's end of the pipe. Dropping it waits until the guardian has ended too.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
}

impl Guardian {
    /// Starts the guardian.
    pub(crate) fn start() -> io::Result<Guardian> {
        let process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .stdin(Stdio::piped())
            // Whoever reads the launcher's output must see its end even while the guardian lives.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C at the terminal must not end it before its work is done.
            .process_group(0)
            .spawn()?;
        Ok(Guardian { process })
    }

    /// A worker leads this process group.
    pub(crate) fn started(&mut self, group: Pid) {
        self.tell(group.as_raw());
    }

    /// Nothing of this process group needs to be ended any more.
    pub(crate) fn ended(&mut self, group: Pid) {
        self.tell(-group.as_raw());
    }

    fn tell(&mut self, record: i32) {
        // The guardian cannot be gone before us unless somebody killed it; the parent-death signal is left then.
        let _ = self.process.stdin.as_mut().map(|pipe| pipe.write_all(&record.to_ne_bytes()));
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Closes the pipe first, which is what the guardian waits for.
        let _ = self.process.wait();
    }
}

/// The guardian's whole life: reads until the launcher is gone, then ends what it left.
pub fn stand_guard() {
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
