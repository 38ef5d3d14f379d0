//! One life of this node's workers: started together, ended together.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::console::Console;
use crate::control::Start;
use crate::environment;
use crate::failure::{self, ExitStatus, Failure};
use crate::guardian::Guardian;
use crate::logs::{self, AttemptDirectory, WorkerFiles};
use crate::output::Output;
use crate::plan::Plan;
use crate::worker::{FileLimit, Spawn, Worker};

/// The shell's exit codes for a command that is not there, or cannot be run.
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_EXECUTABLE: i32 = 126;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) start: Start,
    pub(crate) output: Output,
    workers: Vec<Worker>,
    files: Vec<WorkerFiles>,
    host: String,
    /// What the launcher has told the workers to end with.
    sent: Option<Signal>,
    file_limit: FileLimit,
}

impl Attempt {
    /// Starts the workers. A worker that cannot be started is a failure like any other; those before it run.
    pub(crate) fn begin(
        plan: &Plan,
        start: Start,
        logs: &AttemptDirectory,
        guardian: &Guardian,
        file_limit: FileLimit,
        console: &dyn Console,
    ) -> std::io::Result<(Attempt, Option<Failure>)> {
        let workers = plan.job.workers;
        let mut attempt = Attempt {
            output: Output::new(&plan.logs, logs, workers)?,
            workers: Vec::with_capacity(workers),
            files: Vec::with_capacity(workers),
            host: plan.address.clone(),
            sent: None,
            file_limit,
            start,
        };
        for local_rank in 0..workers {
            let rank = attempt.start.first_rank + local_rank;
            let template = plan.logs.prefix_template.as_deref();
            let prefix = logs::line_prefix(template, &plan.job.role, local_rank, rank, &crate::endpoint::host_name());
            let files = logs.worker(&plan.logs, local_rank, &prefix);
            let started = attempt.start_worker(plan, rank, local_rank, &files, guardian, console);
            attempt.files.push(files);
            match started {
                Ok(worker) => attempt.workers.push(worker),
                Err((exit, message)) => {
                    let failure = attempt.describe(rank, local_rank, 0, ExitStatus(exit), Some(message));
                    return Ok((attempt, Some(failure)));
                }
            }
        }
        Ok((attempt, None))
    }

    fn start_worker(
        &mut self,
        plan: &Plan,
        rank: usize,
        local_rank: usize,
        files: &WorkerFiles,
        guardian: &Guardian,
        console: &dyn Console,
    ) -> Result<Worker, (i32, String)> {
        let other = |cause: &dyn std::fmt::Display| (1, cause.to_string());
        let inherited = |name: &str| std::env::var_os(name);
        let error_file = files.error_file.as_deref();
        let mut variables = environment::worker_variables(&plan.job, &self.start, local_rank, error_file, inherited)
            .map_err(|cause| other(&cause))?;
        variables.extend(search_path(plan).map(|path| ("PATH", path)));
        let cpus = plan.worker_cpus.get(local_rank).cloned();
        let command: Vec<OsString> = plan.command.iter().map(|word| fill_in(word, local_rank)).collect();
        let program = command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let guardian = guardian.pipe().map(|pipe| pipe.as_raw_fd());
        let (stdout, stderr) = self.output.attach(rank, local_rank, files, console).map_err(|cause| other(&cause))?;
        let spawn = Spawn { command, variables, cpus, file_limit: self.file_limit, stdout, stderr, guardian };
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

    /// The workers that have ended since the last call and did not end well.
    pub(crate) fn ended(&mut self, console: &mut dyn Console) -> Vec<Failure> {
        let mut failures = Vec::new();
        for index in 0..self.workers.len() {
            if !self.workers[index].has_ended() {
                continue;
            }
            let (rank, local_rank) = (self.workers[index].rank, self.workers[index].local_rank);
            self.output.drain(local_rank, console);
            match self.workers[index].exit {
                Some(exit) if !exit.success() => {
                    let pid = self.workers[index].pid.as_raw();
                    failures.push(self.describe(rank, local_rank, pid, exit, None));
                }
                _ => {}
            }
        }
        failures
    }

    /// Workers alive.
    pub(crate) fn alive(&self) -> usize {
        self.workers.iter().filter(|worker| worker.exit.is_none()).count()
    }

    /// Process ids of the workers alive, which are also the ids of their process groups.
    pub(crate) fn alive_pids(&self) -> Vec<Pid> {
        self.workers.iter().filter(|worker| worker.exit.is_none()).map(|worker| worker.pid).collect()
    }

    /// Signals every worker that is alive, with its children.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.sent = Some(signal);
        for worker in self.workers.iter().filter(|worker| worker.exit.is_none()) {
            worker.signal(signal);
        }
    }

    /// Ends the attempt. Unless it ended well, nothing that a worker left behind survives.
    pub(crate) fn end(mut self, guardian: &mut Guardian, console: &mut dyn Console) {
        self.workers.iter().for_each(|worker| guardian.ended(worker.pid));
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
        let ended_by_us = self.sent.is_some_and(|sent| exit.0 == -(sent as i32));
        Failure {
            rank,
            local_rank,
            host: self.host.clone(),
            pid,
            exit,
            time: error.as_ref().and_then(|error| error.time).unwrap_or_else(seconds_since_1970),
            stopped: ended_by_us,
            error_file: error_path.map(|path| path.to_string_lossy().into_owned()),
            message: message.or_else(|| error.as_ref().map(|error| error.message.clone())),
            traceback: error.and_then(|error| error.traceback),
            last_lines: files.map(|files| self.output.last_lines(local_rank, files)).unwrap_or_default(),
        }
    }
}

/// `--no-python` entry points say `python3`: the interpreter's folder goes first on their `PATH`.
fn search_path(plan: &Plan) -> Option<OsString> {
    if plan.runs_python {
        return None;
    }
    let folder = plan.interpreter.as_ref()?.path.parent()?.as_os_str();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if path.as_bytes().split(|byte| *byte == b':').next() == Some(folder.as_bytes()) {
        return None;
    }
    let mut search = folder.to_owned();
    search.push(":");
    search.push(path);
    Some(search)
}

/// Fills in `${local_rank}`; arguments that are not text have no macros.
fn fill_in(word: &OsString, local_rank: usize) -> OsString {
    match word.to_str() {
        Some(text) if text.contains('$') => {
            logs::substitute(text, |name| (name == "local_rank").then(|| local_rank.to_string())).into()
        }
        _ => word.clone(),
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
