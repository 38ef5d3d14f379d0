//! `--summary-json`: what happened, for the program that started us; and the error file for a launcher above us.

use std::fs;
use std::path::Path;

use anyhow::Context;
use instep_launch::supervisor::Outcome;
use instep_launch::{Plan, environment, failure};
use serde_json::{Value, json};

use crate::report::Hinted;

/// Finds out before the run whether the file can be written: at its end it would be too late.
pub(super) fn prepare(path: &Path) -> anyhow::Result<()> {
    fs::OpenOptions::new().append(true).create(true).open(path).map(drop).map_err(|cause| {
        let message = format!("cannot write the summary to {}: {cause}", path.display());
        Hinted::new(message, "give --summary-json a file in a directory that exists and that you may write to").into()
    })
}

pub(super) fn write(path: &Path, plan: &Plan, outcome: &Outcome) -> anyhow::Result<()> {
    let beside = path.with_extension("partial");
    let text = format!("{:#}\n", as_json(plan, outcome));
    fs::write(&beside, text)
        .and_then(|()| fs::rename(&beside, path))
        .with_context(|| format!("write the summary to {}", path.display()))
}

fn as_json(plan: &Plan, outcome: &Outcome) -> Value {
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
        "max_restarts": plan.terms.max_restarts,
        "started": chrono::DateTime::<chrono::Utc>::from(outcome.started).to_rfc3339(),
        "duration_seconds": outcome.duration.as_secs_f64(),
        "log_directory": outcome.log_directory,
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
        "time": failure.time,
        "error_file": failure.error_file,
        "message": failure.message,
        "traceback": failure.traceback,
        "last_lines": failure.last_lines,
    })
}

/// A launcher that is itself somebody's worker hands the root cause's error file upwards, as torchrun does.
pub(super) fn pass_on_error_file(outcome: &Outcome) {
    let wanted = std::env::var_os(environment::ERROR_FILE).filter(|path| !path.is_empty());
    let root = outcome.root_cause();
    if let (Some(to), Some(from)) = (wanted, root.and_then(|failure| failure.error_file.as_ref())) {
        let exit = root.map_or(failure::ExitStatus(1), |failure| failure.exit);
        // The report on the console has the exception in any case.
        let _ = failure::pass_on_error_file(Path::new(from), Path::new(&to), exit);
    }
}
