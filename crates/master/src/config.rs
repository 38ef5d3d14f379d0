//! Experiment configurations: YAML in, with defaults filled in out.
//!
//! What a detached experiment may say is checked here and nowhere else; behind this the configuration is right.

use serde_json::{Map, Value, json};

/// A configuration that has been checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExperimentConfig {
    pub name: String,
    pub description: String,
    pub labels: Vec<String>,
    /// Workspace and project, by name.
    pub project: Option<(String, String)>,
    pub searcher_name: String,
    pub searcher_metric: String,
    pub smaller_is_better: bool,
    /// Everything, defaults filled in.
    pub full: Value,
}

/// The fields that a configuration may have.
const FIELDS: &[&str] = &[
    "bind_mounts",
    "checkpoint_policy",
    "checkpoint_storage",
    "data",
    "data_layer",
    "debug",
    "description",
    "entrypoint",
    "environment",
    "hyperparameters",
    "integrations",
    "internal",
    "labels",
    "log_policies",
    "max_restarts",
    "min_checkpoint_period",
    "min_validation_period",
    "name",
    "optimizations",
    "pbs",
    "perform_initial_validation",
    "preemption_timeout",
    "profiling",
    "project",
    "records_per_epoch",
    "reproducibility",
    "resources",
    "retention_policy",
    "scheduling_unit",
    "searcher",
    "security",
    "slurm",
    "tensorboard_storage",
    "workspace",
];

impl ExperimentConfig {
    /// Reads a configuration; `name` is what an experiment is called that does not say. The error is a sentence for
    /// its author.
    pub(crate) fn parse(text: &str, name: &str) -> Result<ExperimentConfig, String> {
        let value: Value =
            serde_saphyr::from_str(text).map_err(|error| format!("invalid experiment configuration: {error}"))?;
        let Value::Object(mut fields) = value else {
            return Err("invalid experiment configuration: it must be a map of fields".to_owned());
        };
        fields.retain(|_, value| !value.is_null());
        if let Some(unknown) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            return Err(format!("invalid experiment configuration: unknown field `{unknown}`"));
        }
        let name = text_field(&fields, "name")?.unwrap_or_else(|| name.to_owned());
        let description = text_field(&fields, "description")?.unwrap_or_default();
        let labels = labels(fields.get("labels"))?;
        let project = project(&fields)?;
        let searcher = searcher(fields.get("searcher"))?;
        let storage = fields.get("checkpoint_storage").cloned();
        let result = ExperimentConfig {
            searcher_name: searcher["name"].as_str().unwrap_or_default().to_owned(),
            searcher_metric: searcher["metric"].as_str().unwrap_or_default().to_owned(),
            smaller_is_better: searcher["smaller_is_better"] != Value::Bool(false),
            name,
            description,
            labels,
            project,
            full: Value::Null,
        };
        let full = with_defaults(fields, &result, searcher, storage)?;
        Ok(ExperimentConfig { full, ..result })
    }
}

fn with_defaults(
    mut fields: Map<String, Value>,
    config: &ExperimentConfig,
    searcher: Value,
    storage: Option<Value>,
) -> Result<Value, String> {
    fields.insert("name".into(), config.name.clone().into());
    fields.insert("labels".into(), config.labels.clone().into());
    fields.insert("searcher".into(), searcher);
    if let Some(storage) = storage {
        let Value::Object(mut storage) = storage else {
            return Err("invalid experiment configuration: `checkpoint_storage` must be a map".to_owned());
        };
        for (key, value) in [("save_experiment_best", 0), ("save_trial_best", 1), ("save_trial_latest", 1)] {
            storage.entry(key).or_insert_with(|| value.into());
        }
        fields.insert("checkpoint_storage".into(), Value::Object(storage));
    }
    for (key, value) in [
        ("data", json!({})),
        ("debug", json!(false)),
        ("description", json!(null)),
        ("entrypoint", json!(null)),
        ("hyperparameters", json!({})),
        ("max_restarts", json!(5)),
        ("checkpoint_storage", json!(null)),
        ("checkpoint_policy", json!("best")),
        ("environment", json!({"environment_variables": []})),
        ("resources", json!({"slots_per_trial": 1, "resource_pool": "", "priority": null, "weight": 1})),
        ("project", json!("")),
        ("workspace", json!("")),
    ] {
        fields.entry(key).or_insert(value);
    }
    Ok(Value::Object(fields))
}

fn text_field(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        // A name such as `12` is a number in YAML, and a name all the same.
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(format!("invalid experiment configuration: `{name}` must be text")),
    }
}

fn labels(value: Option<&Value>) -> Result<Vec<String>, String> {
    let wrong = || "invalid experiment configuration: `labels` must be a list of words".to_owned();
    let mut labels: Vec<String> = match value {
        None => Vec::new(),
        Some(Value::Array(words)) => {
            words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        Some(Value::Object(words)) => words.keys().cloned().collect(),
        Some(_) => return Err(wrong()),
    };
    labels.sort();
    labels.dedup();
    Ok(labels)
}

fn project(fields: &Map<String, Value>) -> Result<Option<(String, String)>, String> {
    let named = |name| text_field(fields, name).map(|text| text.filter(|text| !text.is_empty()));
    match (named("workspace")?, named("project")?) {
        (Some(workspace), Some(project)) => Ok(Some((workspace, project))),
        (None, None) => Ok(None),
        _ => Err("workspace and project must both be set or both be left out".to_owned()),
    }
}

fn searcher(value: Option<&Value>) -> Result<Value, String> {
    let Some(Value::Object(searcher)) = value else {
        return Err("invalid experiment configuration: `searcher` must be a map with `name` and `metric`".to_owned());
    };
    let mut searcher = searcher.clone();
    searcher.retain(|_, value| !value.is_null());
    for field in ["name", "metric"] {
        if !searcher.get(field).is_some_and(Value::is_string) {
            return Err(format!("invalid experiment configuration: `searcher.{field}` must be text"));
        }
    }
    let smaller = searcher.entry("smaller_is_better").or_insert(Value::Bool(true));
    if !smaller.is_boolean() {
        return Err("invalid experiment configuration: `searcher.smaller_is_better` must be true or false".to_owned());
    }
    Ok(Value::Object(searcher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_detached_client_sends_is_understood() {
        let text = "checkpoint_storage: {type: directory, container_path: /tmp/x}\ndata: null\ndescription: null\n\
                    labels: null\nname: unmanaged-1\nproject: null\nsearcher: {metric: loss, name: single}\n\
                    workspace: null\n";
        let config = ExperimentConfig::parse(text, "nameless").unwrap();
        assert_eq!((config.name.as_str(), config.project.clone()), ("unmanaged-1", None));
        assert_eq!((config.searcher_metric.as_str(), config.smaller_is_better), ("loss", true));
        let storage = json!({"type": "directory", "container_path": "/tmp/x", "save_experiment_best": 0,
                             "save_trial_best": 1, "save_trial_latest": 1});
        assert_eq!(config.full["checkpoint_storage"], storage);
        assert_eq!(config.full["data"], json!({}));
    }

    #[test]
    fn wrong_configurations_are_explained() {
        let cases = [
            ("[", "invalid experiment configuration: "),
            ("7", "it must be a map"),
            ("nam: x", "unknown field `nam`"),
            ("searcher: {name: single}", "`searcher.metric` must be text"),
            ("name: x", "`searcher` must be a map"),
            ("{searcher: {name: single, metric: x}, workspace: w}", "both be set"),
            ("{searcher: {name: single, metric: x}, labels: 7}", "`labels` must be"),
            ("{searcher: {name: single, metric: x}, name: [1]}", "`name` must be text"),
            ("{searcher: {name: single, metric: x, smaller_is_better: 1}}", "true or false"),
        ];
        for (text, part) in cases {
            let error = ExperimentConfig::parse(text, "nameless").unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
