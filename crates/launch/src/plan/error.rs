//! Why a command line cannot be carried out.

/// A command line that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PlanError {
    /// What is wrong, and where.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

pub(super) fn error(message: impl Into<String>, hint: impl Into<String>) -> PlanError {
    PlanError { message: message.into(), hint: hint.into() }
}

/// An error text that carries its own `hint:` line.
pub(super) fn split_hint(text: &str) -> PlanError {
    let (message, hint) = text.split_once("\nhint: ").unwrap_or((text, "run `instep doctor` to check this machine"));
    error(message, hint)
}
