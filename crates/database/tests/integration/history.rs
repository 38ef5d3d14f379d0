//! Long histories: read in parts, in pages, and past a chunk that is damaged.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::path::Path;
use std::time::{Duration, Instant};

use crate::made::{block, change, damaged_bytes, new_trial, number, open, report};
use instep_api::identifiers::TrialId;
use instep_api::metrics::{Report, ReportBatch};
use instep_api::pages::{Order, Slice};
use instep_api::trials::Workload;
use instep_api::wire::Timestamp;
use instep_database::Database;
use serde_json::json;

async fn store(database: &Database, trial: TrialId, sequence: i64, reports: Vec<Report>) {
    let reports = reports.into_iter().enumerate().collect();
    let reporter = "test".to_owned();
    let batch = ReportBatch { trial, reporter, sequence, reports, refused: vec![], logs: vec![] };
    assert!(database.report_batch(batch).await.unwrap().is_empty());
}

/// Waits until the merger has packed so much that at most `rows` are left.
fn wait_for_tail(path: &Path, rows: i64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while number(path, "SELECT COUNT(*) FROM metric_tail") > rows {
        assert!(Instant::now() < deadline, "the tail was not merged within 20 s");
        std::thread::yield_now();
    }
}

/// Waits until the merger has packed something.
fn wait_for_chunks(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while number(path, "SELECT COUNT(*) FROM metric_chunks") == 0 {
        assert!(Instant::now() < deadline, "nothing was packed within 20 s");
        std::thread::yield_now();
    }
}

fn step_and_kind(workload: &Workload) -> (i64, bool) {
    let training = workload.training.as_ref().map(|metrics| (metrics.total_batches, true));
    let validation = workload.validation.as_ref().map(|metrics| (metrics.total_batches, false));
    training.or(validation).unwrap()
}

#[test]
fn pages_of_a_history_are_parts_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        let training = (1..=5000).map(|step| report(trial, 1, "training", step, json!({"loss": step, "other": 1})));
        let validation = (1..=15).map(|step| report(trial, 1, "validation", step * 100, json!({"loss": step})));
        let all = training.chain(validation).collect();
        store(&database, trial, 1, all).await;
        wait_for_chunks(&path);
        store(&database, trial, 2, vec![report(trial, 1, "training", 6000, json!({"late": 1}))]).await;
        let (whole, _) = database.workloads(trial, false, Order::Ascending, Slice::ALL).await.unwrap();
        let whole: Vec<(i64, bool)> = whole.iter().map(step_and_kind).collect();
        assert_eq!(whole.len(), 5016);
        assert!(whole.is_sorted_by_key(|(step, _)| *step));
        for order in [Order::Ascending, Order::Descending] {
            let expected: Vec<(i64, bool)> = match order {
                Order::Ascending => whole.clone(),
                Order::Descending => whole.iter().rev().copied().collect(),
            };
            for (offset, limit) in [(0, 1), (98, 3), (99, 1), (100, 2), (101, 5), (5010, 100), (700, 400), (-3, 2)] {
                let slice = Slice { offset, limit, default_limit: None };
                let (page, pagination) = database.workloads(trial, false, order, slice).await.unwrap();
                let page: Vec<(i64, bool)> = page.iter().map(step_and_kind).collect();
                let range = pagination.start_index as usize..pagination.end_index as usize;
                assert_eq!(page, expected[range], "{order:?} {offset} {limit}");
            }
        }
    });
}

#[test]
fn the_parts_of_a_history_are_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        // Some metrics have other steps than the rest, and the machine's have none.
        let reports = (0..9000).map(|step| match step % 3 {
            0 => report(trial, 1, "training", step, json!({"often": step})),
            1 => report(trial, 1, "training", step, json!({"often": step, "seldom": step})),
            _ => Report { time: Timestamp(step), ..report(trial, 1, "cpu", 0, json!({"busy": step})) },
        });
        let reports: Vec<Report> = reports.collect();
        store(&database, trial, 1, reports[..6600].to_vec()).await;
        wait_for_tail(&path, 600);
        store(&database, trial, 2, reports[6600..].to_vec()).await;
        let mut steps = Vec::new();
        let mut times = Vec::new();
        let parts = database.metric_history(trial, None).await.unwrap();
        assert!(parts.len() >= 3, "{}", parts.len());
        for part in parts {
            let found = database.metric_reports(trial, part).await.unwrap();
            assert!(found.len() <= 1000);
            for one in found {
                match one.group.as_str() {
                    "cpu" => times.push(one.end_time.0),
                    _ => steps.push(one.total_batches),
                }
            }
        }
        assert_eq!(steps, (0..9000).filter(|step| step % 3 != 2).collect::<Vec<i64>>());
        assert_eq!(times, (0..9000).filter(|step| step % 3 == 2).collect::<Vec<i64>>());
    });
}

#[test]
fn new_points_are_packed_behind_a_chunk_that_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    block(async {
        let database = open(&path);
        let trial = new_trial(&database, true).await;
        let reports = |range: std::ops::Range<i64>| {
            range.map(|step| report(trial, 1, "training", step, json!({"loss": step}))).collect::<Vec<_>>()
        };
        store(&database, trial, 1, reports(0..4100)).await;
        wait_for_tail(&path, 0);
        let damage = format!("UPDATE metric_chunks SET content = {}", damaged_bytes());
        assert_eq!(change(&path, &damage), 2);
        store(&database, trial, 2, reports(4100..8300)).await;
        wait_for_tail(&path, 0);
        let chart = |first| database.chart(trial, "training".into(), vec!["loss".into()], first, i64::MAX, 5000);
        assert_eq!(chart(4100).await.unwrap().len(), 4200);
        // What is lost is said, and not drawn as if it had never been.
        assert!(chart(0).await.unwrap_err().to_string().contains("damaged"));
    });
}
