//! Evidence of several machines: each makes its own small enough to be sent, one puts all of it together.
//!
//! Clocks of machines differ, so what is sent carries the sender's, and ages are what counts. Lines of scripts are sent along:
//! the machine that reports may not have the files. Whatever arrives is distrusted like a file: it may be wrong, and is only
//! shown.

use std::collections::{BTreeMap, BTreeSet};

use instep_recorder::{Snapshot, State};
use serde::{Deserialize, Serialize};

use crate::analysis::SourceLine;
use crate::evidence::{Evidence, Stacks};
use crate::stacks::{Thread, is_library};

/// Operations of a rank that are sent: what is under way, and what ended last.
const MOST_OPERATIONS: usize = 64;
/// Frames of the main thread, which say what a rank does, and of the others.
const MAIN_FRAMES: usize = 64;
const OTHER_FRAMES: usize = 12;
const MOST_THREADS: usize = 4;

/// What one machine knows of its ranks.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct NodeEvidence {
    /// Which machine, for people.
    pub host: String,
    /// Its monotonic clock, in nanoseconds, when that was seen.
    pub now: u64,
    /// Those that keep others waiting first.
    pub ranks: Vec<Evidence>,
    /// Lines of scripts that the ranks are at.
    pub code: BTreeSet<CodeLine>,
    /// Ranks that had no room.
    pub omitted: usize,
}

/// A line of a script.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct CodeLine {
    pub file: String,
    pub line: u32,
    pub text: String,
}

impl NodeEvidence {
    /// What fits into so many bytes of JSON. Ranks that wait for nobody come first: they are what the others need to know.
    pub fn within(limit: usize, host: &str, evidence: &[Evidence], now: u64, line: SourceLine<'_>) -> NodeEvidence {
        let mut node =
            NodeEvidence { host: host.to_owned(), now, ranks: Vec::new(), code: BTreeSet::new(), omitted: 0 };
        let mut order: Vec<&Evidence> = evidence.iter().collect();
        order.sort_by_key(|one| waits(one));
        let mut left = limit.saturating_sub(bytes(&node));
        for one in order {
            let small = reduced(one);
            let code = code(&small, line);
            let needed = bytes(&small) + bytes(&code) + 2;
            match left.checked_sub(needed) {
                Some(rest) => {
                    left = rest;
                    node.ranks.push(small);
                    node.code.extend(code);
                }
                None => node.omitted += 1,
            }
        }
        node
    }
}

/// All machines' evidence on one clock, in the order of ranks, and the lines of scripts that came with it.
pub fn combine(nodes: Vec<NodeEvidence>, now: u64) -> (Vec<Evidence>, BTreeMap<(String, u32), String>) {
    let mut ranks: BTreeMap<(Option<u32>, String, u32), Evidence> = BTreeMap::new();
    let mut lines = BTreeMap::new();
    for node in nodes {
        let there = node.now;
        // Nothing has happened later than it was seen.
        let here = |time: u64| if time == 0 { 0 } else { now.saturating_sub(there.saturating_sub(time)).max(1) };
        for mut one in node.ranks {
            if let Some(records) = &mut one.records {
                for operation in &mut records.operations {
                    for time in [&mut operation.submitted, &mut operation.started, &mut operation.ended] {
                        *time = here(*time);
                    }
                }
            }
            ranks.entry((one.rank, one.host.clone(), one.process)).or_insert(one);
        }
        lines.extend(node.code.into_iter().map(|code| ((code.file, code.line), code.text)));
    }
    (ranks.into_values().collect(), lines)
}

fn bytes(part: &impl Serialize) -> usize {
    // What cannot be written has no room.
    serde_json::to_vec(part).map_or(usize::MAX / 4, |text| text.len())
}

/// Whether a rank is in an operation with others.
fn waits(one: &Evidence) -> bool {
    let records = one.records.as_ref();
    records.is_some_and(|records| records.operations.iter().any(|operation| operation.state == State::Started))
}

fn reduced(one: &Evidence) -> Evidence {
    let stacks = match &one.stacks {
        Stacks::Known { threads, held } => {
            let shown = threads.iter().filter(|thread| !thread.frames.is_empty()).take(MOST_THREADS);
            Stacks::Known { threads: shown.map(shortened).collect(), held: *held }
        }
        Stacks::Unknown(reason) => Stacks::Unknown(reason.clone()),
    };
    Evidence { stacks, records: one.records.as_ref().map(newest), ..one.clone() }
}

fn shortened(thread: &Thread) -> Thread {
    let most = if thread.main { MAIN_FRAMES } else { OTHER_FRAMES };
    let frames = thread.frames.iter().take(most).cloned().collect();
    Thread { frames, ..thread.clone() }
}

fn newest(records: &Snapshot) -> Snapshot {
    let last = records.operations.iter().map(|operation| operation.ended).max();
    let counts = |state: State, ended: u64| state.is_pending() || state == State::Failed || Some(ended) == last;
    let wanted = records.operations.iter().filter(|operation| counts(operation.state, operation.ended));
    let operations = wanted.take(MOST_OPERATIONS).cloned().collect();
    Snapshot { operations, ..records.clone() }
}

/// The lines that a report may show of a rank: where it is, and where the script called that.
fn code(one: &Evidence, line: SourceLine<'_>) -> BTreeSet<CodeLine> {
    let threads = match &one.stacks {
        Stacks::Known { threads, .. } => threads.as_slice(),
        Stacks::Unknown(_) => &[],
    };
    let frames = threads.iter().flat_map(|thread| {
        let own = thread.frames.iter().skip(OTHER_FRAMES).filter(|frame| !is_library(&frame.file));
        thread.frames.iter().take(OTHER_FRAMES).chain(own)
    });
    let read = |frame: &crate::stacks::Frame| {
        let text = line(&frame.file, frame.line)?;
        Some(CodeLine { file: frame.file.clone(), line: frame.line, text })
    };
    frames.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::{NodeEvidence, combine};
    use crate::analysis::tests::{World, at, begin};
    use crate::{Class, Diagnosis, Evidence, diagnose};
    use instep_recorder::clock;
    use proptest::prelude::{any, prop_assert, proptest};
    use std::sync::LazyLock;
    use std::time::Duration;

    const LATER: u64 = 63_000_000_000;
    const LIMIT: Duration = Duration::from_secs(60);
    /// How far the clock of the second machine is ahead.
    const AHEAD: u64 = 5_000_000_000_000;

    fn nothing(_: &str, _: u32) -> Option<String> {
        None
    }

    /// Ranks 0 and 1 wait for rank 2, which is on another machine, with another clock, and at a line of the script.
    fn two_machines() -> [NodeEvidence; 2] {
        let mut world = World::of(3);
        let groups = world.group("default", &[0, 1, 2]);
        for group in &groups {
            group.ended(begin(group, "broadcast", 4), true);
        }
        for group in &groups[..2] {
            begin(group, "all_reduce", 25_000_000);
        }
        world.read();
        world.evidence[2].stacks = at(&["/only/there/train.py"]);
        let now = clock::monotonic() + LATER;
        let here = NodeEvidence::within(100_000, "node-a", &world.evidence[..2], now, &nothing);
        for operation in &mut world.evidence[2].records.as_mut().expect("read").operations {
            operation.started += AHEAD;
            operation.ended += AHEAD;
        }
        let line = |file: &str, _: u32| file.starts_with("/only/there").then(|| "time.sleep(600)".to_owned());
        [here, NodeEvidence::within(100_000, "node-b", &world.evidence[2..], now + AHEAD, &line)]
    }

    fn conclude(nodes: Vec<NodeEvidence>) -> Diagnosis {
        let now = clock::monotonic() + LATER;
        let (evidence, lines) = combine(nodes, now);
        diagnose(&evidence, now, LIMIT, &|file, line| lines.get(&(file.to_owned(), line)).cloned())
    }

    #[test]
    fn machines_together_say_what_each_alone_cannot() {
        let [here, there] = two_machines();
        let alone = conclude(vec![here.clone()]);
        assert_eq!(alone.findings[0].causes[0].class, Class::Elsewhere, "{alone:?}");
        assert!(conclude(vec![there.clone()]).findings.is_empty(), "nobody there waits");
        let text = serde_json::to_string(&there).expect("JSON");
        let both = conclude(vec![here, serde_json::from_str(&text).expect("the same")]);
        assert_eq!(both.findings.len(), 1, "{both:?}");
        assert_eq!(
            both.findings[0].sentence,
            "rank 2 has not entered all_reduce #1 (25 MB, group default): it is in user code at \
             /only/there/train.py:88 in main: `time.sleep(600)` (ranks 0 and 1 have been waiting for 63 s)"
        );
    }

    #[test]
    fn the_rank_that_keeps_others_waiting_is_the_last_to_be_left_out() {
        let mut world = World::of(8);
        let groups = world.group("default", &[0, 1, 2, 3, 4, 5, 6, 7]);
        for group in &groups[..7] {
            begin(group, "all_reduce", 4);
        }
        world.read();
        let now = clock::monotonic() + LATER;
        let mut most = 8;
        for limit in (0..20_000).rev().step_by(500) {
            let node = NodeEvidence::within(limit, "node-a", &world.evidence, now, &nothing);
            assert!(node.ranks.is_empty() || serde_json::to_vec(&node).expect("JSON").len() <= limit);
            assert_eq!(node.ranks.len() + node.omitted, 8);
            assert!(node.ranks.first().is_none_or(|first| first.rank == Some(7)), "{limit}");
            assert!(node.ranks.len() <= most);
            most = node.ranks.len();
        }
        assert_eq!(most, 0);
    }

    proptest! {
        #[test]
        fn whatever_clocks_others_have_is_survived(
            now in any::<u64>(), there in any::<u64>(), times in any::<[u64; 3]>(), rank in any::<Option<u32>>(),
        ) {
            static MACHINES: LazyLock<[NodeEvidence; 2]> = LazyLock::new(two_machines);
            let [mut here, mut other] = MACHINES.clone();
            other.now = there;
            for one in &mut other.ranks {
                one.rank = rank;
                for operation in &mut one.records.as_mut().expect("read").operations {
                    (operation.submitted, operation.started, operation.ended) = (times[0], times[1], times[2]);
                }
            }
            let own: Vec<Evidence> = other.ranks.clone();
            here.ranks.extend(own);
            let (evidence, _) = combine(vec![here, other], now);
            prop_assert!(diagnose(&evidence, now, LIMIT, &nothing).findings.len() <= 8);
        }
    }
}
