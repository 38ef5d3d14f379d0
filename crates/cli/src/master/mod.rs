//! `instep master`: records what training reports; and what belongs to running one.

mod arguments;
mod background;
mod companion;
mod copy;
mod log_file;
mod logging;
mod running;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use instep_master::{Options, SecretsKey};

pub(crate) use arguments::SettingsArguments;
pub(crate) use background::{DownArguments, UpArguments, down, up};

use crate::client::{
    ClusterMessageArguments, MasterAuditArguments, MasterInfoArguments, MasterLogsArguments, MasterStatusArguments,
};
use crate::console;
use crate::report::Hinted;

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
    /// Print who did what: changes, logins and refusals; for administrators
    Audit(MasterAuditArguments),
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
    /// Copy the database to another file or PostgreSQL schema; no master may be running on either
    Copy(copy::CopyArguments),
    /// Show what a running master says of itself
    Info(MasterInfoArguments),
    /// Show a message to everybody; for administrators
    ClusterMessage(ClusterMessageArguments),
    /// Print the recent log of a running master; for administrators
    Logs(MasterLogsArguments),
    /// Show which of several masters leads, and how fresh its lease is
    Status(MasterStatusArguments),
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
            let database = file_of(arguments.settings.options()?, "back up", "pg_dump --format=custom")?;
            if !database.exists() {
                let what = format!("there is no database {}", database.display());
                return Err(Hinted::new(
                    what,
                    "name the one that the master serves: `instep master backup FILE --db DATABASE`",
                )
                .into());
            }
            if file.exists() {
                let what = format!("{} exists already", file.display());
                return Err(Hinted::new(what, "choose another name for the backup").into());
            }
            instep_master::back_up(&database, &file).map_err(serve::explained)?;
            let line = format!("copied {} to {}\n", database.display(), file.display());
            console::print(line.as_bytes());
            if let Some(key) = SecretsKey::of(&database).map_err(serve::explained)? {
                console::print_error(&after_backup(&key));
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(MasterCommand::Copy(copy)) => copy::copy(&arguments.settings, &copy),
        Some(MasterCommand::Audit(audit)) => {
            no_settings(&arguments.settings, "audit")?;
            crate::client::master_audit(&audit)
        }
        Some(MasterCommand::Info(info)) => {
            no_settings(&arguments.settings, "info")?;
            crate::client::master_info(&info)
        }
        Some(MasterCommand::ClusterMessage(message)) => {
            no_settings(&arguments.settings, "cluster-message")?;
            crate::client::cluster_message(message)
        }
        Some(MasterCommand::Logs(logs)) => {
            no_settings(&arguments.settings, "logs")?;
            crate::client::master_logs(&logs)
        }
        Some(MasterCommand::Status(status)) => {
            no_settings(&arguments.settings, "status")?;
            crate::client::master_status(&status)
        }
        Some(MasterCommand::Restore { file, replace }) => {
            let database = file_of(arguments.settings.options()?, "restore", "pg_restore --clean")?;
            let kept = instep_master::restore(&file, &database, replace).map_err(serve::explained)?;
            let kept = kept.map(|path| format!(" (the previous database is {})", path.display())).unwrap_or_default();
            let line = format!("restored {} from {}{kept}\n", database.display(), file.display());
            console::print(line.as_bytes());
            if let Some(key) = SecretsKey::of(&database).map_err(serve::explained)? {
                console::print_error(&after_restore(&key));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The database file, of which a copy can be made; PostgreSQL makes its own.
fn file_of(options: Options, what: &str, instead: &str) -> anyhow::Result<PathBuf> {
    if options.postgres.is_none() {
        return Ok(options.database);
    }
    let key = SecretsKey::path_of(&options.database);
    Err(Hinted::new(
        format!("cannot {what} {}: the server makes and restores copies of its databases", options.shown_database()),
        format!(
            "use `{instead}` with the schema, or copy it between a file and the server with `instep master copy FROM TO`; \
             and keep {} if there are secrets, which nothing else opens",
            key.display()
        ),
    )
    .into())
}

/// What is not in a backup.
fn after_backup(key: &SecretsKey) -> String {
    let path = key.path.display();
    if key.is_there {
        return format!(
            "note: the database holds secrets, and their key is not in the backup: who has only the backup cannot read them\n\
             hint: keep a copy of {path} in another place; without it the secrets are lost\n"
        );
    }
    format!(
        "warning: the database holds secrets, and their key {path} is missing: nobody can read them\n\
         hint: put the key back, or set the secrets again\n"
    )
}

/// What a backup did not bring.
fn after_restore(key: &SecretsKey) -> String {
    let path = key.path.display();
    if key.is_there {
        return format!(
            "note: the database holds secrets; {path} must be the key with which they were encrypted\n\
             hint: if it is not, replace it with the one that was beside the database when it was backed up\n"
        );
    }
    format!(
        "warning: the database holds secrets, and their key is missing: tasks that name them cannot start\n\
         hint: copy the key that was beside the backed-up database to {path}, readable by its owner alone\n"
    )
}

/// Refuses the options of a server for what asks one that runs: they would mean nothing.
fn no_settings(settings: &SettingsArguments, command: &str) -> Result<(), Hinted> {
    match settings.words().first() {
        None => Ok(()),
        Some(word) => {
            let what = format!("`{word}` means nothing to `instep master {command}`, which asks a running master");
            Err(Hinted::new(what, "name the master with --master, or log in to it with `instep login`"))
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
    serve::serve(arguments, &options, |_| {})?.follow()
}
