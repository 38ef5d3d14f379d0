//! The client against a server that answers from a script: what is repeated, what is not, and what errors say.

use std::net::TcpListener;
use std::time::Duration;

use crate::scripted::{Answer, client, serve};
use instep_client::{Credentials, Error};
use serde_json::{Value, json};

const PATIENT: Duration = Duration::from_secs(20);

fn session(token: &str) -> Value {
    let user = json!({"id": 2, "username": "ann", "admin": false, "active": true, "displayName": "", "remote": false});
    json!({"token": token, "user": user})
}

#[test]
fn what_may_be_repeated_is_repeated_until_it_works() {
    let unavailable = json!({"error": {"code": 14, "reason": "Unavailable", "error": "starting"}});
    let (address, server) =
        serve(vec![Answer::HangUp, Answer::Json(503, unavailable), Answer::Json(200, json!({"n": 1}))]);
    let found: Value = client(&address, PATIENT).get("/x").unwrap();
    assert_eq!(found, json!({"n": 1}));
    assert_eq!(server.join().unwrap(), ["GET /x", "GET /x", "GET /x"]);
}

#[test]
fn what_may_not_be_repeated_is_sent_once() {
    let (address, server) = serve(vec![Answer::HangUp]);
    let refused = client(&address, PATIENT).post::<Value>("/x", &json!({})).unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
    assert_eq!(server.join().unwrap(), ["POST /x {}"]);
}

#[test]
fn a_master_that_is_not_there_is_said_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let refused = client(&address, Duration::from_millis(120)).post::<Value>("/x", &json!({})).unwrap_err();
    assert_eq!(refused.to_string(), format!("cannot reach the master at http://{address}"));
}

#[test]
fn a_session_that_has_run_out_is_renewed() {
    let run_out = json!({"error": {"code": 16, "reason": "Unauthenticated", "error": "no"}});
    let (address, server) = serve(vec![
        Answer::Json(200, session("one")),
        Answer::Json(401, run_out),
        Answer::Json(200, session("two")),
        Answer::Json(200, json!({})),
    ]);
    let client = client(&address, PATIENT);
    assert_eq!(client.login(Credentials::new("ann", "")).unwrap().username, "ann");
    let _: Value = client.post("/x", &json!({})).unwrap();
    let login = r#"POST /api/v1/auth/login {"username":"ann","password":"","isHashed":true}"#;
    assert_eq!(server.join().unwrap(), [login, "POST /x as one {}", login, "POST /x as two {}"]);
}

#[test]
fn errors_are_the_master_s_sentences() {
    let absent = json!({"error": {"code": 5, "reason": "NotFound", "error": "trial '9' not found"}});
    let cases = [
        (Answer::Json(404, absent), "trial '9' not found"),
        (Answer::Json(404, json!({"message": "plain"})), "plain"),
        (Answer::Json(418, json!([])), "the master answered with status 418"),
    ];
    for (answer, expected) in cases {
        let (address, server) = serve(vec![answer]);
        let refused = client(&address, Duration::ZERO).get::<Value>("/x").unwrap_err();
        assert_eq!(refused.to_string(), expected);
        server.join().unwrap();
    }
    let (address, server) = serve(vec![Answer::Text("<html>")]);
    let odd = client(&address, Duration::ZERO).get::<Value>("/x").unwrap_err();
    assert!(odd.to_string().contains("does not respond like a master"), "{odd}");
    server.join().unwrap();
}

#[test]
fn a_redirection_is_not_followed() {
    let (address, server) = serve(vec![Answer::Json(302, json!({}))]);
    let odd = client(&address, Duration::ZERO).post::<Value>("/x", &json!({})).unwrap_err();
    assert!(odd.to_string().contains("it redirects"), "{odd}");
    server.join().unwrap();
}

#[test]
fn a_stream_is_read_line_by_line() {
    let (address, server) = serve(vec![Answer::Text("{\"result\":1}\n{\"result\":2}\n")]);
    let found = client(&address, Duration::ZERO).stream::<i64>("/x", Some(PATIENT)).unwrap();
    assert_eq!(found.map(Result::unwrap).collect::<Vec<_>>(), [1, 2]);
    server.join().unwrap();
}
