//! Metrics in the database: runs, roll-back, joining of reports, merging, charts.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::path::Path;

use crate::made::{NOW, block, change, damaged_bytes, new_trial, number, open, open_as, report, server};
use instep_api::identifiers::{RunId, TrialId};
use instep_api::logs::LogLine;
use instep_api::metrics::{Report, ReportBatch};
use instep_api::pages::{Order, Slice};
use instep_api::states::{LogLevel, State};
use instep_api::wire::Timestamp;
use instep_database::{Database, Error, Opening};
use serde_json::{Value, json};

/// Step and values of everything in a group.
async fn rows(database: &Database, trial: TrialId, group: &str) -> Vec<(i64, Value)> {
    let mut reports = Vec::new();
    for part in database.metric_history(trial, Some(group.into())).await.unwrap() {
        reports.extend(database.metric_reports(trial, part).await.unwrap());
    }
    let inner = |metrics: &Value| metrics.get("avg_metrics").or(metrics.get("validation_metrics")).unwrap().clone();
    reports.iter().map(|report| (report.total_batches, inner(&report.metrics))).collect()
}

/// Ends the trial, which has its tail merged, and opens the database anew until nothing of the tail is left.
async fn merged(database: Database, path: &Path, trial: TrialId) -> Database {
    database.set_trial_state(trial, Some(State::Completed), NOW).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while number(path, "SELECT COUNT(*) FROM metric_tail") > 0 {
        assert!(std::time::Instant::now() < deadline, "the tail was not merged within 20 s");
        std::thread::yield_now();
    }
    database
}

#[test]
fn a_report_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    block(async {
        let trial = new_trial(&database, true).await;
        let refused = database.report_metrics(report(trial, 2, "training", 1, json!({"a": 1}))).await.unwrap_err();
        assert_eq!(refused.to_string(), "invalid run id, 2 (reported) != 1 (expected)");
        let unknown = database.report_metrics(report(TrialId(99), 1, "training", 1, json!({"a": 1}))).await;
        assert!(matches!(unknown, Err(Error::NotFound { .. })));
    });
}

#[test]
fn reports_at_one_step_are_joined_whether_merged_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        for step in 0..1000 {
            database.report_metrics(report(trial, 1, "training", step, json!({"a": step}))).await.unwrap();
        }
        database.report_metrics(report(trial, 1, "training", 999, json!({"b": "x", "a": 999.0}))).await.unwrap();
        let database = merged(database, &path, trial).await;
        for step in [3, 999] {
            let conflict = database.report_metrics(report(trial, 1, "training", step, json!({"a": -1}))).await;
            let message = conflict.unwrap_err().to_string();
            assert_eq!(message, "overwriting existing metric keys is not supported, conflicting key: a");
        }
        database.report_metrics(report(trial, 1, "training", 3, json!({"a": 3, "c": [1]}))).await.unwrap();
        let rows = rows(&database, trial, "training").await;
        assert_eq!(rows.len(), 1000);
        assert_eq!(rows[3], (3, json!({"a": 3, "c": [1]})));
        assert_eq!(rows[999], (999, json!({"a": 999, "b": "x"})));
        let summary = database.trial(trial, NOW).await.unwrap().summary_metrics;
        assert_eq!(summary["avg_metrics"]["a"]["count"], 1000);
        assert_eq!(summary["avg_metrics"]["c"], json!({"type": "array", "last": [1]}));
    });
}

#[test]
fn a_resumed_trial_rolls_back_what_it_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    for merge in [false, true] {
        let path = path.with_extension(if merge { "merged" } else { "tail" });
        let database = open(&path);
        block(async {
            let trial = new_trial(&database, true).await;
            for step in 0..20 {
                database.report_metrics(report(trial, 1, "training", step, json!({"a": step}))).await.unwrap();
                database
                    .report_metrics(report(trial, 1, "validation", step, json!({"loss": 20 - step})))
                    .await
                    .unwrap();
            }
            let database = if merge { merged(database, &path, trial).await } else { database };
            assert_eq!(database.trial(trial, NOW).await.unwrap().searcher_metric_value, Some(1.0));
            let started = database.start_trial(trial, true, NOW).await.unwrap();
            assert_eq!(started.trial_run_id, RunId(2));
            // Nothing is taken back before there is something new.
            assert_eq!(rows(&database, trial, "training").await.len(), 20);
            database.report_metrics(report(trial, 2, "training", 10, json!({"a": -10}))).await.unwrap();
            let training = rows(&database, trial, "training").await;
            assert_eq!(training.len(), 11);
            assert_eq!(training[10], (10, json!({"a": -10})));
            // Other groups keep the step itself.
            assert_eq!(rows(&database, trial, "validation").await.len(), 11);
            let after = database.trial(trial, NOW).await.unwrap();
            assert_eq!((after.searcher_metric_value, after.total_batches_processed), (Some(10.0), 10));
            database.report_metrics(report(trial, 2, "validation", 10, json!({"loss": 50}))).await.unwrap();
            database.report_metrics(report(trial, 2, "training", 11, json!({"a": 11}))).await.unwrap();
            let after = database.trial(trial, NOW).await.unwrap();
            assert_eq!((after.searcher_metric_value, after.total_batches_processed), (Some(11.0), 11));
            assert_eq!(after.latest_validation.unwrap().metrics.avg_metrics["loss"], 50);
            assert_eq!(after.summary_metrics["avg_metrics"]["a"]["count"], 12);
        });
    }
}

#[test]
fn charts_keep_extremes_over_chunks_and_tail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        let reporting: Vec<_> = (0..6000)
            .map(|step| {
                let value = if step == 1234 { 1e6 } else { f64::from(step % 7) };
                database.report_metrics(report(trial, 1, "training", i64::from(step), json!({"a": value, "b": "text"})))
            })
            .collect();
        for one in reporting {
            one.await.unwrap();
        }
        let chart = database.chart(trial, "training".into(), vec![], 0, i64::MAX, 100).await.unwrap();
        assert!(chart.len() <= 100, "{}", chart.len());
        assert!(chart.iter().any(|point| point.batches == 1234 && point.values.object()["a"] == 1e6));
        assert_eq!(chart.last().unwrap().batches, 5999);
        assert!(chart.iter().all(|point| point.values.get("b").is_none()));
        let all = database.values(trial, "training".into(), vec![], (10, 20), 100).await.unwrap();
        assert_eq!(all.len(), 11);
        assert!(all.iter().all(|point| point.values.object()["b"] == "text" && point.values.get("a").is_some()));
        let part = database.chart(trial, "training".into(), vec!["a".into()], 10, 20, 100).await.unwrap();
        assert_eq!(part.len(), 11);
        let slice = Slice { offset: 5990, limit: 100, default_limit: None };
        let (page, pagination) = database.workloads(trial, false, Order::Ascending, slice).await.unwrap();
        assert_eq!((page.len(), pagination.total, pagination.end_index), (10, 6000, 6000));
    });
}

#[test]
fn a_database_is_opened_by_one_process_and_remembers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    let opening = Opening { holder: "other".into(), cluster_id: "other".into(), now: NOW };
    let second = open_as(&path, &opening);
    assert!(matches!(second, Err(Error::InUse { .. } | Error::InUseHere { .. })));
    let trial = block(async {
        let trial = new_trial(&database, false).await;
        database.report_metrics(report(trial, 1, "validation", 1, json!({"loss": 3}))).await.unwrap();
        trial
    });
    database.close();
    assert!(matches!(block(database.trial(trial, NOW)), Err(Error::Closed)));
    drop(database);
    let again = open_as(&path, &opening).unwrap();
    assert_eq!(again.cluster_id(), "cluster");
    assert_eq!(block(rows(&again, trial, "validation")), [(1, json!({"loss": 3}))]);
}

#[test]
fn a_master_that_was_replaced_decides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    let trial = block(new_trial(&database, true));
    change(&path, "UPDATE lease SET epoch = epoch + 1");
    let refused = block(database.report_metrics(report(trial, 1, "training", 1, json!({"a": 1})))).unwrap_err();
    assert!(refused.to_string().contains("another master has taken over"), "{refused}");
    assert!(block(rows(&database, trial, "training")).is_empty());
}

#[test]
fn files_that_are_no_databases_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    std::fs::write(&path, "this is no database, and long enough to be looked at as one".repeat(20)).unwrap();
    let opening = Opening { holder: "test".into(), cluster_id: "c".into(), now: NOW };
    if server().is_none() {
        assert!(matches!(open_as(&path, &opening), Err(Error::Unusable { .. })));
    }
    let path = folder.path().join("b.db");
    open(&path).close();
    change(&path, "INSERT INTO schema_steps (number, applied_at) VALUES (999, 0)");
    assert!(matches!(open_as(&path, &opening), Err(Error::TooNew { found: 999, .. })));
}

#[test]
fn metrics_of_batches_are_kept_and_not_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    block(async {
        let trial = new_trial(&database, true).await;
        let batches = json!([{"loss": 1}, {"loss": 2}]);
        let with_batches =
            |step, values| Report { batches: Some(batches.clone()), ..report(trial, 1, "training", step, values) };
        database.report_metrics(with_batches(1, json!({"loss": 1.5}))).await.unwrap();
        database.report_metrics(with_batches(2, json!({}))).await.unwrap();
        assert!(database.report_metrics(with_batches(1, json!({}))).await.is_err());
        let (found, _) = database.workloads(trial, true, Order::Ascending, Slice::ALL).await.unwrap();
        let shown: Vec<_> = found.iter().map(|each| each.training.clone().unwrap().metrics.batch_metrics).collect();
        assert_eq!(shown, [Some(batches.clone()), Some(batches)]);
        let (hidden, _) = database.workloads(trial, false, Order::Ascending, Slice::ALL).await.unwrap();
        assert_eq!(hidden[0].training.clone().unwrap().metrics.batch_metrics, Some(json!([])));
    });
}

#[test]
fn the_machine_s_groups_are_known_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    block(async {
        let trial = new_trial(&database, true).await;
        for time in 0..600 {
            let used = Report { time: Timestamp(time), ..report(trial, 1, "cpu", 0, json!({"used": time})) };
            database.report_metrics(used).await.unwrap();
        }
        let database = merged(database, &path, trial).await;
        let found = rows(&database, trial, "cpu").await;
        assert_eq!(found.len(), 600);
        assert_eq!(found[599].1, json!({"used": 599}));
        let after = database.trial(trial, NOW).await.unwrap();
        assert_eq!((after.summary_metrics, after.total_batches_processed), (json!({}), 0));
        // A resumed trial keeps what is known of the machine.
        database.start_trial(trial, true, NOW).await.unwrap();
        database.report_metrics(report(trial, 2, "training", 0, json!({"a": 1}))).await.unwrap();
        assert_eq!(rows(&database, trial, "cpu").await.len(), 600);
    });
}

fn batch(trial: TrialId, sequence: i64, reports: Vec<Report>, lines: &[&str]) -> ReportBatch {
    let line = |text: &&str| LogLine {
        id: 0,
        task_id: String::new(),
        allocation_id: None,
        agent_id: None,
        container_id: None,
        rank_id: Some(1),
        timestamp: NOW,
        level: LogLevel::Unspecified,
        source: None,
        stdtype: None,
        log: (*text).to_owned(),
    };
    ReportBatch {
        trial,
        reporter: "one".into(),
        sequence,
        reports: reports.into_iter().enumerate().collect(),
        refused: vec![],
        logs: lines.iter().map(line).collect(),
    }
}

#[test]
fn a_batch_that_arrives_twice_is_stored_once_and_answered_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let trial = block(async {
        let database = open(&path);
        let trial = new_trial(&database, true).await;
        database.close();
        trial
    });
    let machine = || report(trial, 1, "cpu", 0, json!({"busy": 0.5}));
    let with_batches =
        || Report { batches: Some(json!([{"a": 1}])), ..report(trial, 1, "training", 1, json!({"a": 1})) };
    let conflict = || report(trial, 1, "training", 1, json!({"a": 2, "new": 3}));
    for attempt in 0..3 {
        // A master of its own each time: what is known of reporters outlives it.
        let database = open(&path);
        block(async {
            let first = batch(trial, 1, vec![machine(), with_batches(), conflict()], &["a line\n"]);
            let refused = database.report_batch(first).await.unwrap();
            assert_eq!(refused.len(), 1, "attempt {attempt}");
            assert_eq!(refused[0].index, 2);
            assert!(refused[0].message.contains("conflicting key: a"));
            assert_eq!(rows(&database, trial, "cpu").await.len(), 1);
            assert_eq!(rows(&database, trial, "training").await, [(1, json!({"a": 1}))]);
            let task = database.trial_tasks(trial).await.unwrap().remove(0);
            assert_eq!(database.log_fields(vec![task]).await.unwrap().rank_ids, [1]);
            database.close();
        });
    }
    let database = open(&path);
    block(async {
        // At the same time it would be the same report.
        let later = Report { time: Timestamp(1), ..machine() };
        database.report_batch(batch(trial, 2, vec![later], &[])).await.unwrap();
        assert_eq!(rows(&database, trial, "cpu").await.len(), 2);
        let gap = database.report_batch(batch(trial, 4, vec![machine()], &[])).await.unwrap_err();
        assert_eq!(gap.to_string(), "batch 4 of this reporter came before batch 3");
        let other = new_trial(&database, true).await;
        let stolen = database.report_batch(batch(other, 3, vec![], &[])).await.unwrap_err();
        assert_eq!(stolen.to_string(), "this reporter belongs to another trial");
        database.report_batch(batch(trial, 1, vec![machine()], &[])).await.unwrap();
        assert_eq!(rows(&database, trial, "cpu").await.len(), 2, "an old batch changes nothing");
    });
}

#[test]
fn reports_that_came_together_are_joined_and_rolled_back_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    block(async {
        let database = open(&path);
        let trial = new_trial(&database, true).await;
        let training = |run, step: i64, values| report(trial, run, "training", step, values);
        // More than fit into one row, with a gap, and one that contradicts in the middle.
        let mut reports: Vec<Report> = (0..600).map(|step| training(1, step * 2, json!({"a": step}))).collect();
        reports.insert(300, training(1, 100, json!({"a": -1})));
        let refused = database.report_batch(batch(trial, 1, reports, &[])).await.unwrap();
        assert_eq!(refused.iter().map(|refusal| refusal.index).collect::<Vec<_>>(), [300]);
        let found = rows(&database, trial, "training").await;
        assert_eq!(found.len(), 600);
        assert_eq!(found[..2], [(0, json!({"a": 0})), (2, json!({"a": 1}))]);
        assert_eq!(database.trial(trial, NOW).await.unwrap().total_batches_processed, 1198);
        // Single reports at, between and behind their steps.
        for (step, values) in [(100, json!({"b": 7})), (101, json!({"a": 8})), (1200, json!({"a": 9}))] {
            database.report_metrics(training(1, step, values)).await.unwrap();
        }
        let found = rows(&database, trial, "training").await;
        assert_eq!(found.len(), 602);
        assert_eq!(found[50..52], [(100, json!({"a": 50, "b": 7})), (101, json!({"a": 8}))]);
        let chart = database.chart(trial, "training".into(), vec!["a".into()], 998, 1001, 10).await.unwrap();
        assert_eq!(chart.iter().map(|point| point.batches).collect::<Vec<_>>(), [998, 1000]);
        // The next run repeats the steps from 500 on.
        database.start_trial(trial, true, NOW).await.unwrap();
        let repeated = (0..100).map(|step| training(2, 500 + step, json!({"a": 0}))).collect();
        assert_eq!(database.report_batch(batch(trial, 2, repeated, &[])).await.unwrap(), []);
        let steps: Vec<i64> = rows(&database, trial, "training").await.into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps.len(), 251 + 100);
        assert_eq!(steps.last(), Some(&599));
        assert_eq!(database.trial(trial, NOW).await.unwrap().total_batches_processed, 599);
        let database = merged(database, &path, trial).await;
        assert_eq!(rows(&database, trial, "training").await.len(), 251 + 100);
    });
}

#[test]
fn charts_of_many_steps_keep_extremes_by_outlines_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    block(async {
        let database = open(&path);
        let trial = new_trial(&database, true).await;
        let value = |step: i64| if step == 7001 { -5.0 } else { (step % 100) as f64 };
        let reports = (0..20_000).map(|step| report(trial, 1, "training", step, json!({"a": value(step)}))).collect();
        database.report_batch(batch(trial, 1, reports, &[])).await.unwrap();
        let database = merged(database, &path, trial).await;
        // If a chart needed what the outlines leave out, it would find it damaged.
        let long = format!("UPDATE metric_chunks SET content = {} WHERE points = 4096", damaged_bytes());
        assert_eq!(change(&path, &long), 4);
        let chart = |first, last, limit| database.chart(trial, "training".into(), vec!["a".into()], first, last, limit);
        let drawn = chart(0, i64::MAX, 200).await.unwrap();
        assert!(drawn.len() <= 200);
        let numbers: Vec<f64> = drawn.iter().map(|point| point.values.get("a").unwrap().number().unwrap()).collect();
        assert_eq!(numbers.iter().copied().fold(f64::MAX, f64::min), -5.0);
        assert_eq!((drawn[0].batches, drawn.last().unwrap().batches), (0, 19_999));
        // Finer than the outlines are.
        assert!(chart(0, i64::MAX, 1000).await.is_err());
        assert!(chart(100, 4000, 10).await.is_err());
    });
}
