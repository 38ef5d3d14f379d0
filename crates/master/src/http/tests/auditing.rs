//! The audit log: what is in it, what is not, and what nobody can do to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use instep_api::audit::{AuditRecord, TokenKind};
use instep_database::AuditFilter;
use serde_json::{Value, json};

use super::{FORBIDDEN, OTHER, OWNER, Served, UNAUTHENTICATED, ask, bearer, body, fill, filled, make, serve};
use crate::http::route::Action;
use crate::http::route::Method::{Delete, Get, Patch, Post};
use crate::http::routes::routes;

fn records(served: &Served) -> Vec<AuditRecord> {
    let filter = AuditFilter { limit: 100_000, ..AuditFilter::default() };
    served.runtime.block_on(served.database.audit(filter)).unwrap()
}

/// The records that a piece of work leaves.
fn left_by(served: &Served, work: impl FnOnce()) -> Vec<AuditRecord> {
    let before = records(served).last().map_or(0, |record| record.id);
    work();
    records(served).into_iter().filter(|record| record.id > before).collect()
}

#[test]
fn every_change_is_recorded_by_its_name_and_no_report_or_reading_is() {
    let served = serve();
    let things = fill(&served);
    let mut table = routes();
    table.sort_by_key(|route| route.method == Delete);
    for route in table.iter().filter(|route| route.path != "/api/v1/auth/logout" && !route.path.starts_with("/proxy")) {
        let what = format!("{} {}", route.method.name(), route.path);
        let body = body(route, &things).map(|body| body.to_string()).unwrap_or_default();
        let mut status = 0;
        let header = format!("{}X-Request-Id: named\r\n", bearer("administrator"));
        let found =
            left_by(&served, || status = ask(&served, route.method, &filled(route.path, &things), &header, &body).0);
        if let Action::Recorded(name) = route.action {
            let [record] = &found[..] else { panic!("{what}: {found:?}") };
            let seen = (record.action.as_str(), record.status, record.request_id.as_str(), record.address.as_str());
            assert_eq!(seen, (name, i64::from(status), "~named", "127.0.0.1"), "{what}");
            // Logging in is the one thing that is done without a token.
            if name != "auth.login" {
                assert_eq!((record.username.as_deref(), record.token), (Some("admin"), TokenKind::Login), "{what}");
            }
        } else {
            assert!(found.is_empty() || status == FORBIDDEN, "{what}: {found:?}");
        }
    }
}

#[test]
fn a_record_says_who_did_what_to_what_and_nothing_that_was_sent() {
    let served = serve();
    let things = fill(&served);
    let last = |work: &dyn Fn()| left_by(&served, work).pop().unwrap();
    let kill = last(&|| drop(ask(&served, Post, "/api/v1/experiments/1/kill", &bearer("own task"), "")));
    let seen = (kill.action.as_str(), kill.subject.as_str(), kill.user_id, kill.token);
    assert_eq!(seen, ("experiment.kill", "experiment 1", Some(OWNER), TokenKind::Task));
    assert_eq!(kill.task_id.as_deref(), Some(things.task.as_str()));
    let body = json!({"experimentIds": [1, 2]}).to_string();
    let bulk = last(&|| drop(ask(&served, Post, "/api/v1/projects/1/experiments/archive", &bearer("other"), &body)));
    assert_eq!(
        (bulk.action.as_str(), bulk.subject.as_str()),
        ("experiment.archive", "nothing; not done: experiment 1, experiment 2")
    );
    let made = last(&|| drop(make(&served, "/api/v1/workspaces", &json!({"name": "theirs"}))));
    assert_eq!((made.action.as_str(), made.subject.as_str()), ("workspace.create", "workspace 3"));
    let password = json!({"password": "hunter2-marker"}).to_string();
    let changed = last(&|| drop(ask(&served, Patch, "/api/v1/users/2", &bearer("administrator"), &password)));
    assert_eq!(
        (changed.action.as_str(), changed.subject.as_str(), changed.outcome()),
        ("user.change", "user determined", "done")
    );
    let login = |password: &str| json!({"username": "determined", "password": password}).to_string();
    let wrong = last(&|| drop(ask(&served, Post, "/api/v1/auth/login", "", &login("hunter3-marker"))));
    assert_eq!((wrong.subject.as_str(), wrong.outcome(), wrong.user_id), ("user determined", "refused", None));
    let right = last(&|| drop(ask(&served, Post, "/api/v1/auth/login", "", &login("hunter2-marker"))));
    assert_eq!((right.subject.as_str(), right.outcome(), right.user_id), ("user determined", "done", Some(OWNER)));
    let read = last(&|| drop(ask(&served, Get, "/api/v1/users", &bearer("wrong token"), "")));
    assert_eq!((read.action.as_str(), read.subject.as_str()), ("read", "/api/v1/users"));
    assert_eq!((read.status, read.token), (i64::from(UNAUTHENTICATED), TokenKind::Invalid));
    let agents = last(&|| drop(ask(&served, Get, "/api/v1/master/config", &bearer("other"), "")));
    assert_eq!((agents.status, agents.user_id), (i64::from(FORBIDDEN), Some(OTHER)));
    let all = serde_json::to_string(&records(&served)).unwrap();
    assert!(!all.contains("marker") && !all.contains("wrong token"), "{all}");
}

#[test]
fn strangers_do_not_fill_the_audit_log() {
    let served = serve();
    let login = |user: usize| json!({"username": format!("user{user}"), "password": "x"}).to_string();
    let left = left_by(&served, || {
        for number in 0..150 {
            ask(&served, Post, "/api/v1/auth/logout", &bearer("wrong"), "");
            ask(&served, Get, &format!("/api/v1/experiments/{number}"), "", "");
            if number < 3 {
                ask(&served, Post, "/api/v1/auth/login", "", &login(number));
            }
        }
    });
    // A minute may end meanwhile, which begins again and adds what it held back.
    assert!((5..=14).contains(&left.len()), "{}: {left:?}", left.len());
    // Whoever does something beside them is seen.
    assert_eq!(left_by(&served, || drop(make(&served, "/api/v1/models", &json!({"name": "a"})))).len(), 1);
}

#[test]
fn administrators_read_the_log_page_by_page() {
    let served = serve();
    fill(&served);
    let read = |query: &str| -> Vec<Value> {
        let (status, answer) = ask(&served, Get, &format!("/api/v1/master/audit{query}"), &bearer("administrator"), "");
        assert_eq!(status, 200, "{answer}");
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        body["records"].as_array().unwrap().clone()
    };
    let ids = |records: &[Value]| records.iter().map(|record| record["id"].as_i64().unwrap()).collect::<Vec<_>>();
    let all = read("");
    assert!(all.len() > 6 && ids(&all).is_sorted());
    let newest = read("?limit=2");
    assert_eq!(newest, all[all.len() - 2..]);
    let before = read(&format!("?limit=2&beforeId={}", newest[0]["id"]));
    assert_eq!(before, all[all.len() - 4..all.len() - 2]);
    assert_eq!(read(&format!("?limit=1&afterId={}", all[0]["id"])), all[1..2]);
    assert!(read("?action=model").iter().all(|record| record["action"] == "model.create"));
    assert_eq!((read("?action=model").len(), read("?action=group").len()), (1, 0));
    assert_eq!((read("?user=determined").len(), read("?user=other").len()), (all.len(), 0));
    assert_eq!(read("?since=2100-01-01T00:00:00Z").len(), 0);
    for wrong in ["limit=0", "limit=1001", "since=yesterday", "afterId=x"] {
        let path = format!("/api/v1/master/audit?{wrong}");
        assert_eq!(ask(&served, Get, &path, &bearer("administrator"), "").0, 400, "{wrong}");
    }
    for (wrong, status, hint) in [
        ("action=mode", 400, "hint: one of: agent, "),
        ("action=model.kill", 400, "hint: one of: model.archive, model.change, model.create"),
        ("user=nobody", 404, "user 'nobody' not found\\nhint: "),
    ] {
        let path = format!("/api/v1/master/audit?{wrong}");
        let (found, answer) = ask(&served, Get, &path, &bearer("administrator"), "");
        assert!(found == status && answer.contains(hint), "{wrong}: {answer}");
    }
}

#[test]
fn whoever_hangs_up_early_keeps_nothing_out_of_the_log() {
    let served = serve();
    for number in 0..40 {
        let body = json!({"name": format!("workspace {number}")}).to_string();
        let mut connection = TcpStream::connect(served.address).unwrap();
        let request = format!(
            "POST /api/v1/workspaces HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{body}",
            bearer("owner"),
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        if number % 2 == 0 {
            // At once, so that what was sent may not even have been read; the others wait for the first byte.
            drop(connection);
        } else {
            connection.read_exact(&mut [0]).unwrap();
        }
    }
    let made = || served.runtime.block_on(served.database.workspaces()).unwrap().len() - 1;
    let recorded = || records(&served).iter().filter(|record| record.action == "workspace.create").count();
    let began = std::time::Instant::now();
    // Those who waited were answered, so at least they are there; of the others nobody knows how many were read.
    while made() < 20 || made() != recorded() {
        assert!(began.elapsed() < Duration::from_secs(20), "{} were made, {} are recorded", made(), recorded());
        std::thread::sleep(Duration::from_millis(10));
    }
}
