//! `instep demo`: runs the demo that ships inside the wheel.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use instep_launch::interpreter;

/// Replaces this process by `python -m instep.demo`.
pub(crate) fn run(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let binary = std::env::current_exe().ok();
    let found = interpreter::find(None, |name| std::env::var_os(name), binary.as_deref())
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut command = Command::new(&found.path);
    command.args(["-m", "instep.demo"]).args(arguments);
    if let Some(binary) = binary {
        command.env("INSTEP_BINARY", binary);
    }
    Err(command.exec()).with_context(|| format!("run {}", found.path.display()))
}
