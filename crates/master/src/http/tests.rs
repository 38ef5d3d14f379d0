//! Who may ask for what: every route × {no token, a wrong one, an expired one, another user's, an administrator's}.
//!
//! [`RULES`] says what is meant, the table of routes what is done; a route without a rule fails the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;
use instep_database::{Database, Opening};

use super::router::Method::{self, Delete, Get, Patch, Post, Put};
use super::router::router;
use super::routes::routes;
use crate::application::{Application, ApplicationOptions};
use crate::clock::now;
use crate::listener::Connections;
use crate::passwords::token_hash;
use crate::peer::Peer;

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Everybody, also without a token: what is there to find or to log in to the master, and pages without content.
    Anybody,
    /// The same, on this machine only.
    Here,
    /// Every user, about everybody's things: as in Determined, all users see and use all experiments.
    Users,
    /// Whose it is, and administrators.
    Owner,
    /// Administrators.
    Administrator,
}

use Rule::{Administrator, Anybody, Here, Owner, Users};

/// What is meant. Things with number 1 belong to the first user, who is an administrator.
const RULES: &[(Method, &str, Rule)] = &[
    (Get, "/health", Anybody),
    (Get, "/metrics", Here),
    (Get, "/api/openapi.json", Anybody),
    (Get, "/info", Anybody),
    (Get, "/api/v1/master", Anybody),
    (Get, "/", Anybody),
    (Get, "/det/cluster", Anybody),
    (Get, "/det/queue", Anybody),
    (Get, "/det/experiments/{id}", Anybody),
    (Get, "/assets/{name}", Anybody),
    (Post, "/api/v1/auth/login", Anybody),
    (Post, "/api/v1/auth/logout", Users),
    (Get, "/api/v1/auth/user", Users),
    (Get, "/api/v1/me", Users),
    (Get, "/api/v1/users", Users),
    (Post, "/api/v1/users", Administrator),
    (Get, "/api/v1/users/{id}", Users),
    (Get, "/api/v1/users/{name}/by-username", Users),
    (Patch, "/api/v1/users/{id}", Owner),
    (Get, "/api/v1/workspaces", Users),
    (Post, "/api/v1/workspaces", Users),
    (Get, "/api/v1/workspaces/{id}", Users),
    (Patch, "/api/v1/workspaces/{id}", Owner),
    (Delete, "/api/v1/workspaces/{id}", Owner),
    (Post, "/api/v1/workspaces/{id}/archive", Owner),
    (Post, "/api/v1/workspaces/{id}/unarchive", Owner),
    (Get, "/api/v1/workspaces/{id}/projects", Users),
    (Post, "/api/v1/workspaces/{id}/projects", Users),
    (Get, "/api/v1/projects/{id}", Users),
    (Patch, "/api/v1/projects/{id}", Owner),
    (Delete, "/api/v1/projects/{id}", Owner),
    (Post, "/api/v1/projects/{id}/archive", Owner),
    (Post, "/api/v1/projects/{id}/unarchive", Owner),
    (Get, "/api/v1/experiments", Users),
    (Post, "/api/v1/experiments", Users),
    (Put, "/api/v1/experiments/by-external-id/{*external}", Users),
    (Get, "/api/v1/experiments/{id}", Users),
    (Patch, "/api/v1/experiments/{id}", Users),
    (Delete, "/api/v1/experiments/{id}", Owner),
    (Post, "/api/v1/experiments/{id}/archive", Users),
    (Post, "/api/v1/experiments/{id}/unarchive", Users),
    (Post, "/api/v1/experiments/{id}/move", Users),
    (Put, "/api/v1/experiments/{id}/labels/{label}", Users),
    (Delete, "/api/v1/experiments/{id}/labels/{label}", Users),
    (Get, "/api/v1/experiments/{id}/trials", Users),
    (Get, "/api/v1/experiments/{id}/checkpoints", Users),
    (Get, "/api/v1/experiments/{id}/searcher/best_searcher_validation_metric", Users),
    (Post, "/api/v1/trials", Users),
    (Put, "/api/v1/trials", Users),
    (Get, "/api/v1/trials/by-external-id/{*external}", Users),
    (Get, "/api/v1/trials/time-series", Users),
    (Get, "/api/v1/trials/metrics/{kind}", Users),
    (Get, "/api/v1/trials/{id}", Users),
    (Patch, "/api/v1/trials/{id}", Users),
    (Post, "/api/v1/trials/{id}/start", Users),
    (Post, "/api/v1/trials/{id}/metrics", Users),
    (Post, "/api/v1/trials/{id}/reports", Users),
    (Post, "/api/v1/trials/{id}/progress", Users),
    (Post, "/api/v1/trials/{id}/runner/metadata", Users),
    (Get, "/api/v1/trials/{id}/workloads", Users),
    (Get, "/api/v1/trials/{id}/checkpoints", Users),
    (Get, "/api/v1/trials/{id}/logs", Users),
    (Get, "/api/v1/trials/{id}/logs/fields", Users),
    (Post, "/api/v1/runs/start", Users),
    (Get, "/api/v1/runs/{id}/metadata", Users),
    (Post, "/api/v1/runs/{id}/metadata", Users),
    (Post, "/api/v1/checkpoints", Users),
    (Patch, "/api/v1/checkpoints", Users),
    (Delete, "/api/v1/checkpoints", Users),
    (Post, "/api/v1/checkpoints/rm", Users),
    (Get, "/api/v1/checkpoints/{uuid}", Users),
    (Post, "/api/v1/checkpoints/{uuid}/metadata", Users),
    (Post, "/task-logs", Here),
    (Post, "/api/v1/task/logs", Users),
    (Get, "/api/v1/tasks/{id}/logs", Users),
    (Get, "/api/v1/tasks/{id}/logs/fields", Users),
    (Get, "/api/v1/models", Users),
    (Post, "/api/v1/models", Users),
    (Get, "/api/v1/model/labels", Users),
    (Get, "/api/v1/models/{name}", Users),
    (Patch, "/api/v1/models/{name}", Owner),
    (Delete, "/api/v1/models/{name}", Owner),
    (Post, "/api/v1/models/{name}/archive", Owner),
    (Post, "/api/v1/models/{name}/unarchive", Owner),
    (Post, "/api/v1/models/{name}/move", Owner),
    (Get, "/api/v1/models/{name}/versions", Users),
    (Post, "/api/v1/models/{name}/versions", Users),
    (Get, "/api/v1/models/{name}/versions/{version}", Users),
    (Patch, "/api/v1/models/{name}/versions/{version}", Owner),
    (Delete, "/api/v1/models/{name}/versions/{version}", Owner),
    (Get, "/checkpoints/{uuid}", Users),
    (Get, "/trials/{id}/logs.txt", Users),
    (Get, "/tasks/{id}/logs.txt", Users),
    (Get, "/trials/{id}/metrics.csv", Users),
    (Get, "/trials/{id}/metrics.jsonl", Users),
    (Get, "/experiments/{id}/metrics.csv", Users),
    (Get, "/experiments/{id}/metrics.jsonl", Users),
    (Get, instep_api::link::PATH, Administrator),
    (Get, "/api/v1/agents/tokens", Administrator),
    (Post, "/api/v1/agents/tokens", Administrator),
    (Delete, "/api/v1/agents/tokens/{name}", Administrator),
    (Post, "/api/v1/experiments/{id}/activate", Users),
    (Post, "/api/v1/experiments/{id}/pause", Users),
    (Post, "/api/v1/experiments/{id}/cancel", Users),
    (Post, "/api/v1/experiments/{id}/kill", Users),
    (Get, "/api/v1/experiments/{id}/model_def", Users),
    (Get, "/experiments/{id}/model_def", Users),
    (Post, "/api/v1/trials/{id}/kill", Users),
    (Post, "/api/v1/trials/{id}/early_exit", Users),
    (Get, "/api/v1/tasks/{id}/context_directory", Users),
    (Get, "/api/v1/allocations/{id}/resources/{resources}/rendezvous", Users),
    (Post, "/api/v1/allocations/{id}/resources/{resources}/daemon", Users),
    (Get, "/api/v1/allocations/{id}/signals/preemption", Users),
    (Post, "/api/v1/allocations/{id}/signals/ack_preemption", Users),
    (Post, "/api/v1/allocations/{id}/signals/pending_preemption", Users),
    (Post, "/api/v1/allocations/{id}/acceleratorData", Users),
    (Post, "/api/v1/allocations/{id}/proxy_address", Users),
    (Post, "/api/v1/allocations/{id}/notify_container_running", Users),
    (Post, "/api/v1/allocations/{id}/ready", Users),
    (Post, "/api/v1/allocations/{id}/waiting", Users),
    (Post, "/api/v1/allocations/{id}/all_gather", Users),
    (Get, "/api/v1/agents", Users),
    (Get, "/api/v1/agents/{agent}", Users),
    (Post, "/api/v1/agents/{agent}/enable", Users),
    (Post, "/api/v1/agents/{agent}/disable", Users),
    (Get, "/api/v1/agents/{agent}/slots", Users),
    (Get, "/api/v1/agents/{agent}/slots/{slot}", Users),
    (Post, "/api/v1/agents/{agent}/slots/{slot}/enable", Users),
    (Post, "/api/v1/agents/{agent}/slots/{slot}/disable", Users),
    (Get, "/api/v1/master/config", Administrator),
    (Get, "/api/v1/master/logs", Administrator),
    (Get, "/api/v1/resource-pools", Users),
    (Get, "/api/v1/job-queues", Users),
    (Get, "/api/v1/job-queues-v2", Users),
    (Get, "/api/v1/job-queues/stats", Users),
    (Post, "/api/v1/job-queues", Users),
    (Get, "/api/v1/tasks", Users),
    (Get, "/api/v1/tasks/{id}", Users),
    (Get, "/tasks", Users),
    (Post, "/api/v1/preview-hp-search", Users),
    (Get, "/api/v1/templates", Users),
    (Get, "/api/v1/templates/{name}", Users),
    (Post, "/api/v1/templates/{name}", Users),
    (Put, "/api/v1/templates/{name}", Owner),
    (Patch, "/api/v1/templates/{name}", Owner),
    (Delete, "/api/v1/templates/{name}", Owner),
    (Post, "/api/v1/experiments/continue", Users),
    (Get, "/experiments/{id}/preview_gc", Users),
    (Post, "/api/v1/projects/{id}/experiments/activate", Users),
    (Post, "/api/v1/projects/{id}/experiments/pause", Users),
    (Post, "/api/v1/projects/{id}/experiments/cancel", Users),
    (Post, "/api/v1/projects/{id}/experiments/kill", Users),
    (Post, "/api/v1/projects/{id}/experiments/archive", Users),
    (Post, "/api/v1/projects/{id}/experiments/unarchive", Users),
    (Post, "/api/v1/projects/{id}/experiments/move", Users),
    (Post, "/api/v1/commands", Users),
    (Get, "/api/v1/commands", Users),
    (Get, "/api/v1/commands/{id}", Users),
    (Post, "/api/v1/commands/{id}/kill", Users),
    (Post, "/api/v1/commands/{id}/set_priority", Users),
    (Post, "/api/v1/tensorboards", Users),
    (Get, "/api/v1/tensorboards", Users),
    (Get, "/api/v1/tensorboards/{id}", Users),
    (Post, "/api/v1/tensorboards/{id}/kill", Users),
    (Post, "/api/v1/tensorboards/{id}/set_priority", Users),
    (Get, "/proxy/{id}/", Users),
    (Get, "/proxy/{id}/{*rest}", Users),
    (Post, "/proxy/{id}/{*rest}", Users),
    (Get, "/det/interactive/{id}/{*rest}", Anybody),
];

/// Where things are moved to: whoever may not move them is refused before anybody looks whether they can.
const MOVE: &str = r#"{"destinationProjectId": 1, "destinationWorkspaceId": 1}"#;
const UNAUTHENTICATED: u16 = 401;
const FORBIDDEN: u16 = 403;

/// A server on a database of its own, with a token for each of the two first users and one that has expired.
struct Served {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let opening = Opening { holder: "test".into(), cluster_id: "cluster".into(), now: now() };
    let database = Database::open(&folder.path().join("a.db"), &opening).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let later = Timestamp(now().0 + 3_600_000_000);
        for (token, user, expiry) in [("admin", 1, later), ("user", 2, later), ("expired", 1, Timestamp(1))] {
            database.open_session(token_hash(token), UserId(user), Timestamp(0), expiry).await.unwrap();
        }
        let told = ApplicationOptions { session: Duration::from_secs(60), ..ApplicationOptions::default() };
        let application = Arc::new(Application::start(database, told).await.unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router(&application).into_make_service_with_connect_info::<Peer>();
        tokio::spawn(async move { axum::serve(Connections::of(listener, None).unwrap(), service).await });
        address
    });
    Served { address, _runtime: runtime, _folder: folder }
}

/// Asks, and gives the whole answer.
fn ask(served: &Served, method: Method, path: &str, header: &str, body: &str) -> (u16, String) {
    let mut connection = TcpStream::connect(served.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (method, length) = (method.name(), body.len());
    let host = if header.contains("Host:") { "" } else { "Host: localhost\r\n" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{header}\r\n{body}"
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer:?}")), answer)
}

/// A path of the table with things of the first user in it.
fn filled(path: &str) -> String {
    let path = path
        .replace("{*external}", "x/y")
        .replace("{*rest}", "x/y")
        .replace("{id}", "1")
        .replace("{kind}", "trial_metrics");
    path.replace("{version}", "1").replace(['{', '}'], "")
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// An experiment of the first user with a trial, and a model, so that there is something to refuse.
fn fill(served: &Served) {
    let make = |path: &str, body: &str| {
        let (status, answer) = ask(served, Post, path, &bearer("admin"), body);
        assert!(status < 300, "{answer}");
        answer
    };
    let config = r#"{"config": "{name: a, searcher: {name: single, metric: x}}", "unmanaged": true}"#;
    make("/api/v1/experiments", config);
    let trial = make("/api/v1/trials", r#"{"experimentId": 1, "unmanaged": true}"#);
    let task = trial.split(r#""taskId":""#).nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let uuid = "11111111-2222-4333-8444-555555555555";
    let metadata = r#"{"steps_completed": 1}"#;
    let checkpoint = format!(
        r#"{{"uuid": "{uuid}", "taskId": "{task}", "state": "STATE_COMPLETED", "resources": {{}}, "metadata": {metadata}}}"#
    );
    make("/api/v1/checkpoints", &checkpoint);
    make("/api/v1/templates/name", r#"{"config": {"max_restarts": 1}}"#);
    make("/api/v1/models", r#"{"name": "name"}"#);
    make("/api/v1/models/name/versions", &format!(r#"{{"checkpointUuid": "{uuid}"}}"#));
}

#[test]
fn every_route_has_a_rule_and_no_rule_is_left_over() {
    let key = |method: Method, path: &str| format!("{} {path}", method.name());
    let mut served: Vec<String> = routes().iter().map(|route| key(route.method, route.path)).collect();
    let mut meant: Vec<String> = RULES.iter().map(|(method, path, _)| key(*method, path)).collect();
    served.sort();
    meant.sort();
    let count = served.len();
    served.dedup();
    assert_eq!(served.len(), count, "a route is there twice");
    let missing: Vec<&String> = served.iter().filter(|route| !meant.contains(route)).collect();
    assert!(missing.is_empty(), "who may ask for these? say so in RULES: {missing:#?}");
    assert_eq!(meant, served, "rules of routes that are not served");
}

#[test]
fn every_route_answers_as_its_rule_says() {
    let served = serve();
    fill(&served);
    let forged = ["".to_owned(), bearer("wrong"), bearer("expired"), "Cookie: auth=no\r\n".to_owned(), bearer("")];
    for (method, path, rule) in RULES {
        let (what, path) = (format!("{} {path}", method.name()), filled(path));
        let body = if path.ends_with("/move") { MOVE } else { "" };
        let status = |header: &str| ask(&served, *method, &path, header, body).0;
        for header in &forged {
            let open = matches!(rule, Anybody | Here);
            assert_eq!(status(header) == UNAUTHENTICATED, !open, "{what} with {header:?}");
        }
        for header in ["Origin: http://evil.example\r\n", "Host: evil.example\r\n", "Origin: null\r\n"] {
            let header = format!("{}{header}", bearer("admin"));
            assert_eq!(status(&header), FORBIDDEN, "{what} with {header:?}");
        }
        // Whoever logs out has no token for the others any more.
        if path != "/api/v1/auth/logout" {
            let refused = matches!(rule, Owner | Administrator);
            let found = status(&bearer("user"));
            assert_eq!(found == FORBIDDEN, refused, "{what} for another user: {found}");
            assert!(found != UNAUTHENTICATED && found < 500, "{what} for another user: {found}");
        }
    }
    for (method, path, _) in RULES.iter().filter(|(_, path, _)| !path.ends_with("/logout")) {
        let (found, answer) = ask(&served, *method, &filled(path), &bearer("admin"), "");
        assert!(found != FORBIDDEN && found != UNAUTHENTICATED, "{} {path} for an administrator", method.name());
        assert!(found < 500, "{} {path}: {answer}", method.name());
    }
}

#[test]
fn what_is_not_served_tells_strangers_nothing() {
    let served = serve();
    for path in ["/nothing", "/api/v1/auth/login"] {
        assert!(matches!(ask(&served, Get, path, "", "").0, 404 | 405));
        assert_eq!(ask(&served, Get, path, "Host: evil.example\r\n", "").0, FORBIDDEN);
    }
}

#[test]
fn requests_have_names_in_answers_and_errors() {
    let served = serve();
    let (_, answer) = ask(&served, Get, "/info", "X-Request-Id: mine-7\r\n", "");
    assert!(answer.contains("x-request-id: mine-7"), "{answer}");
    for path in ["/api/v1/me", "/nothing"] {
        let (_, answer) = ask(&served, Get, path, "X-Request-Id: mine-8\r\n", "");
        assert!(answer.contains("x-request-id: mine-8") && answer.contains(r#""requestId":"mine-8""#), "{answer}");
    }
}
