//! What browsers may do by themselves: every route of the table with the session's cookie, and the pages of tasks.

use std::time::Instant;

use super::super::route::Kind;
use super::super::routes::task_routes;
use super::*;
use crate::sync::lock;
use crate::task_access::Grant;

const ORIGIN: &str = "Origin: http://localhost\r\n";
const SAME_ORIGIN: &str = "Sec-Fetch-Site: same-origin\r\n";
/// How a browser asks for a page.
const NAVIGATION: &str = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";

fn session(token: &str) -> String {
    format!("Cookie: other=1; instep_session_cluster={token}\r\n")
}

fn key(key: &str) -> String {
    format!("Cookie: instep_task_cluster={key}\r\n")
}

#[test]
fn a_session_s_cookie_counts_for_pages_of_the_master_alone() {
    let served = serve();
    let things = fill(&served);
    for route in routes() {
        let what = format!("{} {}", route.method.name(), route.path);
        let path = filled(route.path, &things);
        let status = |header: &str| ask(&served, route.method, &path, &format!("{}{header}", session("other")), "").0;
        let open = matches!(route.access, Access::Open | Access::LocalOrUser | Access::Proxy);
        // The page of a task is at another port of the host: the same site, to which the browser sends the cookie.
        for site in ["same-site", "cross-site"] {
            let found = status(&format!("Sec-Fetch-Site: {site}\r\n"));
            assert_eq!(found == FORBIDDEN, !open, "{what} from {site}: {found}");
        }
        for origin in ["http://localhost:8081", "http://evil.example", "null"] {
            assert_eq!(status(&format!("Origin: {origin}\r\n")), FORBIDDEN, "{what} from {origin}");
        }
        let changes = route.method != Get || route.kind == Kind::Socket || matches!(route.access, Access::Change(_));
        if changes && !open {
            for header in ["", "Sec-Fetch-Site: none\r\n"] {
                assert_eq!(status(header), FORBIDDEN, "{what} with {header:?}");
            }
        }
        let two = format!("Cookie: instep_session_cluster=other; instep_session_cluster=owner\r\n{SAME_ORIGIN}");
        let found = ask(&served, route.method, &path, &two, "").0;
        let stranger = matches!(route.access, Access::Open | Access::LocalOrUser);
        assert_eq!(found == UNAUTHENTICATED, !stranger, "{what} with two sessions: {found}");
    }
    for (number, header) in [ORIGIN, SAME_ORIGIN].into_iter().enumerate() {
        let body = json!({"name": format!("of a page {number}")}).to_string();
        let asked = ask(&served, Post, "/api/v1/workspaces", &format!("{}{header}", session("owner")), &body);
        assert_eq!(asked.0, 200, "{}", asked.1);
        let read = ask(&served, Get, "/api/v1/me", &format!("{}{header}", session("owner")), "");
        assert!(read.0 == 200 && read.1.contains(r#""username":"determined""#), "{}", read.1);
    }
    // Programs show tokens as they do to Determined's master; what they change they say with a header.
    assert_eq!(ask(&served, Get, "/api/v1/me", "Cookie: auth=owner\r\n", "").0, 200);
    for header in [SAME_ORIGIN, ORIGIN] {
        let header = format!("Cookie: auth=owner\r\n{header}");
        assert_eq!(ask(&served, Get, "/api/v1/me", &header, "").0, UNAUTHENTICATED, "a browser with {header}");
    }
}

#[test]
fn a_browser_is_never_told_its_token() {
    let served = serve();
    let body = json!({"username": "determined", "password": ""}).to_string();
    let login = |path: &str, header: &str| ask(&served, Post, path, header, &body);
    let (status, answer) = login("/api/v1/auth/login", ORIGIN);
    assert!(status == 200 && !answer.contains("set-cookie") && !answer.contains(r#""token":"""#), "{answer}");
    let (status, answer) = login("/api/v1/auth/login?cookie=true", ORIGIN);
    assert!(status == 200 && answer.contains(r#""token":"""#), "{answer}");
    let cookie = answer.split("set-cookie: ").nth(1).unwrap().split("\r\n").next().unwrap();
    assert!(cookie.ends_with("; Path=/; Max-Age=60; HttpOnly; SameSite=Strict"), "{cookie}");
    let first = format!("Cookie: {}\r\n{ORIGIN}", cookie.split(';').next().unwrap());
    assert_eq!(ask(&served, Get, "/api/v1/me", &first, "").0, 200);
    // Behind a server that encrypts.
    let (_, answer) = login("/api/v1/auth/login?cookie=true", &format!("{first}X: y\r\n"));
    assert_eq!(ask(&served, Get, "/api/v1/me", &first, "").0, UNAUTHENTICATED, "the session before it lasts");
    let second = answer.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap();
    let second = format!("Cookie: {second}\r\n{ORIGIN}");
    let (status, answer) = ask(&served, Post, "/api/v1/auth/logout", &second, "");
    assert!(status == 200 && answer.contains("=; Path=/; Max-Age=0;"), "{answer}");
    assert_eq!(ask(&served, Get, "/api/v1/me", &second, "").0, UNAUTHENTICATED);
    let (_, answer) = login("/api/v1/auth/login?cookie=true", "Host: localhost\r\nOrigin: https://localhost\r\n");
    assert!(answer.contains("SameSite=Strict; Secure\r\n"), "{answer}");
}

#[test]
fn every_answer_of_the_master_keeps_to_itself() {
    let served = serve();
    for path in ["/", "/api/v1/me", "/api/v1/master", "/nothing", "/assets/nothing", "/health"] {
        let (_, answer) = ask(&served, Get, path, "", "");
        let head = answer.split("\r\n\r\n").next().unwrap();
        for header in
            ["frame-ancestors 'none'", "x-content-type-options: nosniff", "referrer-policy: no-referrer", "same-origin"]
        {
            assert!(head.contains(header), "{path} without {header}: {head}");
        }
    }
}

/// Gives a session a ticket for a task, as the master does when a browser asks for its page.
fn ticket(served: &Served, name: &str, task: &str, token: &str) {
    let grant = Grant { task: task.to_owned(), session: token_hash(token) };
    lock(&served.application.task_access).issue(name, grant, Instant::now());
}

/// Exchanges a ticket; gives the key.
fn exchange(served: &Served, name: &str, task: &str) -> String {
    let path = format!("/proxy/{task}/x?a=1&instep_ticket={name}&b=2");
    let (status, answer) = ask_at(served.tasks, Get, &path, NAVIGATION, "");
    let head = format!("location: /proxy/{task}/x?a=1&b=2\r\n");
    assert!(status == 303 && answer.contains(&head) && answer.contains("no-store"), "{answer}");
    let cookie = answer.split("set-cookie: instep_task_cluster=").nth(1).unwrap().split("\r\n").next().unwrap();
    assert!(cookie.ends_with(&format!("; Path=/proxy/{task}/; HttpOnly; SameSite=Lax")), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn the_pages_of_tasks_open_with_a_key_and_with_nothing_else() {
    let served = serve();
    let things = fill(&served);
    let waiting = 503;
    ticket(&served, "first", &things.command, "other");
    let good = exchange(&served, "first", &things.command);
    for route in task_routes() {
        let what = format!("{} {}", route.method.name(), route.path);
        assert_eq!(route.access, Access::TaskKey, "{what}");
        let path = filled(route.path, &things);
        let status = |header: &str| ask_at(served.tasks, route.method, &path, header, "").0;
        for stranger in ["".to_owned(), bearer("administrator"), session("administrator"), key("wrong"), key("first")] {
            for header in ["", SAME_ORIGIN, ORIGIN] {
                let header = format!("{stranger}{header}");
                assert_eq!(status(&header), UNAUTHENTICATED, "{what} with {header:?}");
            }
        }
        let with_key = |header: &str| status(&format!("{}{header}", key(&good)));
        // The task does not serve yet: whoever learns that was let through.
        assert_eq!([with_key(ORIGIN), with_key(SAME_ORIGIN)], [waiting, waiting], "{what}");
        assert_eq!(with_key(""), if route.method == Get { waiting } else { FORBIDDEN }, "{what}");
        for foreign in ["Origin: http://evil.example\r\n", "Host: evil.example\r\n", "Sec-Fetch-Site: same-site\r\n"] {
            assert_eq!(with_key(foreign), FORBIDDEN, "{what} with {foreign:?}");
        }
    }
    let path = format!("/proxy/{}/", things.command);
    let get = |header: &str| ask_at(served.tasks, Get, &path, &format!("{}{header}", key(&good)), "");
    assert_eq!(get(&format!("Sec-Fetch-Site: same-site\r\n{NAVIGATION}")).0, waiting, "a link leads to it");
    let framed = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n";
    assert_eq!(get(framed).0, FORBIDDEN);
    // A websocket says where it comes from. (The connection stays open: the others say that it is to be closed.)
    let socket = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!([get(socket).0, get(&format!("{socket}{SAME_ORIGIN}")).0], [FORBIDDEN, FORBIDDEN]);
    assert_eq!(
        [get(&format!("{socket}{ORIGIN}")).0, get(&format!("{socket}Origin: http://localhost:1\r\n")).0],
        [waiting, FORBIDDEN]
    );
}

#[test]
fn tickets_and_keys_end_when_they_should() {
    let served = serve();
    let things = fill(&served);
    let (task, other) = (things.command.as_str(), "11111111-2222-4333-8444-555555555555");
    let get = |task: &str, header: &str| ask_at(served.tasks, Get, &format!("/proxy/{task}/"), header, "").0;
    let redeem = |name: &str, task: &str| {
        ask_at(served.tasks, Get, &format!("/proxy/{task}/?instep_ticket={name}"), NAVIGATION, "")
    };
    ticket(&served, "first", task, "leaving");
    let good = exchange(&served, "first", task);
    let (status, answer) = redeem("first", task);
    assert!(status == FORBIDDEN && answer.contains("was used before") && answer.contains("hint: open"), "{answer}");
    ticket(&served, "second", task, "leaving");
    assert_eq!([redeem("second", other).0, redeem("second", task).0], [FORBIDDEN, FORBIDDEN]);
    assert_eq!([get(task, &key(&good)), get(other, &key(&good))], [503, UNAUTHENTICATED]);
    // Of a session that was revoked meanwhile, and of one that was never one.
    for (number, token) in ["revoked", "expired", "nobody"].into_iter().enumerate() {
        ticket(&served, &format!("of {number}"), task, token);
        assert_eq!(redeem(&format!("of%20{number}"), task).0, FORBIDDEN, "{token}");
    }
    ticket(&served, "late", task, "leaving");
    assert_eq!(ask(&served, Post, "/api/v1/auth/logout", &bearer("leaving"), "").0, 200);
    assert_eq!([redeem("late", task).0, get(task, &key(&good))], [FORBIDDEN, UNAUTHENTICATED]);
    // With a password, the sessions of its user end.
    ticket(&served, "third", task, "owner");
    let good = exchange(&served, "third", task);
    let path = format!("/api/v1/users/{}", OWNER.0);
    let password = r#"{"password": "secret"}"#;
    assert_eq!(ask(&served, Patch, &path, &bearer("administrator"), password).0, 200);
    assert_eq!(get(task, &key(&good)), UNAUTHENTICATED);
}

#[test]
fn browsers_without_a_session_or_a_key_are_led_to_where_they_get_one() {
    let served = serve();
    let things = fill(&served);
    let path = format!("/proxy/{}/x?a=1", things.command);
    let (status, answer) = ask_at(served.tasks, Get, &path, NAVIGATION, "");
    let there = format!("location: http://localhost:{}{path}\r\n", served.address.port());
    assert!(status == 303 && answer.contains(&there), "{answer}");
    let to_sign_in = format!("location: /det/interactive/{0}/page?to=/proxy/{0}/x%3Fa%3D1\r\n", things.command);
    let from_task = format!("{}Sec-Fetch-Site: same-site\r\n{NAVIGATION}", session("owner"));
    for header in [NAVIGATION, "Accept: text/html\r\n", &format!("{}{NAVIGATION}", session("wrong")), &from_task] {
        let (status, answer) = ask(&served, Get, &path, header, "");
        assert!(status == 303 && answer.contains(&to_sign_in), "{header}: {answer}");
    }
    // A page of a task may open no other without a question.
    let waiting = format!("/det/interactive/{}/tensorboard", things.command);
    for (site, asks) in [("none", false), ("same-origin", false), ("same-site", true), ("cross-site", true)] {
        let (status, answer) = ask(&served, Get, &waiting, &format!("Sec-Fetch-Site: {site}\r\n{NAVIGATION}"), "");
        let led = format!("location: {waiting}?ask=true\r\n");
        assert_eq!((status == 303, answer.contains(&led)), (asks, asks), "{site}: {answer}");
        let question = format!("{waiting}?ask=true");
        let asked = ask(&served, Get, &question, &format!("Sec-Fetch-Site: {site}\r\n{NAVIGATION}"), "");
        assert_eq!(asked.0, 200, "{site}: {}", asked.1);
    }
    // A token in a header that is wrong is not a browser's.
    let wrong = format!("{}{NAVIGATION}", bearer("wrong"));
    assert_eq!(ask(&served, Get, &path, &wrong, "").0, UNAUTHENTICATED);
    // A cookie only leads elsewhere: nothing is passed on, and nothing that a page uses.
    let mine = format!("{}{ORIGIN}", session("owner"));
    assert_eq!(ask(&served, Post, &path, &mine, "").0, FORBIDDEN);
    let used = format!("{mine}Sec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n");
    assert_eq!(ask(&served, Get, &path, &used, "").0, FORBIDDEN);
    for odd in ["/proxy/a%0d%0ab/", "/proxy/%2e%2e%2f/", "/proxy/a%20b/x", "/proxy/a;b/"] {
        assert_eq!(ask(&served, Get, odd, NAVIGATION, "").0, 404, "{odd}");
    }
}

#[test]
fn the_pages_of_a_task_are_for_those_who_may_see_it() {
    let (served, things) = roles::serve_private();
    let task = things.command.as_str();
    let get = |header: &str| ask_at(served.tasks, Get, &format!("/proxy/{task}/"), header, "").0;
    let at_master = |header: &str| ask(&served, Get, &format!("/proxy/{task}/"), header, "").0;
    assert_eq!([at_master(&bearer("viewer")), at_master(&bearer("other"))], [503, 404]);
    let navigation = format!("{}{NAVIGATION}", session("other"));
    assert_eq!(at_master(&navigation), 404, "a browser is told no more");
    ticket(&served, "stranger", task, "other");
    let path = format!("/proxy/{task}/?instep_ticket=stranger");
    assert_eq!(ask_at(served.tasks, Get, &path, NAVIGATION, "").0, FORBIDDEN);
    ticket(&served, "viewer", task, "viewer");
    let good = exchange(&served, "viewer", task);
    assert_eq!(get(&key(&good)), 503);
    roles::send_the_viewer_away(&served);
    assert_eq!(get(&key(&good)), UNAUTHENTICATED);
}
