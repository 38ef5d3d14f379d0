//! What runs here: the platform, Python, torch and the wheel.

use std::path::Path;

use instep_launch::machine::interpreter;

use super::check::{Check, VERSION, ok, problem, warning};

/// Oldest Python that the wheel installs on.
const OLDEST_PYTHON: (u32, u32) = (3, 10);
/// Oldest torch whose store protocol and launcher environment are ours.
const OLDEST_TORCH: (u32, u32) = (2, 2);
/// The torch that the tests run with.
const TESTED_TORCH: (u32, u32) = (2, 15);
/// Kernel of the oldest distribution that the wheel supports.
const OLDEST_KERNEL: (u32, u32) = (4, 18);

/// Reads `2.15` from `2.15.0+cpu`, `4.18` from `4.18.0-553.el8`.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn judge_platform(system: &str, architecture: &str) -> Check {
    let finding = format!("{system} {architecture}");
    match (system, architecture) {
        ("linux", "x86_64") => ok("platform", finding),
        _ => warning("platform", finding, "instep is tested on linux x86_64; please report problems"),
    }
}

pub(super) fn judge_kernel(release: &str) -> Check {
    match major_minor(release) {
        Some(version) if version >= OLDEST_KERNEL => ok("kernel", release),
        Some(_) => {
            let (major, minor) = OLDEST_KERNEL;
            warning("kernel", release, format!("instep supports Linux {major}.{minor} and newer"))
        }
        None => warning("kernel", "unknown", "/proc/sys/kernel/osrelease cannot be read; is /proc mounted?"),
    }
}

/// Python, torch and the wheel.
pub(super) fn python() -> Vec<Check> {
    let binary = std::env::current_exe().ok();
    let found = match interpreter::find(None, |name| std::env::var_os(name), binary.as_deref()) {
        Ok(found) => found,
        Err(error) => {
            let text = error.to_string();
            let (finding, hint) = text.split_once("\nhint: ").unwrap_or((&text, "install Python 3"));
            return vec![problem("Python", finding, hint)];
        }
    };
    let place = format!("{} ({})", found.path.display(), found.chosen_because);
    match found.inspect() {
        Ok(inspection) => vec![
            judge_python(&inspection.version, &place),
            judge_torch(inspection.installed("torch").as_deref(), &found.path),
            judge_wheel(inspection.installed("instep").as_deref(), &found.path),
        ],
        Err(error) => vec![problem(
            "Python",
            format!("{place} does not run: {error}"),
            "fix it, or choose another with --python or PYTHON_EXEC",
        )],
    }
}

pub(super) fn judge_python(version: &str, place: &str) -> Check {
    let finding = format!("{version} at {place}");
    if major_minor(version).is_some_and(|version| version >= OLDEST_PYTHON) {
        return ok("Python", finding);
    }
    let (major, minor) = OLDEST_PYTHON;
    warning("Python", finding, format!("scripts run, but the instep package needs Python {major}.{minor} or newer"))
}

pub(super) fn judge_torch(version: Option<&str>, python: &Path) -> Check {
    let install = format!("{} -m pip install torch", python.display());
    let Some(version) = version else {
        return warning("torch", "not installed in this Python", format!("{install}, or choose another Python"));
    };
    let (oldest, tested) = (OLDEST_TORCH, TESTED_TORCH);
    match major_minor(version) {
        Some(release) if release > tested => {
            ok("torch", format!("{version} (newer than the tested {}.{})", tested.0, tested.1))
        }
        Some(release) if release >= oldest => ok("torch", version),
        _ => warning("torch", version, format!("instep supports torch {}.{} and newer", oldest.0, oldest.1)),
    }
}

pub(super) fn judge_wheel(version: Option<&str>, python: &Path) -> Check {
    let install = format!("{} -m pip install instep=={VERSION}", python.display());
    match version {
        Some(VERSION) => ok("wheel", format!("{VERSION}, same as this binary")),
        Some(other) => warning("wheel", format!("{other} in this Python, but this binary is {VERSION}"), install),
        None => warning(
            "wheel",
            "the instep package is not installed in this Python",
            format!("`instep run` works without it; for `import instep`: {install}"),
        ),
    }
}
