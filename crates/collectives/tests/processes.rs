//! Ranks as processes of their own: the operations, and what survivors see when one is killed.
#![expect(unsafe_code, reason = "gives up capabilities")]
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod ranks;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use instep_collectives::{Address, DataType, Error, Group, Operation, Rank, Reduction, Target};
use ranks::{PATIENCE, check_operations, every_path, exchange_addresses};

/// Places in [`every_path`].
const SHM: usize = 0;
const SINGLE_COPY: usize = 1;
const TCP: usize = 2;
const CHANNELS: usize = 3;
const NETWORK_CHANNELS: usize = 5;

/// Processes of this test program, each a rank; they speak in lines of capitals.
struct Ranks {
    processes: Vec<(Child, ChildStdin, Receiver<String>)>,
}

impl Ranks {
    /// `path` is one of [`every_path`].
    fn start(world: usize, job: &str, path: usize) -> Ranks {
        let mut processes = Vec::new();
        for rank in 0..world {
            let mut process = Command::new(env::current_exe().unwrap())
                .args(["--exact", "a_rank", "--nocapture"])
                .env("JOB", job)
                .envs(
                    [("NUMBER", rank), ("RANKS", world), ("PATH_NUMBER", path)]
                        .map(|(name, value)| (name, value.to_string())),
                )
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (sender, receiver) = channel();
            let output = BufReader::new(process.stdout.take().unwrap());
            thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    if line.starts_with(char::is_uppercase) && sender.send(line).is_err() {
                        break;
                    }
                }
            });
            let input = process.stdin.take().unwrap();
            processes.push((process, input, receiver));
        }
        let mut ranks = Ranks { processes };
        for _ in 0..if [TCP, NETWORK_CHANNELS].contains(&path) { 2 } else { 1 } {
            let addresses: Vec<String> = (0..world).map(|rank| ranks.expect_line(rank, "ADDRESS ")).collect();
            for (_, input, _) in &mut ranks.processes {
                writeln!(input, "{}", addresses.join(" ")).unwrap();
            }
        }
        ranks
    }

    /// The next line of a rank, which must start so.
    fn expect_line(&mut self, rank: usize, start: &str) -> String {
        let line = self.processes[rank].2.recv_timeout(PATIENCE).unwrap();
        line.strip_prefix(start).unwrap_or_else(|| panic!("rank {rank} said {line}, not {start}")).to_owned()
    }

    fn finish(mut self) {
        for (process, _, _) in &mut self.processes {
            process.wait().unwrap();
        }
    }
}

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// What a process of [`Ranks`] does; nothing when the tests themselves run.
#[test]
fn a_rank() {
    let Ok(job) = env::var("JOB") else { return };
    let number = |name: &str| env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, world) = (number("NUMBER"), number("RANKS"));
    if job == "hidden table" {
        hide_memory();
    }
    let bound = Group::bind(every_path()[number("PATH_NUMBER")].clone()).unwrap();
    let addresses = exchange_addresses(&bound, |address| {
        let hexadecimal: String = address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("\nADDRESS {hexadecimal}");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.split_whitespace().map(parse_address).collect()
    });
    assert_eq!(addresses.len(), world);
    let group = bound.connect(Rank(rank), &addresses, 3, PATIENCE).unwrap();
    match job.as_str() {
        "table" | "hidden table" => {
            for dtype in [DataType::F32, DataType::I8] {
                for count in [0, 3, 1003, 20_001] {
                    check_operations(&group, dtype, count);
                }
            }
            println!("\nDONE {}", group.uses_single_copy());
        }
        "reduce" => {
            let mut values = vec![1f32; 2_000_000];
            let mut round = 0u32;
            loop {
                let result = group.all_reduce(&mut values, Reduction::Max);
                if let Err(error) = result {
                    let at = now_us();
                    let Error::PeerLost { rank, .. } = error else { panic!("{error}") };
                    println!("\nLOST {at} {rank} {error}");
                    break;
                }
                round += 1;
                if round == 3 {
                    println!("\nLOOPING");
                }
            }
            // The survivors go on without the lost one, in the same object.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            let lost: usize = line.trim().parse().unwrap();
            let rest: Vec<Address> =
                (0..world).filter(|rank| *rank != lost).map(|rank| addresses[rank].clone()).collect();
            let new_rank = Rank(if rank > lost { rank - 1 } else { rank });
            group.reconfigure(new_rank, &rest, 4, PATIENCE).unwrap();
            let mut values = [1i32];
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            println!("\nREBUILT {}", values[0]);
        }
        "leave" => {
            group.barrier().unwrap();
            if rank == 1 {
                println!("\nDONE");
                std::process::exit(3);
            }
            let mut byte = [0u8];
            // SAFETY: the buffer outlives the ticket.
            let ticket = unsafe { group.receive(Target::of(&mut byte), None, 0, PATIENCE) }.unwrap();
            println!("\nDONE {}", ticket.wait(PATIENCE).unwrap_err());
        }
        "stop" => {
            group.barrier().unwrap();
            println!("\nREADY");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            let limit = Duration::from_millis(300);
            // SAFETY: no memory is involved.
            println!("\nDONE {}", unsafe { group.run_within(Operation::Barrier, limit) }.unwrap_err());
        }
        other => panic!("no job {other}"),
    }
}

fn parse_address(text: &str) -> Address {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    Address::from_bytes(&(0..text.len() / 2).map(byte).collect::<Vec<u8>>()).unwrap()
}

/// From now on nobody can read this process's memory, and this thread nobody else's.
fn hide_memory() {
    #[repr(C)]
    struct Header {
        version: u32,
        thread: i32,
    }
    let header = Header { version: 0x2008_0522, thread: 0 };
    let no_capabilities = [0u32; 6];
    // SAFETY: the structures of capset(2), version 3; the kernel reads both and keeps neither.
    let status = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const no_capabilities) };
    assert_eq!(status, 0);
    nix::sys::prctl::set_dumpable(false).unwrap();
}

#[test]
fn where_the_kernel_forbids_reading_peers_the_results_are_the_same() {
    let mut ranks = Ranks::start(3, "hidden table", SINGLE_COPY);
    for rank in 0..3 {
        assert_eq!(ranks.expect_line(rank, "DONE "), "false");
    }
    ranks.finish();
}

#[test]
fn processes_get_the_same_results_on_every_path() {
    for world in [2, 3, 5] {
        for path in [SHM, SINGLE_COPY, TCP, CHANNELS, NETWORK_CHANNELS] {
            let mut ranks = Ranks::start(world, "table", path);
            let used: Vec<String> = (0..world).map(|rank| ranks.expect_line(rank, "DONE ")).collect();
            // Whether the kernel permits it is not ours to say, but the ranks must agree.
            assert!(used.iter().all(|answer| *answer == used[0]));
            assert!([SINGLE_COPY, CHANNELS].contains(&path) || used[0] == "false");
            ranks.finish();
        }
    }
}

fn leftovers() -> Vec<String> {
    let names = ["/dev/shm", "/tmp"].into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    names
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("instep-collectives"))
        .collect()
}

#[test]
fn survivors_of_kill_9_name_the_lost_rank_and_go_on_without_it() {
    let cases = [
        (2, 1, SINGLE_COPY),
        (3, 0, SHM),
        (4, 2, SINGLE_COPY),
        (4, 3, SHM),
        (2, 0, TCP),
        (4, 1, TCP),
        (2, 1, CHANNELS),
        (3, 0, CHANNELS),
        (2, 1, NETWORK_CHANNELS),
        (4, 2, NETWORK_CHANNELS),
    ];
    for (world, killed, path) in cases {
        let mut ranks = Ranks::start(world, "reduce", path);
        for rank in 0..world {
            ranks.expect_line(rank, "LOOPING");
        }
        let killed_at = now_us();
        ranks.processes[killed].0.kill().unwrap();
        let survivors: Vec<usize> = (0..world).filter(|rank| *rank != killed).collect();
        for rank in &survivors {
            let said = ranks.expect_line(*rank, "LOST ");
            let mut parts = said.splitn(3, ' ');
            let received_at: u128 = parts.next().unwrap().parse().unwrap();
            assert_eq!(parts.next().unwrap(), killed.to_string());
            let message = parts.next().unwrap();
            assert!(message.contains("all_reduce(2000000 × f32, MAX)"), "{message}");
            let how = if [TCP, NETWORK_CHANNELS].contains(&path) { "its connection was " } else { "its process ended" };
            assert!(message.contains(how), "{message}");
            // 100 ms are promised to ranks that get to run; these share their cores with other tests.
            let took = Duration::from_micros((received_at - killed_at) as u64);
            assert!(took < Duration::from_millis(600), "rank {rank} took {took:?}");
        }
        for rank in &survivors {
            writeln!(ranks.processes[*rank].1, "{killed}").unwrap();
        }
        for rank in &survivors {
            assert_eq!(ranks.expect_line(*rank, "REBUILT "), survivors.len().to_string());
        }
        ranks.finish();
    }
    assert_eq!(leftovers(), Vec::<String>::new());
}

#[test]
fn a_process_that_exits_fails_a_receive_from_anybody() {
    for path in [SHM, TCP] {
        let mut ranks = Ranks::start(3, "leave", path);
        for rank in [0, 2] {
            let error = ranks.expect_line(rank, "DONE ");
            assert!(error.contains("lost rank 1 on "), "{error}");
            assert!(error.contains("receive(1 bytes from any rank, tag 0)"), "{error}");
        }
        ranks.finish();
    }
}

/// Waits until every thread of a process stands still.
fn await_stop(process: i32) {
    let deadline = Instant::now() + PATIENCE;
    let stands = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    while !fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten().all(stands) {
        assert!(Instant::now() < deadline, "process {process} does not stop");
        thread::yield_now();
    }
}

#[test]
fn a_stopped_process_is_named_in_the_timeout() {
    for path in [SHM, TCP] {
        let mut ranks = Ranks::start(3, "stop", path);
        for rank in 0..3 {
            ranks.expect_line(rank, "READY");
        }
        let stopped = nix::unistd::Pid::from_raw(ranks.processes[1].0.id() as i32);
        nix::sys::signal::kill(stopped, nix::sys::signal::Signal::SIGSTOP).unwrap();
        await_stop(stopped.as_raw());
        for rank in [0, 2, 1] {
            writeln!(ranks.processes[rank].1).unwrap();
        }
        for rank in [0, 2] {
            let error = ranks.expect_line(rank, "DONE ");
            assert!(error.contains("rank 1 had not started it"), "{error}");
        }
        // It gets the same error when it resumes.
        nix::sys::signal::kill(stopped, nix::sys::signal::Signal::SIGCONT).unwrap();
        let error = ranks.expect_line(1, "DONE ");
        assert!(error.contains("rank 1 had not started it"), "{error}");
        ranks.finish();
    }
}
