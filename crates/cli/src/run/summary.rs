//! `--summary-json`: what happened, for the program that started us; and the error file for a launcher above us.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use anyhow::Context;
use instep_launch::Outcome;
use instep_launch::workers::environment;
use instep_launch::{Plan, failure, host_name};
use serde_json::{Value, json};

use crate::console::TerminalConsole;
use crate::report::Hinted;

/// Where the agent that runs a task wants to find how it went.
const WELCOME_AT: &str = "INSTEP_SUMMARY_JSON";

/// Who wants a summary: the user, and the agent that started us, which can do without.
pub(super) struct Summaries {
    wanted: Option<PathBuf>,
    welcome: Option<PathBuf>,
}

impl Summaries {
    /// Finds out before the run whether the file that the user wants can be written: at its end it would be too late.
    pub(super) fn new(wanted: Option<PathBuf>) -> anyhow::Result<Summaries> {
        wanted.as_deref().map(prepare).transpose()?;
        let welcome = std::env::var_os(WELCOME_AT).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(Summaries { wanted, welcome })
    }

    pub(super) fn write(&self, summary: &Value, console: &mut TerminalConsole) -> anyhow::Result<()> {
        if let Some(path) = &self.welcome
            && let Err(error) = replace(path, summary)
        {
            console.warn(&format!("{error:#}"));
        }
        self.wanted.as_deref().map_or(Ok(()), |path| replace(path, summary))
    }
}

/// Whether this is a pipe, a terminal or the like, which is written to where a file is replaced.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn prepare(path: &Path) -> anyhow::Result<()> {
    if is_stream(path) {
        return Ok(());
    }
    fs::OpenOptions::new().append(true).create(true).open(path).map(drop).map_err(|cause| {
        let message = format!("cannot write the summary to {}: {cause}", path.display());
        Hinted::new(message, "choose a file in an existing, writable directory").into()
    })
}

/// The summary of a run that never began: what was to be started, and why it was not.
pub(super) fn of_reason(plan: &Plan, reason: &str) -> Value {
    json!({
        "outcome": "failed",
        "reason": reason,
        "program": plan.program_name,
        "run_id": plan.job.run_id,
        "rounds": 0,
        "failures": [],
    })
}

fn replace(path: &Path, summary: &Value) -> anyhow::Result<()> {
    let text = format!("{summary:#}\n");
    let written = if is_stream(path) {
        fs::write(path, text)
    } else {
        let beside = path.with_extension(unfinished());
        // Not through a link that somebody has left there.
        let new = || fs::OpenOptions::new().write(true).create_new(true).open(&beside);
        let _ = fs::remove_file(&beside);
        new().and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| fs::rename(&beside, path))
    };
    written.with_context(|| format!("write the summary to {}", path.display()))
}

/// The extension of an unfinished summary: nodes that were given one path on a shared disk have one each.
fn unfinished() -> String {
    format!("{}-{}.partial", host_name(), std::process::id())
}

pub(super) fn of_outcome(plan: &Plan, outcome: &Outcome) -> Value {
    let root = outcome.root_cause();
    json!({
        "outcome": match (outcome.success, outcome.signal) {
            (true, _) => "succeeded",
            (false, Some(_)) => "interrupted",
            (false, None) => "failed",
        },
        "reason": outcome.reason,
        "signal": outcome.signal.map(|signal| signal.as_str()),
        "program": plan.program_name,
        "run_id": plan.job.run_id,
        "world_size": outcome.world_size,
        "node_rank": outcome.group_rank,
        "workers_per_node": plan.job.workers,
        "rounds": outcome.rounds,
        "restarts": outcome.restarts,
        "replacements": outcome.replacements,
        "recoveries": outcome.recoveries,
        "max_restarts": plan.terms.max_restarts,
        "started": chrono::DateTime::<chrono::Utc>::from(outcome.started).to_rfc3339(),
        "duration_seconds": outcome.duration.as_secs_f64(),
        "goodput": outcome.goodput.as_ref().map(instep_launch::goodput::to_json),
        "log_directory": outcome.log_directory,
        "cause": outcome.explanation(),
        "root_cause": root.map(describe),
        "failures": outcome.failures.iter().map(describe).collect::<Vec<_>>(),
    })
}

fn describe(failure: &failure::Failure) -> Value {
    json!({
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "host": failure.host,
        "pid": failure.pid,
        "exit_code": failure.exit.0,
        "signal": failure.exit.signal(),
        "stopped_by_launcher": failure.stopped,
        "because_of_others": failure.blame.is_some(),
        "because_of_ranks": failure.blame.as_ref().map(|blame| blame.ranks.clone()).unwrap_or_default(),
        "time": failure.time,
        "error_file": failure.error_file,
        "message": failure.message,
        "traceback": failure.traceback,
        "last_lines": failure.last_lines,
    })
}

/// A launcher that is itself somebody's worker leaves an error file, as torchrun does: the root cause's own, or, if a
/// signal ended the run, the signal. A failure that left no error file leaves none here either.
pub(super) fn pass_on_error_file(outcome: &Outcome) {
    let Some(to) = wanted_error_file() else { return };
    let root = outcome.root_cause();
    let written = match (outcome.signal, root.and_then(|failure| failure.error_file.as_ref())) {
        (Some(signal), _) => {
            own_error(&format!("SignalException: Process {} got signal: {}", std::process::id(), signal as i32))
        }
        (None, Some(from)) => {
            let exit = root.map_or(failure::ExitStatus(1), |failure| failure.exit);
            failure::pass_on_error_file(Path::new(from), &to, exit)
        }
        (None, None) => Ok(()),
    };
    // The report on the console says the same.
    drop(written);
}

/// Leaves an error that kept the run from starting where a parent launcher looks for it.
pub(super) fn own_error(message: &str) -> io::Result<()> {
    let Some(to) = wanted_error_file() else { return Ok(()) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    failure::write_error_file(&to, message, now)
}

fn wanted_error_file() -> Option<PathBuf> {
    std::env::var_os(environment::ERROR_FILE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_pipe_is_written_to_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        replace(&pipe, &json!({"rounds": 1})).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&reader.join().unwrap()).unwrap(), json!({"rounds": 1}));
        assert!(!fs::metadata(&pipe).unwrap().is_file());
    }

    #[test]
    fn nothing_unfinished_is_left_beside_the_summary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        replace(&path, &json!({})).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(unfinished().contains(&host_name()), "two hosts may have processes of one number");
    }
}
