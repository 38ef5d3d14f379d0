//! A launcher on each node of a Slurm job, started from its batch script or a shell: this process becomes `srun`.

use std::ffi::OsString;
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
    let words = command(start)?;
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

/// `srun` and what it starts: this command again, which then finds its place in the step.
fn command(start: &SlurmStart) -> anyhow::Result<Vec<OsString>> {
    let binary = std::env::current_exe()?;
    let own = std::env::args_os().skip(1);
    Ok(start.command.iter().map(OsString::from).chain([binary.into_os_string()]).chain(own).collect())
}
