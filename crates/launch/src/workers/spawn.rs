//! What a worker of a slot is started with: its command line, variables, CPUs and streams.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::control::{MovedRank, Start};
use crate::drill::orders;
use crate::failure::hang;
use crate::output::logs;
use crate::plan::Plan;
use crate::workers::environment::{self, EnvironmentError, JobFacts};
use crate::workers::guardian::Guardian;
use crate::workers::process::{FileLimit, Spawn};

/// Everything that the worker of a slot is started with.
pub(crate) fn worker_spawn(
    plan: &Plan,
    start: &Start,
    local_rank: usize,
    error_file: Option<&Path>,
    guardian: &Guardian,
    file_limit: FileLimit,
    (stdout, stderr): (OwnedFd, OwnedFd),
) -> Result<Spawn, EnvironmentError> {
    let inherited = |name: &str| std::env::var_os(name);
    let mut variables = environment::worker_variables(&plan.job, start, local_rank, error_file, inherited)?;
    variables.push((hang::VARIABLE, hang::folder_of(plan).into()));
    variables.extend(search_path(plan).map(|path| ("PATH", path)));
    variables.extend(plan.drill.as_ref().and_then(orders::variable));
    Ok(Spawn {
        command: plan.command.iter().map(|word| fill_in(word, local_rank)).collect(),
        variables,
        cpus: plan.worker_cpus.get(local_rank).cloned(),
        file_limit,
        stdout,
        stderr,
        guardian: guardian.pipe().map(|pipe| pipe.as_raw_fd()),
        spare: None,
    })
}

/// The same for a rank that another node has started first: its place among the others stays what it was there. It is bound
/// to no CPUs, since those of its local rank are a worker's of this node.
pub(crate) fn moved_worker_spawn(
    plan: &Plan,
    start: &Start,
    moved: &MovedRank,
    error_file: Option<&Path>,
    guardian: &Guardian,
    file_limit: FileLimit,
    streams: (OwnedFd, OwnedFd),
) -> Result<Spawn, EnvironmentError> {
    let start = Start {
        group_rank: moved.group_rank,
        first_rank: moved.rank - moved.local_rank,
        first_role_rank: moved.role_rank - moved.local_rank,
        ..start.clone()
    };
    let job = JobFacts { workers: moved.local_world_size, ..plan.job.clone() };
    let plan = Plan { job, worker_cpus: Vec::new(), ..plan.clone() };
    worker_spawn(&plan, &start, moved.local_rank, error_file, guardian, file_limit, streams)
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
