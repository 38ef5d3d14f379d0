//! Ranks for tests: threads of this process, and the table of operations that every kind of rank must get right.
#![expect(unsafe_code, clippy::unwrap_used, reason = "a part of tests, which are given raw memory")]
#![allow(dead_code, reason = "every test file uses its part")]

pub mod middle;

use std::sync::Barrier;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use instep_collectives::{
    Address, Bound, DataType, Group, Operation, Options, Rank, Reduction, Secret, Source, Target, TransportChoice,
};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one test of a file alone in a process: other tests have groups and connections, too. Whether this is that process.
pub fn alone(name: &str) -> bool {
    if std::env::var_os("ALONE").is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", name]).env("ALONE", "1").output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    false
}

/// Small slots: a few thousand elements already take many steps.
pub fn options(single_copy: bool) -> Options {
    Options { timeout: PATIENCE, single_copy, slot_bytes: 64 << 10, ..Options::default() }
}

/// Over TCP, also here.
pub fn tcp() -> Options {
    Options { timeout: PATIENCE, transport: TransportChoice::Tcp, ..Options::default() }
}

/// With several threads for what has a few kilobytes.
pub fn channels() -> Options {
    Options { channels: Some(3), channel_bytes: 4 << 10, ..options(true) }
}

/// Over TCP, encrypted.
pub fn encrypted() -> Options {
    Options { encrypt: true, secret: Some(Secret::new("of the job")), ..tcp() }
}

/// With several threads and connections for what has a few kilobytes, wherever it goes over TCP.
pub fn in_network_channels(options: Options) -> Options {
    Options { network_channels: Some(3), network_channel_bytes: 4 << 10, ..options }
}

/// Everything that bytes can travel through.
pub fn every_path() -> [Options; 6] {
    [options(false), options(true), tcp(), channels(), encrypted(), in_network_channels(tcp())]
}

/// Exchanges addresses, and once more if the ranks need the network to meet. `exchange` gives those of all ranks for the own.
pub fn exchange_addresses(bound: &Bound, exchange: impl Fn(Address) -> Vec<Address>) -> Vec<Address> {
    let addresses = exchange(bound.address().clone());
    if !bound.needs_network(&addresses) {
        return addresses;
    }
    bound.open_to_network().unwrap();
    exchange(bound.address().clone())
}

/// Runs `rank` on one thread per rank of a connected group, and returns what they return in the order of ranks.
pub fn threads<T: Send>(world: usize, options: &Options, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    threads_with(world, |_| options.clone(), rank)
}

/// As [`threads`], where ranks with the same letter are on the same host.
pub fn threads_on<T: Send>(hosts: &str, options: &Options, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let island = |number: usize| hosts.get(number..=number).map(str::to_owned);
    threads_with(hosts.len(), |number| Options { island: island(number), ..options.clone() }, rank)
}

fn threads_with<T: Send>(
    world: usize,
    options: impl Fn(usize) -> Options + Sync,
    rank: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let options = &options;
    let addresses = Mutex::new(vec![None; world]);
    let barrier = Barrier::new(world);
    thread::scope(|scope| {
        let (addresses, barrier, rank) = (&addresses, &barrier, &rank);
        let ranks: Vec<_> = (0..world)
            .map(|number| {
                scope.spawn(move || {
                    let bound = Group::bind(options(number)).unwrap();
                    let all = exchange_addresses(&bound, |address| {
                        addresses.lock().unwrap()[number] = Some(address);
                        barrier.wait();
                        let all = addresses.lock().unwrap().iter().flatten().cloned().collect();
                        barrier.wait();
                        all
                    });
                    rank(bound.connect(Rank(number), &all, 0, PATIENCE).unwrap())
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A small number that every type can hold, different from rank to rank and place to place.
fn value(rank: usize, at: usize) -> i64 {
    ((rank * 7 + at * 3) % PERIOD) as i64
}

/// After so many bound values repeat, so that long buffers need not be computed one by one.
const PERIOD: usize = 5;

fn repeated(count: usize, one: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let period: Vec<u8> = (0..PERIOD).flat_map(&one).collect();
    let length = one(0).len() * count;
    let mut bytes = period.repeat(count.div_ceil(PERIOD));
    bytes.truncate(length);
    bytes
}

/// The bits of a positive number as a float of 16 bits with so many in the fraction, rounded to nearest, ties to even.
fn short_float(value: f32, fraction_bits: i32, bias: i32) -> u16 {
    if value == 0.0 {
        return 0;
    }
    let value = f64::from(value);
    let exponent = value.log2().floor() as i32;
    let unit = f64::from(exponent - fraction_bits).exp2();
    let mantissa = (value / unit).round_ties_even() as u32;
    // A mantissa that was rounded up to the next power of two carries into the exponent.
    (((exponent + bias - 1) as u32) << fraction_bits).wrapping_add(mantissa) as u16
}

fn encode(dtype: DataType, value: f32) -> Vec<u8> {
    match dtype {
        DataType::F64 => f64::from(value).to_ne_bytes().to_vec(),
        DataType::F32 => value.to_ne_bytes().to_vec(),
        DataType::F16 => short_float(value, 10, 15).to_ne_bytes().to_vec(),
        DataType::BF16 => short_float(value, 7, 127).to_ne_bytes().to_vec(),
        DataType::I8 | DataType::U8 | DataType::Bytes => vec![value as i64 as u8],
        DataType::I16 => (value as i64 as i16).to_ne_bytes().to_vec(),
        DataType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::I64 => (value as i64).to_ne_bytes().to_vec(),
        DataType::Complex64 => [value.to_ne_bytes(), (-value).to_ne_bytes()].concat(),
        DataType::Complex128 => [f64::from(value).to_ne_bytes(), f64::from(-value).to_ne_bytes()].concat(),
        DataType::Bool => vec![u8::from(value as i64 % 2 == 1)],
    }
}

fn buffer(dtype: DataType, count: usize, value: impl Fn(usize) -> i64) -> Vec<u8> {
    repeated(count, |at| encode(dtype, value(at) as f32))
}

fn input(dtype: DataType, rank: usize, count: usize) -> Vec<u8> {
    buffer(dtype, count, |at| value(rank, at))
}

/// What the values of all ranks become, by the book.
fn reduced(dtype: DataType, reduction: Reduction, world: usize, count: usize, offset: usize) -> Vec<u8> {
    let boolean = dtype == DataType::Bool;
    let one = |at: usize| -> Vec<u8> {
        let values: Vec<i64> = (0..world)
            .map(|rank| value(rank, at + offset))
            .map(|value| if boolean { value % 2 } else { value })
            .collect();
        let sum: i64 = values.iter().sum();
        let whole = match reduction {
            Reduction::Sum if boolean => i64::from(sum > 0),
            Reduction::Sum => sum,
            Reduction::Average if [DataType::F64, DataType::Complex128].contains(&dtype) => {
                let average = sum as f64 / world as f64;
                let parts = if dtype == DataType::F64 { vec![average] } else { vec![average, -average] };
                return parts.into_iter().flat_map(f64::to_ne_bytes).collect();
            }
            Reduction::Average if dtype.name().starts_with(['i', 'u']) => sum / world as i64,
            Reduction::Average => return encode(dtype, sum as f32 / world as f32),
            // Integers wrap around; halves stay exact while the product has few bits.
            Reduction::Product => values.iter().product(),
            Reduction::Min => *values.iter().min().unwrap(),
            Reduction::Max => *values.iter().max().unwrap(),
            Reduction::BitAnd => values.iter().copied().reduce(|a, b| a & b).unwrap(),
            Reduction::BitOr => values.iter().copied().reduce(|a, b| a | b).unwrap(),
            Reduction::BitXor => values.iter().copied().reduce(|a, b| a ^ b).unwrap(),
            Reduction::PremultipliedSum(factor) => return encode(dtype, sum as f32 * factor as f32),
        };
        encode(dtype, whole as f32)
    };
    repeated(count, one)
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

/// Every operation on this type and length with some reductions, in place and out of place, compared with what it must give.
pub fn check_operations(group: &Group, dtype: DataType, count: usize) {
    for reduction in [Reduction::Sum, Reduction::Max, Reduction::BitXor] {
        check_reduction(group, dtype, reduction, count);
    }
    check_moves(group, dtype, count);
    check_all_to_all(group, dtype, count);
    group.barrier().unwrap();
}

/// Every operation that reduces, if the type has this reduction.
pub fn check_reduction(group: &Group, dtype: DataType, reduction: Reduction, count: usize) {
    if reduction.check(dtype).is_ok() {
        check_reductions(group, dtype, reduction, count);
    }
}

fn check_reductions(group: &Group, dtype: DataType, reduction: Reduction, count: usize) {
    let (rank, world) = (group.rank().0, group.world_size());
    let root = Rank(count % world);
    let what =
        |name: &str| format!("{name} of {count} {} with {} on rank {rank} of {world}", dtype.name(), reduction.name());
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

pub fn check_moves(group: &Group, dtype: DataType, count: usize) {
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

pub fn check_all_to_all(group: &Group, dtype: DataType, count: usize) {
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
