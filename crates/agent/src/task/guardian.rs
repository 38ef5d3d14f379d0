//! The outer process of a task: it waits for the supervisor, and ends what one that was killed has left.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use instep_api::link::Exit;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, setsid};

use super::supervisor::NEEDS_PLAIN_VIEW;
use super::tree;
use crate::folder::ShareFolder;

/// What the guardian needs in order to start the supervisor: the same program again.
pub type Supervisor<'a> = &'a dyn Fn(bool) -> io::Result<Command>;

/// Runs a share to its end. `supervisor` makes the command of the supervisor, for a plain view or not.
pub fn run(folder: &ShareFolder, supervisor: Supervisor<'_>) -> io::Result<()> {
    // Fails only for the leader of a group, which has no terminal to lose either.
    let _ = setsid();
    prctl::set_child_subreaper(true)?;
    let _looking_after = folder.look_after()?;
    if folder.exit().is_some() || !folder.claim()? {
        return Ok(());
    }
    folder.write_pid()?;
    let signals = handled();
    signals.thread_block()?;
    let mut status = wait(supervisor(false)?.stdin(Stdio::null()).spawn()?, &signals)?;
    if status.code() == Some(NEEDS_PLAIN_VIEW) {
        status = wait(supervisor(true)?.stdin(Stdio::null()).spawn()?, &signals)?;
    }
    let stuck = tree::end_descendants();
    if folder.exit().is_none() {
        folder.write_exit(&left_behind(folder, status, &stuck))?;
    }
    Ok(())
}

fn handled() -> SigSet {
    [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect()
}

/// Waits for the supervisor's end, and passes on what would end us.
fn wait(mut child: Child, signals: &SigSet) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match signals.wait()? {
            Signal::SIGCHLD => {}
            _ => drop(kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)),
        }
    }
}

/// How a share has ended whose supervisor could not say it.
fn left_behind(folder: &ShareFolder, status: ExitStatus, stuck: &[i32]) -> Exit {
    if let Some(stop) = folder.stop() {
        return stop.exit();
    }
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("ended with code {}", code.unwrap_or_default()),
    };
    let stuck = if stuck.is_empty() { String::new() } else { format!("; these processes do not exit: {stuck:?}") };
    Exit::Lost { why: format!("the task's supervisor {how}{stuck}") }
}
