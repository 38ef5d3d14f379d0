//! Webhooks while others misbehave: a receiver that never answers, and patterns that take long.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Served, ask, bearer, fill, make, serve};
use crate::http::route::Method::Post;
use crate::webhooks::{watch, watch_logs};

/// Less than a receiver has to answer.
const SOON: Duration = Duration::from_secs(8);

/// Takes what it is told, and passes it on.
fn receiver() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (told, heard) = channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = Vec::new();
            let mut part = [0; 4096];
            while !request.ends_with(b"}") {
                let count = connection.read(&mut part).unwrap();
                request.extend_from_slice(&part[..count]);
            }
            connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            if told.send(String::from_utf8(request).unwrap()).is_err() {
                return;
            }
        }
    });
    (url, heard)
}

fn webhook(served: &Served, name: &str, url: &str, more: Value) -> i64 {
    let mut webhook = json!({"name": name, "url": url, "webhookType": "WEBHOOK_TYPE_DEFAULT", "workspaceId": 2,
        "mode": "WEBHOOK_MODE_WORKSPACE"});
    for (field, value) in more.as_object().unwrap() {
        webhook[field] = value.clone();
    }
    make(served, "/api/v1/webhooks", &webhook)["webhook"]["id"].as_i64().unwrap()
}

#[test]
fn a_receiver_that_never_answers_holds_nobody_back() {
    let served = serve();
    make(&served, "/api/v1/workspaces", &json!({"name": "lab"}));
    make(&served, "/api/v1/workspaces/2/projects", &json!({"name": "p"}));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    let (url, heard) = receiver();
    let custom = json!({"mode": "WEBHOOK_MODE_SPECIFIC", "triggers": [{"triggerType": "TRIGGER_TYPE_CUSTOM"}]});
    let hooks = [webhook(&served, "silent", &silent_url, custom.clone()), webhook(&served, "good", &url, custom)];
    for hook in hooks {
        let config = json!({"name": "a", "searcher": {"name": "single", "metric": "x"},
            "integrations": {"webhooks": {"webhook_id": [hook]}}});
        make(&served, "/api/v1/experiments", &json!({"config": config.to_string(), "unmanaged": true, "projectId": 2}));
    }
    let event = |experiment: i64| json!({"experimentId": experiment, "data": {"title": "half way"}});
    for _ in 0..40 {
        make(&served, "/api/v1/webhooks/custom", &event(1));
    }
    make(&served, "/api/v1/webhooks/custom", &event(2));
    served.runtime.spawn(watch(served.application.clone()));
    assert!(heard.recv_timeout(SOON).unwrap().contains("half way"));
}

#[test]
fn lines_are_stored_at_once_and_looked_at_for_webhooks_of_their_workspace() {
    let served = serve();
    let things = fill(&served);
    let (url, heard) = receiver();
    let line = |pattern: &str| json!({"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": pattern}});
    let slow: Vec<Value> = (380..400).map(|length| line(&format!("(?:[ab]*a[ab]{{{length}}}c|x{length})"))).collect();
    for number in 0..20 {
        webhook(&served, &number.to_string(), &url, json!({"triggers": slow}));
    }
    let own = json!({"name": "own", "url": url, "webhookType": "WEBHOOK_TYPE_DEFAULT", "mode": "WEBHOOK_MODE_WORKSPACE",
        "triggers": [line("^b+$")]});
    assert_eq!(ask(&served, Post, "/api/v1/webhooks", &bearer("administrator"), &own.to_string()).0, 200);
    served.runtime.spawn(watch(served.application.clone()));
    served.runtime.spawn(watch_logs(served.application.clone()));
    let mut logs: Vec<Value> = vec![json!({"task_id": things.task, "log": "a".repeat(4000)}); 100];
    logs.push(json!({"task_id": things.task, "log": "bbb"}));
    let begun = Instant::now();
    make(&served, "/api/v1/task/logs", &json!({"logs": logs}));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(heard.recv_timeout(SOON).unwrap().contains(r#""triggering_log":"bbb""#));
}
