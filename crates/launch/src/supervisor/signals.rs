//! The launcher's signals, read as data instead of interrupting it.
//!
//! Two kinds. Those of `--signals-to-handle` are passed on to the workers. All others that would end the launcher still
//! end it, with the same exit status, but not before [`Signals::end`]: the loop first shows what the workers have
//! written so far, which is on its way through the launcher and would be lost with it.

use std::io;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What people and job systems send to end a process. Signals about an error in the process itself are not among them.
const ENDING: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGXCPU,
    Signal::SIGPWR,
];

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Signals {
    handled: SignalFd,
    /// Only looked at, never read: the signal stays pending, and takes effect once it is let through.
    ending: SignalFd,
    ending_set: SigSet,
}

impl Signals {
    /// From here on these signals arrive as data, in this thread and those it starts.
    pub(crate) fn catch(handled: &[Signal]) -> io::Result<Signals> {
        let mut handled: SigSet = handled.iter().copied().collect();
        handled.add(Signal::SIGCHLD);
        // One that is ignored, as under nohup, does not end the launcher.
        let ends = |signal: &Signal| !handled.contains(*signal) && has_default_effect(*signal);
        let ending_set: SigSet = ENDING.into_iter().filter(ends).collect();
        handled.thread_block()?;
        ending_set.thread_block()?;
        let open = |set| SignalFd::with_flags(set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        Ok(Signals { handled: open(&handled)?, ending: open(&ending_set)?, ending_set })
    }

    /// What to poll: first for signals to read with [`Signals::next`], then for one that is to end the launcher.
    pub(crate) fn sources(&self) -> [PollFd<'_>; 2] {
        [&self.handled, &self.ending].map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
    }

    /// The next signal for the workers. SIGCHLD only wakes: exits are looked for in every turn of the loop.
    pub(crate) fn next(&mut self) -> io::Result<Option<Signal>> {
        while let Some(info) = self.handled.read_signal()? {
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            match signal {
                Some(Signal::SIGCHLD) | None => {}
                Some(signal) => return Ok(Some(signal)),
            }
        }
        Ok(None)
    }

    /// Lets a signal that is to end the launcher do so. Returns only if there is none.
    pub(crate) fn end(&self) -> io::Result<()> {
        Ok(self.ending_set.thread_unblock()?)
    }
}

/// Whether nobody has changed what a signal does to this process.
#[expect(unsafe_code, reason = "no safe call asks without changing")]
fn has_default_effect(signal: Signal) -> bool {
    let mut current = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed (no new action), and `current` has room for the answer.
    let status = unsafe { libc::sigaction(signal as libc::c_int, std::ptr::null(), current.as_mut_ptr()) };
    // SAFETY: all zeros is a valid value, and the call may have replaced it by another one.
    status == 0 && unsafe { current.assume_init() }.sa_sigaction == libc::SIG_DFL
}
