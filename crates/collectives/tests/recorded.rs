//! The flight recorder sees every operation: what waits, what is under way, how it ended.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(unsafe_code, reason = "buffers are vouched for")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_collectives::{DataType, Group, Operation, Options, Rank, Reduction, Source, Target};
use instep_recorder::{Class, Identity, Recorder, Snapshot, State};

const PATIENCE: Duration = Duration::from_secs(20);

fn recorded(folder: &tempfile::TempDir, rank: u32) -> (Arc<Recorder>, Options) {
    let identity = Identity { rank: Some(rank), world_size: 2, process: std::process::id(), ..Identity::default() };
    let recorder = Recorder::create(folder.path(), &identity).unwrap();
    let options = Options { recorder: Some(Arc::new(recorder.group("default", &[]))), ..Options::default() };
    (recorder, options)
}

fn pair(folder: &tempfile::TempDir) -> (Vec<Arc<Recorder>>, Vec<Group>) {
    let (recorders, options): (Vec<_>, Vec<_>) = (0..2).map(|rank| recorded(folder, rank)).unzip();
    let bound: Vec<_> = options.into_iter().map(|options| Group::bind(options).unwrap()).collect();
    let addresses: Vec<_> = bound.iter().map(|bound| bound.address().clone()).collect();
    let connecting = bound.into_iter().enumerate().map(|(rank, bound)| {
        let addresses = addresses.clone();
        std::thread::spawn(move || bound.connect(Rank(rank), &addresses, 0, PATIENCE).unwrap())
    });
    let connecting: Vec<_> = connecting.collect();
    (recorders, connecting.into_iter().map(|thread| thread.join().unwrap()).collect())
}

/// Waits until the file shows these states, in the order in which the operations were given.
fn await_states(recorder: &Recorder, wanted: &[(&str, State)]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let snapshot = Snapshot::read(recorder.path()).unwrap();
        let found: Vec<_> = snapshot.operations.iter().map(|one| (one.name.as_str(), one.state)).collect();
        if found == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "found {found:?}, wanted {wanted:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn queued_operations_are_seen_waiting_under_way_and_done() {
    let folder = tempfile::tempdir().unwrap();
    let (recorders, groups) = pair(&folder);
    let (given, mut values) = ([1.0f32; 4], [0.0f32; 4]);
    let (input, output) = (Source::of(&given), Target::of(&mut values));
    let sum = Operation::AllReduce { input, output, dtype: DataType::F32, reduction: Reduction::Sum };
    // SAFETY: the values live until both tickets are finished.
    let tickets = unsafe { [groups[0].submit(sum).unwrap(), groups[0].submit(Operation::Barrier).unwrap()] };
    await_states(&recorders[0], &[("all_reduce", State::Started), ("barrier", State::Submitted)]);
    let snapshot = Snapshot::read(recorders[0].path()).unwrap();
    let stuck = &snapshot.operations[0];
    assert_eq!((stuck.sequence, stuck.bytes, stuck.dtype.as_str(), stuck.class), (0, 16, "f32", Class::Collective));
    let group = snapshot.group(stuck).unwrap();
    assert_eq!((group.given, group.ended, group.rank, group.size), (2, 0, 0, 2));
    groups[1].all_reduce(&mut [2.0f32; 4], Reduction::Sum).unwrap();
    groups[1].barrier().unwrap();
    tickets.iter().for_each(|ticket| ticket.wait(PATIENCE).unwrap());
    for recorder in &recorders {
        await_states(recorder, &[("all_reduce", State::Done), ("barrier", State::Done)]);
    }
    drop(groups);
    assert!(Snapshot::read(recorders[1].path()).unwrap().groups[0].left);
}

#[test]
fn messages_and_failures_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let (recorders, groups) = pair(&folder);
    let mut buffer = [0u8; 3];
    let target = Target::of(&mut buffer);
    // SAFETY: the buffer lives until the ticket is finished.
    let ticket = unsafe { groups[0].receive(target, Some(Rank(1)), 7, PATIENCE).unwrap() };
    await_states(&recorders[0], &[("receive", State::Started)]);
    let waiting = &Snapshot::read(recorders[0].path()).unwrap().operations[0];
    assert_eq!((waiting.class, waiting.peer, waiting.tag, waiting.bytes), (Class::Receive, Some(1), 7, 3));
    // SAFETY: the bytes are static.
    unsafe { groups[1].send(Source::of(b"abc"), Rank(0), 7, PATIENCE).unwrap() }.wait(PATIENCE).unwrap();
    ticket.wait(PATIENCE).unwrap();
    await_states(&recorders[0], &[("receive", State::Done)]);
    // SAFETY: no memory is involved.
    let tickets =
        unsafe { [groups[0].submit(Operation::Barrier).unwrap(), groups[0].submit(Operation::Barrier).unwrap()] };
    groups[1].abort();
    tickets.iter().for_each(|ticket| assert!(ticket.wait(PATIENCE).is_err()));
    await_states(&recorders[0], &[("receive", State::Done), ("barrier", State::Failed), ("barrier", State::Failed)]);
}
