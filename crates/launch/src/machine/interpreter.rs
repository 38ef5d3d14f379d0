//! Which Python runs the workers, and what it says about itself.
//!
//! [`find`] follows one order everywhere: the flag, `PYTHON_EXEC`, `VIRTUAL_ENV`, the folder of the running binary, `PATH`.
//! A choice the user made by name (flag, `PYTHON_EXEC`) is taken or refused, never replaced by another; the other places
//! are passed over when there is no Python in them.
//!
//! Symbolic links are not resolved: `bin/python` of a virtual environment is a link, and only under its own name does
//! Python find the environment's packages.
//!
//! [`Interpreter::inspect`] asks for the version and the module folders; [`Inspection::installed`] then looks packages up
//! in those folders, so that a package's version is known without importing it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
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
    /// It is there, for others.
    #[error(
        "the user {user} may not run {path}, which {named_by} names: Permission denied\nhint: choose a Python that this \
         user may run, not one in somebody else's home folder; an agent takes it as --python"
    )]
    Forbidden {
        /// The file.
        path: PathBuf,
        /// Flag or variable.
        named_by: &'static str,
        /// Who asks.
        user: String,
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
        let chosen_because = if explicit.is_some() { "set by --python" } else { "set by PYTHON_EXEC" };
        let candidates = named_candidates(name, &search_path);
        return first_program(&candidates, chosen_because).ok_or_else(|| match forbidden(&candidates) {
            Some(path) => InterpreterError::Forbidden { path, named_by, user: own_name() },
            None => InterpreterError::NotThere { name: name.to_owned(), named_by, tried: Tried(candidates) },
        });
    }

    let mut tried = Vec::new();
    let virtual_environment = variable("VIRTUAL_ENV").map(PathBuf::from);
    let beside = binary.and_then(Path::parent);
    for (candidates, chosen_because) in [
        (virtual_environment.map(|folder| folder.join("bin/python")).into_iter().collect(), "VIRTUAL_ENV is active"),
        (
            beside.map(|folder| vec![folder.join("python"), folder.join("python3")]).unwrap_or_default(),
            "it is next to the instep binary",
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

/// The first file that cannot be looked at, or not be run, for lack of rights.
fn forbidden(candidates: &[PathBuf]) -> Option<PathBuf> {
    let is_refused = |path: &&PathBuf| access(*path, AccessFlags::X_OK) == Err(Errno::EACCES);
    candidates.iter().find(is_refused).cloned()
}

fn own_name() -> String {
    let uid = nix::unistd::geteuid();
    nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Longest wait for a Python that only has to start.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of an interpreter's output that are kept; the rest is read and dropped.
const OUTPUT_LIMIT: usize = 1 << 20;

/// What a Python says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// As in `3.12.1`.
    pub version: String,
    /// The folders it imports from, first match wins.
    pub folders: Vec<PathBuf>,
}

impl Interpreter {
    /// Starts the interpreter and lets it describe itself. Nothing but `sys` is imported.
    pub fn inspect(&self) -> io::Result<Inspection> {
        const QUESTION: &str = r#"
import sys
print("\ninstep-version %d.%d.%d" % sys.version_info[:3])
for folder in sys.path:
    print("instep-folder " + folder)
"#;
        let (status, output) = ask(&self.path, &[QUESTION], INSPECT_TIMEOUT)?;
        let Some(version) = output.lines().find_map(|line| line.strip_prefix("instep-version ")) else {
            let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            return Err(io::Error::other(format!("it exited with {status}: {}", last.trim())));
        };
        let folders = output.lines().filter_map(|line| line.strip_prefix("instep-folder "));
        // The empty folder stands for the current one, which is not where packages are installed.
        let folders = folders.filter(|folder| !folder.is_empty()).map(PathBuf::from).collect();
        Ok(Inspection { version: version.to_owned(), folders })
    }
}

impl Inspection {
    /// Whether an installed package other than ours has entry points in this group, read from the packages' metadata.
    pub fn has_entry_points(&self, group: &str) -> bool {
        let section = format!("[{group}]");
        let entries = self.folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        entries
            .filter(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                name.ends_with("-info") && !name.starts_with("instep-")
            })
            .filter_map(|entry| fs::read_to_string(entry.path().join("entry_points.txt")).ok())
            .any(|text| text.lines().any(|line| line.trim() == section))
    }

    /// The installed version of a package, read from its metadata (`<package>-*.dist-info`), else from its `version.py`.
    pub fn installed(&self, package: &str) -> Option<String> {
        self.folders.iter().find_map(|folder| {
            let from_metadata = fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
                let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
                let rest = name.strip_prefix(package)?;
                let file = match rest {
                    rest if rest.starts_with('-') && rest.ends_with(".dist-info") => "METADATA",
                    rest if rest.ends_with(".egg-info") => "PKG-INFO",
                    _ => return None,
                };
                let metadata = fs::read_to_string(entry.path().join(file)).ok()?;
                metadata.lines().find_map(|line| line.strip_prefix("Version:")).map(|version| version.trim().to_owned())
            });
            from_metadata.or_else(|| {
                let source = fs::read_to_string(folder.join(package).join("version.py")).ok()?;
                let value = source.lines().find_map(|line| line.strip_prefix("__version__ ="))?;
                Some(value.trim().trim_matches(['\'', '"']).to_owned())
            })
        })
    }
}

/// Runs `python -c <first argument> <further arguments>` and returns its output and errors in one text. Past the time-out
/// it is killed.
pub(crate) fn ask(python: &Path, arguments: &[&str], timeout: Duration) -> io::Result<(ExitStatus, String)> {
    let deadline = Instant::now() + timeout;
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(python);
    command.arg("-c").args(arguments).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // Holds the writing ends of the pipe: with it alive the output would never end.
    drop(command);
    let result = read_until_exit(&mut child, reader, deadline);
    if result.is_err() {
        // Already gone is as good as killed.
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

fn read_until_exit(
    child: &mut Child,
    mut reader: io::PipeReader,
    deadline: Instant,
) -> io::Result<(ExitStatus, String)> {
    let mut output = Vec::new();
    let mut chunk = [0; 8192];
    loop {
        // An answer may be complete although a grandchild keeps the pipe open, so look for the exit too.
        let exited = child.try_wait()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if exited.is_none() && left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let wait_ms = if exited.is_some() { 0 } else { left.as_millis().clamp(1, 20) as u16 };
        let mut descriptors = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        let ready = match poll(&mut descriptors, PollTimeout::from(wait_ms)) {
            Ok(ready) => ready > 0,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let length = if ready { reader.read(&mut chunk)? } else { 0 };
        let kept = length.min(OUTPUT_LIMIT.saturating_sub(output.len()));
        output.extend_from_slice(&chunk[..kept]);
        if length == 0 {
            if let Some(status) = exited {
                return Ok((status, String::from_utf8_lossy(&output).into_owned()));
            }
            if ready {
                // The pipe is closed and the process about to end: do not spin on a readable end of file.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn versions_are_read_without_importing() {
        let machine = Machine::with(&[]);
        let write = |name: &str, text: &str| {
            let path = machine.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("first/torch_geometric-2.6.1.dist-info/METADATA", "Name: torch-geometric\nVersion: 2.6.1\n");
        write(
            "second/torch-2.15.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0+cpu\n\nText",
        );
        write("third/torch-2.1.0.dist-info/METADATA", "Version: 2.1.0\n");
        write("third/numpy/version.py", "import x\n__version__ = '2.3.4'\n");
        write("third/instep.egg-info/PKG-INFO", "Version: 0.1.0\n");
        let folders = ["gone", "first", "second", "third"].map(|name| machine.path(name)).to_vec();
        let inspection = Inspection { version: "3.12.1".to_owned(), folders };
        for (package, wanted) in
            [("torch", Some("2.15.0+cpu")), ("numpy", Some("2.3.4")), ("instep", Some("0.1.0")), ("jax", None)]
        {
            assert_eq!(inspection.installed(package).as_deref(), wanted, "{package}");
        }
    }

    #[test]
    fn a_program_that_is_no_python_is_explained() {
        let interpreter = |path: &str| Interpreter { path: path.into(), chosen_because: "a test says so" };
        let error = interpreter("/bin/false").inspect().unwrap_err().to_string();
        assert!(error.contains("exit status: 1"), "{error}");
        assert_eq!(interpreter("/nonexistent/python").inspect().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn entry_points_are_found_by_their_group() {
        let folder = tempfile::tempdir().expect("a folder");
        let install = |package: &str, entries: &str| {
            let metadata = folder.path().join(format!("{package}-1.0.dist-info"));
            fs::create_dir(&metadata).expect("created");
            fs::write(metadata.join("entry_points.txt"), entries).expect("written");
        };
        let found = Inspection { version: "3.12.1".to_owned(), folders: vec![folder.path().to_owned()] };
        install("instep", "[torch.backends]\ninstep = instep:x\n");
        assert!(!found.has_entry_points("torch.backends"), "our own brings no device");
        install("plugin", "[console_scripts]\nx = y:z\n\n[torch.backends]\nnpu = a:b\n");
        assert!(found.has_entry_points("torch.backends") && !found.has_entry_points("torch.other"));
    }
}
