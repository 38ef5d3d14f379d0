//! Names for a task's user and group where the machine has none, such as for a Unix user that only accounts name: programs
//! that ask for them would fail.
//!
//! The files that answer are the machine's own with a line more, seen by the task alone.

use std::fs;
use std::io;
use std::path::Path;

use instep_api::link::RunAs;
use nix::unistd::{Gid, Group, Uid, User};

use super::mounts;
use crate::folder::TaskFolder;

/// Lines that the machine's files lack.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    passwd: Option<String>,
    group: Option<String>,
}

impl Names {
    /// What the machine lacks for a user, asked before the task has a say in what is seen at `/etc`.
    pub fn lacking(user: &RunAs) -> io::Result<Names> {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        let names_user = !user.user.is_empty() && User::from_uid(uid)?.is_none();
        let names_group = !user.group.is_empty() && Group::from_gid(gid)?.is_none();
        Ok(Names {
            passwd: names_user.then(|| format!("{}:x:{uid}:{gid}::/:/bin/sh\n", user.user)),
            group: names_group.then(|| format!("{}:x:{gid}:\n", user.group)),
        })
    }

    /// Lets the task see them. The process must be in the task's mount namespace.
    pub fn show(&self, share: &TaskFolder) -> io::Result<()> {
        for (line, file) in [(&self.passwd, "/etc/passwd"), (&self.group, "/etc/group")] {
            let Some(line) = line else { continue };
            let file = Path::new(file);
            let mut text = fs::read_to_string(file)?;
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            let own = share.path().join(file.file_name().unwrap_or_default());
            fs::write(&own, text + line)?;
            mounts::bind(&own, file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_machine_does_not_know_is_named() {
        let named = |uid, gid| RunAs { uid, gid, user: "ann".to_owned(), group: "staff".to_owned() };
        assert_eq!(Names::lacking(&named(0, 0)).unwrap(), Names::default());
        let unknown = Names::lacking(&named(41_234, 41_235)).unwrap();
        assert_eq!(unknown.passwd.as_deref(), Some("ann:x:41234:41235::/:/bin/sh\n"));
        assert_eq!(unknown.group.as_deref(), Some("staff:x:41235:\n"));
        assert_eq!(Names::lacking(&RunAs::unnamed(41_234, 41_235)).unwrap(), Names::default());
    }
}
