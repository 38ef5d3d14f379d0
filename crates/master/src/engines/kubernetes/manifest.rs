//! What is asked of Kubernetes for one allocation: a Job with a pod for each node, and a Secret with the allocation's token.
//!
//! The Job is named by cluster and allocation, so a second attempt to create it finds the first. It is Indexed, with as many
//! completions as pods, and never starts a pod again (`backoffLimit: 0`): restarts are the master's. There is no
//! `podFailurePolicy`: with one, a Job whose node is lost would wait for the node.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::super::Gang;
use super::super::options::SlotType;
use super::client::Selection;
use super::objects::Metadata;
use super::settings::KubernetesSettings;

use super::template::{CONTAINER, merge};
use crate::random::hexadecimal;

/// Which cluster a Job belongs to: two masters may use one namespace.
const CLUSTER: &str = "instep.cluster";
/// For people: whose log it is.
const ALLOCATION: &str = "instep.allocation";
/// The allocation's whole name, which may be no label.
pub(crate) const ALLOCATION_ANNOTATION: &str = "instep.allocation-name";
/// Which pool: each looks after its own.
const POOL: &str = "instep.pool";
/// Of the owner, for people and quotas.
const USER: &str = "instep.user";
/// The Job's Secret is there, and it may start.
pub(crate) const READY: &str = "instep.ready";
/// How often a gang gave its nodes back.
pub(crate) const RELEASED: &str = "instep.released";
/// A Job that has ended is kept for this long, for those who want to see why.
const KEEP_SECONDS: u32 = 600;
/// Where a pod says on which nodes it may run.
const NODE_TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
/// The key in the Secret, and the file's name in the pod.
const TOKEN: &str = "token";
/// Where the Secret is in a pod.
const TOKEN_FOLDER: &str = "/run/instep";
const TOKEN_VOLUME: &str = "instep-token";
/// Names of Jobs are at most so long: a pod's host name is `NAME-INDEX`, which is at most 63.
const LONGEST_NAME: usize = 52;
const HASH_DIGITS: usize = 12;

/// Where a Job belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Of the master's database; never changes.
    pub cluster: &'a str,
    pub pool: &'a str,
    pub settings: &'a KubernetesSettings,
    /// Where pods reach the master.
    pub master: &'a str,
}

/// A name for the Job and its Secret, the same for the same allocation.
pub(crate) fn job_name(cluster: &str, allocation: &str) -> String {
    let hash = Sha256::digest(format!("{cluster}\n{allocation}"));
    let hash = &hexadecimal(&hash)[..HASH_DIGITS];
    let room = LONGEST_NAME - "instep-".len() - "-".len() - HASH_DIGITS;
    let words: String = allocation.to_ascii_lowercase().chars().map(|letter| plain(letter, "-")).take(room).collect();
    format!("instep-{}-{hash}", words.trim_matches('-')).replace("--", "-")
}

/// The letter, if it may be in names of Kubernetes.
fn plain(letter: char, also: &str) -> char {
    if letter.is_ascii_alphanumeric() || also.contains(letter) { letter } else { '-' }
}

/// Text as the value of a label: what may not be in one becomes `-`.
fn label(text: &str) -> String {
    let value: String = text.chars().map(|letter| plain(letter, "-_.")).take(63).collect();
    value.trim_matches(['-', '_', '.']).to_owned()
}

/// The Jobs and pods of a pool.
pub(crate) fn selection(cluster: &str, pool: &str, namespace: &str) -> Selection {
    let labels = format!("{CLUSTER}={},{POOL}={}", label(cluster), label_of_pool(pool));
    Selection { namespace: namespace.to_owned(), labels }
}

/// Two pools have two labels, whatever their names are.
fn label_of_pool(pool: &str) -> String {
    let value = label(pool);
    if value == pool { value } else { hexadecimal(&Sha256::digest(pool))[..32].to_owned() }
}

/// The Job. It waits until its Secret is there.
pub(crate) fn job(place: Place<'_>, gang: &Gang) -> Value {
    let (pool, name) = (place.settings, job_name(place.cluster, &gang.allocation));
    let labels = json!({
        CLUSTER: label(place.cluster), POOL: label_of_pool(place.pool),
        ALLOCATION: label(&gang.allocation), USER: label(&gang.user),
    });
    let annotations = json!({ALLOCATION_ANNOTATION: gang.allocation});
    let mut job_labels = labels.clone();
    if let Some(queue) = &pool.queue {
        job_labels["kueue.x-k8s.io/queue-name"] = queue.as_str().into();
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": job_labels, "annotations": annotations},
        "spec": {
            "completionMode": "Indexed",
            "completions": gang.nodes,
            "parallelism": gang.nodes,
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "suspend": true,
            "template": pod(place, gang, &name, (labels, annotations)),
        }
    })
}

/// What lets a Job start: by itself, or when Kueue has room for all of it.
pub(crate) fn ready(pool: &KubernetesSettings) -> Value {
    let mut change = json!({"metadata": {"annotations": {READY: "true"}}});
    if pool.queue.is_none() {
        change["spec"] = json!({"suspend": false});
    }
    change
}

/// What makes a Job give its nodes back, for the n-th time.
pub(crate) fn release(times: u32) -> Value {
    json!({"metadata": {"annotations": {RELEASED: times.to_string()}}, "spec": {"suspend": true}})
}

/// What lets it try again.
pub(crate) fn resume() -> Value {
    json!({"spec": {"suspend": false}})
}

/// The pod's template: the pool's, then the user's, then what follows from what is run, which nothing replaces.
fn pod(place: Place<'_>, gang: &Gang, name: &str, (labels, annotations): (Value, Value)) -> Value {
    let pool = place.settings;
    let mut pod = json!({"metadata": {}, "spec": {"containers": []}});
    let kinds = ["apiVersion", "kind"];
    let users = gang.container.pod_spec.iter().flatten().filter(|(key, _)| !kinds.contains(&key.as_str()));
    let users: Map<String, Value> = users.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut templates = [Value::Object(pool.pod_template.clone()), Value::Object(users)];
    let terms = templates.each_ref().map(|template| template.pointer(NODE_TERMS).and_then(Value::as_array).cloned());
    for template in &mut templates {
        // Both may have left the name of their only container out.
        if let Some(container) = template.pointer_mut("/spec/containers/0") {
            container["name"] = CONTAINER.into();
        }
        merge(&mut pod, template.take());
    }
    // Where the pool's pods may run is not for users to widen: terms are alternatives, so each of theirs has one of the pool's.
    if let ([Some(of_pool), Some(of_user)], Some(merged)) = (terms, pod.pointer_mut(NODE_TERMS))
        && !of_pool.is_empty()
        && !of_user.is_empty()
    {
        let both = of_pool.iter().flat_map(|of_pool| {
            of_user.iter().map(|of_user| {
                let mut both = of_pool.clone();
                merge(&mut both, of_user.clone());
                both
            })
        });
        *merged = both.collect();
    }
    if let Some(selector) = pool.pod_template.get("spec").and_then(|spec| spec.get("nodeSelector")) {
        merge(&mut pod, json!({"spec": {"nodeSelector": selector}}));
    }
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut command = vec![pool.instep.clone(), "agent".to_owned(), format!("--for={}", gang.allocation)];
    command.push("--address=$(INSTEP_POD_ADDRESS)".to_owned());
    if pool.slot_type == SlotType::Cpu || gang.slots_per_node == 0 {
        command.push(format!("--slots={}", gang.slots_per_node));
    }
    command.extend(pool.agent_options.iter().cloned());
    let mut variables = json!([
        {"name": "INSTEP_MASTER", "value": place.master},
        {"name": "INSTEP_AGENT_TOKEN_FILE", "value": format!("{TOKEN_FOLDER}/{TOKEN}")},
        {"name": "INSTEP_POD_JOB", "value": name},
        {"name": "INSTEP_POD_COUNT", "value": gang.nodes.to_string()},
        {"name": "INSTEP_POD_UID", "valueFrom": field("metadata.uid")},
        {"name": "INSTEP_POD_NODE", "valueFrom": field("spec.nodeName")},
        {"name": "INSTEP_POD_ADDRESS", "valueFrom": field("status.podIP")},
    ]);
    if let (Some(file), Some(variables)) = (&pool.master_cert_file, variables.as_array_mut()) {
        variables.push(json!({"name": "INSTEP_MASTER_CERT_FILE", "value": file}));
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": gang.container.image.as_ref().unwrap_or(&pool.image),
        "command": command,
        "env": variables,
        "volumeMounts": [{"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": true}],
    });
    if gang.container.force_pull {
        container["imagePullPolicy"] = "Always".into();
    }
    match (pool.slot_type, gang.slots_per_node) {
        (_, 0) => {}
        // Of what is no processor and no memory, requests are limits.
        (SlotType::Cuda, slots) => {
            let gpus = json!({&pool.gpu_resource: slots});
            container["resources"] = json!({"limits": gpus, "requests": gpus});
        }
        (SlotType::Cpu, slots) => container["resources"] = json!({"requests": {"cpu": slots}}),
    }
    let mut spec = json!({
        "restartPolicy": "Never",
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": pool.notice,
        "containers": [container],
        "volumes": [{"name": TOKEN_VOLUME, "secret": {"secretName": name, "defaultMode": 0o400}}],
    });
    // What it runs has no business with the API server, unless the administrator says so.
    if pod.pointer("/spec/automountServiceAccountToken") != Some(&Value::Bool(true)) {
        spec["automountServiceAccountToken"] = false.into();
    }
    if !gang.excluded.is_empty() {
        exclude(&mut pod, &gang.excluded);
    }
    // A volume of this name that somebody else has thought of goes, or it would be two kinds at once.
    if let Some(volumes) = pod.pointer_mut("/spec/volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| volume["name"] != TOKEN_VOLUME);
    }
    merge(&mut pod, json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}));
    pod
}

/// Keeps a pod away from nodes, whatever its template says about others: all terms that it has are alternatives.
fn exclude(pod: &mut Value, nodes: &[String]) {
    let elsewhere = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": nodes});
    match pod.pointer_mut(NODE_TERMS).and_then(Value::as_array_mut).filter(|terms| !terms.is_empty()) {
        Some(terms) => {
            for term in terms {
                merge(term, json!({"matchExpressions": [elsewhere]}));
            }
        }
        None => {
            let required = json!({"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]});
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
            merge(pod, json!({"spec": {"affinity": affinity}}));
        }
    }
}

/// The Secret that a Job's pods read the allocation's token from. It goes with the Job.
pub(crate) fn secret(place: Place<'_>, job: &Metadata, gang: &Gang) -> Value {
    let (name, uid) = (&job.name, &job.uid);
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "labels": {CLUSTER: label(place.cluster), ALLOCATION: label(&gang.allocation)},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}],
        },
        "stringData": {TOKEN: gang.token},
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::Container;
    use super::super::settings::is_dns_label;
    use super::*;

    const CLUSTER_ID: &str = "8f14e45f-ceea-467f-a9c4-0123456789ab";
    const ALLOCATION_ID: &str = "1.0b5c7a52-9f4d-4a0e-8f4e-aabbccddeeff.3";

    fn settings(more: Value) -> KubernetesSettings {
        let mut options = json!({"image": "instep:1", "slots_per_node": 4});
        merge(&mut options, more);
        serde_json::from_value(options).unwrap()
    }

    fn gang(nodes: u32, slots: u32) -> Gang {
        Gang {
            allocation: ALLOCATION_ID.to_owned(),
            title: "instep-trial-1".to_owned(),
            user: "Åsa Öberg".to_owned(),
            pool: "gpu".to_owned(),
            nodes,
            slots_per_node: slots,
            gpu_type: None,
            arguments: Vec::new(),
            container: Container::default(),
            excluded: Vec::new(),
            token: "unmentioned".to_owned(),
        }
    }

    fn made(settings: &KubernetesSettings, gang: &Gang) -> Value {
        job(Place { cluster: CLUSTER_ID, pool: "gpu", settings, master: "https://master:8080" }, gang)
    }

    fn words(job: &Value) -> Vec<&str> {
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        container["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
    }

    #[test]
    fn a_gang_is_one_job_that_never_restarts_a_pod() {
        let job = made(&settings(json!({})), &gang(2, 4));
        let spec = &job["spec"];
        assert_eq!(job["metadata"]["name"], job_name(CLUSTER_ID, ALLOCATION_ID));
        assert_eq!((&spec["completions"], &spec["parallelism"]), (&json!(2), &json!(2)));
        assert_eq!((&spec["backoffLimit"], &spec["completionMode"]), (&json!(0), &json!("Indexed")));
        let pod = &spec["template"];
        let container = &pod["spec"]["containers"][0];
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert_eq!(
            (&container["image"], &container["resources"]["limits"]["nvidia.com/gpu"]),
            (&json!("instep:1"), &json!(4))
        );
        assert_eq!(
            words(&job),
            ["instep", "agent", &format!("--for={ALLOCATION_ID}"), "--address=$(INSTEP_POD_ADDRESS)"]
        );
        assert_eq!(pod["metadata"]["labels"]["instep.user"], "sa--berg");
        assert_eq!(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION], ALLOCATION_ID);
        assert!(!job.to_string().contains("unmentioned"), "the token is in no Job");
        assert!(job["metadata"]["labels"].get("kueue.x-k8s.io/queue-name").is_none());
    }

    #[test]
    fn a_queue_leaves_the_start_to_kueue() {
        let pool = settings(json!({"queue": "team"}));
        let job = made(&pool, &gang(2, 4));
        assert_eq!(job["spec"]["suspend"], true);
        assert_eq!(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
        assert!(ready(&pool).get("spec").is_none() && ready(&settings(json!({})))["spec"]["suspend"] == false);
    }

    #[test]
    fn processors_are_asked_for_as_processors_and_nothing_needs_no_device() {
        let job = made(&settings(json!({"slot_type": "cpu", "agent_options": ["--task-memory=none"]})), &gang(1, 2));
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["resources"], json!({"requests": {"cpu": 2}}));
        assert_eq!(words(&job)[4..], ["--slots=2", "--task-memory=none"]);
        let job = made(&settings(json!({})), &gang(1, 0));
        assert!(job["spec"]["template"]["spec"]["containers"][0].get("resources").is_none());
        assert_eq!(words(&job)[4..], ["--slots=0"]);
    }

    #[test]
    fn templates_are_merged_below_what_follows_from_the_work() {
        let template = json!({"metadata": {"labels": {"team": "a"}}, "spec": {
            "priorityClassName": "training", "tolerations": [{"key": "gpu"}], "serviceAccountName": "trainer",
            "containers": [{"resources": {"requests": {"memory": "64Gi"}}, "env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}]}});
        let mine = json!({"apiVersion": "v1", "kind": "Pod", "spec": {
            "tolerations": [{"key": "spot"}], "imagePullSecrets": [{"name": "r"}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "instep-token", "emptyDir": {}}],
            "containers": [{"name": "determined-container", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
        let image = Some("theirs".to_owned());
        let container = Container { image, force_pull: true, pod_spec: mine.as_object().cloned() };
        let job = made(&settings(json!({"pod_template": template})), &Gang { container, ..gang(1, 1) });
        let pod = &job["spec"]["template"];
        assert!(pod.get("kind").is_none());
        assert_eq!(pod["metadata"]["labels"]["team"], "a");
        let spec = &pod["spec"];
        assert_eq!(spec["priorityClassName"], "training");
        assert_eq!(spec["tolerations"], json!([{"key": "gpu"}, {"key": "spot"}]));
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "r"}]));
        assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
        let container = &spec["containers"][0];
        assert_eq!((&container["image"], &container["imagePullPolicy"]), (&json!("theirs"), &json!("Always")));
        assert_eq!(container["env"][0], json!({"name": "NCCL_DEBUG", "value": "INFO"}));
        assert_eq!(container["resources"]["requests"], json!({"memory": "64Gi", "nvidia.com/gpu": 1}));
        let volumes = spec["volumes"].as_array().unwrap();
        let token = volumes.iter().find(|volume| volume["name"] == TOKEN_VOLUME).unwrap();
        assert!(token.get("emptyDir").is_none() && token["secret"]["secretName"] == job["metadata"]["name"]);
    }

    #[test]
    fn excluded_nodes_are_added_to_every_alternative() {
        let terms = |job: &Value| {
            let affinity = &job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
            affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
        };
        let without = Gang { excluded: vec!["n1".to_owned()], ..gang(1, 1) };
        let elsewhere = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]});
        assert_eq!(terms(&made(&settings(json!({})), &without)), json!([{"matchExpressions": [elsewhere]}]));
        let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let template = json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {}]}}}}});
        let both = terms(&made(&settings(json!({"pod_template": template})), &without));
        assert_eq!(both, json!([{"matchExpressions": [zone, elsewhere]}, {"matchExpressions": [elsewhere]}]));
    }

    #[test]
    fn users_choose_among_the_nodes_of_their_pool() {
        let to = |team: &str| json!({"key": "team", "operator": "In", "values": [team]});
        let on = |terms: Value| {
            json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}}}})
        };
        let pool = settings(
            json!({"pod_template": on(json!([{"matchExpressions": [to("a")]}, {"matchExpressions": [to("b")]}]))}),
        );
        let wish = |terms: Value| {
            let container = Container { pod_spec: on(terms).as_object().cloned(), ..Container::default() };
            let job = made(&pool, &Gang { container, ..gang(1, 1) });
            job["spec"]["template"].pointer(NODE_TERMS).cloned().unwrap()
        };
        let both = |team: &str| json!({"matchExpressions": [to(team), to("c")]});
        assert_eq!(wish(json!([{"matchExpressions": [to("c")]}])), json!([both("a"), both("b")]));
        let of_pool = json!([{"matchExpressions": [to("a")]}, {"matchExpressions": [to("b")]}]);
        assert_eq!(wish(json!([{}])), of_pool);
        assert_eq!(wish(json!([])), of_pool);
    }

    #[test]
    fn a_secret_goes_with_its_job() {
        let pool = settings(json!({}));
        let place = Place { cluster: CLUSTER_ID, pool: "gpu", settings: &pool, master: "" };
        let job = Metadata { name: "j".to_owned(), uid: "u".to_owned(), ..Metadata::default() };
        let secret = secret(place, &job, &gang(1, 1));
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(secret["stringData"]["token"], "unmentioned");
    }

    proptest! {
        #[test]
        fn names_and_labels_are_ones_that_kubernetes_takes(cluster in "\\PC{0,80}", allocation in "\\PC{0,200}") {
            let name = job_name(&cluster, &allocation);
            prop_assert!(is_dns_label(&name), "{}", name);
            prop_assert!(name.len() <= LONGEST_NAME);
            prop_assert_eq!(&name, &job_name(&cluster, &allocation));
            prop_assert_ne!(name, job_name(&cluster, &format!("{allocation}1")));
            let inner = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            for value in [label(&allocation), label_of_pool(&allocation)] {
                prop_assert!(value.len() <= 63 && value.chars().all(inner));
                prop_assert!(!value.starts_with(['-', '_', '.']) && !value.ends_with(['-', '_', '.']));
            }
        }
    }
}
