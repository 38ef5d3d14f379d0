//! The outer process of a task: it relays what the agent wants to the supervisor, and ends what one that was killed has
//! left.
//!
//! It runs as the agent's user, so that on an agent of root no task can stop it, and only its word counts in `exit.json`.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use instep_api::link::{Ending, Exit};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, setsid};

use super::startup::NEEDS_PLAIN_VIEW;
use super::{relay, tree};
use crate::cgroup::task_group::TaskGroup;
use crate::folder::{ShareFolder, StateFolder};
use crate::order::{StopOrder, TaskOrder};

/// What the guardian needs in order to start the supervisor: the same program again.
pub type Supervisor<'a> = &'a dyn Fn(bool) -> io::Result<Command>;

/// Milliseconds between two looks at what comes as a file.
const POLL_INTERVAL: u8 = 200;
/// Between SIGTERM and SIGKILL where nobody says: a master that was lost.
const GRACE_SECONDS: u32 = 5;
/// How long a supervisor may take after the grace period of a stop: to end what runs, and to deliver output.
const PATIENCE: Duration = Duration::from_secs(90);

/// The code of a program that SIGKILL has ended.
const KILLED: i32 = 128 + 9;

/// Runs a share to its end. `supervisor` makes the command of the supervisor, for a plain view or not.
pub fn run(folder: &ShareFolder, supervisor: Supervisor<'_>) -> io::Result<()> {
    // Fails only for the leader of a group, which has no terminal to lose either.
    let _ = setsid();
    // The order holds a token: other processes of this user must not read it from our memory.
    prctl::set_dumpable(false)?;
    prctl::set_child_subreaper(true)?;
    let _looking_after = folder.look_after()?;
    if folder.exit().is_some() || !folder.claim()? {
        return Ok(());
    }
    folder.write_pid()?;
    let order = match folder.take_order() {
        Ok(order) => order,
        Err(error) => {
            let why = format!("cannot read the order in {}: {error}", folder.path().display());
            return folder.write_exit(&Exit::Failed { why }.into());
        }
    };
    let mut guardian = Guardian {
        state: StateFolder::of_share(folder),
        folder,
        order,
        signals: signals()?,
        stop: None,
        deadline: None,
    };
    let (mut status, mut exit) = guardian.supervise(supervisor(false)?)?;
    if status.code() == Some(NEEDS_PLAIN_VIEW.into()) {
        (status, exit) = guardian.supervise(supervisor(true)?)?;
    }
    let stuck = tree::end_descendants();
    // A supervisor that was killed has said nothing; one that failed is not to be believed.
    let exit = exit.filter(|_| status.success()).unwrap_or_else(|| guardian.left_behind(status, &stuck).into());
    // After the last look at it.
    guardian.order.cgroup.iter().for_each(TaskGroup::end);
    folder.write_exit(&exit)
}

fn signals() -> io::Result<SignalFd> {
    let handled: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    handled.thread_block()?;
    Ok(SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

struct Guardian<'a> {
    folder: &'a ShareFolder,
    state: Option<StateFolder>,
    order: TaskOrder,
    signals: SignalFd,
    /// What the supervisor was told last.
    stop: Option<StopOrder>,
    /// When a supervisor that was told so must have ended.
    deadline: Option<Instant>,
}

impl Guardian<'_> {
    /// Runs a supervisor to its end; gives that, and what the supervisor said of the share's.
    fn supervise(&mut self, mut command: Command) -> io::Result<(ExitStatus, Option<Ending>)> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut pipe), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a supervisor without pipes"));
        };
        // One that ends before it has read its order says so by its status.
        let _ = relay::send(&mut pipe, &self.order);
        relay::never_wait(&pipe)?;
        self.stop = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status, relay::exit(said)));
            }
            // An interruption is as good as a time-out.
            let _ = poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], PollTimeout::from(POLL_INTERVAL));
            self.pass_signals_on(&child);
            self.relay_stop(&child, &mut pipe);
        }
    }

    fn pass_signals_on(&self, child: &Child) {
        while let Ok(Some(information)) = self.signals.read_signal() {
            if Signal::try_from(information.ssi_signo.cast_signed()) != Ok(Signal::SIGCHLD) {
                signal(child, Signal::SIGTERM);
            }
        }
    }

    /// Tells the supervisor that the share is to end; one that does not act on it is killed, and its task with it.
    fn relay_stop(&mut self, child: &Child, pipe: &mut ChildStdin) {
        let wanted = self.folder.stop().or_else(|| self.lost());
        if let Some(stop) = wanted.filter(|stop| self.stop.as_ref() != Some(stop))
            && relay::send(pipe, &stop).is_ok()
        {
            let end = Instant::now() + Duration::from_secs(stop.grace_seconds.into()) + PATIENCE;
            self.deadline = Some(self.deadline.map_or(end, |known| known.min(end)));
            self.stop = Some(stop);
        }
        if self.stop.is_some() {
            // The task's user may have stopped it.
            signal(child, Signal::SIGCONT);
        }
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            signal(child, Signal::SIGKILL);
        }
    }

    /// A stop of our own, if agent and master have lost each other for too long.
    fn lost(&self) -> Option<StopOrder> {
        let window = Duration::from_secs(self.order.machine.window_seconds.into());
        self.state.as_ref().and_then(StateFolder::silence).filter(|silence| *silence > window)?;
        let why = format!("no contact with the master for {} s", window.as_secs());
        Some(StopOrder { grace_seconds: GRACE_SECONDS, why, lost: true })
    }

    /// How a share has ended whose supervisor could not say it.
    fn left_behind(&self, status: ExitStatus, stuck: &[i32]) -> Exit {
        if let Some(stop) = self.folder.stop().as_ref().or(self.stop.as_ref()) {
            return stop.exit();
        }
        if let Some(found) = self.order.cgroup.as_ref().and_then(TaskGroup::out_of_memory) {
            return Exit::Code { code: KILLED, why: Some(found.to_string()) };
        }
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, code) => format!("ended with code {}", code.unwrap_or_default()),
        };
        let stuck = if stuck.is_empty() { String::new() } else { format!("; these processes do not exit: {stuck:?}") };
        Exit::Lost { why: format!("the task's supervisor {how}{stuck}") }
    }
}

/// Sends a signal to a child that has not been waited for.
fn signal(child: &Child, signal: Signal) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
}
