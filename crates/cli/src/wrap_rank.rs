//! `instep wrap-rank`: puts `[rank=N]` before every line of a program, for launchers that are not ours.
//!
//! The log of a task knows by that whose line it is. In a task the lines go straight into its log, so that `mpirun` need
//! not carry them to the first machine.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use clap::Args;
use instep_agent::lines::Cutter;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::report::Hinted;

/// Where launchers say which rank a process has: Open MPI, PMIx, MPICH and Intel MPI, Slurm, torchrun and ours.
const VARIABLES: [&str; 5] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"];

#[derive(Debug, Args)]
pub(crate) struct WrapRankArguments {
    /// Rank, or comma-separated names of variables that contain it [default: those of Open MPI, PMI, Slurm or torchrun]
    rank: Option<String>,
    /// Write to this process's own output, even in a task
    #[arg(long)]
    no_redirect_stdio: bool,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &WrapRankArguments) -> anyhow::Result<ExitCode> {
    let rank = rank(arguments.rank.as_deref(), |name| std::env::var(name).ok())?;
    let prefix = format!("[rank={rank}] ");
    let [out, error] = targets(arguments.no_redirect_stdio);
    let passed = pass_signals_on();
    let (program, rest) = arguments.command.split_first().context("no program given")?;
    let mut child =
        Command::new(program).args(rest).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| {
            Hinted::new(format!("cannot start {}: {error}", program.display()), "check its name and PATH")
        })?;
    let process = Pid::from_raw(child.id().cast_signed());
    if let Ok(signals) = passed {
        // It waits for signals until this process ends, which is its owner.
        std::thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                let _ = kill(process, signal);
            }
        });
    }
    let copies = [
        child.stdout.take().map(|stream| copy(Box::new(stream), out, prefix.clone())),
        child.stderr.take().map(|stream| copy(Box::new(stream), error, prefix)),
    ];
    for copy in copies.into_iter().flatten() {
        // A copy that failed has lost its reader; the program goes on.
        let _ = copy.join();
    }
    let status = child.wait()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The rank: a number, or what a variable says.
fn rank(given: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<u32> {
    if let Some(number) = given.and_then(|text| text.parse().ok()) {
        return Ok(number);
    }
    let names: Vec<&str> = given.map_or(VARIABLES.to_vec(), |names| names.split(',').collect());
    let found = names.iter().find_map(|name| Some((*name, variable(name)?)));
    let Some((name, value)) = found else {
        let what = format!("no rank: none of {} is set", names.join(", "));
        return Err(Hinted::new(what, "give the rank: instep wrap-rank RANK -- COMMAND").into());
    };
    let odd = || Hinted::new(format!("{name} is `{value}`, which is not a rank"), "ranks are integers from 0");
    value.trim().parse().map_err(|_| odd().into())
}

/// Where lines go: to the log of the task around us if there is one, else to our own output.
fn targets(own: bool) -> [Box<dyn Write + Send>; 2] {
    let folder = std::env::var_os("DET_RUN_DIR").map_or_else(|| PathBuf::from("/run/determined"), PathBuf::from);
    let open = |name: &str| open_log(&folder.join("train/logs").join(name)).filter(|_| !own);
    match (open("stdout.log"), open("stderr.log")) {
        (Some(out), Some(error)) => [Box::new(out), Box::new(error)],
        _ => [Box::new(std::io::stdout()), Box::new(std::io::stderr())],
    }
}

fn open_log(path: &Path) -> Option<File> {
    File::options().write(true).open(path).ok()
}

/// Signals that would end us, for the program instead.
fn pass_signals_on() -> nix::Result<SigSet> {
    let all = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];
    let signals: SigSet = all.into_iter().collect();
    signals.thread_block()?;
    Ok(signals)
}

fn copy(
    mut from: Box<dyn Read + Send>,
    mut to: Box<dyn Write + Send>,
    prefix: String,
) -> std::thread::JoinHandle<std::io::Result<()>> {
    std::thread::spawn(move || {
        let (mut cutter, mut buffer) = (Cutter::default(), vec![0; 64 << 10]);
        let mut line = Vec::new();
        loop {
            let count = from.read(&mut buffer)?;
            // A line in one piece, so that those of several ranks do not mix.
            let mut write = |text: &[u8]| {
                line.clear();
                line.extend_from_slice(prefix.as_bytes());
                line.extend_from_slice(text);
                line.push(b'\n');
                // Nobody may read it any more; the program must not be ended by that.
                let _ = to.write_all(&line).and_then(|()| to.flush());
            };
            if count == 0 {
                cutter.close(&mut write);
                return Ok(());
            }
            cutter.push(&buffer[..count], &mut write);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_from_numbers_and_variables() {
        let variable = |name: &str| match name {
            "PMI_RANK" => Some("4".to_owned()),
            "SLURM_PROCID" => Some("5".to_owned()),
            "BAD" => Some("x".to_owned()),
            _ => None,
        };
        assert_eq!(rank(Some("7"), variable).unwrap(), 7);
        assert_eq!(rank(None, variable).unwrap(), 4);
        assert_eq!(rank(Some("NOT_SET,SLURM_PROCID"), variable).unwrap(), 5);
        assert!(rank(Some("BAD"), variable).unwrap_err().to_string().contains("BAD is `x`"));
        let missing = rank(None, |_| None).unwrap_err().to_string();
        assert!(missing.contains("OMPI_COMM_WORLD_RANK") && missing.contains("hint: "), "{missing}");
    }
}
