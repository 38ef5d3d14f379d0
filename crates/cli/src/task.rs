//! `instep task`: what an agent starts for each share. Not for people; see `instep_agent::task`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use instep_agent::folder::ShareFolder;
use instep_agent::task::{guardian, supervisor};

#[derive(Debug, Args)]
pub(crate) struct TaskArguments {
    /// Folder of the share, with its order
    folder: PathBuf,
    /// Be the inner process, which supervises, for the outer one with this process id
    #[arg(long, value_name = "PID")]
    supervise_for: Option<i32>,
    /// Without a mount namespace
    #[arg(long)]
    plain: bool,
}

pub(crate) fn run(arguments: &TaskArguments) -> anyhow::Result<ExitCode> {
    let path = std::path::absolute(&arguments.folder)?;
    let folder = ShareFolder::at(&path);
    if let Some(guardian) = arguments.supervise_for {
        let code = supervisor::run(&folder, arguments.plain, guardian)
            .with_context(|| format!("cannot supervise {}", path.display()))?;
        return Ok(ExitCode::from(code));
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
