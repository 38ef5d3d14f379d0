//! Whose files of checkpoints are: what somebody else's Unix user wrote is neither taken for one's own, nor served or
//! deleted.

use std::fs;

use instep_database::UserChange;
use serde_json::{Value, json};

use super::{FORBIDDEN, OTHER, Served, ask, bearer, serve};
use crate::clock::now;
use crate::http::route::Method::{Delete, Get, Patch, Post};

const SEEN: &str = "22222222-2222-4333-8444-555555555555";
const UNSEEN: &str = "33333333-2222-4333-8444-555555555555";

fn post(served: &Served, token: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = ask(served, Post, path, &bearer(token), &body.to_string());
    (status, serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap_or_default())
}

/// A trial of somebody's whose checkpoints are in a folder; gives its task.
fn trial(served: &Served, token: &str, folder: &std::path::Path) -> String {
    let config = json!({"name": "x", "searcher": {"name": "single", "metric": "x"},
        "checkpoint_storage": {"type": "directory", "container_path": folder}});
    let experiment = json!({"config": config.to_string(), "unmanaged": true});
    let (status, made) = post(served, token, "/api/v1/experiments", &experiment);
    assert_eq!(status, 200, "{made}");
    let trial = json!({"experimentId": made["experiment"]["id"], "unmanaged": true});
    post(served, token, "/api/v1/trials", &trial).1["trial"]["taskId"].as_str().unwrap().to_owned()
}

fn report(served: &Served, token: &str, task: &str, uuid: &str) -> (u16, Value) {
    let body = json!({"uuid": uuid, "taskId": task, "metadata": {"steps_completed": 1}, "resources": {"state": 4}});
    post(served, token, "/api/v1/checkpoints", &body)
}

#[test]
fn a_checkpoint_of_another_account_s_unix_user_is_not_reported_served_or_deleted() {
    let served = serve();
    let folder = tempfile::tempdir().unwrap();
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let unix =
        UserChange { agent_user_group: Some(json!({"agentUid": uid, "agentGid": gid})), ..UserChange::default() };
    served.runtime.block_on(served.database.change_user(OTHER, unix, now())).unwrap();
    let (mine, theirs) = (trial(&served, "owner", folder.path()), trial(&served, "other", folder.path()));
    let write = |uuid: &str| {
        fs::create_dir(folder.path().join(uuid)).unwrap();
        fs::write(folder.path().join(uuid).join("state"), "1234").unwrap();
    };
    write(SEEN);
    let (status, refused) = report(&served, "owner", &mine, SEEN);
    assert_eq!(status, FORBIDDEN, "{refused}");
    assert!(refused.to_string().contains("another account's, not determined's\\nhint: "), "{refused}");
    assert_eq!(report(&served, "other", &theirs, SEEN).0, 200);
    let download = |uuid: &str| ask(&served, Get, &format!("/checkpoints/{uuid}"), &bearer("owner"), "").0;
    assert_eq!(download(SEEN), 200, "without roles everybody reads");
    // Reported before there are files, and there are others' files now.
    assert_eq!(report(&served, "owner", &mine, UNSEEN).0, 200);
    write(UNSEEN);
    assert_eq!(download(UNSEEN), FORBIDDEN);
    let delete = |token: &str, uuid: &str| {
        let body = json!({"checkpointUuids": [uuid]}).to_string();
        ask(&served, Delete, "/api/v1/checkpoints", &bearer(token), &body).0
    };
    for token in ["owner", "administrator"] {
        assert_eq!(delete(token, UNSEEN), FORBIDDEN);
    }
    // With its experiment it is given up; its files stay.
    let ended = json!({"state": "STATE_COMPLETED"}).to_string();
    assert_eq!(ask(&served, Patch, "/api/v1/trials/1", &bearer("owner"), &ended).0, 200);
    assert_eq!(ask(&served, Delete, "/api/v1/experiments/1", &bearer("owner"), "").0, 200);
    assert!(folder.path().join(UNSEEN).join("state").exists());
    assert_eq!(delete("other", SEEN), 200);
    assert!(!folder.path().join(SEEN).exists());
}
