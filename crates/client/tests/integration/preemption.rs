//! Waiting for the word to make room, against a server that answers from a script.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::scripted::{Answer, client, serve};
use instep_client::Preemption;
use serde_json::json;

const PATIENT: Duration = Duration::from_secs(20);

#[test]
fn the_first_answer_is_waited_for_and_a_later_word_arrives_by_itself() {
    let (address, server) =
        serve(vec![Answer::Json(200, json!({"preempt": false})), Answer::Json(200, json!({"preempt": true}))]);
    let watch = Preemption::watch(Arc::new(client(&address, PATIENT)), "7.a/b.1").unwrap();
    let deadline = Instant::now() + PATIENT;
    while !watch.preempt(PATIENT).unwrap() {
        assert!(Instant::now() < deadline, "the second answer never arrived");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(watch.preempt(PATIENT).unwrap(), "the word stays");
    let path = "GET /api/v1/allocations/7.a%2Fb.1/signals/preemption?timeout_seconds=";
    assert_eq!(server.join().unwrap(), [format!("{path}0"), format!("{path}60")]);
}

#[test]
fn a_refusal_is_said_and_an_absent_master_asks_for_nothing() {
    let gone = json!({"error": {"code": 5, "reason": "NotFound", "error": "allocation '7.1' not found"}});
    let (address, server) = serve(vec![Answer::Json(404, gone)]);
    let watch = Preemption::watch(Arc::new(client(&address, PATIENT)), "7.1").unwrap();
    let refused = watch.preempt(PATIENT).unwrap_err();
    assert_eq!(refused, "cannot ask the master whether to stop: allocation '7.1' not found");
    server.join().unwrap();
    let absent = Preemption::watch(Arc::new(client(&address, Duration::from_millis(10))), "7.1").unwrap();
    assert!(!absent.preempt(Duration::from_millis(200)).unwrap());
    assert_eq!(absent.news().len(), 1);
}
