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
    /// Detach from the terminal's session; used by `instep up`
    #[arg(long, hide = true)]
    background: bool,
    #[command(subcommand)]
    command: Option<MasterCommand>,
}

#[derive(Debug, Subcommand)]
enum MasterCommand {
    /// Show or check the settings from file, environment and options
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Back up the database to a new file; works while a master is running
    Backup {
        /// Backup file, which must not exist
        file: PathBuf,
    },
    /// Print the recent log of a running master; for administrators
    Logs(MasterLogsArguments),
    /// Restore the database from a backup; no master may be running
    Restore {
        /// File created by `instep master backup`
        file: PathBuf,
        /// Restore even if a database exists; the old one is renamed
        #[arg(long)]
        replace: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check whether the settings are valid
    Check,
    /// Print every setting and where its value comes from
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
            console::print(b"the settings are valid\n");
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
            let kept = kept.map(|path| format!(" (the previous database is {})", path.display())).unwrap_or_default();
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
