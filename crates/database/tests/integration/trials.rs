//! Trials in the database: states, silence, storage, deletion.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use crate::made::{block, open_as};
use instep_api::identifiers::UserId;
use instep_api::pages::{Order, Slice};
use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_database::{
    Database, Error, ExperimentFilter, ExperimentSort, NewExperiment, NewTrial, Opening, WorkspaceChange,
};
use serde_json::json;

fn open(folder: &tempfile::TempDir) -> Database {
    let opening = Opening { holder: "test".into(), cluster_id: "cluster".into(), now: Timestamp(0) };
    open_as(&folder.path().join("a.db"), &opening).unwrap()
}

fn experiment(external_id: Option<&str>, name: &str) -> NewExperiment {
    NewExperiment {
        external_id: external_id.map(str::to_owned),
        name: name.into(),
        description: "50% of_it".into(),
        labels: vec!["a\"b".into()],
        ..crate::made::experiment()
    }
}

#[test]
fn an_experiment_that_is_found_again_uses_up_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder);
    block(async {
        let made = async |external_id, name| {
            let found = database.create_experiment(experiment(external_id, name), Timestamp(1)).await.unwrap();
            (found.id.0, found.name)
        };
        assert_eq!(made(Some("mine"), "first").await, (1, "first".to_owned()));
        assert_eq!(made(Some("mine"), "second").await, (1, "second".to_owned()));
        assert_eq!(made(Some("mine"), "third").await, (1, "third".to_owned()));
        assert_eq!(made(None, "next").await, (2, "next".to_owned()));
    });
}

#[test]
fn a_silent_trial_fails_as_of_its_last_word_and_can_be_revived() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder);
    block(async {
        let id = database.create_experiment(experiment(None, "x"), Timestamp(1)).await.unwrap().id;
        let new = NewTrial { experiment: id, external_id: None, hparams: json!({}), task_suffix: "t".into() };
        let trial = database.create_trial(new, Timestamp(2)).await.unwrap().id;
        assert!(database.running_trials().await.unwrap().is_empty());
        database.start_trial(trial, false, Timestamp(3)).await.unwrap();
        let [(found, last_heard)] = database.running_trials().await.unwrap()[..] else { panic!("one trial runs") };
        assert_eq!((found, last_heard), (trial, Timestamp(3)));
        // It says something in between: then it is not given up.
        database.set_trial_state(trial, None, Timestamp(4)).await.unwrap();
        assert!(!database.give_up_trial(trial, last_heard).await.unwrap());
        assert!(database.give_up_trial(trial, Timestamp(4)).await.unwrap());
        let failed = database.trial(trial, Timestamp(9)).await.unwrap();
        assert_eq!((failed.state, failed.end_time), (State::Error, Some(Timestamp(4))));
        let experiment = database.experiment(id, Timestamp(9)).await.unwrap();
        assert_eq!((experiment.state, experiment.end_time), (State::Error, Some(Timestamp(4))));
        database.start_trial(trial, true, Timestamp(10)).await.unwrap();
        let revived = database.experiment(id, Timestamp(11)).await.unwrap();
        assert_eq!((revived.state, revived.end_time), (State::Running, None));
        assert!(matches!(database.delete_experiment(id, Timestamp(12)).await, Err(Error::Precondition(_))));
        database.set_trial_state(trial, Some(State::Completed), Timestamp(13)).await.unwrap();
        let done = database.experiment(id, Timestamp(14)).await.unwrap();
        assert_eq!((done.state, done.progress), (State::Completed, Some(1.0)));
        database.delete_experiment(id, Timestamp(15)).await.unwrap();
        assert!(matches!(database.trial(trial, Timestamp(16)).await, Err(Error::NotFound { .. })));
    });
}

#[test]
fn filters_take_wildcards_and_quotes_literally() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder);
    block(async {
        for name in ["one_1", "oneX1", "100%"] {
            database.create_experiment(experiment(None, name), Timestamp(1)).await.unwrap();
        }
        let names = async |filter: ExperimentFilter| {
            let sort = ExperimentSort::Name;
            let found = database.experiments(filter, sort, Order::Ascending, Slice::ALL, Timestamp(2)).await.unwrap();
            found.0.into_iter().map(|experiment| experiment.name).collect::<Vec<_>>()
        };
        let named = |name: &str| ExperimentFilter { name: Some(name.into()), ..ExperimentFilter::default() };
        assert_eq!(names(named("E_1")).await, ["one_1"]);
        assert_eq!(names(named("%")).await, ["100%"]);
        let labelled = |label: &str| ExperimentFilter { labels: vec![label.into()], ..ExperimentFilter::default() };
        assert_eq!(names(labelled("a\"b")).await.len(), 3);
        assert_eq!(names(labelled("a")).await.len(), 0);
    });
}

#[test]
fn one_failing_write_takes_nothing_of_the_others_back() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut writes = Vec::new();
        for number in 0..200 {
            let database = database.clone();
            writes.push(tokio::spawn(async move {
                // Every third one asks for a name that is taken.
                let name = if number % 3 == 0 { "Uncategorized".to_owned() } else { format!("workspace {number}") };
                database.create_workspace(name, WorkspaceChange::default(), UserId(1), Timestamp(1)).await.is_ok()
            }));
        }
        let mut made = 0;
        for write in writes {
            made += usize::from(write.await.unwrap());
        }
        assert_eq!(made, 133);
        assert_eq!(database.workspaces().await.unwrap().len(), 134);
    });
}
