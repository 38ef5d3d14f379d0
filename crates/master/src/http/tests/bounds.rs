//! What would keep the master busy for everybody, or fill it, is refused.

use serde_json::{Value, json};

use super::{Served, ask, bearer, serve};
use crate::http::route::Method::{Get, Post, Put};

/// Asks as the owner; the status, and the sentence of a refusal.
fn refusal(served: &Served, path: &str, body: &Value) -> (u16, String) {
    let (status, answer) = ask(served, Post, path, &bearer("owner"), &body.to_string());
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    (status, body["error"]["error"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_file_in_thousands_of_folders_does_not_come_in() {
    let served = serve();
    let config = "{name: a, entrypoint: x, checkpoint_storage: {type: directory, container_path: /c}, \
                  searcher: {name: single, metric: x}}";
    let with =
        |path: &str| json!({"config": config, "activate": false, "modelDefinition": [{"path": path, "type": 48}]});
    let (status, why) = refusal(&served, "/api/v1/experiments", &with(&format!("{}x.py", "a/".repeat(2000))));
    assert!(status == 400 && why.contains("2001 parts"), "{status} {why}");
    assert_eq!(refusal(&served, "/api/v1/experiments", &with("a/b/x.py")).0, 200);
    let (status, answer) = ask(&served, Get, "/api/v1/experiments/1/file_tree", &bearer("other"), "");
    assert!(status == 200 && answer.contains(r#""path":"a/b/x.py""#), "{answer}");
}

#[test]
fn paths_of_thousands_of_parts_are_not_searched_for() {
    let served = serve();
    super::fill(&served);
    let long = vec!["a"; 15_000].join(".");
    let field = json!({"kind": "field", "columnName": format!("hp.{long}"), "operator": "=", "value": 1,
        "location": "LOCATION_TYPE_HYPERPARAMETERS"});
    let filter = json!({"filterGroup": {"kind": "group", "conjunction": "and", "children": [field]}}).to_string();
    for (path, body) in [
        ("/api/v1/experiments-search", json!({"filter": filter})),
        ("/api/v1/runs", json!({"filter": filter})),
        ("/api/v1/runs", json!({"sort": format!("hp.{long}=asc")})),
        ("/api/v1/runs/kill", json!({"filter": filter})),
    ] {
        let (status, why) = refusal(&served, path, &body);
        assert!(status == 400 && why.contains("more than 32 parts"), "{path}: {status} {why}");
    }
    let (status, answer) = ask(&served, Get, &format!("/api/v1/projects/1/metadata/{long}"), &bearer("owner"), "");
    assert!(status == 400 && answer.contains("more than 32 parts"), "{answer}");
}

#[test]
fn what_users_keep_is_bounded() {
    let served = serve();
    super::make(&served, "/api/v1/workspaces", &json!({"name": "lab"}));
    super::make(&served, "/api/v1/workspaces/2/projects", &json!({"name": "p"}));
    let (half, escape) = ("x".repeat(600_000), "\u{1b}[31mred");
    let note = |name: &str, contents: &str| json!({"name": name, "contents": contents});
    let setting = |key: &str| json!({"settings": [{"key": key, "value": half, "storagePath": ""}]});
    let hook = |name: &str| {
        json!({"name": name, "url": "https://example.org", "webhookType": "WEBHOOK_TYPE_DEFAULT", "workspaceId": 2,
            "mode": "WEBHOOK_MODE_WORKSPACE",
            "triggers": [{"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": "x"}}]})
    };
    let event = json!({"experimentId": 1, "data": {"title": "x".repeat(70_000)}});
    for (path, body, why) in [
        ("/api/v1/projects/2/notes", note("a", &half), ""),
        ("/api/v1/projects/2/notes", note("b", &half), "the notes of a project may have"),
        ("/api/v1/projects/2/notes", note(&"n".repeat(256), ""), "has 256 letters, the limit is 255"),
        ("/api/v1/projects/2/notes", note(escape, ""), "control character"),
        ("/api/v1/users/setting", setting("a"), ""),
        ("/api/v1/users/setting", setting("b"), "1048576 letters in all"),
        ("/api/v1/tokens", json!({"description": escape}), "control character"),
        ("/api/v1/tokens", json!({"description": "d".repeat(256)}), "has 256 letters, the limit is 255"),
        ("/api/v1/webhooks", hook(&"n".repeat(256)), "has 256 letters, the limit is 255"),
        ("/api/v1/webhooks/custom", event, "the limit is 65536"),
        ("/api/v1/trials/1/training_metrics", json!({}), "the report has no metrics"),
    ] {
        let (status, said) = refusal(&served, path, &body);
        assert_eq!(status, if why.is_empty() { 200 } else { 400 }, "{path}: {said}");
        assert!(said.contains(why), "{path}: {said}");
    }
    let notes = json!({"notes": [note("a", &half), note("b", &half)]}).to_string();
    assert_eq!(ask(&served, Put, "/api/v1/projects/2/notes", &bearer("owner"), &notes).0, 400);
    for number in 0..100 {
        assert_eq!(refusal(&served, "/api/v1/webhooks", &hook(&number.to_string())), (200, String::new()));
    }
    let (status, said) = refusal(&served, "/api/v1/webhooks", &hook("one more"));
    assert!(status == 400 && said.contains("100 webhooks of the workspace"), "{said}");
}
