//! `instep bench`: measures this machine with the programs that ship inside the wheel.
//!
//! Options are understood here and passed on in one canonical form; measuring needs torch, so Python does it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::module;

/// Below the options of `instep bench collectives --help`.
const AFTER_COLLECTIVES: &str = "\
Every backend runs in every round, so that a busy machine affects all of them alike. The result is the median over the \
rounds of the slowest rank's mean time per call. All results are checked.
Bandwidths are in GB/s and counted as in nccl-tests; ratio is the time relative to the first backend.";

/// What a relay between hosts can add: less than it takes itself makes no sense, more is no network.
const SHORTEST_DELAY: Duration = Duration::from_micros(10);
const LONGEST_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Compare the speed of collectives of several backends
    #[command(after_help = AFTER_COLLECTIVES)]
    Collectives(CollectivesArguments),
}

#[derive(Debug, Args)]
struct CollectivesArguments {
    /// Number of ranks on this machine, or on each host
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = |text: &str| parse_count(text, 1, 1024))]
    nproc: u16,
    /// Backends to compare; nccl needs one GPU per rank, mpi needs Open MPI
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "instep,gloo")]
    backends: Vec<Backend>,
    /// Sizes in bytes; K, M and G are powers of 1024
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        default_value = "8,4K,256K,1M,25M,100M",
        value_parser = parse_size
    )]
    sizes: Vec<u64>,
    /// Operations to time
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "all_reduce")]
    ops: Vec<Operation>,
    /// Number of rounds; every backend runs once per round
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = |text: &str| parse_count(text, 1, 100))]
    rounds: u16,
    /// Python for the ranks [default: that of the active environment]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Simulate this many hosts with network namespaces; needs root
    #[arg(long, value_name = "N", conflicts_with = "nnodes", value_parser = |text: &str| parse_count(text, 2, 64))]
    hosts: Option<u16>,
    /// Limit the bandwidth of each simulated host, in tc's notation: 2.5gbit
    #[arg(long, value_name = "RATE", requires = "hosts")]
    rate: Option<String>,
    /// Delay packets between the simulated hosts by 10us to 1s
    #[arg(long, value_name = "TIME", requires = "hosts", value_parser = parse_delay)]
    delay: Option<Duration>,
    /// Number of real hosts; run the same command on each, the first prints the table
    #[arg(long, value_name = "N", requires = "master_addr", value_parser = |text: &str| parse_count(text, 2, 1024))]
    nnodes: Option<u16>,
    /// Rank of this host, from 0
    #[arg(long, value_name = "N", requires = "nnodes", default_value_t = 0)]
    node_rank: u16,
    /// Address of the first host
    #[arg(long, value_name = "ADDRESS", requires = "nnodes")]
    master_addr: Option<String>,
    /// Port of the first host
    #[arg(long, value_name = "PORT", requires = "nnodes", default_value_t = 29577)]
    master_port: u16,
}

/// Who can take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// instep's collectives
    Instep,
    /// gloo, for CPUs
    Gloo,
    /// NCCL, for GPUs
    Nccl,
    /// Open MPI, called directly
    Mpi,
}

/// What can be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Operation {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    /// Has no size
    Barrier,
}

/// Replaces this process by the measuring program.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    let Bench::Collectives(options) = &arguments.what;
    let words = canonical(options).into_iter().map(OsString::from);
    module::execute("instep.bench", "instep bench collectives", options.python.as_deref(), words)
}

/// The options as `python/instep/bench/__main__.py` takes them.
fn canonical(options: &CollectivesArguments) -> Vec<String> {
    let sizes: Vec<String> = unique(&options.sizes).into_iter().map(u64::to_string).collect();
    let mut words: Vec<String> = [
        ("--nproc", options.nproc.to_string()),
        ("--backends", names(&options.backends)),
        ("--sizes", sizes.join(",")),
        ("--ops", names(&options.ops)),
        ("--rounds", options.rounds.to_string()),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value])
    .collect();
    let between: [(&str, Option<String>); 6] = [
        ("--hosts", options.hosts.map(|hosts| hosts.to_string())),
        ("--rate", options.rate.clone()),
        ("--delay-us", options.delay.map(|delay| delay.as_micros().to_string())),
        ("--nnodes", options.nnodes.map(|nodes| nodes.to_string())),
        ("--node-rank", options.nnodes.map(|_| options.node_rank.to_string())),
        ("--master-addr", options.master_addr.clone()),
    ];
    let port = ("--master-port", options.nnodes.map(|_| options.master_port.to_string()));
    for (option, value) in between.into_iter().chain([port]) {
        words.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
    }
    if options.json {
        words.push("--json".to_owned());
    }
    words
}

fn names<T: ValueEnum + PartialEq>(values: &[T]) -> String {
    let spelled = unique(values).into_iter().filter_map(ValueEnum::to_possible_value);
    spelled.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(",")
}

/// Each value once, in the order in which they were given.
fn unique<T: PartialEq>(values: &[T]) -> Vec<&T> {
    let mut found: Vec<&T> = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Reads a number from `least` to `most`.
fn parse_count(text: &str, least: u16, most: u16) -> Result<u16, String> {
    let number: Option<u16> = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("not a number from {least} to {most}"))
}

/// Reads `25M`.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        other => return Err(format!("{other} is not a unit; use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a size".to_owned())?;
    match number.checked_mul(unit) {
        Some(0) => Err("the size must not be 0".to_owned()),
        // Element counts are 32 bit in MPI.
        Some(bytes) if bytes <= 4 << 30 => Ok(bytes),
        _ => Err("larger than 4G".to_owned()),
    }
}

/// Reads `1ms`.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "us" | "µs" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        other => return Err(format!("{other:?} is not a unit; use us, ms or s")),
    };
    let number: u32 = digits.parse().map_err(|_| "not a whole number with a unit".to_owned())?;
    let delay = unit.checked_mul(number).filter(|delay| *delay <= LONGEST_DELAY && *delay >= SHORTEST_DELAY);
    delay.ok_or_else(|| "must be from 10us to 1s".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: CollectivesArguments,
    }

    fn words(line: &str) -> String {
        let parsed = Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).expect("understood");
        canonical(&parsed.options).join(" ")
    }

    #[test]
    fn sizes_are_bytes_with_powers_of_1024() {
        for (text, bytes) in [("8", 8), ("4K", 4096), ("4kib", 4096), ("25M", 26_214_400), ("1G", 1 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "4X", "0", "0K", "-8", "4.5M", "5G", "99999999999999999999", "8 K", "ÄK"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn delays_have_a_unit() {
        for (text, microseconds) in [("1ms", 1000), ("10us", 10), ("250µs", 250), ("1s", 1_000_000)] {
            assert_eq!(parse_delay(text), Ok(Duration::from_micros(microseconds)), "{text}");
        }
        for text in ["", "1", "ms", "0ms", "9us", "2s", "1.5ms", "-1ms", "1 ms", "99999999999s", "4294967295s", "1µ"] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_are_passed_on() {
        assert!(
            words("--hosts 4 --nproc 1 --rate 2.5gbit --delay 1ms")
                .ends_with(" --hosts 4 --rate 2.5gbit --delay-us 1000")
        );
        let between = words("--nnodes 2 --node-rank 1 --master-addr a --json");
        assert!(between.ends_with(" --nnodes 2 --node-rank 1 --master-addr a --master-port 29577 --json"), "{between}");
        for wrong in [
            "--rate 1gbit",
            "--delay 1ms",
            "--nnodes 2",
            "--node-rank 1",
            "--hosts 1",
            "--hosts 2 --nnodes 2 --master-addr a",
        ] {
            let line = std::iter::once("x").chain(wrong.split_whitespace());
            assert!(Line::try_parse_from(line).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_are_passed_on_in_one_form() {
        assert_eq!(
            words(""),
            "--nproc 2 --backends instep,gloo --sizes 8,4096,262144,1048576,26214400,104857600 --ops all_reduce --rounds 9"
        );
        assert_eq!(
            words("--nproc 4 --backends gloo,instep,gloo --sizes 1M,1024K --ops all_to_all,reduce --rounds 2 --json"),
            "--nproc 4 --backends gloo,instep --sizes 1048576 --ops all_to_all,reduce --rounds 2 --json"
        );
    }
}
