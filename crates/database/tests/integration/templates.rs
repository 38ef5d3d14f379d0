//! Templates, and what people say about a job: kept, changed, found again after a restart.

use crate::made::{NOW, block, new_trial, open};
use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::templates::Template;
use instep_database::Error;
use serde_json::json;

fn template(name: &str) -> Template {
    Template { name: name.into(), config: json!({"max_restarts": 1}).into(), workspace_id: WorkspaceId(1) }
}

#[test]
fn templates_are_made_once_changed_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    block(async {
        for name in ["b", "a"] {
            database.create_template(template(name), UserId(2), NOW).await.unwrap();
        }
        let again = database.create_template(template("a"), UserId(2), NOW).await.unwrap_err();
        assert!(matches!(again, Error::AlreadyExists(_)), "{again}");
        let names: Vec<String> = database.templates().await.unwrap().into_iter().map(|each| each.name).collect();
        assert_eq!(names, ["a", "b"]);
        let changed = database.change_template("a".into(), json!({"max_restarts": 2})).await.unwrap();
        assert_eq!(*changed.config, json!({"max_restarts": 2}));
        assert_eq!(database.template("a".into()).await.unwrap().1, UserId(2));
        database.delete_template("a".into()).await.unwrap();
        for missing in [
            database.template("a".into()).await.map(drop),
            database.delete_template("a".into()).await,
            database.change_template("a".into(), json!({})).await.map(drop),
        ] {
            assert_eq!(missing.unwrap_err().to_string(), "template 'a' not found");
        }
    });
}

#[test]
fn places_in_the_queue_and_settings_of_a_job_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let database = open(&path);
    let id = block(async {
        let trial = new_trial(&database, true).await;
        let id = database.trial(trial, NOW).await.unwrap().experiment_id;
        let far = 1_800_000_000_000_001;
        database.set_job_positions(vec![("one".into(), 5), ("two".into(), far)]).await.unwrap();
        database.set_job_positions(vec![("one".into(), 7)]).await.unwrap();
        let found = database.job_positions().await.unwrap();
        assert_eq!((found["one"], found["two"]), (7, far));
        let changes = vec![
            ("resources", "priority", json!(9)),
            ("resources", "resource_pool", json!("large")),
            ("checkpoint_storage", "save_trial_best", json!(3)),
        ];
        database.change_config(id, changes, NOW).await.unwrap();
        id
    });
    database.close();
    drop(database);
    let database = open(&path);
    block(async {
        let experiment = database.experiment(id, NOW).await.unwrap();
        assert_eq!(experiment.config["resources"], json!({"priority": 9, "resource_pool": "large"}));
        assert_eq!(experiment.config["checkpoint_storage"], json!({"save_trial_best": 3}));
        assert_eq!(experiment.resource_pool, "large");
        let missing = database.task("nothing".into()).await.unwrap_err();
        assert_eq!(missing.to_string(), "task 'nothing' not found");
    });
}
