//! Which operations are stuck, and who is in them: the records of all ranks put side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instep_recorder::{Class as Shape, Group, Operation, Snapshot, State};
use serde::Serialize;

use super::{Cause, Class};
use crate::evidence::{Condition, Evidence};

/// An operation that is stuck, as people name it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stuck {
    /// The group's name, `default` for that of all ranks.
    pub group: String,
    /// Which operation of the group, from 0.
    pub sequence: u64,
    /// As torch spells it.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Of one rank's part.
    pub bytes: u64,
    /// Whether it has failed since, because somebody did not come.
    pub failed: bool,
    /// How long the first to come has waited, in seconds; of one that failed, how long it had.
    pub waited: f64,
    /// Of a message: from which rank of the job to which, and its tag.
    pub message: Option<(Option<u32>, Option<u32>, u64)>,
}

impl Stuck {
    /// "all_reduce #118 (25 MB, group default)".
    pub fn describe(&self) -> String {
        if let Some((from, to, tag)) = self.message {
            let end = |rank: Option<u32>| rank.map_or_else(|| "any rank".to_owned(), |rank| format!("rank {rank}"));
            let (bytes, group) = (crate::report::bytes(self.bytes), &self.group);
            return format!(
                "{} #{} from {} to {} ({bytes}, tag {tag}, group {group})",
                self.name,
                self.sequence,
                end(from),
                end(to)
            );
        }
        let size = if self.bytes == 0 { String::new() } else { format!("{}, ", crate::report::bytes(self.bytes)) };
        format!("{} #{} ({size}group {})", self.name, self.sequence, self.group)
    }
}

/// A stuck operation with who is in it.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) stuck: Stuck,
    /// The group, as the first to come has it.
    group: Group,
    members: Vec<u32>,
    /// Ranks that are in it now, or were when it failed, and what they called.
    inside: BTreeMap<u32, String>,
    /// Ranks that have been through it.
    passed: BTreeSet<u32>,
}

impl Key {
    /// Everybody who must come, as ranks of the job.
    pub(super) fn members(&self) -> &[u32] {
        &self.members
    }

    pub(super) fn entered(&self, rank: u32) -> bool {
        self.inside.contains_key(&rank) || self.passed.contains(&rank)
    }

    pub(super) fn passed(&self, rank: u32) -> bool {
        self.passed.contains(&rank)
    }

    pub(super) fn is_waited_in_by(&self, rank: u32) -> bool {
        self.inside.contains_key(&rank)
    }

    /// Whether a rank gave up the group, or went on with it at another generation.
    pub(super) fn was_left_by(&self, one: &Evidence) -> bool {
        let group = one.records.as_ref().and_then(|records| own(records, &self.group));
        group.is_some_and(|group| group.left)
    }

    /// Ranks that called something else at the same point: fewer of them are wrong than are right.
    pub(super) fn contradictions(&self) -> Vec<Cause> {
        let mut calls: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (rank, call) in &self.inside {
            calls.entry(call).or_default().push(*rank);
        }
        if calls.len() < 2 || self.stuck.message.is_some() {
            return Vec::new();
        }
        let right = calls.iter().max_by_key(|(_, ranks)| (ranks.len(), u32::MAX - ranks[0])).map(|(call, _)| *call);
        let others = calls.iter().filter(|(call, _)| Some(**call) != right);
        others
            .flat_map(|(call, ranks)| ranks.iter().map(move |rank| (*rank, *call)))
            .map(|(rank, call)| {
                let why = format!("it called {call} where others called {}", right.unwrap_or_default());
                Cause { rank, class: Class::InAnotherCollective, why }
            })
            .collect()
    }
}

/// What a rank has of a group.
fn own<'a>(records: &'a Snapshot, wanted: &Group) -> Option<&'a Group> {
    let here = || records.groups.iter().filter(|group| group.is(wanted));
    here().find(|group| !group.left).or_else(|| here().next_back())
}

/// One rank's operation that has not gone well.
struct Seen<'a> {
    rank: u32,
    group: &'a Group,
    operation: &'a Operation,
}

/// Operations under way for too long, the oldest first; where there are none, those that failed.
pub(super) fn stuck_operations(evidence: &[Evidence], now: u64, stuck_after: Duration) -> Vec<Key> {
    let limit = u64::try_from(stuck_after.as_nanos()).unwrap_or(u64::MAX);
    let age = |operation: &Operation| now.saturating_sub(operation.started);
    let started = |operation: &Operation| operation.state == State::Started;
    let overdue = select(evidence, |one, operation| {
        let alive = matches!(one.condition, Condition::Alive(_) | Condition::Stopped);
        started(operation) && (!alive || age(operation) >= limit)
    });
    if overdue.iter().any(|seen| age(seen.operation) >= limit) {
        // Who came a moment ago to what others wait in for long is in it, too.
        let all = select(evidence, |_, operation| started(operation));
        let mut keys = together(&all, evidence, now);
        keys.retain(|key| key.stuck.waited >= stuck_after.as_secs_f64());
        return keys;
    }
    together(&select(evidence, |_, operation| operation.state == State::Failed || started(operation)), evidence, now)
        .into_iter()
        .filter(|key| key.stuck.failed)
        .take(1)
        .collect()
}

fn select(evidence: &[Evidence], wanted: impl Fn(&Evidence, &Operation) -> bool) -> Vec<Seen<'_>> {
    let mut found = Vec::new();
    for one in evidence {
        let (Some(rank), Some(records)) = (one.rank, &one.records) else { continue };
        for operation in records.operations.iter().filter(|operation| wanted(one, operation)) {
            if let Some(group) = records.group(operation) {
                found.push(Seen { rank, group, operation });
            }
        }
    }
    found.sort_by_key(|seen| seen.operation.started);
    found
}

/// What belongs together, in the order of who came first.
fn together(seen: &[Seen<'_>], evidence: &[Evidence], now: u64) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for one in seen {
        let key = keys.iter_mut().find(|key| {
            key.stuck.message.is_none()
                && one.operation.class == Shape::Collective
                && key.stuck.sequence == one.operation.sequence
                && key.group.is(one.group)
        });
        match key {
            Some(key) => {
                key.inside.insert(one.rank, call(one.operation));
                key.stuck.failed |= one.operation.state == State::Failed;
            }
            None => keys.push(begin(one, evidence, now)),
        }
    }
    for key in &mut keys {
        if key.stuck.message.is_none() {
            let been_through = |one: &Evidence| {
                let records = one.records.as_ref()?;
                let group = own(records, &key.group)?;
                let rank = one.rank.filter(|rank| !key.inside.contains_key(rank))?;
                // Of a group that failed, what was queued counts as ended, too: there only what was started tells.
                let counted = group.ended > key.stuck.sequence && !key.stuck.failed;
                (counted || was_seen_behind(records, group, key.stuck.sequence)).then_some(rank)
            };
            key.passed = evidence.iter().filter_map(been_through).collect();
        }
    }
    keys
}

/// Whether a rank has done a collective of a group, or begun a later one.
fn was_seen_behind(records: &Snapshot, group: &Group, sequence: u64) -> bool {
    let of_group = records.operations.iter().filter(|one| one.class == Shape::Collective);
    of_group.filter(|one| records.group(one).is_some_and(|own| own.index == group.index)).any(|one| {
        let done = one.sequence == sequence && one.state == State::Done;
        done || (one.sequence > sequence && one.started > 0)
    })
}

fn call(operation: &Operation) -> String {
    let size =
        if operation.bytes == 0 { String::new() } else { format!(" of {}", crate::report::bytes(operation.bytes)) };
    let root = operation.peer.map(|root| format!(" with root {root}")).unwrap_or_default();
    format!("{}{size}{root}", operation.name)
}

fn begin(one: &Seen<'_>, evidence: &[Evidence], now: u64) -> Key {
    let (group, operation) = (one.group, one.operation);
    let of_job = |rank: u32| group.job_rank(rank).unwrap_or(rank);
    let peer = operation.peer.map(of_job);
    let message = match operation.class {
        Shape::Collective => None,
        Shape::Send => Some((Some(one.rank), peer, operation.tag)),
        Shape::Receive => Some((peer, Some(one.rank), operation.tag)),
    };
    let everybody = || (0..group.size.min(1 << 16)).map(of_job).collect::<Vec<u32>>();
    let members = match (message, peer) {
        (None, _) | (Some(_), None) => everybody(),
        (Some(_), Some(peer)) => vec![one.rank, peer],
    };
    let mut inside = BTreeMap::from([(one.rank, call(operation))]);
    if message.is_some() {
        inside.extend(counterparts(one, evidence).map(|rank| (rank, call(operation))));
    }
    let end = if operation.ended == 0 { now } else { operation.ended };
    let stuck = Stuck {
        group: group.name.clone(),
        sequence: operation.sequence,
        name: operation.name.clone(),
        dtype: operation.dtype.clone(),
        bytes: operation.bytes,
        failed: operation.state == State::Failed,
        waited: end.saturating_sub(operation.started) as f64 / 1e9,
        message,
    };
    Key { stuck, group: group.clone(), members, inside, passed: BTreeSet::new() }
}

/// Ranks that are at the other end of a message, with the same tag.
fn counterparts<'a>(one: &'a Seen<'a>, evidence: &'a [Evidence]) -> impl Iterator<Item = u32> + 'a {
    let wanted = if one.operation.class == Shape::Send { Shape::Receive } else { Shape::Send };
    evidence.iter().filter_map(move |other| {
        let (rank, records) = (other.rank?, other.records.as_ref()?);
        let meets = |operation: &&Operation| {
            let Some(group) = records.group(operation) else { return false };
            operation.class == wanted
                && operation.tag == one.operation.tag
                && group.is(one.group)
                && operation.peer.is_none_or(|peer| peer == one.group.rank)
                && one.operation.peer.is_none_or(|peer| peer == group.rank)
        };
        let mut pending = records.operations.iter().filter(|operation| operation.state == State::Started);
        (rank != one.rank && pending.any(|operation| meets(&operation))).then_some(rank)
    })
}
