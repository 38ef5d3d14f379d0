//! What a pool of the configuration says about its Kubernetes cluster.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::options::SlotType;
use super::template;

/// How Jobs of a pool are made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSettings {
    /// How the API server is reached; without one, the service account of the pod that the master is.
    pub kubeconfig: Option<PathBuf>,
    /// Which context of the kubeconfig; its current one without.
    pub context: Option<String>,
    /// Where the Jobs go; that of the service account or the context without.
    pub namespace: Option<String>,
    /// What pods run if the experiment names no image. It must contain instep.
    pub image: String,
    /// The slots of each pod.
    pub slots_per_node: u32,
    /// What a slot is.
    #[serde(default)]
    pub slot_type: SlotType,
    /// How Kubernetes calls a GPU.
    #[serde(default = "gpu")]
    pub gpu_resource: String,
    /// The Kueue queue that Jobs are submitted to.
    pub queue: Option<String>,
    /// Without Kueue: seconds that some pods of a gang may hold nodes while others find none.
    #[serde(default = "sixty")]
    pub incomplete_timeout: u32,
    /// Seconds between SIGTERM, upon which tasks are asked to stop, and SIGKILL.
    #[serde(default = "sixty")]
    pub notice: u32,
    /// Where pods reach the master; where it listens if there is none.
    pub master_url: Option<String>,
    /// A file in the pods with the certificates that they trust.
    pub master_cert_file: Option<String>,
    /// The program in the image.
    #[serde(default = "instep")]
    pub instep: String,
    /// Options of `instep agent`.
    #[serde(default)]
    pub agent_options: Vec<String>,
    /// A PodTemplateSpec that everything is added to.
    #[serde(default)]
    pub pod_template: Map<String, Value>,
    /// Which parts of `environment.pod_spec` users may set, besides the usual ones.
    #[serde(default)]
    pub allow: BTreeSet<String>,
}

fn gpu() -> String {
    "nvidia.com/gpu".to_owned()
}

fn sixty() -> u32 {
    60
}

fn instep() -> String {
    "instep".to_owned()
}

impl KubernetesSettings {
    /// What is wrong with them, for people; all but what other pools have, too.
    pub(crate) fn objection(&self) -> Option<String> {
        if self.image.is_empty() {
            return Some("`image` must not be empty".to_owned());
        }
        let is_resource = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
        if self.gpu_resource.is_empty() || !self.gpu_resource.chars().all(is_resource) {
            let name = &self.gpu_resource;
            return Some(format!("`gpu_resource`: `{name}` is not the name of a resource, such as nvidia.com/gpu"));
        }
        if !(1..=86_400).contains(&self.incomplete_timeout) || !(1..=86_400).contains(&self.notice) {
            return Some("`incomplete_timeout` and `notice` must be from 1 to 86400 seconds".to_owned());
        }
        if self.kubeconfig.is_none() && self.context.is_some() {
            return Some("`context` is one of a kubeconfig, and `kubeconfig` is missing".to_owned());
        }
        for (key, name) in [("namespace", &self.namespace), ("queue", &self.queue)] {
            if let Some(name) = name.as_deref().filter(|name| !is_dns_label(name)) {
                return Some(format!(
                    "`{key}`: `{name}` is not a name of Kubernetes: letters a-z, digits and `-`, at most 63"
                ));
            }
        }
        if let Some(unknown) = self.allow.iter().find(|part| !template::can_be_allowed(part)) {
            return Some(format!("`allow`: `{unknown}` is none of {}", template::allowable()));
        }
        template::pool_objection(&self.pod_template).map(|what| format!("`pod_template`: {what}"))
    }

    /// How long a gang may be incomplete.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(u64::from(self.incomplete_timeout))
    }
}

/// Whether Kubernetes takes it for a name everywhere.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn objection(value: Value) -> Option<String> {
        let mut whole = json!({"image": "i", "slots_per_node": 8});
        template::merge(&mut whole, value);
        match serde_json::from_value::<KubernetesSettings>(whole) {
            Ok(settings) => settings.objection(),
            Err(error) => Some(error.to_string()),
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_key() {
        assert_eq!(objection(json!({})), None);
        assert_eq!(objection(json!({"slot_type": "cpu", "allow": ["spec.priorityClassName"], "queue": "team"})), None);
        for (value, part) in [
            (json!({"image": ""}), "`image` must not be empty"),
            (json!({"imagine": 1}), "unknown field `imagine`"),
            (json!({"gpu_resource": "a b"}), "`gpu_resource`"),
            (json!({"queue": "A"}), "`queue`: `A` is not a name"),
            (json!({"notice": 0}), "from 1 to 86400"),
            (json!({"context": "c"}), "`kubeconfig` is missing"),
            (json!({"allow": ["container.command"]}), "`allow`: `container.command` is none of"),
            (json!({"pod_template": {"spec": {"restartPolicy": "Always"}}}), "`pod_template`: spec.restartPolicy"),
        ] {
            let why = objection(value.clone()).unwrap_or_default();
            assert!(why.contains(part), "{value}: {why}");
        }
    }

    proptest! {
        #[test]
        fn names_of_kubernetes_are_labels(text in "[a-zA-Z0-9.-]{0,70}") {
            let inner = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            let edges = text.bytes().next().zip(text.bytes().last()).is_some_and(|(a, b)| a != b'-' && b != b'-');
            prop_assert_eq!(is_dns_label(&text), inner && edges && text.len() <= 63);
        }
    }
}
