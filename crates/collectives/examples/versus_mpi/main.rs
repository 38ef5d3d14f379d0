//! Compares the engine with OpenMPI: the same buffers, the same processes, call for call in the same run.
//!
//! ```text
//! cargo build --release -p instep-collectives --example versus_mpi
//! mpirun --oversubscribe --bind-to none -n 2 target/release/examples/versus_mpi \
//!     [--operation all_reduce|all_gather|reduce_scatter|broadcast|all_to_all]
//!     [--slot BYTES] [--rounds N] [--json] [BYTES ...]
//! ```
//! The two take turns in rounds of a few calls. A round's figure is the mean over its calls on the slowest rank; shown are
//! medians over the rounds. Results are checked against each other's definition before anything is timed. BYTES are those
//! of the largest buffer a rank has, as in torch: the whole for all_reduce and broadcast, all parts for the others.
#![expect(clippy::print_stdout, reason = "a program")]
#![expect(unsafe_code, reason = "calls a C library")]

mod mpi;

use std::env;
use std::error::Error;
use std::ops::{Deref, DerefMut, Range};
use std::time::{Duration, Instant};

use instep_collectives::{Address, DataType, Group, Operation, Options, Rank, Reduction, Source, Target};
use mpi::{Calls, Mpi};

const SIZES: [usize; 6] = [8, 4 << 10, 256 << 10, 1 << 20, 25 << 20, 100 << 20];
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a round of one engine should take.
const ROUND: Duration = Duration::from_millis(15);
const ROUNDS: usize = 31;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
}

impl Compared {
    const ALL: [(&'static str, Compared); 5] = [
        ("all_reduce", Compared::AllReduce),
        ("all_gather", Compared::AllGather),
        ("reduce_scatter", Compared::ReduceScatter),
        ("broadcast", Compared::Broadcast),
        ("all_to_all", Compared::AllToAll),
    ];

    fn name(self) -> &'static str {
        Compared::ALL.into_iter().find(|(_, compared)| *compared == self).map_or("", |(name, _)| name)
    }
}

/// What the command line asks for.
struct Request {
    compared: Compared,
    options: Options,
    rounds: usize,
    json: bool,
    sizes: Vec<usize>,
}

impl Request {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Fallible<Request> {
        let mut request = Request {
            compared: Compared::AllReduce,
            options: Options::default(),
            rounds: ROUNDS,
            json: false,
            sizes: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--operation" => {
                    let wanted = value()?;
                    let found = Compared::ALL.into_iter().find(|(name, _)| *name == wanted);
                    request.compared = found.ok_or_else(|| format!("no operation {wanted}"))?.1;
                }
                "--slot" => request.options.slot_bytes = value()?.parse()?,
                "--rounds" => request.rounds = value()?.parse::<usize>()?.max(1),
                "--json" => request.json = true,
                bytes => request.sizes.push(bytes.parse().map_err(|_| format!("{bytes} is no number of bytes"))?),
            }
        }
        if request.sizes.is_empty() {
            request.sizes = SIZES.to_vec();
        }
        Ok(request)
    }
}

/// Where torch puts its tensors.
const ALIGNMENT: usize = 64;

/// Numbers that start on a cache line.
struct Aligned {
    memory: Vec<f32>,
    range: Range<usize>,
}

impl Aligned {
    fn new(length: usize) -> Aligned {
        let memory = vec![1.0; length + ALIGNMENT / 4];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Aligned { memory, range: start..start + length }
    }
}

impl Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.memory[self.range.clone()]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.range.clone()]
    }
}

/// The buffers of one size, shared by both engines.
struct Buffers {
    compared: Compared,
    rank: usize,
    world: usize,
    from: Aligned,
    to: Aligned,
}

impl Buffers {
    fn new(compared: Compared, bytes: usize, rank: usize, world: usize) -> Buffers {
        let whole = (bytes / 4).max(1);
        let part = whole.div_ceil(world);
        let (from, to) = match compared {
            Compared::AllReduce | Compared::Broadcast => (0, whole),
            Compared::AllGather => (part, part * world),
            Compared::ReduceScatter => (part * world, part),
            Compared::AllToAll => (part * world, part * world),
        };
        Buffers { compared, rank, world, from: Aligned::new(from), to: Aligned::new(to) }
    }

    /// What a rank has at a place of its input: small integers, whose sums are exact.
    fn value(rank: usize, at: usize) -> f32 {
        ((rank + 1) * 1000 + at % 977) as f32
    }

    fn fill(&mut self, rank: usize) {
        let in_place = matches!(self.compared, Compared::AllReduce | Compared::Broadcast);
        let input = if in_place { &mut self.to } else { &mut self.from };
        for (at, value) in input.iter_mut().enumerate() {
            *value = Buffers::value(rank, at);
        }
        if !in_place {
            self.to.fill(-1.0);
        }
    }

    fn check(&self, engine: &str) -> Fallible<()> {
        let (rank, world) = (self.rank, self.world);
        let sum = |at: usize| (0..world).map(|peer| Buffers::value(peer, at)).sum::<f32>();
        let part = self.to.len() / world;
        let expected = |at: usize| match self.compared {
            Compared::AllReduce => sum(at),
            Compared::Broadcast => Buffers::value(0, at),
            Compared::AllGather => Buffers::value(at / part, at % part),
            Compared::ReduceScatter => sum(rank * self.to.len() + at),
            Compared::AllToAll => Buffers::value(at / part, rank * part + at % part),
        };
        match (0..self.to.len()).find(|at| self.to[*at] != expected(*at)) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{engine}: {} is {} at {at} on rank {rank}, {} expected",
                self.compared.name(),
                self.to[at],
                expected(at)
            )
            .into()),
        }
    }

    fn ours(&mut self, group: &Group) -> Fallible<()> {
        match self.compared {
            Compared::AllReduce => group.all_reduce(&mut self.to, Reduction::Sum)?,
            Compared::Broadcast => group.broadcast(&mut self.to, Rank(0))?,
            Compared::AllGather => group.all_gather(&self.from, &mut self.to)?,
            Compared::ReduceScatter => group.reduce_scatter(&self.from, &mut self.to, Reduction::Sum)?,
            Compared::AllToAll => {
                let inputs = Source::of(&self.from).split(self.world);
                let outputs = Target::of(&mut self.to).split(self.world);
                // SAFETY: the vectors live until the operation is done.
                unsafe { group.run(Operation::AllToAll { inputs, outputs, dtype: DataType::F32 }) }?;
            }
        }
        Ok(())
    }

    fn theirs(&mut self, mpi: &Calls<'_>) -> Fallible<()> {
        match self.compared {
            Compared::AllReduce => mpi.sum(&mut self.to),
            Compared::Broadcast => mpi.broadcast(&mut self.to),
            Compared::AllGather => mpi.gather_all(&self.from, &mut self.to),
            Compared::ReduceScatter => mpi.sum_scatter(&self.from, &mut self.to),
            Compared::AllToAll => mpi.exchange(&self.from, &mut self.to, self.from.len() / self.world),
        }
    }
}

fn main() -> Fallible<()> {
    let request = Request::parse(env::args().skip(1))?;
    let mpi = Mpi::load()?;
    let (rank, world) = mpi.place()?;
    let group = connect(&mpi, rank, world, request.options.clone())?;
    if rank == 0 {
        let name = request.compared.name();
        println!("# {name}, f32, {world} ranks, {}", mpi.version()?);
        println!("{:>12} {:>12} {:>12} {:>8}", "bytes", "instep (us)", "OpenMPI (us)", "ratio");
    }
    for bytes in &request.sizes {
        let (ours, theirs) = measure(&mpi, &group, &request, *bytes)?;
        if rank == 0 {
            println!("{bytes:>12} {:>12.2} {:>12.2} {:>8.2}", ours * 1e6, theirs * 1e6, theirs / ours);
            if request.json {
                let name = request.compared.name();
                println!(
                    "{{\"operation\":\"{name}\",\"ranks\":{world},\"bytes\":{bytes},\"instep_s\":{ours:e},\"openmpi_s\":{theirs:e}}}"
                );
            }
        }
    }
    mpi.barrier()?;
    drop(group);
    mpi.finish()
}

/// Exchanges addresses over MPI.
fn connect(mpi: &Mpi, rank: usize, world: usize, options: Options) -> Fallible<Group> {
    let bound = Group::bind(options)?;
    let own = bound.address().to_bytes();
    // All parts have the same length there.
    let longest = mpi.largest(own.len() as f32)? as usize;
    let mut padded = own.clone();
    padded.resize(longest, 0);
    let mut with_length = (own.len() as u64).to_le_bytes().to_vec();
    with_length.extend(padded);
    let all = mpi.all_gather_bytes(&with_length, world)?;
    let mut addresses = Vec::new();
    for part in all.chunks(with_length.len()) {
        let length = u64::from_le_bytes(part[..8].try_into()?) as usize;
        addresses.push(Address::from_bytes(&part[8..8 + length])?);
    }
    Ok(bound.connect(Rank(rank), &addresses, 0, PATIENCE)?)
}

/// Seconds a call takes with us and with them.
fn measure(mpi: &Mpi, group: &Group, request: &Request, bytes: usize) -> Fallible<(f64, f64)> {
    let calls = mpi.calls()?;
    let (rank, world) = (group.rank().0, group.world_size());
    let mut buffers = Buffers::new(request.compared, bytes, rank, world);
    buffers.fill(rank);
    buffers.theirs(&calls)?;
    buffers.check("OpenMPI")?;
    buffers.fill(rank);
    buffers.ours(group)?;
    buffers.check("instep")?;
    // Zeros stay zeros, however often they are summed.
    buffers.from.fill(0.0);
    buffers.to.fill(0.0);
    let mut repeat = 1;
    for _ in 0..2 {
        mpi.barrier()?;
        let began = Instant::now();
        for _ in 0..repeat {
            buffers.theirs(&calls)?;
        }
        let each = f64::from(mpi.largest(began.elapsed().as_secs_f32() / repeat as f32)?);
        repeat = (ROUND.as_secs_f64() / each).clamp(1.0, 2000.0) as usize;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..request.rounds {
        for turn in 0..2 {
            let is_ours = (round + turn) % 2 == 0;
            mpi.barrier()?;
            let began = Instant::now();
            for _ in 0..repeat {
                if is_ours {
                    buffers.ours(group)?;
                } else {
                    buffers.theirs(&calls)?;
                }
            }
            let slowest = f64::from(mpi.largest(began.elapsed().as_secs_f32() / repeat as f32)?);
            if is_ours { &mut ours } else { &mut theirs }.push(slowest);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok((median(&mut ours), median(&mut theirs)))
}
