//! What encryption between hosts costs: all_reduce over TCP, plain and encrypted in turns, for two or more hosts of one rank.
//!
//!     cargo run --release -p instep-collectives --example encryption -- [HOSTS [BYTES [ROUNDS]]]
//!
//! The hosts are threads of this process that behave as if they shared no memory; their bytes go through loopback. Prints
//! medians of the slowest rank, and how fast encrypted is relative to plain.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example that measures")]

use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use instep_collectives::{Address, Bound, Group, Options, Rank, Reduction, Secret, TransportChoice};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    let number = |at: usize, usual: usize| numbers.get(at).copied().unwrap_or(usual);
    let (hosts, bytes, rounds) = (number(0, 2), number(1, 25 << 20), number(2, 40));
    // By rank: plain and encrypted.
    let groups: [Vec<Bound>; 2] = [false, true].map(|encrypt| (0..hosts).map(|_| bind(encrypt)).collect());
    let addresses: [Vec<Address>; 2] =
        groups.each_ref().map(|bound| bound.iter().map(|bound| bound.address().clone()).collect());
    let [plain, encrypted] = groups;
    // Of the slowest rank, by round: plain and encrypted.
    let slowest = Mutex::new(vec![[Duration::ZERO; 2]; rounds]);
    let barrier = Barrier::new(hosts);
    thread::scope(|scope| {
        for (rank, bound) in plain.into_iter().zip(encrypted).enumerate() {
            let (addresses, slowest, barrier) = (&addresses, &slowest, &barrier);
            scope.spawn(move || {
                let connect = |bound: Bound, addresses| bound.connect(Rank(rank), addresses, 0, PATIENCE).unwrap();
                let groups = [connect(bound.0, &addresses[0]), connect(bound.1, &addresses[1])];
                let mut values = vec![1f32; bytes / 4];
                groups.iter().for_each(|group| reduce(group, &mut values));
                for round in 0..rounds {
                    for (kind, group) in groups.iter().enumerate() {
                        barrier.wait();
                        let started = Instant::now();
                        reduce(group, &mut values);
                        let took = started.elapsed();
                        let mut slowest = slowest.lock().unwrap();
                        slowest[round][kind] = slowest[round][kind].max(took);
                    }
                }
            });
        }
    });
    let slowest = slowest.into_inner().unwrap();
    let [plain, encrypted] = [0, 1].map(|kind| {
        let mut times: Vec<Duration> = slowest.iter().map(|round| round[kind]).collect();
        times.sort_unstable();
        times[times.len() / 2]
    });
    let (cores, ratio) = (thread::available_parallelism().unwrap(), plain.as_secs_f64() / encrypted.as_secs_f64());
    println!(
        "all_reduce of {bytes} bytes, {hosts} hosts, {cores} cores: plain {plain:?}, encrypted {encrypted:?}, {ratio:.2}"
    );
}

fn bind(encrypt: bool) -> Bound {
    let secret = Some(Secret::new("of a job"));
    let options = Options { transport: TransportChoice::Tcp, secret, encrypt, timeout: PATIENCE, ..Options::default() };
    let bound = Group::bind(options).unwrap();
    bound.open_to_network().unwrap();
    bound
}

fn reduce(group: &Group, values: &mut [f32]) {
    group.all_reduce(values, Reduction::Max).unwrap();
}
