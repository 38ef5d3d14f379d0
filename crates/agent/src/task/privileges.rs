//! As whom a task runs: on an agent of root the Unix user of its owner, or the one that the administrator chose for owners
//! without one; else the agent's own.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{fchown, lchown};
use std::path::Path;

use instep_api::link::RunAs;
use nix::unistd::{
    Gid, Uid, User, getegid, geteuid, getgrouplist, getgroups, setegid, seteuid, setgid, setgroups, setuid,
};

use crate::order::TaskOrder;

/// The user to become, if it is not ours. Only an administrator makes it root, by an account or by `--default-user`.
pub fn other_user(order: &TaskOrder) -> Option<RunAs> {
    let user = wanted_user(order);
    let is_ours = user.uid == geteuid().as_raw() && (order.start.run_group.is_none() || user.gid == getegid().as_raw());
    (geteuid().is_root() && !is_ours).then_some(user)
}

/// The owner's Unix user, or the machine's user for those who have none, with the group that the workspace may name.
fn wanted_user(order: &TaskOrder) -> RunAs {
    if let Some(user) = &order.start.run_as {
        return user.clone();
    }
    let default = order.machine.default_user.clone();
    match &order.start.run_group {
        Some(group) => RunAs { gid: group.gid, group: group.name.clone(), ..default },
        None => default,
    }
}

/// A user with everything that the machine knows of it. It is found before a task's folders are mounted: the task must
/// have no say in its groups, nor in the libraries that look them up.
#[derive(Debug)]
pub struct Account {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    known: Option<User>,
    /// What it is called if the machine does not know it; empty if nobody has said.
    called: String,
}

impl Account {
    /// Looks a user up. One that the machine does not know has no name, no home and no other groups.
    pub fn find(user: &RunAs) -> io::Result<Account> {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        let known = User::from_uid(uid)?;
        let groups = match &known {
            Some(known) => getgrouplist(&CString::new(known.name.as_str())?, gid)?,
            None => vec![gid],
        };
        Ok(Account { uid, gid, groups, known, called: user.user.clone() })
    }

    /// Whether it may do anything anyway, so that nothing is kept from it: root, in another group than ours.
    pub fn is_root(&self) -> bool {
        self.uid.is_root()
    }

    /// Becomes the user, for good.
    pub fn become_it(&self) -> io::Result<()> {
        setgroups(&self.groups)?;
        setgid(self.gid)?;
        setuid(self.uid)?;
        Ok(())
    }

    /// Does something with the rights of the user, and takes ours back. The process must have no other thread.
    pub fn acting<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let (groups, gid, uid) = (getgroups()?, getegid(), geteuid());
        setgroups(&self.groups)?;
        setegid(self.gid)?;
        seteuid(self.uid)?;
        let done = work();
        seteuid(uid)?;
        setegid(gid)?;
        setgroups(&groups)?;
        Ok(done)
    }

    /// The variables that name the user.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let named = match &self.known {
            Some(user) => vec![
                ("HOME", user.dir.clone().into_os_string()),
                ("USER", user.name.clone().into()),
                ("LOGNAME", user.name.clone().into()),
            ],
            None if self.called.is_empty() => vec![("HOME", "/".into()), ("USER", self.uid.to_string().into())],
            None => vec![
                ("HOME", "/".into()),
                ("USER", self.called.clone().into()),
                ("LOGNAME", self.called.clone().into()),
            ],
        };
        named.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    /// Gives what is in a folder to the user, and not yet the folder itself: while that is closed to the user, none of the
    /// user's other processes can put something else in the way of what is done here.
    pub fn give_content(&self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            lchown(&path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))?;
            if fs::symlink_metadata(&path)?.is_dir() {
                self.give_content(&path)?;
            }
        }
        Ok(())
    }

    /// Gives a folder that is open to the user, without what is in it.
    pub fn give(&self, folder: &File) -> io::Result<()> {
        fchown(folder, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }
}
