//! What we read of Kubernetes' objects. Everything may be missing, or null: the server is not trusted to be ours.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Null is as good as nothing.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(reader: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(reader)?.unwrap_or_default())
}

/// A kind of object that we list and watch.
pub(crate) trait Object: for<'de> Deserialize<'de> + Clone + Send + 'static {
    /// `batch/v1`, as it stands in paths.
    const GROUP: &'static str;
    /// `jobs`.
    const PLURAL: &'static str;

    fn metadata(&self) -> &Metadata;
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    #[serde(deserialize_with = "or_default")]
    pub resource_version: String,
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// In a form that sorts by time.
    #[serde(deserialize_with = "or_default")]
    pub creation_timestamp: String,
    /// Set while it is being deleted: when it will have to be gone.
    pub deletion_timestamp: Option<String>,
}

/// `metadata` of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListMetadata {
    #[serde(deserialize_with = "or_default")]
    pub resource_version: String,
    /// Where the next page begins; empty for the last.
    #[serde(rename = "continue", deserialize_with = "or_default")]
    pub next: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(bound(deserialize = "T: Object"))]
pub(crate) struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(default = "Vec::new", deserialize_with = "or_default")]
    pub items: Vec<T>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

/// The condition of this type that holds, among others.
pub(crate) fn holding<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind && condition.status == "True")
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: JobSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: JobStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct JobSpec {
    #[serde(deserialize_with = "or_default")]
    pub suspend: bool,
    #[serde(deserialize_with = "or_default")]
    pub completions: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct JobStatus {
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

impl Object for Job {
    const GROUP: &'static str = "apis/batch/v1";
    const PLURAL: &'static str = "jobs";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    /// Empty until the scheduler has found one.
    #[serde(deserialize_with = "or_default")]
    pub node_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStatus {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub state: ContainerState,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub waiting: Option<Reason>,
    pub terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Reason {
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Terminated {
    #[serde(deserialize_with = "or_default")]
    pub exit_code: i32,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

impl Object for Pod {
    const GROUP: &'static str = "api/v1";
    const PLURAL: &'static str = "pods";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Why the server did not do something: Kubernetes' `Status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Status {
    /// Of HTTP.
    #[serde(deserialize_with = "or_default")]
    pub code: u16,
    /// One word, such as `AlreadyExists`.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    #[serde(deserialize_with = "or_default")]
    pub details: StatusDetails,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StatusDetails {
    /// When to come again, if the server says.
    #[serde(deserialize_with = "or_default")]
    pub retry_after_seconds: u32,
}

impl Status {
    /// Whether the same request may succeed later without anybody changing anything.
    pub(crate) fn is_retryable(&self) -> bool {
        // 403 with a quota in it is one that is used up for now.
        matches!(self.code, 408 | 429 | 500..) || (self.code == 403 && self.message.contains("exceeded quota"))
    }

    /// What was asked for from then on has been forgotten: everything must be listed anew.
    pub(crate) fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }
}

/// A line of a watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WatchEvent<T> {
    /// It is new, or has changed.
    Put(T),
    Deleted(T),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// The watch ends.
    Error(Status),
}

/// Reads a line of a watch.
pub(crate) fn watch_event<T: Object>(line: &[u8]) -> Result<WatchEvent<T>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type")]
        kind: String,
        #[serde(borrow)]
        object: &'a serde_json::value::RawValue,
    }
    #[derive(Deserialize)]
    struct Marked {
        metadata: Metadata,
    }
    let line: Line<'_> = serde_json::from_slice(line)?;
    let object = line.object.get();
    Ok(match line.kind.as_str() {
        "ADDED" | "MODIFIED" => WatchEvent::Put(serde_json::from_str(object)?),
        "DELETED" => WatchEvent::Deleted(serde_json::from_str(object)?),
        "BOOKMARK" => WatchEvent::Bookmark(serde_json::from_str::<Marked>(object)?.metadata.resource_version),
        "ERROR" => WatchEvent::Error(serde_json::from_str(object)?),
        other => return Err(serde::de::Error::custom(format_args!("there is no event of type `{other:.20}`"))),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read<T: Object>(value: &serde_json::Value) -> WatchEvent<T> {
        watch_event(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn lines_of_a_watch_are_understood() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7", "labels": null, "creationTimestamp": "x"},
            "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}],
                "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}});
        let WatchEvent::Put(found) = read::<Pod>(&json!({"type": "ADDED", "object": pod})) else { panic!() };
        assert_eq!((found.spec.node_name.as_str(), found.metadata.resource_version.as_str()), ("n", "7"));
        assert_eq!(found.status.conditions[0].reason, "Unschedulable");
        assert!(holding(&found.status.conditions, "PodScheduled").is_none());
        assert_eq!(found.status.container_statuses[0].state.terminated.as_ref().unwrap().exit_code, 137);
        assert!(matches!(read::<Pod>(&json!({"type": "DELETED", "object": pod})), WatchEvent::Deleted(_)));
        let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "9"}}});
        assert_eq!(read::<Pod>(&bookmark), WatchEvent::Bookmark("9".to_owned()));
        let error = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}});
        let WatchEvent::Error(status) = read::<Pod>(&error) else { panic!() };
        assert!(status.is_expired() && !status.is_retryable());
    }

    #[test]
    fn what_may_succeed_later_is_known() {
        let status = |code, message: &str| Status { code, message: message.to_owned(), ..Status::default() };
        for (code, message, retryable) in [
            (429, "", true),
            (503, "", true),
            (403, "pods \"x\" is forbidden: exceeded quota: q, requested: pods=1", true),
            (403, "cannot create resource", false),
            (409, "", false),
            (422, "", false),
        ] {
            assert_eq!(status(code, message).is_retryable(), retryable, "{code} {message}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,60}") {
            let _ = watch_event::<Pod>(&bytes);
            for kind in ["ADDED", "DELETED", "BOOKMARK", "ERROR"] {
                let line = format!("{{\"type\": \"{kind}\", \"object\": {text}}}");
                let _ = watch_event::<Job>(line.as_bytes());
                let _ = watch_event::<Pod>(line.as_bytes());
            }
        }
    }
}
