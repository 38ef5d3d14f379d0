//! `instep sshd` and `instep sftp-server`: what a shell consists of, see `instep_shell`. The task's supervisor starts the first,
//! and it the second for each client that wants files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use anyhow::Context;
use instep_shell::server::{Settings, serve};
use instep_shell::sftp;

use crate::console;
use crate::report::Hinted;

/// What the variables of the server begin with, which no session sees.
const OWN: &str = "INSTEP_SHELL_";

/// Serves the shell that the environment describes.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let all: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    let setting = |name: &str| {
        let value = all.get(&OsString::from(format!("{OWN}{name}"))).and_then(|value| value.to_str());
        value.map(str::to_owned).ok_or_else(|| {
            let what = format!("the variable {OWN}{name} is missing: this is what a task runs as a shell");
            Hinted::new(what, "start a shell with `instep shell start`")
        })
    };
    let task = std::env::var("DET_TASK_ID").unwrap_or_default();
    let owner = std::env::var("DET_USER").unwrap_or_default();
    let port = setting("PORT")?.parse().with_context(|| format!("{OWN}PORT is no port"))?;
    let (address, key) = (setting("ADDRESS")?, setting("KEY")?);
    let refusal = format!(
        "this key does not open shell {task}: only user {owner} and administrators get the one that does\n\
         hint: log in with `instep shell open {task}`, or start your own with `instep shell start`"
    );
    let program = std::env::current_exe().context("this program cannot be found")?;
    let variables = all.into_iter().filter(|(name, _)| !name.to_string_lossy().starts_with(OWN)).collect();
    // As OpenSSH's server logs it: scripts wait for this line.
    let listening = format!("Server listening on {address} port {port}.\n");
    serve(Settings { address, port, key, variables, program, refusal }, || console::print_error(&listening))?;
    Ok(ExitCode::SUCCESS)
}

/// Serves files to the client at the other end of standard input and output.
pub(crate) fn serve_files() -> anyhow::Result<ExitCode> {
    sftp::serve(&mut io::stdin().lock(), &mut io::stdout().lock()).context("the client cannot be served")?;
    Ok(ExitCode::SUCCESS)
}
