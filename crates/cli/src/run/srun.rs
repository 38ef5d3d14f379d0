//! A launcher on each node of a Slurm job, started from its batch script or a shell: this process becomes `srun`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use instep_launch::plan::scheduler::{FOR_RANKS, SlurmStart};
use instep_launch::{Console, Note};

use super::options::DryRunFormat;
use crate::console::TerminalConsole;
use crate::report::Hinted;

/// Becomes `srun`, which starts this command on every node and ends with the worst of their statuses; or shows it.
pub(super) fn become_srun(start: &SlurmStart, dry_run: Option<DryRunFormat>) -> anyhow::Result<ExitCode> {
    let words = command(start, std::env::args_os().skip(1).collect())?;
    if let Some(format) = dry_run {
        super::dry_run::show_start(start, &words, format);
        return Ok(ExitCode::SUCCESS);
    }
    let (name, nodes) = (&start.scheduler.name, start.nodes);
    let plural = if nodes == 1 { "the node" } else { "each of the nodes" };
    let text = format!("starting on {plural} of {name} ({nodes}) through srun; --standalone runs on this one alone");
    TerminalConsole::new(false).note(Note::Progress(text));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for variable in FOR_RANKS {
        command.env_remove(variable);
    }
    let error = command.exec();
    let hint = match error.kind() {
        io::ErrorKind::NotFound => {
            "put srun on PATH; in a container: srun … apptainer exec IMAGE instep run …; or run on this node alone: --standalone"
        }
        _ => "check that srun can be run, or run on this node alone: --standalone",
    };
    Err(Hinted::new(format!("cannot start on the nodes of {name}: srun: {error}"), hint).into())
}

/// `srun` and what it starts: this command again, which then finds its place in the step. What is shown is what would be
/// started, without `--dry-run`.
fn command(start: &SlurmStart, mut own: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let binary = std::env::current_exe()?;
    // The launcher's options come before the script's: the first one is ours.
    if let Some(at) = own.iter().position(|word| asks_for_a_dry_run(word)) {
        own.remove(at);
    }
    Ok(start.command.iter().map(OsString::from).chain([binary.into_os_string()]).chain(own).collect())
}

/// Whether this is `--dry-run`, also shortened, with underscores, or with a format.
fn asks_for_a_dry_run(word: &OsStr) -> bool {
    let name = word.to_str().and_then(|word| word.split('=').next()).unwrap_or_default().replace('_', "-");
    name.starts_with("--dry") && "--dry-run".starts_with(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_shows_what_would_be_started() {
        let start = SlurmStart {
            scheduler: instep_launch::plan::scheduler::Scheduler {
                name: "Slurm job 7".to_owned(),
                findings: Vec::new(),
            },
            nodes: 2,
            command: vec!["srun".to_owned()],
        };
        let own = |words: &str| -> Vec<OsString> {
            let words = words.split(' ').map(OsString::from).collect();
            command(&start, words).expect("a binary").into_iter().skip(2).collect()
        };
        for word in ["--dry-run", "--dry_run", "--dry", "--dry-run=json"] {
            let shown = own(&format!("run {word} --nproc-per-node 2 train.py --dry-run"));
            assert_eq!(shown, ["run", "--nproc-per-node", "2", "train.py", "--dry-run"].map(OsString::from), "{word}");
        }
        assert_eq!(own("run --drill kill-rank=1s x.py").len(), 4);
    }
}
