//! What a Job and its pods, as the API server shows them, mean for the allocation: a pure function.

use std::collections::BTreeSet;

use instep_policy::engine::Phase;

use super::client::shown;
use super::objects::{Condition, ContainerStatus, Job, Pod, holding};

/// The pod's number in its Job.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Nodes that are named; of more, how many.
const NAMED_NODES: usize = 8;

/// A Job, looked at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    pub phase: Phase,
    /// Pods that have nodes, of as many as the gang needs.
    pub placed: usize,
    pub wanted: usize,
    /// Pods that are there, in whatever state.
    pub pods: usize,
    /// Those of them that have ended, or are being ended.
    pub ending: usize,
    /// Somebody holds it back: Kueue, or we.
    pub suspended: bool,
    /// Why a pod of it was ended from outside, or is about to be. The pod may be gone before the Job has failed.
    pub disrupted: Option<String>,
}

impl Observed {
    /// Whether some of its pods hold nodes while others find none.
    pub(crate) fn is_incomplete(&self) -> bool {
        // What ends is no gang that waits for its first start.
        let waits = matches!(self.phase, Phase::Waiting { .. }) && self.ending == 0;
        waits && !self.suspended && self.placed > 0 && self.placed < self.wanted
    }
}

/// Looks at a Job and its pods. `queue` is the Kueue queue, if it is in one, and `known` what was `disrupted` before.
pub(crate) fn look(job: &Job, pods: &[&Pod], queue: Option<&str>, known: Option<&str>) -> Observed {
    let mut pods = pods.to_vec();
    pods.sort_by_key(|pod| index(pod));
    let alive = || pods.iter().copied().filter(|pod| !is_over(pod) && pod.metadata.deletion_timestamp.is_none());
    let disrupted = known.map(str::to_owned).or_else(|| disrupted(job, &pods));
    Observed {
        phase: phase(job, &pods, queue, disrupted.as_deref()),
        placed: alive().filter(|pod| !pod.spec.node_name.is_empty()).count(),
        wanted: job.spec.completions as usize,
        pods: pods.len(),
        ending: pods.len() - alive().count(),
        suspended: job.spec.suspend,
        disrupted,
    }
}

fn index(pod: &Pod) -> u32 {
    let index = pod.metadata.labels.get(INDEX).or(pod.metadata.annotations.get(INDEX));
    index.and_then(|text| text.parse().ok()).unwrap_or(u32::MAX)
}

fn is_over(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

fn phase(job: &Job, pods: &[&Pod], queue: Option<&str>, disrupted: Option<&str>) -> Phase {
    let conditions = &job.status.conditions;
    if holding(conditions, "Complete").is_some() {
        // Pods that were asked to end may have done so in order.
        return match disrupted {
            Some(why) => Phase::Ended { why: why.to_owned(), in_order: false },
            None => Phase::Ended { why: "all its pods have ended in order".to_owned(), in_order: true },
        };
    }
    if let Some(failed) = holding(conditions, "Failed") {
        return Phase::Ended { why: why_failed(failed, pods, disrupted), in_order: false };
    }
    let ending = holding(conditions, "FailureTarget");
    if ending.is_some() || job.metadata.deletion_timestamp.is_some() {
        // The pod of a lost node stays until the node is back: nobody will hear of it before.
        let left: Vec<&Pod> = pods.iter().copied().filter(|pod| !is_over(pod)).collect();
        let all_lost = !left.is_empty() && left.iter().all(|pod| is_lost(pod));
        return match (all_lost, ending) {
            (true, Some(ending)) => Phase::Ended { why: why_failed(ending, pods, disrupted), in_order: false },
            _ => Phase::Ending,
        };
    }
    if job.spec.suspend {
        let reason = match queue {
            Some(queue) => format!("Kueue has not admitted it to queue {queue}"),
            None => "only some of its pods found nodes, which were given back; it is tried again".to_owned(),
        };
        return Phase::Waiting { reason };
    }
    if pods.iter().any(|pod| pod.status.phase == "Failed") {
        return Phase::Ending;
    }
    let wanted = job.spec.completions as usize;
    let alive: Vec<&Pod> = pods.iter().copied().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    if alive.len() < wanted {
        return Phase::Waiting { reason: format!("{} of {wanted} pods have been created", alive.len()) };
    }
    let placed = alive.iter().filter(|pod| !pod.spec.node_name.is_empty()).count();
    if placed < wanted {
        let why =
            alive.iter().find_map(|pod| unscheduled(pod)).unwrap_or_else(|| "no node was looked for yet".to_owned());
        return Phase::Waiting { reason: format!("{placed} of {wanted} pods have nodes: {why}") };
    }
    if let Some(reason) = alive.iter().find_map(|pod| unstarted(pod)) {
        return Phase::Waiting { reason };
    }
    Phase::Running { nodes: nodes(&alive) }
}

fn nodes(pods: &[&Pod]) -> String {
    let mut seen = BTreeSet::new();
    let nodes: Vec<String> = pods
        .iter()
        .filter(|pod| seen.insert(pod.spec.node_name.as_str()))
        .map(|pod| shown(&pod.spec.node_name))
        .collect();
    match nodes.len().checked_sub(NAMED_NODES) {
        None | Some(0) => nodes.join(","),
        Some(more) => format!("{} and {more} more", nodes[..NAMED_NODES].join(",")),
    }
}

/// Why a pod has no node.
fn unscheduled(pod: &Pod) -> Option<String> {
    if !pod.spec.node_name.is_empty() {
        return None;
    }
    let scheduled = pod.status.conditions.iter().find(|condition| condition.kind == "PodScheduled")?;
    Some(shown(&format!("{}: {}", scheduled.reason, scheduled.message)))
}

/// Why a pod that has a node does not run.
fn unstarted(pod: &Pod) -> Option<String> {
    if pod.status.phase != "Pending" {
        return None;
    }
    let containers = pod.status.init_container_statuses.iter().chain(&pod.status.container_statuses);
    let waiting =
        containers.filter_map(|container| container.state.waiting.as_ref()).find(|waiting| !waiting.reason.is_empty());
    let why = match waiting {
        Some(waiting) if waiting.message.is_empty() => waiting.reason.clone(),
        Some(waiting) => format!("{}: {}", waiting.reason, waiting.message),
        None => "its containers are being started".to_owned(),
    };
    Some(shown(&format!("pod {} on {}: {why}", pod.metadata.name, pod.spec.node_name)))
}

fn disruption(pod: &Pod) -> Option<&Condition> {
    holding(&pod.status.conditions, "DisruptionTarget")
}

/// Whether somebody has asked it to end.
pub(crate) fn is_being_ended(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || disruption(pod).is_some()
}

/// Its node is silent, and the pod's time is over: nobody knows what became of it.
fn is_lost(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        && disruption(pod).is_some_and(|condition| condition.reason == "DeletionByTaintManager")
}

/// Why the cluster or somebody ends a pod of a Job that would have run on.
pub(crate) fn disrupted(job: &Job, pods: &[&Pod]) -> Option<String> {
    if let Some(pod) = pods.iter().find(|pod| disruption(pod).is_some()) {
        return Some(why_over(pod));
    }
    // Those of a Job that ends, or gives its nodes back, are deleted with it; it ends when one of them has failed.
    let ends = |kind| holding(&job.status.conditions, kind).is_some();
    let runs = !job.spec.suspend && job.metadata.deletion_timestamp.is_none();
    let runs = runs && !["FailureTarget", "SuccessCriteriaMet", "Failed", "Complete"].into_iter().any(ends);
    let runs = runs && pods.iter().all(|pod| pod.status.phase != "Failed");
    let deleted = pods.iter().find(|pod| runs && !is_over(pod) && pod.metadata.deletion_timestamp.is_some())?;
    Some(of_pod(deleted, "deleted"))
}

/// Why a Job failed: what its pods say, or else what the Job does.
fn why_failed(condition: &Condition, pods: &[&Pod], disrupted: Option<&str>) -> String {
    // Whoever was disrupted comes first: the others failed because of it.
    let of_pods = || {
        let failed =
            || pods.iter().find(|pod| pod.status.phase == "Failed" && ended(pod).is_some_and(|end| !is_by_signal(end)));
        let any = || pods.iter().find(|pod| pod.status.phase == "Failed");
        disrupted.map(str::to_owned).or_else(|| failed().or_else(any).map(|pod| why_over(pod)))
    };
    match condition.reason.as_str() {
        "BackoffLimitExceeded" | "FailedIndexes" | "MaxFailedIndexesExceeded" => {
            of_pods().unwrap_or_else(|| "one of its pods was deleted or has failed".to_owned())
        }
        "DeadlineExceeded" => "its time is over (DeadlineExceeded)".to_owned(),
        reason => shown(&format!("{reason}: {}", condition.message)),
    }
}

fn ended(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.container_statuses.iter().find(|container| container.state.terminated.is_some())
}

/// By SIGTERM or SIGKILL, as those end whose Job has failed elsewhere.
fn is_by_signal(container: &ContainerStatus) -> bool {
    let end = container.state.terminated.as_ref();
    end.is_some_and(|end| matches!(end.exit_code, 137 | 143) && end.reason != "OOMKilled")
}

/// Why a pod has ended, or is about to.
fn why_over(pod: &Pod) -> String {
    let why = match (disruption(pod), ended(pod).and_then(|container| container.state.terminated.as_ref())) {
        (Some(condition), _) => {
            let what = match condition.reason.as_str() {
                "PreemptionByScheduler" => "preempted by pods of a higher priority",
                "DeletionByTaintManager" => "its node is lost, or may not run it any more",
                "EvictionByEvictionAPI" => "evicted, as when a node is drained",
                "TerminationByKubelet" => "ended by its node, which lacks something or is shut down",
                "DeletionByPodGC" => "its node is gone",
                _ => "disrupted",
            };
            format!("{what} ({}: {})", condition.reason, condition.message)
        }
        (None, _) if pod.status.reason == "Evicted" => format!("evicted by its node: {}", pod.status.message),
        (None, Some(end)) if end.reason == "OOMKilled" => "out of memory (OOMKilled)".to_owned(),
        (None, Some(end)) if end.message.is_empty() => format!("exit code {} ({})", end.exit_code, end.reason),
        (None, Some(end)) => format!("exit code {} ({}: {})", end.exit_code, end.reason, end.message),
        (None, None) if pod.status.reason.is_empty() => "it failed".to_owned(),
        (None, None) => format!("{}: {}", pod.status.reason, pod.status.message),
    };
    of_pod(pod, &why)
}

fn of_pod(pod: &Pod, why: &str) -> String {
    let on = if pod.spec.node_name.is_empty() { String::new() } else { format!(" on {}", pod.spec.node_name) };
    shown(&format!("pod {}{on}: {why}", pod.metadata.name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn job(value: &Value) -> Job {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn of(status: Value) -> Job {
        job(&json!({"metadata": {"name": "j"}, "spec": {"completions": 2}, "status": status}))
    }

    fn condition(kind: &str, reason: &str) -> Value {
        json!({"conditions": [{"type": kind, "status": "True", "reason": reason, "message": "m"}]})
    }

    fn pod(number: u32, node: &str, status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": format!("j-{number}"), "labels": {INDEX: number.to_string()}},
            "spec": {"nodeName": node}, "status": status
        }))
        .unwrap()
    }

    fn running(number: u32, node: &str) -> Pod {
        pod(number, node, json!({"phase": "Running"}))
    }

    fn ended_with(number: u32, end: Value) -> Pod {
        let status = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": end}}]});
        pod(number, "n1", status)
    }

    fn phase_of(job: &Job, pods: &[Pod]) -> Phase {
        look(job, &pods.iter().collect::<Vec<_>>(), None, None).phase
    }

    fn text_of(job: &Job, pods: &[Pod]) -> String {
        match phase_of(job, pods) {
            Phase::Waiting { reason } => format!("waiting: {reason}"),
            Phase::Running { nodes } => format!("running: {nodes}"),
            Phase::Ending => "ending".to_owned(),
            Phase::Ended { why, in_order } => format!("ended {in_order}: {why}"),
        }
    }

    #[test]
    fn a_job_is_where_its_pods_are() {
        let unschedulable = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        let pulling = json!({"phase": "Pending", "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]});
        let disrupted = json!({"phase": "Failed", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}]});
        let term = json!({"exitCode": 143, "reason": "Error"});
        let cases = [
            (of(json!({})), vec![], "waiting: 0 of 2 pods have been created"),
            (
                of(json!({})),
                vec![running(0, "n2"), pod(1, "", unschedulable)],
                "waiting: 1 of 2 pods have nodes: Unschedulable: 0/2 nodes are available",
            ),
            (
                of(json!({})),
                vec![running(1, "n1"), pod(0, "n2", pulling)],
                "waiting: pod j-0 on n2: ImagePullBackOff: no such image",
            ),
            (of(json!({})), vec![running(1, "n1"), running(0, "n2")], "running: n2,n1"),
            (of(json!({})), vec![running(1, "n1"), ended_with(0, term.clone())], "ending"),
            (of(condition("Complete", "")), vec![], "ended true: all its pods have ended in order"),
            (of(condition("FailureTarget", "BackoffLimitExceeded")), vec![running(0, "n1")], "ending"),
            (
                of(condition("Failed", "BackoffLimitExceeded")),
                vec![],
                "ended false: one of its pods was deleted or has failed",
            ),
            (
                of(condition("Failed", "BackoffLimitExceeded")),
                vec![ended_with(0, term), ended_with(1, json!({"exitCode": 137, "reason": "OOMKilled"}))],
                "ended false: pod j-1 on n1: out of memory (OOMKilled)",
            ),
            (
                of(condition("Failed", "BackoffLimitExceeded")),
                vec![pod(0, "n1", disrupted)],
                "ended false: pod j-0 on n1: preempted by pods of a higher priority (PreemptionByScheduler: m)",
            ),
            (of(condition("Failed", "DeadlineExceeded")), vec![], "ended false: its time is over (DeadlineExceeded)"),
            (of(condition("Failed", "Odd")), vec![], "ended false: Odd: m"),
        ];
        for (job, pods, expected) in cases {
            assert_eq!(text_of(&job, &pods), expected);
        }
    }

    #[test]
    fn a_lost_node_is_not_waited_for() {
        let lost: Pod = serde_json::from_value(json!({
            "metadata": {"name": "j-0", "deletionTimestamp": "2026-11-19T00:00:00Z"}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "m"}]}
        }))
        .unwrap();
        let failing = of(condition("FailureTarget", "BackoffLimitExceeded"));
        assert!(
            text_of(&failing, std::slice::from_ref(&lost)).starts_with("ended false: pod j-0 on n1: its node is lost")
        );
        assert_eq!(phase_of(&failing, &[lost.clone(), running(1, "n2")]), Phase::Ending, "the other one still ends");
    }

    #[test]
    fn who_ended_a_pod_is_known_when_the_pod_is_gone() {
        let deleted: Pod = serde_json::from_value(json!({
            "metadata": {"name": "j-1", "deletionTimestamp": "2026-11-19T00:00:00Z"}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"}}))
        .unwrap();
        let seen = |job: &Job, pods: &[&Pod], known: Option<&str>| look(job, pods, None, known);
        let (runs, other) = (of(json!({})), running(0, "n2"));
        assert_eq!(seen(&runs, &[&other], None).disrupted, None);
        let why = seen(&runs, &[&other, &deleted], None).disrupted.unwrap();
        assert_eq!(why, "pod j-1 on n1: deleted");
        let failed = of(condition("Failed", "BackoffLimitExceeded"));
        let ended = Phase::Ended { why: why.clone(), in_order: false };
        assert_eq!(seen(&failed, &[], Some(&why)).phase, ended);
        assert_eq!(seen(&of(condition("Complete", "")), &[], Some(&why)).phase, ended, "it saved, and left in order");
        // Those that end with their Job are not why it ends.
        let failing = of(condition("FailureTarget", "BackoffLimitExceeded"));
        let suspended = job(&json!({"spec": {"completions": 2, "suspend": true}}));
        for ending in [&failing, &failed, &suspended] {
            assert_eq!(seen(ending, &[&deleted], None).disrupted, None);
        }
        let crashed = ended_with(0, json!({"exitCode": 1, "reason": "Error"}));
        assert_eq!(seen(&runs, &[&crashed, &deleted], None).disrupted, None);
    }

    #[test]
    fn a_gang_is_incomplete_when_it_holds_nodes_and_waits_for_more() {
        let waiting = |number| pod(number, "", json!({"phase": "Pending"}));
        let is_incomplete =
            |job: &Job, pods: [Pod; 2]| look(job, &pods.iter().collect::<Vec<_>>(), None, None).is_incomplete();
        assert!(is_incomplete(&of(json!({})), [running(0, "n"), waiting(1)]));
        assert!(!is_incomplete(&of(json!({})), [waiting(0), waiting(1)]), "it holds nothing");
        assert!(!is_incomplete(&of(json!({})), [running(0, "n"), running(1, "n")]));
        let deleted: Pod = serde_json::from_value(json!({
            "metadata": {"name": "j-1", "deletionTimestamp": "2026-11-19T00:00:00Z"}, "spec": {"nodeName": "n"},
            "status": {"phase": "Running"}}))
        .unwrap();
        assert!(!is_incomplete(&of(json!({})), [running(0, "n"), deleted]), "it ran, and is being ended");
        let held = job(&json!({"spec": {"completions": 2, "suspend": true}}));
        assert!(!is_incomplete(&held, [running(0, "n"), waiting(1)]), "it is giving them back");
        let kueue = look(&held, &[], Some("team"), None).phase;
        assert_eq!(kueue, Phase::Waiting { reason: "Kueue has not admitted it to queue team".to_owned() });
    }

    proptest! {
        #[test]
        fn whatever_the_server_says_is_one_plain_line(
            phases in prop::collection::vec("(Pending|Running|Failed|Succeeded|\\PC{0,5})", 0..4),
            node in "[a-z\u{1b}\n]{0,4}", reason in "\\PC{0,2000}", kind in "(Failed|FailureTarget|Complete|x)",
        ) {
            let job = job(&json!({"spec": {"completions": 2}, "status": {"conditions": [
                {"type": kind, "status": "True", "reason": reason, "message": "\u{1b}[2J\n"}]}}));
            let pods: Vec<Pod> = phases.iter().zip(0..).map(|(phase, number)| pod(number, &node, json!({"phase": phase,
                "reason": reason, "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]}))).collect();
            let text = text_of(&job, &pods);
            prop_assert!(!text.chars().any(char::is_control), "{:?}", text);
            prop_assert!(text.chars().count() < 3000);
        }
    }
}
