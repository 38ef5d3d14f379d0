//! The configuration of an experiment: YAML or JSON in, every field with its default out.
//!
//! [`ExperimentConfig::parse`] lays what the user wrote over a template, a workspace's storage, the master's defaults and
//! the built-in ones, and checks the result; behind it nothing is checked again. All mistakes are told at once, each
//! with the path of its key ([`ConfigError`]). [`ExperimentConfig::to_json`] is the whole configuration in Determined's
//! shape, and reads back as the same configuration.
//!
//! - `reader`: fields taken one by one, mistakes collected.
//! - `merge`: what it means to lay one configuration over another.
//! - `task`: the configuration of a single task, which shares some of the sections.
//! - `secrets`: which values are secret, and what is shown in their place ([`Configuration`]).
//! - one module for each section: [`SearcherConfig`], [`Hyperparameters`], [`Resources`], [`Environment`],
//!   [`CheckpointStorage`], [`LogPolicy`] and what only Determined's Trial classes read.

mod environment;
mod hyperparameters;
mod length;
mod merge;
mod policies;
mod reader;
mod resources;
mod searcher;
mod secrets;
mod slurm;
mod storage;
mod task;
#[cfg(test)]
mod tests;
mod training;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use environment::{ByDevice, Environment, ProxyPort};
pub use hyperparameters::{Hyperparameter, Hyperparameters};
pub use length::{Length, Unit};
pub use policies::{LogAction, LogPolicy};
pub use reader::ConfigError;
use reader::{Fields, Mistakes, kind};
pub use resources::{BindMount, Device, Resources, memory_size};
pub use searcher::{AdaptiveAsha, AsyncHalving, Method, Mode, SearchLength, SearcherConfig, Span, Time};
pub use secrets::{
    Configuration, ConfigurationText, MASK, StorageConfiguration, is_secret_name, masked, masks, restored,
};
pub use slurm::{Giver, SlurmSection, is_gpu_type, sbatch_objection};
pub use storage::{CheckpointStorage, StorageKind};
pub use task::{TaskConfig, TaskSources};
pub use training::{Optimizations, Profiling, Reproducibility, RetentionPolicy};

/// A configuration that has been checked, defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ExperimentConfig {
    pub name: String,
    pub description: Option<String>,
    pub labels: Vec<String>,
    /// Empty, or set together with `project`.
    pub workspace: String,
    pub project: String,
    pub entrypoint: Option<Entrypoint>,
    pub data: Map<String, Value>,
    pub debug: bool,
    pub hyperparameters: Hyperparameters,
    pub searcher: SearcherConfig,
    pub max_restarts: u32,
    pub resources: Resources,
    /// Always set for an experiment that the master runs.
    pub checkpoint_storage: Option<CheckpointStorage>,
    pub checkpoint_policy: String,
    pub min_validation_period: Length,
    pub min_checkpoint_period: Length,
    pub perform_initial_validation: bool,
    pub records_per_epoch: u64,
    pub scheduling_unit: u32,
    pub environment: Environment,
    pub bind_mounts: Vec<BindMount>,
    pub reproducibility: Reproducibility,
    pub profiling: Profiling,
    pub optimizations: Optimizations,
    pub log_policies: Vec<LogPolicy>,
    /// In seconds.
    pub preemption_timeout: u32,
    pub retention_policy: RetentionPolicy,
    pub slurm: SlurmSection,
    /// Sections that are accepted and handed on as they are.
    #[serde(flatten)]
    pub others: Map<String, Value>,
    /// What the author should know, although it is no mistake.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What a trial runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Entrypoint {
    /// A line for the shell.
    Line(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

/// What lies under the user's configuration, and what only the caller can know.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Whether the master is to run the experiment: it then needs an entrypoint and a storage.
    pub managed: bool,
    /// What an experiment is called that does not say.
    pub name: String,
    /// The seed of an experiment that does not say; by custom the time, in seconds since 1970.
    pub seed: u32,
    /// A template, as a configuration.
    pub template: Option<Value>,
    /// The storage of the experiment's workspace: the value of `checkpoint_storage`.
    pub workspace_storage: Option<Value>,
    /// What the master says for all experiments, as a configuration.
    pub defaults: Option<Value>,
}

/// Sections that are accepted and handed on as they are, with what they are if nobody says.
const OTHERS: &[(&str, &str)] = &[
    ("data_layer", "null"),
    ("integrations", "null"),
    ("internal", "null"),
    ("pbs", "{}"),
    ("security", "null"),
    ("tensorboard_storage", "null"),
];

impl ExperimentConfig {
    /// Reads YAML or JSON.
    pub fn parse(text: &str, sources: &Sources) -> Result<ExperimentConfig, Vec<ConfigError>> {
        ExperimentConfig::from_value(parse_text(text)?, sources)
    }

    /// Reads a configuration that is already a value.
    pub fn from_value(value: Value, sources: &Sources) -> Result<ExperimentConfig, Vec<ConfigError>> {
        if !value.is_object() {
            let what = format!("a configuration must be a map of keys, not {}", kind(&value));
            return Err(vec![ConfigError { path: String::new(), what }]);
        }
        let mistakes = Mistakes::default();
        let config = read(Fields::of("", layered(value, sources), &mistakes), sources);
        mistakes.into_result()?;
        Ok(config)
    }

    /// The whole configuration in Determined's shape.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_else(|error| unreachable!("all keys are texts: {error}"))
    }

    /// The workspace and the project by name, if the configuration names them.
    pub fn project_names(&self) -> Option<(&str, &str)> {
        (!self.project.is_empty()).then_some((self.workspace.as_str(), self.project.as_str()))
    }
}

/// Words of YAML that aliases may repeat: a few lines of aliases of aliases stand for billions.
const MOST_REPEATED: usize = 10_000;

/// Reads YAML or JSON without looking at what it says: for templates, which need not be complete. JSON is nearly all
/// YAML, but for characters such as U+007F, which only JSON allows as they are.
pub fn parse_text(text: &str) -> Result<Value, Vec<ConfigError>> {
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    let limits = serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPEATED };
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { alias_limits: limits })
        .map_err(|error| vec![ConfigError { path: String::new(), what: format!("it is not YAML: {error}") }])
}

/// One configuration laid over another, as templates are laid under what users write.
pub fn merge(upper: Value, lower: Value) -> Value {
    merge::merge(upper, lower)
}

fn layered(user: Value, sources: &Sources) -> Value {
    let storage = sources.workspace_storage.clone().map(|storage| merge::only("checkpoint_storage", storage));
    let built_in = merge::only("log_policies", policies::built_in());
    let template = sources.template.clone().map(task::without_tasks);
    [template, storage, sources.defaults.clone(), Some(built_in)].into_iter().flatten().fold(user, merge::merge)
}

fn read(mut fields: Fields<'_>, sources: &Sources) -> ExperimentConfig {
    let mut warnings = Vec::new();
    let mistakes = fields.mistakes();
    let (workspace, project) = project(&mut fields);
    let entrypoint = entrypoint(&mut fields, sources.managed);
    let hyperparameters = fields.map("hyperparameters").unwrap_or_default();
    let hyperparameters = Hyperparameters::read("hyperparameters", hyperparameters, mistakes);
    let searcher = SearcherConfig::read(fields.section("searcher"), &mut warnings);
    if matches!(searcher.method, Method::Grid { .. }) {
        for path in hyperparameters.without_count("hyperparameters") {
            mistakes.add(path, "grid search needs its `count`: how many points to take of it");
        }
    }
    let policy = fields.choice("checkpoint_policy", &["best", "all", "none"]);
    let config = ExperimentConfig {
        name: fields.text("name").unwrap_or_else(|| sources.name.clone()),
        description: fields.text("description"),
        labels: labels(&mut fields),
        workspace,
        project,
        entrypoint,
        data: fields.map("data").unwrap_or_default(),
        debug: fields.flag("debug").unwrap_or(false),
        hyperparameters,
        searcher,
        max_restarts: fields.count("max_restarts", 0).unwrap_or(5),
        resources: Resources::read(fields.section("resources")),
        checkpoint_storage: storage(&mut fields, sources.managed),
        checkpoint_policy: policy.unwrap_or_else(|| "best".to_owned()),
        min_validation_period: period(&mut fields, "min_validation_period"),
        min_checkpoint_period: period(&mut fields, "min_checkpoint_period"),
        perform_initial_validation: fields.flag("perform_initial_validation").unwrap_or(false),
        records_per_epoch: fields.whole("records_per_epoch", 0..=i64::MAX).map_or(0, i64::unsigned_abs),
        scheduling_unit: fields.count("scheduling_unit", 1).unwrap_or(100),
        environment: Environment::read(fields.section("environment")),
        bind_mounts: bind_mounts(&mut fields),
        reproducibility: Reproducibility::read(fields.section("reproducibility"), sources.seed),
        profiling: Profiling::read(fields.section("profiling")),
        optimizations: Optimizations::read(fields.section("optimizations")),
        log_policies: policies::read(&mut fields),
        preemption_timeout: fields.count("preemption_timeout", 0).unwrap_or(3600),
        retention_policy: RetentionPolicy::read(fields.section("retention_policy")),
        slurm: SlurmSection::read(fields.section("slurm")),
        others: others(&mut fields),
        warnings,
    };
    fields.finish();
    config
}

fn project(fields: &mut Fields<'_>) -> (String, String) {
    let workspace = fields.text("workspace").unwrap_or_default();
    let project = fields.text("project").unwrap_or_default();
    if workspace.is_empty() != project.is_empty() {
        let unset = if project.is_empty() { "project" } else { "workspace" };
        fields.wrong(unset, "workspace and project must both be set or both be left out");
    }
    (workspace, project)
}

fn entrypoint(fields: &mut Fields<'_>, managed: bool) -> Option<Entrypoint> {
    let hint = "such as `python3 train.py` or [python3, train.py]";
    let entrypoint = match fields.take("entrypoint") {
        None => None,
        Some(Value::Array(words)) => {
            fields.restore_list("entrypoint", words);
            Some(Entrypoint::Words(fields.texts("entrypoint")))
        }
        Some(Value::String(line)) => Some(Entrypoint::Line(line)),
        Some(other) => {
            fields.wrong("entrypoint", format!("must be a line or a list of words, {hint}, not {}", kind(&other)));
            return None;
        }
    };
    let empty = match &entrypoint {
        None => managed,
        Some(Entrypoint::Line(line)) => line.trim().is_empty(),
        Some(Entrypoint::Words(words)) => words.is_empty(),
    };
    if empty {
        fields.wrong("entrypoint", format!("is needed: what runs, {hint}"));
    }
    entrypoint
}

fn labels(fields: &mut Fields<'_>) -> Vec<String> {
    let mut labels = match fields.take("labels") {
        Some(Value::Object(words)) => words.into_iter().map(|(word, _)| word).collect(),
        Some(Value::Array(words)) => {
            fields.restore_list("labels", words);
            fields.texts("labels")
        }
        Some(other) => {
            fields.wrong("labels", format!("must be a list of words, not {}", kind(&other)));
            Vec::new()
        }
        None => Vec::new(),
    };
    labels.sort();
    labels.dedup();
    labels
}

fn storage(fields: &mut Fields<'_>, managed: bool) -> Option<CheckpointStorage> {
    if fields.has("checkpoint_storage") {
        return Some(CheckpointStorage::read(fields.section("checkpoint_storage")));
    }
    fields.take("checkpoint_storage");
    if managed {
        fields.wrong("checkpoint_storage", "is needed: neither the configuration nor the master sets it");
    }
    None
}

fn period(fields: &mut Fields<'_>, name: &'static str) -> Length {
    let value = fields.take(name);
    value.and_then(|value| Length::read(name, value, fields.mistakes())).unwrap_or(Length::batches(0))
}

fn bind_mounts(fields: &mut Fields<'_>) -> Vec<BindMount> {
    let mistakes = fields.mistakes();
    fields.list("bind_mounts").into_iter().map(|(path, value)| BindMount::read(&path, value, mistakes)).collect()
}

fn others(fields: &mut Fields<'_>) -> Map<String, Value> {
    let one = |(name, default): &(&'static str, &str)| {
        let value = fields.take(name).unwrap_or_else(|| if *default == "null" { Value::Null } else { json!({}) });
        ((*name).to_owned(), value)
    };
    OTHERS.iter().map(one).collect()
}
