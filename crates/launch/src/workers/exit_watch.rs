//! Notices that a process ends before the kernel has taken its memory apart.
//!
//! The parent of a process that is killed is told only after all of its memory is freed: with torch loaded and a few hundred
//! megabytes of state that takes 50 to 500 ms. Its threads end within microseconds, though, and Linux 6.9 and later wake
//! whoever watches one of them. How the process ends is then written in `/proc` already. Elsewhere nothing is noticed here,
//! and the end of the process comes later, as its parent sees it.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use instep_recorder::process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::failure::ExitStatus;

/// How many threads of a process are watched: the last one to end frees the memory before anybody is woken, so one alone
/// would not do.
const THREADS: usize = 3;
/// How often threads to watch are looked for, as long as there are fewer.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Some threads of a process.
#[derive(Debug)]
pub(crate) struct ExitWatch {
    process: Pid,
    threads: Vec<OwnedFd>,
    /// When to look for more; never where the kernel does not offer it.
    look_at: Option<Instant>,
}

impl ExitWatch {
    pub(crate) fn new(process: Pid) -> ExitWatch {
        ExitWatch { process, threads: Vec::new(), look_at: Some(Instant::now()) }
    }

    /// What becomes readable when a thread ends.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.threads.iter().map(AsFd::as_fd)
    }

    /// How the process ends, if it does, and not well: an exit with 0 looks like none.
    pub(crate) fn exit_under_way(&mut self) -> Option<ExitStatus> {
        if self.threads.iter().any(has_ended) {
            if let Some(exit) = exit_of(self.process) {
                return Some(exit);
            }
            self.threads.retain(|thread| !has_ended(thread));
        }
        let now = Instant::now();
        if self.threads.len() < THREADS && self.look_at.is_some_and(|at| now >= at) {
            self.look_at = self.watch_more().then_some(now + LOOK_INTERVAL);
        }
        None
    }

    /// Watches threads that there are now; false where that cannot be done.
    fn watch_more(&mut self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.process)) else { return true };
        let numbers = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<i32>().ok());
        // One that is watched already may be watched twice; the oldest live longest.
        let mut numbers: Vec<i32> = numbers.collect();
        numbers.sort_unstable();
        self.threads.clear();
        for number in numbers.into_iter().take(THREADS) {
            match watch(number) {
                Ok(thread) => self.threads.push(thread),
                Err(nix::errno::Errno::ESRCH) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Opens a descriptor of one thread.
#[expect(unsafe_code, reason = "a system call that nix does not wrap")]
fn watch(thread: i32) -> nix::Result<OwnedFd> {
    // PIDFD_THREAD of linux/pidfd.h; closed on exec as all of them are.
    let flags = libc::O_EXCL;
    // SAFETY: it takes two numbers and gives a descriptor or an error.
    let found = nix::errno::Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) })?;
    let found = i32::try_from(found).map_err(|_| nix::errno::Errno::EBADF)?;
    // SAFETY: it is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

fn has_ended(thread: &OwnedFd) -> bool {
    let mut source = [PollFd::new(thread.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut source, PollTimeout::ZERO), Ok(count) if count > 0)
}

fn exit_of(process: Pid) -> Option<ExitStatus> {
    let status = process::exit_under_way(u32::try_from(process.as_raw()).ok()?)?;
    let signal = status & 0x7f;
    Some(ExitStatus(if signal == 0 { (status >> 8) & 0xff } else { -signal }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Threads, and memory that takes a while to be freed.
    const PROGRAM: &str = "
import sys, threading, time
for _ in range(4): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
memory = bytearray(1 << 28)
for place in range(0, len(memory), 4096): memory[place] = 1
print('ready', flush=True)
sys.stdin.readline()
import os
os._exit(7)
";

    fn started() -> (Child, ExitWatch) {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let watch = ExitWatch::new(Pid::from_raw(i32::try_from(child.id()).unwrap()));
        (child, watch)
    }

    fn exit_of_watched(child: &mut Child, watch: &mut ExitWatch) -> Option<ExitStatus> {
        loop {
            if let Some(exit) = watch.exit_under_way() {
                return Some(exit);
            }
            if child.try_wait().unwrap().is_some() {
                return None;
            }
        }
    }

    #[test]
    fn a_process_that_is_killed_is_known_to_end_and_how() {
        for (expected, by) in [(-9, "kill"), (7, "exit")] {
            let (mut child, mut watch) = started();
            assert_eq!(watch.exit_under_way(), None);
            if watch.look_at.is_none() {
                return drop(child.kill()); // an older kernel
            }
            assert_eq!(watch.sources().count(), THREADS);
            if by == "kill" {
                child.kill().unwrap();
            } else {
                drop(child.stdin.take());
            }
            assert_eq!(exit_of_watched(&mut child, &mut watch), Some(ExitStatus(expected)), "{by}");
            let mut rest = Vec::new();
            child.stdout.take().expect("it is piped").read_to_end(&mut rest).unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_is_stopped_has_not_ended() {
        let (mut child, mut watch) = started();
        assert_eq!(watch.exit_under_way(), None);
        nix::sys::signal::kill(watch.process, nix::sys::signal::Signal::SIGSTOP).unwrap();
        while process::stat(child.id()).unwrap().state != 'T' {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((watch.exit_under_way(), exit_of(watch.process)), (None, None));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
