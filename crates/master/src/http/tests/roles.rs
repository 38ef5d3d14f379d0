//! The same with roles: a private workspace's owner, its editor, its viewer and a stranger ask every route.

use super::*;
use instep_api::identifiers::WorkspaceId;
use instep_database::{HeldRole, Holder};

/// A text that is in everything of the private workspace, and nowhere else.
pub(super) const MARKER: &str = "marker-7f3a";

const HIDDEN_HINT: &str = "you have no role in its workspace";
pub(super) const PRIVATE: WorkspaceId = WorkspaceId(2);
/// Has a workspace of their own, the third, and no role in the private one.
const STRANGER: UserId = OTHER;

/// A configuration with the marker in it.
pub(super) fn config() -> String {
    format!(
        "{{name: {MARKER}, description: {MARKER}, labels: [{MARKER}], data: {{secret: {MARKER}}}, \
         hyperparameters: {{x: {MARKER}}}, searcher: {{name: single, metric: x}}}}"
    )
}

fn role(served: &Served, number: i64, user: UserId, workspace: Option<WorkspaceId>) {
    let held = HeldRole { role: number, holder: Holder::User(user), workspace };
    served.runtime.block_on(served.database.give_roles(vec![held])).unwrap();
}

const CREATOR: i64 = 3;
const VIEWER: i64 = 4;
const EDITOR: i64 = 5;

/// A master with roles, the owner's things in a private workspace, and a token for each role there.
pub(super) fn serve_private() -> (Served, Things) {
    let served = serve_with(true);
    role(&served, CREATOR, OWNER, None);
    let things = fill_workspace(&served, PRIVATE.0);
    for (name, number) in [("editor", EDITOR), ("viewer", VIEWER)] {
        let user = make_user(&served, name);
        role(&served, number, user, Some(PRIVATE));
    }
    // What is reported of the trial.
    let trial = json!({"group": "validation", "metrics": {"trialId": 1, "stepsCompleted": 1,
        "metrics": {"avgMetrics": {MARKER: 1.0}}}});
    make(&served, "/api/v1/trials/1/metrics", &trial);
    let line = json!({"logs": [{"task_id": things.task, "log": MARKER}]});
    make(&served, "/api/v1/task/logs", &line);
    make(&served, "/api/v1/runs/1/metadata", &json!({"metadata": {"note": MARKER}}));
    // The stranger has something of their own elsewhere, with a task that runs.
    role(&served, CREATOR, STRANGER, None);
    let made = |path: &str, body: Value| {
        let (status, answer) = ask(&served, Post, path, &bearer("other"), &body.to_string());
        assert!(status < 300, "{path}: {answer}");
        serde_json::from_str::<Value>(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    };
    made("/api/v1/workspaces", json!({"name": "elsewhere"}));
    made("/api/v1/workspaces/3/projects", json!({"name": "elsewhere"}));
    let experiment = json!({"config": "{name: a, searcher: {name: single, metric: x}}", "unmanaged": true,
        "projectId": 3});
    made("/api/v1/experiments", experiment);
    let trial = made("/api/v1/trials", json!({"experimentId": 3, "unmanaged": true}));
    give_token(&served, "stranger task", 3, trial["trial"]["taskId"].as_str().unwrap(), STRANGER);
    (served, things)
}

fn make_user(served: &Served, name: &str) -> UserId {
    let account = NewAccount {
        username: name.into(),
        display_name: String::new(),
        admin: false,
        active: true,
        remote: false,
        password_hash: None,
        agent_user_group: None,
    };
    let later = Timestamp(now().0 + 3_600_000_000);
    served.runtime.block_on(async {
        let id = served.database.create_user(account, now()).await.unwrap().id;
        served.database.open_session(token_hash(name), id, Timestamp(0), later).await.unwrap();
        id
    })
}

/// A body that names the private workspace, for routes whose paths do not.
fn private_body(route: &Route, things: &Things) -> Option<Value> {
    let path = route.path.strip_prefix("/api/v1").unwrap_or(route.path);
    let assignment = json!({"role": {"roleId": VIEWER}, "scopeWorkspaceId": PRIVATE});
    Some(match (route.method, path) {
        (_, path) if path.starts_with("/projects/{id}/experiments/") => {
            json!({"experimentIds": [1], "destinationProjectId": 2, "numDays": 1})
        }
        (Post, "/runs/move") => json!({"runIds": [1], "destinationProjectId": 2}),
        (Post, "/generic-tasks") => json!({"projectId": 2, "config": "entrypoint: ['true']"}),
        (Post, "/projects/{id}/move") => json!({"destinationWorkspaceId": 2}),
        (Post, "/experiments/{id}/move") => json!({"destinationProjectId": 2}),
        (Post, "/models/{name}/move") => json!({"destinationWorkspaceId": 2}),
        (Post, "/experiments") => json!({"config": config(), "unmanaged": true, "projectId": 2}),
        (Post, "/commands") => json!({"workspaceId": 2, "config": {"entrypoint": ["true"]}}),
        (Post, "/notebooks" | "/shells") => json!({"workspaceId": 2, "config": {}}),
        (Post, "/tensorboards") => json!({"workspaceId": 2, "experimentIds": [1], "config": {}}),
        (Post | Put, "/templates/{name}") => json!({"workspaceId": 2, "config": {}}),
        (Post, "/models") => json!({"workspaceId": 2, "name": "another"}),
        (Post, "/models/{name}/versions") => json!({"checkpointUuid": UUID}),
        (Post, "/workspaces") => json!({"name": "one more"}),
        (Post, "/workspaces/{id}/projects") => json!({"name": "one more"}),
        (Post, "/roles/add-assignments" | "/roles/remove-assignments") => {
            json!({"userRoleAssignments": [{"userId": ADMINISTRATOR, "roleAssignment": assignment}]})
        }
        _ => return body(route, things),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Allowed,
    Refused,
    /// As if it were not there.
    Hidden,
}

use Told::{Allowed, Hidden, Refused};

fn asked(served: &Served, route: &Route, things: &Things, token: &str) -> (u16, String) {
    let body = private_body(route, things).map(|body| body.to_string()).unwrap_or_default();
    let query = if route.path.contains("/trials/") { "?trialIds=1" } else { "" };
    let path = format!("{}{query}", filled(route.path, things));
    ask(served, route.method, &path, &bearer(token), &body)
}

fn told(served: &Served, route: &Route, things: &Things, token: &str) -> Told {
    let (status, answer) = asked(served, route, things, token);
    let what = format!("{} {} for {token}: {answer}", route.method.name(), route.path);
    // The allocation is in the database alone, as one is that another leader has begun.
    let expected = status == 503 && route.path.ends_with("/signals/preemption");
    assert!(status != UNAUTHENTICATED && (status < 500 || expected) || route.path.starts_with("/proxy"), "{what}");
    let in_part = |text: &str| answer.contains(&format!(r#""error":"{text}"#));
    if status == FORBIDDEN || in_part("access denied") || in_part("the token of task") {
        Refused
    } else if answer.contains(HIDDEN_HINT)
        || in_part("experiment '1' not found")
        || in_part("Run with id '1' not found")
        || is_bare_miss(route, status)
    {
        Hidden
    } else {
        Allowed
    }
}

/// Where handlers themselves say that something is not found, because the request's body names it.
fn is_bare_miss(route: &Route, status: u16) -> bool {
    let by_body = matches!(route.access, Access::Make | Access::Share | Access::Change(Thing::InBody));
    let by_query = route.access == Access::Read(Thing::Several) && route.path.starts_with("/api/v1/trials/");
    status == 404 && (by_body || by_query)
}

/// What the table's [`Access`] means with roles.
fn expected_with_roles(route: &Route, token: &str) -> Told {
    let is_task = token.ends_with("task");
    let is_stranger = token == "other" || token == "stranger task";
    let member = |answer| if is_stranger { Hidden } else { answer };
    let by_query = route.path.ends_with("/time-series") || route.path.contains("/trials/metrics/");
    match (route.access, token) {
        // The stranger gives roles in their own workspace, and learns of those there.
        (Access::Read(Thing::Several), "viewer" | "editor") if route.path.contains("/by-user/") => Refused,
        (Access::Read(Thing::Several), _) if by_query => member(Allowed),
        // Trials without such a name are found by nobody.
        (Access::Read(Thing::Several), _) if route.path.contains("/by-external-id/") => Hidden,
        (Access::Open | Access::LocalOrUser | Access::Read(Thing::Common | Thing::Several), _) => Allowed,
        (Access::TaskKey, _) => panic!("a route of the tasks' pages in the master's table"),
        // It opens the connection, for an agent of its own allocation alone.
        (Access::Agent, _) if is_task => Allowed,
        (Access::Administrator | Access::Agent | Access::Read(Thing::Log), token) => {
            if token == "administrator" {
                Allowed
            } else {
                Refused
            }
        }
        (Access::Read(_) | Access::Proxy, _) => member(Allowed),
        (Access::Login, _) => {
            if is_task {
                Refused
            } else {
                Allowed
            }
        }
        (Access::Share, "owner" | "administrator") => Allowed,
        (Access::Share, _) => {
            if is_task {
                Refused
            } else {
                member(Refused)
            }
        }
        (Access::Make, "viewer") => Refused,
        (Access::Make, "editor") if route.path == "/api/v1/workspaces" => Refused,
        (Access::Make, _) if route.path == "/api/v1/workspaces" => Allowed,
        (Access::Make, _) => member(Allowed),
        (Access::Change(Thing::User), "owner" | "administrator") => Allowed,
        (Access::Change(Thing::User), _) => Refused,
        (Access::Change(_), "editor" | "viewer") => Refused,
        (Access::Change(_), _) if is_stranger => Hidden,
        (Access::Change(_), token) => match expected(route, token) {
            Answer::Allowed => Allowed,
            Answer::Refused => Refused,
        },
    }
}

#[test]
fn every_route_answers_each_role_as_the_table_says() {
    let (served, things) = serve_private();
    let mut table = routes();
    table.sort_by_key(|route| route.method == Delete);
    // Those who must not change anything come first; later ones may find something gone.
    for token in ["other", "stranger task", "viewer", "editor", "other task", "own task", "owner", "administrator"] {
        let may_be_gone = ["other task", "own task", "owner", "administrator"].contains(&token);
        for route in table.iter().filter(|route| route.path != "/api/v1/auth/logout") {
            let what = format!("{} {} for {token}", route.method.name(), route.path);
            let (found, expected) = (told(&served, route, &things, token), expected_with_roles(route, token));
            if expected == Allowed && may_be_gone && found == Hidden {
                continue;
            }
            assert_eq!(found, expected, "{what}");
        }
    }
}

/// The body of an answer without what names the request.
fn content(answer: &str) -> String {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    match body.find(r#""requestId""#) {
        Some(at) => body[..at].to_owned(),
        None => body,
    }
}

#[test]
fn a_stranger_finds_nothing_of_a_private_workspace() {
    let (served, things) = serve_private();
    let mut seen_by_viewer = 0;
    for route in routes().iter().filter(|route| route.path != "/api/v1/auth/logout") {
        let what = format!("{} {}", route.method.name(), route.path);
        for token in ["other", "stranger task"] {
            let (_, answer) = asked(&served, route, &things, token);
            assert!(!answer.contains(MARKER), "{what} tells {token}: {answer}");
            let names_task = content(&answer).contains(&things.command) || content(&answer).contains(&things.task);
            assert!(!names_task || answer.contains("not found"), "{what} names a task to {token}: {answer}");
        }
        if route.method == Get {
            seen_by_viewer += usize::from(asked(&served, route, &things, "viewer").1.contains(MARKER));
        }
    }
    // The marker is where it is looked for.
    assert!(seen_by_viewer >= 30, "only {seen_by_viewer} routes show the marker to whoever may see it");
}

#[test]
fn what_is_hidden_sounds_like_what_is_not_there() {
    let (served, things) = serve_private();
    let absent = Things { task: "9.none".into(), command: "none".into(), job: "none".into() };
    let other_uuid = UUID.replace('1', "9");
    for route in routes() {
        let named = match route.access {
            Access::Read(thing) => !matches!(thing, Thing::Common | Thing::Several),
            Access::Change(thing) => {
                !matches!(thing, Thing::InBody | Thing::User | Thing::Template | Thing::ExternalExperiment)
            }
            _ => false,
        };
        if !named {
            continue;
        }
        let body = private_body(&route, &things).map(|body| body.to_string()).unwrap_or_default();
        let (present, private) = (filled(route.path, &things), route.path.split('/').next_back());
        let missing = filled(route.path, &absent).replace(UUID, &other_uuid).replace("/1", "/99").replace("/2", "/99");
        let missing = missing.replace("/name", "/nowhere").replace("api/v99", "api/v1");
        let tell = |path: &str| {
            let (status, answer) = ask(&served, route.method, path, &bearer("other"), &body);
            let mut text = content(&answer);
            for name in [
                things.task.as_str(),
                &things.command,
                "9.none",
                "nowhere/99",
                "name/1",
                "nowhere",
                "none",
                UUID,
                &other_uuid,
                "'99'",
                "'1'",
                "'2'",
                "'name'",
            ] {
                text = text.replace(name, "X");
            }
            (status, text.replace("'X'", "X"))
        };
        assert_eq!(tell(&present), tell(&missing), "{} {} {private:?}", route.method.name(), route.path);
    }
}

#[test]
fn a_role_counts_from_the_next_request_on() {
    let (served, _) = serve_private();
    let editor = UserId(4);
    let config = json!({"config": config(), "unmanaged": true, "projectId": 2}).to_string();
    let (status, answer) = ask(&served, Post, "/api/v1/experiments", &bearer("editor"), &config);
    assert_eq!(status, 200, "{answer}");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let path = format!("/api/v1/experiments/{}", body["experiment"]["id"]);
    let get = || ask(&served, Get, &path, &bearer("editor"), "").0;
    let change = |token: &str| ask(&served, Patch, &path, &bearer(token), r#"{"notes": "x"}"#).0;
    // It is the editor's own; the owner of the workspace changes it too, a viewer does not.
    assert_eq!([get(), change("editor"), change("owner"), change("viewer")], [200, 200, 200, FORBIDDEN]);
    let assign = |verb: &str, number: i64| {
        let assignment = json!({"role": {"roleId": number}, "scopeWorkspaceId": PRIVATE});
        let body = json!({"userRoleAssignments": [{"userId": editor, "roleAssignment": assignment}]});
        let path = format!("/api/v1/roles/{verb}-assignments");
        ask(&served, Post, &path, &bearer("owner"), &body.to_string()).0
    };
    assert_eq!([assign("add", VIEWER), assign("remove", EDITOR)], [200, 200]);
    assert_eq!([get(), change("editor")], [200, FORBIDDEN]);
    assert_eq!([assign("remove", VIEWER), assign("remove", VIEWER)], [200, 404]);
    assert_eq!([get(), change("editor")], [404, 404]);
    // What is about the cluster is not given in a workspace, and nothing everywhere by its owner.
    assert_eq!(assign("add", 1), 400);
    let everywhere = json!({"userRoleAssignments": [{"userId": 4, "roleAssignment": {"role": {"roleId": 4}}}]});
    let path = "/api/v1/roles/add-assignments";
    assert_eq!(ask(&served, Post, path, &bearer("owner"), &everywhere.to_string()).0, FORBIDDEN);
}

#[test]
fn an_administrator_by_a_role_administrates() {
    let (served, _) = serve_private();
    let list = |token: &str| ask(&served, Get, "/api/v1/master/config", &bearer(token), "").0;
    assert_eq!([list("viewer"), list("administrator")], [FORBIDDEN, 200]);
    let body = json!({"userRoleAssignments": [{"userId": 5, "roleAssignment": {"role": {"roleId": 1}}}]}).to_string();
    let (status, answer) = ask(&served, Post, "/api/v1/roles/add-assignments", &bearer("administrator"), &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(list("viewer"), 200);
}

/// Takes away the only role that the viewer has.
pub(super) fn send_the_viewer_away(served: &Served) {
    let assignment = json!({"role": {"roleId": VIEWER}, "scopeWorkspaceId": PRIVATE});
    let body = json!({"userRoleAssignments": [{"userId": 5, "roleAssignment": assignment}]}).to_string();
    assert_eq!(ask(served, Post, "/api/v1/roles/remove-assignments", &bearer("owner"), &body).0, 200);
}

#[test]
fn whoever_follows_a_log_stops_when_their_role_is_gone() {
    let (served, things) = serve_private();
    let path = format!("/api/v1/tasks/{}/logs?follow=true", things.task);
    let mut connection = TcpStream::connect(served.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n", bearer("viewer"));
    connection.write_all(request.as_bytes()).unwrap();
    let mut begun = [0; 4096];
    let count = connection.read(&mut begun).unwrap();
    assert!(count > 0);
    send_the_viewer_away(&served);
    // The answer ends, although the task has not.
    let mut rest = String::new();
    connection.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("not found"), "{rest}");
}

#[test]
fn a_tensorboard_is_seen_by_whoever_sees_what_it_shows() {
    let (served, _) = serve_private();
    // In the stranger's workspace, where the owner of the experiment may make it.
    role(&served, EDITOR, OWNER, Some(WorkspaceId(3)));
    let storage = json!({"type": "shared_fs", "host_path": "/tmp"});
    let config = json!({"config": json!({"name": "a", "searcher": {"name": "single", "metric": "x"},
        "checkpoint_storage": storage}).to_string(), "unmanaged": true, "projectId": 2});
    let experiment = make(&served, "/api/v1/experiments", &config)["experiment"]["id"].clone();
    make(&served, "/api/v1/trials", &json!({"experimentId": experiment, "unmanaged": true}));
    let body = json!({"workspaceId": 3, "experimentIds": [experiment], "config": {}});
    let made = make(&served, "/api/v1/tensorboards", &body);
    let id = made["tensorboard"]["id"].as_str().unwrap();
    for (token, seen) in [("owner", true), ("administrator", true), ("other", false), ("viewer", false)] {
        let (_, listed) = ask(&served, Get, "/api/v1/tensorboards", &bearer(token), "");
        assert_eq!(listed.contains(id), seen, "{token}: {listed}");
        let (status, _) = ask(&served, Get, &format!("/proxy/{id}/"), &bearer(token), "");
        assert_eq!(status == 404, !seen, "{token}: {status}");
    }
    // Nor does a stranger start one of what they do not see.
    let body = json!({"workspaceId": 3, "experimentIds": [experiment], "config": {}}).to_string();
    assert_eq!(ask(&served, Post, "/api/v1/tensorboards", &bearer("other"), &body).0, 404);
}

#[test]
fn nobody_copies_out_of_a_workspace_that_they_do_not_see() {
    let (served, _) = serve_private();
    let searcher = |source: &str| {
        format!(
            "{{name: a, entrypoint: x, checkpoint_storage: {{type: shared_fs, host_path: /tmp}}, \
             searcher: {{name: single, metric: x, {source}}}}}"
        )
    };
    let cases = [
        json!({"config": searcher("source_trial_id: 1"), "projectId": 3}),
        json!({"config": searcher(&format!("source_checkpoint_uuid: {UUID}")), "projectId": 3}),
        json!({"config": searcher("max_length: 1"), "projectId": 3, "parentId": 1}),
        json!({"config": searcher("max_length: 1"), "projectId": 3, "template": "name"}),
        json!({"config": searcher("max_length: 1"), "projectId": 2}),
        json!({"config": format!("{{workspace: {MARKER}, project: {MARKER}, name: a, entrypoint: x, \
                                   checkpoint_storage: {{type: shared_fs, host_path: /tmp}}, \
                                   searcher: {{name: single, metric: x}}}}")}),
    ];
    for case in cases {
        let (status, answer) = ask(&served, Post, "/api/v1/experiments", &bearer("other"), &case.to_string());
        assert_eq!(status, 404, "{case}: {answer}");
    }
    let (status, answer) =
        ask(&served, Post, "/api/v1/experiments/3/move", &bearer("other"), r#"{"destinationProjectId": 2}"#);
    assert_eq!(status, 404, "{answer}");
    let model = ask(&served, Post, "/api/v1/models", &bearer("other"), r#"{"name": "theirs", "workspaceId": 3}"#).0;
    assert_eq!(model, 200);
    let version = json!({"checkpointUuid": UUID}).to_string();
    assert_eq!(ask(&served, Post, "/api/v1/models/theirs/versions", &bearer("other"), &version).0, 404);
    for body in [json!({"workspaceId": 2}), json!({"workspaceName": MARKER})] {
        assert_eq!(ask(&served, Patch, "/api/v1/models/theirs", &bearer("other"), &body.to_string()).0, 404);
    }
    // Without a word on where, it would be the first workspace, of which everybody knows.
    let nowhere = json!({"config": searcher("max_length: 1")}).to_string();
    let (status, answer) = ask(&served, Post, "/api/v1/experiments", &bearer("other"), &nowhere);
    assert!(status == FORBIDDEN && answer.contains("hint: name a workspace"), "{answer}");
}

#[test]
fn a_version_of_a_model_does_not_tell_of_an_experiment_that_its_reader_may_not_see() {
    let (served, _) = serve_private();
    role(&served, EDITOR, OWNER, Some(WorkspaceId(3)));
    make(&served, "/api/v1/models", &json!({"name": "shared", "workspaceId": 3}));
    make(&served, "/api/v1/models/shared/versions", &json!({"checkpointUuid": UUID}));
    for path in ["/api/v1/models/shared/versions", "/api/v1/models/shared/versions/1"] {
        let (status, answer) = ask(&served, Get, path, &bearer("other"), "");
        assert!(status == 200 && answer.contains(UUID) && !answer.contains(MARKER), "{answer}");
        assert!(ask(&served, Get, path, &bearer("owner"), "").1.contains(MARKER));
    }
}

#[test]
fn a_refused_deletion_does_not_name_a_model_that_its_caller_may_not_see() {
    let (served, things) = serve_private();
    let uuid = UUID.replace('1', "7");
    let checkpoint = json!({"uuid": uuid, "taskId": things.task, "metadata": {"steps_completed": 2}});
    make(&served, "/api/v1/checkpoints", &checkpoint);
    let administrate = |path: &str, body: Value| {
        let (status, answer) = ask(&served, Post, path, &bearer("administrator"), &body.to_string());
        assert_eq!(status, 200, "{answer}");
    };
    administrate("/api/v1/models", json!({"name": "unseen model", "workspaceId": 1}));
    administrate("/api/v1/models/unseen%20model/versions", json!({"checkpointUuid": uuid}));
    let delete = |token: &str| {
        let body = json!({"checkpointUuids": [uuid]}).to_string();
        ask(&served, Delete, "/api/v1/checkpoints", &bearer(token), &body).1
    };
    for (token, named) in [("owner", false), ("administrator", true)] {
        let answer = delete(token);
        assert!(answer.contains("of a model in the registry"), "{answer}");
        assert_eq!(answer.contains("unseen model"), named, "{token}: {answer}");
    }
}

#[test]
fn a_workspace_keeps_an_owner_and_the_audit_log_says_whose_roles_change() {
    let (served, _) = serve_private();
    let change = |verb: &str, token: &str, user: i64, number: i64| {
        let assignment = json!({"role": {"roleId": number}, "scopeWorkspaceId": PRIVATE});
        let body = json!({"userRoleAssignments": [{"userId": user, "roleAssignment": assignment}]}).to_string();
        ask(&served, Post, &format!("/api/v1/roles/{verb}-assignments"), &bearer(token), &body)
    };
    let (owner, editor, owning) = (OWNER.0, 4, 2);
    let (status, answer) = change("remove", "owner", owner, owning);
    assert!(status == 400 && answer.contains("no owner any more") && answer.contains("hint: "), "{answer}");
    assert_eq!(change("add", "owner", editor, owning).0, 200);
    assert_eq!(change("remove", "owner", owner, owning).0, 200, "there is another one");
    assert_eq!(change("remove", "editor", editor, owning).0, 400);
    assert_eq!(change("remove", "administrator", editor, owning).0, 200, "administrators own all of them");
    let (_, audit) = ask(&served, Get, "/api/v1/master/audit", &bearer("administrator"), "");
    assert!(audit.contains(r#""subject":"WorkspaceAdmin of user editor in workspace 2""#), "{audit}");
}

#[test]
fn the_owner_of_a_workspace_neither_runs_as_others_nor_gets_their_secrets() {
    let (served, _) = serve_private();
    let config = json!({"entrypoint": "true", "searcher": {"name": "single", "metric": "x"}, "workspace": MARKER,
        "project": MARKER, "checkpoint_storage": {"type": "directory", "container_path": "/c"},
        "environment": {"environment_variables": ["MY_PASSWORD=hunter2hunter2"]}});
    let made = json!({"config": config.to_string(), "activate": false}).to_string();
    let (status, answer) = ask(&served, Post, "/api/v1/experiments", &bearer("editor"), &made);
    assert_eq!(status, 200, "{answer}");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let id = body["experiment"]["id"].clone();
    let masked = answer.split("\r\n\r\n").nth(1).unwrap().contains("hunter2");
    assert!(!masked, "{answer}");
    let mut fork = config.clone();
    fork["environment"]["environment_variables"] = json!(["MY_PASSWORD=********"]);
    let fork = json!({"config": fork.to_string(), "activate": false, "parentId": id}).to_string();
    let forked = |token: &str| ask(&served, Post, "/api/v1/experiments", &bearer(token), &fork).0;
    assert_eq!([forked("owner"), forked("administrator"), forked("editor")], [400, 400, 200]);
    let path = format!("/api/v1/experiments/{id}/kill");
    assert_eq!(ask(&served, Post, &path, &bearer("editor"), "").0, 200);
    let go_on = |token: &str, over: &str| {
        let body = json!({"id": id, "overrideConfig": over}).to_string();
        ask(&served, Post, "/api/v1/experiments/continue", &bearer(token), &body).0
    };
    assert_eq!([go_on("owner", "entrypoint: id"), go_on("administrator", "entrypoint: id")], [FORBIDDEN, FORBIDDEN]);
    assert_eq!(go_on("editor", "entrypoint: id"), 200);
}

#[test]
fn a_project_is_not_moved_with_experiments_of_others() {
    let (served, _) = serve_private();
    let editor = served.runtime.block_on(served.database.account("editor".into())).unwrap().unwrap().user.id;
    role(&served, CREATOR, editor, None);
    served.application.forget_sessions();
    let post = |token: &str, path: &str, body: Value| ask(&served, Post, path, &bearer(token), &body.to_string());
    assert_eq!(post("editor", "/api/v1/workspaces", json!({"name": "mine"})).0, 200);
    assert_eq!(post("editor", "/api/v1/workspaces/2/projects", json!({"name": "trap"})).0, 200);
    let (_, answer) = ask(&served, Get, "/api/v1/workspaces/2/projects?name=trap", &bearer("editor"), "");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let project = body["projects"][0]["id"].as_i64().unwrap();
    let (_, answer) = ask(&served, Get, "/api/v1/workspaces?name=mine", &bearer("editor"), "");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let destination = json!({"destinationWorkspaceId": body["workspaces"][0]["id"]});
    assert_eq!(post("owner", "/api/v1/experiments/1/move", json!({"destinationProjectId": project})).0, 200);
    let path = format!("/api/v1/projects/{project}/move");
    let (status, answer) = post("editor", &path, destination.clone());
    assert!(status == FORBIDDEN && answer.contains("may change this experiment"), "{answer}");
    assert_eq!(ask(&served, Get, "/api/v1/experiments/1", &bearer("owner"), "").0, 200);
    assert_eq!(post("owner", "/api/v1/experiments/1/move", json!({"destinationProjectId": 2})).0, 200);
    assert_eq!(post("editor", &path, destination).0, 200);
}
