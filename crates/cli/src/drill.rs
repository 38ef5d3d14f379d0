//! `instep drill`: runs a job and kills its ranks, so that people can see whether their script resumes.
//!
//! It is `instep run --drill` with defaults: the same program, the same process.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser};

use crate::report::Hinted;
use crate::run::{self, Launcher, PrintCompletion, Start};

/// Restarts that a job gets for its drill if its own command line allows none.
const RESTARTS: i64 = 3;

/// Between kills, if nothing is said.
const MEAN_TIME: &str = "10s";

#[derive(Debug, Args)]
pub(crate) struct DrillArguments {
    /// Mean time between kills: 30s, 5m, 500ms [default: 10s]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["kill_rank", "kill_node"])]
    every: Option<String>,
    /// With --every: kill all ranks of this node at once instead of one
    #[arg(long, requires = "every")]
    nodes: bool,
    /// Where in a step a rank ends, for jobs with --recover step [default: random]
    #[arg(long, value_name = "PLACE", value_parser = ["random", "forward", "backward", "vote", "optimizer", "transfer"])]
    at: Option<String>,
    /// Do every step of an instep.elastic.Session twice and compare the bits; kills nobody unless told to
    #[arg(long)]
    replay: bool,
    /// Mean time between kills of one rank
    #[arg(long, value_name = "TIME")]
    kill_rank: Option<String>,
    /// Mean time between kills of all ranks of this node
    #[arg(long, value_name = "TIME")]
    kill_node: Option<String>,
    /// Maximum number of kills [default: the job's number of restarts; no limit with --recover step]
    #[arg(long, value_name = "N")]
    times: Option<u32>,
    /// Seed of an earlier drill, to repeat its times and choices
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The job: instep run ...
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: DrillArguments, print_completion: PrintCompletion) -> anyhow::Result<ExitCode> {
    let job = job_of(&arguments.command)?;
    let Start::Run(mut job) = job else {
        return Err(Hinted::new("a drill needs `instep run`, not `instep launch`", "see instep drill --help").into());
    };
    let restarts = if arguments.kills() { arguments.times.map_or(RESTARTS, i64::from) } else { 0 };
    job.make_drill(arguments.settings(), arguments.json, restarts);
    run::run(*job, print_completion)
}

impl DrillArguments {
    /// Whether ranks are killed: a replay alone needs none.
    fn kills(&self) -> bool {
        !self.replay || self.every.is_some() || self.kill_rank.is_some() || self.kill_node.is_some()
    }

    /// As `--drill` has it.
    fn settings(&self) -> String {
        let every = self.every.clone();
        let default = (self.kills() && self.kill_node.is_none() && !self.nodes).then(|| MEAN_TIME.to_owned());
        let pairs = [
            ("kill-rank", self.kill_rank.clone().or(every.clone().filter(|_| !self.nodes)).or(default)),
            ("kill-node", self.kill_node.clone().or(every.filter(|_| self.nodes))),
            ("at", self.at.clone()),
            ("replay", self.replay.then(|| "true".to_owned())),
            ("times", self.times.map(|times| times.to_string())),
            ("seed", self.seed.map(|seed| seed.to_string())),
        ];
        let given = pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        given.collect::<Vec<_>>().join(",")
    }
}

/// Reads the job's own command line, with or without the program's name before it.
fn job_of(command: &[OsString]) -> anyhow::Result<Start> {
    let is_program = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new("instep"));
    let words = command.split_first().filter(|(first, _)| is_program(first)).map_or(command, |(_, rest)| rest);
    if words.first().is_none_or(|word| word != "run") {
        let given = command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let hint = "put the job's command after --: instep drill -- instep run train.py";
        return Err(Hinted::new(format!("`{given}` is not an `instep run` command"), hint).into());
    }
    let all = std::iter::once(OsString::from("instep")).chain(words.iter().cloned());
    Launcher::try_parse_from(all).map(|launcher| launcher.command).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Hinted::new(format!("the job's command line: {line}"), "`instep run --help` lists the options").into()
    })
}
