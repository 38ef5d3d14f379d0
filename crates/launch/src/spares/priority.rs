//! Low priority that can be taken back.
//!
//! A process without privileges may lower its priority and never raise it again, and `SCHED_IDLE` is no way around:
//! the kernel asks the same question when it is to be left. A spare interpreter that imports at low priority and is
//! then a worker must be able to come back, so low priority is used only where that is allowed: with `CAP_SYS_NICE`, or
//! with a limit on "nice" (`RLIMIT_NICE`, `ulimit -e`) that reaches up to the launcher's own priority.

use std::io;

/// By how much: a tenth of the share of a processor that others get. The lowest priority of all, 19, would leave a
/// spare on a busy machine without any.
const LOWER_BY: i32 = 10;
const LOWEST: i32 = 19;

/// How a spare may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoweredPriority {
    /// While it imports.
    pub(crate) low: i32,
    /// What it returns to.
    pub(crate) own: i32,
}

impl LoweredPriority {
    /// Finds out by trying, on a thread of its own: priorities belong to threads.
    pub(crate) fn find() -> Option<LoweredPriority> {
        let tried = std::thread::spawn(|| {
            let own = current()?;
            let low = (own + LOWER_BY).min(LOWEST);
            set(low)?;
            set(own).map(|()| LoweredPriority { low, own })
        });
        tried.join().ok()?.ok()
    }
}

#[expect(unsafe_code, reason = "nix does not wrap it")]
fn current() -> io::Result<i32> {
    nix::errno::Errno::clear();
    // SAFETY: plain numbers in and out.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // -1 is a priority too; only errno tells it from a failure.
    match nix::errno::Errno::last_raw() {
        0 => Ok(nice),
        code if nice == -1 => Err(io::Error::from_raw_os_error(code)),
        _ => Ok(nice),
    }
}

/// Sets the priority of the calling thread; also safe between fork and exec.
#[expect(unsafe_code, reason = "nix does not wrap it")]
pub(crate) fn set(nice: i32) -> io::Result<()> {
    // SAFETY: plain numbers in and out.
    let status = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::{LoweredPriority, current};

    #[test]
    fn finding_a_lowered_priority_leaves_the_priority_as_it_was() {
        let before = current().expect("every thread has a priority");
        if let Some(lowered_priority) = LoweredPriority::find() {
            assert_eq!(lowered_priority.own, before);
        }
        assert_eq!(current().expect("still"), before);
    }
}
