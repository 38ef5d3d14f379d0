//! The pod of a Job in Kubernetes that an agent was started in: what the master's template has set.

use instep_api::link::Bound;

use super::slurm::LONGEST_NODE;
use crate::report::Hinted;

/// Only in a pod of the master's, which has no node of Slurm's in it.
const UID: &str = "INSTEP_POD_UID";

/// Whether this is a pod that the master has asked for.
pub(super) fn is_here(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable(UID).is_some_and(|uid| !uid.is_empty())
}

/// The name of the agent, and what binds it.
pub(super) fn read(allocation: &str, variable: impl Fn(&str) -> Option<String>) -> Result<(String, Bound), Hinted> {
    let hint = "the master's Jobs in Kubernetes set it; a pod template must not replace it";
    let said = |name: &str| {
        let missing = || Hinted::new(format!("--for: {name} is not set in this pod"), hint);
        variable(name).filter(|text| !text.is_empty()).ok_or_else(missing)
    };
    let number = |name: &str| {
        let text = said(name)?;
        text.parse::<u32>().map_err(|_| Hinted::new(format!("--for: {name} is `{text}`, which is not a number"), hint))
    };
    let proper = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
    let node: String = said("INSTEP_POD_NODE")?.chars().filter(proper).take(LONGEST_NODE).collect();
    // Without `-`: what is before the last one is the node.
    let uid: String = said(UID)?.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let bound = Bound {
        allocation: allocation.to_owned(),
        job: said("INSTEP_POD_JOB")?,
        node: number("JOB_COMPLETION_INDEX")?,
        nodes: number("INSTEP_POD_COUNT")?,
    };
    Ok((format!("{node}-{uid}"), bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_learns_from_its_pod_where_it_is() {
        let pod = |name: &str| {
            let value = match name {
                "INSTEP_POD_UID" => "0b5c7a52-9f4d-4a0e-8f4e-aabbccddeeff",
                "INSTEP_POD_NODE" => "gpu-07",
                "INSTEP_POD_JOB" => "instep-5-t-1-0123456789ab",
                "INSTEP_POD_COUNT" => "4",
                "JOB_COMPLETION_INDEX" => "1",
                _ => return None,
            };
            Some(value.to_owned())
        };
        assert!(is_here(pod) && !is_here(|_| None));
        let (name, bound) = read("5.t.1", pod).unwrap();
        let job = "instep-5-t-1-0123456789ab".to_owned();
        let expected = Bound { allocation: "5.t.1".to_owned(), job, node: 1, nodes: 4 };
        assert_eq!((name.as_str(), bound), ("gpu-07-0b5c7a529f4d4a0e8f4eaabbccddeeff", expected));
        for missing in ["INSTEP_POD_NODE", "INSTEP_POD_JOB", "INSTEP_POD_COUNT", "JOB_COMPLETION_INDEX"] {
            let error = read("5.t.1", |name| pod(name).filter(|_| name != missing)).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
        }
    }
}
