//! Connections for messages between hosts: opened when they are used, and only then. Here hosts are names.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(unsafe_code, reason = "messages are given raw memory")]

mod ranks;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use instep_collectives::{Address, Error, Group, LossCause, Options, Rank, Reduction, Source, Target, Ticket};
use ranks::{PATIENCE, alone, options, threads_on};

/// One rank in each host, several in some, and hosts of different sizes.
const HOSTS: [&str; 4] = ["abc", "aabb", "abab", "aaabc"];

fn send(group: &Group, bytes: &[u8], to: usize) -> Ticket {
    // SAFETY: every buffer of these tests outlives its ticket.
    unsafe { group.send(Source::of(bytes), Rank(to), 7, PATIENCE) }.unwrap()
}

fn receive(group: &Group, bytes: &mut [u8], from: Option<usize>) -> Ticket {
    // SAFETY: as above.
    unsafe { group.receive(Target::of(bytes), from.map(Rank), 7, PATIENCE) }.unwrap()
}

/// Ends of TCP connections that this process has.
fn connections() -> usize {
    let table = |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    let established = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(3) == Some(&"01")).then(|| fields[9].to_owned())
    };
    let inodes: HashSet<String> =
        [table("tcp"), table("tcp6")].iter().flat_map(|table| table.lines()).filter_map(established).collect();
    let handles = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let inode =
        |target: std::path::PathBuf| target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned);
    handles.filter_map(inode).filter(|inode| inodes.contains(inode)).count()
}

/// Waits for what happens on other threads.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_connection_for_messages_is_opened_by_the_first_one() {
    if !alone("a_connection_for_messages_is_opened_by_the_first_one") {
        return;
    }
    let step = Barrier::new(4);
    let options = Options { network_channels: Some(1), ..options(false) };
    threads_on("aabb", &options, |group| {
        let rank = group.rank().0;
        group.barrier().unwrap();
        // Two rails, and the first ranks of both hosts have heartbeats: three connections with two ends each.
        step.wait();
        if rank == 0 {
            assert_eq!(connections(), 6);
        }
        step.wait();
        let mut bytes = [0; 5];
        match rank {
            0 => send(&group, b"hello", 3).wait(PATIENCE).unwrap(),
            3 => receive(&group, &mut bytes, Some(0)).wait(PATIENCE).unwrap(),
            _ => {}
        }
        step.wait();
        // One more; or two, if both ranks called at the same moment.
        if rank == 0 {
            eventually("one or two more", || [8, 10].contains(&connections()));
        }
        step.wait();
        // Later messages of the two, in both directions, need no other.
        let before = connections();
        step.wait();
        match rank {
            0 => receive(&group, &mut bytes, Some(3)).wait(PATIENCE).unwrap(),
            3 => send(&group, b"thank", 0).wait(PATIENCE).unwrap(),
            _ => {}
        }
        step.wait();
        assert_eq!(connections(), before);
        step.wait();
        // A receive from anybody has to know of everybody.
        if rank == 1 {
            let ticket = receive(&group, &mut bytes, None);
            eventually("three more connections", || connections() == before + 6);
            step.wait();
            ticket.wait(PATIENCE).unwrap();
            assert_eq!(ticket.source(), Some(Rank(2)));
        } else {
            step.wait();
            if rank == 2 {
                send(&group, b"first", 1).wait(PATIENCE).unwrap();
            }
        }
        step.wait();
    });
    assert_eq!(connections(), 0);
}

#[test]
fn every_rank_exchanges_messages_with_every_other_on_every_topology() {
    for hosts in HOSTS {
        let world = hosts.len();
        threads_on(hosts, &options(false), |group| {
            let rank = group.rank().0;
            let content = |from: usize, to: usize, length: usize| vec![(from * 16 + to) as u8; length];
            let lengths = [0, 1, 64 << 10, 300_000];
            let pairs: Vec<(usize, usize)> = (0..world).flat_map(|peer| lengths.map(|length| (peer, length))).collect();
            let sent: Vec<Vec<u8>> = pairs.iter().map(|(to, length)| content(rank, *to, *length)).collect();
            let mut received: Vec<Vec<u8>> = pairs.iter().map(|(_, length)| vec![0xee; *length]).collect();
            let mut tickets = Vec::new();
            for ((to, _), bytes) in pairs.iter().zip(&sent) {
                tickets.push(send(&group, bytes, *to));
            }
            for ((from, _), bytes) in pairs.iter().zip(&mut received) {
                tickets.push(receive(&group, bytes, Some(*from)));
            }
            let mut values = [1i32];
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            assert_eq!(values, [world as i32]);
            tickets.iter().for_each(|ticket| ticket.wait(PATIENCE).unwrap());
            for ((from, length), bytes) in pairs.iter().zip(&received) {
                assert!(*bytes == content(*from, rank, *length), "{length} bytes from {from} at {rank} on {hosts}");
            }
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_small_message_is_on_its_way_before_anybody_wants_it() {
    let sent = Barrier::new(4);
    threads_on("aabb", &options(false), |group| {
        let mut bytes = [0; 5];
        if group.rank().0 == 0 {
            send(&group, b"early", 3).wait(PATIENCE).unwrap();
        }
        sent.wait();
        if group.rank().0 == 3 {
            receive(&group, &mut bytes, None).wait(PATIENCE).unwrap();
            assert_eq!(&bytes, b"early");
        }
        sent.wait();
    });
}

/// What a rank that nobody has talked to leaves behind, and who is to blame for it.
fn check_loss(error: &Error, rank: usize, started: Instant) {
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(matches!(error, Error::PeerLost { rank: Rank(lost), .. } if *lost == rank), "{error}");
}

#[test]
fn a_rank_that_is_gone_before_it_was_called_is_named() {
    for hosts in ["abc", "aabb"] {
        let gone = Barrier::new(hosts.len());
        threads_on(hosts, &options(false), |group| {
            let last = group.world_size() - 1;
            if group.rank().0 == last {
                drop(group);
                gone.wait();
                return;
            }
            gone.wait();
            let started = Instant::now();
            if group.rank().0 == 0 {
                let mut bytes = [0; 5];
                let error = receive(&group, &mut bytes, Some(last)).wait(PATIENCE).unwrap_err();
                check_loss(&error, last, started);
            } else {
                // Is told without having asked.
                let mut bytes = [0; 5];
                let error = receive(&group, &mut bytes, Some(0)).wait(PATIENCE).unwrap_err();
                check_loss(&error, last, started);
            }
        });
    }
}

#[test]
fn a_rank_that_goes_while_somebody_waits_for_it_is_named() {
    for hosts in ["abc", "aabb"] {
        let waiting = Barrier::new(hosts.len());
        threads_on(hosts, &options(false), |group| {
            let last = group.world_size() - 1;
            if group.rank().0 == last {
                waiting.wait();
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
            let mut bytes = [0; 5];
            let ticket = receive(&group, &mut bytes, Some(last));
            waiting.wait();
            let error = ticket.wait(PATIENCE).unwrap_err();
            check_loss(&error, last, Instant::now());
        });
    }
}

#[test]
fn a_rank_that_connects_after_an_abort_gets_the_reason() {
    for hosts in ["abc", "aabb"] {
        let aborted = Barrier::new(hosts.len());
        threads_on(hosts, &options(false), |group| {
            if group.rank().0 == 0 {
                group.abort();
            }
            aborted.wait();
            if group.rank().0 == 2 {
                let mut bytes = [0; 5];
                // SAFETY: the buffer outlives the ticket.
                let ticket = unsafe { group.receive(Target::of(&mut bytes), Some(Rank(0)), 7, PATIENCE) };
                let error = ticket.and_then(|ticket| ticket.wait(PATIENCE)).unwrap_err();
                assert!(matches!(error, Error::Aborted { by: Rank(0) }), "{error}");
            }
            aborted.wait();
        });
    }
}

#[test]
fn a_rank_that_has_gone_on_to_another_generation_has_left() {
    let addresses = Mutex::new(vec![None::<Address>; 3]);
    let step = Barrier::new(3);
    threads_on("abc", &options(false), |group| {
        let rank = group.rank().0;
        addresses.lock().unwrap()[rank] = Some(group.address().clone());
        step.wait();
        let two: Vec<Address> = addresses.lock().unwrap()[1..].iter().flatten().cloned().collect();
        if rank == 0 {
            step.wait();
            let mut bytes = [0; 5];
            // SAFETY: the buffer outlives the ticket. Nothing may be under way any more: then the group says so itself.
            let ticket = unsafe { group.receive(Target::of(&mut bytes), Some(Rank(2)), 7, PATIENCE) };
            let error = ticket.and_then(|ticket| ticket.wait(PATIENCE)).unwrap_err();
            let left = matches!(error, Error::PeerLost { noticed: LossCause::LeftGroup, .. } | Error::Aborted { .. });
            assert!(left, "{error}");
            step.wait();
            return;
        }
        group.reconfigure(Rank(rank - 1), &two, 1, PATIENCE).unwrap();
        step.wait();
        // What the other one wants does not disturb the new generation.
        let (mut bytes, peer) = ([0; 5], 2 - rank);
        let ticket = receive(&group, &mut bytes, Some(peer));
        send(&group, b"again", peer).wait(PATIENCE).unwrap();
        ticket.wait(PATIENCE).unwrap();
        assert_eq!(&bytes, b"again");
        step.wait();
    });
}

/// Descriptors and threads of this process.
fn holdings() -> (usize, usize) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn hundreds_of_generations_on_two_hosts_leave_nothing_open() {
    if !alone("hundreds_of_generations_on_two_hosts_leave_nothing_open") {
        return;
    }
    const GENERATIONS: u64 = 300;
    let addresses = Mutex::new(vec![None::<Address>; 4]);
    let (step, early) = (Barrier::new(4), Mutex::new((0, 0)));
    threads_on("aabb", &options(false), |group| {
        let rank = group.rank().0;
        addresses.lock().unwrap()[rank] = Some(group.address().clone());
        step.wait();
        let all: Vec<Address> = addresses.lock().unwrap().iter().flatten().cloned().collect();
        for generation in 1..=GENERATIONS {
            group.reconfigure(Rank(rank), &all, generation, PATIENCE).unwrap();
            // With each of the others in turn, also those of the same host.
            let distance = 1 + generation as usize % 3;
            let (sent, mut received) = ([rank as u8], [9u8]);
            let ticket = receive(&group, &mut received, Some((rank + 4 - distance) % 4));
            send(&group, &sent, (rank + distance) % 4).wait(PATIENCE).unwrap();
            ticket.wait(PATIENCE).unwrap();
            assert_eq!(usize::from(received[0]), (rank + 4 - distance) % 4);
            group.barrier().unwrap();
            step.wait();
            if rank == 0 && generation == 30 {
                *early.lock().unwrap() = holdings();
            }
            step.wait();
        }
        if rank == 0 {
            let ((handles, tasks), (handles_then, tasks_then)) = (holdings(), *early.lock().unwrap());
            assert_eq!(tasks, tasks_then);
            // Some pairs have two connections because they called each other at the same moment.
            assert!(handles.abs_diff(handles_then) <= 16, "{handles} descriptors, {handles_then} before");
        }
        step.wait();
    });
}

/// Every port that an address speaks of, at loopback: those of its endpoints, and that for messages.
fn ports(address: &Address) -> Vec<SocketAddr> {
    let table = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default());
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = fields.get(1)?.rsplit(':').next()?;
        (fields.get(3) == Some(&"0A")).then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    let all: HashSet<u16> = table.iter().flat_map(|table| table.lines()).filter_map(listens).collect();
    // The port for messages is in the bytes alone: tag 8, two bytes.
    let bytes = address.to_bytes();
    let p2p = bytes.windows(5).filter(|window| window[..3] == [8, 2, 0]).map(|at| u16::from_le_bytes([at[3], at[4]]));
    p2p.filter(|port| all.contains(port)).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

#[test]
fn strangers_at_the_port_for_messages_disturb_nothing() {
    let step = Barrier::new(4);
    threads_on("aabb", &options(false), |group| {
        let rank = group.rank().0;
        let endpoints = ports(group.address());
        assert!(!endpoints.is_empty());
        let mut strangers = Vec::new();
        for (number, endpoint) in (0..30).flat_map(|number| endpoints.iter().map(move |endpoint| (number, endpoint))) {
            let mut stranger = TcpStream::connect(endpoint).unwrap();
            // Nothing, a little, and more than a hello.
            let _ = stranger.write_all(&vec![b'x'; number * 7]);
            strangers.push(stranger);
        }
        step.wait();
        let (mut bytes, peer) = ([0; 5], (rank + 2) % 4);
        let ticket = receive(&group, &mut bytes, Some(peer));
        send(&group, b"still", peer).wait(PATIENCE).unwrap();
        ticket.wait(PATIENCE).unwrap();
        assert_eq!(&bytes, b"still");
        step.wait();
    });
}
