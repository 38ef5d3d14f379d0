//! `instep master`: records what training reports.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use instep_master::{Options, ServeError};

use crate::console;
use crate::report::{Hinted, chain};

#[derive(Debug, Args)]
pub(crate) struct MasterArguments {
    /// Address to serve on; others than this machine's own need passwords for all users
    #[arg(long, default_value = "127.0.0.1", env = "INSTEP_MASTER_HOST")]
    host: String,
    /// Port to serve on; 0 takes any free one
    #[arg(long, default_value_t = 8080, env = "INSTEP_MASTER_PORT")]
    port: u16,
    /// Database file, made if there is none [default: instep/master.db in the user's data folder]
    #[arg(long, value_name = "FILE", env = "INSTEP_MASTER_DB")]
    db: Option<PathBuf>,
    /// Answer requests for this host name too, besides addresses and localhost
    #[arg(long = "allow-host", value_name = "NAME")]
    allow_hosts: Vec<String>,
}

/// Serves until a signal ends it.
pub(crate) fn serve(arguments: MasterArguments) -> anyhow::Result<ExitCode> {
    let database = match arguments.db {
        Some(path) => path,
        None => default_database()?,
    };
    let shown = database.display().to_string();
    let options =
        Options { host: arguments.host, port: arguments.port, database, allowed_hosts: arguments.allow_hosts };
    instep_master::serve(&options, |address| {
        console::print(format!("instep master listening on http://{address} (database {shown})\n").as_bytes());
    })
    .map_err(explained)?;
    Ok(ExitCode::SUCCESS)
}

fn default_database() -> anyhow::Result<PathBuf> {
    let folder = std::env::var_os("XDG_DATA_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".local/share")));
    let folder = folder.ok_or_else(|| Hinted::new("this user has no home folder", "name a database file with --db"))?;
    Ok(folder.join("instep/master.db"))
}

fn explained(error: ServeError) -> Hinted {
    let hint = error.hint();
    Hinted::new(chain(&error), hint)
}
