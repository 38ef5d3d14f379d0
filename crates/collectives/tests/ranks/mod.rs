//! Ranks for tests: threads of this process, and the table of operations that every kind of rank must get right.
#![expect(unsafe_code, clippy::unwrap_used, reason = "a part of tests, which are given raw memory")]
#![allow(dead_code, reason = "every test file uses its part")]

use std::sync::Barrier;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use instep_collectives::{DataType, Group, Operation, Options, Rank, Reduction, Source, Target};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Small slots and a low threshold: a few thousand elements already take many steps, or the other path.
pub fn options(single_copy: bool) -> Options {
    Options {
        timeout: PATIENCE,
        single_copy_bytes: single_copy.then_some(16 << 10),
        slot_bytes: 64 << 10,
        ..Options::default()
    }
}

/// Runs `rank` on one thread per rank of a connected group, and returns what they return in the order of ranks.
pub fn threads<T: Send>(world: usize, options: &Options, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let addresses = Mutex::new(vec![None; world]);
    let bound = Barrier::new(world);
    thread::scope(|scope| {
        let (addresses, bound, rank) = (&addresses, &bound, &rank);
        let ranks: Vec<_> = (0..world)
            .map(|number| {
                scope.spawn(move || {
                    let place = Group::bind(options.clone()).unwrap();
                    addresses.lock().unwrap()[number] = Some(place.address().clone());
                    bound.wait();
                    let all: Vec<_> = addresses.lock().unwrap().iter().flatten().cloned().collect();
                    rank(place.connect(Rank(number), &all, 0, PATIENCE).unwrap())
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A small number that every type can hold, different from rank to rank and place to place.
fn value(rank: usize, at: usize) -> i64 {
    ((rank * 7 + at * 3) % 5) as i64
}

fn encode(dtype: DataType, value: i64) -> Vec<u8> {
    match dtype {
        DataType::F64 => (value as f64).to_ne_bytes().to_vec(),
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        // The numbers of these tests have few bits: the upper half of an f32 is exact.
        DataType::BF16 => ((value as f32).to_bits() >> 16).to_ne_bytes()[..2].to_vec(),
        DataType::I8 | DataType::U8 | DataType::Bytes => vec![value as u8],
        DataType::I16 => (value as i16).to_ne_bytes().to_vec(),
        DataType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::I64 => value.to_ne_bytes().to_vec(),
        DataType::Complex128 => [(value as f64).to_ne_bytes(), (-value as f64).to_ne_bytes()].concat(),
        DataType::Bool => vec![u8::from(value % 2 == 1)],
        DataType::F16 | DataType::Complex64 => unreachable!("left to the tests of the kernels"),
    }
}

fn buffer(dtype: DataType, count: usize, value: impl Fn(usize) -> i64) -> Vec<u8> {
    (0..count).flat_map(|at| encode(dtype, value(at))).collect()
}

fn input(dtype: DataType, rank: usize, count: usize) -> Vec<u8> {
    buffer(dtype, count, |at| value(rank, at))
}

fn reduced(dtype: DataType, reduction: Reduction, world: usize, count: usize, offset: usize) -> Vec<u8> {
    buffer(dtype, count, |at| {
        let values = (0..world).map(|rank| value(rank, at + offset));
        match reduction {
            Reduction::Sum => values.sum(),
            Reduction::Max => values.max().unwrap(),
            Reduction::BitXor => values.fold(0, |a, b| a ^ b),
            other => unreachable!("{}", other.name()),
        }
    })
}

fn source(bytes: &[u8]) -> Source {
    Source::of(bytes)
}

fn target(bytes: &mut [u8]) -> Target {
    Target::of(bytes)
}

fn run(group: &Group, operation: Operation) {
    // SAFETY: every buffer of these tests outlives the call.
    unsafe { group.run(operation) }.unwrap();
}

/// Every operation on this type and length, in place and out of place, compared with what it must give.
pub fn check_operations(group: &Group, dtype: DataType, count: usize) {
    check_reductions(group, dtype, count);
    check_moves(group, dtype, count);
    check_all_to_all(group, dtype, count);
    group.barrier().unwrap();
}

fn check_reductions(group: &Group, dtype: DataType, count: usize) {
    let (rank, world) = (group.rank().0, group.world_size());
    let root = Rank(count % world);
    let what = |name: &str| format!("{name} of {count} {} on rank {rank} of {world}", dtype.name());
    for reduction in [Reduction::Sum, Reduction::Max, Reduction::BitXor] {
        // The reference adds numbers; a sum of truth values is no number.
        if reduction.check(dtype).is_err() || (dtype == DataType::Bool && reduction == Reduction::Sum) {
            continue;
        }
        if reduction == Reduction::Max && dtype == DataType::Bool {
            continue;
        }
        let own = input(dtype, rank, count);
        let expected = reduced(dtype, reduction, world, count, 0);
        let mut output = vec![0xee; own.len()];
        run(group, Operation::AllReduce { input: source(&own), output: target(&mut output), dtype, reduction });
        assert!(output == expected, "{}", what("all_reduce"));

        let mut both = own.clone();
        let place = target(&mut both);
        run(group, Operation::AllReduce { input: source(&both), output: place, dtype, reduction });
        assert!(both == expected, "{}", what("all_reduce in place"));

        let mut output = vec![0xee; own.len()];
        run(group, Operation::Reduce { input: source(&own), output: target(&mut output), dtype, reduction, root });
        let expected_here = if rank == root.0 { expected } else { vec![0xee; own.len()] };
        assert!(output == expected_here, "{}", what("reduce"));

        let mut all = input(dtype, rank, count * world);
        let expected = reduced(dtype, reduction, world, count, rank * count);
        let mut part = vec![0xee; own.len()];
        let inputs = source(&all).split(world);
        run(group, Operation::ReduceScatter { inputs: inputs.clone(), output: target(&mut part), dtype, reduction });
        assert!(part == expected, "{}", what("reduce_scatter"));

        let output = target(&mut all).split(world)[rank];
        run(group, Operation::ReduceScatter { inputs, output, dtype, reduction });
        assert!(all[rank * own.len()..][..own.len()] == expected, "{}", what("reduce_scatter in place"));
    }
}

fn check_moves(group: &Group, dtype: DataType, count: usize) {
    let (rank, world) = (group.rank().0, group.world_size());
    let root = Rank(count % world);
    let what = |name: &str| format!("{name} of {count} {} on rank {rank} of {world}", dtype.name());
    let own = input(dtype, rank, count);
    let everybody: Vec<u8> = (0..world).flat_map(|rank| input(dtype, rank, count)).collect();

    let mut buffer = own.clone();
    run(group, Operation::Broadcast { buffer: target(&mut buffer), dtype, root });
    assert!(buffer == input(dtype, root.0, count), "{}", what("broadcast"));

    let mut all = vec![0xee; everybody.len()];
    let outputs = target(&mut all).split(world);
    run(group, Operation::AllGather { input: source(&own), outputs: outputs.clone(), dtype });
    assert!(all == everybody, "{}", what("all_gather"));

    all.fill(0xee);
    all[rank * own.len()..][..own.len()].copy_from_slice(&own);
    let input_in_place = source(&all).split(world)[rank];
    run(group, Operation::AllGather { input: input_in_place, outputs: outputs.clone(), dtype });
    assert!(all == everybody, "{}", what("all_gather in place"));

    all.fill(0xee);
    let outputs = if rank == root.0 { outputs } else { Vec::new() };
    run(group, Operation::Gather { input: source(&own), outputs, dtype, root });
    assert!(all == if rank == root.0 { everybody.clone() } else { vec![0xee; all.len()] }, "{}", what("gather"));

    let mut part = vec![0xee; own.len()];
    let inputs = if rank == root.0 { source(&everybody).split(world) } else { Vec::new() };
    run(group, Operation::Scatter { inputs, output: target(&mut part), dtype, root });
    assert!(part == own, "{}", what("scatter"));
}

/// How many elements one rank has for another.
type Size<'a> = &'a dyn Fn(usize, usize) -> usize;

fn check_all_to_all(group: &Group, dtype: DataType, count: usize) {
    let (rank, world) = (group.rank().0, group.world_size());
    // Rank a has for rank b: the number of a, as often as the pair says.
    let even = |_: usize, _: usize| count;
    let uneven = |from: usize, to: usize| (from * 5 + to * 11) % 7 * count / 4;
    let sizes: [(&str, Size); 2] = [("even", &even), ("uneven", &uneven)];
    for (name, size) in sizes {
        let inputs: Vec<Vec<u8>> =
            (0..world).map(|to| buffer(dtype, size(rank, to), |at| value(rank + 3 * to, at))).collect();
        let mut outputs: Vec<Vec<u8>> = (0..world).map(|from| vec![0xee; size(from, rank) * dtype.size()]).collect();
        let operation = Operation::AllToAll {
            inputs: inputs.iter().map(|input| source(input)).collect(),
            outputs: outputs.iter_mut().map(|output| target(output)).collect(),
            dtype,
        };
        run(group, operation);
        for (from, output) in outputs.iter().enumerate() {
            let expected = buffer(dtype, size(from, rank), |at| value(from + 3 * rank, at));
            assert!(*output == expected, "{name} all_to_all of {count} {} on rank {rank} of {world}", dtype.name());
        }
    }
    let mut both: Vec<u8> = (0..world).flat_map(|to| buffer(dtype, count, |at| value(rank + 3 * to, at))).collect();
    let outputs = target(&mut both).split(world);
    run(group, Operation::AllToAll { inputs: source(&both).split(world), outputs, dtype });
    let expected: Vec<u8> = (0..world).flat_map(|from| buffer(dtype, count, |at| value(from + 3 * rank, at))).collect();
    assert!(both == expected, "all_to_all in place of {count} {} on rank {rank} of {world}", dtype.name());
}
