//! Every operation on every number of ranks from 1 to 9 against a naive reference: through the arena, over TCP,
//! with one thread of a rank or several.
#![expect(unsafe_code, reason = "operations are given raw memory")]

mod ranks;

use instep_collectives::{
    Address, DataType, Error, Group, Operation, Options, Output, Rank, Reduction, Source, Target,
};
use ranks::{
    PATIENCE, check_all_to_all, check_moves, check_operations, check_reduction, encrypted, every_path,
    exchange_addresses, in_network_channels, tcp, threads,
};

/// Nothing, one, odd numbers, and enough for several steps or the path of large buffers.
const COUNTS: [usize; 6] = [0, 1, 17, 1003, 9001, 20_011];

/// A sample: every type once per world and path, with reductions and lengths taking turns, so that the tests together see
/// all of them.
fn sample(path: usize, worlds: std::ops::RangeInclusive<usize>) {
    for world in worlds {
        threads(world, &every_path()[path], |group| {
            assert_eq!(group.uses_single_copy(), path == 1 || path == 3);
            for (index, dtype) in DataType::ALL.into_iter().enumerate() {
                let turn = world * 7 + path * 5 + index * 3;
                let count = COUNTS[turn % COUNTS.len()];
                for next in 0..3 {
                    let reduction = Reduction::ALL[(turn + next * 3 + index) % Reduction::ALL.len()];
                    check_reduction(&group, dtype, reduction, count);
                }
                check_moves(&group, dtype, count);
                check_all_to_all(&group, dtype, count);
            }
            group.barrier().expect("nobody has left");
        });
    }
}

#[test]
fn one_to_four_ranks_through_shared_memory() {
    sample(0, 1..=4);
}

#[test]
fn five_to_nine_ranks_through_shared_memory() {
    sample(0, 5..=9);
}

#[test]
fn one_to_four_ranks_over_tcp() {
    sample(2, 2..=4);
}

#[test]
fn five_to_nine_ranks_over_tcp() {
    sample(2, 5..=9);
}

#[test]
fn one_to_four_ranks_over_several_connections_each() {
    sample(5, 2..=4);
}

#[test]
fn five_to_nine_ranks_over_several_connections_each() {
    sample(5, 5..=9);
}

#[test]
fn one_to_four_ranks_with_several_threads_each() {
    sample(3, 1..=4);
}

#[test]
fn five_to_nine_ranks_with_several_threads_each() {
    sample(3, 5..=9);
}

#[test]
#[ignore = "the whole product takes minutes: make soak"]
fn every_operation_type_reduction_world_length_and_path() {
    for world in 1..=9 {
        for options in every_path() {
            threads(world, &options, |group| {
                for dtype in DataType::ALL {
                    for count in COUNTS {
                        for reduction in Reduction::ALL {
                            check_reduction(&group, dtype, reduction, count);
                        }
                        check_moves(&group, dtype, count);
                        check_all_to_all(&group, dtype, count);
                    }
                }
                group.barrier().unwrap();
            });
        }
    }
}

#[test]
fn long_buffers_take_several_steps_over_tcp() {
    for options in [tcp(), in_network_channels(encrypted())] {
        threads(3, &options, |group| {
            // More than a step of a reduction, and an odd number.
            check_operations(&group, DataType::I16, 2_200_003);
        });
    }
}

#[test]
fn sums_have_the_same_bits_on_every_rank_and_path() {
    let sum = |options: &Options, world: usize, count: usize| {
        let results = threads(world, options, |group| {
            let mut values: Vec<f32> =
                (0..count).map(|at| ((at * 31 + group.rank().0 * 977) as f32).sin() * 1e3).collect();
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        });
        assert!(results.iter().all(|result| *result == results[0]));
        results[0].clone()
    };
    for world in [2, 3, 5] {
        let [arena, others @ ..] = every_path().map(|options| sum(&options, world, 70_001));
        assert!(others.iter().all(|other| *other == arena));
        // Shorter buffers take other paths; an element does not depend on how many follow it.
        for options in every_path() {
            assert_eq!(arena[..1000], sum(&options, world, 1000));
        }
    }
}

/// Of every type and reduction, with numbers that are not added up the same in another order.
#[test]
fn no_bit_depends_on_the_number_of_connections() {
    let reduce = |options: &Options, dtype: DataType, reduction: Reduction| {
        threads(3, options, |group| {
            let bytes = |rank: usize| -> Vec<u8> {
                let value = |at: usize| ((at * 31 + rank * 977) as f32).sin() * 3.0;
                let short = |at: usize| ((at * 31 + rank * 977) % 0x7b00) as u16;
                match dtype {
                    DataType::F32 | DataType::Complex64 => (0..30_000).flat_map(|at| value(at).to_ne_bytes()).collect(),
                    DataType::F64 | DataType::Complex128 => {
                        (0..15_000).flat_map(|at| f64::from(value(at)).sqrt().abs().to_ne_bytes()).collect()
                    }
                    DataType::Bool => (0..120_000).map(|at| u8::from(short(at) % 2 == 1)).collect(),
                    _ => (0..60_000).flat_map(|at| short(at).to_ne_bytes()).collect(),
                }
            };
            let (own, mut output) = (bytes(group.rank().0), vec![0u8; 120_000]);
            let operation =
                Operation::AllReduce { input: Source::of(&own), output: Target::of(&mut output), dtype, reduction };
            // SAFETY: the buffers outlive the call.
            unsafe { group.run(operation) }.unwrap();
            output
        })
    };
    for dtype in DataType::ALL {
        for reduction in Reduction::ALL.into_iter().filter(|reduction| reduction.check(dtype).is_ok()) {
            let one = reduce(&Options { network_channels: Some(1), ..tcp() }, dtype, reduction);
            let several = reduce(&in_network_channels(tcp()), dtype, reduction);
            assert!(one == several, "{} of {}", reduction.name(), dtype.name());
        }
    }
}

#[test]
fn tickets_finish_in_order_beside_operations_of_the_caller() {
    for options in every_path() {
        threads(3, &options, |group| {
            let mut buffers: Vec<Vec<i64>> = (0..50).map(|round| vec![round; 3000]).collect();
            let tickets: Vec<_> = buffers
                .iter_mut()
                .map(|buffer| {
                    let (input, output) = (Source::of(buffer), Target::of(buffer));
                    let operation =
                        Operation::AllReduce { input, output, dtype: DataType::I64, reduction: Reduction::Sum };
                    // SAFETY: the buffers outlive the tickets, which are waited for below.
                    unsafe { group.submit(operation) }.unwrap()
                })
                .collect();
            let mut last = [1i32];
            group.all_reduce(&mut last, Reduction::Sum).unwrap();
            assert_eq!(last, [3]);
            // What was submitted before is done before.
            assert!(tickets.iter().all(|ticket| ticket.is_finished()));
            for (round, ticket) in tickets.iter().enumerate() {
                ticket.wait(PATIENCE).unwrap();
                assert_eq!(ticket.output(), Output::Complete);
                assert!(buffers[round].iter().all(|value| *value == 3 * round as i64));
            }
        });
    }
}

#[test]
fn two_groups_work_at_once() {
    for options in every_path() {
        threads(2, &options, |one| {
            let other = {
                // The second group's addresses travel through the first.
                let bound = Group::bind(options.clone()).unwrap();
                let addresses = exchange_addresses(&bound, |address| {
                    let mut own = address.to_bytes();
                    let length = own.len() as u16;
                    own.resize(1022, 0);
                    own.extend(length.to_le_bytes());
                    let mut all = vec![0u8; 2048];
                    one.all_gather(&own, &mut all).unwrap();
                    let rank = |bytes: &[u8]| {
                        let length = u16::from_le_bytes([bytes[1022], bytes[1023]]);
                        Address::from_bytes(&bytes[..usize::from(length)]).unwrap()
                    };
                    all.chunks(1024).map(rank).collect()
                });
                bound.connect(one.rank(), &addresses, 0, PATIENCE).unwrap()
            };
            std::thread::scope(|scope| {
                for group in [&one, &other] {
                    scope.spawn(move || {
                        for round in 0..200 {
                            let mut values = vec![round; 500];
                            group.all_reduce(&mut values, Reduction::Sum).unwrap();
                            assert!(values.iter().all(|value| *value == 2 * round));
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn an_invalid_call_leaves_the_group_usable() {
    for options in every_path() {
        threads(2, &options, |group| {
            let mut values = [1f32; 4];
            let refused = group.all_reduce(&mut values, Reduction::BitAnd);
            assert!(matches!(refused, Err(Error::Unsupported { .. })));
            assert!(matches!(group.broadcast(&mut values, Rank(2)), Err(Error::Invalid { .. })));
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            assert_eq!(values, [2.0; 4]);
        });
    }
}
