//! Requests that only ask whether an experiment could be made: they make nothing, and tell nothing that is hidden.

use serde_json::json;

use super::roles::serve_private;
use super::{Served, ask, bearer, serve};
use crate::http::route::Method::{Get, Post, Put};

fn configured(searcher: &str) -> String {
    format!(
        "{{name: a, entrypoint: x, checkpoint_storage: {{type: directory, container_path: /c}}, \
         searcher: {{name: single, metric: x, {searcher}}}}}"
    )
}

fn validate(served: &Served, unmanaged: bool, searcher: &str) -> (u16, String) {
    let body = json!({"config": configured(searcher), "unmanaged": unmanaged, "validateOnly": true, "projectId": 3});
    ask(served, Post, "/api/v1/experiments", &bearer("other"), &body.to_string())
}

#[test]
fn what_is_hidden_and_what_is_not_there_cannot_be_told_apart() {
    let (served, _) = serve_private();
    for unmanaged in [false, true] {
        let (status, answer) = validate(&served, unmanaged, "smaller_is_better: true");
        assert_eq!(status, 200, "{answer}");
        for (key, hidden, absent) in [
            ("source_trial_id", "1", "99"),
            ("source_checkpoint_uuid", super::UUID, "99999999-2222-4333-8444-555555555555"),
        ] {
            let [hidden, absent] = [hidden, absent].map(|name| {
                let (status, answer) = validate(&served, unmanaged, &format!("{key}: {name}"));
                let body = answer.split("\r\n\r\n").nth(1).unwrap().to_owned();
                let body: serde_json::Value = serde_json::from_str(&body).unwrap();
                (status, body["error"]["message"].as_str().map(|text| text.replace(name, "NAME")), body)
            });
            assert_eq!((hidden.0, &hidden.1), (absent.0, &absent.1), "{} {}", hidden.2, absent.2);
            assert_eq!(hidden.0, 404, "{}", hidden.2);
        }
    }
}

#[test]
fn an_experiment_that_is_only_validated_is_not_made_under_any_name() {
    let served = serve();
    let body = json!({"config": configured("smaller_is_better: true"), "unmanaged": true, "validateOnly": true});
    for (method, path) in [(Put, "/api/v1/experiments/by-external-id/mine"), (Post, "/api/v1/experiments")] {
        let (status, answer) = ask(&served, method, path, &bearer("owner"), &body.to_string());
        assert!(status == 200 && answer.contains(r#""id":0"#), "{answer}");
    }
    let (_, answer) = ask(&served, Get, "/api/v1/experiments", &bearer("owner"), "");
    assert!(answer.contains(r#""experiments":[]"#), "{answer}");
}
