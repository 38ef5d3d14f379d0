//! Places that a task's mounts need and the machine does not have.
//!
//! A place is made with the rights of the task's user where they are enough: then it is a folder of the machine like any
//! other that the task makes. Where they are not, the deepest folder on the way that exists gets a stand-in, which only the
//! task sees: a small file system in memory, in which everything that lies in the folder is bound and what is missing is
//! made. A stand-in for `/` becomes the task's root.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, chroot, pivot_root};

use super::mounts::{as_user, bind, stays_inside};
use super::privileges::Account;

/// Makes a place for a mount: a folder, or a file for what is none. `scratch` is an empty folder of ours.
pub fn provide(path: &Path, is_folder: bool, account: Option<&Account>, scratch: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if !stays_inside(path) {
        return Err(io::Error::other("a path with `..` in it is not made"));
    }
    match as_user(account, || make(path, is_folder)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {}
        made => return made,
    }
    let folder = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    fs::create_dir_all(scratch)?;
    stand_in(folder, scratch)?;
    make(path, is_folder)
}

/// Makes a folder or an empty file, and the folders on the way.
pub fn make(path: &Path, is_folder: bool) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    if is_folder { fs::create_dir(path) } else { File::create(path).map(drop) }
}

/// Lets a folder in memory be seen in place of `folder`, with everything that was in it.
fn stand_in(folder: &Path, scratch: &Path) -> io::Result<()> {
    fill(folder, scratch)?;
    if folder != Path::new("/") {
        return Ok(mount(Some(scratch), folder, None::<&str>, MsFlags::MS_MOVE, None::<&str>)?);
    }
    chdir(scratch)?;
    // The new root over the old one, which is then taken away. Not where the old one is the kernel's first, as on machines
    // that run from memory.
    match pivot_root(".", ".") {
        Ok(()) => umount2(".", MntFlags::MNT_DETACH)?,
        Err(_) => chroot(".")?,
    }
    chdir("/")?;
    Ok(())
}

/// Mounts a file system in memory at `to`, and shows everything in it that is in `from`.
pub fn fill(from: &Path, to: &Path) -> io::Result<()> {
    let entries: Vec<_> = fs::read_dir(from)?.flatten().collect();
    mount(Some("tmpfs"), to, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("size=1m,mode=755"))?;
    // Where `to` lies in what is bound, it is not bound again with it.
    become_kind(to, MsFlags::MS_UNBINDABLE)?;
    for entry in entries {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if let Ok(target) = fs::read_link(&from) {
            symlink(target, to)?;
            continue;
        }
        make(&to, entry.file_type()?.is_dir())?;
        // What cannot be bound, such as a service's private folder, could not be used either.
        drop(bind(&from, &to));
    }
    become_kind(to, MsFlags::MS_PRIVATE)
}

fn become_kind(mounted: &Path, kind: MsFlags) -> io::Result<()> {
    Ok(mount(None::<&str>, mounted, None::<&str>, kind, None::<&str>)?)
}
