//! Saving and restoring with real files: several ranks, crashes in between, and damage afterwards.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use instep_checkpoint::{Error, Folder, MANIFEST, METADATA, merge};

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Every rank writes its own file, one in a folder that all have, and one that all have alike.
fn written(folder: &Folder, ranks: usize) -> Vec<Vec<instep_checkpoint::Entry>> {
    (0..ranks)
        .map(|rank| {
            let path = folder.begin(UUID, rank).unwrap();
            fs::write(path.join(format!("state_{rank}")), format!("99,{rank}")).unwrap();
            fs::create_dir_all(path.join("folder/empty")).unwrap();
            fs::write(path.join("folder").join(format!("inner_{rank}")), "inner").unwrap();
            fs::write(path.join("shared"), "alike").unwrap();
            folder.seal(UUID, rank).unwrap()
        })
        .collect()
}

fn saved(root: &Path, ranks: usize) -> Folder {
    let folder = Folder::new(root);
    let lists = written(&folder, ranks);
    let merged = merge(&lists).unwrap();
    for (rank, names) in merged.brought.iter().enumerate() {
        folder.join(UUID, rank, names).unwrap();
    }
    let manifest = folder.commit(UUID, r#"{"steps_completed": 99}"#, &merged.entries).unwrap();
    assert_eq!(manifest.resources()["state_0"], 4);
    folder
}

#[test]
fn a_sharded_checkpoint_is_one_folder_with_everything() {
    for ranks in [1, 2, 4] {
        let root = tempfile::tempdir().unwrap();
        let folder = saved(root.path(), ranks);
        let opened = folder.open(UUID, None).unwrap();
        assert!(opened.verified);
        assert_eq!(opened.path, root.path().join(UUID));
        for rank in 0..ranks {
            let text = fs::read_to_string(opened.path.join(format!("state_{rank}"))).unwrap();
            assert_eq!(text, format!("99,{rank}"));
        }
        let names: Vec<String> = folder.list(UUID).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 2 * ranks + 4, "{names:?}");
        assert!(names.contains(&"folder/empty/".to_owned()) && names.contains(&METADATA.to_owned()));
        let left: Vec<_> = fs::read_dir(root.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing but the checkpoint is left");
    }
}

#[test]
fn before_the_last_step_there_is_nothing_that_looks_like_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path());
    let nothing = || {
        let visible = fs::read_dir(root.path()).unwrap().filter_map(Result::ok);
        assert!(visible.into_iter().all(|entry| entry.file_name().to_string_lossy().starts_with('.')));
        assert!(matches!(folder.open(UUID, None), Err(Error::Absent { .. })));
    };
    let lists = written(&folder, 2);
    nothing();
    let merged = merge(&lists).unwrap();
    folder.join(UUID, 0, &merged.brought[0]).unwrap();
    nothing();
    // Rank 1 is on another machine, or dies here.
    let refused = folder.commit(UUID, "{}", &merged.entries).unwrap_err();
    assert!(matches!(refused, Error::Missing { .. }), "{refused}");
    nothing();
    folder.abandon(UUID).unwrap();
    folder.abandon(UUID).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn damage_is_noticed_and_named() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 5] = [
        ("state_0", |path| fs::write(path, "99,1").unwrap()),
        ("state_0", |path| fs::write(path, "99,10").unwrap()),
        ("state_0", |path| fs::remove_file(path).unwrap()),
        ("folder/inner_0", |path| {
            fs::remove_file(path).unwrap();
            symlink("/etc/hostname", path).unwrap();
        }),
        (METADATA, |path| fs::write(path, r#"{"steps_completed": 98}"#).unwrap()),
    ];
    for (name, damage) in cases {
        let root = tempfile::tempdir().unwrap();
        let folder = saved(root.path(), 1);
        damage(&root.path().join(UUID).join(name));
        let refused = folder.open(UUID, None).unwrap_err().to_string();
        assert!(refused.contains(&format!("`{name}`")) && refused.contains(UUID), "{refused}");
        assert!(folder.open(UUID, Some(&["shared".to_owned()])).is_ok(), "what is wanted is intact");
    }
    let root = tempfile::tempdir().unwrap();
    let folder = saved(root.path(), 1);
    fs::write(root.path().join(UUID).join(MANIFEST), "{").unwrap();
    assert!(matches!(folder.open(UUID, None), Err(Error::Manifest { .. })));
}

#[test]
fn a_checkpoint_of_the_stock_client_is_opened_unverified() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join(UUID)).unwrap();
    fs::write(root.path().join(UUID).join("model"), "x").unwrap();
    let folder = Folder::new(root.path());
    assert!(!folder.open(UUID, None).unwrap().verified);
    assert_eq!(folder.list(UUID).unwrap(), [("model".to_owned(), 1)]);
    folder.delete(UUID).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn links_and_reserved_names_are_not_saved() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path());
    let path = folder.begin(UUID, 0).unwrap();
    symlink("/etc/hostname", path.join("link")).unwrap();
    assert!(matches!(folder.seal(UUID, 0), Err(Error::Kind { .. })));
    fs::remove_file(path.join("link")).unwrap();
    for name in [METADATA, MANIFEST] {
        fs::write(path.join(name), "x").unwrap();
        assert!(matches!(folder.seal(UUID, 0), Err(Error::Name(_))));
        fs::remove_file(path.join(name)).unwrap();
    }
    for uuid in ["", "..", "../x", "0123", "01234567-89ab-cdef-0123-456789abcde/"] {
        assert!(matches!(folder.begin(uuid, 0), Err(Error::Uuid(_))), "{uuid}");
        assert!(matches!(folder.open(uuid, None), Err(Error::Uuid(_))), "{uuid}");
    }
}
