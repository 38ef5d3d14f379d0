//! The reporter against a server that answers from a script: what is repeated under its number, and what is said.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::scripted::{Answer, client, serve};
use instep_api::identifiers::{RunId, TrialId};
use instep_api::metrics::ReportBatchRequest;
use instep_api::values::Datum;
use instep_api::wire::Timestamp;
use instep_client::{ReportError, Reporter, Reporting};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp(1_000_000);
const PATIENT: Duration = Duration::from_secs(20);

fn reporter(address: &str) -> Reporter {
    let reporting = Reporting { trial: TrialId(7), run: RunId(2), reporter: "one".into(), rank: 3, heartbeat: false };
    Reporter::start(Arc::new(client(address, Duration::ZERO)), reporting).unwrap()
}

fn stored() -> Answer {
    Answer::Json(200, json!({"refused": []}))
}

/// The batch in a request.
fn batch(request: &str) -> ReportBatchRequest {
    serde_json::from_str(request.strip_prefix("POST /api/v1/trials/7/reports ").unwrap()).unwrap()
}

#[test]
fn a_batch_is_repeated_under_its_number_until_it_is_answered() {
    let unavailable = json!({"error": {"code": 14, "reason": "Unavailable", "error": "starting"}});
    let (address, server) = serve(vec![Answer::HangUp, Answer::Json(503, unavailable), stored(), stored()]);
    let reporter = reporter(&address);
    reporter.report("training", Some(5), r#"{"loss":1.5}"#.into(), Some(r#"[{"a":1}]"#), NOW).unwrap();
    reporter.flush(PATIENT).unwrap();
    reporter.log("a \"line\"\n", "stdout", NOW).unwrap();
    assert_eq!(reporter.close(PATIENT), Ok(()));
    let asked = server.join().unwrap();
    assert_eq!(asked.len(), 4);
    assert_eq!((&asked[0], &asked[1]), (&asked[1], &asked[2]), "the same, word by word");
    let first = batch(&asked[2]);
    assert_eq!((first.reporter.as_deref(), first.sequence.unwrap().0), (Some("one"), 1));
    let report = &first.reports.unwrap()[0];
    assert_eq!(report.group.as_deref(), Some("training"));
    let metrics = report.metrics.as_ref().unwrap();
    assert_eq!((metrics.trial_run_id, metrics.steps_completed.unwrap().0), (Some(RunId(2)), 5));
    let values = metrics.metrics.as_ref().unwrap();
    assert_eq!(values.avg_metrics.as_ref().unwrap().get("loss"), Some(&Datum::Float(1.5)));
    assert_eq!(values.batch_metrics, Some(json!([{"a": 1}])));
    let second = batch(&asked[3]);
    assert_eq!(second.sequence.unwrap().0, 2);
    let line = &second.logs.unwrap()[0];
    assert_eq!((line.log.as_deref(), line.rank_id.unwrap().0), (Some("a \"line\"\n"), 3));
}

#[test]
fn progress_is_sent_and_waited_for() {
    let (address, server) = serve(vec![Answer::HangUp, Answer::Json(200, json!({}))]);
    let reporter = reporter(&address);
    reporter.progress(0.5).unwrap();
    assert_eq!(reporter.close(PATIENT), Ok(()));
    assert_eq!(server.join().unwrap(), [r#"POST /api/v1/trials/7/progress {"progress":0.5,"is_raw":true}"#; 2]);
}

#[test]
fn a_refused_report_is_news_and_a_refused_trial_is_the_end() {
    let refused = json!({"refused": [{"index": 0, "message": "conflicting key: a"}]});
    let gone = json!({"error": {"code": 5, "reason": "NotFound", "error": "trial '7' not found"}});
    let (address, server) = serve(vec![Answer::Json(200, refused), Answer::Json(404, gone)]);
    let reporter = reporter(&address);
    reporter.report("training", Some(1), r#"{"a":1}"#.into(), None, NOW).unwrap();
    reporter.flush(PATIENT).unwrap();
    assert_eq!(reporter.news(), ["the master refused a report: conflicting key: a"]);
    reporter.report("training", Some(2), r#"{"a":1}"#.into(), None, NOW).unwrap();
    let undelivered = reporter.flush(PATIENT).unwrap_err();
    assert_eq!((undelivered.left, undelivered.why.as_str()), (1, "trial '7' not found"));
    let error = reporter.report("training", Some(3), "{}".into(), None, NOW).unwrap_err();
    assert!(matches!(error, ReportError::Failed(_)), "{error}");
    server.join().unwrap();
}

#[test]
fn what_cannot_be_delivered_is_counted_when_the_deadline_is_over() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let reporter = reporter(&address);
    for step in 0..10 {
        reporter.report("training", Some(step), "{}".into(), None, NOW).unwrap();
    }
    let begin = Instant::now();
    let undelivered = reporter.close(Duration::from_millis(300)).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(undelivered.left, 10);
    assert!(undelivered.why.contains(&address), "{}", undelivered.why);
    assert!(matches!(reporter.report("training", Some(11), "{}".into(), None, NOW), Err(ReportError::Closed)));
    let large = Value::from("x".repeat(9 << 20)).to_string();
    assert!(matches!(reporter.log(&large, "stdout", NOW), Err(ReportError::TooLarge(_))));
}
