//! Secrets in configurations: no answer shows them, and those who may use them keep them.

use serde_json::{Value, json};

use super::{Served, Things, ask, bearer, fill, filled, make, serve};
use crate::http::route::Method::{Get, Patch, Post, Put};
use crate::http::routes::routes;

/// What no answer may contain; YAML and JSON write it as it is.
const MARKER: &str = "hunter2-marker";
const MASK: &str = "********";

/// A configuration with a secret at every place that has one.
fn secretive(secret: &str, variable: &str) -> Value {
    json!({
        "name": "a", "entrypoint": "true", "searcher": {"name": "single", "metric": "x"},
        "checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": secret, "secret_key": secret,
            "endpoint_url": format!("http://user:{secret}@host")},
        "tensorboard_storage": {"type": "azure", "container": "c", "connection_string": secret, "credential": secret},
        "environment": {
            "environment_variables": [format!("{variable}={secret}"), "VISIBLE=shown",
                format!("DATABASE_URL=postgres://me:{secret}@db/x")],
            "registry_auth": {"username": "me", "password": secret, "identitytoken": secret},
            "pod_spec": {"spec": {"containers": [{"env": [{"name": "API_KEY", "value": secret}]}]}},
        },
        "data": {"secrets": {"any": secret, "more": [secret, {"deep": secret}]}, "password": secret, "url": "http://x"},
        "integrations": {"pachyderm": {"pachd": {"host": "h", "token": secret}, "proxy": {"privateKey": secret}}},
    })
}

/// Every answer of every route that shows something, for everybody.
fn assert_hidden(served: &Served, things: &Things) {
    for token in ["owner", "other", "administrator", "own task"] {
        for route in routes().iter().filter(|route| route.method == Get) {
            for id in ["1", "2", "3"] {
                let path = filled(route.path, things).replace("experiments/1", &format!("experiments/{id}"));
                let (_, answer) = ask(served, Get, &path, &bearer(token), "");
                assert!(!answer.contains(MARKER), "GET {path} for {token}: {answer}");
            }
        }
    }
}

/// An experiment that the master runs, of the owner's.
fn submit(served: &Served, request: &Value) -> Value {
    make(served, "/api/v1/experiments", request)
}

#[test]
fn no_answer_shows_a_secret_of_a_configuration() {
    let served = serve();
    let mut things = fill(&served);
    for (number, variable) in ["HF_TOKEN", "WANDB_API_KEY", "aws_secret_access_key", "DBPASSWORD"].iter().enumerate() {
        let config = secretive(MARKER, variable);
        let answer = submit(&served, &json!({"config": config.to_string(), "activate": false}));
        assert!(!answer.to_string().contains(MARKER), "{answer}");
        assert_eq!(answer["config"]["checkpoint_storage"]["bucket"], json!("b"));
        let variables = answer["config"]["environment"]["environment_variables"]["cpu"].to_string();
        assert!(
            variables.contains("VISIBLE=shown") && variables.contains(&format!("{variable}={MASK}")),
            "{variables}"
        );
        let original = answer["experiment"]["originalConfig"].as_str().unwrap();
        assert!(original.contains("VISIBLE=shown") && original.contains(MASK), "{original}");
        let path = format!("/api/v1/experiments/by-external-id/secret{number}");
        let body = json!({"config": config.to_string(), "unmanaged": true}).to_string();
        let (status, answer) = ask(&served, Put, &path, &bearer("owner"), &body);
        assert!(status == 200 && !answer.contains(MARKER), "{answer}");
        let trial = make(&served, "/api/v1/trials", &json!({"experimentId": 4 + 2 * number, "unmanaged": true}));
        let task = trial["trial"]["taskId"].as_str().unwrap();
        let uuid = format!("11111111-2222-4333-8444-{:012}", number + 1);
        let checkpoint = json!({"uuid": uuid, "taskId": task, "state": "STATE_COMPLETED", "resources": {},
            "metadata": {"steps_completed": 1}});
        make(&served, "/api/v1/checkpoints", &checkpoint);
        for path in
            [format!("/api/v1/checkpoints/{uuid}"), format!("/api/v1/experiments/{}/checkpoints", 4 + 2 * number)]
        {
            let (status, answer) = ask(&served, Get, &path, &bearer("owner"), "");
            assert!(status == 200 && answer.contains(MASK) && !answer.contains(MARKER), "{path}: {answer}");
        }
        let change = json!({"resources": {"priority": 7}}).to_string();
        let (_, answer) = ask(&served, Patch, "/api/v1/experiments/3", &bearer("owner"), &change);
        assert!(!answer.contains(MARKER), "{answer}");
    }
    let mut template = secretive(MARKER, "HF_TOKEN");
    template.as_object_mut().unwrap().remove("searcher");
    let answer = make(&served, "/api/v1/templates/secret", &json!({"config": template}));
    assert!(!answer.to_string().contains(MARKER), "{answer}");
    let command =
        json!({"config": {"entrypoint": ["true"], "environment": secretive(MARKER, "HF_TOKEN")["environment"]}});
    let answer = make(&served, "/api/v1/commands", &command);
    assert!(!answer.to_string().contains(MARKER), "{answer}");
    things.command = answer["command"]["id"].as_str().unwrap().to_owned();
    assert_hidden(&served, &things);
    for path in ["/api/v1/templates/secret", "/api/v1/experiments?limit=-1", "/api/v1/experiments/3"] {
        let (status, answer) = ask(&served, Get, path, &bearer("other"), "");
        assert!(status == 200 && answer.contains(MASK) && !answer.contains(MARKER), "{path}: {answer}");
    }
}

/// What the master itself has of an experiment.
fn stored(served: &Served, id: i64) -> Value {
    let found = served.database.experiment(instep_api::identifiers::ExperimentId(id), crate::clock::now());
    served.runtime.block_on(found).unwrap().config.into_value()
}

#[test]
fn a_fork_by_its_owner_keeps_the_secrets_and_nobody_else_s_does() {
    let served = serve();
    fill(&served);
    let first = submit(&served, &json!({"config": secretive(MARKER, "HF_TOKEN").to_string(), "activate": false}));
    let id = first["experiment"]["id"].as_i64().unwrap();
    for config in [first["experiment"]["originalConfig"].as_str().unwrap().to_owned(), first["config"].to_string()] {
        let request = json!({"config": config, "parentId": id, "activate": false});
        let fork = submit(&served, &request)["experiment"]["id"].as_i64().unwrap();
        let sections = ["checkpoint_storage", "tensorboard_storage", "environment", "data", "integrations"];
        for section in sections {
            assert_eq!(stored(&served, fork)[section], stored(&served, id)[section], "{section} of {config}");
        }
        // Whoever runs a fork sees what it is given: others must bring their own.
        for token in ["other", "own task"] {
            let (status, answer) = ask(&served, Post, "/api/v1/experiments", &bearer(token), &request.to_string());
            assert!(status == 400 && answer.contains("hint:") && !answer.contains(MARKER), "{token}: {answer}");
            assert!(answer.contains("checkpoint_storage.secret_key"), "{answer}");
        }
    }
    let unasked = json!({"config": first["config"].to_string(), "activate": false}).to_string();
    assert_eq!(ask(&served, Post, "/api/v1/experiments", &bearer("owner"), &unasked).0, 400);
    let command = json!({"config": {"entrypoint": ["true"],
        "environment": {"environment_variables": [format!("HF_TOKEN={MASK}")]}}});
    let (status, answer) = ask(&served, Post, "/api/v1/commands", &bearer("owner"), &command.to_string());
    assert!(status == 400 && answer.contains("environment_variables.HF_TOKEN"), "{answer}");
}

#[test]
fn a_template_that_comes_back_masked_keeps_its_secrets() {
    let served = serve();
    fill(&served);
    let template = json!({"environment": {"environment_variables": [format!("HF_TOKEN={MARKER}")]}});
    let made = make(&served, "/api/v1/templates/secret", &json!({"config": template}));
    let mut changed = made["template"]["config"].clone();
    changed["max_restarts"] = json!(2);
    for (method, body) in [(Put, json!({"config": changed})), (Patch, changed.clone())] {
        let (status, answer) = ask(&served, method, "/api/v1/templates/secret", &bearer("owner"), &body.to_string());
        assert!(status == 200 && !answer.contains(MARKER), "{answer}");
        let found = served.runtime.block_on(served.database.template("secret".into())).unwrap().0.config.into_value();
        assert_eq!((&found["environment"], &found["max_restarts"]), (&template["environment"], &json!(2)));
    }
    let (status, answer) =
        ask(&served, Post, "/api/v1/templates/new", &bearer("owner"), &json!({"config": changed}).to_string());
    assert!(status == 400 && answer.contains("HF_TOKEN"), "{answer}");
    // Experiments of others get what the template says, and do not show it.
    let request = json!({"config": "{entrypoint: 'true', searcher: {name: single, metric: x}, \
        checkpoint_storage: {type: directory, container_path: /c}, environment: {environment_variables: ['HF_TOKEN=********']}}", "template": "secret", "activate": false});
    let (status, answer) = ask(&served, Post, "/api/v1/experiments", &bearer("other"), &request.to_string());
    assert!(status == 200 && !answer.contains(MARKER), "{answer}");
    assert!(stored(&served, 3)["environment"].to_string().contains(MARKER));
}
