//! As whom a task runs: the user that the master names, where the agent may choose; else the agent's own.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::Path;

use instep_api::link::RunAs;
use nix::unistd::{Gid, Uid, User, geteuid, initgroups, setgid, setgroups, setuid};

/// The user to become, if there is one and we may.
pub fn other_user(run_as: Option<&RunAs>) -> Option<&RunAs> {
    run_as.filter(|wanted| geteuid().is_root() && wanted.uid != 0)
}

/// Gives a folder and what is in it to a user.
pub fn give(folder: &Path, to: &RunAs) -> io::Result<()> {
    lchown(folder, Some(to.uid), Some(to.gid))?;
    if fs::symlink_metadata(folder)?.is_dir() {
        for entry in fs::read_dir(folder)? {
            give(&entry?.path(), to)?;
        }
    }
    Ok(())
}

/// Becomes a user, for good.
pub fn become_user(user: &RunAs) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    match User::from_uid(uid)? {
        Some(known) => initgroups(&CString::new(known.name)?, gid)?,
        None => setgroups(&[gid])?,
    }
    setgid(gid)?;
    setuid(uid)?;
    Ok(())
}

/// The variables that name a user.
pub fn variables(user: &RunAs) -> io::Result<Vec<(&'static str, OsString)>> {
    let Some(known) = User::from_uid(Uid::from_raw(user.uid))? else {
        return Ok(vec![("HOME", "/".into()), ("USER", user.uid.to_string().into())]);
    };
    Ok(vec![("HOME", known.dir.into()), ("USER", known.name.clone().into()), ("LOGNAME", known.name.into())])
}
