//! This node's workers of one round, started together and ended together: torchelastic's worker group.
//!
//! Under `--recover step` ranks of lost nodes may come later. Here they have the local ranks after this node's own; what their
//! scripts are told is what they were told on their first node.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::console::{Console, Note};
use crate::control::{MovedRank, Start};
use crate::drill::{Drill, Strike, orders};
use crate::failure::{self, ExitStatus, Failure};
use crate::output::Output;
use crate::output::fold::describe_ranks;
use crate::output::logs::{self, AttemptDirectory, WorkerFiles};
use crate::plan::{Plan, SpareKind};
use crate::spares::Spares;
use crate::workers::environment::{Incarnation, recovery_variables};
use crate::workers::exit_watch::ExitWatch;
use crate::workers::guardian::Guardian;
use crate::workers::process::{FileLimit, Worker};
use crate::workers::spawn::{moved_worker_spawn, worker_spawn};

/// The shell's exit codes for a command that is not there, or cannot be run.
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_EXECUTABLE: i32 = 126;
/// How many last lines a report shows.
const SHOWN_LINES: usize = 20;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct WorkerGroup {
    pub(crate) start: Start,
    pub(crate) output: Output,
    /// By local rank on this node; those after this node's `own` have moved here.
    workers: Vec<Worker>,
    own: usize,
    files: Vec<WorkerFiles>,
    moved: Vec<MovedRank>,
    /// Those that others have replaced and of which the kernel has not freed everything yet.
    replaced: Vec<Worker>,
    logs: AttemptDirectory,
    host: String,
    /// What the launcher has told the workers to end with, and when, in seconds since 1970.
    sent: Option<(Signal, f64)>,
}

/// Where workers come from.
#[derive(Debug)]
pub(crate) struct WorkerSource<'a> {
    /// Those that have imported ahead are used first.
    pub(crate) spares: &'a mut Spares,
    pub(crate) guardian: &'a mut Guardian,
    pub(crate) file_limit: FileLimit,
}

/// The process that has taken over a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Replaced {
    pub(crate) pid: i32,
    /// It was a spare, and whether one that had run the script up to its loop.
    pub(crate) warm: bool,
    pub(crate) hot: bool,
}

impl WorkerGroup {
    /// Starts this node's own workers. A worker that cannot be started is a failure like any other; those before it run.
    pub(crate) fn start(
        plan: &Plan,
        start: Start,
        own: usize,
        logs: AttemptDirectory,
        source: &mut WorkerSource<'_>,
        console: &dyn Console,
    ) -> std::io::Result<(WorkerGroup, Option<Failure>)> {
        let mut group = WorkerGroup {
            output: Output::new(&plan.logs, &logs, own)?,
            workers: Vec::with_capacity(own),
            own,
            files: Vec::with_capacity(own),
            moved: Vec::new(),
            replaced: Vec::new(),
            logs,
            host: plan.address.clone(),
            sent: None,
            start,
        };
        if plan.drill.is_some() {
            group.output.follow_progress();
        }
        for local_rank in 0..own {
            let rank = group.start.first_rank + local_rank;
            group.add_files(plan, rank, local_rank);
            match group.start_worker(plan, local_rank, Incarnation::default(), source, console) {
                Ok(worker) => group.workers.push(worker),
                Err(failure) => return Ok((group, Some(*failure))),
            }
        }
        Ok((group, None))
    }

    fn add_files(&mut self, plan: &Plan, rank: usize, local_rank: usize) {
        let (template, host) = (plan.logs.prefix_template.as_deref(), crate::rendezvous::endpoint::host_name());
        let prefix = logs::line_prefix(template, &plan.job.role, local_rank, rank, &host);
        self.files.push(self.logs.worker(&plan.logs, local_rank, &prefix));
    }

    /// Starts a rank of a lost node beside the workers of this one.
    pub(crate) fn take_over(
        &mut self,
        plan: &Plan,
        moved: MovedRank,
        incarnation: Incarnation,
        source: &mut WorkerSource<'_>,
        console: &dyn Console,
    ) -> Result<Replaced, Box<Failure>> {
        let (rank, local_rank) = (moved.rank, self.workers.len());
        self.moved.push(moved);
        self.add_files(plan, rank, local_rank);
        let added = self.logs.add_worker(local_rank).map_err(|cause| {
            let message = Some(format!("cannot create a folder for its logs: {cause}"));
            Box::new(self.describe(rank, local_rank, 0, ExitStatus(1), message))
        });
        self.output.add_worker();
        let worker = added.and_then(|()| self.start_worker(plan, local_rank, incarnation, source, console))?;
        let replaced = Replaced { pid: worker.pid.as_raw(), warm: worker.warm, hot: worker.hot };
        self.workers.push(worker);
        Ok(replaced)
    }

    /// The local rank here of a rank of the job.
    pub(crate) fn local_rank(&self, rank: usize) -> Option<usize> {
        self.workers.iter().position(|worker| worker.rank == rank)
    }

    /// The rank that moved here to become this local rank.
    fn moved(&self, local_rank: usize) -> Option<&MovedRank> {
        self.moved.get(local_rank.checked_sub(self.own)?)
    }

    /// Puts another worker in the place of one while the others run: same rank, next incarnation. What is left of the
    /// old one is killed first; its output is shown, its log goes on, and its error file stays beside the new one's.
    pub(crate) fn replace(
        &mut self,
        plan: &Plan,
        local_rank: usize,
        incarnation: Incarnation,
        source: &mut WorkerSource<'_>,
        console: &mut dyn Console,
    ) -> Result<Replaced, Box<Failure>> {
        let old = &mut self.workers[local_rank];
        old.signal(Signal::SIGKILL);
        old.await_death();
        self.output.detach(local_rank, console);
        if let Some(error_file) = &mut self.files[local_rank].error_file {
            error_file.set_file_name(format!("error.{}.json", incarnation.number));
        }
        let worker = self.start_worker(plan, local_rank, incarnation, source, console)?;
        let replaced = Replaced { pid: worker.pid.as_raw(), warm: worker.warm, hot: worker.hot };
        let old = std::mem::replace(&mut self.workers[local_rank], worker);
        source.guardian.ended(old.pid);
        self.replaced.push(old);
        Ok(replaced)
    }

    fn start_worker(
        &mut self,
        plan: &Plan,
        local_rank: usize,
        incarnation: Incarnation,
        source: &mut WorkerSource<'_>,
        console: &dyn Console,
    ) -> Result<Worker, Box<Failure>> {
        let rank = self.moved(local_rank).map_or(self.start.first_rank + local_rank, |moved| moved.rank);
        self.try_start(plan, rank, local_rank, incarnation, source, console)
            .map(|worker| {
                // Where all restart, what a worker had must be free before another one wants it.
                let watch = plan.terms.step_recovery.then(|| Box::new(ExitWatch::new(worker.pid)));
                Worker { incarnation: incarnation.number, watch, ..worker }
            })
            .map_err(|(exit, message)| Box::new(self.describe(rank, local_rank, 0, ExitStatus(exit), Some(message))))
    }

    fn try_start(
        &mut self,
        plan: &Plan,
        rank: usize,
        local_rank: usize,
        incarnation: Incarnation,
        source: &mut WorkerSource<'_>,
        console: &dyn Console,
    ) -> Result<Worker, (i32, String)> {
        let other = |cause: &dyn std::fmt::Display| (1, cause.to_string());
        let files = &self.files[local_rank];
        // What replaces a worker of this node goes on with its log.
        let fresh = self.workers.get(local_rank).is_none();
        let streams = self.output.attach(rank, local_rank, files, fresh, console).map_err(|cause| other(&cause))?;
        let error_file = files.error_file.as_deref();
        let (start, guardian, file_limit) = (&self.start, &*source.guardian, source.file_limit);
        let spawn = match self.moved(local_rank) {
            None => worker_spawn(plan, start, local_rank, error_file, guardian, file_limit, streams),
            Some(moved) => moved_worker_spawn(plan, start, moved, error_file, guardian, file_limit, streams),
        };
        let mut spawn = spawn.map_err(|cause| other(&cause))?;
        let inherited = |name: &str| std::env::var_os(name);
        spawn.variables.extend(recovery_variables(&plan.terms, self.start.group_rank, incarnation, inherited));
        // Hot spares are for the round whose script they have run.
        let fits = !fresh || plan.spares != SpareKind::Hot;
        if fits && let Some(worker) = source.spares.take(plan, rank, local_rank, &spawn, source.guardian) {
            return Ok(worker);
        }
        let program = spawn.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        Worker::start(rank, local_rank, spawn).map_err(|cause| {
            let exit = match cause.kind() {
                std::io::ErrorKind::NotFound => EXIT_NOT_FOUND,
                std::io::ErrorKind::PermissionDenied => EXIT_NOT_EXECUTABLE,
                _ => 1,
            };
            let why = match cause.kind() {
                std::io::ErrorKind::NotFound if !program.contains('/') => "there is no such program on PATH".to_owned(),
                std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
                _ => cause.to_string(),
            };
            (exit, format!("cannot start {program}: {why}"))
        })
    }

    /// The workers that have ended since the last call, well or not.
    pub(crate) fn ended(&mut self, console: &mut dyn Console) -> Vec<Failure> {
        self.replaced.extract_if(.., |old| old.is_gone()).for_each(Worker::release);
        let mut ends = Vec::new();
        for index in 0..self.workers.len() {
            if !self.workers[index].has_ended() {
                continue;
            }
            let (rank, local_rank) = (self.workers[index].rank, self.workers[index].local_rank);
            self.output.drain(local_rank, console);
            if let Some(exit) = self.workers[index].exit {
                let pid = self.workers[index].pid.as_raw();
                ends.push(self.describe(rank, local_rank, pid, exit, None));
            }
        }
        ends
    }

    /// What becomes readable when a worker may have ended.
    pub(crate) fn exit_sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let alive = self.workers.iter().filter(|worker| worker.exit.is_none());
        alive.filter_map(|worker| worker.watch.as_ref()).flat_map(|watch| watch.sources())
    }

    /// Which of its rank's processes a worker is.
    pub(crate) fn incarnation(&self, local_rank: usize) -> u32 {
        self.workers.get(local_rank).map_or(0, |worker| worker.incarnation)
    }

    /// Which of its rank's processes this one is, if it is alive.
    pub(crate) fn alive_incarnation(&self, process: u32) -> Option<u32> {
        self.alive_worker(process).map(|worker| worker.incarnation)
    }

    /// Kills one worker while the others run.
    pub(crate) fn kill(&self, process: u32) {
        self.alive_worker(process).into_iter().for_each(|worker| worker.signal(Signal::SIGKILL));
    }

    fn alive_worker(&self, process: u32) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.exit.is_none() && u32::try_from(worker.pid.as_raw()) == Ok(process))
    }

    /// Workers alive.
    pub(crate) fn alive(&self) -> usize {
        self.workers.iter().filter(|worker| worker.exit.is_none()).count()
    }

    /// Every worker's rank and process.
    pub(crate) fn processes(&self) -> Vec<(usize, i32)> {
        self.workers.iter().map(|worker| (worker.rank, worker.pid.as_raw())).collect()
    }

    /// Process ids of the workers alive, which are also the ids of their process groups.
    pub(crate) fn alive_pids(&self) -> Vec<Pid> {
        self.workers.iter().filter(|worker| worker.exit.is_none()).map(|worker| worker.pid).collect()
    }

    /// Signals every worker that is alive, with its children.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.sent = Some((signal, self.sent.map_or_else(seconds_since_1970, |(_, since)| since)));
        for worker in self.workers.iter().filter(|worker| worker.exit.is_none()) {
            worker.signal(signal);
        }
    }

    /// What a drill does to the workers while they run, and learns from them.
    pub(crate) fn run_drill(
        &mut self,
        drill: &mut Drill,
        running: bool,
        folder: Option<&Path>,
        console: &mut dyn Console,
    ) {
        if let Some((first, progress)) = self.output.progress() {
            drill.printed(first, progress);
        }
        let alive: Vec<&Worker> = self.workers.iter().filter(|worker| worker.exit.is_none()).collect();
        if !running {
            return drill.stopped();
        }
        let ranks: Vec<usize> = alive.iter().map(|worker| worker.rank).collect();
        let Some(Strike { killed, told }) = drill.kill_due(Instant::now(), &ranks) else { return };
        if let (Some((rank, place)), Some(folder)) = (told, folder) {
            let text = match orders::leave(folder, rank, place) {
                Ok(()) => Note::Progress(format!("drill: rank {rank} is to end at {}", place.name())),
                Err(cause) => Note::Warning(format!("drill: cannot tell rank {rank} where to end: {cause}")),
            };
            console.note(text);
        }
        if killed.is_empty() {
            return;
        }
        console.note(Note::Progress(format!("drill: killing {}", describe_ranks(&killed))));
        alive.iter().filter(|worker| killed.contains(&worker.rank)).for_each(|worker| worker.signal(Signal::SIGKILL));
    }

    /// Ends the attempt. Unless it ended well, nothing that a worker left behind survives.
    pub(crate) fn end(mut self, guardian: &mut Guardian, console: &mut dyn Console) {
        self.workers.iter().for_each(|worker| guardian.ended(worker.pid));
        self.replaced.drain(..).for_each(Worker::release);
        for worker in self.workers.drain(..) {
            if self.sent.is_some() {
                worker.signal(Signal::SIGKILL);
            }
            worker.release();
        }
        self.output.finish(console);
    }

    fn describe(&self, rank: usize, local_rank: usize, pid: i32, exit: ExitStatus, message: Option<String>) -> Failure {
        let files = self.files.get(local_rank);
        let error_path: Option<PathBuf> = files.and_then(|files| files.error_file.clone()).filter(|path| path.exists());
        let error = error_path.as_deref().and_then(failure::read_error_file);
        let mut lines = files.map(|files| self.output.last_lines(local_rank, files)).unwrap_or_default();
        let (found, blame) = failure::explain_exit(rank, exit, error.as_ref(), &lines);
        lines.drain(..lines.len().saturating_sub(SHOWN_LINES));
        let written = error.as_ref().and_then(|error| error.time);
        Failure {
            rank,
            local_rank,
            host: self.host.clone(),
            pid,
            exit,
            time: written.unwrap_or_else(seconds_since_1970),
            stopped: self.sent.is_some_and(|(sent, _)| exit.0 == -(sent as i32)),
            // Error files count in whole seconds.
            after_stop: self.sent.is_some_and(|(_, since)| written.is_none_or(|time| time >= since.floor())),
            blame,
            sentence: None,
            error_file: error_path.map(|path| path.to_string_lossy().into_owned()),
            message: message.or(found),
            traceback: error.and_then(|error| error.traceback),
            last_lines: lines,
        }
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::{WorkerGroup, WorkerSource};
    use crate::console::{Console, Note, Status};
    use crate::control::Start;
    use crate::output::logs::{RunDirectory, Stream};
    use crate::plan::{Plan, Request, resolve};
    use crate::spares::Spares;
    use crate::workers::environment::Incarnation;
    use crate::workers::guardian::Guardian;
    use crate::workers::process::FileLimit;
    use std::path::Path;
    use std::time::{Duration, Instant};

    #[derive(Default)]
    struct RecordingConsole(String);

    impl Console for RecordingConsole {
        fn output(&mut self, _: Stream, bytes: &[u8]) {
            self.0.push_str(&String::from_utf8_lossy(bytes));
        }
        fn note(&mut self, _: Note) {}
        fn status(&mut self, _: &Status) {}
        fn wants_status(&self) -> bool {
            false
        }
        fn is_terminal(&self, _: Stream) -> bool {
            false
        }
        fn streams_are_one(&self) -> bool {
            false
        }
    }

    /// Two shells that say who they are, and wait.
    fn plan(logs: &Path) -> Plan {
        let request = Request {
            nnodes: Some("1".to_owned()),
            nproc_per_node: Some("2".to_owned()),
            role: "default".to_owned(),
            redirects: "0".to_owned(),
            tee: "3".to_owned(),
            event_log_handler: "null".to_owned(),
            log_dir: Some(logs.to_owned()),
            no_python: true,
            script: "sh".into(),
            script_arguments: ["-c", "echo rank $RANK of $WORLD_SIZE is $$$$; exec sleep 600"].map(Into::into).to_vec(),
            ..Request::default()
        };
        resolve(request, |name| (name == "PATH").then(|| "/usr/bin:/bin".into())).expect("a valid plan")
    }

    fn start() -> Start {
        Start {
            round: 0,
            restarts: 0,
            group_rank: 0,
            group_world_size: 1,
            first_rank: 4,
            world_size: 6,
            first_role_rank: 4,
            role_world_size: 6,
            master_address: "127.0.0.1".to_owned(),
            master_port: 1,
            launcher_serves_store: true,
            reason: None,
            changes: 0,
            epoch: None,
            secret: None,
            relay: None,
        }
    }

    /// Reads until so many lines have come.
    fn read_lines(group: &mut WorkerGroup, console: &mut RecordingConsole, lines: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while console.0.lines().count() < lines {
            assert!(Instant::now() < deadline, "read only {}", console.0);
            (0..2).for_each(|local_rank| group.output.drain(local_rank, console));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn one_worker_is_replaced_while_the_other_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = plan(folder.path());
        let directory = RunDirectory::create(&plan.logs.base, "test").expect("a folder for logs");
        let logs = directory.attempt(0, 2).expect("folders for ranks");
        let mut source = WorkerSource {
            spares: &mut Spares::default(),
            guardian: &mut Guardian::absent().expect("a pipe"),
            file_limit: FileLimit::current().expect("a limit"),
        };
        let mut console = RecordingConsole::default();
        let started = WorkerGroup::start(&plan, start(), 2, logs, &mut source, &console).expect("begun");
        let (mut group, failure) = started;
        assert_eq!(failure, None);
        read_lines(&mut group, &mut console, 2);
        let before = group.alive_pids();

        let second = Incarnation { number: 1, generation: 1 };
        group.replace(&plan, 1, second, &mut source, &mut console).expect("replaced");
        read_lines(&mut group, &mut console, 3);
        let after = group.alive_pids();
        assert_eq!(after[0], before[0], "the other one is untouched");
        assert_ne!(after[1], before[1]);
        assert_eq!(group.alive(), 2);
        assert_eq!(group.workers[1].incarnation, 1);
        assert!(group.ended(&mut console).is_empty(), "the end of the old one is no failure");
        assert!(console.0.ends_with(&format!("rank 5 of 6 is {}\n", after[1])), "{}", console.0);
        assert!(!Path::new(&format!("/proc/{}", before[1])).exists(), "the old one is gone");
        let log = std::fs::read_to_string(attempt_log(folder.path())).expect("a log");
        assert_eq!(log.lines().count(), 2, "the log goes on: {log}");

        group.signal(nix::sys::signal::Signal::SIGKILL);
        group.end(source.guardian, &mut console);
    }

    fn attempt_log(folder: &Path) -> std::path::PathBuf {
        let run = std::fs::read_dir(folder).expect("readable").next().expect("one run").expect("readable").path();
        run.join("attempt_0/1/stdout.log")
    }
}
