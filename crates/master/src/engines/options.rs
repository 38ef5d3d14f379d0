//! The pools whose work an engine runs, as the settings say them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use instep_api::config::{Giver, is_gpu_type, sbatch_objection};
use serde::Deserialize;
use serde_json::Value;

use super::kubernetes::settings::KubernetesSettings;
use crate::names;

/// A pool whose work an engine runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct EnginePool {
    pub pool_name: String,
    #[serde(default)]
    pub description: String,
    pub engine: EngineSettings,
}

/// The engine of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EngineSettings {
    /// Slurm.
    Slurm(SlurmSettings),
    /// Kubernetes.
    Kubernetes(Box<KubernetesSettings>),
}

/// Which engine it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EngineKind {
    Slurm,
    Kubernetes,
}

/// Whose jobs are asked for one after the other: all those of Slurm, which is one cluster; or those of one pool of
/// Kubernetes, so that an API server that does not answer delays no other pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EngineName {
    Slurm,
    Kubernetes { pool: String },
}

impl EngineName {
    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            EngineName::Slurm => EngineKind::Slurm,
            EngineName::Kubernetes { .. } => EngineKind::Kubernetes,
        }
    }
}

impl EnginePool {
    /// The engine that runs its work.
    pub(crate) fn engine_name(&self) -> EngineName {
        match self.engine {
            EngineSettings::Slurm(_) => EngineName::Slurm,
            EngineSettings::Kubernetes(_) => EngineName::Kubernetes { pool: self.pool_name.clone() },
        }
    }
}

impl EngineKind {
    /// How people call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EngineKind::Slurm => "Slurm",
            EngineKind::Kubernetes => "Kubernetes",
        }
    }
}

impl EngineSettings {
    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            EngineSettings::Slurm(_) => EngineKind::Slurm,
            EngineSettings::Kubernetes(_) => EngineKind::Kubernetes,
        }
    }

    /// The slots of each node, unless a configuration says.
    pub(crate) fn slots_per_node(&self) -> u32 {
        match self {
            EngineSettings::Slurm(slurm) => slurm.slots_per_node,
            EngineSettings::Kubernetes(kubernetes) => kubernetes.slots_per_node,
        }
    }
}

/// What a slot is for Slurm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotType {
    /// A GPU.
    #[default]
    Cuda,
    /// A processor.
    Cpu,
}

/// How jobs of a pool are submitted to Slurm.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmSettings {
    /// The partition; Slurm's default one if there is none.
    pub partition: Option<String>,
    /// Options of `sbatch` for all jobs of the pool.
    #[serde(default)]
    pub options: Vec<String>,
    /// The slots of each node.
    pub slots_per_node: u32,
    /// What a slot is.
    #[serde(default)]
    pub slot_type: SlotType,
    /// The kind of GPU, as Slurm's `gres` has it; any if there is none.
    pub gpu_type: Option<String>,
    /// Seconds between two looks at the queue.
    #[serde(default = "ten")]
    pub poll_interval: u32,
    /// Seconds before a job's time limit at which what runs there is asked to stop; 0 for no notice.
    #[serde(default = "sixty")]
    pub notice: u32,
    /// Where nodes reach the master; where it listens if there is none.
    pub master_url: Option<String>,
    /// A file on the nodes with the certificates that they trust.
    pub master_cert_file: Option<String>,
    /// The program on the nodes; where it is here if there is none.
    pub instep: Option<String>,
    /// Options of `instep agent`.
    #[serde(default)]
    pub agent_options: Vec<String>,
    /// Where the output of agents goes, as `sbatch --output` takes it; nowhere if there is none.
    pub output: Option<String>,
}

fn ten() -> u32 {
    10
}

fn sixty() -> u32 {
    60
}

/// Options of `instep agent` that the master gives itself.
const OF_THE_MASTER: &[&str] =
    &["--for", "--master", "--name", "--pool", "--slots", "--state-folder", "--stop-tasks", "--token", "--token-file"];
/// What `sbatch --signal` takes.
const LONGEST_NOTICE: u32 = 65_535;
/// Slots of a node.
const MOST_SLOTS: u32 = 4096;
/// Bytes of a text.
const LONGEST_TEXT: usize = 4096;

/// The engines of a master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Their pools.
    pub pools: Vec<EnginePool>,
    /// Where this master serves, for pools that do not say how nodes reach it.
    pub address: String,
    /// This program, for pools that do not say where it is on nodes.
    pub binary: PathBuf,
}

impl EngineOptions {
    /// Between two lists of Slurm's jobs.
    pub(crate) fn slurm_interval(&self) -> Duration {
        let intervals = self.pools.iter().filter_map(|pool| match &pool.engine {
            EngineSettings::Slurm(slurm) => Some(slurm.poll_interval),
            EngineSettings::Kubernetes(_) => None,
        });
        Duration::from_secs(intervals.min().unwrap_or_else(ten).into())
    }
}

/// Reads `resource_pools`: YAML, or JSON.
pub(crate) fn read_pools(text: &str) -> Result<Vec<EnginePool>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| format!("it is not YAML: {error}"))?;
    let Value::Array(elements) = value else {
        return Err("it must be a list of pools, each with `pool_name` and `engine`".to_owned());
    };
    let mut pools: Vec<EnginePool> = Vec::new();
    let mut taken = BTreeSet::new();
    for (index, element) in elements.into_iter().enumerate() {
        let named = element.get("pool_name").and_then(Value::as_str).map(|name| format!("pool `{name}`"));
        let place = named.unwrap_or_else(|| format!("the pool at place {index}"));
        let pool: EnginePool = serde_json::from_value(element).map_err(|error| format!("{place}: {error}"))?;
        if let Some(why) = objection(&pool) {
            return Err(format!("{place}: {why}"));
        }
        if !taken.insert(pool.pool_name.clone()) {
            return Err(format!("{place} is there twice"));
        }
        pools.push(pool);
    }
    Ok(pools)
}

/// What is wrong with a pool.
fn objection(pool: &EnginePool) -> Option<String> {
    if pool.pool_name.is_empty() || pool.pool_name.len() > 255 {
        return Some("`pool_name` must have 1 to 255 bytes".to_owned());
    }
    if let Some(why) = names::objection(&pool.pool_name).or_else(|| names::objection(&pool.description)) {
        return Some(format!("a name or description {why}"));
    }
    let slots = pool.engine.slots_per_node();
    if !(1..=MOST_SLOTS).contains(&slots) {
        return Some(format!("`slots_per_node` is {slots}, and must be from 1 to {MOST_SLOTS}"));
    }
    match &pool.engine {
        EngineSettings::Slurm(slurm) => slurm_objection(slurm),
        EngineSettings::Kubernetes(kubernetes) => {
            let texts = [&kubernetes.master_url, &kubernetes.master_cert_file];
            agent_objection(kubernetes.master_url.as_deref(), &kubernetes.agent_options)
                .or_else(|| texts_objection(texts.into_iter().flatten().chain([&kubernetes.instep])))
                .or_else(|| kubernetes.objection())
        }
    }
}

/// What is wrong with what an agent is told.
fn agent_objection(master_url: Option<&str>, agent_options: &[String]) -> Option<String> {
    if let Some(url) = master_url.filter(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
        return Some(format!("`master_url`: `{url}` is not an address such as https://master.example.org:8080"));
    }
    let of_the_master = |option: &&String| {
        let name = option.split('=').next().unwrap_or_default();
        !name.starts_with("--") || OF_THE_MASTER.contains(&name)
    };
    if let Some(option) = agent_options.iter().find(of_the_master) {
        return Some(format!(
            "`agent_options`: `{option}` is given by the master, or is not one option such as --default-user=nobody"
        ));
    }
    texts_objection(agent_options.iter())
}

fn texts_objection<'a>(mut texts: impl Iterator<Item = &'a String>) -> Option<String> {
    let is_wrong = |text: &&String| text.is_empty() || text.len() > LONGEST_TEXT || text.chars().any(char::is_control);
    texts.find(is_wrong).map(|_| "a value is empty, too long, or has control characters".to_owned())
}

fn slurm_objection(slurm: &SlurmSettings) -> Option<String> {
    if !(1..=3600).contains(&slurm.poll_interval) {
        return Some(format!("`poll_interval` is {}, and must be from 1 to 3600 seconds", slurm.poll_interval));
    }
    if slurm.notice > LONGEST_NOTICE {
        return Some(format!("`notice` is {}, and must be from 0 to {LONGEST_NOTICE} seconds", slurm.notice));
    }
    if let Some(name) = slurm.gpu_type.as_ref().filter(|name| !is_gpu_type(name)) {
        return Some(format!("`gpu_type`: `{name}` is not the name of a kind of GPU, such as a100"));
    }
    if let Some(why) = agent_objection(slurm.master_url.as_deref(), &slurm.agent_options) {
        return Some(why);
    }
    if let Some(path) = slurm.output.as_ref().filter(|path| !path.starts_with('/')) {
        return Some(format!("`output`: `{path}` is not a whole path, such as /shared/instep/%j.out"));
    }
    let texts = [&slurm.partition, &slurm.master_url, &slurm.master_cert_file, &slurm.instep, &slurm.output];
    if let Some(why) = texts_objection(texts.into_iter().flatten()) {
        return Some(why);
    }
    let objection = |option: &String| sbatch_objection(option, Giver::Administrator);
    slurm.options.iter().find_map(objection).map(|why| format!("`options`: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pool_names_its_engine() {
        let text =
            "- {pool_name: gpu, engine: {type: slurm, partition: a100, slots_per_node: 8, options: [--account=x]}}";
        let pools = read_pools(text).unwrap();
        let EngineSettings::Slurm(slurm) = &pools[0].engine else { panic!("it is Slurm's") };
        assert_eq!((slurm.slots_per_node, slurm.slot_type, slurm.poll_interval), (8, SlotType::Cuda, 10));
        assert!(read_pools("").unwrap().is_empty());
    }

    #[test]
    fn what_would_break_is_refused_with_its_place() {
        let slurm = |more: &str| format!("[{{pool_name: gpu, engine: {{type: slurm, slots_per_node: 8, {more}}}}}]");
        for (text, said) in [
            ("[{pool_name: gpu, engine: {type: pbs}}]".to_owned(), "pool `gpu`: unknown variant `pbs`"),
            ("[{engine: {type: slurm}}]".to_owned(), "the pool at place 0"),
            ("[{pool_name: gpu, engine: {type: slurm}}]".to_owned(), "missing field `slots_per_node`"),
            ("{gpu: 1}".to_owned(), "must be a list"),
            (slurm("partitoin: x"), "unknown field `partitoin`"),
            (slurm("options: [--array=1-3]"), "`options`: --array is given by the master"),
            (slurm("options: ['--output=/dev/null']"), "--output is given by the master"),
            (slurm("agent_options: [--pool=x]"), "`agent_options`: `--pool=x` is given by the master"),
            (slurm("poll_interval: 0"), "from 1 to 3600"),
            (slurm("notice: 65536"), "from 0 to 65535"),
            (slurm("master_url: here"), "not an address"),
            (slurm("gpu_type: 'a:1'"), "kind of GPU"),
            (slurm("partition: \"a\\nb\""), "control characters"),
        ] {
            let why = read_pools(&text).unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
        }
        let twice = "[{pool_name: a, engine: {type: slurm, slots_per_node: 1}}, {pool_name: a, engine: {type: slurm, slots_per_node: 1}}]";
        assert!(read_pools(twice).unwrap_err().contains("twice"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = read_pools(&text);
        }
    }
}
