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
//! In an elastic job the coordinator may be lost: module `leaderless` looks for the next one, or becomes it.
//!
//! Shutdown order: workers, then their output, then the server (which flushes what others still have to hear), then
//! the guardian.

mod leaderless;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant, SystemTime};

use instep_policy::membership::LauncherId;
use instep_policy::succession::{Lineage, Loss, Place, Pledges};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::json;

use crate::attempt::{Attempt, Source};
use crate::cause::{Cause, Round};
use crate::console::{Console, Note, Status};
use crate::control::{FromCoordinator, Start, ToCoordinator};
use crate::drill::Drill;
use crate::environment;
use crate::events::{EventLog, EventWriter};
use crate::failure::{self, Failure};
use crate::fold::describe_ranks;
use crate::guardian::Guardian;
use crate::hang::{self, HangWatch};
use crate::link::Link;
use crate::logs::{AttemptDirectory, RunDirectory};
use crate::meeting::{self, Identity, MeetingError, Reports, Service};
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::seek::Seek;
use crate::signals::Signals;
use crate::spares::Spares;
use crate::worker::FileLimit;

/// How long a worker that SIGKILL did not end is waited for: it may hang in the kernel.
const ABANDON_AFTER: Duration = Duration::from_secs(30);
/// How long the coordinator may take to hear that this node leaves.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long workers that failed because of another rank are not taken for the cause: that rank's own end may still come.
const CAUSE_PATIENCE: Duration = Duration::from_secs(10);
/// How often the status line is renewed, and the longest the loop sleeps.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The log directory cannot be used.
    #[error("cannot write logs below {directory}")]
    Logs {
        /// Where.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file of `--events` cannot be written.
    #[error("cannot write events to {path}")]
    Events {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The nodes did not meet.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
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
            LaunchError::Meeting(error) => error.hint(),
            LaunchError::System(_) => "run `instep doctor` to check this machine",
        }
    }
}

#[derive(Debug)]
enum Phase {
    Waiting,
    Running,
    Stopping { kill_at: Instant, killed: bool, then: Option<Next> },
    Finished,
}

/// What happens when the workers are gone.
#[derive(Debug, Clone)]
enum Next {
    Rejoin,
    End { success: bool, reason: Option<String>, signal: Option<Signal> },
}

struct Supervisor<'a> {
    plan: &'a Plan,
    console: &'a mut dyn Console,
    signals: Signals,
    guardian: Guardian,
    directory: RunDirectory,
    file_limit: FileLimit,
    link: Link,
    /// Where the coordinator is.
    leader: Place,
    identity: Identity,
    /// The server of this node, where it leads the job or may have to.
    service: Option<Service>,
    /// What to know in case the coordinator is lost.
    lineage: Option<Lineage>,
    /// The search for a coordinator, where there is none.
    seek: Option<Seek>,
    /// How the coordinator of that round was lost.
    loss: Loss,
    /// The coordinator, once this node has had a part in a round of it: what it ordered before is not known here.
    led_by: Option<LauncherId>,
    /// Rounds that were started here and may be committed.
    pledges: Pledges,
    events: EventLog,
    /// For those who have something to say from other threads.
    speaker: Sender<Note>,
    notes: Receiver<Note>,
    hang: HangWatch,
    phase: Phase,
    attempt: Option<Attempt>,
    spares: Spares,
    drill: Option<Drill>,
    /// Workers of this round that have ended, well or not.
    ends: Vec<Failure>,
    /// Workers have failed because of others, and until then the cause is waited for.
    cause_due: Option<Instant>,
    rounds: u64,
    restarts: u32,
    last_start: Option<Start>,
    /// When this node's workers began to end, and what was said of it.
    stopped: Option<(Instant, String)>,
    round_began: Instant,
    began: Instant,
    started: SystemTime,
    status_due: Instant,
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
    let ended = carry_out(plan, console, guardian, signals, &events, began);
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

fn carry_out(
    plan: &Plan,
    console: &mut dyn Console,
    guardian: Guardian,
    signals: Signals,
    events: &EventLog,
    began: Instant,
) -> Result<Outcome, LaunchError> {
    let started = SystemTime::now();
    let file_limit = FileLimit::current()?;
    let directory = RunDirectory::create(&plan.logs.base, &plan.job.run_id).map_err(|source| {
        let directory = match &plan.logs.base {
            crate::logs::LogBase::Directory(path) => path.clone(),
            _ => std::env::temp_dir(),
        };
        LaunchError::Logs { directory, source }
    })?;
    let (sender, notes) = mpsc::channel();
    let mut pause = |wait: Duration| {
        for note in notes.try_iter() {
            console.note(note);
        }
        !matches!(poll(&mut signals.sources(), poll_timeout(wait)), Ok(count) if count > 0)
    };
    let reports = Reports { notes: sender.clone(), events: events.clone() };
    let attendance = meeting::attend(plan, &reports, &mut pause).inspect_err(|_| directory.remove_if_empty());
    let attendance = match attendance {
        Err(MeetingError::Interrupted) => {
            signals.end()?;
            return Err(MeetingError::Interrupted.into());
        }
        other => other?,
    };
    let mut supervisor = Supervisor {
        plan,
        console,
        signals,
        guardian,
        directory,
        file_limit,
        link: attendance.link,
        leader: attendance.leader,
        identity: attendance.identity,
        service: attendance.service,
        lineage: None,
        seek: None,
        loss: Loss::Broken,
        led_by: None,
        pledges: Pledges::default(),
        events: events.clone(),
        speaker: sender,
        notes,
        hang: HangWatch::new(plan),
        phase: Phase::Waiting,
        attempt: None,
        spares: Spares::new(plan),
        drill: plan.drill.as_ref().map(|settings| Drill::new(settings, plan.terms.max_restarts, began)),
        ends: Vec::new(),
        cause_due: None,
        rounds: 0,
        restarts: 0,
        last_start: None,
        stopped: None,
        round_began: began,
        began,
        started,
        status_due: began,
    };
    match supervisor.supervise() {
        Ok(end) => Ok(supervisor.close(end)),
        Err(error) => {
            // The others must not take this for a machine that vanished.
            supervisor.link.farewell(&ToCoordinator::Leaving { cause: error.to_string(), failed: true }, FAREWELL);
            Err(error)
        }
    }
}

impl Supervisor<'_> {
    fn supervise(&mut self) -> Result<Next, LaunchError> {
        loop {
            let starts_are_void = self.notice_own_absence();
            for message in self.link.receive() {
                if starts_are_void && matches!(message, FromCoordinator::Start(_)) {
                    self.link.send(&ToCoordinator::Stopped {});
                } else if let Some(end) = self.heard(message)? {
                    return Ok(end);
                }
            }
            if let Some(end) = self.look_after_the_link() {
                return Ok(end);
            }
            if let Some(end) = self.check_workers() {
                return Ok(end);
            }
            if self.wait()? {
                return self.die();
            }
            if let Some(signal) = self.signals.next()?
                && let Some(end) = self.signalled(signal)
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
        let running = self.last_start.as_ref().filter(|_| matches!(self.phase, Phase::Running));
        self.spares.turn(self.plan, running, &mut self.guardian, self.file_limit, self.console);
        if let (Some(drill), Some(attempt)) = (&mut self.drill, &mut self.attempt) {
            attempt.undergo(drill, matches!(self.phase, Phase::Running), self.console);
        }
        let now = Instant::now();
        if now >= self.status_due {
            self.status_due = now + STATUS_INTERVAL;
            self.show_status();
        }
        let mut due = self.status_due;
        if let Phase::Stopping { kill_at, .. } = self.phase {
            due = due.min(kill_at);
        }
        due = self.cause_due.map_or(due, |patience| due.min(patience));
        let others = [self.spares.wake_at(), self.drill.as_ref().and_then(Drill::wake_at)];
        due = others.into_iter().flatten().fold(due, Instant::min);
        let output = self.attempt.as_ref().map(|attempt| &attempt.output);
        due = output.and_then(|output| output.wake_at()).map_or(due, |wake| due.min(wake));
        due = self.link.look_by().map_or(due, |look| due.min(look));

        let write = if self.link.wants_to_write() { PollFlags::POLLOUT } else { PollFlags::empty() };
        let mut sources = Vec::from(self.signals.sources());
        if !self.link.is_closed() {
            sources.push(PollFd::new(self.link.source(), PollFlags::POLLIN | write));
        }
        if let Some(seek) = &self.seek {
            sources.push(PollFd::new(seek.source(), PollFlags::POLLIN));
        }
        let fixed = sources.len();
        let mut indexes = Vec::new();
        for (index, source) in output.into_iter().flat_map(|output| output.sources()) {
            indexes.push(index);
            sources.push(PollFd::new(source, PollFlags::POLLIN));
        }
        let spares_from = sources.len();
        sources.extend(self.spares.sources());
        match poll(&mut sources, poll_timeout(due.saturating_duration_since(now))) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let readable: Vec<usize> = indexes
            .into_iter()
            .zip(&sources[fixed..spares_from])
            .filter(|(_, source)| source.any().unwrap_or(false))
            .map(|(index, _)| index)
            .collect();
        let ends = sources[1].any().unwrap_or(false);
        let spares_speak = sources[spares_from..].iter().any(|source| source.any().unwrap_or(false));
        drop(sources);
        if spares_speak {
            self.spares.notice();
        }
        self.link.flush();
        if let Some(attempt) = &mut self.attempt {
            for index in readable {
                attempt.output.readable(index, self.console);
            }
            attempt.output.tick(self.console);
        }
        Ok(ends)
    }

    /// A signal that is not to be handled ends the launcher: its workers first, and what they have written is shown.
    fn die(&mut self) -> Result<Next, LaunchError> {
        if let Some(attempt) = &mut self.attempt {
            attempt.signal(Signal::SIGKILL);
        }
        self.end_attempt();
        self.directory.remove_if_empty();
        self.signals.end()?;
        Ok(failed("a signal ended the launcher".to_owned()))
    }

    fn heard(&mut self, message: FromCoordinator) -> Result<Option<Next>, LaunchError> {
        match message {
            FromCoordinator::Welcome {} => {}
            FromCoordinator::Refused { reason } => return Ok(self.order(failed(reason))),
            FromCoordinator::Waiting { reason } => {
                if self.plan.terms.max_nodes > 1 {
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
                let end = self.order(Next::Rejoin);
                if at_once && let Phase::Stopping { kill_at, killed: false, .. } = &mut self.phase {
                    *kill_at = Instant::now();
                }
                return Ok(end);
            }
            FromCoordinator::Ping { .. } | FromCoordinator::NotLeading {} | FromCoordinator::Stand(_) => {}
            FromCoordinator::Lineage(lineage) => {
                if self.pledges.committed(&lineage) {
                    self.identity.last_round = Some(lineage.round);
                    self.led_by = lineage.host;
                }
                if let Some(service) = &self.service {
                    service.post.know(lineage.round);
                }
                self.lineage = Some(lineage);
            }
            FromCoordinator::Dropped { reason } => return Ok(self.dropped(&reason)),
            FromCoordinator::Moved(place) => return Ok(self.moved(place)),
            FromCoordinator::Fail { reason, failures } => {
                let (host, known) = (&self.plan.address, &self.ends);
                let elsewhere = |failure: &Failure| {
                    !known
                        .iter()
                        .any(|ours| ours.pid == failure.pid && ours.rank == failure.rank && failure.host == *host)
                };
                let news: Vec<Failure> = failures.into_iter().filter(elsewhere).collect();
                self.ends.splice(0..0, news);
                return Ok(self.order(failed(reason)));
            }
            FromCoordinator::Complete {} => return Ok(Some(Next::End { success: true, reason: None, signal: None })),
        }
        Ok(None)
    }

    fn start(&mut self, start: Start) -> Result<(), LaunchError> {
        self.rounds += 1;
        self.restarts = start.restarts;
        self.ends.clear();
        self.cause_due = None;
        self.phase = Phase::Running;
        self.round_began = Instant::now();
        if let Some(lineage) = &start.lineage {
            self.led_by = lineage.host;
            self.pledges.started(lineage.clone());
        }
        let before = self.last_start.replace(start.clone());
        let stopped = self.stopped.take();
        self.tell_of_start(&start, before.as_ref(), stopped);
        let unwritable = |source: io::Error| LaunchError::Logs {
            directory: self.directory.path().map(PathBuf::from).unwrap_or_default(),
            source,
        };
        let logs = match self.directory.attempt(start.restarts, self.plan.job.workers) {
            Ok(logs) => logs,
            // At the start the user can still choose another place; a job that runs must not end for its logs.
            Err(cause) if self.rounds == 1 => return Err(unwritable(cause)),
            Err(cause) => {
                self.console.note(Note::Warning(format!("no logs from now on: {cause}")));
                AttemptDirectory::nowhere()
            }
        };
        self.hang.clear();
        let (spares, guardian, file_limit) = (&mut self.spares, &mut self.guardian, self.file_limit);
        let mut source = Source { spares, guardian, file_limit };
        let begun = Attempt::begin(self.plan, start, &logs, &mut source, self.console);
        let (attempt, failure) = begun.map_err(unwritable)?;
        if let Some(drill) = &mut self.drill {
            drill.started(Instant::now());
        }
        self.hang.started(self.plan, attempt.processes(), &self.speaker, &self.events);
        self.attempt = Some(attempt);
        self.link.send(&ToCoordinator::Started {});
        self.ends.extend(failure);
        self.look_for_the_cause();
        Ok(())
    }

    /// One line that says where this node stands in the round, and what it cost to get there.
    fn tell_of_start(&mut self, start: &Start, before: Option<&Start>, stopped: Option<(Instant, String)>) {
        let workers = self.plan.job.workers;
        let ranks = |first: usize| describe_ranks(&(first..first + workers).collect::<Vec<_>>());
        let cost = stopped.as_ref().map(|(since, _)| since.elapsed().as_secs_f64());
        self.events.note(
            "round_started",
            json!({
                "round": start.round,
                "restarts": start.restarts,
                "changes": start.changes,
                "reason": start.reason,
                "nodes": start.group_world_size,
                "world_size": start.world_size,
                "group_rank": start.group_rank,
                "first_rank": start.first_rank,
                "workers": workers,
                "seconds_without_workers": cost,
            }),
        );
        if self.plan.terms.max_nodes == 1 {
            return;
        }
        let mut text = format!(
            "round {}: {} nodes, {} workers; this is node {} with {}",
            start.round,
            start.group_world_size,
            start.world_size,
            start.group_rank,
            ranks(start.first_rank)
        );
        if let Some(before) = before.filter(|before| before.first_rank != start.first_rank) {
            text.push_str(&format!(" ({} before)", ranks(before.first_rank)));
        }
        if let Some(reason) =
            start.reason.as_ref().filter(|reason| stopped.as_ref().is_none_or(|(_, told)| told != *reason))
        {
            text.push_str(&format!("; {reason}"));
        }
        if let Some(cost) = cost {
            text.push_str(&format!("; {cost:.1} s without workers"));
        }
        self.console.note(Note::Progress(text));
    }

    /// The workers are about to end, for this reason.
    fn note_stop(&mut self, reason: &str) {
        if self.attempt.is_some() && self.stopped.is_none() {
            let ran = self.round_began.elapsed().as_secs_f64();
            let round = self.last_start.as_ref().map(|start| start.round);
            self.events.note("round_stopped", json!({"round": round, "reason": reason, "ran_seconds": ran}));
        }
        let since = self.stopped.take().map_or_else(Instant::now, |(since, _)| since);
        self.stopped = Some((since, reason.to_owned()));
    }

    /// Looks for workers that have ended, and takes the next step when the last one has.
    fn check_workers(&mut self) -> Option<Next> {
        let attempt = self.attempt.as_mut()?;
        self.ends.extend(attempt.ended(self.console));
        self.look_for_the_cause();
        let alive = self.attempt.as_ref().map_or(0, Attempt::alive);
        let now = Instant::now();
        match &mut self.phase {
            Phase::Running if alive == 0 && self.cause_due.is_none() => {
                self.end_attempt();
                self.phase = Phase::Finished;
                self.events.note("node_finished", json!({"ran_seconds": self.round_began.elapsed().as_secs_f64()}));
                self.link.send(&ToCoordinator::Finished {});
            }
            Phase::Stopping { kill_at, killed, .. } if alive > 0 && now >= *kill_at => {
                let attempt = self.attempt.as_mut()?;
                let pids: Vec<i32> = attempt.alive_pids().into_iter().map(Pid::as_raw).collect();
                if *killed {
                    self.console.note(Note::Warning(format!(
                        "processes {pids:?} did not exit even after SIGKILL and are left behind; they may be stuck in a driver"
                    )));
                    self.end_attempt();
                    return self.settle();
                }
                (*kill_at, *killed) = (now + ABANDON_AFTER, true);
                self.console
                    .note(Note::Warning(format!("{} workers ignore the signal to stop: killing them", pids.len())));
                attempt.signal(Signal::SIGKILL);
            }
            Phase::Stopping { .. } if alive == 0 => {
                // What has to happen next may still be on its way from the coordinator: output is shown meanwhile.
                self.end_attempt();
                return self.settle();
            }
            _ => {}
        }
        None
    }

    fn end_attempt(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.end(&mut self.guardian, self.console);
        }
    }

    /// All workers are gone: do what was decided, if it is known yet.
    fn settle(&mut self) -> Option<Next> {
        let Phase::Stopping { then, .. } = &self.phase else { return None };
        match then.clone()? {
            Next::Rejoin => {
                self.phase = Phase::Waiting;
                self.link.send(&ToCoordinator::Stopped {});
                None
            }
            end => Some(end),
        }
    }

    /// Where workers have failed, their peers here are stopped, and the coordinator decides what follows: at once if
    /// one failed by itself, else when the rank is known because of which they did, or [`CAUSE_PATIENCE`] later. Until then
    /// the coordinator may tell of a failure on another node.
    fn look_for_the_cause(&mut self) {
        let failed = |end: &&Failure| !end.exit.success();
        let (Phase::Running, Some(seen)) = (&self.phase, self.ends.iter().find(failed)) else { return };
        let now = Instant::now();
        let due = *self.cause_due.get_or_insert(now + CAUSE_PATIENCE);
        let world_size = self.last_start.as_ref().map_or(0, |start| start.world_size);
        let Some(cause) = failure::root_cause(&self.ends, Round { world_size, last_word: now >= due }) else { return };
        self.cause_due = None;
        let known = cause.rank().and_then(|rank| self.ends.iter().find(|end| end.rank == rank));
        let mut first = known.unwrap_or(seen).clone();
        let sentence = failure::explain(&cause, &self.ends);
        let (rank, exit) = (cause.rank(), known.map(|end| end.exit.0));
        self.hang.failed(rank.unwrap_or(first.rank));
        self.events.note("worker_failed", json!({"rank": rank, "exit": exit, "cause": sentence}));
        self.note_stop(&sentence);
        self.stop(Signal::SIGTERM, self.plan.grace_period, None);
        first.sentence = (!matches!(cause, Cause::Failed { .. })).then_some(sentence);
        self.link.send(&ToCoordinator::Failed(Box::new(first)));
    }

    /// Tells all workers to end.
    fn stop(&mut self, signal: Signal, patience: Duration, then: Option<Next>) {
        self.cause_due = None;
        if let Some(attempt) = &mut self.attempt {
            attempt.signal(signal);
        }
        self.phase = Phase::Stopping { kill_at: Instant::now() + patience, killed: false, then };
    }

    /// Carries out what the coordinator decided.
    fn order(&mut self, next: Next) -> Option<Next> {
        match &mut self.phase {
            Phase::Stopping { then, .. } => {
                // A signal to this launcher has the last word.
                if !matches!(then, Some(Next::End { signal: Some(_), .. })) {
                    *then = Some(next);
                }
            }
            Phase::Running => self.stop(Signal::SIGTERM, self.plan.grace_period, Some(next)),
            Phase::Waiting | Phase::Finished => {
                self.phase = Phase::Stopping { kill_at: Instant::now(), killed: false, then: Some(next) };
            }
        }
        if self.attempt.is_none() { self.settle() } else { None }
    }

    fn signalled(&mut self, signal: Signal) -> Option<Next> {
        if let Phase::Stopping { kill_at, then: Some(Next::End { signal: Some(_), .. }), .. } = &mut self.phase {
            self.console.note(Note::Warning(format!("{signal} again: killing the workers")));
            *kill_at = Instant::now();
            return None;
        }
        let reason = format!("received {signal}");
        self.console.note(Note::Progress(format!("{reason}: forwarding it to the workers")));
        self.note_stop(&reason);
        self.link.send(&if self.plan.terms.elastic() {
            ToCoordinator::Draining { cause: reason.clone() }
        } else {
            ToCoordinator::Leaving { cause: reason.clone(), failed: false }
        });
        let end = Next::End { success: false, reason: Some(reason), signal: Some(signal) };
        self.stop(signal, self.plan.shutdown_timeout, Some(end));
        if self.attempt.is_none() { self.settle() } else { None }
    }

    fn show_status(&mut self) {
        if !self.console.wants_status() {
            return;
        }
        let start = self.last_start.as_ref();
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
            alive: self.attempt.as_ref().map_or(0, Attempt::alive),
            workers: self.plan.job.workers,
            restarts: self.restarts,
            max_restarts: self.plan.terms.max_restarts,
            uptime: self.began.elapsed(),
        };
        self.console.status(&status);
    }

    fn close(mut self, end: Next) -> Outcome {
        self.end_attempt();
        self.spares.end(&mut self.guardian);
        self.seek = None;
        let (success, reason, signal) = match end {
            Next::End { success, reason, signal } => (success, reason, signal),
            Next::Rejoin => unreachable!("only an end leaves the loop"),
        };
        match (&signal, self.plan.terms.elastic()) {
            (Some(signal), true) => {
                let leaving = ToCoordinator::Leaving { cause: format!("received {signal}"), failed: false };
                self.link.farewell(&leaving, FAREWELL);
            }
            _ => self.link.flush(),
        }
        if let Some(service) = self.service.take() {
            service.shutdown();
        }
        // What is kept in a task's own folder is gone with it.
        let kept = self.hang.close(success || environment::command_for_logs().is_some());
        for note in self.notes.try_iter().chain(kept.map(|folder| Note::Progress(hang::hint(&folder)))) {
            self.console.note(note);
        }
        self.directory.remove_if_empty();
        let world_size = self.last_start.as_ref().map_or(0, |start| start.world_size);
        let cause = failure::root_cause(&self.ends, Round { world_size, last_word: true }).filter(|_| !success);
        let caused_it = |end: &Failure| cause.as_ref().and_then(Cause::rank) == Some(end.rank);
        let mut failures = self.ends;
        failures.retain(|end| !end.exit.success() || caused_it(end));
        Outcome {
            success,
            reason,
            signal,
            failures,
            cause,
            rounds: self.rounds,
            restarts: self.restarts,
            world_size,
            group_rank: self.last_start.as_ref().map(|start| start.group_rank),
            started: self.started,
            duration: self.began.elapsed(),
            drill: self.drill.map(|drill| drill.report(Instant::now())),
            log_directory: self.directory.path().filter(|path| path.exists()).map(PathBuf::from),
        }
    }
}

fn failed(reason: String) -> Next {
    Next::End { success: false, reason: Some(reason), signal: None }
}

fn poll_timeout(wait: Duration) -> PollTimeout {
    // Rounded up: waking before the deadline would only mean to sleep again.
    let millis = wait.as_micros().div_ceil(1000).min(60_000);
    PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
}
