//! Pod templates: the pool's, which an administrator wrote, and `environment.pod_spec` of a configuration, which a user did.
//!
//! What a user wrote is taken part by part: each has a name below, such as `spec.tolerations`, and is one that users may
//! set ([`USUAL`]), one that the pool may allow besides ([`ON_REQUEST`]), or refused. Nothing that is not listed passes.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::settings::KubernetesSettings;

/// How Determined calls the container that the task runs in. Ours has the same name.
pub(crate) const CONTAINER: &str = "determined-container";

/// What users may set.
const USUAL: &[&str] = &[
    "container.env",
    "container.resources",
    "container.volumeMounts",
    "spec.affinity.nodeAffinity",
    "spec.nodeSelector",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
    "volumes.emptyDir",
];

/// What gives a pod rights, other people's secrets and data, a place before others, or more than its slots: users may set it
/// where the pool says so.
const ON_REQUEST: &[&str] = &[
    "container.env.valueFrom",
    "container.envFrom",
    "container.resources.extended",
    "container.securityContext",
    "container.volumeDevices",
    "metadata.annotations",
    "metadata.labels",
    "spec.affinity.podAffinity",
    "spec.affinity.podAntiAffinity",
    "spec.dnsConfig",
    "spec.dnsPolicy",
    "spec.hostAliases",
    "spec.hostIPC",
    "spec.hostNetwork",
    "spec.imagePullSecrets",
    "spec.initContainers",
    "spec.priorityClassName",
    "spec.runtimeClassName",
    "spec.schedulerName",
    "spec.securityContext",
    "spec.serviceAccountName",
    "volumes.configMap",
    "volumes.csi",
    "volumes.ephemeral",
    "volumes.hostPath",
    "volumes.nfs",
    "volumes.persistentVolumeClaim",
    "volumes.projected",
    "volumes.secret",
];

/// Labels with these beginnings say whose a pod is, and are not for templates.
const OUR_LABELS: &[&str] = &["instep.", "kueue.x-k8s.io/", "batch.kubernetes.io/", "job-name", "controller-uid"];

/// What a pool's template may not say, because it follows from what is run.
const OURS: &[&str] = &["restartPolicy", "hostname", "subdomain", "activeDeadlineSeconds", "nodeName"];
const OURS_OF_CONTAINER: &[&str] =
    &["command", "args", "image", "stdin", "tty", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];

/// Whether `allow` of a pool may name this.
pub(crate) fn can_be_allowed(part: &str) -> bool {
    USUAL.contains(&part) || ON_REQUEST.contains(&part)
}

/// What `allow` of a pool may name, for people.
pub(crate) fn allowable() -> String {
    ON_REQUEST.join(", ")
}

/// What is wrong with a pool's template: a path and why.
pub(crate) fn pool_objection(template: &Map<String, Value>) -> Option<String> {
    for key in template.keys() {
        if key != "metadata" && key != "spec" {
            return Some(format!("{key}: is not in a pod template, which has `metadata` and `spec`"));
        }
    }
    let Some(spec) = template.get("spec") else { return our_label(template) };
    let Some(spec) = spec.as_object() else { return Some("spec: must be a map".to_owned()) };
    let ours = |path: &str, found: &Map<String, Value>, names: &[&str]| {
        let found = names.iter().find(|name| found.contains_key(**name));
        found.map(|name| format!("{path}{name}: follows from what is run, and cannot be set"))
    };
    if let Some(what) = ours("spec.", spec, OURS) {
        return Some(what);
    }
    match the_container(spec) {
        Ok(Some(container)) => {
            ours("spec.containers[0].", container, OURS_OF_CONTAINER).or_else(|| our_label(template))
        }
        Ok(None) => our_label(template),
        Err(what) => Some(what),
    }
}

fn our_label(template: &Map<String, Value>) -> Option<String> {
    let labels = template.get("metadata").and_then(|metadata| metadata.get("labels")).and_then(Value::as_object)?;
    let ours = |label: &&String| OUR_LABELS.iter().any(|beginning| label.starts_with(beginning));
    labels.keys().find(ours).map(|label| format!("metadata.labels.{label}: is set by instep"))
}

/// The container of a template that becomes ours; `None` if it has none. Init containers are others.
fn the_container(spec: &Map<String, Value>) -> Result<Option<&Map<String, Value>>, String> {
    let Some(containers) = spec.get("containers") else { return Ok(None) };
    let only = "spec.containers: may have one container, named `determined-container`: a Job ends with all its containers, \
                and others would keep it";
    match containers.as_array().map(Vec::as_slice) {
        Some([]) => Ok(None),
        Some([Value::Object(container)]) if container.get("name").is_none_or(|name| name == CONTAINER) => {
            Ok(Some(container))
        }
        _ => Err(only.to_owned()),
    }
}

/// What of a user's `environment.pod_spec` the pool does not allow, for people; none if all of it may be merged.
pub(crate) fn user_objection(template: &Map<String, Value>, pool: &KubernetesSettings) -> Option<String> {
    let mut parts = Vec::new();
    if template.values().any(has_null) {
        return Some("null would take away what the pool sets: leave out what you do not set".to_owned());
    }
    let checked = parts_of(template, &mut parts).and_then(|()| no_names_of_pool(template, &pool.pod_template));
    if let Err(what) = checked.and_then(|()| mounts(template)) {
        return Some(what);
    }
    if let Some(what) = our_label(template) {
        return Some(what);
    }
    let may = |part: &str| USUAL.contains(&part) || (ON_REQUEST.contains(&part) && pool.allow.contains(part));
    let refused = parts.iter().find(|part| !may(part))?;
    let hint = match ON_REQUEST.contains(&refused.as_str()) {
        true => format!("\nhint: an administrator may add `{refused}` to `allow` of the pool"),
        false => String::new(),
    };
    Some(format!("{refused}: users may not set this{hint}"))
}

/// Names the parts of a template, as in [`USUAL`].
fn parts_of(template: &Map<String, Value>, parts: &mut Vec<String>) -> Result<(), String> {
    let map = |path: &str, value: &Value| value.as_object().cloned().ok_or_else(|| format!("{path}: must be a map"));
    for (key, value) in template {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => parts.extend(map("metadata", value)?.keys().map(|key| format!("metadata.{key}"))),
            "spec" => {
                let spec = map("spec", value)?;
                for (key, value) in &spec {
                    match key.as_str() {
                        "containers" => {}
                        "volumes" => volumes(value, parts)?,
                        "affinity" => {
                            let kinds = map("spec.affinity", value)?;
                            parts.extend(kinds.keys().map(|kind| format!("spec.affinity.{kind}")));
                        }
                        key => parts.push(format!("spec.{key}")),
                    }
                }
                if let Some(container) = the_container(&spec)? {
                    parts.extend(container.keys().filter(|key| *key != "name").map(|key| format!("container.{key}")));
                    variables(container, parts)?;
                    resources(container, parts)?;
                }
            }
            key => parts.push(key.to_owned()),
        }
    }
    Ok(())
}

fn volumes(value: &Value, parts: &mut Vec<String>) -> Result<(), String> {
    let wrong = || "spec.volumes: must be a list of maps with `name` and one kind, such as `emptyDir`".to_owned();
    for volume in value.as_array().ok_or_else(wrong)? {
        let volume = volume.as_object().filter(|volume| volume.len() == 2 && is_text(volume.get("name")));
        let kinds = volume.ok_or_else(wrong)?.keys().filter(|key| *key != "name");
        parts.extend(kinds.map(|kind| format!("volumes.{kind}")));
    }
    Ok(())
}

fn is_text(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_string)
}

/// A null anywhere in what is merged.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What a user names as the pool names something would be merged into that: a claim that is mounted in part, say, or an init
/// container with rights.
fn no_names_of_pool(template: &Map<String, Value>, pool: &Map<String, Value>) -> Result<(), String> {
    for list in ["volumes", "initContainers"] {
        let names = |template: &Map<String, Value>| -> BTreeSet<String> {
            let entries = template.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
            let names = entries.into_iter().flatten().filter_map(|entry| entry.get("name").and_then(Value::as_str));
            names.map(str::to_owned).collect()
        };
        if let Some(name) = names(template).intersection(&names(pool)).next() {
            return Err(format!("spec.{list}: the pool has a {name} already: choose another name"));
        }
    }
    Ok(())
}

/// Users mount the volumes that they declare themselves: entries for the pool's own would change how those are mounted.
fn mounts(template: &Map<String, Value>) -> Result<(), String> {
    let Some(spec) = template.get("spec").and_then(Value::as_object) else { return Ok(()) };
    let Some(container) = the_container(spec)? else { return Ok(()) };
    let Some(mounts) = container.get("volumeMounts") else { return Ok(()) };
    let wrong = || "spec.containers[0].volumeMounts: must be a list of maps with `name` and `mountPath`".to_owned();
    let volumes = spec.get("volumes").and_then(Value::as_array);
    for mount in mounts.as_array().ok_or_else(wrong)? {
        let name = mount.get("name").and_then(Value::as_str).ok_or_else(wrong)?;
        let declared = volumes.is_some_and(|volumes| {
            volumes.iter().any(|volume| volume.get("name").and_then(Value::as_str) == Some(name))
        });
        if !declared {
            return Err(format!(
                "spec.containers[0].volumeMounts: {name} is not one of the `volumes` of this pod_spec; those of the pool are \
                 mounted as its administrator says"
            ));
        }
    }
    Ok(())
}

/// Processors and memory are counted by nobody; GPUs and other devices are slots.
fn resources(container: &Map<String, Value>, parts: &mut Vec<String>) -> Result<(), String> {
    let wrong = || "spec.containers[0].resources: must have `limits` and `requests`, which are maps".to_owned();
    let Some(resources) = container.get("resources") else { return Ok(()) };
    for (kind, amounts) in resources.as_object().ok_or_else(wrong)? {
        let names = amounts.as_object().filter(|_| kind == "limits" || kind == "requests").ok_or_else(wrong)?;
        if names.keys().any(|name| name.contains('/')) {
            parts.push("container.resources.extended".to_owned());
        }
    }
    Ok(())
}

/// Variables are values; what they are taken from may be somebody else's secret.
fn variables(container: &Map<String, Value>, parts: &mut Vec<String>) -> Result<(), String> {
    let wrong = || "spec.containers[0].env: must be a list of maps with `name` and `value`".to_owned();
    let Some(variables) = container.get("env") else { return Ok(()) };
    for variable in variables.as_array().ok_or_else(wrong)? {
        let variable = variable.as_object().ok_or_else(wrong)?;
        let name = variable.get("name").and_then(Value::as_str).ok_or_else(wrong)?;
        if name.starts_with("INSTEP_") || name.starts_with("DET_") {
            return Err(format!("spec.containers[0].env: {name} is set by instep"));
        }
        if variable.contains_key("valueFrom") {
            parts.push("container.env.valueFrom".to_owned());
        }
    }
    Ok(())
}

/// Adds what `upper` says to `lower`: maps key by key, lists of named things by name, other lists one after the other, and all
/// else replaces what is there.
pub(crate) fn merge(lower: &mut Value, upper: Value) {
    match (lower, upper) {
        (Value::Object(lower), Value::Object(upper)) => {
            for (key, value) in upper {
                match lower.get_mut(&key) {
                    Some(there) => merge(there, value),
                    None => drop(lower.insert(key, value)),
                }
            }
        }
        (Value::Array(lower), Value::Array(upper)) => {
            for value in upper {
                let name = value.get("name").filter(|name| name.is_string());
                match lower.iter_mut().find(|there| name.is_some() && there.get("name") == name) {
                    Some(there) => merge(there, value),
                    None => lower.push(value),
                }
            }
        }
        (lower, upper) => *lower = upper,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objection(template: Value, allow: &[&str]) -> Option<String> {
        let volume = json!({"name": "shared", "persistentVolumeClaim": {"claimName": "everything"}});
        let mount = json!({"name": "shared", "mountPath": "/data", "subPath": "public", "readOnly": true});
        let own = json!({"spec": {"volumes": [volume], "initContainers": [{"name": "driver"}],
                                  "containers": [{"volumeMounts": [mount]}]}});
        let pool = json!({"image": "i", "slots_per_node": 1, "allow": allow, "pod_template": own});
        let pool: KubernetesSettings = serde_json::from_value(pool).unwrap();
        user_objection(template.as_object().unwrap(), &pool)
    }

    fn with_container(container: Value) -> Value {
        json!({"spec": {"containers": [container]}})
    }

    #[test]
    fn users_set_what_moves_their_own_pods_alone() {
        let usual = json!({"spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"zone": "a"},
            "affinity": {"nodeAffinity": {}},
            "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
            "containers": [{"name": "determined-container", "resources": {"requests": {"memory": "8Gi"}},
                            "env": [{"name": "A", "value": "1"}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
        assert_eq!(objection(usual, &[]), None);
        let refused = [
            (json!({"spec": {"hostNetwork": true}}), "spec.hostNetwork"),
            (json!({"spec": {"hostPID": true}}), "spec.hostPID"),
            (json!({"spec": {"serviceAccountName": "admin"}}), "spec.serviceAccountName"),
            (json!({"spec": {"automountServiceAccountToken": true}}), "spec.automountServiceAccountToken"),
            (json!({"spec": {"priorityClassName": "system-cluster-critical"}}), "spec.priorityClassName"),
            (json!({"spec": {"nodeName": "n"}}), "spec.nodeName"),
            (json!({"spec": {"volumes": [{"name": "r", "hostPath": {"path": "/"}}]}}), "volumes.hostPath"),
            (json!({"spec": {"volumes": [{"name": "r", "secret": {"secretName": "s"}}]}}), "volumes.secret"),
            (json!({"spec": {"volumes": "all"}}), "spec.volumes"),
            (
                json!({"spec": {"volumes": [{"name": "shared"}], "containers": [{"volumeMounts": [
                    {"name": "shared", "mountPath": "/data", "subPath": "", "readOnly": false}]}]}}),
                "spec.volumes: must be a list of maps with `name` and one kind",
            ),
            (json!({"spec": {"volumes": [{"name": "shared", "emptyDir": {}}]}}), "the pool has a shared already"),
            (json!({"spec": {"volumes": [{"emptyDir": {}, "nfs": {}}]}}), "with `name` and one kind"),
            (json!({"metadata": {"ownerReferences": []}}), "metadata.ownerReferences"),
            (json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "theirs"}}}), "is set by instep"),
            (json!({"spec": {"containers": [{"name": "miner"}]}}), "may have one container"),
            (json!({"spec": {"containers": [{}, {}]}}), "may have one container"),
            (with_container(json!({"securityContext": {"privileged": true}})), "container.securityContext"),
            (with_container(json!({"command": ["sh"]})), "container.command"),
            (with_container(json!({"envFrom": [{"secretRef": {"name": "s"}}]})), "container.envFrom"),
            (with_container(json!({"env": [{"name": "INSTEP_AGENT_TOKEN", "value": ""}]})), "is set by instep"),
            (with_container(json!({"env": [{"name": "A", "valueFrom": {}}]})), "container.env.valueFrom"),
            (json!({"status": {}}), "status"),
            (
                json!({"spec": {"volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "instep-master"}}]}}),
                "volumes.persistentVolumeClaim",
            ),
            (json!({"spec": {"affinity": {"podAntiAffinity": {}}}}), "spec.affinity.podAntiAffinity"),
            (json!({"spec": {"affinity": "all"}}), "spec.affinity"),
            (json!({"spec": {"imagePullSecrets": [{"name": "theirs"}]}}), "spec.imagePullSecrets"),
            (json!({"spec": {"nodeSelector": null}}), "null"),
            (
                with_container(json!({"volumeMounts": [{"name": "data", "readOnly": false, "subPath": ""}]})),
                "data is not one of the `volumes`",
            ),
            (with_container(json!({"volumeMounts": {}})), "volumeMounts"),
            (with_container(json!({"resources": {"limits": {"nvidia.com/gpu": 8}}})), "container.resources.extended"),
            (with_container(json!({"resources": {"claims": []}})), "container"),
        ];
        for (template, part) in refused {
            let what = objection(template.clone(), &[]).unwrap_or_default();
            assert!(what.contains(part), "{template}: {what}");
        }
    }

    #[test]
    fn a_pool_allows_more_and_never_everything() {
        let template = || json!({"spec": {"priorityClassName": "high"}});
        assert!(
            objection(template(), &[]).unwrap().contains("hint: an administrator may add `spec.priorityClassName`")
        );
        assert_eq!(objection(template(), &["spec.priorityClassName"]), None);
        let init =
            |name: &str| objection(json!({"spec": {"initContainers": [{"name": name}]}}), &["spec.initContainers"]);
        assert_eq!(init("mine"), None);
        assert!(init("driver").unwrap().contains("the pool has a driver already"));
        let never = with_container(json!({"image": "mine"}));
        assert!(objection(never, &["container.image"]).is_some(), "only what is on the list counts");
        assert!(!can_be_allowed("container.image"));
        assert!(ON_REQUEST.iter().all(|part| !USUAL.contains(part)));
    }

    #[test]
    fn named_things_are_merged_by_name() {
        let mut lower = json!({"a": 1, "list": [{"name": "x", "v": 1}, {"name": "y"}], "plain": [1], "deep": {"k": 1}});
        merge(
            &mut lower,
            json!({"a": 2, "list": [{"name": "x", "w": 2}, {"name": "z"}], "plain": [2], "deep": {"l": 2}}),
        );
        let expected = json!({"a": 2, "list": [{"name": "x", "v": 1, "w": 2}, {"name": "y"}, {"name": "z"}],
                              "plain": [1, 2], "deep": {"k": 1, "l": 2}});
        assert_eq!(lower, expected);
    }
}
