//! `instep master`: records what training reports; and what belongs to running one.

mod arguments;
mod background;
mod companion;
mod log_file;
mod logging;
mod running;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(crate) use arguments::SettingsArguments;
pub(crate) use background::{DownArguments, UpArguments, down, up};

use crate::client::MasterLogsArguments;
use crate::console;

#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct MasterArguments {
    #[command(flatten)]
    settings: SettingsArguments,
    /// Leave the terminal's session; how `instep up` starts it
    #[arg(long, hide = true)]
    background: bool,
    #[command(subcommand)]
    command: Option<MasterCommand>,
}

#[derive(Debug, Subcommand)]
enum MasterCommand {
    /// Look at the settings: file, environment and options together
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Copy the database to a new file; a master may be using it
    Backup {
        /// The copy, which must not exist yet
        file: PathBuf,
    },
    /// Print the recent log of a running master; for administrators
    Logs(MasterLogsArguments),
    /// Make a copy the database; no master may be using it
    Restore {
        /// What `instep master backup` made
        file: PathBuf,
        /// Restore although there is a database, which is kept under another name
        #[arg(long)]
        replace: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check whether the settings are valid
    Check,
    /// Print every setting, and where its value comes from
    Show {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// Does what the command line says.
pub(crate) fn run(arguments: MasterArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        None => run_server(&arguments.settings, arguments.background),
        Some(MasterCommand::Config { command: ConfigCommand::Check }) => {
            arguments.settings.options()?;
            console::print(b"the settings can be used\n");
            Ok(ExitCode::SUCCESS)
        }
        Some(MasterCommand::Config { command: ConfigCommand::Show { json } }) => {
            console::print(arguments.settings.shown(json)?.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
        Some(MasterCommand::Backup { file }) => {
            let database = arguments.settings.options()?.database;
            instep_master::back_up(&database, &file).map_err(serve::explained)?;
            let line = format!("copied {} to {}\n", database.display(), file.display());
            console::print(line.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
        Some(MasterCommand::Logs(logs)) => crate::client::master_logs(&logs),
        Some(MasterCommand::Restore { file, replace }) => {
            let database = arguments.settings.options()?.database;
            let kept = instep_master::restore(&file, &database, replace).map_err(serve::explained)?;
            let kept = kept.map(|path| format!(" (the earlier one is {})", path.display())).unwrap_or_default();
            let line = format!("restored {} from {}{kept}\n", database.display(), file.display());
            console::print(line.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Serves until a signal ends it.
fn run_server(arguments: &SettingsArguments, background: bool) -> anyhow::Result<ExitCode> {
    let options = arguments.options()?;
    if background {
        // It fails only for the leader of a process group, which what `instep up` starts is not.
        let _ = nix::unistd::setsid();
    }
    serve::serve(arguments, &options, |_| {})
}
