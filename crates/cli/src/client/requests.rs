//! Requests that many verbs make.

use instep_client::{Client, segment};

/// A path of the API with these parts, of which any may be a name.
pub(super) fn api(parts: &[&str]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| segment(part)).collect();
    format!("/api/v1/{}", parts.join("/"))
}

/// Posts nothing, and ignores the answer.
pub(super) fn post_empty(client: &Client, path: &str) -> anyhow::Result<()> {
    let _: serde_json::Value = client.post(path, &serde_json::json!({}))?;
    Ok(())
}

/// Deletes what a path names.
pub(super) fn delete(client: &Client, path: &str) -> anyhow::Result<()> {
    let _: serde_json::Value = client.delete(path)?;
    Ok(())
}
