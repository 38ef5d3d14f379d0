//! What is concluded from what was recorded, with real records and invented processes.

use std::sync::Arc;

use instep_recorder::{Class as Shape, Entry, GroupRecorder, Identity, Recorder, Snapshot, Started, clock};
use proptest::prelude::{any, prop_assert, proptest};

use super::*;
use crate::stacks::{Frame, Thread};

/// The ranks of a job on this machine, each with records.
pub(crate) struct World {
    _folder: tempfile::TempDir,
    recorders: Vec<Arc<Recorder>>,
    pub(crate) evidence: Vec<Evidence>,
}

impl World {
    pub(crate) fn of(size: u32) -> World {
        let folder = tempfile::tempdir().unwrap();
        let recorder = |rank: u32| {
            let identity = Identity { rank: Some(rank), world_size: size, process: rank + 100, ..Identity::default() };
            Recorder::create(folder.path(), &identity).unwrap()
        };
        let recorders = (0..size).map(recorder).collect();
        let evidence = (0..size).map(|rank| Evidence {
            rank: Some(rank),
            host: "node-a".to_owned(),
            process: rank + 100,
            condition: Condition::Alive('S'),
            waits_in: None,
            records: None,
            stacks: at(&["/v/lib/python3.11/site-packages/instep/backend/work.py", "/w/train.py"]),
            still: false,
        });
        World { evidence: evidence.collect(), _folder: folder, recorders }
    }

    /// A group of these ranks, as each of them has it.
    pub(crate) fn group(&self, name: &str, members: &[u32]) -> Vec<GroupRecorder> {
        let join = |(at, rank): (usize, &u32)| {
            let listed = if name == "default" { &[] } else { members };
            let group = self.recorders[*rank as usize].group(name, listed);
            group.connected(at, members.len(), 0);
            group
        };
        members.iter().enumerate().map(join).collect()
    }

    /// Reads what the ranks have recorded.
    pub(crate) fn read(&mut self) {
        for (one, recorder) in self.evidence.iter_mut().zip(&self.recorders) {
            one.records = Some(Snapshot::read(recorder.path()).unwrap());
        }
    }

    fn diagnose(&mut self) -> Diagnosis {
        self.read();
        diagnose(&self.evidence, clock::monotonic() + 63_000_000_000, Duration::from_secs(60), &|file, _| {
            (file == "/w/read.py").then(|| "data = connection.recv(4)".to_owned())
        })
    }
}

pub(crate) fn at(files: &[&str]) -> Stacks {
    let frame = |file: &&str| Frame { file: (*file).to_owned(), line: 88, function: "main".to_owned() };
    let threads = vec![Thread { name: String::new(), main: true, frames: files.iter().map(frame).collect() }];
    Stacks::Known { threads, held: false }
}

pub(crate) fn begin(group: &GroupRecorder, name: &str, bytes: u64) -> Entry {
    group.begun(&Started { class: Shape::Collective, name, dtype: "f32", bytes, peer: None, tag: 0 })
}

fn message(group: &GroupRecorder, class: Shape, peer: u32) -> Entry {
    let name = if class == Shape::Send { "send" } else { "receive" };
    group.begun(&Started { class, name, dtype: "bytes", bytes: 12, peer: Some(peer), tag: 7 })
}

/// All ranks but the last have entered; what the last does is given.
fn one_absent(change: impl Fn(&mut Evidence)) -> Finding {
    let mut world = World::of(3);
    let groups = world.group("default", &[0, 1, 2]);
    for group in &groups {
        group.ended(begin(group, "broadcast", 4), true);
    }
    for group in &groups[..2] {
        begin(group, "all_reduce", 25_000_000);
    }
    change(&mut world.evidence[2]);
    let diagnosis = world.diagnose();
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:?}");
    let finding = diagnosis.findings.into_iter().next().unwrap();
    assert_eq!((&finding.arrived, &finding.missing), (&vec![0, 1], &vec![2]));
    finding
}

#[test]
fn an_absent_rank_is_named_with_what_it_does() {
    let own = one_absent(|rank| rank.stacks = at(&["/w/train.py"]));
    assert_eq!(
        own.sentence,
        "rank 2 has not entered all_reduce #1 (25 MB, group default): it is in user code at /w/train.py:88 in main (ranks \
         0 and 1 have been waiting for 63 s)"
    );
    let packages = "/v/lib/python3.11/site-packages/torch";
    let loader = format!("{packages}/utils/data/dataloader.py");
    let store = format!("{packages}/distributed/distributed_c10d.py");
    for (expected, change) in [
        (
            Class::InUserCode,
            Box::new(|rank: &mut Evidence| rank.stacks = at(&["/w/train.py"])) as Box<dyn Fn(&mut Evidence)>,
        ),
        (Class::WaitingForData, Box::new(|rank| rank.stacks = at(&[&loader, "/w/train.py"]))),
        (Class::WaitingForData, Box::new(|rank| rank.stacks = at(&["/w/read.py"]))),
        (Class::InAnotherCollective, Box::new(|rank| rank.stacks = at(&[&store, "/w/train.py"]))),
        (Class::Stopped, Box::new(|rank| rank.condition = Condition::Stopped)),
        (Class::Dead, Box::new(|rank| rank.condition = Condition::Dead)),
        (Class::Finished, Box::new(|rank| rank.condition = Condition::Ended)),
        (Class::Unknown, Box::new(|rank| rank.stacks = Stacks::Unknown("it does not answer".to_owned()))),
    ] {
        let found = one_absent(change);
        assert_eq!(found.causes.iter().map(|cause| (cause.rank, cause.class)).collect::<Vec<_>>(), [(2, expected)]);
    }
}

#[test]
fn two_groups_in_different_order_are_a_deadlock() {
    let mut world = World::of(2);
    let (first, second) = (world.group("a", &[0, 1]), world.group("b", &[0, 1]));
    begin(&first[0], "all_reduce", 8);
    begin(&second[1], "barrier", 0);
    let diagnosis = world.diagnose();
    assert!(diagnosis.findings.iter().all(|finding| finding.causes[0].class == Class::Deadlock), "{diagnosis:?}");
    let sentence = &diagnosis.findings[0].sentence;
    assert!(
        sentence.starts_with("deadlock: rank 0 has been waiting for 63 s in all_reduce #0 (8 bytes, group a)"),
        "{sentence}"
    );
    assert!(sentence.contains("rank 1: it waits in barrier #0 (group b)"), "{sentence}");
    // The same, but rank 1 only has the operation queued and sleeps: that is where it begins.
    world.evidence[1].stacks = at(&["/w/train.py"]);
    let diagnosis = world.diagnose();
    assert_eq!(diagnosis.findings[0].causes[0].class, Class::InUserCode, "{diagnosis:?}");
}

#[test]
fn groups_of_one_name_and_other_ranks_are_two() {
    let mut world = World::of(4);
    let (first, second) = (world.group("3", &[0, 1]), world.group("3", &[2, 3]));
    begin(&first[0], "all_reduce", 8);
    begin(&second[1], "all_reduce", 8);
    for absent in [1, 2] {
        world.evidence[absent].stacks = at(&["/w/train.py"]);
    }
    let diagnosis = world.diagnose();
    let causes: Vec<Vec<u32>> =
        diagnosis.findings.iter().map(|one| one.causes.iter().map(|cause| cause.rank).collect()).collect();
    assert_eq!(causes, [[1], [2]], "{diagnosis:?}");
}

#[test]
fn the_beginning_of_a_chain_comes_first() {
    let mut world = World::of(3);
    let (first, second) = (world.group("a", &[0, 1]), world.group("b", &[1, 2]));
    begin(&first[0], "all_reduce", 8);
    begin(&second[0], "all_reduce", 8);
    world.evidence[2].stacks = at(&["/w/train.py"]);
    let diagnosis = world.diagnose();
    let causes: Vec<_> = diagnosis.findings.iter().map(|one| (one.causes[0].rank, one.causes[0].class)).collect();
    assert_eq!(causes, [(2, Class::InUserCode), (1, Class::InAnotherCollective)]);
}

#[test]
fn messages_wait_for_their_other_end() {
    let mut world = World::of(3);
    let groups = world.group("default", &[0, 1, 2]);
    message(&groups[0], Shape::Receive, 2);
    world.evidence[1].stacks = at(&["/w/train.py"]);
    world.evidence[2].stacks = at(&["/w/train.py"]);
    let diagnosis = world.diagnose();
    let finding = &diagnosis.findings[0];
    assert_eq!((finding.causes[0].rank, finding.causes[0].class, &finding.missing), (2, Class::InUserCode, &vec![2]));
    assert!(
        finding
            .sentence
            .starts_with("receive #0 from rank 2 to rank 0 (12 bytes, tag 7, group default) is not matched by rank 2")
    );
    message(&groups[2], Shape::Send, 0);
    let diagnosis = world.diagnose();
    assert_eq!(diagnosis.findings[0].causes[0].class, Class::NetworkCut, "{diagnosis:?}");
}

#[test]
fn different_calls_at_one_point_are_told() {
    let mut world = World::of(3);
    let groups = world.group("default", &[0, 1, 2]);
    let calls =
        [begin(&groups[0], "all_reduce", 8), begin(&groups[1], "barrier", 0), begin(&groups[2], "all_reduce", 8)];
    groups.iter().zip(calls).for_each(|(group, call)| group.ended(call, false));
    let diagnosis = world.diagnose();
    let [cause] = diagnosis.findings[0].causes.as_slice() else { panic!("{diagnosis:?}") };
    assert_eq!((cause.rank, cause.class), (1, Class::InAnotherCollective));
    assert_eq!(cause.why, "it called barrier where others called all_reduce of 8 bytes");
}

#[test]
fn after_the_end_the_one_that_died_is_named() {
    let mut world = World::of(2);
    let groups = world.group("default", &[0, 1]);
    let entry = begin(&groups[0], "all_reduce", 8);
    groups[0].ended(entry, false);
    world.evidence[0].condition = Condition::Ended;
    world.evidence[1].condition = Condition::Dead;
    let diagnosis = world.diagnose();
    assert_eq!(diagnosis.findings.len(), 1);
    assert_eq!(
        diagnosis.findings[0].sentence,
        "rank 1 did not enter all_reduce #0 (8 bytes, group default): its process 101 is dead (rank 0 failed)"
    );
    // And inside of it.
    begin(&groups[1], "all_reduce", 8);
    let diagnosis = world.diagnose();
    assert_eq!((diagnosis.findings[0].causes[0].rank, diagnosis.findings[0].causes[0].class), (1, Class::Dead));
}

#[test]
fn all_there_or_not_to_be_seen() {
    let mut world = World::of(2);
    let groups = world.group("default", &[0, 1]);
    for group in &groups {
        begin(group, "all_reduce", 8);
    }
    assert_eq!(world.diagnose().findings[0].causes[0].class, Class::NetworkCut);
    world.evidence[1].condition = Condition::Stopped;
    let diagnosis = world.diagnose();
    assert_eq!((diagnosis.findings[0].causes[0].rank, diagnosis.findings[0].causes[0].class), (1, Class::Stopped));
    world.evidence.truncate(1);
    let diagnosis = world.diagnose();
    assert_eq!((diagnosis.findings[0].causes[0].rank, diagnosis.findings[0].causes[0].class), (1, Class::Elsewhere));
}

#[test]
fn ranks_that_failed_one_after_the_other_have_lost_the_network() {
    let mut world = World::of(2);
    let groups = world.group("default", &[0, 1]);
    groups[0].ended(begin(&groups[0], "all_reduce", 8), false);
    groups[1].ended(begin(&groups[1], "all_reduce", 8), true);
    groups[1].ended(begin(&groups[1], "broadcast", 8), false);
    world.evidence.iter_mut().for_each(|one| one.condition = Condition::Ended);
    let diagnosis = world.diagnose();
    let causes: Vec<_> = diagnosis.findings[0].causes.iter().map(|cause| (cause.rank, cause.class)).collect();
    assert_eq!(causes, [(0, Class::NetworkCut), (1, Class::NetworkCut)]);
}

#[test]
fn without_records_the_processes_are_told() {
    let mut world = World::of(2);
    world.evidence[1].condition = Condition::Stopped;
    let diagnosis = diagnose(&world.evidence, 0, Duration::ZERO, &|_, _| None);
    assert_eq!(diagnosis.findings[0].sentence, "rank 1: its process 101 is stopped (resume it with kill -CONT)");
    assert!(diagnosis.remarks[0].starts_with("ranks 0 and 1 left no records"));
    assert!(World::of(2).diagnose().findings.is_empty());
}

proptest! {
    /// Whatever ranks do, every finding blames members of its group, and in words.
    #[test]
    fn every_finding_has_a_cause(
        steps in proptest::collection::vec((0u32..3, 0usize..3, 0u8..6, any::<bool>()), 0..40),
        conditions in proptest::collection::vec(0u8..5, 3),
    ) {
        let mut world = World::of(3);
        let groups = [world.group("default", &[0, 1, 2]), world.group("a", &[0, 1]), world.group("b", &[2, 1])];
        let members: [&[u32]; 3] = [&[0, 1, 2], &[0, 1], &[2, 1]];
        for (rank, which, what, well) in steps {
            let Some(at) = members[which].iter().position(|member| *member == rank) else { continue };
            let group = &groups[which][at];
            match what {
                0 => { begin(group, "all_reduce", 8); }
                1 => group.ended(begin(group, "barrier", 0), well),
                2 => { message(group, Shape::Send, u32::from(well)); }
                3 => { message(group, Shape::Receive, u32::from(well)); }
                4 => group.connected(at, members[which].len(), u64::from(well)),
                _ => { group.submitted(&Started {
                    class: Shape::Collective, name: "reduce", dtype: "f32", bytes: 4, peer: Some(0), tag: 0,
                }); }
            }
        }
        for (one, condition) in world.evidence.iter_mut().zip(conditions) {
            match condition {
                0 => one.condition = Condition::Dead,
                1 => one.condition = Condition::Stopped,
                2 => one.condition = Condition::Ended,
                3 => one.stacks = at(&["/w/train.py"]),
                _ => {}
            }
        }
        let diagnosis = world.diagnose();
        for finding in &diagnosis.findings {
            prop_assert!(!finding.causes.is_empty() && !finding.sentence.is_empty(), "{finding:?}");
            prop_assert!(finding.causes.iter().all(|cause| cause.rank < 3 && !cause.why.is_empty()));
        }
        prop_assert!(!crate::report::render(&diagnosis, &world.evidence, 0, &|_, _| None).is_empty());
    }
}

#[test]
fn without_records_the_rank_that_does_something_else_than_wait_is_named() {
    let torch = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";
    let stack = |frames: &[(&str, &str)]| {
        let frame = |(file, function): &(&str, &str)| Frame {
            file: (*file).to_owned(),
            line: 7,
            function: (*function).to_owned(),
        };
        let threads = vec![Thread { name: String::new(), main: true, frames: frames.iter().map(frame).collect() }];
        Stacks::Known { threads, held: false }
    };
    let waits = |function: &str| stack(&[(torch, function), (torch, "wrapper"), ("/w/train.py", "main")]);
    let own = || stack(&[("/w/train.py", "evaluate")]);
    let moves = |one: &mut Evidence| one.still = false;
    type Case<'a> = (&'a str, [Stacks; 3], &'a dyn Fn(&mut Evidence), Option<(u32, Class)>);
    let nothing = |_: &mut Evidence| {};
    let reduces = || waits("all_reduce");
    let cases: [Case<'_>; 5] = [
        ("one is in user code", [reduces(), own(), reduces()], &nothing, Some((1, Class::InUserCode))),
        (
            "one is in another collective",
            [reduces(), reduces(), waits("broadcast")],
            &nothing,
            Some((2, Class::InAnotherCollective)),
        ),
        ("all wait in the same", [reduces(), reduces(), reduces()], &nothing, None),
        ("nobody waits", [own(), own(), own()], &nothing, None),
        ("it goes on", [reduces(), own(), reduces()], &moves, None),
    ];
    for (name, stacks, change, expected) in cases {
        let mut evidence = World::of(3).evidence;
        for (one, stacks) in evidence.iter_mut().zip(stacks) {
            (one.stacks, one.still) = (stacks, true);
        }
        change(&mut evidence[0]);
        let found = diagnose(&evidence, 0, Duration::from_secs(1), &|_, _| None).findings;
        let blamed = found.first().and_then(|finding| finding.causes.first()).map(|cause| (cause.rank, cause.class));
        assert_eq!((blamed, found.len()), (expected, usize::from(expected.is_some())), "{name}");
        if let (Some(finding), 1) = (found.first(), expected.map_or(0, |(rank, _)| rank)) {
            assert_eq!(
                finding.sentence,
                "ranks 0 and 2 wait inside all_reduce at /w/train.py:7 in main; rank 1: it is in user code at \
                 /w/train.py:7 in evaluate"
            );
        }
    }
}
