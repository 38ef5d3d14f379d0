//! Groups over several hosts with several ranks each: shared memory inside, TCP between. Here hosts are names.
#![expect(
    unsafe_code,
    clippy::unwrap_used,
    reason = "a test that gives an operation raw memory, in a function of its own"
)]

mod ranks;

use std::time::{Duration, Instant};

use instep_collectives::{
    Address, Bound, DataType, Error, Group, Operation, Options, Rank, Reduction, Secret, Source, Target,
};
use ranks::middle::with_port;
use ranks::{
    check_all_to_all, check_moves, check_operations, check_reduction, in_network_channels, options, threads_on,
};

/// Even and uneven hosts, ranks side by side and dealt out in turns.
const HOSTS: [&str; 8] = ["aab", "abb", "aabb", "abab", "aaabbc", "abcabc", "abbbb", "aabbccdd"];

#[test]
fn every_operation_on_every_kind_of_topology() {
    for hosts in HOSTS {
        threads_on(hosts, &options(false), |group| {
            for count in [0, 1, 33, 5000] {
                check_operations(&group, DataType::F32, count);
            }
            check_operations(&group, DataType::Bool, 77);
        });
    }
}

#[test]
fn every_reduction_and_type_in_two_levels() {
    let types = [DataType::F64, DataType::BF16, DataType::F16, DataType::I8, DataType::I64, DataType::Complex64];
    threads_on("aabb", &options(true), |group| {
        for dtype in types {
            for reduction in Reduction::ALL {
                check_reduction(&group, dtype, reduction, 100);
            }
        }
    });
}

#[test]
fn long_buffers_go_through_the_stages_in_chunks() {
    for options in [options(true), in_network_channels(options(true))] {
        threads_on("aabb", &options, |group| {
            // More than a chunk, and no whole number of anything.
            check_reduction(&group, DataType::F32, Reduction::Max, 2_500_003);
            check_moves(&group, DataType::Bytes, 3_000_001);
            check_all_to_all(&group, DataType::Bytes, 300_001);
        });
    }
}

#[test]
fn sums_have_the_same_bits_on_every_rank_and_from_run_to_run() {
    let sum = |options: Options| {
        threads_on("aabbc", &options, |group| {
            let rank = group.rank().0 as f32;
            let mut values: Vec<f32> = (0..70_001).map(|at| (at as f32 + 1.0) / (rank + 3.0)).collect();
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (first, second) = (sum(options(false)), sum(in_network_channels(options(false))));
    assert!(first.iter().all(|bits| *bits == first[0]));
    assert_eq!(first, second);
}

#[test]
fn the_canonical_order_gives_the_same_bits_on_every_topology() {
    let sum = |hosts: &str, count: usize, options: Options| {
        let canonical = Options { canonical: true, ..options };
        let mut found = threads_on(hosts, &canonical, |group| {
            let (rank, world) = (group.rank().0 as f32, group.world_size());
            let mut values: Vec<f32> = (0..count).map(|at| (at as f32 + 1.0) / (rank + 3.0)).collect();
            group.all_reduce(&mut values, Reduction::Average).unwrap();
            let mut part = vec![0f32; count];
            let inputs: Vec<f32> = (0..count * world).map(|at| (at as f32 + 1.0) / (rank + 7.0)).collect();
            group.reduce_scatter(&inputs, &mut part, Reduction::Sum).unwrap();
            values.extend(part);
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        let rest = found.split_off(1);
        assert!(rest.iter().all(|bits| bits[..count] == found[0][..count]));
        (found.remove(0), rest)
    };
    for count in [100, 30_000] {
        let alone = sum("aaaa", count, options(false));
        for hosts in ["aabb", "abab", "abbb", "abcd", "aabc"] {
            for options in [options(false), in_network_channels(options(false))] {
                assert!(sum(hosts, count, options) == alone, "{hosts}, {count}");
            }
        }
    }
}

#[test]
fn ranks_with_different_secrets_are_not_connected() {
    let secrets = ["one", "one", "other"];
    let bound: Vec<Bound> = ["a", "b", "c"]
        .iter()
        .zip(secrets)
        .map(|(island, secret)| {
            let (island, secret) = (Some((*island).to_owned()), Some(Secret::new(secret)));
            let bound = Group::bind(Options { island, secret, ..options(false) }).unwrap();
            bound.open_to_network().unwrap();
            bound
        })
        .collect();
    let addresses: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let connect = |(rank, bound): (usize, Bound)| {
            let addresses = &addresses;
            scope.spawn(move || {
                bound.connect(Rank(rank), addresses, 0, Duration::from_secs(1)).err().map(|error| error.to_string())
            })
        };
        let ranks: Vec<_> = bound.into_iter().enumerate().map(connect).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
    });
    for error in errors {
        assert!(error.contains("did not arrive") && error.contains("INSTEP_SECRET"), "{error}");
        assert!(!error.contains("other\""), "{error}");
    }
    let secret = Some(Secret::new("one"));
    threads_on("abb", &Options { secret, ..options(false) }, |group| group.barrier().unwrap());
}

#[test]
#[ignore = "many threads and connections: make soak"]
fn many_ranks_on_sixteen_hosts() {
    let hosts: String = ('a'..='p').flat_map(|host| std::iter::repeat_n(host, 6)).collect();
    let world = hosts.len();
    threads_on(&hosts, &options(false), |group| {
        for count in [1, 100_000] {
            let mut values = vec![1f32; count];
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            assert!(values.iter().all(|value| *value == world as f32));
        }
        group.barrier().unwrap();
    });
}

type Call = fn(&Group) -> Result<(), Error>;

#[test]
fn different_calls_are_named_across_hosts() {
    let cases: [(Call, Call); 3] = [
        (|group| group.all_reduce(&mut [1f32; 100], Reduction::Sum), |group| group.barrier()),
        (
            |group| group.all_reduce(&mut [1f32; 100], Reduction::Sum),
            |group| group.all_reduce(&mut [1f32; 101], Reduction::Sum),
        ),
        (|group| group.broadcast(&mut [0u8; 9], Rank(0)), |group| group.broadcast(&mut [0u8; 9], Rank(1))),
    ];
    for (most, odd) in cases {
        for odd_rank in [1, 4] {
            let errors = threads_on("aabbb", &options(false), |group| {
                group.barrier().unwrap();
                let call = if group.rank().0 == odd_rank { odd } else { most };
                let error = call(&group).unwrap_err();
                assert!(matches!(group.barrier().unwrap_err(), Error::Mismatch { .. }));
                error
            });
            for error in errors {
                assert!(matches!(error, Error::Mismatch { sequence: 1, .. }), "{error}");
                assert!(error.to_string().contains(&format!("rank {odd_rank} ")), "{error}");
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_on_every_host() {
    // Few elements at once, many in chunks.
    for (leaver, count) in [(0, 10_000), (3, 10_000), (4, 10_000), (1, 3_000_000), (4, 3_000_000)] {
        let barrier = std::sync::Barrier::new(5);
        let errors = threads_on("aabbb", &options(false), |group| {
            group.barrier().unwrap();
            // A loss would also end the barrier of a rank that is slow.
            barrier.wait();
            if group.rank().0 == leaver {
                return None;
            }
            let started = Instant::now();
            let error = group.all_reduce(&mut vec![1f32; count], Reduction::Sum).unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(error, Error::PeerLost { rank, .. } if rank.0 == leaver), "{error}");
        }
    }
}

#[test]
fn abort_reaches_every_host() {
    let barrier = std::sync::Barrier::new(4);
    let errors = threads_on("aabb", &options(false), |group| {
        group.barrier().unwrap();
        barrier.wait();
        if group.rank().0 == 3 {
            std::thread::sleep(Duration::from_millis(50));
            group.abort();
        }
        group.all_reduce(&mut [1f32; 10], Reduction::Sum).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::Aborted { by: Rank(3) }), "{error}");
    }
}

/// Connects "aabb" so that ranks 0 and 3, whose rails are to others, call each other where nobody answers. Has all of them
/// call an operation that goes straight from rank to rank, and rank 1 do something meanwhile; gives the errors.
fn connecting_for_ever(meanwhile: impl Fn(&Group) + Sync) -> Vec<Error> {
    let bound: Vec<Bound> = ["a", "a", "b", "b"]
        .iter()
        .map(|island| {
            let bound = Group::bind(Options { island: Some((*island).to_owned()), ..options(false) }).unwrap();
            bound.open_to_network().unwrap();
            bound
        })
        .collect();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = silent.local_addr().unwrap().port();
    let addresses: Vec<Address> = bound.iter().map(|bound| bound.address().clone()).collect();
    let seen_by = |rank: usize| {
        let of = |(other, address): (usize, &Address)| match (rank, other) {
            (0, 3) | (3, 0) => with_port(address, nobody),
            _ => address.clone(),
        };
        addresses.iter().enumerate().map(of).collect::<Vec<_>>()
    };
    // A rank that leaves at once may be heard of before its reason.
    let over = std::sync::Barrier::new(bound.len());
    std::thread::scope(|scope| {
        let (seen_by, meanwhile, over) = (&seen_by, &meanwhile, &over);
        let rank = |(rank, bound): (usize, Bound)| {
            scope.spawn(move || {
                let group = bound.connect(Rank(rank), &seen_by(rank), 0, ranks::PATIENCE).unwrap();
                let error = std::thread::scope(|scope| {
                    if rank == 1 {
                        scope.spawn(|| meanwhile(&group));
                    }
                    let (own, mut all) = ([1f32; 4], [0f32; 4]);
                    let (inputs, outputs) = (Source::of(&own).split(4), Target::of(&mut all).split(4));
                    // SAFETY: the arrays outlive the call.
                    unsafe { group.run(Operation::AllToAll { inputs, outputs, dtype: DataType::F32 }) }.unwrap_err()
                });
                over.wait();
                error
            })
        };
        let ranks: Vec<_> = bound.into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn an_abort_ends_the_wait_for_connections_that_an_operation_opens() {
    let started = Instant::now();
    let errors = connecting_for_ever(|group| {
        std::thread::sleep(Duration::from_millis(300));
        group.abort();
    });
    for error in errors {
        assert!(matches!(error, Error::Aborted { by: Rank(1) }), "{error}");
    }
    assert!(started.elapsed() < ranks::PATIENCE / 2, "{:?}", started.elapsed());
}

/// Everybody else calls an operation, rank 0 a little before the others; returns their errors.
fn call_without(late: &[usize]) -> Vec<Error> {
    let over = std::sync::Barrier::new(5);
    let impatient = Options { timeout: Duration::from_millis(1200), ..options(false) };
    let errors = threads_on("aabbb", &impatient, |group| {
        group.barrier().expect("all come");
        let rank = group.rank().0;
        let error = (!late.contains(&rank)).then(|| {
            std::thread::sleep(Duration::from_millis(if rank == 0 { 0 } else { 100 }));
            group.all_reduce(&mut [1f32; 100], Reduction::Sum).expect_err("some do not come")
        });
        over.wait();
        error
    });
    errors.into_iter().flatten().collect()
}

#[test]
fn a_timeout_names_the_late_ranks_and_not_those_that_wait_for_them() {
    for late in [&[4usize][..], &[1], &[2, 4], &[2, 3, 4]] {
        let expected: Vec<Rank> = late.iter().copied().map(Rank).collect();
        let errors = call_without(late);
        assert_eq!(errors.len(), 5 - late.len());
        for error in errors {
            let Error::Timeout { missing, timeout, sequence: 1, .. } = &error else { panic!("{error}") };
            assert_eq!(*missing, expected, "{error}");
            assert_eq!(*timeout, Duration::from_millis(1200));
        }
    }
}
