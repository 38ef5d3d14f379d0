//! Runs this node's part of a job from the first rendezvous to the last exit.
//!
//! One loop on the main thread: signals, messages from the coordinator, output and exits of workers come in; the loop
//! starts and stops workers and tells the coordinator. What is decided for the job as a whole is decided there.
//!
//! ```text
//!            start              all ended with 0                complete
//!  Waiting ────────▶ Running ────────────────────▶ Finished ────────────▶ success
//!     ▲                 │ failure · stop · signal      │ stop
//!     │   all ended     ▼                              │
//!     ╰──── rejoin ── Stopping ────── end ─────────────┼────────────────▶ failure
//!     ╰────────────────────────────────────────────────╯
//! ```
//!
//! The parts of the loop own their state: `polling` is where it sleeps, `timers` when it wakes, `leadership` its relation
//! to the coordinator, `local_workers` the processes, `round` what is known of the rounds. `phase` has the states above, and
//! `stopping` is how the workers are ended. In an elastic job the coordinator may be lost: `failover` is what the loop does
//! then. Under `--recover step`, `recovery` replaces single workers while the node stays in Running.
//!
//! Shutdown order: workers, then their output, then the relay of the store, then the server (which flushes what others still have to hear), then
//! the guardian.

mod failover;
mod leadership;
mod local_workers;
pub mod outcome;
mod phase;
mod polling;
mod recovery;
mod round;
mod signals;
mod stopping;
mod timers;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use serde_json::json;

use self::leadership::Leadership;
use self::local_workers::LocalWorkers;
use self::outcome::Outcome;
use self::phase::{AfterStop, Phase, RunEnd};
use self::polling::Poller;
use self::recovery::StepRecovery;
use self::round::Rounds;
use self::signals::Signals;
use self::timers::Timers;
use crate::console::{Console, Note, Status};
use crate::control::{FromCoordinator, Start, ToCoordinator};
use crate::events::{EventLog, EventWriter};
use crate::failure::cause::Cause;
use crate::failure::{Failure, hang};
use crate::goodput;
use crate::output::logs::{LogBase, RunDirectory};
use crate::plan::Plan;
use crate::relay::StoreRelay;
use crate::rendezvous::{self, RendezvousError, Reports};
use crate::workers::environment;
use crate::workers::guardian::Guardian;
use crate::workers::process::FileLimit;

/// How long the coordinator may take to read that this node leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the messages say")]
pub enum LaunchError {
    /// The log directory cannot be used.
    #[error("cannot write logs below {directory}")]
    Logs { directory: PathBuf, source: io::Error },
    /// The file of `--events` cannot be written.
    #[error("cannot write events to {path}")]
    Events { path: PathBuf, source: io::Error },
    /// This node could not join its job.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Something local went wrong.
    #[error("the launcher cannot work here")]
    System(#[from] io::Error),
}

impl LaunchError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            LaunchError::Logs { .. } => {
                "choose a directory you may write to with --log-dir, or --log-dir /dev/null for none"
            }
            LaunchError::Events { .. } => "choose a file for --events in an existing, writable folder",
            LaunchError::Rendezvous(error) => error.hint(),
            LaunchError::System(_) => "run `instep doctor` to check this machine",
        }
    }
}

struct Supervisor<'a> {
    plan: &'a Plan,
    console: &'a mut dyn Console,
    phase: Phase,
    poller: Poller,
    timers: Timers,
    workers: LocalWorkers<'a>,
    rounds: Rounds,
    recovery: StepRecovery,
    leadership: Leadership,
    /// The store for this node's workers, in a job with a token.
    relay: Option<StoreRelay>,
    /// For other threads: where they send notes and events.
    reports: Reports,
    notes: Receiver<Note>,
    began: Instant,
    started: SystemTime,
}

/// Runs the plan to its end. Call it on the main thread, before any other thread exists.
pub fn run(plan: &Plan, console: &mut dyn Console) -> Result<Outcome, LaunchError> {
    let began = Instant::now();
    let guardian = Guardian::start()?;
    let signals = Signals::catch(&plan.signals)?;
    let opened = plan.events.as_ref().map(|path| {
        EventWriter::open(path, began).map_err(|source| LaunchError::Events { path: path.clone(), source })
    });
    let (events, writer) = opened.transpose()?.unzip();
    let events = events.unwrap_or_default();
    let ended = launch(plan, console, guardian, signals, &events, began);
    if let Some(goodput) = ended.as_ref().ok().and_then(|outcome| outcome.goodput.as_ref()) {
        events.note("goodput", goodput::to_json(goodput));
    }
    match &ended {
        Ok(outcome) if outcome.success => {
            let seconds = outcome.duration.as_secs_f64();
            events
                .note("completed", json!({"seconds": seconds, "rounds": outcome.rounds, "restarts": outcome.restarts}));
        }
        Ok(outcome) => events.note("failed", json!({"reason": outcome.reason, "rounds": outcome.rounds})),
        Err(error) => events.note("failed", json!({"reason": error.to_string()})),
    }
    drop(events);
    if let Some(writer) = writer {
        writer.close();
    }
    ended
}

fn launch(
    plan: &Plan,
    console: &mut dyn Console,
    guardian: Guardian,
    signals: Signals,
    events: &EventLog,
    began: Instant,
) -> Result<Outcome, LaunchError> {
    let started = SystemTime::now();
    let file_limit = FileLimit::current()?;
    let directory = create_log_directory(plan)?;
    let poller = Poller::new(signals);
    let (sender, notes) = mpsc::channel();
    let reports = Reports { notes: sender, events: events.clone() };
    let mut pause = |time: Duration| {
        for note in notes.try_iter() {
            console.note(note);
        }
        poller.pause(time)
    };
    let joined = rendezvous::join(plan, &reports, &mut pause).inspect_err(|_| directory.remove_if_empty());
    let joined = match joined {
        Err(RendezvousError::Interrupted) => {
            poller.exit_on_signal()?;
            return Err(RendezvousError::Interrupted.into());
        }
        other => other?,
    };
    // A store that a worker serves is torch's own, which the launcher does not see.
    let relayed = plan.token.as_ref().filter(|_| !plan.worker_serves_store);
    let relay = relayed.map(|token| StoreRelay::start(token.clone(), reports.notes.clone())).transpose()?;
    let mut supervisor = Supervisor {
        plan,
        console,
        phase: Phase::Waiting,
        poller,
        timers: Timers::new(began),
        workers: LocalWorkers::new(plan, guardian, directory, file_limit, began),
        rounds: Rounds::new(began),
        recovery: StepRecovery::default(),
        leadership: Leadership::new(joined),
        relay,
        reports,
        notes,
        began,
        started,
    };
    match supervisor.supervise() {
        Ok(end) => Ok(supervisor.close(end)),
        Err(error) => {
            // The others must not take this for a machine that vanished.
            let leaving = ToCoordinator::Leaving { cause: error.to_string(), failed: true };
            supervisor.leadership.leave(&leaving, LEAVE_TIMEOUT);
            Err(error)
        }
    }
}

fn create_log_directory(plan: &Plan) -> Result<RunDirectory, LaunchError> {
    RunDirectory::create(&plan.logs.base, &plan.job.run_id).map_err(|source| {
        let directory = match &plan.logs.base {
            LogBase::Directory(path) => path.clone(),
            LogBase::Temporary | LogBase::Nowhere => std::env::temp_dir(),
        };
        LaunchError::Logs { directory, source }
    })
}

impl Supervisor<'_> {
    fn supervise(&mut self) -> Result<RunEnd, LaunchError> {
        loop {
            let starts_are_void = self.check_own_absence();
            for message in self.leadership.receive() {
                if starts_are_void && self.starts_workers(&message) {
                    self.leadership.send(&ToCoordinator::Stopped {});
                } else if let Some(end) = self.handle_message(message)? {
                    return Ok(end);
                }
            }
            if let Some(end) = self.check_leadership() {
                return Ok(end);
            }
            if let Some(end) = self.check_workers() {
                return Ok(end);
            }
            if self.wait()? {
                return self.exit_on_signal();
            }
            if let Some(signal) = self.poller.next_signal()?
                && let Some(end) = self.handle_signal(signal)
            {
                return Ok(end);
            }
        }
    }

    /// Sleeps until something happens, and moves output meanwhile; true if a signal wants to end the launcher.
    fn wait(&mut self) -> io::Result<bool> {
        for note in self.notes.try_iter() {
            self.console.note(note);
        }
        for hung in self.workers.hang.hung() {
            self.report_hung(hung);
        }
        for message in self.workers.hang.messages() {
            self.leadership.send(&message);
        }
        let running = self.rounds.last_start.as_ref().filter(|_| matches!(self.phase, Phase::Running));
        let waits = matches!(self.phase, Phase::Waiting);
        self.workers.tick(running.or(self.recovery.standby().filter(|_| waits)), self.console);
        if self.timers.status_is_due(Instant::now()) {
            self.show_status();
        }
        let due = self.timers.next_due(self.workers.wake_at().into_iter().chain([self.leadership.check_by()]));
        let (group, spares) = (self.workers.group(), &self.workers.spares);
        let ready = self.poller.wait(due, &self.leadership, group, spares)?;
        if ready.spares {
            self.workers.spares.mark_readable();
        }
        self.leadership.flush();
        self.workers.show_output(ready.output, self.console);
        Ok(ready.fatal_signal)
    }

    /// A signal that is not to be handled ends the launcher: its workers first, and what they have written is shown.
    fn exit_on_signal(&mut self) -> Result<RunEnd, LaunchError> {
        self.workers.signal(Signal::SIGKILL);
        self.workers.reap(self.console);
        self.workers.remove_empty_logs();
        self.poller.exit_on_signal()?;
        Ok(RunEnd::failure("a signal ended the launcher".to_owned()))
    }

    /// Whether a node that has no workers starts some because of this.
    fn starts_workers(&self, message: &FromCoordinator) -> bool {
        match message {
            FromCoordinator::Start(_) => true,
            FromCoordinator::Replace(replace) => self.is_promoted(replace),
            _ => false,
        }
    }

    fn handle_message(&mut self, message: FromCoordinator) -> Result<Option<RunEnd>, LaunchError> {
        match message {
            FromCoordinator::Welcome {} => {}
            FromCoordinator::Refused { reason } => return Ok(self.apply(AfterStop::End(RunEnd::failure(reason)))),
            FromCoordinator::Waiting { reason } => {
                if self.plan.terms.max_nodes > 1 || matches!(self.phase, Phase::Running) {
                    self.console.note(Note::Progress(reason));
                }
            }
            FromCoordinator::Start(start) => self.start(start)?,
            // Ordered twice, and answered already.
            FromCoordinator::Stop { .. } if matches!(self.phase, Phase::Waiting) => {}
            FromCoordinator::Stop { reason, at_once } => {
                let what = if self.plan.terms.elastic() { "stopping the workers" } else { "restarting" };
                self.console.note(Note::Progress(format!("{what}: {reason}")));
                self.note_stop(&reason);
                let end = self.apply(AfterStop::Rejoin);
                if at_once {
                    self.timers.kill_now(Instant::now());
                }
                return Ok(end);
            }
            FromCoordinator::Ping { .. } | FromCoordinator::NotLeading {} | FromCoordinator::LeaderReply(_) => {}
            FromCoordinator::Epoch(epoch) => self.leadership.committed(epoch),
            FromCoordinator::Dropped { reason } => return Ok(self.handle_dropped(&reason)),
            FromCoordinator::Moved(leader) => return Ok(self.handle_moved(leader)),
            FromCoordinator::StandBy(start) => self.stand_by(*start),
            FromCoordinator::Replace(replace) => {
                self.begin_if_promoted(&replace)?;
                self.replace(*replace);
            }
            FromCoordinator::Kill { rank, incarnation } => self.kill_hung(rank, incarnation),
            FromCoordinator::Diagnose(request) => self.workers.hang.diagnose(request),
            FromCoordinator::Evidence { number, evidence } => self.workers.hang.answered(number, evidence),
            FromCoordinator::Recovered { generation, step, milliseconds } => {
                self.recovered(generation, step, milliseconds);
            }
            FromCoordinator::Fail { reason, failures } => {
                self.rounds.add_remote_failures(failures, &self.plan.address);
                return Ok(self.apply(AfterStop::End(RunEnd::failure(reason))));
            }
            FromCoordinator::Complete {} => return Ok(Some(RunEnd::success())),
        }
        Ok(None)
    }

    fn start(&mut self, start: Start) -> Result<(), LaunchError> {
        self.phase = Phase::Running;
        self.timers.round_started();
        self.recovery.round_started();
        self.leadership.round_started(&start);
        let announcement = self.rounds.start(&start, self.plan.job.workers, &self.reports.events);
        if self.plan.terms.max_nodes > 1 {
            self.console.note(Note::Progress(announcement));
        }
        let failure = self.start_workers(start, self.plan.job.workers)?;
        self.leadership.send(&ToCoordinator::Started {});
        self.rounds.ends.extend(failure);
        self.report_root_cause();
        Ok(())
    }

    fn start_workers(&mut self, mut start: Start, own: usize) -> Result<Option<Failure>, LaunchError> {
        if let (Some(relay), Some(server)) = (&self.relay, self.leadership.server()) {
            relay.set_upstream(server);
            start.relay = Some(relay.address().clone());
        }
        let is_first_round = self.rounds.count == 1;
        self.workers.start(start, own, is_first_round, &self.reports, self.console).map_err(|source| {
            LaunchError::Logs { directory: self.workers.log_directory().map(PathBuf::from).unwrap_or_default(), source }
        })
    }

    /// Looks for workers that have ended, and takes the next step when the last one has.
    fn check_workers(&mut self) -> Option<RunEnd> {
        let ended = self.workers.ended(self.console)?;
        let ended = self.report_losses(ended);
        self.rounds.ends.extend(ended);
        self.report_root_cause();
        match (&self.phase, self.workers.alive()) {
            (Phase::Running, 0) if !self.timers.awaits_root_cause() && !self.recovery.awaits_replacement() => {
                self.workers.reap(self.console);
                self.phase = Phase::Finished;
                let ran = self.rounds.elapsed().as_secs_f64();
                self.reports.events.note("node_finished", json!({"ran_seconds": ran}));
                self.leadership.send(&ToCoordinator::Finished {});
                None
            }
            (Phase::Stopping { .. }, 0) => {
                // What has to happen next may still be on its way from the coordinator: output is shown meanwhile.
                self.workers.reap(self.console);
                self.finish_stop()
            }
            (Phase::Stopping { .. }, _) => self.escalate_stop(),
            (Phase::Waiting | Phase::Running | Phase::Finished, _) => None,
        }
    }

    fn show_status(&mut self) {
        if !self.console.wants_status() {
            return;
        }
        let start = self.rounds.last_start.as_ref();
        let status = Status {
            phase: match self.phase {
                Phase::Waiting => "waiting",
                Phase::Running => "running",
                Phase::Stopping { .. } => "stopping",
                Phase::Finished => "finished",
            },
            round: start.map_or(0, |start| start.round),
            nodes: start.map_or(self.plan.terms.min_nodes, |start| start.group_world_size),
            world_size: start.map_or(0, |start| start.world_size),
            alive: self.workers.alive(),
            workers: self.workers.count(),
            restarts: self.rounds.restarts,
            max_restarts: self.plan.terms.max_restarts,
            replacements: self.recovery.replacements,
            uptime: self.began.elapsed(),
        };
        self.console.status(&status);
    }

    fn close(mut self, end: RunEnd) -> Outcome {
        self.workers.reap(self.console);
        self.workers.end_spares();
        self.leadership.stop_search();
        match (&end.signal, self.plan.terms.elastic()) {
            (Some(signal), true) => {
                let leaving = ToCoordinator::Leaving { cause: format!("received {signal}"), failed: false };
                self.leadership.leave(&leaving, LEAVE_TIMEOUT);
            }
            _ => self.leadership.flush(),
        }
        self.relay = None;
        self.leadership.shutdown_service();
        // What is kept in a task's own folder is gone with it.
        let kept = self.workers.hang.close(end.success || environment::command_for_logs().is_some());
        for note in self.notes.try_iter().chain(kept.map(|folder| Note::Progress(hang::hint(&folder)))) {
            self.console.note(note);
        }
        self.workers.remove_empty_logs();
        let cause = self.rounds.root_cause(true).filter(|_| !end.success);
        let caused_it = |end: &Failure| cause.as_ref().and_then(Cause::rank) == Some(end.rank);
        let (world_size, mut failures) = (self.rounds.world_size(), self.rounds.ends);
        failures.retain(|end| !end.exit.success() || caused_it(end));
        let duration = self.began.elapsed();
        let goodput = self.workers.goodput(duration);
        let (drill, log_directory) = self.workers.close();
        Outcome {
            success: end.success,
            reason: end.reason,
            signal: end.signal,
            failures,
            cause,
            rounds: self.rounds.count,
            restarts: self.rounds.restarts,
            replacements: self.recovery.replacements,
            recoveries: self.recovery.recoveries,
            world_size,
            group_rank: self.rounds.last_start.as_ref().map(|start| start.group_rank),
            started: self.started,
            duration,
            goodput,
            drill,
            log_directory,
        }
    }
}
