//! Secrets: who may set and use them, and that nothing shows them.

use serde_json::{Value, json};

use super::{FORBIDDEN, Served, ask, bearer, fill, filled, roles, serve};
use crate::http::route::Method::{self, Delete, Get, Post, Put};
use crate::http::routes::routes;

const MARKER: &str = "hunter2-marker";

fn status(served: &Served, method: Method, path: &str, token: &str, body: &Value) -> u16 {
    ask(served, method, &format!("/api/v1{path}"), &bearer(token), &body.to_string()).0
}

/// Submits something that names a secret.
fn submit(served: &Served, token: &str, section: &Value, more: &Value) -> (u16, String) {
    let mut config = json!({"entrypoint": "true", "searcher": {"name": "single", "metric": "x"},
        "checkpoint_storage": {"type": "directory", "container_path": "/c"}, "environment": section});
    config.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let body = json!({"config": config.to_string(), "activate": false}).to_string();
    ask(served, Post, "/api/v1/experiments", &bearer(token), &body)
}

#[test]
fn a_secret_is_its_owner_s_and_nothing_shows_it() {
    let served = serve();
    let things = fill(&served);
    let value = json!({"value": MARKER});
    assert_eq!(status(&served, Put, "/secrets/mine", "owner", &value), 200);
    let named = json!({"secrets": {"HF_TOKEN": "mine"}});
    let file = json!({"secret_files": {"key.pem": "mine"}});
    let mut made = Vec::new();
    for section in [&named, &file] {
        let (found, answer) = submit(&served, "owner", section, &json!({}));
        assert!(found == 200 && answer.contains("mine"), "{answer}");
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        made.push(body["experiment"]["id"].as_i64().unwrap());
        // Whoever knows the name of somebody's secret does not get it.
        for token in ["other", "administrator"] {
            let (found, answer) = submit(&served, token, section, &json!({}));
            let said = answer.contains("secret 'mine' does not exist") && answer.contains("hint:");
            assert!(found == 400 && said, "{token}: {answer}");
        }
    }
    let command = json!({"config": {"entrypoint": ["true"], "environment": named}});
    assert_eq!(status(&served, Post, "/commands", "owner", &command), 200);
    assert_eq!(status(&served, Post, "/commands", "other", &command), 400);
    for token in ["own task", "other task"] {
        assert_eq!(status(&served, Put, "/secrets/mine", token, &value), FORBIDDEN);
        assert_eq!(status(&served, Delete, "/secrets/mine", token, &json!({})), FORBIDDEN);
    }
    for token in ["owner", "other", "administrator", "own task"] {
        for route in routes().iter().filter(|route| route.method == Get) {
            let (_, answer) = ask(&served, Get, &filled(route.path, &things), &bearer(token), "");
            assert!(!answer.contains(MARKER), "{}: {answer}", route.path);
        }
    }
    let listed = |token: &str| ask(&served, Get, "/api/v1/secrets", &bearer(token), "").1;
    assert!(listed("owner").contains(r#""name":"mine""#) && !listed("administrator").contains("mine"));
    for file in std::fs::read_dir(served._folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(MARKER.len()).any(|part| part == MARKER.as_bytes()), "it is on disk as it is");
    }
    assert_eq!(status(&served, Delete, "/secrets/mine", "other", &json!({})), 404);
    assert_eq!(status(&served, Delete, "/secrets/mine", "owner", &json!({})), 200);
    assert_eq!(submit(&served, "owner", &named, &json!({})).0, 400);
    for made in made {
        assert_eq!(status(&served, Post, &format!("/experiments/{made}/kill"), "owner", &json!({})), 200);
        let (found, answer) =
            ask(&served, Post, "/api/v1/experiments/continue", &bearer("owner"), &json!({"id": made}).to_string());
        assert!(found == 400 && answer.contains("secret 'mine' does not exist"), "{answer}");
    }
}

#[test]
fn a_workspace_s_secrets_are_set_by_its_owner_and_used_in_it() {
    let served = serve();
    fill(&served);
    let shared = json!({"value": MARKER, "workspaceId": 2});
    assert_eq!(status(&served, Put, "/secrets/shared", "other", &shared), FORBIDDEN);
    assert_eq!(status(&served, Put, "/secrets/shared", "owner", &shared), 200);
    assert_eq!(status(&served, Put, "/secrets/shared", "owner", &json!({"value": "x", "workspaceId": 99})), 404);
    let named = json!({"secrets": {"HF_TOKEN": "shared"}});
    assert_eq!(submit(&served, "other", &named, &json!({"workspace": roles::MARKER, "project": roles::MARKER})).0, 200);
    assert_eq!(submit(&served, "owner", &named, &json!({})).0, 400, "it is not its workspace");
    let (_, answer) = ask(&served, Get, "/api/v1/secrets?workspaceId=2", &bearer("other"), "");
    assert!(answer.contains("shared") && !answer.contains(MARKER), "{answer}");
    assert_eq!(status(&served, Delete, "/secrets/shared?workspaceId=2", "other", &json!({})), FORBIDDEN);
    assert_eq!(status(&served, Delete, "/secrets/shared?workspaceId=2", "administrator", &json!({})), 200);
}

#[test]
fn wrong_names_and_values_are_refused() {
    let served = serve();
    for (path, value) in [
        ("/secrets/a%2Fb", json!("x")),
        ("/secrets/..", json!("x")),
        ("/secrets/a", json!("")),
        ("/secrets/a", json!("a\u{0}b")),
        ("/secrets/a", json!("x".repeat((64 << 10) + 1))),
    ] {
        let found = status(&served, Put, path, "owner", &json!({"value": value}));
        assert!(matches!(found, 400 | 404), "{path}: {found}");
    }
    for section in
        [json!({"secrets": {"A B": "a"}}), json!({"secret_files": {"../x": "a"}}), json!({"secrets": {"A": "../a"}})]
    {
        let (found, answer) = submit(&served, "owner", &section, &json!({}));
        assert!(found == 400 && answer.contains("must be"), "{answer}");
    }
    for number in 0..101 {
        let found = status(&served, Put, &format!("/secrets/s{number}"), "owner", &json!({"value": "x"}));
        assert_eq!(found, if number < 100 { 200 } else { 400 }, "{number}");
    }
}

#[test]
fn a_workspace_s_secrets_are_its_members() {
    let (served, _) = roles::serve_private();
    let private = format!("/secrets?workspaceId={}", roles::PRIVATE);
    let shared = json!({"value": MARKER, "workspaceId": roles::PRIVATE});
    let command = json!({"config": {"entrypoint": ["true"], "environment": {"secrets": {"X": "shared"}}},
        "workspaceId": roles::PRIVATE});
    for (token, set, list, used) in
        [("other", 404, 404, 404), ("viewer", FORBIDDEN, 200, FORBIDDEN), ("editor", FORBIDDEN, 200, 200)]
    {
        assert_eq!(status(&served, Put, "/secrets/shared", "owner", &shared), 200);
        assert_eq!(status(&served, Put, "/secrets/shared", token, &shared), set, "{token}");
        assert_eq!(status(&served, Get, &private, token, &json!({})), list, "{token}");
        assert_eq!(status(&served, Post, "/commands", token, &command), used, "{token}");
    }
}
