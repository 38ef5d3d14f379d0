//! `instep demo`: runs the demo that ships inside the wheel.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::module;

/// Replaces this process by `python -m instep.demo`.
pub(crate) fn run(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    module::execute("instep.demo", "instep demo", None, arguments)
}
