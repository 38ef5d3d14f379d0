//! Which Python runs the workers.
//!
//! [`find`] follows one order everywhere: the flag, `PYTHON_EXEC`, `VIRTUAL_ENV`, the folder of the running binary, `PATH`.
//! A choice the user made by name (flag, `PYTHON_EXEC`) is taken or refused, never replaced by another; the other places
//! are passed over when there is no Python in them.
//!
//! Symbolic links are not resolved: `bin/python` of a virtual environment is a link, and only under its own name does
//! Python find the environment's packages.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Where programs are looked up when `PATH` is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The Python that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// Absolute path, links not resolved.
    pub path: PathBuf,
    /// The place in the order, for messages: `chosen because …`.
    pub chosen_because: &'static str,
}

/// Why there is no Python.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpreterError {
    /// The user named one that cannot be run.
    #[error(
        "no Python at {name:?}, which {named_by} names: tried {tried}\nhint: {named_by} takes a path, or a program name to look up on PATH"
    )]
    NotThere {
        /// As the user wrote it.
        name: OsString,
        /// Flag or variable.
        named_by: &'static str,
        /// Every file looked at.
        tried: Tried,
    },
    /// Nothing anywhere.
    #[error(
        "no Python found: tried {0}\nhint: activate a virtual environment, or name one with --python or PYTHON_EXEC"
    )]
    NotFound(Tried),
}

/// Files that were looked at, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tried(pub Vec<PathBuf>);

impl fmt::Display for Tried {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return formatter.write_str("nothing, because PATH is empty");
        }
        for (position, path) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(formatter, "{separator}{}", path.display())?;
        }
        Ok(())
    }
}

/// Finds the interpreter. `explicit` is the flag's value, `environment` reads a variable, `binary` is the running program
/// (links resolved, as [`std::env::current_exe`] gives it).
pub fn find(
    explicit: Option<&Path>,
    environment: impl Fn(&str) -> Option<OsString>,
    binary: Option<&Path>,
) -> Result<Interpreter, InterpreterError> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let search_path = environment("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let python_exec = variable("PYTHON_EXEC");

    let named = explicit.map(|flag| (flag.as_os_str(), "--python"));
    if let Some((name, named_by)) = named.or(python_exec.as_deref().map(|name| (name, "PYTHON_EXEC"))) {
        let chosen_because = if explicit.is_some() { "--python names it" } else { "PYTHON_EXEC names it" };
        let candidates = named_candidates(name, &search_path);
        return first_program(&candidates, chosen_because).ok_or_else(|| InterpreterError::NotThere {
            name: name.to_owned(),
            named_by,
            tried: Tried(candidates),
        });
    }

    let mut tried = Vec::new();
    let virtual_environment = variable("VIRTUAL_ENV").map(PathBuf::from);
    let beside = binary.and_then(Path::parent);
    for (candidates, chosen_because) in [
        (virtual_environment.map(|folder| folder.join("bin/python")).into_iter().collect(), "VIRTUAL_ENV is active"),
        (
            beside.map(|folder| vec![folder.join("python"), folder.join("python3")]).unwrap_or_default(),
            "it is beside the instep binary",
        ),
        (
            [on_path("python3", &search_path), on_path("python", &search_path)].concat(),
            "it is the first Python on PATH",
        ),
    ] {
        if let Some(found) = first_program(&candidates, chosen_because) {
            return Ok(found);
        }
        tried.extend(candidates);
    }
    Err(InterpreterError::NotFound(Tried(tried)))
}

/// A bare name is looked up on `PATH`; anything with a slash is a file.
fn named_candidates(name: &OsStr, search_path: &OsStr) -> Vec<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') { vec![name.into()] } else { on_path(name, search_path) }
}

fn on_path(name: impl AsRef<Path>, search_path: &OsStr) -> Vec<PathBuf> {
    let folders = std::env::split_paths(search_path).filter(|folder| !folder.as_os_str().is_empty());
    folders.map(|folder| folder.join(&name)).collect()
}

fn first_program(candidates: &[PathBuf], chosen_because: &'static str) -> Option<Interpreter> {
    let found = candidates.iter().find(|path| path.is_file() && access(*path, AccessFlags::X_OK).is_ok())?;
    // Absolute, so that it stays the same file for a worker that starts in another folder.
    let path = std::path::absolute(found).unwrap_or_else(|_| found.clone());
    Some(Interpreter { path, chosen_because })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        fn with(programs: &[&str]) -> Self {
            let machine = Self { folder: tempfile::tempdir().unwrap() };
            for program in programs {
                let path = machine.path(program);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, "").unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            machine
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// `@` in a variable stands for the machine's folder.
        fn find(&self, explicit: Option<&str>, variables: &[(&str, &str)]) -> Result<Interpreter, InterpreterError> {
            let expand = |text: &str| text.replace('@', self.folder.path().to_str().unwrap());
            let explicit = explicit.map(|text| PathBuf::from(expand(text)));
            let environment = |name: &str| {
                let value = variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| expand(value));
                value.or_else(|| (name == "PATH").then(|| expand("@/path1:@/path2"))).map(OsString::from)
            };
            find(explicit.as_deref(), environment, Some(&self.path("beside/instep")))
        }
    }

    const EVERYTHING: [&str; 8] = [
        "flag/python",
        "exec/python",
        "venv/bin/python",
        "beside/python",
        "beside/python3",
        "path1/python",
        "path2/python3",
        "path2/python3.12",
    ];

    type Variables = &'static [(&'static str, &'static str)];

    #[test]
    fn the_one_order() {
        let all: Variables = &[("PYTHON_EXEC", "@/exec/python"), ("VIRTUAL_ENV", "@/venv")];
        let cases: &[(Option<&str>, Variables, &[&str], &str)] = &[
            (Some("@/flag/python"), all, &[], "flag/python"),
            (Some("python3.12"), all, &[], "path2/python3.12"),
            (None, all, &[], "exec/python"),
            (None, &[("PYTHON_EXEC", "python3.12")], &[], "path2/python3.12"),
            (None, &[("PYTHON_EXEC", ""), ("VIRTUAL_ENV", "@/venv")], &[], "venv/bin/python"),
            (None, &[("VIRTUAL_ENV", "@/gone")], &[], "beside/python"),
            (None, &[], &[], "beside/python"),
            (None, &[], &["beside/python"], "beside/python3"),
            (None, &[], &["beside/python", "beside/python3"], "path2/python3"),
            (None, &[], &["beside/python", "beside/python3", "path2/python3"], "path1/python"),
        ];
        for (explicit, variables, removed, wanted) in cases {
            let machine = Machine::with(&EVERYTHING);
            for name in *removed {
                fs::remove_file(machine.path(name)).unwrap();
            }
            let found = machine.find(*explicit, variables).unwrap();
            assert_eq!(found.path, machine.path(wanted), "{explicit:?} {variables:?} without {removed:?}");
        }
    }

    #[test]
    fn a_virtual_environments_link_keeps_its_name() {
        let machine = Machine::with(&["usr/bin/python3.12"]);
        fs::create_dir_all(machine.path("venv/bin")).unwrap();
        symlink(machine.path("usr/bin/python3.12"), machine.path("venv/bin/python")).unwrap();
        let found = machine.find(None, &[("VIRTUAL_ENV", "@/venv")]).unwrap();
        assert_eq!(found.path, machine.path("venv/bin/python"));
        assert_eq!(found.chosen_because, "VIRTUAL_ENV is active");
    }

    #[test]
    fn a_named_python_is_never_replaced_by_another() {
        let machine = Machine::with(&EVERYTHING);
        let missing = machine.find(None, &[("PYTHON_EXEC", "pypy3")]).unwrap_err();
        let text = missing.to_string();
        assert!(text.contains("PYTHON_EXEC") && text.contains("path1/pypy3") && text.contains("path2/pypy3"), "{text}");
        fs::set_permissions(machine.path("flag/python"), fs::Permissions::from_mode(0o644)).unwrap();
        let text = machine.find(Some("@/flag/python"), &[]).unwrap_err().to_string();
        assert!(text.contains("--python") && text.contains("flag/python"), "{text}");
        // A folder is not a program.
        assert!(machine.find(Some("@/flag"), &[]).is_err());
    }

    #[test]
    fn everything_that_was_tried_is_named() {
        let machine = Machine::with(&[]);
        let text = machine.find(None, &[("VIRTUAL_ENV", "@/venv")]).unwrap_err().to_string();
        for name in ["venv/bin/python", "beside/python", "beside/python3", "path1/python3", "path2/python", "hint: "] {
            assert!(text.contains(name), "{name} in {text}");
        }
        let nothing = find(None, |_| Some(OsString::new()), None).unwrap_err().to_string();
        assert!(nothing.contains("PATH is empty"), "{nothing}");
    }
}
