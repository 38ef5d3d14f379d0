//! The files in which a task finds who and where it is, as Determined's package reads them.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::environment::Variables;

/// Writes `cluster.json`, `resources.json` and, for a trial, `trial.json`. The folder is new, so nothing of another
/// allocation is in it.
pub fn write(folder: &Path, variables: &Variables, gpu_uuids: &[&str]) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = [
        ("cluster.json", Some(cluster(variables)?)),
        ("trial.json", trial(variables)?),
        ("resources.json", Some(json!({"gpu_uuids": gpu_uuids}))),
    ];
    for (name, content) in files {
        if let Some(content) = content {
            put(folder, name, &content).map_err(|error| format!("{}: {error}", folder.join(name).display()))?;
        }
    }
    Ok(())
}

/// Writes one of the files. They hold the allocation's token.
pub fn put(folder: &Path, name: &str, content: &Value) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(folder.join(name))?;
    file.write_all(content.to_string().as_bytes())
}

fn text(variables: &Variables, name: &str) -> Option<String> {
    variables.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned())
}

fn needed(variables: &Variables, name: &str) -> Result<String, String> {
    text(variables, name).ok_or_else(|| format!("the order lacks {name}"))
}

fn parsed(variables: &Variables, name: &str) -> Result<Value, String> {
    serde_json::from_str(&needed(variables, name)?).map_err(|error| format!("{name} is not JSON: {error}"))
}

fn cluster(variables: &Variables) -> Result<Value, String> {
    Ok(json!({
        "master_url": needed(variables, "DET_MASTER")?,
        "cluster_id": needed(variables, "DET_CLUSTER_ID")?,
        "agent_id": needed(variables, "DET_AGENT_ID")?,
        "slot_ids": parsed(variables, "DET_SLOT_IDS")?,
        "task_id": needed(variables, "DET_TASK_ID")?,
        "allocation_id": needed(variables, "DET_ALLOCATION_ID")?,
        "session_token": needed(variables, "DET_SESSION_TOKEN")?,
        "task_type": needed(variables, "DET_TASK_TYPE")?,
        "master_cert_name": text(variables, "DET_MASTER_CERT_NAME"),
        "master_cert_file": text(variables, "DET_MASTER_CERT_FILE"),
        "latest_checkpoint": text(variables, "DET_LATEST_CHECKPOINT"),
    }))
}

fn trial(variables: &Variables) -> Result<Option<Value>, String> {
    if text(variables, "DET_TASK_TYPE").as_deref() != Some("TRIAL") {
        return Ok(None);
    }
    let config = parsed(variables, "DET_EXPERIMENT_CONFIG")?;
    Ok(Some(json!({
        "trial_id": parsed(variables, "DET_TRIAL_ID")?,
        "experiment_id": parsed(variables, "DET_EXPERIMENT_ID")?,
        "trial_seed": parsed(variables, "DET_TRIAL_SEED")?,
        "hparams": parsed(variables, "DET_HPARAMS")?,
        "debug": config.get("debug").cloned().unwrap_or(Value::Bool(false)),
        "config": config,
        "steps_completed": parsed(variables, "DET_STEPS_COMPLETED")?,
        "trial_run_id": parsed(variables, "DET_TRIAL_RUN_ID")?,
        "inter_node_network_interface": text(variables, "DET_INTER_NODE_NETWORK_INTERFACE"),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_finds_itself_and_others_do_not_need_to() {
        let folder = tempfile::tempdir().unwrap();
        let mut variables: Variables = [
            ("DET_MASTER", "http://m:1"),
            ("DET_CLUSTER_ID", "c"),
            ("DET_AGENT_ID", "a"),
            ("DET_SLOT_IDS", "[0]"),
            ("DET_TASK_ID", "t"),
            ("DET_ALLOCATION_ID", "t.1"),
            ("DET_SESSION_TOKEN", "s"),
            ("DET_TASK_TYPE", "COMMAND"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        write(folder.path(), &variables, &["GPU-a"]).unwrap();
        let read = |name: &str| -> Value {
            serde_json::from_str(&fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
        };
        assert_eq!(read("cluster.json")["slot_ids"], json!([0]));
        assert_eq!(read("cluster.json")["latest_checkpoint"], Value::Null);
        assert_eq!(read("resources.json"), json!({"gpu_uuids": ["GPU-a"]}));
        assert!(!folder.path().join("trial.json").exists());
        variables.insert("DET_TASK_TYPE".into(), "TRIAL".into());
        let error = write(folder.path(), &variables, &[]).unwrap_err();
        assert_eq!(error, "the order lacks DET_EXPERIMENT_CONFIG");
    }
}
