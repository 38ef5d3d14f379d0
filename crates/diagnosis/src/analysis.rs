//! Evidence in, findings out.
//!
//! A rank that waits in an operation waits for those who have not come to it; those who wait themselves, elsewhere, point to
//! others. A finding is an operation that is stuck. It comes first if somebody in it does not wait for anybody: there the
//! chain begins. Where every chain comes back to itself, that is the finding: a deadlock.

mod chain;
mod operations;
mod unrecorded;

use std::time::Duration;

use serde::Serialize;

use crate::evidence::{Condition, Evidence, Stacks};
use crate::stacks::{Activity, Frame, Thread, activity, is_library, reads};
pub use operations::Stuck;
use operations::{Key, stuck_operations};

/// What kept a rank from coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Its process is gone, and had not said so.
    Dead,
    /// Somebody stopped its process.
    Stopped,
    /// Its process ended by itself, or it left the group.
    Finished,
    /// It waits in another operation.
    InAnotherCollective,
    /// It waits in another operation for ranks that wait for it.
    Deadlock,
    /// It runs code of the script.
    InUserCode,
    /// It waits for a data loader, a queue, a connection, a file.
    WaitingForData,
    /// It has come, as all have, and nothing moves.
    NetworkCut,
    /// It is on another machine: what it does is not seen from here.
    Elsewhere,
    /// It is here and alive, and what it does cannot be told.
    Unknown,
}

impl Class {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Dead => "dead",
            Class::Stopped => "stopped",
            Class::Finished => "finished",
            Class::InAnotherCollective => "in another collective",
            Class::Deadlock => "deadlock",
            Class::InUserCode => "in user code",
            Class::WaitingForData => "waiting for data",
            Class::NetworkCut => "network cut",
            Class::Elsewhere => "elsewhere",
            Class::Unknown => "unknown",
        }
    }
}

/// Why one rank keeps the others waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Which rank of the job.
    pub rank: u32,
    /// In a word.
    pub class: Class,
    /// In a sentence that begins with "it".
    pub why: String,
}

/// One operation that is stuck, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The operation; none where a process alone is what is wrong.
    pub operation: Option<Stuck>,
    /// Ranks of the job that are in it.
    pub arrived: Vec<u32>,
    /// Ranks that are not.
    pub missing: Vec<u32>,
    /// Ranks of other machines, of which nothing is known here.
    pub unseen: Vec<u32>,
    /// Whose fault it is.
    pub causes: Vec<Cause>,
    /// All of it in a sentence.
    pub sentence: String,
}

/// Everything that was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diagnosis {
    /// The one where a chain begins comes first.
    pub findings: Vec<Finding>,
    /// What could not be known, and why.
    pub remarks: Vec<String>,
}

/// Looks up a line of a script; the core reads no files.
pub type SourceLine<'a> = &'a dyn Fn(&str, u32) -> Option<String>;

/// Concludes. `now` is the monotonic clock in nanoseconds, and an operation counts as stuck after `stuck_after`.
pub fn diagnose(evidence: &[Evidence], now: u64, stuck_after: Duration, line: SourceLine<'_>) -> Diagnosis {
    let keys = stuck_operations(evidence, now, stuck_after);
    let mut findings: Vec<Finding> = keys.iter().map(|key| examine(key, &keys, evidence, line)).collect();
    chain::resolve(&mut findings);
    findings.extend(unrecorded::examine(evidence, line));
    findings.extend(lone_processes(evidence, &findings));
    for finding in findings.iter_mut().filter(|finding| finding.sentence.is_empty()) {
        finding.sentence = crate::report::sentence(finding);
    }
    Diagnosis { findings, remarks: remarks(evidence) }
}

/// Operations that have been under way for too long, as names that stay the same while they are.
pub fn overdue(evidence: &[Evidence], now: u64, stuck_after: Duration) -> std::collections::BTreeSet<String> {
    let keys = stuck_operations(evidence, now, stuck_after).into_iter().filter(|key| !key.stuck.failed);
    keys.map(|key| key.stuck.describe()).collect()
}

fn by_rank(evidence: &[Evidence], rank: u32) -> Option<&Evidence> {
    evidence.iter().find(|one| one.rank == Some(rank))
}

/// Who is in an operation, who is not, and why.
fn examine(key: &Key, keys: &[Key], evidence: &[Evidence], line: SourceLine<'_>) -> Finding {
    let (mut arrived, mut missing, mut unseen) = (Vec::new(), Vec::new(), Vec::new());
    for rank in key.members() {
        match by_rank(evidence, *rank) {
            _ if key.entered(*rank) => arrived.push(*rank),
            Some(_) => missing.push(*rank),
            None => unseen.push(*rank),
        }
    }
    let mut causes: Vec<Cause> = Vec::new();
    for rank in &missing {
        causes.extend(by_rank(evidence, *rank).map(|one| absence(*rank, one, key, keys, line)));
    }
    for rank in &arrived {
        causes.extend(by_rank(evidence, *rank).and_then(|one| lost_inside(*rank, one, key)));
    }
    causes.extend(key.contradictions());
    if causes.is_empty() {
        let elsewhere = "it runs on another machine: run `instep diagnose` there; if it has arrived, the network \
                         between is cut";
        let causes_of = |ranks: &[u32], class, why: &str| -> Vec<Cause> {
            ranks.iter().map(|rank| Cause { rank: *rank, class, why: why.to_owned() }).collect()
        };
        causes = if unseen.is_empty() {
            causes_of(&arrived, Class::NetworkCut, "it is in the operation, like all ranks, but nothing arrives")
        } else {
            causes_of(&unseen, Class::Elsewhere, elsewhere)
        };
    }
    Finding { operation: Some(key.stuck.clone()), arrived, missing, unseen, causes, sentence: String::new() }
}

/// Why a rank that can be seen is not there.
fn absence(rank: u32, one: &Evidence, key: &Key, keys: &[Key], line: SourceLine<'_>) -> Cause {
    let cause = |class: Class, why: String| Cause { rank, class, why };
    if let Some(cause) = gone(rank, one) {
        return cause;
    }
    if key.was_left_by(one) {
        return cause(Class::Finished, "it has left the group".to_owned());
    }
    let other = keys.iter().find(|other| other.stuck != key.stuck && other.is_waited_in_by(rank));
    let waits = |other: &Key| cause(Class::InAnotherCollective, format!("it waits in {}", other.stuck.describe()));
    let (threads, held) = match &one.stacks {
        Stacks::Known { threads, held } => (threads, *held),
        Stacks::Unknown(reason) => {
            return other.map_or_else(|| cause(Class::Unknown, format!("its activity is unknown: {reason}")), waits);
        }
    };
    let nothing = || cause(Class::Unknown, "it has no Python frames: it is starting or exiting".to_owned());
    let Some(thread) = threads.first() else { return other.map_or_else(nothing, waits) };
    busy_with(rank, thread, held, line).unwrap_or_else(|| match (other, activity(thread)) {
        (Some(other), _) => waits(other),
        // In torch.distributed, but in nothing that is recorded as stuck.
        (None, Activity::Communicates) => cause(Class::InAnotherCollective, format!("it is inside {}", called(thread))),
        (None, _) => nothing(),
    })
}

/// What a rank does instead of waiting for others; none if that is what it does.
fn busy_with(rank: u32, thread: &Thread, held: bool, line: SourceLine<'_>) -> Option<Cause> {
    let holds = if held { ", and holds the interpreter in native code" } else { "" };
    let text = |frame: &Frame| line(&frame.file, frame.line);
    let (class, what, frame) = match activity(thread) {
        Activity::Communicates | Activity::Nothing => return None,
        Activity::Data(frame) => (Class::WaitingForData, "it waits for data", frame),
        Activity::Own(frame) if text(frame).is_some_and(|text| reads(&text)) => {
            (Class::WaitingForData, "it waits for data", frame)
        }
        Activity::Own(frame) => (Class::InUserCode, "it is in user code", frame),
    };
    let place = text(frame).map_or_else(|| frame.to_string(), |text| format!("{frame}: `{text}`"));
    Some(Cause { rank, class, why: format!("{what} at {place}{holds}") })
}

/// The function of torch that a script is in, and where it called it: "all_reduce at train.py:88 in main".
fn called(thread: &Thread) -> String {
    // torch wraps its functions to log their calls.
    let of_torch = |frame: &&Frame| frame.file.contains("/torch/") && frame.function != "wrapper";
    let called = thread.frames.iter().rev().find(of_torch).map(|frame| frame.function.as_str());
    let script = thread.frames.iter().find(|frame| !is_library(&frame.file));
    let at = script.map(|frame| format!(" at {frame}")).unwrap_or_default();
    format!("{}{at}", called.unwrap_or("torch.distributed"))
}

fn gone(rank: u32, one: &Evidence) -> Option<Cause> {
    let (class, why) = match one.condition {
        Condition::Alive(_) => return None,
        Condition::Stopped => {
            (Class::Stopped, format!("its process {} is stopped (resume it with kill -CONT)", one.process))
        }
        Condition::Dead => (Class::Dead, format!("its process {} is dead", one.process)),
        Condition::Ended => (Class::Finished, format!("its process {} has exited on its own", one.process)),
    };
    Some(Cause { rank, class, why })
}

/// Ranks that came, and stopped or died inside. One that ended by itself afterwards has only raised the error.
fn lost_inside(rank: u32, one: &Evidence, key: &Key) -> Option<Cause> {
    let cause = gone(rank, one).filter(|cause| cause.class != Class::Finished)?;
    (!key.passed(rank)).then_some(cause)
}

/// Processes that are stopped or dead where no operation shows it: jobs without records, ranks between operations.
fn lone_processes(evidence: &[Evidence], findings: &[Finding]) -> Vec<Finding> {
    let known: Vec<u32> = findings.iter().flat_map(|finding| finding.causes.iter().map(|cause| cause.rank)).collect();
    let nobody_lives = evidence.iter().all(|one| matches!(one.condition, Condition::Dead | Condition::Ended));
    let causes = evidence.iter().filter_map(|one| {
        let cause = gone(one.rank?, one)?;
        let news = !known.contains(&cause.rank) && (!nobody_lives || findings.is_empty());
        (news && cause.class != Class::Finished).then_some(cause)
    });
    let alone = |cause: Cause| Finding {
        operation: None,
        arrived: Vec::new(),
        missing: Vec::new(),
        unseen: Vec::new(),
        causes: vec![cause],
        sentence: String::new(),
    };
    causes.map(alone).collect()
}

fn remarks(evidence: &[Evidence]) -> Vec<String> {
    let mut remarks = Vec::new();
    let without: Vec<u32> = evidence.iter().filter(|one| one.records.is_none()).filter_map(|one| one.rank).collect();
    if !without.is_empty() {
        remarks.push(format!(
            "{} left no records: only groups of the instep backend record their collectives",
            crate::report::ranks(&without)
        ));
    }
    let mut reasons: std::collections::BTreeMap<&str, Vec<u32>> = std::collections::BTreeMap::new();
    for one in evidence.iter().filter(|one| one.records.is_none() && matches!(one.condition, Condition::Alive(_))) {
        if let (Stacks::Unknown(reason), Some(rank)) = (&one.stacks, one.rank) {
            reasons.entry(reason).or_default().push(rank);
        }
    }
    for (reason, without) in reasons {
        remarks.push(format!("no stacks of {}: {reason}", crate::report::ranks(&without)));
    }
    for one in evidence {
        let Some(records) = &one.records else { continue };
        let rank = one.rank.map_or_else(|| format!("process {}", one.process), |rank| format!("rank {rank}"));
        if records.lost > 0 {
            remarks
                .push(format!("{rank} had more than 1024 operations in progress: {} are not recorded", records.lost));
        }
        if records.lost_groups > 0 {
            remarks.push(format!("{rank} had more than 64 groups: {} are not recorded", records.lost_groups));
        }
    }
    remarks
}

#[cfg(test)]
pub(crate) mod tests;
