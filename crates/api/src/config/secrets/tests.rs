//! What is masked, what is not, and how it comes back.

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn names_say_what_is_secret() {
    for name in [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "DBPASSWORD",
        "db-password",
        "dbPassword",
        "apikey",
        "privateKey",
        "GITHUB_PAT",
        "REGISTRY_AUTH",
        "MYTOKEN",
        "accessToken",
        "client_secret",
        "MYSQL_PWD",
        "SENTRY_DSN",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in [
        "PATH",
        "TOKENIZERS_PARALLELISM",
        "tokenizer",
        "PWD",
        "OLDPWD",
        "AWS_REGION",
        "NCCL_DEBUG",
        "KEY",
        "monkey",
        "keyboard",
        "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES",
        "author",
        "",
        "é",
        "max_length",
    ] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn only_secrets_are_masked() {
    let cases = [
        (json!({"data": {"max_tokens": 5, "use_password": true, "token": ""}}), None),
        (json!({"hyperparameters": {"key_dim": 8, "api_key": "shown"}, "entrypoint": "x --token y"}), None),
        (json!({"environment": {"secrets": {"HF_TOKEN": "name"}, "image": "a/b:c"}}), None),
        (json!({"environment": {"environment_variables": ["A_TOKEN", "B=1", 7, "C_KEY="]}}), None),
        (json!({"checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": null}}), None),
        (json!({"data": {"password": 123}}), Some(json!({"data": {"password": MASK}}))),
        (
            json!({"checkpoint_storage": {"account_url": "https://a.b/c?sv=1&sig=x", "container": "c"}}),
            Some(json!({"checkpoint_storage": {"account_url": MASK, "container": "c"}})),
        ),
        (
            json!({"environment": {"environment_variables": {"cuda": ["URL=redis://:p@h", "X=ssh://git@h"]}}}),
            Some(json!({"environment": {"environment_variables": {"cuda": [format!("URL={MASK}"), "X=ssh://git@h"]}}})),
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(masked(config.clone()), expected.unwrap_or(config));
    }
}

#[test]
fn text_without_secrets_stays_as_it_was_written() {
    let plain = "name: a # why\nentrypoint: x\n";
    assert_eq!(masked_text(plain), plain);
    let shown = masked_text("name: a\ndata: {secrets: {x: hush}} # it is hush\n");
    assert_eq!(parse_text(&shown).unwrap(), json!({"name": "a", "data": {"secrets": {"x": MASK}}}));
    assert!(!shown.contains("hush"), "{shown}");
    assert_eq!((masked_text(""), masked_text("{").as_str()), (String::new(), MASK));
}

#[test]
fn masks_are_found_and_become_what_they_stood_for() {
    let source =
        json!({"environment": {"environment_variables": {"cpu": ["A_KEY=1", "A_KEY=2"], "cuda": ["B_KEY=3"]}}});
    let config = json!({"environment": {"environment_variables":
        [format!("A_KEY={MASK}"), format!("A_KEY={MASK}"), format!("B_KEY={MASK}"), format!("C_KEY={MASK}")]}});
    let back = restored(config, &source);
    let variables = &back["environment"]["environment_variables"];
    assert_eq!(*variables, json!(["A_KEY=1", "A_KEY=2", "B_KEY=3", format!("C_KEY={MASK}")]));
    assert_eq!(masks(&back), ["environment.environment_variables.C_KEY"]);
    let elsewhere = json!({"checkpoint_storage": {"secret_key": MASK}, "data": {"secrets": [MASK]}});
    assert_eq!(masks(&elsewhere), ["checkpoint_storage.secret_key", "data.secrets[0]"]);
    assert_eq!(restored(elsewhere.clone(), &source), elsewhere);
    assert_eq!(restored(elsewhere.clone(), &json!(7)), elsewhere);
}

#[test]
fn what_is_written_out_is_masked() {
    let config = Configuration::from(json!({"data": {"password": "hunter2"}}));
    let text = ConfigurationText::from("data: {password: hunter2}".to_owned());
    for shown in
        [serde_json::to_string(&config).unwrap(), serde_json::to_string(&text).unwrap(), format!("{config:?}{text:?}")]
    {
        assert!(shown.contains(MASK) && !shown.contains("hunter2"), "{shown}");
    }
    assert_eq!(config["data"]["password"], json!("hunter2"));
    assert!(text.into_text().contains("hunter2"));
}

fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[A-C]_(KEY|TOKEN|X)=[a-c]{0,3}".prop_map(Value::from),
        "[a-z]{1,5}://[a-z:@]{0,9}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("environment"),
        Just("environment_variables"),
        Just("cpu"),
        Just("cuda"),
        Just("registry_auth"),
        Just("data"),
        Just("secrets"),
        Just("checkpoint_storage"),
        Just("secret_key"),
        Just("api_token"),
        Just("name"),
        Just("value"),
        Just("other"),
    ];
    scalar.prop_recursive(5, 60, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_masked_configuration_comes_back_whole(config in any_value()) {
        let shown = masked(config.clone());
        prop_assert_eq!(masked(shown.clone()), shown.clone());
        prop_assert_eq!(restored(shown, &config), config);
    }

    #[test]
    fn restoring_from_anything_leaves_only_masks_and_values(config in any_value(), source in any_value()) {
        let _ = masks(&restored(config, &source));
    }

    #[test]
    fn any_text_is_masked_without_a_panic(text in "\\PC{0,60}", name in "\\PC{0,20}") {
        let _ = (masked_text(&text), is_secret_name(&name), is_secret_text(&text));
    }
}

#[test]
fn the_names_of_kubernetes_secrets_are_shown() {
    let names = json!([{"name": "registry"}]);
    let pod = json!({"environment": {"pod_spec": {"spec": {"imagePullSecrets": names, "clientSecret": "hidden"}}}});
    let spec = &masked(pod)["environment"]["pod_spec"]["spec"];
    assert_eq!((&spec["imagePullSecrets"], &spec["clientSecret"]), (&names, &json!(MASK)));
}
