//! What a task finds around it: the `environment` section.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::reader::{Fields, Mistakes, text_at};
use crate::secrets::{objection, variable_objection};

/// Variables, image and ports.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Environment {
    pub image: ByDevice<Option<String>>,
    pub environment_variables: ByDevice<Vec<String>>,
    pub ports: Map<String, Value>,
    pub proxy_ports: Vec<ProxyPort>,
    pub force_pull_image: bool,
    pub registry_auth: Option<Map<String, Value>>,
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub pod_spec: Option<Map<String, Value>>,
    /// Variables with the secrets that are their values; not Determined's.
    pub secrets: BTreeMap<String, String>,
    /// Files with the secrets that are their contents; not Determined's.
    pub secret_files: BTreeMap<String, String>,
}

/// A port of a task that others reach through the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProxyPort {
    /// Where the task listens.
    pub proxy_port: u16,
    /// Whether bytes are passed on as they are, in a websocket; HTTP otherwise.
    pub proxy_tcp: bool,
    /// Whether nobody is asked who they are.
    pub unauthenticated: bool,
    /// Whether it is what the task's own address leads to.
    pub default_service_id: bool,
}

/// The same thing for each kind of device that a task may run on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ByDevice<T> {
    pub cpu: T,
    pub cuda: T,
    pub rocm: T,
}

/// Ports of one task that others reach.
const MOST_PROXY_PORTS: usize = 100;
const IMAGE: &str = "determinedai/pytorch-ngc-dev:0736b6d";
const ROCM_IMAGE: &str = "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d";

impl Environment {
    /// The image that somebody has named, for a task with or without GPUs.
    pub fn named_image(&self, cuda: bool) -> Option<&str> {
        let image = if cuda { self.image.cuda.as_deref() } else { self.image.cpu.as_deref() };
        image.filter(|image| *image != IMAGE)
    }

    pub(super) fn read(mut fields: Fields<'_>) -> Environment {
        let mistakes = fields.mistakes();
        let image = fields.take("image").map(|value| images(&fields.path("image"), value, mistakes));
        let variables = fields
            .take("environment_variables")
            .map(|value| variables(&fields.path("environment_variables"), value, mistakes));
        let environment = Environment {
            image: with_defaults(image.unwrap_or_default()),
            environment_variables: variables.unwrap_or_default(),
            ports: ports(&mut fields),
            proxy_ports: proxy_ports(&mut fields),
            force_pull_image: fields.flag("force_pull_image").unwrap_or(false),
            registry_auth: fields.map("registry_auth"),
            add_capabilities: fields.texts("add_capabilities"),
            drop_capabilities: fields.texts("drop_capabilities"),
            pod_spec: pod_spec(&mut fields),
            secrets: secrets(&mut fields, "secrets", variable_objection),
            secret_files: secrets(&mut fields, "secret_files", objection),
        };
        fields.finish();
        environment
    }
}

/// Names of secrets, by the names under which the task finds them.
fn secrets(
    fields: &mut Fields<'_>,
    section: &'static str,
    place_objection: fn(&str) -> Option<&'static str>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (place, name) in fields.map(section).unwrap_or_default() {
        let path = fields.path(&format!("{section}.{place}"));
        let Some(name) = text_at(&path, &name, fields.mistakes()) else { continue };
        match (place_objection(&place), objection(&name)) {
            (Some(why), _) => fields.mistakes().add(path, why),
            (None, Some(why)) => fields.mistakes().add(path, format!("the name of a secret {why}")),
            (None, None) => drop(found.insert(place, name)),
        }
    }
    found
}

fn ports(fields: &mut Fields<'_>) -> Map<String, Value> {
    let ports = fields.map("ports").unwrap_or_default();
    for (name, port) in &ports {
        if !port.as_u64().is_some_and(|port| (1..=65535).contains(&port)) {
            fields.mistakes().add(fields.path(&format!("ports.{name}")), "must be a port from 1 to 65535");
        }
    }
    ports
}

fn proxy_ports(fields: &mut Fields<'_>) -> Vec<ProxyPort> {
    let mistakes = fields.mistakes();
    let mut found: Vec<ProxyPort> = Vec::new();
    for (path, value) in fields.list("proxy_ports") {
        let mut entry = Fields::of(&path, value, mistakes);
        let port = entry.take("proxy_port").unwrap_or(Value::Null);
        // Clients may write it as 8080.0.
        let whole = port.as_u64().or_else(|| port.as_f64().filter(|port| port.fract() == 0.0).map(|port| port as u64));
        let number = whole.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        if number.is_none() {
            entry.wrong("proxy_port", "must be a port from 1 to 65535");
        }
        let port = ProxyPort {
            proxy_port: number.unwrap_or_default(),
            proxy_tcp: entry.flag("proxy_tcp").unwrap_or(false),
            unauthenticated: entry.flag("unauthenticated").unwrap_or(false),
            default_service_id: entry.flag("default_service_id").unwrap_or(false),
        };
        if found.iter().any(|other| other.proxy_port == port.proxy_port) {
            entry.wrong("proxy_port", format!("port {} is there twice", port.proxy_port));
        }
        if port.default_service_id && found.iter().any(|other| other.default_service_id) {
            entry.wrong("default_service_id", "another port has the name of the task already");
        }
        entry.finish();
        found.push(port);
    }
    if found.len() > MOST_PROXY_PORTS {
        fields.wrong("proxy_ports", format!("are {}, and must be {MOST_PROXY_PORTS} at most", found.len()));
    }
    found
}

/// What a pod's specification leaves to the master: its names, and most of the container that the task runs in.
const POD: &[&str] = &["name", "name_space"];
const CONTAINER: &[&str] = &[
    "args",
    "command",
    "image",
    "image_pull_policy",
    "lifecycle",
    "liveness_probe",
    "ports",
    "readiness_probe",
    "security_context",
    "startup_probe",
    "termination_message_path",
    "termination_message_policy",
    "working_dir",
];

fn pod_spec(fields: &mut Fields<'_>) -> Option<Map<String, Value>> {
    let spec = fields.map("pod_spec")?;
    let refuse = |path: &str, found: &Map<String, Value>, names: &[&str]| {
        for name in names.iter().filter(|name| found.contains_key(**name)) {
            fields
                .wrong(&format!("{path}.{name}"), "is not configurable: it follows from the rest of the configuration");
        }
    };
    refuse("pod_spec", &spec, POD);
    let containers = spec.get("spec").and_then(|spec| spec.get("containers")).and_then(Value::as_array);
    for (index, container) in containers.into_iter().flatten().enumerate() {
        let Some(container) = container.as_object() else { continue };
        if container.get("name").is_some_and(|name| name == "determined-container") {
            refuse(&format!("pod_spec.spec.containers[{index}]"), container, CONTAINER);
        }
    }
    Some(spec)
}

/// What Determined 0.38 says where nobody does. Nothing is made of images here; clients expect to read one.
fn with_defaults(images: ByDevice<Option<String>>) -> ByDevice<Option<String>> {
    let or = |image: Option<String>, default: &str| image.or_else(|| Some(default.to_owned()));
    ByDevice { cpu: or(images.cpu, IMAGE), cuda: or(images.cuda, IMAGE), rocm: or(images.rocm, ROCM_IMAGE) }
}

fn images(path: &str, value: Value, mistakes: &Mistakes) -> ByDevice<Option<String>> {
    if let Value::String(image) = value {
        return ByDevice { cpu: Some(image.clone()), cuda: Some(image.clone()), rocm: Some(image) };
    }
    let mut fields = Fields::of(path, value, mistakes);
    // `gpu` is what Determined once called `cuda`.
    let gpu = fields.text("gpu");
    let images = ByDevice { cpu: fields.text("cpu"), cuda: fields.text("cuda").or(gpu), rocm: fields.text("rocm") };
    fields.finish();
    images
}

fn variables(path: &str, value: Value, mistakes: &Mistakes) -> ByDevice<Vec<String>> {
    if let Value::Array(elements) = value {
        let all: Vec<String> = elements
            .into_iter()
            .enumerate()
            .filter_map(|(index, value)| variable(&format!("{path}[{index}]"), &value, mistakes))
            .collect();
        return ByDevice { cpu: all.clone(), cuda: all.clone(), rocm: all };
    }
    let mut fields = Fields::of(path, value, mistakes);
    let mut of = |name| {
        let elements: Vec<(String, Value)> = fields.list(name);
        elements.into_iter().filter_map(|(path, value)| variable(&path, &value, mistakes)).collect::<Vec<_>>()
    };
    let mut cuda = of("cuda");
    // `gpu` is what Determined once called `cuda`.
    cuda.extend(of("gpu"));
    let variables = ByDevice { cpu: of("cpu"), cuda, rocm: of("rocm") };
    fields.finish();
    variables
}

fn variable(path: &str, value: &Value, mistakes: &Mistakes) -> Option<String> {
    let text = text_at(path, value, mistakes)?;
    if text.is_empty() || text.starts_with('=') || text.contains('\0') {
        mistakes.add(path, "must be NAME=VALUE, or NAME alone");
        return None;
    }
    Some(text)
}
