//! What tests begin with: a database, a trial in it, a report of it.
#![expect(clippy::unwrap_used, reason = "a part of tests")]
#![allow(dead_code, reason = "every test file uses its part")]

use std::path::Path;

use instep_api::identifiers::{RunId, TrialId, UserId};
use instep_api::metrics::Report;
use instep_api::values::Values;
use instep_api::wire::Timestamp;
use instep_database::{Database, NewExperiment, NewTrial, Opening};
use serde_json::{Value, json};

/// When everything happens that says no other time.
pub const NOW: Timestamp = Timestamp(1_000_000);

/// Opens a database as a master does.
pub fn open(path: &Path) -> Database {
    let opening = Opening { holder: "test".into(), cluster_id: "cluster".into(), now: NOW };
    Database::open(path, &opening).unwrap()
}

/// Waits for what a database promises.
pub fn block<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// An experiment of the first user with nothing special about it.
pub fn experiment() -> NewExperiment {
    NewExperiment {
        external_id: None,
        name: "test".into(),
        description: String::new(),
        labels: vec![],
        config: json!({}),
        original_config: String::new(),
        job_id: "job".into(),
        project_id: None,
        project_names: None,
        owner: UserId(1),
        searcher_name: "single".into(),
        searcher_metric: "loss".into(),
        smaller_is_better: true,
    }
}

/// A trial that has started, of an experiment of its own.
pub async fn new_trial(database: &Database, smaller_is_better: bool) -> TrialId {
    let experiment = NewExperiment { smaller_is_better, ..experiment() };
    let experiment = database.create_experiment(experiment, NOW).await.unwrap().id;
    let new = NewTrial { experiment, external_id: None, hparams: json!({}), task_suffix: experiment.to_string() };
    let trial = database.create_trial(new, NOW).await.unwrap().id;
    database.start_trial(trial, true, NOW).await.unwrap();
    trial
}

/// A report whose time is a thousand times its step.
pub fn report(trial: TrialId, run: i64, group: &str, step: i64, values: Value) -> Report {
    let values = Values::from(values.as_object().unwrap());
    Report { trial, run: RunId(run), group: group.into(), step, time: Timestamp(step * 1000), values, batches: None }
}
