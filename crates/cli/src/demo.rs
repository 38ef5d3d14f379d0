//! `instep demo`: runs the demo that ships inside the wheel.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use instep_launch::interpreter;

/// As `-m instep.demo`, but a Python without instep is told in words.
const RUN_MODULE: &str = "
import importlib.util, runpy, sys
if importlib.util.find_spec('instep') is None or importlib.util.find_spec('instep.demo') is None:
    print(f'error: the instep package is not installed in {sys.executable}', file=sys.stderr)
    sys.exit('hint: install the wheel there, or activate the environment that has it')
sys.argv[0] = 'instep demo'
runpy.run_module('instep.demo', run_name='__main__')
";

/// Replaces this process by `python -m instep.demo`.
pub(crate) fn run(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let binary = std::env::current_exe().ok();
    let found = interpreter::find(None, |name| std::env::var_os(name), binary.as_deref())
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut command = Command::new(&found.path);
    command.args(["-c", RUN_MODULE]).args(arguments);
    if let Some(binary) = binary {
        command.env("INSTEP_BINARY", binary);
    }
    Err(command.exec()).with_context(|| format!("run {}", found.path.display()))
}
