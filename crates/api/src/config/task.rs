//! The configuration of a single task: a command, or a service such as a TensorBoard.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::reader::{Fields, Mistakes, kind};
use super::{BindMount, ConfigError, Entrypoint, Environment, Resources, SlurmSection, bind_mounts, merge};
use crate::wire::span;

/// A configuration that has been checked, defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TaskConfig {
    pub description: Option<String>,
    /// Empty where the kind of task says what runs.
    pub entrypoint: Option<Entrypoint>,
    #[serde(skip)]
    pub slots: u32,
    pub resources: Resources,
    pub environment: Environment,
    pub bind_mounts: Vec<BindMount>,
    /// Further words for TensorBoard's command line.
    pub tensorboard_args: Vec<String>,
    /// How long a service is kept that nobody uses.
    #[serde(serialize_with = "seconds")]
    pub idle_timeout: Option<Duration>,
    pub debug: bool,
    #[serde(serialize_with = "null_if_empty")]
    pub slurm: SlurmSection,
    /// Sections that are accepted and handed on as they are.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What lies under the user's configuration.
#[derive(Debug, Clone, Default)]
pub struct TaskSources {
    /// Whether it must say what runs.
    pub needs_entrypoint: bool,
    /// The slots of a task that does not say.
    pub slots: u32,
    /// A template, as a configuration; what it says about experiments only is passed over.
    pub template: Option<Value>,
    /// What the master says for everything that it runs, as a configuration; read as a template is.
    pub defaults: Option<Value>,
}

/// What a template may say about tasks and experiments alike.
const SHARED: &[&str] = &["description", "entrypoint", "resources", "environment", "bind_mounts", "debug"];
/// What a template may say about tasks alone.
const OWN: &[&str] = &["idle_timeout", "notebook_idle_type", "tensorboard_args", "work_dir"];
/// Sections without a meaning here.
const OTHERS: &[&str] = &["notebook_idle_type", "pbs", "work_dir"];

impl TaskConfig {
    /// Reads a configuration.
    pub fn from_value(value: Value, sources: &TaskSources) -> Result<TaskConfig, Vec<ConfigError>> {
        let mistakes = Mistakes::default();
        let template = sources.template.clone().map(|template| without_place(shared(template)));
        let layers = template.into_iter().chain(sources.defaults.clone().map(shared));
        let fields = Fields::of("", layers.fold(value, merge::merge), &mistakes);
        let config = read(fields, sources);
        mistakes.into_result()?;
        Ok(config)
    }

    /// The whole configuration in Determined's shape; it reads back as the same one.
    pub fn to_json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_else(|error| unreachable!("all keys are texts: {error}"));
        if let Some(resources) = value["resources"].as_object_mut() {
            resources.remove("slots_per_trial");
            resources.insert("slots".to_owned(), json!(self.slots));
        }
        value
    }
}

/// The part of a template that is about tasks.
fn shared(template: Value) -> Value {
    let Value::Object(fields) = template else { return json!({}) };
    let mut fields: Map<String, Value> =
        fields.into_iter().filter(|(name, _)| SHARED.iter().chain(OWN).any(|known| known == name)).collect();
    if let Some(resources) = fields.get_mut("resources").and_then(Value::as_object_mut) {
        resources.remove("slots_per_trial");
    }
    Value::Object(fields)
}

/// As Determined has it, a task's slots and pool are those of its own configuration, whatever its template says.
fn without_place(mut template: Value) -> Value {
    if let Some(resources) = template.get_mut("resources").and_then(Value::as_object_mut) {
        resources.retain(|name, _| !["slots", "resource_pool"].contains(&name.as_str()));
    }
    template
}

/// The part of a template that is about experiments.
pub(super) fn without_tasks(mut template: Value) -> Value {
    if let Some(fields) = template.as_object_mut() {
        fields.retain(|name, _| !OWN.contains(&name.as_str()));
    }
    if let Some(resources) = template.get_mut("resources").and_then(Value::as_object_mut) {
        resources.remove("slots");
    }
    template
}

fn read(mut fields: Fields<'_>, sources: &TaskSources) -> TaskConfig {
    let entrypoint = super::entrypoint(&mut fields, sources.needs_entrypoint);
    let mut resources = fields.section("resources");
    if resources.has("slots_per_trial") {
        resources.wrong("slots_per_trial", "belongs to experiments: a single task uses slots");
        resources.take("slots_per_trial");
    }
    let slots = resources.count("slots", 0).unwrap_or(sources.slots);
    let config = TaskConfig {
        description: fields.text("description"),
        entrypoint,
        slots,
        resources: Resources::read(resources),
        environment: Environment::read(fields.section("environment")),
        bind_mounts: bind_mounts(&mut fields),
        tensorboard_args: fields.texts("tensorboard_args"),
        idle_timeout: duration(&mut fields, "idle_timeout"),
        debug: fields.flag("debug").unwrap_or(false),
        slurm: SlurmSection::read(fields.section("slurm")),
        others: OTHERS.iter().map(|name| ((*name).to_owned(), fields.take(name).unwrap_or(Value::Null))).collect(),
    };
    fields.finish();
    config
}

fn null_if_empty<S: Serializer>(section: &SlurmSection, serializer: S) -> Result<S::Ok, S::Error> {
    Some(section).filter(|section| !section.is_empty()).serialize(serializer)
}

fn duration(fields: &mut Fields<'_>, name: &'static str) -> Option<Duration> {
    let value = fields.take(name)?;
    let found = match &value {
        Value::Number(number) => number.as_u64().map(Duration::from_secs),
        Value::String(text) => span(text),
        _ => None,
    };
    if found.is_none() {
        fields.wrong(name, format!("must be a time such as 300, 90s or 1h30m, not {}", kind(&value)));
    }
    found
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command() -> TaskSources {
        TaskSources { needs_entrypoint: true, slots: 1, ..TaskSources::default() }
    }

    #[test]
    fn a_command_gets_one_slot_unless_it_says_otherwise() {
        let config = TaskConfig::from_value(json!({"entrypoint": ["sleep", 1]}), &command()).unwrap();
        assert_eq!((config.slots, config.resources.priority), (1, None));
        assert_eq!(config.entrypoint, Some(Entrypoint::Words(vec!["sleep".to_owned(), "1".to_owned()])));
        let shown = config.to_json();
        assert_eq!((&shown["resources"]["slots"], &shown["idle_timeout"]), (&json!(1), &Value::Null));
        assert!(shown["resources"].get("slots_per_trial").is_none());
        let none = json!({"entrypoint": "true", "resources": {"slots": 0, "priority": 7}, "idle_timeout": "1h30m"});
        let config = TaskConfig::from_value(none, &command()).unwrap();
        assert_eq!((config.slots, config.idle_timeout), (0, Some(Duration::from_secs(5400))));
        assert_eq!(TaskConfig::from_value(config.to_json(), &command()).unwrap(), config);
    }

    #[test]
    fn templates_of_experiments_lend_what_tasks_have() {
        let template = json!({
            "max_restarts": 3, "resources": {"slots_per_trial": 8, "slots": 2, "resource_pool": "big", "priority": 9}, "idle_timeout": "1m",
            "environment": {"environment_variables": ["A=1"]},
        });
        let sources = TaskSources { template: Some(template), ..command() };
        let config = TaskConfig::from_value(json!({"entrypoint": "true"}), &sources).unwrap();
        assert_eq!((config.slots, config.resources.priority), (1, Some(9)), "slots are the task's own");
        assert_eq!(config.idle_timeout, Some(Duration::from_secs(60)));
        assert_eq!(config.environment.environment_variables.cpu, ["A=1"]);
        assert_eq!(config.resources.resource_pool, "", "the pool is the task's own");
        let asked = json!({"entrypoint": "true", "resources": {"slots": 3, "resource_pool": "small"}});
        let config = TaskConfig::from_value(asked, &sources).unwrap();
        assert_eq!((config.slots, config.resources.resource_pool.as_str()), (3, "small"));
    }

    #[test]
    fn ports_that_others_reach_read_back() {
        let ports = json!([{"proxy_port": 8080.0}, {"proxy_port": 22, "proxy_tcp": true, "unauthenticated": null}]);
        let value = json!({"entrypoint": "true", "environment": {"proxy_ports": ports}});
        let config = TaskConfig::from_value(value, &command()).unwrap();
        let found: Vec<(u16, bool)> =
            config.environment.proxy_ports.iter().map(|port| (port.proxy_port, port.proxy_tcp)).collect();
        assert_eq!(found, [(8080, false), (22, true)]);
        assert_eq!(TaskConfig::from_value(config.to_json(), &command()).unwrap(), config);
    }

    #[test]
    fn mistakes_have_their_paths() {
        let cases = [
            (json!({}), "entrypoint: is needed"),
            (json!({"entrypoint": "a", "resource": {}}), "did you mean `resources`"),
            (json!({"entrypoint": "a", "resources": {"slots_per_trial": 1}}), "a single task uses slots"),
            (json!({"entrypoint": "a", "resources": {"slots": -1}}), "resources.slots: must be at least 0"),
            (json!({"entrypoint": "a", "idle_timeout": "soon"}), "idle_timeout: must be a time"),
            (json!(7), "must be a map"),
            (
                json!({"entrypoint": "a", "environment": {"proxy_ports": [{}]}}),
                "proxy_ports[0].proxy_port: must be a port",
            ),
            (
                json!({"entrypoint": "a", "environment": {"proxy_ports": [{"proxy_port": 70000}]}}),
                "proxy_ports[0].proxy_port: must be a port",
            ),
            (
                json!({"entrypoint": "a", "environment": {"proxy_ports": [{"proxy_port": 1}, {"proxy_port": 1}]}}),
                "port 1 is there twice",
            ),
            (
                json!({"entrypoint": "a", "environment": {"proxy_ports": [
                    {"proxy_port": 1, "default_service_id": true}, {"proxy_port": 2, "default_service_id": true}]}}),
                "proxy_ports[1].default_service_id: another port",
            ),
            (
                json!({"entrypoint": "a", "environment": {"proxy_ports": [{"proxy_port": 1, "proxy_udp": true}]}}),
                "did you mean `proxy_tcp`",
            ),
        ];
        for (value, part) in cases {
            let errors = TaskConfig::from_value(value.clone(), &command()).unwrap_err();
            assert!(errors.iter().any(|error| error.to_string().contains(part)), "{value}: {errors:?}");
        }
    }

    proptest! {
        #[test]
        fn any_time_is_read_or_refused(text in "[0-9hms é.-]{0,12}") {
            let _ = span(&text);
        }
    }
}
