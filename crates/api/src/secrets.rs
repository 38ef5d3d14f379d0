//! Secrets: values that tasks are given and no answer shows. They are not Determined's.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::identifiers::WorkspaceId;
use crate::wire::Timestamp;

/// Bytes of a secret at most.
pub const LARGEST: usize = 64 << 10;

/// Letters of a value that is masked in the output of tasks: shorter ones would mask words by accident.
pub const SHORTEST_MASKED: usize = 8;

/// A secret as it is listed: without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Secret {
    /// By which configurations name it.
    pub name: String,
    /// Whose it is; none if it is a user's own.
    pub workspace_id: Option<WorkspaceId>,
    /// When it was last set.
    pub changed_at: Timestamp,
    /// Who set it.
    pub changed_by: String,
}

/// `GET /secrets`
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the name says it")]
pub struct SecretsResponse {
    pub secrets: Vec<Secret>,
}

/// `PUT /secrets/{name}`
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretRequest {
    /// The secret itself.
    pub value: Option<String>,
    /// Whose it is to be; none for the caller's own.
    #[serde(alias = "workspace_id")]
    pub workspace_id: Option<WorkspaceId>,
}

impl fmt::Debug for SecretRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SecretRequest").field("workspace_id", &self.workspace_id).finish_non_exhaustive()
    }
}

/// What a task is given, by the names under which it finds them.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenSecrets {
    /// Values of variables.
    pub variables: BTreeMap<String, String>,
    /// Contents of files.
    pub files: BTreeMap<String, String>,
    /// Why some of them cannot be given: the task must not start.
    pub problem: Option<String>,
}

impl fmt::Debug for GivenSecrets {
    /// Names only.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (variables, files) = (self.variables.keys(), self.files.keys());
        formatter.debug_set().entries(variables).entries(files).finish()
    }
}

/// Why a name cannot be a secret's.
pub fn objection(name: &str) -> Option<&'static str> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let fits = (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.');
    (!fits).then_some("must be 1 to 100 letters, digits, `-`, `_` or `.`, and not begin with a dot")
}

/// Why a name cannot be a variable's.
pub fn variable_objection(name: &str) -> Option<&'static str> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let fits = !name.is_empty() && name.chars().all(plain) && !name.starts_with(|letter: char| letter.is_ascii_digit());
    (!fits).then_some("must be a variable's name: letters, digits and `_`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for name in ["hf-token", "a", "A_1.b"] {
            assert_eq!(objection(name), None, "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "é", "a\n", &"x".repeat(101)] {
            assert!(objection(name).is_some(), "{name}");
        }
        for (name, fits) in
            [("HF_TOKEN", true), ("_x1", true), ("1x", false), ("A=B", false), ("", false), ("a-b", false)]
        {
            assert_eq!(variable_objection(name).is_none(), fits, "{name}");
        }
    }

    #[test]
    fn values_are_not_written_for_people() {
        let given =
            GivenSecrets { variables: [("A".to_owned(), "hunter2".to_owned())].into(), ..GivenSecrets::default() };
        let request = SecretRequest { value: Some("hunter2".to_owned()), workspace_id: None };
        assert!(!format!("{given:?}{request:?}").contains("hunter2"));
    }
}
