//! What was looked up, for people who wonder where a value comes from.

/// One thing that a variable says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: `nodes`, `node rank`, …
    pub what: &'static str,
    /// What it is.
    pub value: String,
    /// The variables that say so.
    pub from: String,
}
