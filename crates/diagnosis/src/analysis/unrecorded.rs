//! Jobs on gloo or NCCL: nothing is recorded, but stacks say who waits for others, and who does something else.
//!
//! A single look says little: ranks of a job that runs wait for each other all the time. So a rank counts as waiting only if
//! its main thread was at the same place at every look, for a second.

use super::{Cause, Class, Evidence, Finding, SourceLine, busy_with, called};
use crate::evidence::{Condition, Stacks};
use crate::report::ranks;
use crate::stacks::{Activity, Thread, activity};

/// Who keeps the others waiting, if that can be told.
pub(super) fn examine(evidence: &[Evidence], line: SourceLine<'_>) -> Option<Finding> {
    let seen: Vec<(u32, &Evidence, &Thread)> = evidence
        .iter()
        .filter(|one| one.records.is_none() && matches!(one.condition, Condition::Alive(_)))
        .filter_map(|one| Some((one.rank?, one, one.stacks.main()?)))
        .collect();
    let communicates = |thread: &Thread| activity(thread) == Activity::Communicates;
    let (inside, elsewhere): (Vec<_>, Vec<_>) = seen.into_iter().partition(|(_, _, thread)| communicates(thread));
    if inside.is_empty() || !inside.iter().all(|(_, one, _)| one.still) {
        return None;
    }
    let causes: Vec<Cause> = elsewhere
        .iter()
        .map(|(rank, one, thread)| {
            let held = matches!(one.stacks, Stacks::Known { held: true, .. });
            busy_with(*rank, thread, held, line).unwrap_or_else(|| Cause {
                rank: *rank,
                class: Class::Unknown,
                why: "it has no Python frames".to_owned(),
            })
        })
        .collect();
    if !causes.is_empty() {
        let waiting: Vec<u32> = inside.iter().map(|(rank, _, _)| *rank).collect();
        let place = inside.first().map(|(_, _, thread)| called(thread)).unwrap_or_default();
        return Some(finding(waiting, &place, causes));
    }
    outlier(&inside.iter().map(|(rank, _, thread)| (*rank, called(thread))).collect::<Vec<_>>())
}

/// All wait: those that wait in something else than most.
fn outlier(places: &[(u32, String)]) -> Option<Finding> {
    let count = |place: &str| places.iter().filter(|(_, other)| other == place).count();
    let (_, most) = places.iter().max_by_key(|(rank, place)| (count(place), std::cmp::Reverse(*rank)))?;
    let (with, without): (Vec<_>, Vec<_>) = places.iter().partition(|(_, place)| place == most);
    let cause = |(rank, place): &&(u32, String)| Cause {
        rank: *rank,
        class: Class::InAnotherCollective,
        why: format!("it is inside {place}"),
    };
    let causes: Vec<Cause> = without.iter().map(cause).collect();
    (!causes.is_empty()).then(|| finding(with.iter().map(|(rank, _)| *rank).collect(), most, causes))
}

fn finding(waiting: Vec<u32>, place: &str, causes: Vec<Cause>) -> Finding {
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let others: Vec<String> = causes.iter().map(|cause| format!("rank {}: {}", cause.rank, cause.why)).collect();
    let sentence = format!("{} {verb} inside {place}; {}", ranks(&waiting), others.join("; "));
    let missing = causes.iter().map(|cause| cause.rank).collect();
    Finding { operation: None, arrived: waiting, missing, unseen: Vec::new(), causes, sentence }
}
