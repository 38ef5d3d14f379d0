//! Where checkpoints lie and how many are kept: the `checkpoint_storage` section.

use serde::Serialize;

use super::reader::{Fields, near};

/// Where, and how many.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CheckpointStorage {
    #[serde(flatten)]
    pub place: StorageKind,
    pub save_experiment_best: u32,
    pub save_trial_best: u32,
    pub save_trial_latest: u32,
}

/// A kind of storage.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub enum StorageKind {
    /// A folder as the task sees it.
    Directory { container_path: String },
    /// A folder that all machines see.
    SharedFs {
        host_path: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        storage_path: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        propagation: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container_path: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        checkpoint_path: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tensorboard_path: Option<String>,
    },
    /// Amazon's object storage and what speaks like it.
    S3 {
        bucket: String,
        access_key: Option<String>,
        secret_key: Option<String>,
        endpoint_url: Option<String>,
        prefix: Option<String>,
    },
    /// Google's.
    Gcs { bucket: String, prefix: Option<String> },
    /// Microsoft's.
    Azure {
        container: String,
        connection_string: Option<String>,
        account_url: Option<String>,
        credential: Option<String>,
    },
}

/// The words that `type` may be.
const TYPES: &[&str] = &["directory", "shared_fs", "s3", "gcs", "azure"];

/// The keys that every kind of storage has.
pub(super) const KEPT: &[&str] = &["save_experiment_best", "save_trial_best", "save_trial_latest"];

impl CheckpointStorage {
    pub(super) fn read(mut fields: Fields<'_>) -> CheckpointStorage {
        let kind = fields.text("type");
        let place = match kind.as_deref() {
            Some("directory") => StorageKind::Directory { container_path: needed(&mut fields, "container_path") },
            Some("shared_fs") => shared_fs(&mut fields),
            Some("s3") => s3(&mut fields),
            Some("gcs") => StorageKind::Gcs { bucket: needed(&mut fields, "bucket"), prefix: prefix(&mut fields) },
            Some("azure") => azure(&mut fields),
            other => {
                fields.wrong("type", unknown(other));
                StorageKind::Directory { container_path: String::new() }
            }
        };
        let storage = CheckpointStorage {
            place,
            save_experiment_best: fields.count("save_experiment_best", 0).unwrap_or(0),
            save_trial_best: fields.count("save_trial_best", 0).unwrap_or(1),
            save_trial_latest: fields.count("save_trial_latest", 0).unwrap_or(1),
        };
        if kind.is_some_and(|kind| TYPES.contains(&kind.as_str())) {
            fields.finish();
        }
        storage
    }
}

fn unknown(kind: Option<&str>) -> String {
    let all = TYPES.join(", ");
    match kind {
        None => format!("is needed: one of {all}"),
        Some(kind) => match near(kind, TYPES) {
            Some(near) => format!("`{kind}` is not a kind of storage; did you mean `{near}`?"),
            None => format!("`{kind}` is not a kind of storage; it must be one of {all}"),
        },
    }
}

fn needed(fields: &mut Fields<'_>, name: &'static str) -> String {
    if !fields.has(name) {
        fields.wrong(name, "is needed");
    }
    fields.text(name).unwrap_or_default()
}

fn shared_fs(fields: &mut Fields<'_>) -> StorageKind {
    let host_path = needed(fields, "host_path");
    if !host_path.is_empty() && !host_path.starts_with('/') {
        fields.wrong("host_path", format!("must be an absolute path, not `{host_path}`"));
    }
    let storage_path = fields.text("storage_path");
    if storage_path.as_deref().is_some_and(|path| !lies_inside(path, &host_path)) {
        fields.wrong("storage_path", "must be inside host_path: a relative path without `..`");
    }
    StorageKind::SharedFs {
        host_path,
        storage_path,
        propagation: fields.text("propagation"),
        container_path: fields.text("container_path"),
        checkpoint_path: fields.text("checkpoint_path"),
        tensorboard_path: fields.text("tensorboard_path"),
    }
}

/// Whether `path` stays in `folder`: relative, or absolute and below it.
fn lies_inside(path: &str, folder: &str) -> bool {
    let climbs = path.split('/').any(|part| part == "..");
    let elsewhere = path.starts_with('/') && !std::path::Path::new(path).starts_with(folder);
    !climbs && !elsewhere
}

fn s3(fields: &mut Fields<'_>) -> StorageKind {
    StorageKind::S3 {
        bucket: needed(fields, "bucket"),
        access_key: fields.text("access_key"),
        secret_key: fields.text("secret_key"),
        endpoint_url: fields.text("endpoint_url"),
        prefix: prefix(fields),
    }
}

fn azure(fields: &mut Fields<'_>) -> StorageKind {
    let container = needed(fields, "container");
    let (connection_string, account_url) = (fields.text("connection_string"), fields.text("account_url"));
    let credential = fields.text("credential");
    if connection_string.is_some() == account_url.is_some() {
        fields.wrong("connection_string", "exactly one of connection_string and account_url must be set");
    }
    if connection_string.is_some() && credential.is_some() {
        fields.wrong("credential", "belongs to account_url, a connection_string has its own");
    }
    StorageKind::Azure { container, connection_string, account_url, credential }
}

fn prefix(fields: &mut Fields<'_>) -> Option<String> {
    let prefix = fields.text("prefix")?;
    if prefix.split('/').any(|part| part == "..") {
        fields.wrong("prefix", "must not contain `..`");
    }
    Some(prefix)
}
