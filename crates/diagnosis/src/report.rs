//! Findings as text: the conclusion first, then a line per rank, then stacks.

use std::fmt::Write;

use instep_recorder::{Operation, Snapshot, State};
use serde_json::{Value, json};

use crate::analysis::{Class, Diagnosis, Finding, SourceLine};
use crate::evidence::{Condition, Evidence, Stacks};

/// Frames of a stack that are shown.
const MOST_FRAMES: usize = 12;
/// Ranks that are named one by one.
const MOST_RANKS: usize = 8;

/// "rank 3", "ranks 0, 2 and 5", "ranks 0, 1, … 31 (32 of them)".
pub fn ranks(ranks: &[u32]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match sorted.as_slice() {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [others @ .., last] if sorted.len() <= MOST_RANKS => format!("ranks {} and {last}", list(others)),
        [others @ .., last] => {
            format!("ranks {}, … {last} ({} of them)", list(&others[..MOST_RANKS - 1]), sorted.len())
        }
    }
}

/// "12 bytes", "25 MB".
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1000 {
        return format!("{count} bytes");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let digits = if value < 9.95 { 1 } else { 0 };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn seconds(seconds: f64) -> String {
    if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// A finding in a sentence or two.
pub(crate) fn sentence(finding: &Finding) -> String {
    let causes: Vec<String> =
        finding.causes.iter().take(MOST_RANKS).map(|cause| format!("rank {}: {}", cause.rank, cause.why)).collect();
    let [first, ..] = finding.causes.as_slice() else { return String::new() };
    let one = |text: &str| if causes.len() == 1 { text.to_owned() } else { causes.join("; ") };
    let Some(operation) = &finding.operation else { return format!("rank {}: {}", first.rank, first.why) };
    let what = operation.describe();
    let (verb, waited) = if operation.failed {
        ("did not enter", format!("{} failed", ranks(&finding.arrived)))
    } else {
        ("has not entered", format!("{} for {}", waits(&finding.arrived), seconds(operation.waited)))
    };
    if first.class == Class::Deadlock {
        return format!("deadlock: {waited} in {what}, and {}", causes.join("; "));
    }
    match finding.missing.as_slice() {
        _ if operation.message.is_some() => {
            let verb = if operation.failed { "was not matched" } else { "is not matched" };
            format!("{what} {verb} by {} ({waited}): {}", ranks(&others(finding)), one(&first.why))
        }
        [] => format!("{what} makes no progress ({waited}): {}", causes.join("; ")),
        [_] => format!("{} {verb} {what}: {} ({waited})", ranks(&finding.missing), one(&first.why)),
        _ => {
            let verb = if operation.failed { verb } else { "have not entered" };
            format!("{} {verb} {what} ({waited}): {}", ranks(&finding.missing), causes.join("; "))
        }
    }
}

fn waits(ranks_there: &[u32]) -> String {
    format!("{} {}", ranks(ranks_there), if ranks_there.len() == 1 { "has been waiting" } else { "have been waiting" })
}

fn others(finding: &Finding) -> Vec<u32> {
    if finding.missing.is_empty() { finding.unseen.clone() } else { finding.missing.clone() }
}

/// Everything, for people.
pub fn render(diagnosis: &Diagnosis, evidence: &[Evidence], now: u64, line: SourceLine<'_>) -> String {
    let mut text = conclusion(diagnosis, evidence);
    text.push('\n');
    text.push_str(&table(evidence, now));
    for finding in &diagnosis.findings {
        for cause in &finding.causes {
            let found = evidence.iter().find(|one| one.rank == Some(cause.rank));
            text.extend(found.map(|one| stack(one, line)));
        }
    }
    // Without records one may be blamed wrongly: all are shown.
    let causes = || diagnosis.findings.iter().flat_map(|finding| &finding.causes);
    let is_shown = |one: &Evidence| causes().any(|cause| Some(cause.rank) == one.rank);
    let silent = evidence.iter().filter(|one| one.records.is_none() && one.stacks.main().is_some() && !is_shown(one));
    text.extend(silent.take(MOST_RANKS).map(|one| stack(one, line)));
    for remark in &diagnosis.remarks {
        // Infallible, as all writing to a string.
        let _ = writeln!(text, "\nnote: {remark}");
    }
    text
}

/// The sentences alone.
pub fn conclusion(diagnosis: &Diagnosis, evidence: &[Evidence]) -> String {
    let mut text = String::new();
    for (index, finding) in diagnosis.findings.iter().enumerate() {
        let lead = if index == 0 { "" } else { "also: " };
        let _ = writeln!(text, "{lead}{}", finding.sentence);
    }
    if text.is_empty() {
        text = match (evidence.is_empty(), evidence.iter().any(|one| one.records.is_some())) {
            (true, _) => "no rank has recorded anything yet\n".to_owned(),
            (_, true) => "nothing is stuck: no operation is overdue\n".to_owned(),
            (_, false) if evidence.iter().any(|one| one.stacks.main().is_some()) => {
                "no rank is dead or stopped, and no stack shows a rank that keeps others waiting\n".to_owned()
            }
            (_, false) => "no rank is dead or stopped; without records, stuck ranks cannot be detected\n".to_owned(),
        };
    }
    text
}

fn table(evidence: &[Evidence], now: u64) -> String {
    let mut rows = vec![["rank", "host", "pid", "process", "last operation"].map(str::to_owned)];
    for one in evidence {
        let rank = one.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        let last = one.records.as_ref().map_or_else(|| "no records".to_owned(), |records| last(records, now));
        rows.push([rank, one.host.clone(), one.process.to_string(), process(one), last]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..4).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells: String = (0..4).map(|column| format!("{:1$}  ", row[column], widths[column])).collect();
        format!("{cells}{}\n", row[4])
    };
    rows.iter().map(line).collect()
}

/// "asleep", and of a rank that says nothing itself, in which function of the kernel.
fn process(one: &Evidence) -> String {
    match &one.waits_in {
        Some(place) if one.records.is_none() && matches!(one.condition, Condition::Alive(_)) => {
            format!("{} in {place}", one.condition.name())
        }
        _ => one.condition.name().to_owned(),
    }
}

/// What a rank is in, or was in last.
fn last(records: &Snapshot, now: u64) -> String {
    let group = |operation: &Operation| {
        records.group(operation).map_or_else(String::new, |group| format!(", group {}", group.name))
    };
    let since = |time: u64| seconds(now.saturating_sub(time) as f64 / 1e9);
    let describe = |operation: &Operation| {
        let peer = operation.peer.filter(|_| operation.class != instep_recorder::Class::Collective);
        let peer = peer.map(|peer| format!(", with rank {peer} of the group")).unwrap_or_default();
        format!("{} #{}{}{peer}", operation.name, operation.sequence, group(operation))
    };
    let started = records.operations.iter().find(|operation| operation.state == State::Started);
    let queued = records.operations.iter().filter(|operation| operation.state == State::Submitted).count();
    let queued = if queued == 0 { String::new() } else { format!(", {queued} behind it") };
    if let Some(operation) = started {
        return format!("in {} for {}{queued}", describe(operation), since(operation.started));
    }
    match records.operations.iter().filter(|operation| operation.ended > 0).max_by_key(|operation| operation.ended) {
        Some(operation) if operation.state == State::Failed => {
            format!("{} failed {} ago", describe(operation), since(operation.ended))
        }
        Some(operation) => format!("{} done {} ago", describe(operation), since(operation.ended)),
        None => "none yet".to_owned(),
    }
}

fn stack(one: &Evidence, line: SourceLine<'_>) -> String {
    let rank = one.rank.map_or_else(String::new, |rank| format!("rank {rank} "));
    let title = format!("\n{rank}(pid {})", one.process);
    let (threads, held) = match &one.stacks {
        Stacks::Known { threads, held } => (threads, *held),
        Stacks::Unknown(_) if matches!(one.condition, Condition::Dead | Condition::Ended | Condition::Stopped) => {
            return String::new();
        }
        Stacks::Unknown(reason) => return format!("{title}: no stack: {reason}\n"),
    };
    let mut text = String::new();
    for thread in threads.iter().filter(|thread| !thread.frames.is_empty()).take(4) {
        let name = if thread.main { "main thread" } else { &thread.name };
        let holds = if held && thread.main { ", while some thread holds the interpreter in native code" } else { "" };
        let _ = writeln!(text, "{title}, {name}{holds}:");
        for frame in thread.frames.iter().take(MOST_FRAMES) {
            let code = line(&frame.file, frame.line).map(|code| format!(": {code}")).unwrap_or_default();
            let _ = writeln!(text, "  {frame}{code}");
        }
        if thread.frames.len() > MOST_FRAMES {
            let _ = writeln!(text, "  … {} further frames", thread.frames.len() - MOST_FRAMES);
        }
    }
    text
}

/// Everything, for programs.
pub fn to_json(diagnosis: &Diagnosis, evidence: &[Evidence], now: u64) -> Value {
    let rank = |one: &Evidence| {
        let (threads, reason) = match &one.stacks {
            Stacks::Known { threads, .. } => (json!(threads), Value::Null),
            Stacks::Unknown(reason) => (Value::Null, json!(reason)),
        };
        json!({
            "rank": one.rank,
            "host": one.host,
            "pid": one.process,
            "process": one.condition.name(),
            "waits_in": one.waits_in,
            "last_operation": one.records.as_ref().map(|records| last(records, now)),
            "threads": threads,
            "no_stack_because": reason,
        })
    };
    json!({
        "stuck": !diagnosis.findings.is_empty(),
        "findings": diagnosis.findings,
        "remarks": diagnosis.remarks,
        "ranks": evidence.iter().map(rank).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::{bytes, ranks};

    #[test]
    fn sizes_and_times_are_formatted_for_people() {
        assert_eq!(["12 bytes", "1.0 kB", "25 MB", "1.0 GB"].to_vec(), [12, 1000, 25_000_000, 999_900_000].map(bytes));
        assert_eq!((ranks(&[3]).as_str(), ranks(&[2, 0, 5]).as_str()), ("rank 3", "ranks 0, 2 and 5"));
        assert_eq!(ranks(&(0..32).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5, 6, … 31 (32 of them)");
    }
}
