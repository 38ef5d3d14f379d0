//! What Kubernetes says of a pod of an indexed Job: its number, by a variable and by the host name, `JOB-NUMBER`.

use super::super::error::{PlanError, error};
use super::finding::Finding;

/// Set in every pod of a Job with `completionMode: Indexed`.
const INDEX: &str = "JOB_COMPLETION_INDEX";

/// A pod of an indexed Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) index: usize,
    /// The host name of the first pod, where ours is that of such a pod.
    pub(super) first: Option<String>,
    pub(super) findings: Vec<Finding>,
}

impl Pod {
    /// Whether `endpoint` is in the first pod, `train-0.train:29400`; that pod's name may not resolve there yet.
    pub(super) fn first_is_at(&self, endpoint: &str) -> bool {
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        self.first.as_deref() == Some(host.split('.').next().unwrap_or(host))
    }
}

/// Reads the variables; none where this is no such pod.
pub(super) fn read(variable: &impl Fn(&str) -> Option<String>, host_name: &str) -> Result<Option<Pod>, PlanError> {
    let Some(text) = variable(INDEX) else { return Ok(None) };
    let index: usize = text.trim().parse().map_err(|_| {
        error(
            format!("{INDEX}=\"{text}\" is not a number"),
            "Kubernetes sets it in pods of an indexed Job; unset it elsewhere, or give --node-rank",
        )
    })?;
    let job = host_name.strip_suffix(&format!("-{index}")).filter(|job| !job.is_empty());
    let findings = vec![Finding { what: "node rank", value: format!("{index}"), from: INDEX.to_owned() }];
    Ok(Some(Pod { index, first: job.map(|job| format!("{job}-0")), findings }))
}
