//! Sums vectors over processes and prints how long that takes, in the manner of nccl-tests.
//!
//! ```text
//! cargo build --release -p instep-collectives --example all_reduce
//! instep run --nproc-per-node 2 --no-python target/release/examples/all_reduce [BYTES ...]
//! ```
//! `INSTEP_LANES` says how many threads of each work. Times are medians over the calls of the rank
//! that was slowest; the algorithm's bandwidth is bytes / time, the bus's that × 2 (n - 1) / n.
#![expect(clippy::print_stdout, reason = "a program")]

use std::env;
use std::error::Error;
use std::time::{Duration, Instant};

use instep_collectives::{Address, Group, Options, Rank, Reduction};
use instep_store::Client;

const SIZES: [usize; 8] = [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20];
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a size is measured.
const MEASURE_FOR: Duration = Duration::from_millis(400);

type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> Fallible<()> {
    let rank: usize = env::var("RANK")?.parse()?;
    let world: usize = env::var("WORLD_SIZE")?.parse()?;
    let group = connect(rank, world)?;
    let sizes: Vec<usize> = env::args().skip(1).map(|size| size.parse()).collect::<Result<_, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if rank == 0 {
        println!("# {world} ranks, f32, sum");
        println!("{:>12} {:>8} {:>12} {:>10} {:>10}", "bytes", "calls", "time (us)", "alg GB/s", "bus GB/s");
    }
    for bytes in sizes {
        let (calls, seconds) = measure(&group, bytes)?;
        let algorithm = bytes as f64 / seconds / 1e9;
        let bus = algorithm * 2.0 * (world as f64 - 1.0) / world as f64;
        if rank == 0 {
            println!("{bytes:>12} {calls:>8} {:>12.2} {algorithm:>10.3} {bus:>10.3}", seconds * 1e6);
        }
    }
    Ok(())
}

/// Exchanges addresses through the launcher's store.
fn connect(rank: usize, world: usize) -> Fallible<Group> {
    let channels = env::var("INSTEP_LANES").ok().map(|channels| channels.parse()).transpose()?;
    let bound = Group::bind(Options { channels, ..Options::default() })?;
    let mut store = Client::connect(&env::var("MASTER_ADDR")?, env::var("MASTER_PORT")?.parse()?, PATIENCE)?;
    let key = |rank: usize| format!("all_reduce/{}/{rank}", env::var("TORCHELASTIC_RESTART_COUNT").unwrap_or_default());
    store.set(&key(rank), &bound.address().to_bytes())?;
    let mut addresses = Vec::new();
    for peer in 0..world {
        addresses.push(Address::from_bytes(&store.get(&key(peer))?)?);
    }
    Ok(bound.connect(Rank(rank), &addresses, 0, PATIENCE)?)
}

/// How many calls were timed, and the median of the slowest rank.
fn measure(group: &Group, bytes: usize) -> Fallible<(usize, f64)> {
    let world = group.world_size() as f32;
    let mut values = vec![1f32; bytes / 4];
    group.all_reduce(&mut values, Reduction::Sum)?;
    if values.iter().any(|value| *value != world) {
        return Err(format!("a sum of {world} ones is wrong on rank {}", group.rank()).into());
    }
    let began = Instant::now();
    group.all_reduce(&mut values, Reduction::Max)?;
    // Everybody makes as many calls as the slowest rank thinks right.
    let mut calls = [(MEASURE_FOR.as_secs_f64() / began.elapsed().as_secs_f64()).clamp(5.0, 20_000.0) as i64];
    group.all_reduce(&mut calls, Reduction::Min)?;
    let mut times = Vec::new();
    for _ in 0..calls[0] {
        group.barrier()?;
        let began = Instant::now();
        group.all_reduce(&mut values, Reduction::Average)?;
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let mut median = [times[times.len() / 2]];
    group.all_reduce(&mut median, Reduction::Max)?;
    Ok((times.len(), median[0]))
}
