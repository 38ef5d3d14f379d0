//! The one user whom an agent without root serves.
//!
//! All its tasks run as one Unix user, and processes of one Unix user can read each other's memory and files: another
//! user's task could take this one's token. So the first user to get a task stays the only one, also after a restart, unless
//! the administrator names another or says that its users trust each other. What is remembered for a restart is a file that
//! a hostile task can change: only an administrator's word holds against such a one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use instep_api::link::Serves;
use nix::unistd::geteuid;

use crate::folder::{StateFolder, read_bounded};

/// Bytes of a user's name that are read.
const LONGEST_NAME: u64 = 4096;

/// Whose tasks an agent takes.
#[derive(Debug, Clone)]
pub enum Tenant {
    /// Everybody's: root gives each a Unix user, or the administrator said so.
    Everybody,
    /// This user's.
    Named(String),
    /// The first one's.
    First(FirstUser),
}

/// The first user to get a task, remembered in a file for the next agent. The file is of our user, as tasks are: it is read
/// once, so that no task of this agent's changes whom this agent serves.
#[derive(Debug, Clone)]
pub struct FirstUser {
    file: PathBuf,
    known: OnceLock<String>,
}

impl FirstUser {
    fn remembered_in(file: PathBuf) -> FirstUser {
        let name = read_bounded(&file, LONGEST_NAME).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        FirstUser { file, known: name.map_or_else(OnceLock::new, OnceLock::from) }
    }

    /// The first user, who is this one if there was none.
    fn or(&self, user: &str) -> io::Result<&str> {
        if self.known.get().is_none() {
            write_name(&self.file, user)?;
        }
        Ok(self.known.get_or_init(|| user.to_owned()))
    }
}

impl Tenant {
    /// From what the administrator said.
    pub fn new(state: &StateFolder, shared: bool, named: Option<&str>) -> Tenant {
        match named {
            _ if shared || geteuid().is_root() => Tenant::Everybody,
            Some(name) => Tenant::Named(name.to_owned()),
            None => Tenant::First(FirstUser::remembered_in(state.path().join("serves"))),
        }
    }

    /// What the master is told, so that it places no task here that would be refused.
    pub fn serves(&self) -> Serves {
        match self {
            Tenant::Everybody => Serves::Everybody,
            Tenant::Named(name) => Serves::User { name: name.clone() },
            Tenant::First(first) => match first.known.get() {
                Some(name) => Serves::User { name: name.clone() },
                None => Serves::First,
            },
        }
    }

    /// Whether a user's task is taken; `Err` says why not.
    pub fn admit(&self, agent: &str, user: &str) -> Result<(), String> {
        let served = match self {
            Tenant::Everybody => return Ok(()),
            Tenant::Named(name) => name,
            Tenant::First(first) => first.or(user).map_err(|error| {
                format!("the agent cannot write down whom it serves, in {}: {error}", first.file.display())
            })?,
        };
        if served == user {
            return Ok(());
        }
        Err(format!(
            "agent {agent} does not run as root and serves only user {served}: tasks of one Unix user can read each \
             other's tokens\nhint: run the agent as root with a Unix user for each account, or with --serve-user {user}, \
             or, if its users trust each other, with --shared-uid"
        ))
    }
}

/// Writes a name to a new file; what a task has put in its place goes.
fn write_name(path: &Path, user: &str) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(user.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_stays_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("serves");
        let tenant = Tenant::First(FirstUser::remembered_in(file.clone()));
        assert_eq!(tenant.serves(), Serves::First);
        tenant.admit("a", "carol").unwrap();
        assert_eq!(tenant.serves(), Serves::User { name: "carol".to_owned() });
        tenant.admit("a", "carol").unwrap();
        // A task of this agent's has our rights.
        fs::write(&file, "dave").unwrap();
        assert_eq!(tenant.serves(), Serves::User { name: "carol".to_owned() });
        fs::remove_file(&file).unwrap();
        let why = tenant.admit("a", "dave").unwrap_err();
        assert!(why.contains("serves only user carol") && why.contains("\nhint: "), "{why}");
        fs::write(&file, "carol").unwrap();
        Tenant::First(FirstUser::remembered_in(file)).admit("a", "dave").unwrap_err();
        Tenant::Named("dave".to_owned()).admit("a", "dave").unwrap();
        Tenant::Everybody.admit("a", "dave").unwrap();
    }
}
