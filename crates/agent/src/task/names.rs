//! Names for a task's user and group where the machine has none, such as for a Unix user that only accounts name: programs
//! that ask for them would fail. And a shell, where the machine's own does not let the user in who is to come by ssh.
//!
//! The files that answer are the machine's own with a line more, seen by the task alone.

use std::fs;
use std::io;
use std::path::Path;

use instep_api::link::RunAs;
use nix::unistd::{Gid, Group, Uid, User};

use super::mounts;
use super::view::RUN;
use crate::folder::OpenedTaskFolder;

const SHADOW: &str = "/etc/shadow";

/// Lines that the machine's files lack.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    passwd: Option<String>,
    group: Option<String>,
    /// That an account is not locked, in place of all that the machine says of passwords.
    shadow: Option<String>,
}

impl Names {
    /// What the machine lacks for a user, asked before the task has a say in what is seen at `/etc`; `logs_in` if the user
    /// needs a shell.
    pub fn lacking(user: &RunAs, logs_in: bool) -> io::Result<Names> {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        let mut shadow = None;
        let passwd = match User::from_uid(uid)? {
            Some(known) => (logs_in && !is_shell(&known.shell)).then(|| {
                let (name, folder) = (known.name, known.dir.display());
                // systemd locks `nobody`, and OpenSSH lets in nobody who is locked.
                shadow = Some(format!("{name}:*:::::::\n"));
                format!("{name}:x:{uid}:{}::{folder}:/bin/sh\n", known.gid)
            }),
            None => (!user.user.is_empty()).then(|| format!("{}:x:{uid}:{gid}::{RUN}/workdir:/bin/sh\n", user.user)),
        };
        let names_group = !user.group.is_empty() && Group::from_gid(gid)?.is_none();
        Ok(Names { passwd, group: names_group.then(|| format!("{}:x:{gid}:\n", user.group)), shadow })
    }

    /// Lets the task see them. The process must be in the task's mount namespace.
    pub fn show(&self, share: &OpenedTaskFolder) -> io::Result<()> {
        let files = [
            (&self.passwd, "passwd", "/etc/passwd"),
            (&self.group, "group", "/etc/group"),
            (&self.shadow, "shadow", SHADOW),
        ];
        for (line, name, file) in files {
            let (Some(line), file) = (line, Path::new(file)) else { continue };
            // A file of passwords need not be there, and none of it is for tasks.
            let text = match file == Path::new(SHADOW) {
                true if !file.exists() => continue,
                true => String::new(),
                false => fs::read_to_string(file)?,
            };
            // The first line of a name counts.
            let own = share.put(name, format!("{line}{text}").as_bytes())?;
            mounts::bind(&mounts::by_number(&own), file)?;
        }
        Ok(())
    }
}

/// Whether it lets somebody in.
fn is_shell(path: &Path) -> bool {
    path.is_file() && !path.ends_with("nologin") && !path.ends_with("false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_machine_does_not_know_is_named() {
        let named = |uid, gid| RunAs { uid, gid, user: "ann".to_owned(), group: "staff".to_owned() };
        assert_eq!(Names::lacking(&named(0, 0), true).unwrap(), Names::default());
        let unknown = Names::lacking(&named(41_234, 41_235), false).unwrap();
        assert_eq!(unknown.passwd.as_deref(), Some("ann:x:41234:41235::/run/determined/workdir:/bin/sh\n"));
        assert_eq!(unknown.group.as_deref(), Some("staff:x:41235:\n"));
        assert_eq!(Names::lacking(&RunAs::unnamed(41_234, 41_235), true).unwrap(), Names::default());
    }

    #[test]
    fn who_comes_by_ssh_has_a_shell() {
        // On every system: an account that nobody logs in to.
        let Some(daemon) = User::from_name("daemon").unwrap().filter(|user| !is_shell(&user.shell)) else { return };
        let user = RunAs::unnamed(daemon.uid.as_raw(), daemon.gid.as_raw());
        assert_eq!(Names::lacking(&user, false).unwrap(), Names::default());
        let found = Names::lacking(&user, true).unwrap();
        assert_eq!(found.shadow.as_deref(), Some("daemon:*:::::::\n"));
        let passwd = found.passwd.unwrap();
        assert!(passwd.starts_with("daemon:x:") && passwd.ends_with(":/bin/sh\n"), "{passwd}");
    }
}
