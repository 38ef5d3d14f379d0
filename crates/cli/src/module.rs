//! Commands that are Python: this process becomes a module of the wheel.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use instep_launch::machine::interpreter;

/// As `-m MODULE`, but a Python without instep is told in words. Takes the module and the command's name as arguments.
const RUN_MODULE: &str = "
import importlib.util, runpy, sys
module, command = sys.argv[1:3]
if importlib.util.find_spec('instep') is None or importlib.util.find_spec(module) is None:
    print(f'error: the instep package is not installed in {sys.executable}', file=sys.stderr)
    sys.exit('hint: install the wheel there, or activate the environment that has it')
sys.argv[:3] = [command]
runpy.run_module(module, run_name='__main__')
";

/// Replaces this process by `python -m MODULE ARGUMENTS`; `command` is what the user calls it.
pub(crate) fn execute(
    module: &str,
    command: &str,
    python: Option<&Path>,
    arguments: impl IntoIterator<Item = OsString>,
) -> anyhow::Result<ExitCode> {
    let binary = std::env::current_exe().ok();
    let found = interpreter::find(python, |name| std::env::var_os(name), binary.as_deref())
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut process = Command::new(&found.path);
    process.args(["-c", RUN_MODULE, module, command]).args(arguments);
    if let Some(binary) = binary {
        process.env("INSTEP_BINARY", binary);
    }
    Err(process.exec()).with_context(|| format!("run {}", found.path.display()))
}
