//! One thing that was looked up about the machine, and a judgement of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest waits: a name server that does not answer, a GPU driver that first has to wake its GPUs.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    Warning,
    Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub check: &'static str,
    pub verdict: Verdict,
    pub finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

pub(super) fn ok(check: &'static str, finding: impl Into<String>) -> Check {
    Check { check, verdict: Verdict::Ok, finding: finding.into(), hint: None }
}

pub(super) fn warning(check: &'static str, finding: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { check, verdict: Verdict::Warning, finding: finding.into(), hint: Some(hint.into()) }
}

pub(super) fn problem(check: &'static str, finding: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { check, verdict: Verdict::Problem, finding: finding.into(), hint: Some(hint.into()) }
}

pub(super) fn read_text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
