//! The inner process of a task: the steps of a share in their order, each of which a stop may interrupt.
//!
//! One thread waits on everything: signals, output, the guardian's word to stop. Steps that may
//! take long (a download, the wait for other machines) run on a thread each that is left behind on a stop: the process
//! ends soon after.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use instep_api::goodput::NodeGoodput;
use instep_api::link::{Ending, Exit};
use instep_api::states::LogLevel;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};

use super::entrypoint::{Nodes, launcher_defaults, program};
use super::environment::{Variables, find_program, variables};
use super::master::{self, Rendezvous};
use super::output::Output;
use super::relay::Orders;
use super::service::Watch;
use super::summary::Summary;
use super::view::View;
use super::{forwarder, information, interface, preparation, ssh, summary, tree};
use crate::cgroup::task_group::TaskGroup;
use crate::order::{StopOrder, TaskOrder};

/// Milliseconds between two looks at what comes as a file.
const POLL_INTERVAL: u8 = 200;
/// The same while a short step is under way.
const POLL_INTERVAL_BUSY: u8 = 10;
/// Between SIGTERM and SIGKILL where nobody says: a machine that is shut down.
const GRACE_SECONDS: u32 = 5;
/// How long the last output may take to reach the master.
pub(super) const DELIVERY: Duration = Duration::from_secs(60);

/// Why a step was not finished.
enum Ended {
    /// Somebody wants the end.
    Stopped(StopOrder),
    /// It cannot run; not the script's fault.
    Failed(String),
    /// It ran and ended.
    Code(i32),
    /// It ran and failed, and this is what went wrong.
    Because(i32, String),
}

/// Runs a share to its end, as the user who is to run it.
pub(super) fn supervise(orders: Orders, order: TaskOrder, view: View, inherited: Variables) -> io::Result<Ending> {
    let mut supervisor = Supervisor::start(orders, order, view)?;
    let ended = supervisor.steps(inherited).err().unwrap_or(Ended::Code(0));
    Ok(supervisor.finish(ended))
}

struct Supervisor {
    orders: Orders,
    order: TaskOrder,
    /// The same as the task is to know it.
    known: TaskOrder,
    view: View,
    output: Output,
    signals: SignalFd,
    /// That it is to end, from whomever.
    stop: Option<StopOrder>,
    /// Where the launcher writes its summary; none before the entrypoint starts.
    summary: Option<PathBuf>,
    /// Of what the entrypoint serves, while it runs.
    watch: Option<Watch>,
    /// Children that have ended, by process id.
    ended: BTreeMap<i32, i32>,
}

/// Lets everything in the task reach whichever of several masters answers, by one address; gives the order as the task is to
/// know it. Its supervisor asks the masters themselves.
fn with_forwarder(order: &TaskOrder) -> io::Result<TaskOrder> {
    let (mut known, masters) = (order.clone(), &order.machine.masters);
    if !masters.is_empty()
        && let Some(here) =
            forwarder::start(&masters.parse().map_err(io::Error::other)?, order.machine.certificates.as_deref())?
    {
        (known.machine.master, known.machine.masters) = (here, String::new());
    }
    Ok(known)
}

impl Supervisor {
    fn start(orders: Orders, order: TaskOrder, view: View) -> io::Result<Supervisor> {
        let handled: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        handled.thread_block()?;
        let signals = SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let known = with_forwarder(&order)?;
        let client = master::connect(&order).map_err(io::Error::other)?;
        let output = Output::start(&order, &view.run.join("train/logs"), &view.own().join("spool"), client)?;
        let (stop, summary, watch, ended) = (None, None, None, BTreeMap::new());
        Ok(Supervisor { orders, order, known, view, output, signals, stop, summary, watch, ended })
    }

    /// From the context to the end of the entrypoint.
    fn steps(&mut self, inherited: Variables) -> Result<(), Ended> {
        for note in self.order.start.notes.clone() {
            self.output.say(LogLevel::Warning, &note);
        }
        let mut all = variables(&self.known, &self.view, inherited).map_err(Ended::Failed)?;
        self.prepare(&all)?;
        let mut place = self.view.run.join("workdir");
        if let Some(hook) = preparation::hook(&self.view) {
            (all, place) = self.run_hook(&hook, &all)?;
        }
        let rendezvous = self.rendezvous()?;
        self.run_entrypoint(all, &place, &rendezvous)
    }

    fn prepare(&mut self, all: &Variables) -> Result<(), Ended> {
        let (order, view, variables) = (self.order.clone(), self.view.clone(), all.clone());
        let said = self.in_background(move || {
            let client = master::connect(&order).map_err(|error| error.to_string())?;
            preparation::prepare(&client, &order, &view, &variables)
        })?;
        for (level, sentence) in said.map_err(Ended::Failed)? {
            self.output.say(level, &sentence);
        }
        self.output.say(LogLevel::Info, &preparation::announce(&self.order, &self.view, all));
        if !preparation::is_trial(&self.order) {
            return Ok(());
        }
        let order = self.order.clone();
        self.in_background(move || preparation::try_storage(&order))?.map_err(|error| {
            self.output.say(LogLevel::Error, &error);
            Ended::Code(1)
        })
    }

    /// The hook may set variables and change the folder for what follows, as if it had been sourced.
    fn run_hook(&mut self, hook: &Path, all: &Variables) -> Result<(Variables, PathBuf), Ended> {
        const SCRIPT: &str =
            r#"set -e; source "$1"; set +e; pwd > "$2/hook.folder"; exec env -0 > "$2/hook.environment""#;
        let place = self.view.run.join("workdir");
        let mut command = Command::new("bash");
        command.args(["-c", SCRIPT, "bash"]).arg(hook).arg(self.view.own());
        let code = self.run_program(command, all, &place)?;
        match preparation::after_hook(&self.view.own()).filter(|_| code == 0) {
            Some(left) => Ok(left),
            None => {
                self.output.say(LogLevel::Error, &format!("startup-hook.sh ended with code {code}"));
                Err(Ended::Code(code))
            }
        }
    }

    fn rendezvous(&mut self) -> Result<Rendezvous, Ended> {
        if !self.order.start.rendezvous {
            return Ok(Rendezvous::default());
        }
        let order = self.order.clone();
        let rendezvous = self.in_background(move || {
            let client = master::connect(&order).map_err(|error| error.to_string())?;
            master::rendezvous(&client, &order)
        })?;
        let rendezvous = rendezvous.map_err(Ended::Failed)?;
        let folder = self.view.run.join("info");
        information::put(&folder, "rendezvous.json", &master::rendezvous_file(&rendezvous))
            .map_err(|error| Ended::Failed(format!("{}: {error}", folder.display())))?;
        self.write_ssh_files(&rendezvous)?;
        Ok(rendezvous)
    }

    /// Lets Determined's launchers reach the other machines.
    fn write_ssh_files(&self, rendezvous: &Rendezvous) -> Result<(), Ended> {
        let start = &self.order.start;
        let (Some(keys), Some(folder)) = (&start.ssh_keys, ssh::folder(&self.view)) else { return Ok(()) };
        let port = start.environment.get("DTRAIN_SSH_PORT").map_or("12350", String::as_str);
        ssh::write(&folder, &ssh::Part { keys, rendezvous, port })
            .map_err(|error| Ended::Failed(format!("{}: {error}", folder.display())))
    }

    fn run_entrypoint(&mut self, mut all: Variables, place: &Path, rendezvous: &Rendezvous) -> Result<(), Ended> {
        if let (2.., Some(own)) = (rendezvous.addresses.len(), rendezvous.addresses.get(rendezvous.rank))
            && !ssh::passes_variables_on(&self.order.start.entrypoint)
            && let Some(name) = interface::of_address(own)
        {
            all.entry(interface::VARIABLE.into()).or_insert_with(|| name.into());
        }
        if let Some(lacking) = ssh::lacking(&self.order.start.entrypoint, &self.view, rendezvous, &all) {
            self.output.say(LogLevel::Warning, &lacking);
        }
        let program = program(&self.order.start.entrypoint, &self.view.programs, |path| place.join(path).is_file());
        if program.launcher {
            let port = self.order.start.environment.get("C10D_PORT").cloned().unwrap_or_else(|| "29400".to_owned());
            let nodes = Nodes {
                addresses: &rendezvous.addresses,
                rank: rendezvous.rank,
                slots: self.order.machine.devices.len(),
                port: &port,
                allocation: &self.order.start.share.allocation,
                job_token: self.order.start.job_token.as_deref(),
                logs: &self.view.tmp.join("instep-logs"),
            };
            for (name, value) in launcher_defaults(&nodes) {
                all.entry(name.into()).or_insert_with(|| value.into());
            }
        }
        // The launcher's own logs are in a folder that goes with the task: people are to look at the master's.
        all.insert(summary::SHOW_LOGS.into(), summary::command_for_logs(&self.order).into());
        let summary = self.view.tmp.join("instep-summary.json");
        all.insert(summary::WRITTEN_TO.into(), summary.clone().into());
        let Some((first, rest)) = program.words.split_first() else {
            self.output.say(LogLevel::Error, "the entrypoint is empty\nhint: name a program in `entrypoint`");
            return Err(Ended::Code(127));
        };
        let Some(path) = find_program(first, &all, place) else {
            let hint = "hint: it is neither in the context directory nor on the PATH of tasks on this agent";
            self.output.say(LogLevel::Error, &format!("the entrypoint's program `{first}` was not found\n{hint}"));
            return Err(Ended::Code(127));
        };
        self.summary = Some(summary.clone());
        let mut command = Command::new(path);
        command.arg0(first).args(rest);
        self.watch =
            Watch::start(&self.order).map_err(|error| Ended::Failed(format!("cannot start a thread: {error}")))?;
        let ran = self.run_program(command, &all, place);
        let code = match (ran, self.watch.take()) {
            (Ok(0), _) => 0,
            (ran, watch) => match watch.and_then(|watch| watch.failure_at_the_end()) {
                Some(why) => return Err(Ended::Failed(why)),
                None => ran?,
            },
        };
        self.explain(code);
        let starved = self.order.cgroup.as_ref().and_then(TaskGroup::out_of_memory);
        if let Some(starved) = &starved {
            let level = if code == 0 { LogLevel::Warning } else { LogLevel::Error };
            self.output.say(level, &format!("{starved}\nhint: {}", starved.hint()));
        }
        if code == 0 {
            return Err(Ended::Code(code));
        }
        let why = Summary::read(&summary)
            .and_then(|summary| summary.failure())
            .map(|why| self.output.masked(why))
            .or_else(|| self.output.exception().map(str::to_owned));
        let why = match (starved, why) {
            (Some(starved), Some(why)) => Some(format!("{starved}; {why}")),
            (Some(starved), None) => Some(starved.to_string()),
            (None, why) => why,
        };
        Err(why.map_or(Ended::Code(code), |why| Ended::Because(code, why)))
    }

    /// Says what to do about ends that have a usual cause.
    fn explain(&mut self, code: i32) {
        self.output.finish();
        let python = self.order.machine.python.display();
        if let Some(module) = self.output.missing_module().filter(|_| code != 0) {
            let hint = format!(
                "hint: the Python of tasks on this agent is {python}, which has no `{module}`; install it there, or \
                 start the agent with another --python"
            );
            self.output.say(LogLevel::Error, &hint);
        } else if code == 127 {
            let hint = "hint: code 127 means that a program was not found: see the lines above, and the PATH of tasks";
            self.output.say(LogLevel::Error, hint);
        }
    }

    /// Runs a program to its end, or to its end by a stop.
    fn run_program(&mut self, mut command: Command, all: &Variables, place: &Path) -> Result<i32, Ended> {
        let failed = |what: &str, error: io::Error| Ended::Failed(format!("{what}: {error}"));
        let (out, error) = self.output.writers().map_err(|error| failed("no pipe", error))?;
        command.env_clear().envs(all).current_dir(place).stdin(Stdio::null()).stdout(out).stderr(error);
        die_with_us(command.process_group(0));
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| failed(&format!("cannot start {name}"), error))?;
        // The only other holder of the writing ends; ours are copies.
        drop(command);
        self.wait_for(child.id().cast_signed())
    }

    fn wait_for(&mut self, child: i32) -> Result<i32, Ended> {
        let mut deadline: Option<Instant> = None;
        loop {
            self.poll(POLL_INTERVAL);
            if let Some(code) = self.ended.remove(&child) {
                return match self.stop.take() {
                    Some(stop) => Err(Ended::Stopped(stop)),
                    None => Ok(code),
                };
            }
            let Some(stop) = &self.stop else { continue };
            let grace = Duration::from_secs(stop.grace_seconds.into());
            let wanted = Instant::now() + grace;
            if deadline.is_none() {
                // A group that is gone is a program that is about to be reaped.
                let _ = killpg(Pid::from_raw(child), Signal::SIGTERM);
                let _ = killpg(Pid::from_raw(child), Signal::SIGCONT);
            }
            // A later word may shorten the time, never lengthen it.
            let end = deadline.map_or(wanted, |known| known.min(wanted));
            deadline = Some(end);
            if Instant::now() >= end {
                let stop = stop.clone();
                tree::end_descendants();
                return Err(Ended::Stopped(stop));
            }
        }
    }

    /// Does something that takes a while, unless a stop comes first.
    fn in_background<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Ended> {
        let (sender, receiver) = mpsc::channel();
        let started = thread::Builder::new().name("instep-task-step".to_owned()).spawn(move || sender.send(work()));
        started.map_err(|error| Ended::Failed(format!("cannot start a thread: {error}")))?;
        loop {
            match receiver.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(Ended::Failed("a step of the task panicked".to_owned())),
                Err(TryRecvError::Empty) => self.poll(POLL_INTERVAL_BUSY),
            }
            if let Some(stop) = self.stop.take() {
                return Err(Ended::Stopped(stop));
            }
        }
    }

    /// Waits for something to happen, and takes notice of it.
    fn poll(&mut self, milliseconds: u8) {
        let readers = self.output.readers();
        let mut waiting = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        waiting.extend(self.orders.as_fd().map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)));
        waiting.extend(readers.into_iter().map(|reader| PollFd::new(reader, PollFlags::POLLIN)));
        // An interruption is as good as a time-out.
        let _ = poll(&mut waiting, PollTimeout::from(milliseconds));
        drop(waiting);
        self.output.take();
        self.read_signals();
        self.reap();
        if let Some(stop) = self.orders.take() {
            self.stop = Some(stop);
        }
        if let Some(why) = self.watch.as_ref().and_then(Watch::failure).filter(|_| self.stop.is_none()) {
            self.stop = Some(StopOrder { grace_seconds: GRACE_SECONDS, why: why.to_owned(), lost: false });
        }
    }

    fn read_signals(&mut self) {
        while let Ok(Some(information)) = self.signals.read_signal() {
            let signal = Signal::try_from(information.ssi_signo.cast_signed());
            if let Ok(signal @ (Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP)) = signal
                && self.stop.is_none()
            {
                let why = format!("the task's supervisor received {signal}");
                self.stop = Some(StopOrder { grace_seconds: GRACE_SECONDS, why, lost: true });
            }
        }
    }

    fn reap(&mut self) {
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(child, code)) => drop(self.ended.insert(child.as_raw(), code)),
                Ok(WaitStatus::Signaled(child, signal, _)) => {
                    self.ended.insert(child.as_raw(), 128 + signal as i32);
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => break,
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Ends what is left, delivers the output, and gives how it ended.
    fn finish(mut self, ended: Ended) -> Ending {
        let stuck = tree::end_descendants();
        self.output.finish();
        if !stuck.is_empty() {
            self.output.say(LogLevel::Error, &format!("these processes do not exit, not even on SIGKILL: {stuck:?}"));
        }
        let goodput = match &self.summary {
            Some(path) => Summary::read(path).and_then(|summary| summary.goodput()),
            None => Some(NodeGoodput::default()),
        };
        let exit = match ended {
            Ended::Stopped(stop) => {
                self.output.say(LogLevel::Info, &format!("stopped: {}", stop.why));
                stop.exit()
            }
            Ended::Failed(why) => {
                self.output.say(LogLevel::Error, &why);
                Exit::Failed { why }
            }
            Ended::Code(code) => Exit::code(code),
            Ended::Because(code, why) => Exit::Code { code, why: Some(why) },
        };
        self.output.close(DELIVERY);
        Ending { exit, goodput }
    }
}

/// Lets a program be killed should we be, whatever else fails.
#[expect(unsafe_code, reason = "code between fork and exec")]
fn die_with_us(command: &mut Command) {
    let parent = std::process::id().cast_signed();
    let before = move || {
        // We block the signals that we wait for, and a program would inherit that: nobody could ask it to end.
        SigSet::empty().thread_set_mask()?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid().as_raw() == parent { Ok(()) } else { Err(io::Error::other("the supervisor has exited")) }
    };
    // SAFETY: only direct system calls happen between fork and exec; the error of the last branch allocates, in a
    // process that is about to end because its parent is gone.
    unsafe { command.pre_exec(before) };
}
