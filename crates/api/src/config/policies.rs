//! What is done when a log says something: the `log_policies` section.

use serde::Serialize;
use serde_json::{Value, json};

use super::reader::{Fields, Mistakes};

/// What to look for, and what to do when it is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogPolicy {
    pub name: Option<String>,
    /// A regular expression; without one the policy of that name is off.
    pub pattern: Option<String>,
    pub action: Option<LogAction>,
}

/// What a policy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogAction {
    /// The trial is not tried again if it fails.
    CancelRetries,
    /// The trial is not run on that machine again.
    ExcludeNode,
}

/// What every experiment looks for.
pub(super) fn built_in() -> Value {
    json!([
        {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*"},
        {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*"},
    ])
}

/// A policy with its action as a word, also where it was written as a map.
pub(super) fn plain(mut policy: Value) -> Value {
    if let Some(action) = policy.get_mut("action").filter(|action| action.is_object()) {
        *action = action["type"].take();
    }
    policy
}

pub(super) fn read(fields: &mut Fields<'_>) -> Vec<LogPolicy> {
    let mistakes = fields.mistakes();
    let mut policies: Vec<LogPolicy> = Vec::new();
    for (path, value) in fields.list("log_policies") {
        let policy = one(&path, value, mistakes);
        if policy.name.is_some() && policies.iter().any(|known| known.name == policy.name) {
            mistakes.add(&path, format!("the name `{}` is given twice", policy.name.as_deref().unwrap_or_default()));
        }
        policies.push(policy);
    }
    policies
}

fn one(path: &str, value: Value, mistakes: &Mistakes) -> LogPolicy {
    let mut fields = Fields::of(path, value, mistakes);
    let policy = LogPolicy {
        name: fields.text("name"),
        pattern: fields.text("pattern"),
        action: fields.take("action").and_then(|value| action(&fields.path("action"), value, mistakes)),
    };
    if policy.name.is_none() && (policy.pattern.is_none() || policy.action.is_none()) {
        fields.wrong("name", "is needed, unless both pattern and action are set");
    }
    fields.finish();
    policy
}

fn action(path: &str, value: Value, mistakes: &Mistakes) -> Option<LogAction> {
    let word = match value {
        Value::String(word) => Some(word),
        other => {
            let mut fields = Fields::of(path, other, mistakes);
            let word = fields.text("type");
            fields.finish();
            word
        }
    };
    match word.as_deref() {
        Some("cancel_retries") => Some(LogAction::CancelRetries),
        Some("exclude_node") => Some(LogAction::ExcludeNode),
        _ => {
            mistakes.add(path, "must be cancel_retries or exclude_node");
            None
        }
    }
}
