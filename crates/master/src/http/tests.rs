//! Who may ask for what: every route of the table × every kind of token, against a real server.
//!
//! What is expected follows from the table's [`Access`]: a route that is served is in the table, so none is missing.

mod auditing;
mod bounds;
mod browsers;
mod checkpoints;
mod masking;
mod policies;
mod roles;
mod secrets;
mod shells;
mod stepping_down;
mod tokens;
mod validating;
mod webhooks;
mod workspaces;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use instep_api::identifiers::{ExperimentId, TrialId, UserId};
use instep_api::states::AllocationState;
use instep_api::wire::Timestamp;
use instep_database::{AgentTokenRow, AllocationRow, Database, Decision, NewAccount, Opening, TaskSession};
use serde_json::{Value, json};

use super::access::{Access, Thing};
use super::route::Method::{self, Delete, Get, Patch, Post, Put};
use super::route::Route;
use super::router::{router, task_router};
use super::routes::routes;
use super::serving::{Limits, serve as serve_connections};
use crate::application::{Application, ApplicationOptions};
use crate::clock::now;
use crate::listener::Connections;
use crate::passwords::token_hash;
use crate::sites::Sites;
use crate::webhooks::WebhookOptions;

const UNAUTHENTICATED: u16 = 401;
const FORBIDDEN: u16 = 403;
const UUID: &str = "11111111-2222-4333-8444-555555555555";
/// Users of the database: two are there from the start.
const ADMINISTRATOR: UserId = UserId(1);
const OWNER: UserId = UserId(2);
const OTHER: UserId = UserId(3);

/// A server on a database of its own, with a token of each kind, each named after whose it is.
struct Served {
    address: SocketAddr,
    /// Where the pages of tasks are.
    tasks: SocketAddr,
    application: Arc<Application>,
    database: Database,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

fn serve() -> Served {
    serve_with(false)
}

fn serve_with(roles: bool) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let opening = Opening { holder: "test".into(), cluster_id: "cluster".into(), now: now() };
    let database = Database::open(&folder.path().join("a.db"), &opening).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (address, tasks, application) = runtime.block_on(async {
        let other = NewAccount {
            username: "other".into(),
            display_name: String::new(),
            admin: false,
            active: true,
            remote: false,
            password_hash: None,
            agent_user_group: None,
        };
        assert_eq!(database.create_user(other, now()).await.unwrap().id, OTHER);
        let later = Timestamp(now().0 + 3_600_000_000);
        for (token, user, expiry) in [
            ("administrator", ADMINISTRATOR, later),
            ("owner", OWNER, later),
            ("other", OTHER, later),
            ("leaving", OTHER, later),
            ("revoked", OWNER, later),
            ("expired", OWNER, Timestamp(1)),
        ] {
            database.open_session(token_hash(token), user, Timestamp(0), expiry).await.unwrap();
        }
        database.close_session(token_hash("revoked")).await.unwrap();
        let row =
            AgentTokenRow { name: "machine".into(), user: ADMINISTRATOR, created_at: now(), agent: None, pool: None };
        database.create_agent_token(token_hash("agent"), row).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let task_listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, tasks) = (listener.local_addr().unwrap(), task_listener.local_addr().unwrap());
        let told = ApplicationOptions {
            session: Duration::from_secs(60),
            sites: Sites::new(false, address.port(), tasks.port(), None),
            roles,
            // Receivers of tests are on this machine.
            webhooks: WebhookOptions { private_addresses: true, ..WebhookOptions::default() },
            ..ApplicationOptions::default()
        };
        let application = Arc::new(Application::start(database.clone(), told).await.unwrap());
        for (listener, router) in [(listener, router(&application)), (task_listener, task_router(&application))] {
            let connections = Connections::of(listener, None);
            tokio::spawn(serve_connections(connections, router, Limits::default(), std::future::pending()));
        }
        (address, tasks, application)
    });
    Served { address, tasks, application, database, runtime, _folder: folder }
}

/// Asks, and gives the whole answer.
fn ask(served: &Served, method: Method, path: &str, header: &str, body: &str) -> (u16, String) {
    ask_at(served.address, method, path, header, body)
}

fn ask_at(address: SocketAddr, method: Method, path: &str, header: &str, body: &str) -> (u16, String) {
    let mut connection = TcpStream::connect(address).unwrap();
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

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Things of the owner, so that there is something to refuse; how paths and bodies name them.
struct Things {
    task: String,
    command: String,
    job: String,
}

/// Gives the body of a success.
fn make(served: &Served, path: &str, body: &Value) -> Value {
    let (status, answer) = ask(served, Post, path, &bearer("owner"), &body.to_string());
    assert!(status < 300, "{path}: {answer}");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

/// Lets a task of a trial of the owner's have a token.
fn give_token(served: &Served, token: &str, number: i64, task: &str, user: UserId) {
    let id = format!("{task}.1");
    let session = TaskSession { token_hash: token_hash(token), user, allocation: id.clone() };
    let allocation = AllocationRow {
        id,
        task_id: task.to_owned(),
        trial: Some(TrialId(number)),
        experiment: Some(ExperimentId(number)),
        run: 1,
        state: AllocationState::Running,
        ready: true,
        pool: "default".into(),
        slots: 1,
        shares: json!([]),
        ports: json!({}),
        signals: json!({}),
        exit: None,
        reason: String::new(),
        queued_at: now(),
        started_at: Some(now()),
        ended_at: None,
    };
    let decision = Decision { allocations: vec![allocation], sessions: vec![session], ..Decision::default() };
    served.runtime.block_on(served.database.decide(decision, now())).unwrap();
}

fn fill(served: &Served) -> Things {
    fill_workspace(served, 1)
}

/// Makes the owner's things in a workspace: the first one, or the one that is made for it.
fn fill_workspace(served: &Served, workspace: i64) -> Things {
    let mut tasks = Vec::new();
    make(served, "/api/v1/workspaces", &json!({"name": roles::MARKER}));
    make(served, "/api/v1/workspaces/2/projects", &json!({"name": roles::MARKER, "description": roles::MARKER}));
    for number in [1, 2] {
        let config = roles::config();
        let config = json!({"config": config, "unmanaged": true, "projectId": workspace}).to_string();
        let path = format!("/api/v1/experiments/by-external-id/{}", if number == 1 { "x/y" } else { "z" });
        assert_eq!(ask(served, Put, &path, &bearer("owner"), &config).0, 200);
        let trial = make(served, "/api/v1/trials", &json!({"experimentId": number, "unmanaged": true}));
        tasks.push(trial["trial"]["taskId"].as_str().unwrap().to_owned());
    }
    give_token(served, "own task", 1, &tasks[0], OWNER);
    give_token(served, "other task", 2, &tasks[1], OWNER);
    let checkpoint = json!({"uuid": UUID, "taskId": tasks[0], "state": "STATE_COMPLETED", "resources": {},
        "metadata": {"steps_completed": 1, "note": roles::MARKER}});
    make(served, "/api/v1/checkpoints", &checkpoint);
    let template = json!({"config": {"description": roles::MARKER}, "workspaceId": workspace});
    make(served, "/api/v1/templates/name", &template);
    let model = json!({"name": "name", "description": roles::MARKER, "labels": [roles::MARKER],
        "workspaceId": workspace});
    make(served, "/api/v1/models", &model);
    make(served, "/api/v1/models/name/versions", &json!({"checkpointUuid": UUID, "comment": roles::MARKER}));
    let command = json!({"config": {"entrypoint": ["true"], "description": roles::MARKER}, "workspaceId": workspace});
    let command = make(served, "/api/v1/commands", &command);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (command, job) = (text(&command["command"]["id"]), text(&command["command"]["jobId"]));
    Things { task: tasks.swap_remove(0), command, job }
}

/// A path of the table that names things of the owner.
fn filled(path: &str, things: &Things) -> String {
    let id = match path.split('/').find(|part| !matches!(*part, "" | "api" | "v1" | "det")) {
        Some("allocations") => format!("{}.1", things.task),
        Some("commands" | "tensorboards" | "notebooks" | "shells" | "proxy") => things.command.clone(),
        // These are of tasks beside experiments.
        Some("tasks") if ["/kill", "/config", "/pause", "/unpause"].iter().any(|end| path.ends_with(end)) => {
            things.command.clone()
        }
        Some("tasks") => things.task.clone(),
        Some("workspaces" | "projects" | "users" | "roles" | "config-policies") => "2".to_owned(),
        _ => "1".to_owned(),
    };
    path.replace("{*external}", "x/y")
        .replace("{*rest}", "x/y")
        .replace("{id}", &id)
        .replace("{uuid}", UUID)
        .replace("{kind}", "trial_metrics")
        .replace("{version}", "1")
        .replace("{slot}", "0")
        .replace("{group}", "1")
        .replace("{user}", "2")
        .replace(['{', '}'], "")
}

/// A body that names things of the owner, for routes whose paths do not.
fn body(route: &Route, things: &Things) -> Option<Value> {
    let path = route.path.strip_prefix("/api/v1").unwrap_or(route.path);
    let line = json!({"task_id": things.task, "log": "x"});
    Some(match (route.method, path) {
        (_, path) if path.starts_with("/projects/{id}/experiments/") => {
            json!({"experimentIds": [1], "destinationProjectId": 1, "numDays": 1})
        }
        (Post, "/experiments/continue") => json!({"id": 1}),
        (Post, "/trials") => json!({"experimentId": 1, "unmanaged": true}),
        (Put, "/trials") => {
            json!({"externalTrialId": "x", "createTrialRequest": {"experimentId": 1, "unmanaged": true}})
        }
        (Post, "/runs/start") => json!({"runId": 1}),
        (Post, "/runs/move") => json!({"runIds": [1], "sourceProjectId": 1, "destinationProjectId": 2}),
        (Post, path) if path.starts_with("/runs/") && !path.contains('{') => json!({"runIds": [1]}),
        (Post, "/webhooks/custom") => json!({"experimentId": 1}),
        (Post, "/trial-source-info") => json!({"trialSourceInfo": {"trialId": 1, "checkpointUuid": UUID}}),
        (Post, "/checkpoints") => json!({"uuid": UUID, "taskId": things.task, "metadata": {"steps_completed": 1}}),
        (Patch, "/checkpoints") => json!({"checkpoints": [{"uuid": UUID, "resources": {"resources": {}}}]}),
        (Delete, "/checkpoints") => json!({"checkpointUuids": [UUID]}),
        (Post, "/checkpoints/rm") => json!({"checkpointUuids": [UUID], "checkpointGlobs": ["x"]}),
        (Patch, "/template/rename") => json!({"oldName": "name", "newName": "name"}),
        (Post, "/task-logs") => json!([line]),
        (Post, "/task/logs") => json!({"logs": [line]}),
        (Post, "/job-queues") => json!({"updates": [{"jobId": things.job, "priority": 1}]}),
        _ => return None,
    })
}

/// What a token of somebody who is known may expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Refused,
    Allowed,
}

use Answer::{Allowed, Refused};

fn expected(route: &Route, token: &str) -> Answer {
    let is_task = token.ends_with("task");
    let allowed = match (route.access, token) {
        (Access::Open | Access::LocalOrUser | Access::Read(_) | Access::Make | Access::Proxy, _) => true,
        (Access::Login | Access::Share, _) => !is_task,
        (Access::Administrator, token) => token == "administrator",
        // A task's token opens the connection, for an agent of its own allocation alone.
        (Access::Agent, token) => is_task || token == "administrator",
        (Access::Change(_), "owner" | "administrator") => true,
        (Access::Change(_), "other") => false,
        (Access::Change(thing), "own task") => match thing {
            Thing::Experiment | Thing::ExternalExperiment | Thing::Trial => true,
            Thing::Allocation | Thing::Checkpoint => true,
            // The owner's models are where their tasks leave what they made.
            Thing::Model | Thing::ModelVersion => true,
            // A command's place in the queue is not the trial's, and templates are people's.
            Thing::InBody => !["/api/v1/job-queues", "/api/v1/template/rename"].contains(&route.path),
            Thing::Command | Thing::Workspace | Thing::Project | Thing::Template | Thing::User => false,
            Thing::Common | Thing::Log | Thing::Several | Thing::Task => panic!("{} changes nothing", route.path),
        },
        (Access::Change(thing), "other task") => matches!(thing, Thing::Model | Thing::ModelVersion),
        (access, token) => panic!("what does {access:?} mean for {token}?"),
    };
    if allowed { Allowed } else { Refused }
}

/// Asks with somebody's token; a refusal of one of many is one, too.
fn outcome(served: &Served, route: &Route, things: &Things, token: &str) -> Answer {
    let body = body(route, things).map(|body| body.to_string()).unwrap_or_default();
    let (status, answer) = ask(served, route.method, &filled(route.path, things), &bearer(token), &body);
    let what = format!("{} {} for {token}: {answer}", route.method.name(), route.path);
    // Roles are off; and the allocation is in the database alone, as one is that another leader has begun.
    let expected = status == 501 || status == 503 && route.path.ends_with("/signals/preemption");
    assert!(status != UNAUTHENTICATED && (status < 500 || expected) || route.path.starts_with("/proxy"), "{what}");
    let in_part = answer.contains(r#""error":"only its owner"#) || answer.contains(r#""error":"the token of task"#);
    if status == FORBIDDEN || in_part { Refused } else { Allowed }
}

#[test]
fn every_change_says_whose_the_thing_is() {
    for route in routes() {
        let what = format!("{} {}", route.method.name(), route.path);
        let is_change = route.method != Get;
        let harmless = [
            "/api/v1/auth/login",
            "/api/v1/preview-hp-search",
            "/api/v1/experiments-search",
            "/api/v1/runs",
            "/api/v1/experiments/{id}/file",
        ];
        match route.access {
            Access::Open | Access::Read(_) | Access::LocalOrUser if is_change => {
                let searches = route.path.contains("/search");
                assert!(searches || harmless.contains(&route.path), "{what} changes something: who may?");
            }
            Access::Read(Thing::User | Thing::InBody) => panic!("{what}: which thing is read?"),
            Access::Make => assert!(is_change && !route.path.ends_with('}'), "{what} makes nothing"),
            _ => {}
        }
        let of_machines = is_change && (route.path.contains("/agents/") || route.path == "/api/v1/users");
        assert!(!of_machines || route.access == Access::Administrator, "{what} is for administrators");
    }
}

#[test]
fn every_route_answers_each_kind_of_token_as_the_table_says() {
    let served = serve();
    let things = fill(&served);
    // The owner's things last as long as they are needed.
    let mut table = routes();
    table.sort_by_key(|route| route.method == Delete);
    let strangers = ["", "wrong", "revoked", "expired", "agent"];
    for route in &table {
        let what = format!("{} {}", route.method.name(), route.path);
        let path = filled(route.path, &things);
        assert!(
            route.access != Access::Change(Thing::InBody) || body(route, &things).is_some(),
            "{what}: which body names something of the owner's?"
        );
        for token in strangers {
            let found = ask(&served, route.method, &path, &bearer(token), "").0;
            let open = matches!(route.access, Access::Open | Access::LocalOrUser)
                || (route.access == Access::Agent && token == "agent");
            assert_eq!(found == UNAUTHENTICATED, !open, "{what} with {token:?}: {found}");
        }
        for header in ["", "Cookie: instep_session_cluster=no\r\nOrigin: http://localhost\r\n"] {
            let found = ask(&served, route.method, &path, header, "").0;
            let open = matches!(route.access, Access::Open | Access::LocalOrUser);
            assert_eq!(found == UNAUTHENTICATED, !open, "{what} with {header:?}: {found}");
        }
        for header in ["Origin: http://evil.example\r\n", "Host: evil.example\r\n", "Origin: null\r\n"] {
            let header = format!("{}{header}", bearer("administrator"));
            assert_eq!(ask(&served, route.method, &path, &header, "").0, FORBIDDEN, "{what} with {header:?}");
        }
    }
    // Those who are refused everything of the owner's come first.
    for token in ["other", "other task", "own task", "owner", "administrator"] {
        for route in table.iter().filter(|route| route.path != "/api/v1/auth/logout") {
            let found = outcome(&served, route, &things, token);
            assert_eq!(found, expected(route, token), "{} {} for {token}", route.method.name(), route.path);
        }
    }
    let logout = |token: &str| ask(&served, Post, "/api/v1/auth/logout", &bearer(token), "").0;
    assert_eq!([logout("own task"), logout("leaving"), logout("leaving")], [FORBIDDEN, 200, UNAUTHENTICATED]);
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

#[test]
fn a_password_is_changed_after_a_recent_login_and_never_by_a_task() {
    let served = serve();
    let things = fill(&served);
    assert!(things.task.starts_with("1."));
    let change = |token: &str| ask(&served, Patch, "/api/v1/users/2", &bearer(token), r#"{"password": "secret"}"#).0;
    assert_eq!(change("own task"), FORBIDDEN);
    // Who has no password yet cannot give it; with that the sessions end.
    assert_eq!(change("owner"), 200);
    let later = Timestamp(now().0 + 3_600_000_000);
    let open = |token: &str, opened: Timestamp| {
        served.runtime.block_on(served.database.open_session(token_hash(token), OWNER, opened, later)).unwrap();
    };
    open("old", Timestamp(now().0 - 7_200_000_000));
    assert_eq!(change("old"), FORBIDDEN);
    open("new", now());
    assert_eq!(change("new"), 200);
    assert_eq!(change("administrator"), 200);
}

#[test]
fn wrong_passwords_are_slowed_down() {
    let served = serve();
    let password = r#"{"password": "secret"}"#;
    assert_eq!(ask(&served, Patch, "/api/v1/users/2", &bearer("administrator"), password).0, 200);
    let login = |user: &str, password: &str| {
        let body = json!({"username": user, "password": password}).to_string();
        ask(&served, Post, "/api/v1/auth/login", "", &body)
    };
    // A right one takes the wrong ones before it back.
    assert_eq!([login("determined", "a").0, login("determined", "secret").0], [UNAUTHENTICATED, 200]);
    for _ in 0..5 {
        assert_eq!(login("determined", "guess").0, UNAUTHENTICATED);
        assert_eq!(login("nobody", "guess").0, UNAUTHENTICATED);
    }
    // Of users who do not exist nobody learns it from this either.
    for user in ["determined", "nobody"] {
        let (status, answer) = login(user, "secret");
        assert!(status == 429 && answer.contains("hint: try again in"), "{answer}");
    }
}
