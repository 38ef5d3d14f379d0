//! What is written is what is read, also at the same time.

use super::*;
use crate::reader::Snapshot;

fn identity() -> Identity {
    Identity {
        rank: Some(3),
        world_size: 8,
        incarnation: 2,
        host: "node-a".to_owned(),
        job: "j".repeat(70) + "ü",
        process: std::process::id(),
        process_started: 77,
    }
}

fn recorder() -> (tempfile::TempDir, Arc<Recorder>) {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path(), &identity()).unwrap();
    (folder, recorder)
}

fn collective(bytes: u64) -> Started<'static> {
    Started { class: Class::Collective, name: "all_reduce", dtype: "f32", bytes, peer: None, tag: 0 }
}

#[test]
fn a_reader_sees_what_was_written() {
    let (_folder, recorder) = recorder();
    let group = recorder.group("tensor parallel", &[1, 3, 5]);
    group.connected(1, 3, 4);
    let mut first = group.submitted(&collective(100));
    let second = group.submitted(&collective(200));
    group.started(&mut first);
    group.ended(first, true);
    let message = Started { class: Class::Send, name: "send", dtype: "bytes", bytes: 5, peer: Some(2), tag: 9 };
    group.ended(group.begun(&message), false);
    let snapshot = Snapshot::read(recorder.path()).unwrap();
    let whole = Identity { job: "j".repeat(64), ..identity() };
    assert_eq!((snapshot.identity.clone(), snapshot.ended), (whole, false));
    let found = &snapshot.groups[0];
    assert_eq!((found.name.as_str(), found.rank, found.size, found.generation), ("tensor parallel", 1, 3, 4));
    assert_eq!((found.given, found.ended, found.left, found.job_rank(2)), (2, 1, false, Some(5)));
    let states: Vec<_> = snapshot.operations.iter().map(|operation| (operation.sequence, operation.state)).collect();
    assert_eq!(states, [(0, State::Done), (1, State::Submitted), (0, State::Failed)]);
    let pending: Vec<u64> = snapshot.pending().map(|operation| operation.bytes).collect();
    assert_eq!(pending, [200]);
    assert_eq!((snapshot.operations[2].peer, snapshot.operations[2].tag), (Some(2), 9));
    assert!(snapshot.operations[0].submitted <= snapshot.operations[0].started);
    group.ended(second, true);
    drop(group);
    recorder.end();
    let snapshot = Snapshot::read(recorder.path()).unwrap();
    assert!(snapshot.ended && snapshot.groups[0].left);
}

#[test]
fn what_is_under_way_is_never_overwritten() {
    let (_folder, recorder) = recorder();
    let (stuck, busy) = (recorder.group("stuck", &[]), recorder.group("busy", &[]));
    let entry = stuck.begun(&collective(1));
    for bytes in 0..5000 {
        busy.ended(busy.begun(&collective(bytes)), true);
    }
    let snapshot = Snapshot::read(recorder.path()).unwrap();
    assert_eq!((snapshot.operations.len(), snapshot.pending().count(), snapshot.lost), (RECORDS, 1, 0));
    assert_eq!(snapshot.group(snapshot.pending().next().unwrap()).unwrap().name, "stuck");
    assert_eq!(snapshot.groups[1].ended, 5000);
    busy.connected(0, 1, 1);
    let snapshot = Snapshot::read(recorder.path()).unwrap();
    let old = snapshot.operations.iter().find(|operation| operation.state == State::Done).unwrap();
    assert_eq!((snapshot.groups[1].ended, snapshot.group(old)), (0, None), "what was before is not the new ranks'");
    stuck.ended(entry, true);
    assert_eq!(Snapshot::read(recorder.path()).unwrap().pending().count(), 0);
}

#[test]
fn too_much_is_counted_and_left_out() {
    let (_folder, recorder) = recorder();
    let groups: Vec<GroupRecorder> = (0..GROUPS + 2).map(|index| recorder.group(&index.to_string(), &[])).collect();
    let entries: Vec<Entry> = (0..2000).map(|_| groups[0].submitted(&collective(1))).collect();
    groups[GROUPS].ended(groups[GROUPS].begun(&collective(1)), true);
    let snapshot = Snapshot::read(recorder.path()).unwrap();
    assert_eq!((snapshot.lost_groups, snapshot.groups.len(), snapshot.operations.len()), (2, GROUPS, RECORDS));
    assert_eq!(snapshot.lost, 2000 - RECORDS as u64);
    for mut entry in entries {
        groups[0].started(&mut entry);
        groups[0].ended(entry, true);
    }
    drop(groups);
    let again = recorder.group("again", &[]);
    again.connected(0, 1, 0);
    let snapshot = Snapshot::read(recorder.path()).unwrap();
    assert_eq!(snapshot.groups.iter().filter(|group| !group.left).count(), 1);
}

/// Readers in between never see parts of two records as one: all fields of a record are made from one number.
#[test]
fn a_reader_never_sees_half_a_record() {
    let (_folder, recorder) = recorder();
    let running = Arc::new(AtomicU64::new(1));
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let (group, running) = (recorder.group("busy", &[]), Arc::clone(&running));
            std::thread::spawn(move || {
                let mut number = 0u64;
                while running.load(Ordering::Relaxed) == 1 {
                    number += 1;
                    let message = Started {
                        class: Class::Send,
                        name: "send",
                        dtype: "bytes",
                        bytes: number,
                        peer: Some(number as u32 % 1000),
                        tag: number * 3,
                    };
                    let entry = group.begun(&message);
                    group.ended(entry, number.is_multiple_of(2));
                }
            })
        })
        .collect();
    let mut seen = 0;
    for _ in 0..300 {
        for operation in Snapshot::read(recorder.path()).unwrap().operations {
            let number = operation.bytes;
            assert_eq!((operation.peer, operation.tag), (Some(number as u32 % 1000), number * 3));
            assert_eq!(operation.state == State::Done, number.is_multiple_of(2) && operation.state != State::Started);
            assert_eq!(operation.ended == 0, operation.state == State::Started);
            seen += 1;
        }
    }
    running.store(0, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert!(seen > 10_000, "only {seen} records could be read");
}
