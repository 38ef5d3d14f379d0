//! `instep diagnose`: why a job hangs, from what its ranks have written down and do now.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use instep_diagnosis::job::{self, Job};
use instep_diagnosis::{Diagnosis, Evidence, collect, diagnose, report};
use instep_recorder::{clock, folder};
use serde_json::json;

use crate::console;
use crate::report::Hinted;

/// The exit code when something is stuck.
const STUCK: u8 = 3;

/// `instep diagnose`.
#[derive(Debug, Args)]
pub(crate) struct DiagnoseArguments {
    /// Job id (--rdzv-id), process id of its launcher or a rank, or the folder of a failed job
    /// [default: all your running jobs on this machine]
    #[arg(value_name = "JOB|PID|FOLDER")]
    target: Option<String>,
    /// Treat an operation as stuck after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    after: f64,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// One job, with what was found.
struct Case {
    title: String,
    folders: Vec<PathBuf>,
    evidence: Vec<Evidence>,
    diagnosis: Diagnosis,
    now: u64,
}

/// Prints what was found; the exit code says whether something is stuck.
pub(crate) fn run(arguments: &DiagnoseArguments) -> anyhow::Result<ExitCode> {
    let patience = Duration::try_from_secs_f64(arguments.after).map_err(|_| {
        Hinted::new(format!("--after {} is not a number of seconds", arguments.after), "must be 0 or more")
    })?;
    let base = folder::base();
    let folders = job::find(&base, arguments.target.as_deref());
    if let (true, Some(target)) = (folders.is_empty(), &arguments.target) {
        return Err(Hinted::new(
            format!("there is no job, process or folder \"{target}\" with a flight recorder on this machine"),
            format!(
                "`instep diagnose` alone checks all running jobs; folders of failed jobs are in {}",
                base.join("jobs").display()
            ),
        )
        .into());
    }
    let cases: Vec<Case> = by_job(folders).into_iter().map(|folders| examine(folders, patience)).collect();
    let text = if arguments.json { as_json(&cases)? } else { as_text(&cases) };
    console::print(text.as_bytes());
    let stuck = cases.iter().any(|case| !case.diagnosis.findings.is_empty());
    Ok(if stuck { ExitCode::from(STUCK) } else { ExitCode::SUCCESS })
}

/// Launchers of one job on this machine belong together.
fn by_job(folders: Vec<PathBuf>) -> Vec<Vec<PathBuf>> {
    let mut jobs: Vec<(Option<String>, Vec<PathBuf>)> = Vec::new();
    for folder in folders {
        let name = Job::read(&folder).map(|job| job.name).filter(|name| !name.is_empty() && name != "none");
        match jobs.iter_mut().find(|(known, _)| name.is_some() && *known == name) {
            Some((_, folders)) => folders.push(folder),
            None => jobs.push((name, vec![folder])),
        }
    }
    jobs.into_iter().map(|(_, folders)| folders).collect()
}

fn examine(folders: Vec<PathBuf>, patience: Duration) -> Case {
    let evidence = collect::collect(&folders, true);
    let now = clock::monotonic();
    let diagnosis = diagnose(&evidence, now, patience, &collect::source_line);
    let title = match folders.first().and_then(|folder| Job::read(folder)) {
        Some(job) => format!("job {} ({})", job.name, job.program),
        None => {
            let owner = folders.first().and_then(|folder| folder::owner_of(folder)).map_or(0, |(process, _)| process);
            format!("the ranks started by process {owner}")
        }
    };
    Case { title, folders, evidence, diagnosis, now }
}

fn as_text(cases: &[Case]) -> String {
    if cases.is_empty() {
        return "no job of this user is running on this machine\nhint: only ranks that run under `instep run` or have an instep \
                group are visible; for a job that has ended, give the folder that it printed\n"
            .to_owned();
    }
    let part = |case: &Case| {
        let text = report::render(&case.diagnosis, &case.evidence, case.now, &collect::source_line);
        if cases.len() == 1 { text } else { format!("{}\n\n{text}", console::paint("1", &case.title)) }
    };
    cases.iter().map(part).collect::<Vec<_>>().join("\n")
}

fn as_json(cases: &[Case]) -> anyhow::Result<String> {
    let jobs: Vec<_> = cases
        .iter()
        .map(|case| {
            let found = report::to_json(&case.diagnosis, &case.evidence, case.now);
            json!({"job": case.title, "folders": case.folders, "diagnosis": found})
        })
        .collect();
    Ok(serde_json::to_string_pretty(&json!({"jobs": jobs}))? + "\n")
}
