//! What users see when ranks disagree, come late, leave, or are rebuilt.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(unsafe_code, reason = "operations are given raw memory")]

mod ranks;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use instep_collectives::{
    Address, Bound, DataType, Error, Group, LossCause, Operation, Options, Output, Rank, Reduction, Source, Target,
};
use ranks::{PATIENCE, alone, channels, encrypted, in_network_channels, options, tcp, threads};

/// A call that one rank makes otherwise than the rest.
type Call = fn(&Group) -> Result<(), Error>;

fn all_reduce(group: &Group) -> Result<(), Error> {
    group.all_reduce(&mut [1f32; 100], Reduction::Sum)
}

fn all_to_all(group: &Group, sent: usize, expected: usize) -> Result<(), Error> {
    let input = vec![0u8; sent * group.world_size()];
    let mut output = vec![0u8; expected * group.world_size()];
    let (inputs, outputs) = (Source::of(&input), Target::of(&mut output));
    let world = group.world_size();
    let dtype = DataType::Bytes;
    // SAFETY: the buffers outlive the call.
    unsafe { group.run(Operation::AllToAll { inputs: inputs.split(world), outputs: outputs.split(world), dtype }) }
}

#[test]
fn ranks_that_call_different_operations_all_get_an_error_that_names_both() {
    let cases: [(Call, Call, &str, &str); 7] = [
        (all_reduce, |group| group.barrier(), "all_reduce(100 × f32, SUM)", "barrier"),
        (all_reduce, |group| group.all_reduce(&mut [1f32; 101], Reduction::Sum), "100 × f32", "101 × f32"),
        (all_reduce, |group| group.all_reduce(&mut [1i32; 100], Reduction::Sum), "× f32", "× i32"),
        (all_reduce, |group| group.all_reduce(&mut [1f32; 100], Reduction::Max), "SUM", "MAX"),
        (
            |group| group.broadcast(&mut [0u8; 9], Rank(0)),
            |group| group.broadcast(&mut [0u8; 9], Rank(1)),
            "root 0",
            "root 1",
        ),
        (
            |group| group.broadcast(&mut [0u8; 9], Rank(0)),
            |group| group.broadcast(&mut [0u8; 300_000], Rank(0)),
            "9 × u8",
            "300000 × u8",
        ),
        (
            |group| all_to_all(group, 10, 10),
            |group| all_to_all(group, 10, 11),
            "all_to_all(10 × bytes to rank 1)",
            "all_to_all(11 × bytes from rank 0)",
        ),
    ];
    for (most, odd, one_side, other_side) in cases {
        for (world, options) in [(2, options(true)), (3, options(true)), (2, tcp()), (3, tcp())] {
            let errors = threads(world, &options, |group| {
                all_reduce(&group).unwrap();
                let call = if group.rank() == Rank(1) { odd } else { most };
                let error = call(&group).unwrap_err();
                assert!(matches!(error, Error::Mismatch { sequence: 1, .. }), "{error}");
                // The group is of no use any more, for the same reason.
                assert!(matches!(group.barrier().unwrap_err(), Error::Mismatch { .. }));
                error.to_string()
            });
            for error in errors {
                // Over TCP a rank compares what it exchanges itself.
                let of_own_pair = error.contains("(11 × bytes from rank 2)") && other_side.contains("(11 × bytes");
                assert!(error.contains(one_side) && (error.contains(other_side) || of_own_pair), "{error}");
                assert!(error.contains("rank 1"), "{error}");
            }
        }
    }
}

#[test]
fn a_timeout_names_the_late_ranks() {
    for options in [options(false), tcp(), in_network_channels(tcp())] {
        let late = Options { timeout: Duration::from_millis(150), ..options.clone() };
        let over = Barrier::new(4);
        let errors = threads(4, &late, |group| {
            let here = ![1, 3].contains(&group.rank().0);
            let error = here.then(|| all_reduce(&group).unwrap_err());
            over.wait();
            // A late rank gets the same error.
            error.unwrap_or_else(|| all_reduce(&group).unwrap_err())
        });
        for error in errors {
            let Error::Timeout { missing, sequence: 0, timeout, .. } = &error else { panic!("{error}") };
            assert_eq!(missing, &[Rank(1), Rank(3)]);
            assert_eq!(*timeout, Duration::from_millis(150));
            assert!(error.to_string().contains("all_reduce(100 × f32, SUM)"), "{error}");
            assert!(error.to_string().contains("ranks 1, 3 had not started it"), "{error}");
        }
    }
}

#[test]
fn a_timeout_names_no_rank_that_is_late_in_one_channel_only() {
    // Only ranks 0 and 1 exchange so much that a second channel takes part; rank 1 is late.
    let bytes = |one: usize, other: usize| if one + other == 1 { 1 << 20 } else { 64 };
    for _ in 0..3 {
        let over = Barrier::new(3);
        let errors = threads(3, &in_network_channels(tcp()), |group| {
            let own = group.rank().0;
            let buffers = || (0..3).map(|rank| vec![0u8; bytes(own, rank)]).collect::<Vec<_>>();
            let (inputs, mut outputs) = (buffers(), buffers());
            let operation = Operation::AllToAll {
                inputs: inputs.iter().map(|input| Source::of(input)).collect(),
                outputs: outputs.iter_mut().map(|output| Target::of(output)).collect(),
                dtype: DataType::Bytes,
            };
            // Long enough for rank 2 to start it on a busy machine.
            let patience = Duration::from_secs(if own == 0 { 1 } else { 10 });
            // SAFETY: the buffers outlive the call.
            let error = (own != 1).then(|| unsafe { group.run_within(operation, patience) }.unwrap_err());
            over.wait();
            error
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(&error, Error::Timeout { missing, .. } if *missing == [Rank(1)]), "{error}");
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_at_once() {
    for options in [options(false), tcp()] {
        let errors = threads(3, &Options { host: Some("node7".into()), ..options.clone() }, |group| {
            let arrived = group.barrier();
            if group.rank() == Rank(2) {
                arrived.unwrap();
                return None;
            }
            let started = Instant::now();
            // Over TCP, who is slow to read what rank 2 sent hears first from the other that it has left.
            let error = arrived.err().unwrap_or_else(|| all_reduce(&group).unwrap_err());
            assert!(started.elapsed() < Duration::from_secs(5));
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            let Error::PeerLost { rank, host, sequence, noticed, .. } = error else { panic!("{error}") };
            assert_eq!((rank, host.as_str(), sequence, noticed), (Rank(2), "node7", 1, LossCause::LeftGroup));
        }
    }
}

#[test]
fn ranks_that_leave_after_the_last_operation_disturb_nobody() {
    for options in [options(false), tcp(), in_network_channels(tcp())] {
        for round in 0..20 {
            let root = Rank(round % 4);
            threads(4, &options, |group| {
                // Long enough for several steps: the root is through before the others are.
                let mut values = vec![group.rank().0 as u8; 200_000];
                group.broadcast(&mut values, root).unwrap();
                assert!(values.iter().all(|value| *value == root.0 as u8));
            });
        }
    }
}

#[test]
fn abort_returns_at_once_and_fails_what_is_in_flight_here_and_there() {
    for options in [options(false), tcp(), in_network_channels(tcp())] {
        let started = Barrier::new(2);
        let over = Barrier::new(2);
        threads(2, &options, |group| {
            if group.rank() == Rank(1) {
                started.wait();
                over.wait();
                let error = all_reduce(&group).unwrap_err();
                assert!(matches!(error, Error::Aborted { by: Rank(0) }), "{error}");
                return;
            }
            let mut values = [0u8; 64];
            let operation =
                Operation::Broadcast { buffer: Target::of(&mut values), dtype: DataType::U8, root: Rank(1) };
            // SAFETY: the buffer outlives both tickets.
            let tickets = [0, 1].map(|_| unsafe { group.submit(operation.clone()) }.unwrap());
            started.wait();
            assert!(matches!(tickets[0].wait(Duration::from_millis(30)), Err(Error::Unfinished { .. })));
            let asked = Instant::now();
            group.abort();
            assert!(asked.elapsed() < Duration::from_secs(1));
            for ticket in &tickets {
                let error = ticket.wait(PATIENCE).unwrap_err();
                assert!(matches!(error, Error::Aborted { by: Rank(0) }), "{error}");
                assert_eq!(ticket.output(), Output::Untouched);
            }
            // SAFETY: as above.
            assert!(unsafe { group.submit(operation) }.is_err());
            over.wait();
        });
    }
}

#[test]
fn dropping_a_group_ends_what_is_queued() {
    for options in [options(false), tcp(), in_network_channels(tcp())] {
        threads(2, &options, |group| {
            if group.rank() == Rank(0) {
                // SAFETY: no memory is involved.
                let ticket = unsafe { group.submit(Operation::Barrier) }.unwrap();
                drop(group);
                assert!(ticket.wait(PATIENCE).is_err());
            }
        });
    }
}

#[test]
fn a_forked_child_neither_takes_part_nor_leaves_for_its_parent() {
    for options in [options(false), tcp(), in_network_channels(tcp())] {
        threads(2, &options, |group| {
            // SAFETY: no memory is involved. Starts the worker, too, which the child does not have.
            unsafe { group.submit(Operation::Barrier) }.unwrap().wait(PATIENCE).unwrap();
            // And the threads of channels, where it has some.
            group.all_reduce(&mut vec![1f32; 30_000], Reduction::Sum).unwrap();
            if group.rank() == Rank(0) {
                // SAFETY: the child only drops its copy of the group and goes.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // What it sends would be taken for its parent's.
                    let refused =
                        group.all_reduce(&mut [1f32; 100], Reduction::Sum).is_err() && group.barrier().is_err();
                    drop(group);
                    // SAFETY: ends the child without touching what it shares with its parent.
                    unsafe { libc::_exit(i32::from(!refused)) };
                }
                let mut status = 0;
                // SAFETY: waits for our own child; the status lies on this stack.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
            group.all_reduce(&mut vec![1f32; 30_000], Reduction::Sum).unwrap();
            all_reduce(&group).unwrap();
        });
    }
}

/// What a process has open: descriptors, mappings of arenas, threads.
fn holdings() -> (usize, usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let arenas = maps.lines().filter(|line| line.contains("instep-collectives")).count();
    let count = |folder: &str| fs::read_dir(folder).expect("/proc is there").count();
    (count("/proc/self/fd"), arenas, count("/proc/self/task"))
}

fn resident_kilobytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says so");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn reconfigure(options: &Options, times: u64) {
    let before = holdings();
    let barrier = Barrier::new(3);
    let addresses = std::sync::Mutex::new(vec![None::<Address>; 3]);
    let early = std::sync::Mutex::new(((0, 0, 0), 0));
    threads(3, options, |group| {
        let number = group.rank().0;
        addresses.lock().unwrap()[number] = Some(group.address().clone());
        barrier.wait();
        let all: Vec<Address> = addresses.lock().unwrap().iter().flatten().cloned().collect();
        for generation in 1..=times {
            // Rank 0 moves from one to the next; every fourth time somebody calls an operation alone before.
            let order: Vec<usize> = (0..3).map(|index| (index + generation as usize) % 3).collect();
            let peers: Vec<Address> = order.iter().map(|member| all[*member].clone()).collect();
            let rank = Rank(order.iter().position(|member| *member == number).unwrap());
            if generation % 4 == 0 && number == 0 {
                let patience = Duration::from_millis(1);
                // SAFETY: no memory is involved.
                assert!(unsafe { group.run_within(Operation::Barrier, patience) }.is_err());
            }
            let agreed = group.reconfigure(rank, &peers, generation, PATIENCE).unwrap();
            let expected = if generation == 1 { 0 } else { 2 };
            assert_eq!(agreed.completed_by_all, Some(expected));
            assert_eq!((group.rank(), group.generation()), (rank, generation));
            let mut values = vec![rank.0 as i32; 10_000];
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            assert!(values.iter().all(|value| *value == 3));
            // Messages, too, so that there are threads and connections to leak.
            let (next, previous) = (Rank((rank.0 + 1) % 3), Rank((rank.0 + 2) % 3));
            let (sent, mut received) = ([rank.0 as u8], [9u8]);
            // SAFETY: the buffers outlive the tickets.
            let tickets = unsafe {
                [
                    group.send(Source::of(&sent), next, 0, PATIENCE).unwrap(),
                    group.receive(Target::of(&mut received), Some(previous), 0, PATIENCE).unwrap(),
                ]
            };
            tickets.iter().for_each(|ticket| ticket.wait(PATIENCE).unwrap());
            assert_eq!(received, [previous.0 as u8]);
            group.barrier().unwrap();
            barrier.wait();
            if number == 0 && generation == times / 5 {
                *early.lock().unwrap() = (holdings(), resident_kilobytes());
            }
            barrier.wait();
        }
        if number == 0 {
            let (holdings_then, resident_then) = *early.lock().unwrap();
            let ((handles, arenas, tasks), (handles_then, arenas_then, tasks_then)) = (holdings(), holdings_then);
            assert_eq!((arenas, tasks), (arenas_then, tasks_then));
            // Two ranks of different hosts that call each other at the same moment have two connections, not one.
            assert!(handles.abs_diff(handles_then) <= 12, "{handles} descriptors, {handles_then} before");
            let grown = resident_kilobytes().saturating_sub(resident_then);
            assert!(grown < 4096, "{grown} kB more than after a fifth of the reconfigurations");
        }
        barrier.wait();
        assert!(group.reconfigure(Rank(0), &all, times, PATIENCE).is_err(), "a generation comes once");
    });
    // Linux lists a joined thread for a moment longer.
    let deadline = Instant::now() + PATIENCE;
    while holdings() != before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(holdings(), before);
}

#[test]
fn two_hundred_reconfigurations_leak_nothing_and_agree_on_the_past() {
    if alone("two_hundred_reconfigurations_leak_nothing_and_agree_on_the_past") {
        reconfigure(&options(true), 200);
    }
}

#[test]
fn a_thousand_reconfigurations_over_tcp_leak_nothing_either() {
    if alone("a_thousand_reconfigurations_over_tcp_leak_nothing_either") {
        reconfigure(&tcp(), 1000);
    }
}

#[test]
fn reconfigurations_leave_no_connection_and_no_thread_of_any_channel() {
    if alone("reconfigurations_leave_no_connection_and_no_thread_of_any_channel") {
        reconfigure(&in_network_channels(tcp()), 200);
    }
}

#[test]
fn a_rank_that_leaves_in_the_middle_of_a_large_operation_is_named_at_once() {
    for options in [in_network_channels(tcp()), in_network_channels(encrypted())] {
        let barrier = Barrier::new(3);
        let errors = threads(3, &options, |group| {
            let mut values = vec![1f32; 3_000_000];
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            // An abort does not wait for what others still have to receive of the operation before.
            barrier.wait();
            if group.rank() == Rank(1) {
                let (input, output) = (Source::of(&values), Target::of(&mut values));
                let operation = Operation::AllReduce { input, output, dtype: DataType::F32, reduction: Reduction::Max };
                // SAFETY: the values outlive the group, which waits for the end of what is under way.
                let ticket = unsafe { group.submit(operation) }.unwrap();
                drop(group);
                return ticket.wait(PATIENCE).err();
            }
            let started = Instant::now();
            let error = loop {
                if let Err(error) = group.all_reduce(&mut values, Reduction::Max) {
                    break error;
                }
            };
            assert!(started.elapsed() < Duration::from_secs(10));
            Some(error)
        });
        for error in [&errors[0], &errors[2]] {
            let of_rank_1 =
                matches!(error, Some(Error::PeerLost { rank: Rank(1), .. } | Error::Aborted { by: Rank(1) }));
            assert!(of_rank_1, "{error:?}");
        }
    }
}

#[test]
fn a_rank_that_offers_one_channel_works_with_ranks_that_offer_several() {
    let one = || Options { network_channels: Some(1), ..tcp() };
    let several = || in_network_channels(tcp());
    let bound: Vec<Bound> = [one(), several(), several()].map(|options| Group::bind(options).unwrap()).into();
    bound.iter().for_each(|bound| bound.open_to_network().unwrap());
    let addresses: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    std::thread::scope(|scope| {
        for (rank, bound) in bound.into_iter().enumerate() {
            let addresses = &addresses;
            scope.spawn(move || {
                let group = bound.connect(Rank(rank), addresses, 0, PATIENCE).unwrap();
                let mut values = vec![1i32; 100_000];
                group.all_reduce(&mut values, Reduction::Sum).unwrap();
                assert!(values.iter().all(|value| *value == 3));
            });
        }
    });
}

#[test]
fn a_group_in_a_host_takes_in_ranks_over_the_network() {
    let exchange = Exchange::new(2);
    threads(2, &options(false), |group| {
        let rank = group.rank();
        all_reduce(&group).unwrap();
        // As if the others were elsewhere: nobody has the memory of the first generation any more.
        let elsewhere = Group::bind(tcp()).unwrap();
        let all = exchange.gather(rank.0, elsewhere.address().clone());
        assert!(group.needs_network(&all));
        let with_newcomers =
            |own: &Address| exchange.gather(rank.0, if rank.0 == 0 { own } else { elsewhere.address() }.clone());
        let addresses = with_newcomers(group.address());
        if rank.0 == 0 {
            let error = group.reconfigure(rank, &addresses, 1, PATIENCE).unwrap_err().to_string();
            assert!(error.contains("the network is not open\nhint: call open_to_network"), "{error}");
            group.open_to_network().unwrap();
            let addresses = with_newcomers(group.address());
            group.reconfigure(rank, &addresses, 2, PATIENCE).unwrap();
            all_reduce(&group).unwrap();
        } else {
            elsewhere.open_to_network().unwrap();
            let addresses = with_newcomers(group.address());
            all_reduce(&elsewhere.connect(rank, &addresses, 2, PATIENCE).unwrap()).unwrap();
        }
    });
}

/// Gives the addresses of all ranks for the own one.
struct Exchange {
    addresses: std::sync::Mutex<Vec<Option<Address>>>,
    all: Barrier,
}

impl Exchange {
    fn new(world: usize) -> Exchange {
        Exchange { addresses: std::sync::Mutex::new(vec![None; world]), all: Barrier::new(world) }
    }

    fn gather(&self, rank: usize, own: Address) -> Vec<Address> {
        self.addresses.lock().unwrap()[rank] = Some(own);
        self.all.wait();
        let all = self.addresses.lock().unwrap().iter().flatten().cloned().collect();
        self.all.wait();
        all
    }
}

#[test]
fn strangers_and_other_generations_do_not_disturb_a_bootstrap() {
    let zero = Group::bind(options(false)).unwrap();
    let one = Group::bind(options(false)).unwrap();
    let stale = Group::bind(options(false)).unwrap();
    let addresses = [zero.address().clone(), one.address().clone()];
    let text = format!("{:?}", zero.address());
    let name = text.trim_end_matches(')').rsplit(' ').next().unwrap().to_owned();
    let socket = SocketAddr::from_abstract_name(name).unwrap();
    let mut stranger = UnixStream::connect_addr(&socket).unwrap();
    stranger.write_all(&[0x55; 200]).unwrap();
    drop(UnixStream::connect_addr(&socket).unwrap());
    let other = [zero.address().clone(), stale.address().clone()];
    std::thread::scope(|scope| {
        let refused = scope.spawn(move || stale.connect(Rank(1), &other, 6, PATIENCE).err().unwrap().to_string());
        let first = scope.spawn(|| zero.connect(Rank(0), &addresses, 7, PATIENCE).unwrap());
        let error = refused.join().unwrap();
        assert!(error.contains("rank 0 is at generation 7, rank 1 at 6"), "{error}");
        let second = one.connect(Rank(1), &addresses, 7, PATIENCE).unwrap();
        let first = first.join().unwrap();
        let other_side = scope.spawn(move || all_reduce(&first).unwrap());
        all_reduce(&second).unwrap();
        other_side.join().unwrap();
    });
}

#[test]
fn a_bootstrap_that_fails_names_the_late_ranks() {
    let bound: Vec<_> = (0..4).map(|_| Group::bind(options(false)).unwrap()).collect();
    let addresses: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    std::thread::scope(|scope| {
        let mut ranks = Vec::new();
        for (rank, bound) in bound.into_iter().enumerate().filter(|(rank, _)| [0, 2].contains(rank)) {
            let addresses = &addresses;
            let patience = Duration::from_millis(if rank == 0 { 200 } else { 20_000 });
            ranks.push(scope.spawn(move || bound.connect(Rank(rank), addresses, 0, patience).err().unwrap()));
        }
        for rank in ranks {
            let error = rank.join().unwrap().to_string();
            assert!(error.contains("rank 1, 3 did not arrive"), "{error}");
        }
    });
}

#[test]
fn strangers_and_other_generations_do_not_disturb_a_bootstrap_over_tcp() {
    let bound: Vec<Bound> = (0..3).map(|_| Group::bind(tcp()).unwrap()).collect();
    bound.iter().for_each(|bound| bound.open_to_network().unwrap());
    let [zero, one, stale] = bound.try_into().unwrap();
    let port = port_of(zero.address());
    let strangers: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            // Some say nothing, some a little, some a lot.
            let _ = stranger.write_all(&vec![0x55; [0, 7, 48, 5000][number % 4]]);
            stranger
        })
        .collect();
    let addresses = [zero.address().clone(), one.address().clone()];
    let other = [zero.address().clone(), stale.address().clone()];
    std::thread::scope(|scope| {
        let refused = scope.spawn(move || stale.connect(Rank(1), &other, 6, PATIENCE).err().unwrap().to_string());
        let first = scope.spawn(|| zero.connect(Rank(0), &addresses, 7, PATIENCE).unwrap());
        let error = refused.join().unwrap();
        assert!(error.contains("rank 0 is at generation 7, rank 1 at 6"), "{error}");
        let second = one.connect(Rank(1), &addresses, 7, PATIENCE).unwrap();
        let first = first.join().unwrap();
        let other_side = scope.spawn(move || {
            all_reduce(&first).unwrap();
            first
        });
        all_reduce(&second).unwrap();
        let first = other_side.join().unwrap();
        // Nor do they disturb a group that works.
        let mut late = TcpStream::connect(("127.0.0.1", port)).unwrap();
        late.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let other_side = scope.spawn(move || all_reduce(&first).unwrap());
        all_reduce(&second).unwrap();
        other_side.join().unwrap();
    });
    drop(strangers);
}

/// The port that an address names beside loopback.
fn port_of(address: &Address) -> u16 {
    let text = format!("{address:?}");
    text.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn somebody_elses_listener_at_a_listed_address_is_passed_over() {
    // Two hosts with the same address on a bridge: the first endpoint of rank 0 is answered by somebody who stays silent,
    // the second by somebody who talks nonsense, the third is nobody's, the last is right.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let loud = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bound: Vec<Bound> = (0..2).map(|_| Group::bind(tcp()).unwrap()).collect();
    bound.iter().for_each(|bound| bound.open_to_network().unwrap());
    let honest: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    // Endpoints are fields with tag 6, before which others can be put.
    let wrong: Vec<u8> = [silent.local_addr().unwrap(), loud.local_addr().unwrap(), nobody]
        .iter()
        .flat_map(|endpoint| {
            let text = endpoint.to_string();
            [&[6, text.len() as u8, 0], text.as_bytes()].concat()
        })
        .collect();
    let bytes = honest[0].to_bytes();
    let deceived = Address::from_bytes(&[&bytes[..7], &wrong, &bytes[7..]].concat()).unwrap();
    let seen_by_one = vec![deceived, honest[1].clone()];
    let [zero, one] = bound.try_into().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut caller, _) = loud.accept().unwrap();
            let _ = caller.write_all(&[b'x'; 100]);
        });
        let other = scope.spawn(|| all_reduce(&zero.connect(Rank(0), &honest, 0, PATIENCE).unwrap()));
        all_reduce(&one.connect(Rank(1), &seen_by_one, 0, PATIENCE).unwrap()).unwrap();
        other.join().unwrap().unwrap();
    });
}

#[test]
fn a_bootstrap_over_tcp_that_fails_names_the_late_ranks() {
    let bound: Vec<Bound> = (0..3).map(|_| Group::bind(tcp()).unwrap()).collect();
    bound.iter().for_each(|bound| bound.open_to_network().unwrap());
    let addresses: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    let bound = bound.into_iter().next().unwrap();
    let error = bound.connect(Rank(0), &addresses, 0, Duration::from_millis(100)).err().unwrap().to_string();
    assert!(error.contains("rank 1, 2 did not arrive"), "{error}");
}

#[test]
fn a_rank_without_a_network_gets_a_hint_to_open_it() {
    let bound: Vec<Bound> = (0..2).map(|_| Group::bind(tcp()).unwrap()).collect();
    let addresses: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    assert!(bound[0].needs_network(&addresses));
    let bound = bound.into_iter().next().unwrap();
    let error = bound.connect(Rank(0), &addresses, 0, PATIENCE).err().unwrap().to_string();
    assert!(error.contains("rank 1 on ") && error.contains("hint: call open_to_network on every rank"), "{error}");
}

#[test]
fn errors_of_a_channel_name_the_whole_call() {
    for options in [channels(), in_network_channels(tcp())] {
        errors_name_the_whole_call(&options);
    }
}

fn errors_name_the_whole_call(options: &Options) {
    let completed = Barrier::new(3);
    let errors = threads(3, options, |group| {
        let mut values = vec![1f32; 30_000 + group.rank().0 / 2];
        group.all_reduce(&mut [1f32; 30_000], Reduction::Sum).unwrap();
        completed.wait();
        group.all_reduce(&mut values, Reduction::Sum).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("30000 × f32") && error.contains("30001 × f32")), "{errors:?}");
    let errors = threads(3, options, |group| all_to_all(&group, 9000, 9000 + group.rank().0 / 2).unwrap_err());
    let sizes = |error: &Error| {
        ["9000 × bytes to rank 2", "9001 × bytes from rank"].iter().all(|size| error.to_string().contains(size))
    };
    assert!(errors.iter().all(sizes), "{errors:?}");
    let late = Barrier::new(3);
    let errors = threads(3, options, |group| {
        if group.rank().0 == 1 {
            late.wait();
            return String::new();
        }
        let mut values = vec![1f32; 30_000];
        let (input, output) = (Source::of(&values), Target::of(&mut values));
        let operation = Operation::AllReduce { input, output, dtype: DataType::F32, reduction: Reduction::Sum };
        // SAFETY: the values outlive the call.
        let error = unsafe { group.run_within(operation, Duration::from_millis(200)) }.unwrap_err();
        late.wait();
        error.to_string()
    });
    let named = |error: &String| error.contains("30000 × f32") && error.contains("rank 1 had not started it");
    assert!(errors.iter().filter(|error| !error.is_empty()).all(named), "{errors:?}");
}
