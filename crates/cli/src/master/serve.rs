//! Serves in this process until a signal ends it.

use std::process::ExitCode;

use instep_master::{Options, ServeError};

use super::arguments::SettingsArguments;
use super::{logging, running};
use crate::console;
use crate::report::{Hinted, chain};

/// Serves; `ready` is called with the master's address once it does.
pub(super) fn serve(
    arguments: &SettingsArguments,
    options: &Options,
    ready: impl FnOnce(&str),
) -> anyhow::Result<ExitCode> {
    let settings = arguments.settings()?;
    let (json, level) = settings.log();
    logging::start(json, level, options.journal.clone());
    // Every agent, every open page and every tunnel is a connection. Where it may not be raised, fewer have to do.
    let _ = instep_store::raise_file_limit();
    let shown = options.shown_database();
    instep_master::serve(options, |addresses| {
        running::record(&settings, &options.database);
        let (address, tasks) = (&addresses.master, &addresses.tasks);
        let said = format!("instep master listening on {address} (database {shown})\npages of tasks: {tasks}\n");
        console::print(said.as_bytes());
        ready(address);
    })
    .map_err(explained)?;
    Ok(ExitCode::SUCCESS)
}

/// An error of the master with its hint.
pub(super) fn explained(error: ServeError) -> Hinted {
    let hint = error.hint();
    Hinted::new(chain(&error), hint)
}
