//! Configuration policies: who may set what, and that they hold for what is continued, too.

use serde_json::{Value, json};

use super::{FORBIDDEN, Served, ask, bearer, make, serve};
use crate::http::route::Method::{Delete, Get, Post, Put};
use instep_api::identifiers::WorkspaceId;

const CONFIG: &str = "{name: a, entrypoint: x, checkpoint_storage: {type: directory, container_path: /c}, \
                      searcher: {name: single, metric: x}}";

fn set_policy(served: &Served, text: &str) {
    let body = json!({"configPolicies": text}).to_string();
    let path = "/api/v1/config-policies/global/EXPERIMENT";
    assert_eq!(ask(served, Put, path, &bearer("administrator"), &body).0, 200);
}

/// An experiment that has ended.
fn ended(served: &Served) {
    make(served, "/api/v1/experiments", &json!({"config": CONFIG, "activate": false}));
    make(served, "/api/v1/experiments/1/kill", &json!({}));
}

fn continued(served: &Served, over: &Value) -> (u16, String) {
    let body = json!({"id": 1, "overrideConfig": over.to_string()});
    ask(served, Post, "/api/v1/experiments/continue", &bearer("owner"), &body.to_string())
}

fn shown(served: &Served) -> Value {
    let (_, answer) = ask(served, Get, "/api/v1/experiments/1", &bearer("owner"), "");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    body["experiment"].clone()
}

#[test]
fn what_is_continued_keeps_to_the_policies() {
    let served = serve();
    ended(&served);
    set_policy(
        &served,
        "{invariant_config: {entrypoint: rule}, constraints: {priority_limit: 40, resources: {max_slots: 2}}}",
    );
    for over in [json!({"resources": {"slots_per_trial": 50}}), json!({"resources": {"priority": 1}})] {
        let (status, answer) = continued(&served, &over);
        assert!(status == 400 && answer.contains("limit set by a configuration policy"), "{over}: {answer}");
    }
    assert_eq!(shown(&served)["config"]["entrypoint"], "x", "nothing was changed");
    let (status, answer) = continued(&served, &json!({"entrypoint": "mine", "max_restarts": 3}));
    assert_eq!(status, 200, "{answer}");
    let config = &shown(&served)["config"];
    assert_eq!([&config["entrypoint"], &config["max_restarts"]], [&json!("rule"), &json!(3)]);
    assert_eq!(config["resources"]["max_slots"], 2, "{config}");
}

#[test]
fn what_is_continued_as_it_was_keeps_to_newer_policies() {
    let served = serve();
    ended(&served);
    set_policy(&served, "invariant_config: {entrypoint: rule}");
    assert_eq!(continued(&served, &json!({})).0, 200);
    assert_eq!(shown(&served)["config"]["entrypoint"], "rule");
}

#[test]
fn what_is_continued_runs_in_pools_of_its_workspace() {
    let served = serve();
    make(&served, "/api/v1/workspaces", &json!({"name": "lab"}));
    ended(&served);
    let bind = |workspace| {
        served.runtime.block_on(served.database.rebind_pool("gold".to_owned(), vec![WorkspaceId(workspace)])).unwrap();
    };
    bind(2);
    let (status, answer) = continued(&served, &json!({"resources": {"resource_pool": "gold"}}));
    assert!(status == 400 && answer.contains("not available to workspace 1"), "{answer}");
    bind(1);
    assert_eq!(continued(&served, &json!({"resources": {"resource_pool": "gold"}})).0, 200);
    assert_eq!(shown(&served)["resourcePool"], "gold");
}

#[test]
fn only_administrators_say_what_others_run() {
    let served = serve();
    make(&served, "/api/v1/workspaces", &json!({"name": "lab"}));
    let set = |token: &str, workload: &str, invariant: Value| {
        let policies = json!({"invariant_config": invariant}).to_string();
        let body = json!({"configPolicies": policies}).to_string();
        ask(&served, Put, &format!("/api/v1/config-policies/workspaces/2/{workload}"), &bearer(token), &body)
    };
    for workload in ["EXPERIMENT", "NTSC"] {
        for (section, value) in [
            ("entrypoint", json!(["evil"])),
            ("environment", json!({"environment_variables": ["LD_PRELOAD=/tmp/evil.so"]})),
            ("bind_mounts", json!([{"host_path": "/evil", "container_path": "/usr/local/bin"}])),
        ] {
            let (status, answer) = set("owner", workload, json!({section: value}));
            let said = format!("only administrators may set `invariant_config.{section}`");
            assert!(status == FORBIDDEN && answer.contains(&said) && answer.contains("hint:"), "{answer}");
            let (status, answer) = set("administrator", workload, json!({section: value}));
            assert_eq!(status, 200, "{answer}");
        }
        assert_eq!(set("owner", workload, json!({"resources": {"priority": 50}})).0, 200);
        assert_eq!(set("other", workload, json!({"resources": {"priority": 50}})).0, FORBIDDEN);
    }
}

#[test]
fn a_workspace_that_is_not_there_has_no_policies() {
    let served = serve();
    let body = json!({"configPolicies": "constraints: {priority_limit: 3}"}).to_string();
    for (method, body) in [(Get, ""), (Put, body.as_str()), (Delete, "")] {
        let path = "/api/v1/config-policies/workspaces/99/EXPERIMENT";
        let (status, answer) = ask(&served, method, path, &bearer("administrator"), body);
        assert!(status == 404 && answer.contains("workspace '99' not found"), "{answer}");
    }
}
