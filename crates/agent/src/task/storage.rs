//! Checkpoint storage as a task sees it: the path without containers, and whether it can be used.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

/// What a checkpoint storage in a folder may say besides its path.
const KEPT_KEYS: [&str; 3] = ["save_experiment_best", "save_trial_best", "save_trial_latest"];

/// Turns `shared_fs`, which means a mount in a container, into the folder itself.
///
/// `Err` says what is wrong with the configuration.
pub fn without_containers(config: &mut Value) -> Result<(), String> {
    let Some(storage) = config.get_mut("checkpoint_storage").and_then(Value::as_object_mut) else { return Ok(()) };
    if storage.get("type").and_then(Value::as_str) != Some("shared_fs") {
        return Ok(());
    }
    let text = |key: &str| storage.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let host = text("host_path").ok_or("checkpoint_storage: shared_fs has no host_path")?;
    let path = below(Path::new(host), text("storage_path").map(Path::new))
        .ok_or("checkpoint_storage: storage_path is outside host_path")?;
    let mut folder = Map::new();
    folder.insert("type".to_owned(), "directory".into());
    folder.insert("container_path".to_owned(), path.to_string_lossy().into());
    for key in KEPT_KEYS {
        folder.extend(storage.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    *storage = folder;
    Ok(())
}

fn below(host: &Path, storage: Option<&Path>) -> Option<PathBuf> {
    let Some(storage) = storage else { return Some(host.to_owned()) };
    let inner = if storage.is_absolute() { storage.strip_prefix(host).ok()? } else { storage };
    let plain = inner.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    plain.then(|| host.join(inner))
}

/// The folder of a configuration that stores checkpoints in one.
pub fn folder(config: &Value) -> Option<PathBuf> {
    let storage = config.get("checkpoint_storage")?;
    let path = match storage.get("type")?.as_str()? {
        "directory" => storage.get("container_path")?.as_str()?,
        _ => return None,
    };
    Some(PathBuf::from(path))
}

/// Writes, reads and removes something in the folder. `name` is not taken by anybody else.
pub fn probe(folder: &Path, name: &str) -> Result<(), String> {
    let place = folder.join(name);
    let outcome = try_out(&place, name);
    let removed = fs::remove_dir_all(&place);
    outcome.and(removed).map_err(|error| format!("{}: {error}", folder.display()))
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

    #[test]
    fn a_shared_folder_becomes_the_folder_itself() {
        let cases = [
            (json!({"host_path": "/data"}), Ok("/data")),
            (json!({"host_path": "/data", "storage_path": null}), Ok("/data")),
            (json!({"host_path": "/data", "storage_path": "a/b"}), Ok("/data/a/b")),
            (json!({"host_path": "/data", "storage_path": "/data/c"}), Ok("/data/c")),
            (json!({"host_path": "/data", "storage_path": "/other"}), Err("is outside")),
            (json!({"host_path": "/data", "storage_path": "../x"}), Err("is outside")),
            (json!({}), Err("has no host_path")),
        ];
        for (mut storage, expected) in cases {
            storage["type"] = "shared_fs".into();
            storage["save_trial_best"] = 2.into();
            storage["propagation"] = "rprivate".into();
            let mut config = json!({"checkpoint_storage": storage});
            match (without_containers(&mut config), expected) {
                (Ok(()), Ok(path)) => {
                    let wanted = json!({"type": "directory", "container_path": path, "save_trial_best": 2});
                    assert_eq!(config["checkpoint_storage"], wanted);
                    assert_eq!(folder(&config).as_deref(), Some(Path::new(path)));
                }
                (Err(found), Err(wanted)) => assert!(found.contains(wanted), "{found}"),
                (found, wanted) => panic!("{config}: {found:?} instead of {wanted:?}"),
            }
        }
        let mut other = json!({"checkpoint_storage": {"type": "s3", "bucket": "b"}});
        without_containers(&mut other).unwrap();
        assert_eq!(other["checkpoint_storage"]["bucket"], "b");
        assert_eq!(folder(&other), None);
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        probe(&folder.path().join("new"), "x").unwrap();
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(probe(&file, "x").unwrap_err().starts_with(file.to_str().unwrap()));
    }
}
