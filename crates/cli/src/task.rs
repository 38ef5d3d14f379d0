//! `instep task`: with a folder what an agent starts for each share, see `instep_agent::task`; with a verb what people ask
//! about tasks.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use instep_agent::folder::ShareFolder;
use instep_agent::task::startup::{self, Outcome};
use instep_agent::task::{guardian, relay};

use crate::client::{self, Common};
use crate::console;
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct TaskArguments {
    #[command(flatten)]
    common: Common,
    /// Folder of the share, with its order
    #[arg(hide = true)]
    folder: Option<PathBuf>,
    /// Be the inner process, which supervises, for the outer one with this process id
    #[arg(long, value_name = "PID", hide = true)]
    supervise_for: Option<i32>,
    /// Without a mount namespace
    #[arg(long, hide = true)]
    plain: bool,
    #[command(subcommand)]
    verb: Option<client::task::TaskVerb>,
}

pub(crate) fn run(arguments: &TaskArguments) -> anyhow::Result<ExitCode> {
    if let Some(verb) = &arguments.verb {
        return client::tasks(&arguments.common, verb);
    }
    let Some(folder) = &arguments.folder else {
        return Err(Hinted::new("no subcommand given", "list tasks with `instep task list`").into());
    };
    let path = std::path::absolute(folder)?;
    let folder = ShareFolder::at(&path);
    if let Some(guardian) = arguments.supervise_for {
        let pipe = std::io::stdin().as_fd().try_clone_to_owned()?;
        let outcome = startup::run(&folder, pipe.into(), arguments.plain, guardian)
            .with_context(|| format!("cannot supervise {}", path.display()))?;
        return Ok(match outcome {
            Outcome::Ended(exit) => {
                console::print(&relay::exit_line(exit)?);
                ExitCode::SUCCESS
            }
            Outcome::NeedsPlainView => ExitCode::from(startup::NEEDS_PLAIN_VIEW),
            Outcome::Abandoned => ExitCode::FAILURE,
        });
    }
    let again = |plain: bool| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("task").arg(&path).args(["--supervise-for", &std::process::id().to_string()]);
        command.args((plain || arguments.plain).then_some("--plain"));
        Ok(command)
    };
    guardian::run(&folder, &again).with_context(|| format!("cannot run the task in {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}
