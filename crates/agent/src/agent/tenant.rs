//! The one user whom an agent without root serves.
//!
//! All its tasks run as one Unix user, and processes of one Unix user can read each other's memory and files: another
//! user's task could take this one's token. So the first user to get a task stays the only one, also after a restart, unless
//! the administrator names another or says that its users trust each other.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

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
    /// The first one's, who is remembered in a file.
    First(PathBuf),
}

impl Tenant {
    /// From what the administrator said.
    pub fn new(state: &StateFolder, shared: bool, named: Option<&str>) -> Tenant {
        match named {
            _ if shared || geteuid().is_root() => Tenant::Everybody,
            Some(name) => Tenant::Named(name.to_owned()),
            None => Tenant::First(state.path().join("serves")),
        }
    }

    /// What the master is told, so that it places no task here that would be refused.
    pub fn serves(&self) -> Serves {
        match self {
            Tenant::Everybody => Serves::Everybody,
            Tenant::Named(name) => Serves::User { name: name.clone() },
            Tenant::First(path) => match read_bounded(path, LONGEST_NAME) {
                Ok(bytes) => Serves::User { name: String::from_utf8_lossy(&bytes).into_owned() },
                Err(_) => Serves::First,
            },
        }
    }

    /// Whether a user's task is taken; `Err` says why not.
    pub fn admit(&self, agent: &str, user: &str) -> Result<(), String> {
        let served = match self {
            Tenant::Everybody => return Ok(()),
            Tenant::Named(name) => name.clone(),
            Tenant::First(path) => remembered(path, user).map_err(|error| {
                format!("the agent cannot write down whom it serves, in {}: {error}", path.display())
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

/// The user in the file, or this one from now on.
fn remembered(path: &std::path::Path, user: &str) -> io::Result<String> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            file.write_all(user.as_bytes())?;
            file.sync_all()?;
            Ok(user.to_owned())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let bytes = read_bounded(path, LONGEST_NAME)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_stays_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let tenant = Tenant::First(folder.path().join("serves"));
        assert_eq!(tenant.serves(), Serves::First);
        tenant.admit("a", "carol").unwrap();
        assert_eq!(tenant.serves(), Serves::User { name: "carol".to_owned() });
        tenant.admit("a", "carol").unwrap();
        let why = tenant.admit("a", "dave").unwrap_err();
        assert!(why.contains("serves only user carol") && why.contains("\nhint: "), "{why}");
        Tenant::Named("dave".to_owned()).admit("a", "dave").unwrap();
        Tenant::Everybody.admit("a", "dave").unwrap();
    }
}
