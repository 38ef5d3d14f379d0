//! Serves in this process until a signal ends it.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use instep_master::{Options, ServeError};

use super::arguments::SettingsArguments;
use super::{logging, running};
use crate::console;
use crate::report::{Hinted, chain};

/// Serves; `ready` is called with the master's address once it does.
pub(super) fn serve(arguments: &SettingsArguments, options: &Options, ready: impl FnOnce(&str)) -> anyhow::Result<End> {
    let settings = arguments.settings()?;
    let (json, level) = settings.log();
    logging::start(json, level, options.journal.clone());
    // Every agent, every open page and every tunnel is a connection. Where it may not be raised, fewer have to do.
    let _ = instep_store::raise_file_limit();
    let shown = options.shown_database();
    let outcome = instep_master::serve(options, |addresses| {
        running::record(&settings, &options.database);
        let (address, tasks) = (&addresses.master, &addresses.tasks);
        let said = format!("instep master listening on {address} (database {shown})\npages of tasks: {tasks}\n");
        console::print(said.as_bytes());
        ready(address);
    });
    match outcome {
        Ok(()) => Ok(End::InOrder),
        // Another one leads now, and this one stands by.
        Err(ServeError::SteppedDown { .. }) if options.advertise.is_some() => Ok(End::SteppedDown),
        Err(error) => Err(explained(error).into()),
    }
}

/// How a master ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    InOrder,
    /// It is one of several, and is to stand by again.
    SteppedDown,
}

impl End {
    /// What follows: nothing, or the same again.
    pub(super) fn follow(self) -> anyhow::Result<ExitCode> {
        match self {
            End::InOrder => Ok(ExitCode::SUCCESS),
            End::SteppedDown => Err(begin_anew().into()),
        }
    }
}

/// Becomes this program anew, with the same words and the same process id: nobody who started it has to notice. Gives why
/// not, if it cannot.
fn begin_anew() -> Hinted {
    let mut words = std::env::args_os();
    let mut command = Command::new(this_program());
    command.arg0(words.next().unwrap_or_default()).args(words);
    let error = command.exec();
    Hinted::new(format!("cannot begin anew after stepping down: {error}"), "start it again: it stands by then")
}

/// The program that this process runs. By its own name, which the list of processes shows; unless another version lies there
/// by now, which is for whoever replaced it to start.
fn this_program() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    let file = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    match std::env::current_exe() {
        Ok(path) if file(&path).is_some() && file(&path) == file(running) => path,
        Ok(_) | Err(_) => running.to_owned(),
    }
}

/// An error of the master with its hint.
pub(super) fn explained(error: ServeError) -> Hinted {
    let hint = error.hint();
    Hinted::new(chain(&error), hint)
}
