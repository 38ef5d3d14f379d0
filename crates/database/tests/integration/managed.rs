//! What the master decides about work that it runs: stored together, loaded again, shown by what runs.
#![expect(clippy::unwrap_used, reason = "tests")]

use crate::made::{NOW, block, experiment, open, report};
use instep_api::identifiers::{ExperimentId, TrialId, UserId};
use instep_api::pages::{Order, Slice};
use instep_api::states::{AllocationState, State};
use instep_api::wire::Timestamp;
use instep_database::{
    AllocationRow, Database, Decision, ExperimentDecision, ExperimentFilter, ExperimentSort, NewManagedExperiment,
    NewManagedTrial, Snapshot, TaskSession, TrialDecision,
};
use serde_json::json;

async fn begun(database: &Database) -> (ExperimentId, TrialId) {
    let new = NewManagedExperiment {
        experiment: experiment(),
        state: State::Active,
        pool: "default".into(),
        forked_from: None,
        model_definition: b"tgz".to_vec(),
    };
    let id = database.create_managed_experiment(new, NOW).await.unwrap().id;
    let first = Decision {
        experiments: vec![decided(id, State::Active, "one")],
        new_trials: vec![NewManagedTrial {
            experiment: id,
            request: "request".into(),
            state: State::Active,
            hparams: json!({"x": 1}),
            seed: 7,
            warm_start_checkpoint: Some("warm".into()),
        }],
        ..Decision::default()
    };
    let trials = database.decide(first.clone(), NOW).await.unwrap();
    // A master that was killed before it knew decides the same again.
    assert_eq!(database.decide(first, NOW).await.unwrap(), trials);
    (id, trials[0])
}

fn decided(id: ExperimentId, state: State, snapshot: &str) -> ExperimentDecision {
    ExperimentDecision { id, state, progress: Some(0.5), snapshot: Snapshot::Full(snapshot.into()) }
}

fn allocation(id: ExperimentId, trial: TrialId, state: AllocationState) -> AllocationRow {
    AllocationRow {
        id: format!("{id}.request.1"),
        task_id: format!("{id}.request"),
        trial: Some(trial),
        experiment: Some(id),
        run: 1,
        state,
        ready: false,
        pool: "default".into(),
        slots: 2,
        shares: json!([]),
        ports: json!({}),
        signals: json!({}),
        exit: None,
        reason: String::new(),
        queued_at: NOW,
        started_at: None,
        ended_at: None,
    }
}

#[test]
fn a_step_is_stored_as_a_whole_and_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    let (id, trial) = block(begun(&database));
    drop(database);
    let database = open(&path);
    block(async {
        let live = database.live_experiments(NOW).await.unwrap();
        assert_eq!(live.len(), 1);
        assert_eq!((live[0].state, live[0].stored.snapshot.as_deref()), (State::Active, Some("one")));
        let found = &live[0].trials[0];
        assert_eq!((found.id, found.request.as_str(), found.seed, found.run), (trial, "request", 7, 0));
        assert_eq!(database.model_definition(id, NOW).await.unwrap(), b"tgz");
        assert_eq!(database.task_context(format!("{id}.request")).await.unwrap(), b"tgz");
        assert!(database.task_context("nobody".into()).await.is_err());
        assert_eq!(database.resume_point(trial).await.unwrap(), (Some("warm".to_owned()), 0));
        // Nobody else may say what its trials do.
        assert!(database.set_trial_state(trial, Some(State::Completed), NOW).await.is_err());
        assert!(database.start_trial(trial, true, NOW).await.is_err());
    });
}

#[test]
fn active_ones_are_shown_by_what_runs_and_tokens_end_with_their_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    block(async {
        let (id, trial) = begun(&database).await;
        let shown = async |state| {
            let experiment = database.experiment(id, NOW).await.unwrap();
            let trial = database.trial(trial, NOW).await.unwrap();
            assert_eq!((experiment.state, trial.state), (state, state));
            let filter = ExperimentFilter { states: vec![state], ..ExperimentFilter::default() };
            let all = Slice { offset: 0, limit: 0, default_limit: None };
            let sort = ExperimentSort::State;
            assert_eq!(database.experiments(filter, sort, Order::Ascending, all, NOW).await.unwrap().0.len(), 1);
        };
        shown(State::Queued).await;
        for (state, expected) in [
            (AllocationState::Queued, State::Queued),
            (AllocationState::Pulling, State::Pulling),
            (AllocationState::Starting, State::Starting),
            (AllocationState::Running, State::Running),
        ] {
            let allocations = vec![allocation(id, trial, state)];
            database.decide(Decision { allocations, ..Decision::default() }, NOW).await.unwrap();
            shown(expected).await;
        }
        let session = TaskSession { token_hash: "hash".into(), user: UserId(1), allocation: format!("{id}.request.1") };
        database.decide(Decision { sessions: vec![session], ..Decision::default() }, NOW).await.unwrap();
        let speaks = async || database.session("hash".into(), Timestamp(i64::MAX - 1)).await.unwrap().is_some();
        assert!(speaks().await);
        let change = instep_database::UserChange { password_hash: Some(None), ..Default::default() };
        database.change_user(UserId(1), change, NOW).await.unwrap();
        assert!(speaks().await);
        let ended = AllocationRow { ended_at: Some(NOW), ..allocation(id, trial, AllocationState::Terminated) };
        database.decide(Decision { allocations: vec![ended], ..Decision::default() }, NOW).await.unwrap();
        assert!(!speaks().await);
        assert!(database.open_allocations().await.unwrap().is_empty());
        shown(State::Queued).await;
    });
}

#[test]
fn a_new_run_takes_back_what_it_reports_again_and_the_end_is_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    block(async {
        let (id, trial) = begun(&database).await;
        let run = async |run, state| {
            let trial = TrialDecision { id: trial, state, restarts: run - 1, run, log_policy_matched: None };
            database.decide(Decision { trials: vec![trial], ..Decision::default() }, NOW).await.unwrap();
        };
        run(1, State::Active).await;
        for step in [1, 2, 3] {
            database.report_metrics(report(trial, 1, "training", step, json!({"loss": step}))).await.unwrap();
        }
        run(2, State::Active).await;
        assert!(database.report_metrics(report(trial, 1, "training", 4, json!({"loss": 9}))).await.is_err());
        database.report_metrics(report(trial, 2, "training", 2, json!({"loss": 9}))).await.unwrap();
        let all = Slice { offset: 0, limit: 0, default_limit: None };
        let (rows, _) = database.workloads(trial, false, Order::Ascending, all).await.unwrap();
        let steps: Vec<i64> =
            rows.iter().filter_map(|row| row.training.as_ref()).map(|training| training.total_batches).collect();
        assert_eq!(steps, [1, 2]);
        run(2, State::Completed).await;
        let end = Decision {
            experiments: vec![decided(id, State::Completed, "two")],
            ended_tasks: vec![format!("{id}.request")],
            ..Decision::default()
        };
        database.decide(end, Timestamp(9_000_000)).await.unwrap();
        let shown = database.experiment(id, NOW).await.unwrap();
        assert_eq!((shown.state, shown.end_time), (State::Completed, Some(Timestamp(9_000_000))));
        assert!(database.live_experiments(NOW).await.unwrap().is_empty());
        assert_eq!(database.task_end(format!("{id}.request")).await.unwrap(), Some(Timestamp(9_000_000)));
        database.delete_experiment(id, NOW).await.unwrap();
    });
}
