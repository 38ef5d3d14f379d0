//! Whether another user of this machine may run a program: what an agent that runs as root says before tasks fail.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const ENTER_OR_RUN: u32 = 0o1;

/// The first folder or file on the way to a program, links followed, that this user may not enter or run.
pub(super) fn barrier(program: &Path, uid: u32, gid: u32) -> Option<PathBuf> {
    let real = program.canonicalize().ok();
    // The folders of the link itself count, too.
    let mut ways: Vec<&Path> = program.parent().into_iter().flat_map(Path::ancestors).collect();
    ways.extend(real.iter().flat_map(|real| real.ancestors()));
    ways.sort_by_key(|path| path.components().count());
    ways.into_iter().find(|path| !may_pass(path, uid, gid)).map(Path::to_path_buf)
}

fn may_pass(path: &Path, uid: u32, gid: u32) -> bool {
    // What is not there, or cannot be looked at, is told by whoever needs it.
    let Ok(found) = path.metadata() else { return true };
    let shift = match (found.uid() == uid, found.gid() == gid) {
        (true, _) => 6,
        (false, true) => 3,
        (false, false) => 0,
    };
    uid == 0 || found.permissions().mode() >> shift & ENTER_OR_RUN != 0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_closed_folder_on_the_way_is_named_also_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        set(&root, 0o755);
        let (home, venv) = (root.join("home"), root.join("venv"));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(&venv).unwrap();
        let (real, link) = (home.join("python3.11"), venv.join("python"));
        fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let owner = fs::metadata(&real).unwrap().uid();
        let (other, group) = (owner + 1, u32::MAX);
        set(&home, 0o755);
        set(&real, 0o755);
        assert_eq!(barrier(&link, other, group), None);
        set(&home, 0o700);
        assert_eq!(barrier(&link, other, group), Some(home.clone()));
        assert_eq!(barrier(&link, owner, group), None);
        assert_eq!(barrier(&link, 0, 0), None);
        set(&home, 0o755);
        set(&real, 0o644);
        assert_eq!(barrier(&link, other, group), Some(real));
    }
}
