//! Configurations as people write them, wrong ones, and any value at all.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Entrypoint, ExperimentConfig, Method, SearchLength, Sources, merge, parse_text};

fn sources() -> Sources {
    Sources { name: "nameless".to_owned(), seed: 7, ..Sources::default() }
}

fn managed() -> Sources {
    let defaults = json!({"checkpoint_storage": {"type": "directory", "container_path": "/checkpoints"}});
    Sources { managed: true, defaults: Some(defaults), ..sources() }
}

fn read(text: &str) -> ExperimentConfig {
    ExperimentConfig::parse(text, &managed()).unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

/// The mistakes in a configuration, as people see them.
fn mistakes(text: &str) -> Vec<String> {
    let errors = ExperimentConfig::parse(text, &managed()).expect_err(text);
    errors.iter().map(ToString::to_string).collect()
}

/// A small configuration that is right, with these lines added.
fn with(more: &str) -> String {
    format!("entrypoint: python3 train.py\nsearcher: {{name: single, metric: loss}}\n{more}\n")
}

#[test]
fn a_small_configuration_gets_every_default() {
    let config = read(&with(""));
    assert_eq!(config.entrypoint, Some(Entrypoint::Line("python3 train.py".to_owned())));
    let whole = json!({
        "name": "nameless",
        "description": null,
        "labels": [],
        "workspace": "",
        "project": "",
        "entrypoint": "python3 train.py",
        "data": {},
        "debug": false,
        "hyperparameters": {},
        "searcher": {"name": "single", "metric": "loss", "smaller_is_better": true, "source_trial_id": null,
                     "source_checkpoint_uuid": null},
        "max_restarts": 5,
        "resources": {"slots_per_trial": 1, "resource_pool": "", "priority": null, "weight": 1.0, "max_slots": null,
                      "is_single_node": null, "shm_size": null, "devices": [], "native_parallel": false},
        "checkpoint_storage": {"type": "directory", "container_path": "/checkpoints", "save_experiment_best": 0,
                               "save_trial_best": 1, "save_trial_latest": 1},
        "checkpoint_policy": "best",
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
        "perform_initial_validation": false,
        "records_per_epoch": 0,
        "scheduling_unit": 100,
        "environment": {"image": {"cpu": "determinedai/pytorch-ngc-dev:0736b6d",
                                  "cuda": "determinedai/pytorch-ngc-dev:0736b6d",
                                  "rocm": "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d"},
                        "environment_variables": {"cpu": [], "cuda": [], "rocm": []},
                        "ports": {}, "proxy_ports": [], "force_pull_image": false, "registry_auth": null,
                        "add_capabilities": [], "drop_capabilities": [], "pod_spec": null,
                        "secrets": {}, "secret_files": {}},
        "bind_mounts": [],
        "reproducibility": {"experiment_seed": 7},
        "profiling": {"enabled": false, "begin_on_batch": 0, "end_after_batch": null, "sync_timings": true},
        "optimizations": {"aggregation_frequency": 1, "auto_tune_tensor_fusion": false,
                          "average_aggregated_gradients": true, "average_training_metrics": true,
                          "grad_updates_size_file": null, "gradient_compression": false, "mixed_precision": "O0",
                          "tensor_fusion_cycle_time": 1, "tensor_fusion_threshold": 64},
        "log_policies": [{"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": null},
                         {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": null}],
        "preemption_timeout": 3600,
        "retention_policy": {"log_retention_days": null},
        "data_layer": null, "integrations": null, "internal": null, "pbs": {}, "security": null, "slurm": {},
        "tensorboard_storage": null,
    });
    assert_eq!(config.to_json(), whole);
}

#[test]
fn null_is_the_same_as_absent() {
    let nulls = whole_with_nulls(&read(&with("")).to_json());
    let text = json!({"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss"}});
    let text = merge(text, nulls).to_string();
    assert_eq!(read(&text), read(&with("")));
}

/// The same keys, all of them null.
fn whole_with_nulls(value: &Value) -> Value {
    value.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect()
}

#[test]
fn hyperparameters_have_many_forms() {
    let config = read(&with(
        "hyperparameters:\n  batch: 64\n  widths: [1, 2]\n  fixed: {type: const, val: {a: 1}}\n  \
         n: {type: int, minval: 1, maxval: 8}\n  lr: {type: log, minval: -4, maxval: -1, base: 10, count: 3}\n  \
         m: {type: double, minval: 0.5, maxval: 1}\n  c: {type: categorical, vals: [a, 2, null]}\n  \
         nothing: null\n  group: {inner: {type: int, minval: 0, maxval: 3.0}, empty: {}}",
    ));
    let whole = json!({
        "batch": {"type": "const", "val": 64},
        "widths": {"type": "const", "val": [1, 2]},
        "fixed": {"type": "const", "val": {"a": 1}},
        "n": {"type": "int", "minval": 1, "maxval": 8, "count": null},
        "lr": {"type": "log", "minval": -4.0, "maxval": -1.0, "base": 10.0, "count": 3},
        "m": {"type": "double", "minval": 0.5, "maxval": 1.0, "count": null},
        "c": {"type": "categorical", "vals": ["a", 2, null]},
        "nothing": {"type": "const", "val": null},
        "group": {"inner": {"type": "int", "minval": 0, "maxval": 3, "count": null}, "empty": {}},
    });
    assert_eq!(config.to_json()["hyperparameters"], whole);
}

#[test]
fn searchers_get_their_defaults() {
    let json = |searcher: &str| {
        read(&format!("entrypoint: x\nsearcher: {{metric: m, {searcher}}}")).to_json()["searcher"].clone()
    };
    let asha = json("name: adaptive_asha, max_trials: 10, time_metric: batches, max_time: 100");
    assert_eq!(
        asha,
        json!({"name": "adaptive_asha", "metric": "m", "smaller_is_better": true, "source_trial_id": null,
               "source_checkpoint_uuid": null, "max_trials": 10, "max_time": 100, "time_metric": "batches",
               "mode": "standard", "divisor": 4.0, "max_rungs": 5, "max_concurrent_trials": 16, "bracket_rungs": [],
               "stop_once": false})
    );
    let halving = json("name: async_halving, num_rungs: 3, max_trials: 9, time_metric: t, max_time: 9, divisor: 3");
    assert_eq!((&halving["divisor"], &halving["max_concurrent_trials"]), (&json!(3.0), &json!(16)));
    assert_eq!(json("name: random, max_trials: 3")["max_concurrent_trials"], 16);
    assert_eq!(json("name: grid, max_concurrent_trials: 0")["max_concurrent_trials"], 0);
    assert_eq!(json("name: single, max_length: 100")["max_length"], 100);
    assert_eq!(json("name: single, max_length: {epochs: 2}")["max_length"], json!({"epochs": 2}));
}

#[test]
fn an_older_adaptive_search_counts_steps() {
    let config = read("entrypoint: x\nsearcher: {name: adaptive_asha, metric: m, max_trials: 4, max_length: 100}");
    let span = config.searcher.span().unwrap();
    assert_eq!((span.max_time, span.metric), (100, None));
    assert!(config.warnings[0].contains("deprecated"), "{:?}", config.warnings);
    assert_eq!(config.searcher.max_length, Some(SearchLength::Plain(100)));
    let both = "entrypoint: x\nsearcher: {name: adaptive_asha, metric: m, max_trials: 4, max_length: 100, max_time: 9, \
                time_metric: t}";
    let span = read(both).searcher.span().unwrap();
    assert_eq!((span.max_time, span.metric.as_deref()), (9, Some("t")));
    let epochs = "entrypoint: x\nsearcher: {name: adaptive_asha, metric: m, max_trials: 4, max_length: {epochs: 9}}";
    assert!(mistakes(epochs)[0].starts_with("searcher.max_length: `adaptive_asha` cannot count 9 epochs"));
}

#[test]
fn mistakes_are_told_all_at_once_with_their_paths() {
    let text = "nam: x\nsearcher: {name: random, max_trial: 3}\nresources: {slots: 2, slots_per_trial: -1}\n\
                bind_mounts: [{host_path: data, container_path: /data}]\nmax_restarts: many\n";
    let expected = [
        "entrypoint: is needed: what runs, such as `python3 train.py` or [python3, train.py]",
        "searcher.metric: is needed: the name of the validation metric to judge trials by",
        "searcher.max_trials: is needed: how many trials to run",
        "searcher.max_trial: unknown key; did you mean `max_trials`?",
        "max_restarts: must be a whole number, not the text `many`",
        "resources.slots: additionalProperties \"slots\" not allowed: experiments use slots_per_trial",
        "resources.slots_per_trial: must be at least 0, not -1",
        "bind_mounts[0].host_path: must be an absolute path, not `data`",
        "nam: unknown key; did you mean `name`?",
    ];
    assert_eq!(mistakes(text), expected);
}

#[test]
fn each_mistake_is_explained() {
    let searcher = |text: &str| format!("entrypoint: x\nsearcher: {text}");
    let cases = [
        (searcher("{name: custom, metric: m}"), "the 'custom' searcher has been removed and is not valid for new"),
        (searcher("{name: sync_halving, metric: m}"), "searcher.name: the 'sync_halving' searcher has been removed"),
        (searcher("{name: rando, metric: m}"), "searcher.name: `rando` is not a searcher; did you mean `random`?"),
        (searcher("{metric: m}"), "searcher.name: is needed: one of single"),
        (searcher("single"), "searcher: must be a map of keys, not the text `single`"),
        (
            searcher("{name: adaptive_asha, metric: m, max_trials: 2}"),
            "the `adaptive_asha` searcher requires `max_time` and `time_metric` to be set",
        ),
        (
            searcher("{name: adaptive_asha, metric: m, max_trials: 2, time_metric: t}"),
            "searcher.max_time: the `adaptive_asha` searcher requires",
        ),
        (
            searcher("{name: adaptive_asha, metric: m, max_trials: 2, time_metric: t, max_time: 2, divisor: 1}"),
            "searcher.divisor: must be more than 1, not 1",
        ),
        (
            searcher("{name: grid, metric: m}\nhyperparameters: {g: {n: {type: int, minval: 0, maxval: 4}}}"),
            "hyperparameters.g.n: grid search needs its `count`",
        ),
        (searcher("{name: random, metric: m, max_trials: 0}"), "searcher.max_trials: must be at least 1, not 0"),
        (with("hyperparameters: {n: {type: itn, minval: 0}}"), "hyperparameters.n.type: `itn` is not a kind"),
        (with("hyperparameters: {n: {type: int, minval: 4, maxval: 0}}"), "hyperparameters.n.maxval: must not be less"),
        (with("hyperparameters: {n: {type: int, minval: 0.5, maxval: 2}}"), "n.minval: must be a whole number"),
        (with("hyperparameters: {n: {type: log, minval: 0, maxval: 1}}"), "hyperparameters.n.base: is needed"),
        (with("hyperparameters: {n: {type: categorical, vals: []}}"), "hyperparameters.n.vals: must be a list"),
        (with("checkpoint_storage: {type: directory, path: /x}"), "checkpoint_storage.path: unknown key"),
        (with("checkpoint_storage: {type: sharedfs}"), "did you mean `shared_fs`?"),
        (
            with("checkpoint_storage: {type: shared_fs, host_path: /x, storage_path: ../y}"),
            "checkpoint_storage.storage_path: must be inside host_path",
        ),
        (with("checkpoint_storage: {type: azure, container: c}"), "exactly one of connection_string and account_url"),
        (with("log_policies: [{name: a}, {name: a}]"), "log_policies[1]: the name `a` is given twice"),
        (with("resources: {shm_size: 1.gb}"), "resources.shm_size: must be a number of bytes or a size"),
        (with("environment: {pod_spec: {name: p}}"), "environment.pod_spec.name: is not configurable"),
        (
            with("environment: {pod_spec: {spec: {containers: [{name: determined-container, image: i}]}}}"),
            "environment.pod_spec.spec.containers[0].image: is not configurable",
        ),
        (with("log_policies: [{pattern: x}]"), "log_policies[0].name: is needed"),
        (with("log_policies: [{name: x, action: explode}]"), "must be cancel_retries or exclude_node"),
        (with("resources: {priority: 100}"), "resources.priority: must be at most 99, not 100"),
        (with("resources: {shm_size: 4 apples}"), "resources.shm_size: must be a number of bytes"),
        (with("environment: {environment_variables: [=x]}"), "environment_variables[0]: must be NAME=VALUE"),
        (with("environment: {ports: {a: 70000}}"), "environment.ports.a: must be a port"),
        (with("workspace: w"), "project: workspace and project must both be set or both be left out"),
        (with("labels: 7"), "labels: must be a list of words, not 7"),
        (with("min_validation_period: {batches: 1, epochs: 2}"), "min_validation_period: must be one of `batches`"),
        (with("retention_policy: {log_retention_days: 99999}"), "must be at most 32767"),
        (with("debug: 1"), "debug: must be true or false, not 1"),
        (with("data: 1"), "data: must be a map, not 1"),
        (with("name: x\nname: y"), "it is not YAML: "),
        ("[".to_owned(), "it is not YAML: "),
        (aliases_of_aliases(), "it is not YAML: "),
        ("7".to_owned(), "a configuration must be a map of keys, not 7"),
        (String::new(), "a configuration must be a map of keys, not nothing"),
        ("searcher: {name: single, metric: m}\nentrypoint: [1, {}]".to_owned(), "entrypoint[1]: must be text"),
    ];
    for (text, part) in cases {
        let found = mistakes(&text);
        assert!(found.iter().any(|mistake| mistake.contains(part)), "{text}: {found:?}");
    }
}

#[test]
fn an_experiment_that_runs_elsewhere_needs_no_entrypoint_and_no_storage() {
    let config = ExperimentConfig::parse("searcher: {name: single, metric: loss}", &sources()).unwrap();
    assert_eq!((config.entrypoint, config.checkpoint_storage), (None, None));
}

#[test]
fn the_user_wins_over_the_template_over_the_workspace_over_the_master() {
    let sources = Sources {
        template: Some(json!({"max_restarts": 2, "description": "of the template", "data": {"a": 1, "b": {"c": 2}}})),
        workspace_storage: Some(json!({"type": "shared_fs", "host_path": "/workspace", "save_trial_best": 4})),
        defaults: Some(json!({
            "max_restarts": 9, "preemption_timeout": 60,
            "checkpoint_storage": {"type": "directory", "container_path": "/master", "save_trial_latest": 3},
        })),
        ..managed()
    };
    let config = ExperimentConfig::parse(&with("description: mine\ndata: {b: {d: 3}}"), &sources).unwrap();
    assert_eq!((config.description.as_deref(), config.max_restarts), (Some("mine"), 2));
    assert_eq!(config.preemption_timeout, 60);
    assert_eq!(Value::Object(config.data.clone()), json!({"a": 1, "b": {"c": 2, "d": 3}}));
    let storage = json!({"type": "shared_fs", "host_path": "/workspace", "save_experiment_best": 0,
                         "save_trial_best": 4, "save_trial_latest": 3});
    assert_eq!(config.to_json()["checkpoint_storage"], storage);
}

#[test]
fn sections_are_merged_each_in_its_way() {
    let merged = |upper: &str, lower: &str| merge(parse_text(upper).unwrap(), parse_text(lower).unwrap());
    let cases = [
        ("{labels: [a]}", "{labels: [b]}", json!({"labels": ["a"]})),
        ("{name: null}", "{name: x}", json!({"name": "x"})),
        (
            "{bind_mounts: [{host_path: /1, container_path: /a}]}",
            "{bind_mounts: [{host_path: /2, container_path: /b}, {host_path: /3, container_path: /a}]}",
            json!({"bind_mounts": [{"host_path": "/1", "container_path": "/a"},
                                   {"host_path": "/2", "container_path": "/b"}]}),
        ),
        (
            "{resources: {devices: ['/1:/a']}}",
            "{resources: {devices: [{host_path: /3, container_path: /a}], weight: 2}}",
            json!({"resources": {"devices": [{"host_path": "/1", "container_path": "/a"}], "weight": 2}}),
        ),
        (
            "{environment: {environment_variables: [A=1]}}",
            "{environment: {environment_variables: {cpu: [A=0], cuda: [B=2]}}}",
            json!({"environment": {"environment_variables": {
                "cpu": ["A=0", "A=1"], "cuda": ["B=2", "A=1"], "rocm": ["A=1"]}}}),
        ),
        (
            "{environment: {image: {cpu: mine}}}",
            "{environment: {image: theirs}}",
            json!({"environment": {"image": {"cpu": "mine", "cuda": "theirs", "rocm": "theirs"}}}),
        ),
        (
            "{log_policies: [{name: a, pattern: null}]}",
            "{log_policies: [{name: a, pattern: x}, {name: b, pattern: z}]}",
            json!({"log_policies": [{"name": "a", "pattern": null}, {"name": "b", "pattern": "z"}]}),
        ),
        (
            "{hyperparameters: {n: {type: int, maxval: 4}, c: 1, g: {x: 1}}}",
            "{hyperparameters: {n: {type: int, minval: 0, maxval: 9}, c: {type: int, minval: 0}, g: {z: 2}}}",
            json!({"hyperparameters": {"n": {"type": "int", "maxval": 4}, "c": 1, "g": {"x": 1, "z": 2}}}),
        ),
        (
            "{hyperparameters: {n: null}}",
            "{hyperparameters: {n: {x: 1}, m: 1}}",
            json!({"hyperparameters": {"n": null, "m": 1}}),
        ),
        (
            "{log_policies: [{pattern: x, action: {type: exclude_node}}]}",
            "{log_policies: [{pattern: x, action: exclude_node}, {pattern: x, action: cancel_retries}]}",
            json!({"log_policies": [{"pattern": "x", "action": "exclude_node"},
                                    {"pattern": "x", "action": "cancel_retries"}]}),
        ),
        (
            "{searcher: {name: single}}",
            "{searcher: {name: random, max_trials: 4, metric: m}}",
            json!({"searcher": {"name": "single", "metric": "m"}}),
        ),
        (
            "{searcher: {max_trials: 2}}",
            "{searcher: {name: random, max_trials: 4}}",
            json!({"searcher": {"name": "random", "max_trials": 2}}),
        ),
        (
            "{min_validation_period: {epochs: 1}}",
            "{min_validation_period: {batches: 3}}",
            json!({"min_validation_period": {"epochs": 1}}),
        ),
    ];
    for (upper, lower, expected) in cases {
        assert_eq!(merged(upper, lower), expected, "{upper} over {lower}");
    }
}

#[test]
fn a_built_in_policy_can_be_turned_off() {
    let config = read(&with("log_policies: [{name: CUDA OOM}, {name: mine, pattern: x, action: exclude_node}]"));
    let shown: Vec<(Option<&str>, bool)> =
        config.log_policies.iter().map(|policy| (policy.name.as_deref(), policy.pattern.is_some())).collect();
    assert_eq!(shown, [(Some("CUDA OOM"), false), (Some("mine"), true), (Some("ECC Error"), true)]);
    let action = &config.to_json()["log_policies"][1]["action"];
    assert_eq!(*action, "exclude_node");
}

#[test]
fn a_search_is_told_what_it_needs() {
    let config = read("entrypoint: x\nsearcher: {name: random, metric: m, max_trials: 3, max_concurrent_trials: 0}");
    assert_eq!(config.searcher.method, Method::Random { max_trials: 3, max_concurrent_trials: 0 });
    assert_eq!((config.searcher.name(), config.searcher.span()), ("random", None));
}

fn any_value() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "type",
        "name",
        "int",
        "log",
        "double",
        "const",
        "categorical",
        "minval",
        "maxval",
        "base",
        "count",
        "vals",
        "val",
        "random",
        "grid",
        "adaptive_asha",
        "async_halving",
        "single",
        "metric",
        "max_trials",
        "max_time",
        "time_metric",
        "max_length",
        "num_rungs",
        "divisor",
        "directory",
        "shared_fs",
        "host_path",
        "container_path",
        "/x",
        "cpu",
        "batches",
        "epochs",
        "A=1",
        "4g",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..20i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(words.clone(), inner, 0..6)
                .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// Any value at the place of any section.
fn any_config() -> impl Strategy<Value = Value> {
    let names: Vec<String> = read(&with("")).to_json().as_object().unwrap().keys().cloned().collect();
    prop::collection::btree_map(prop::sample::select(names), any_value(), 0..6).prop_map(|sections| {
        let base = json!({"entrypoint": "x", "searcher": {"name": "single", "metric": "m"}});
        let mut config = base.as_object().unwrap().clone();
        config.extend(sections);
        Value::Object(config)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_value_makes_reading_fail_badly_and_what_is_read_reads_back(value in any_config(), under in any_config()) {
        let sources = Sources { template: Some(under), ..managed() };
        if let Ok(config) = ExperimentConfig::from_value(value, &sources) {
            let json = config.to_json();
            let again = ExperimentConfig::parse(&json.to_string(), &managed());
            let again = again.map_err(|errors| TestCaseError::fail(format!("{json}: {errors:?}")))?;
            prop_assert_eq!(again.to_json(), json);
        }
    }

    #[test]
    fn no_text_makes_reading_fail_badly(text in ".{0,60}") {
        let _ = ExperimentConfig::parse(&text, &managed());
    }
}

/// A few hundred bytes that stand for a million words.
fn aliases_of_aliases() -> String {
    let mut text = format!("a0: &a0 [{}]\n", ["x"; 10].join(", "));
    for level in 1..6 {
        text.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(", ")));
    }
    text
}
