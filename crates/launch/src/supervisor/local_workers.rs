//! This node's workers and everything that lives beside them: logs, guardian, spares, the drill, the hang watch.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use instep_recorder::clock;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::console::{Console, Note};
use crate::control::{MovedRank, Start};
use crate::drill::{self, Drill, orders};
use crate::failure::Failure;
use crate::failure::hang::HangWatch;
use crate::goodput::{Book, Goodput, account_of};
use crate::output::logs::{AttemptDirectory, RunDirectory};
use crate::plan::Plan;
use crate::rendezvous::Reports;
use crate::spares::Spares;
use crate::workers::environment::Incarnation;
use crate::workers::group::{Replaced, WorkerGroup, WorkerSource};
use crate::workers::guardian::Guardian;
use crate::workers::process::FileLimit;

/// See the module documentation.
pub(super) struct LocalWorkers<'a> {
    plan: &'a Plan,
    guardian: Guardian,
    directory: RunDirectory,
    file_limit: FileLimit,
    /// The workers of the round, until the last of them has ended.
    group: Option<WorkerGroup>,
    pub(super) spares: Spares,
    pub(super) drill: Option<Drill>,
    /// How many steps the ranks of the last round did twice.
    replayed: u64,
    pub(super) hang: HangWatch,
    /// What became of the ranks' time.
    book: Book,
}

impl<'a> LocalWorkers<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        guardian: Guardian,
        directory: RunDirectory,
        file_limit: FileLimit,
        began: Instant,
    ) -> LocalWorkers<'a> {
        LocalWorkers {
            plan,
            guardian,
            directory,
            file_limit,
            group: None,
            spares: Spares::new(plan),
            drill: plan.drill.as_ref().map(|settings| {
                let restarts = (!plan.terms.step_recovery).then_some(plan.terms.max_restarts);
                Drill::new(settings, restarts, began)
            }),
            replayed: 0,
            hang: HangWatch::new(plan),
            book: Book::new(clock::monotonic().saturating_sub(nanoseconds(began.elapsed()))),
        }
    }

    /// Starts this node's own workers of a round; the failure is that of one that could not be started.
    pub(super) fn start(
        &mut self,
        start: Start,
        own: usize,
        is_first_round: bool,
        reports: &Reports,
        console: &mut dyn Console,
    ) -> io::Result<Option<Failure>> {
        let logs = match self.directory.attempt(start.restarts, own) {
            Ok(logs) => logs,
            // At the start the user can still choose another place; a job that runs must not end for its logs.
            Err(cause) if is_first_round => return Err(cause),
            Err(cause) => {
                console.note(Note::Warning(format!("no logs from now on: {cause}")));
                AttemptDirectory::nowhere()
            }
        };
        self.hang.clear();
        let (spares, guardian, file_limit) = (&mut self.spares, &mut self.guardian, self.file_limit);
        let mut source = WorkerSource { spares, guardian, file_limit };
        let now = clock::monotonic();
        let (group, failure) = WorkerGroup::start(self.plan, start, own, logs, &mut source, console)?;
        for (rank, _) in group.processes() {
            self.book.started(rank - group.start.first_rank, rank, group.start.round, now);
        }
        if let Some(drill) = &mut self.drill {
            drill.started(Instant::now());
        }
        self.hang.started(self.plan, group.processes(), &reports.notes, &reports.events);
        self.group = Some(group);
        Ok(failure)
    }

    /// Starts the next process of a rank: of one that has ended here, or of one that has `moved` here. The failure is that
    /// of a process that could not be started; nothing if the rank is not this node's.
    pub(super) fn replace(
        &mut self,
        rank: usize,
        moved: Option<MovedRank>,
        incarnation: Incarnation,
        reports: &Reports,
        console: &mut dyn Console,
    ) -> Option<Result<Replaced, Box<Failure>>> {
        let local_rank = self.group.as_ref()?.local_rank(rank);
        if local_rank.is_some() {
            self.close_accounts(local_rank, &self.processes());
        }
        let group = self.group.as_mut()?;
        let (spares, guardian, file_limit) = (&mut self.spares, &mut self.guardian, self.file_limit);
        let mut source = WorkerSource { spares, guardian, file_limit };
        let now = clock::monotonic();
        let replaced = match (moved, local_rank) {
            (Some(moved), None) => group.take_over(self.plan, moved, incarnation, &mut source, console),
            (_, Some(local_rank)) => group.replace(self.plan, local_rank, incarnation, &mut source, console),
            (None, None) => return None,
        };
        if let (Ok(worker), Some(local_rank)) = (&replaced, group.local_rank(rank)) {
            self.book.replaced(local_rank, rank, group.start.round, now);
            self.hang.forget(rank, worker.pid);
            self.hang.started(self.plan, group.processes(), &reports.notes, &reports.events);
        }
        Some(replaced)
    }

    /// Whether a rank runs on this node.
    pub(super) fn has_rank(&self, rank: usize) -> bool {
        self.group.as_ref().is_some_and(|group| group.local_rank(rank).is_some())
    }

    /// Which of its rank's processes a worker is.
    pub(super) fn incarnation(&self, local_rank: usize) -> u32 {
        self.group.as_ref().map_or(0, |group| group.incarnation(local_rank))
    }

    /// Which of its rank's processes this one is, if it is a worker of the round and alive.
    pub(super) fn alive_incarnation(&self, process: u32) -> Option<u32> {
        self.group.as_ref()?.alive_incarnation(process)
    }

    /// Kills one worker, with its children.
    pub(super) fn kill(&mut self, process: u32) {
        if let Some(group) = &self.group {
            group.kill(process);
        }
    }

    /// Whether workers are alive, or have ended and are not reaped yet.
    pub(super) fn any(&self) -> bool {
        self.group.is_some()
    }

    /// How many workers this node has, with those of lost nodes.
    pub(super) fn count(&self) -> usize {
        let started = self.group.as_ref().map_or(0, |group| group.processes().len());
        started.max(self.plan.job.workers)
    }

    pub(super) fn alive(&self) -> usize {
        self.group.as_ref().map_or(0, WorkerGroup::alive)
    }

    pub(super) fn alive_pids(&self) -> Vec<i32> {
        self.group.iter().flat_map(WorkerGroup::alive_pids).map(Pid::as_raw).collect()
    }

    /// The workers that have ended since the last call, well or not; `None` if there are none at all.
    pub(super) fn ended(&mut self, console: &mut dyn Console) -> Option<Vec<Failure>> {
        let ended = self.group.as_mut()?.ended(console);
        let now = clock::monotonic();
        for end in &ended {
            let account = self.hang.folder().and_then(|folder| account_of(folder, end.rank, Some(end.pid)));
            self.book.end(end.local_rank, !end.exit.success(), now, account);
        }
        Some(ended)
    }

    /// Every worker's rank and process.
    fn processes(&self) -> Vec<(usize, i32)> {
        self.group.as_ref().map(WorkerGroup::processes).unwrap_or_default()
    }

    /// Takes the accounts of processes that were not seen to end, of one rank or of all.
    fn close_accounts(&mut self, only: Option<usize>, processes: &[(usize, i32)]) {
        for (local_rank, rank) in self.book.running() {
            if only.is_none_or(|only| only == local_rank) {
                let process = processes.iter().find(|(of, _)| *of == rank).map(|(_, process)| *process);
                let account = self.hang.folder().and_then(|folder| account_of(folder, rank, process));
                self.book.end(local_rank, true, clock::monotonic(), account);
            }
        }
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        if let Some(group) = &mut self.group {
            group.signal(signal);
        }
    }

    /// Ends what is left of the workers, and shows the rest of their output.
    pub(super) fn reap(&mut self, console: &mut dyn Console) {
        let processes = self.processes();
        if let Some(group) = self.group.take() {
            if let (Some(_), Some(folder)) = (&self.drill, self.hang.folder()) {
                self.replayed = orders::replayed(folder, group.processes().into_iter().map(|(rank, _)| rank));
            }
            group.end(&mut self.guardian, console);
            self.close_accounts(None, &processes);
        }
    }

    /// Does what is due for spares and the drill; `running` is the round whose workers run, if they do.
    pub(super) fn tick(&mut self, running: Option<&Start>, console: &mut dyn Console) {
        self.spares.poll(self.plan, running, &mut self.guardian, self.file_limit, console);
        if let (Some(drill), Some(group)) = (&mut self.drill, &mut self.group) {
            let in_session = |folder: &Path, (rank, process)| {
                account_of(folder, rank, Some(process)).is_some_and(|account| account.steps.is_some())
            };
            if drill.awaits_sessions()
                && let Some(folder) = self.hang.folder()
                && group.processes().into_iter().all(|process| in_session(folder, process))
            {
                drill.sessions_began();
            }
            group.run_drill(drill, running.is_some(), self.hang.folder(), console);
        }
    }

    pub(super) fn group(&self) -> Option<&WorkerGroup> {
        self.group.as_ref()
    }

    /// Takes what these streams offer, and shows what has been held back long enough.
    pub(super) fn show_output(&mut self, readable: Vec<usize>, console: &mut dyn Console) {
        if let Some(group) = &mut self.group {
            for index in readable {
                group.output.readable(index, console);
            }
            group.output.tick(console);
        }
    }

    /// When the next deadlines of spares, drill and output are.
    pub(super) fn wake_at(&self) -> [Option<Instant>; 3] {
        let drill = self.drill.as_ref().and_then(Drill::wake_at);
        [self.spares.wake_at(), drill, self.group().and_then(|group| group.output.wake_at())]
    }

    pub(super) fn end_spares(&mut self) {
        self.spares.end(&mut self.guardian);
    }

    pub(super) fn log_directory(&self) -> Option<&Path> {
        self.directory.path()
    }

    pub(super) fn remove_empty_logs(&self) {
        self.directory.remove_if_empty();
    }

    /// What became of the ranks' time, so long after the launcher started.
    pub(super) fn goodput(&self, duration: Duration) -> Option<Goodput> {
        self.book.goodput(nanoseconds(duration))
    }

    /// What is left for the report: the drill's findings, and where the logs are.
    pub(super) fn close(self) -> (Option<drill::Report>, Option<PathBuf>) {
        let logs = self.directory.path().filter(|path| path.exists()).map(PathBuf::from);
        (self.drill.map(|drill| drill.report(self.replayed, Instant::now())), logs)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
