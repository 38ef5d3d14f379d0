//! What keeps a workspace from being deleted, and what goes with it.

use serde_json::{Value, json};

use super::{FORBIDDEN, Served, ask, bearer, make, serve};
use crate::http::route::Method::{Delete, Get, Post};

fn delete(served: &Served, path: &str) -> (u16, String) {
    ask(served, Delete, path, &bearer("owner"), "")
}

#[test]
fn a_workspace_is_deleted_with_the_commands_that_wait_or_run_there() {
    let served = serve();
    make(&served, "/api/v1/workspaces", &json!({"name": "lab"}));
    make(&served, "/api/v1/templates/mine", &json!({"config": {}, "workspaceId": 2}));
    let command = json!({"config": {"entrypoint": ["true"]}, "workspaceId": 2});
    let command = make(&served, "/api/v1/commands", &command);
    let command = command["command"]["id"].as_str().unwrap().to_owned();
    let (status, answer) = delete(&served, "/api/v1/workspaces/2");
    assert!(status == 200 && answer.contains("\"completed\":true"), "{answer}");
    assert_eq!(ask(&served, Get, "/api/v1/templates/mine", &bearer("owner"), "").0, 404);
    // The command is in no list any more. How it ended can be asked for, and no more than that.
    let (_, answer) = ask(&served, Get, "/api/v1/commands", &bearer("owner"), "");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["commands"], json!([]));
    let (status, answer) = ask(&served, Get, &format!("/api/v1/commands/{command}"), &bearer("owner"), "");
    assert!(status == 200 && answer.contains("STATE_TERMINATED") && !answer.contains("entrypoint"), "{answer}");
}

#[test]
fn a_workspace_is_not_deleted_with_projects_and_templates_of_others() {
    let served = serve();
    make(&served, "/api/v1/workspaces", &json!({"name": "lab"}));
    for (path, body, remove) in [
        ("/api/v1/workspaces/2/projects", json!({"name": "theirs"}), "/api/v1/projects/2"),
        ("/api/v1/templates/theirs", json!({"config": {}, "workspaceId": 2}), "/api/v1/templates/theirs"),
    ] {
        let (status, answer) = ask(&served, Post, path, &bearer("other"), &body.to_string());
        assert_eq!(status, 200, "{answer}");
        let (status, answer) = delete(&served, "/api/v1/workspaces/2");
        assert!(status == FORBIDDEN && answer.contains("only its owner and administrators"), "{answer}");
        assert_eq!(ask(&served, Get, remove, &bearer("other"), "").0, 200, "it is still there");
        assert_eq!(ask(&served, Delete, remove, &bearer("other"), "").0, 200);
    }
    assert_eq!(delete(&served, "/api/v1/workspaces/2").0, 200);
}
