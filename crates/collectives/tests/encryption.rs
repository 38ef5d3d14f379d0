//! What ranks of different hosts send each other where it is encrypted. Here hosts are names.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(unsafe_code, reason = "messages are given raw memory")]

mod ranks;

use std::thread;
use std::time::{Duration, Instant};

use instep_collectives::{
    Address, Bound, DataType, Error, Group, LossCause, Options, Rank, Reduction, Secret, Source, Target,
};
use ranks::middle::{Middle, message_port, port, with_message_port, with_port};
use ranks::{PATIENCE, check_operations, encrypted, options, threads_on};

/// Several hosts with several ranks each.
fn on_hosts() -> Options {
    Options { secret: encrypted().secret, encrypt: true, ..options(false) }
}

fn bound(host: &str, options: Options) -> Bound {
    let bound = Group::bind(Options { island: Some(host.to_owned()), ..options }).unwrap();
    bound.open_to_network().unwrap();
    bound
}

/// Connects two ranks on two hosts, of which the second knows the first by another address, and has each do something.
fn two<T: Send>(
    options: [Options; 2],
    disguised: impl FnOnce(&Address) -> Address,
    rank: impl Fn(Result<Group, Error>) -> T + Sync,
) -> [T; 2] {
    let [first, second] = options;
    let (first, second) = (bound("a", first), bound("b", second));
    let of_first = [first.address().clone(), second.address().clone()];
    let of_second = [disguised(&of_first[0]), of_first[1].clone()];
    thread::scope(|scope| {
        let rank = &rank;
        let first = scope.spawn(move || rank(first.connect(Rank(0), &of_first, 0, PATIENCE)));
        let second = scope.spawn(move || rank(second.connect(Rank(1), &of_second, 0, PATIENCE)));
        [first.join().unwrap(), second.join().unwrap()]
    })
}

#[test]
fn every_operation_is_encrypted_between_hosts_with_several_ranks() {
    for hosts in ["aabb", "abb"] {
        threads_on(hosts, &on_hosts(), |group| {
            for count in [0, 33, 70_000] {
                check_operations(&group, DataType::F32, count);
            }
            let (rank, world) = (group.rank().0, group.world_size());
            let (sent, mut received) = (vec![rank as u8; 300_000], vec![0; 300_000]);
            let (next, previous) = (Rank((rank + 1) % world), Rank((rank + world - 1) % world));
            // SAFETY: the buffers outlive the tickets.
            let tickets = unsafe {
                [
                    group.send(Source::of(&sent), next, 0, PATIENCE).unwrap(),
                    group.receive(Target::of(&mut received), Some(previous), 0, PATIENCE).unwrap(),
                ]
            };
            tickets.iter().for_each(|ticket| ticket.wait(PATIENCE).unwrap());
            assert!(received.iter().all(|byte| *byte == previous.0 as u8));
        });
    }
}

/// What somebody in the middle reads of a message and of an all_reduce.
fn read_in_the_middle(options: &Options) -> [bool; 2] {
    let text = b"the weights of the model and nothing else";
    let (mut at_messages, mut at_collectives) = (None, None);
    two(
        [options.clone(), options.clone()],
        |first| {
            let (messages, collectives) =
                (Middle::before(message_port(first), None), Middle::before(port(first), None));
            let disguised = with_port(&with_message_port(first, messages.port), collectives.port);
            (at_messages, at_collectives) = (Some(messages), Some(collectives));
            disguised
        },
        |group| {
            let group = group.unwrap();
            let mut bytes = *text;
            if group.rank() == Rank(1) {
                // SAFETY: the buffer outlives the wait.
                unsafe { group.send(Source::of(&bytes), Rank(0), 0, PATIENCE) }.unwrap().wait(PATIENCE).unwrap();
            }
            group.all_reduce(&mut bytes, Reduction::Max).unwrap();
            if group.rank() == Rank(0) {
                // SAFETY: as above.
                let receive = unsafe { group.receive(Target::of(&mut bytes), Some(Rank(1)), 0, PATIENCE) };
                receive.unwrap().wait(PATIENCE).unwrap();
                assert_eq!(bytes, *text);
            }
            group.barrier().unwrap();
        },
    );
    [at_messages, at_collectives].map(|middle| {
        let recorded = middle.unwrap().recorded();
        assert!(recorded.len() > 200);
        recorded.windows(text.len()).any(|window| window == text)
    })
}

#[test]
fn nobody_in_the_middle_reads_what_is_encrypted() {
    assert_eq!(read_in_the_middle(&Options { encrypt: false, ..on_hosts() }), [true; 2]);
    assert_eq!(read_in_the_middle(&on_hosts()), [false; 2]);
}

#[test]
fn a_bit_that_changes_on_the_way_names_the_connection_on_both_sides() {
    let started = Instant::now();
    let errors = two(
        [on_hosts(), on_hosts()],
        |first| with_port(first, Middle::before(port(first), Some(200_000)).port),
        |group| {
            let group = group.unwrap();
            group.barrier().unwrap();
            group.all_reduce(&mut vec![1f32; 1_000_000], Reduction::Sum).unwrap_err()
        },
    );
    for error in errors {
        let lost = |noticed| matches!(noticed, LossCause::Altered);
        assert!(matches!(&error, Error::PeerLost { rank: Rank(1), noticed, .. } if lost(*noticed)), "{error}");
        assert!(error.to_string().contains("what arrived on its encrypted connection is not what it sent"), "{error}");
    }
    let [received, _] = two(
        [on_hosts(), on_hosts()],
        |first| with_message_port(first, Middle::before(message_port(first), Some(100_000)).port),
        |group| {
            let (group, mut bytes) = (group.unwrap(), vec![7u8; 300_000]);
            // A small message goes ahead, so that the connection is the one through the middle.
            // SAFETY: the buffers outlive the waits.
            let moved = unsafe {
                if group.rank() == Rank(1) {
                    group.send(Source::of(b"small"), Rank(0), 0, PATIENCE).unwrap().wait(PATIENCE).unwrap();
                    group.barrier().unwrap();
                    group.send(Source::of(&bytes), Rank(0), 0, PATIENCE)
                } else {
                    group.barrier().unwrap();
                    let small = group.receive(Target::of(&mut bytes[..5]), Some(Rank(1)), 0, PATIENCE);
                    small.unwrap().wait(PATIENCE).unwrap();
                    group.receive(Target::of(&mut bytes), Some(Rank(1)), 0, PATIENCE)
                }
            };
            // Who sends is done once everything is on its way.
            moved.and_then(|ticket| ticket.wait(PATIENCE)).err()
        },
    );
    let received = received.unwrap();
    assert!(matches!(&received, Error::PeerLost { rank: Rank(1), noticed: LossCause::Altered, .. }), "{received}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn ranks_that_disagree_about_encryption_get_an_error_at_once() {
    let started = Instant::now();
    let plain = Options { encrypt: false, ..on_hosts() };
    for options in [[on_hosts(), plain.clone()], [plain.clone(), on_hosts()]] {
        let encrypts = usize::from(options[1].encrypt);
        let errors = two(options, Address::clone, |group| group.err().unwrap().to_string());
        for error in errors {
            let expected =
                format!("rank {encrypts} encrypts what it sends to other hosts, rank {} does not", 1 - encrypts);
            assert!(error.contains(&expected) && error.contains("hint: set INSTEP_ENCRYPT=1 on all nodes"), "{error}");
        }
    }
    let without = Options { secret: None, ..on_hosts() };
    for error in two([without.clone(), without], Address::clone, |group| group.err().unwrap().to_string()) {
        assert!(error.contains("without a secret\nhint: set INSTEP_SECRET"), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn ranks_with_different_secrets_share_no_encrypted_connection() {
    let other = Options { secret: Some(Secret::new("another")), ..on_hosts() };
    let (first, second) = (bound("a", on_hosts()), bound("b", other));
    let addresses = [first.address().clone(), second.address().clone()];
    thread::scope(|scope| {
        for (rank, bound) in [first, second].into_iter().enumerate() {
            let addresses = &addresses;
            scope.spawn(move || {
                let error = bound.connect(Rank(rank), addresses, 0, Duration::from_secs(1)).err().unwrap().to_string();
                assert!(error.contains("is INSTEP_SECRET the same on all?"), "{error}");
            });
        }
    });
}

#[test]
fn a_rank_that_leaves_an_encrypted_group_is_named() {
    let step = std::sync::Barrier::new(4);
    let errors = threads_on("aabb", &on_hosts(), |group| {
        group.barrier().unwrap();
        step.wait();
        if group.rank() == Rank(3) {
            return None;
        }
        Some(group.all_reduce(&mut vec![1f32; 3_000_000], Reduction::Sum).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error, Error::PeerLost { rank: Rank(3), .. }), "{error}");
    }
}
