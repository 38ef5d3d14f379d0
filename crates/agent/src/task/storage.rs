//! Checkpoint storage as a task sees it: where it is, and whether it can be used.
//!
//! The configuration that a task reads is the user's. Determined's package takes a `shared_fs` for a mount in a container,
//! always at the same place, so a task's view has its folder there too ([`mount_of`]).

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use instep_api::link::Mount;
use serde_json::Value;

use crate::order::TaskOrder;

/// Where Determined's package looks for the `host_path` of a `shared_fs`.
const SHARED: &str = "/determined_shared_fs";

/// The section of the experiment's configuration, if the task is a trial.
pub fn config(order: &TaskOrder) -> Option<Value> {
    let text = order.start.environment.get("DET_EXPERIMENT_CONFIG")?;
    serde_json::from_str::<Value>(text).ok()?.get_mut("checkpoint_storage").map(Value::take)
}

/// The mount by which Determined's package finds a `shared_fs`.
pub fn mount_of(order: &TaskOrder) -> Option<Mount> {
    let host_path = shared_path(&config(order)?)?.to_owned();
    Some(Mount { host_path, task_path: SHARED.to_owned(), read_only: false })
}

fn shared_path(storage: &Value) -> Option<&str> {
    let kind = storage.get("type")?.as_str()?;
    storage.get("host_path")?.as_str().filter(|path| kind == "shared_fs" && Path::new(path).is_absolute())
}

/// The folder of a storage that is one. `Err` says what is wrong with it.
pub fn folder(storage: &Value) -> Option<Result<PathBuf, String>> {
    let text = |key: &str| storage.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    match text("type")? {
        "directory" => Some(Ok(text("container_path")?.into())),
        "shared_fs" => {
            let found = shared_path(storage).ok_or("checkpoint_storage: shared_fs has no absolute host_path").and_then(
                |host| {
                    below(Path::new(host), text("storage_path").map(Path::new))
                        .ok_or("checkpoint_storage: storage_path is outside host_path")
                },
            );
            Some(found.map_err(str::to_owned))
        }
        _ => None,
    }
}

fn below(host: &Path, storage: Option<&Path>) -> Option<PathBuf> {
    let Some(storage) = storage else { return Some(host.to_owned()) };
    let inner = if storage.is_absolute() { storage.strip_prefix(host).ok()? } else { storage };
    let plain = inner.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    plain.then(|| host.join(inner))
}

/// Writes, reads and removes something in the folder. `name` is not taken by anybody else.
pub fn probe(folder: &Path, name: &str) -> io::Result<()> {
    let place = folder.join(name);
    let outcome = try_out(&place, name);
    let removed = fs::remove_dir_all(&place);
    outcome.and(removed).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
}

fn try_out(place: &Path, content: &str) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let file = place.join("VALIDATE.txt");
    fs::write(&file, content)?;
    if fs::read_to_string(&file)? != content {
        return Err(io::Error::other("the data read differs from the data written"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::task::testing::order;

    #[test]
    fn the_folder_of_a_storage_is_found() {
        let cases = [
            (json!({"host_path": "/data"}), Ok("/data")),
            (json!({"host_path": "/data", "storage_path": null}), Ok("/data")),
            (json!({"host_path": "/data", "storage_path": "a/b"}), Ok("/data/a/b")),
            (json!({"host_path": "/data", "storage_path": "/data/c"}), Ok("/data/c")),
            (json!({"host_path": "/data", "storage_path": "/other"}), Err("is outside")),
            (json!({"host_path": "/data", "storage_path": "../x"}), Err("is outside")),
            (json!({}), Err("has no absolute host_path")),
        ];
        for (mut storage, expected) in cases {
            storage["type"] = "shared_fs".into();
            match (folder(&storage).unwrap(), expected) {
                (Ok(found), Ok(path)) => assert_eq!(found, Path::new(path)),
                (Err(found), Err(wanted)) => assert!(found.contains(wanted), "{found}"),
                (found, wanted) => panic!("{storage}: {found:?} instead of {wanted:?}"),
            }
        }
        assert_eq!(folder(&json!({"type": "directory", "container_path": "/a"})), Some(Ok("/a".into())));
        assert_eq!(folder(&json!({"type": "s3", "bucket": "b"})), None);
    }

    #[test]
    fn a_shared_folder_is_mounted_where_the_package_looks() {
        let mut order = order();
        assert_eq!(mount_of(&order), None);
        let config = r#"{"checkpoint_storage":{"type":"shared_fs","host_path":"/data","storage_path":"c"}}"#;
        order.start.environment.insert("DET_EXPERIMENT_CONFIG".into(), config.into());
        let mount = mount_of(&order).unwrap();
        assert_eq!((&*mount.host_path, &*mount.task_path), ("/data", "/determined_shared_fs"));
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        probe(&folder.path().join("new"), "x").unwrap();
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(probe(&file, "x").unwrap_err().to_string().starts_with(file.to_str().unwrap()));
    }
}
