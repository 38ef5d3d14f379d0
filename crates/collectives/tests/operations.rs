//! Every operation on every number of ranks from 1 to 9, through the arena and out of the peers' memory.
#![expect(unsafe_code, reason = "operations are given raw memory")]

mod ranks;

use instep_collectives::{DataType, Error, Group, Operation, Output, Rank, Reduction, Source, Target};
use ranks::{PATIENCE, check_operations, options, threads};

/// Nothing, one, odd numbers, and enough for several steps.
const COUNTS: [usize; 5] = [0, 1, 17, 1003, 9001];

fn check_world(world: usize, single_copy: bool) {
    threads(world, &options(single_copy), |group| {
        assert_eq!(group.uses_single_copy(), single_copy);
        for dtype in [DataType::F32, DataType::BF16, DataType::I8, DataType::Complex128, DataType::Bytes] {
            for count in COUNTS {
                check_operations(&group, dtype, count);
            }
        }
    });
}

#[test]
fn one_to_four_ranks_through_the_arena() {
    (1..=4).for_each(|world| check_world(world, false));
}

#[test]
fn five_to_nine_ranks_through_the_arena() {
    (5..=9).for_each(|world| check_world(world, false));
}

#[test]
fn one_to_four_ranks_out_of_the_peers_memory() {
    (1..=4).for_each(|world| check_world(world, true));
}

#[test]
fn five_to_nine_ranks_out_of_the_peers_memory() {
    (5..=9).for_each(|world| check_world(world, true));
}

#[test]
fn every_type_goes_through_an_all_reduce() {
    threads(3, &options(true), |group| {
        for dtype in [DataType::F64, DataType::U8, DataType::I16, DataType::I32, DataType::I64, DataType::Bool] {
            for count in [5, 9001] {
                check_operations(&group, dtype, count);
            }
        }
    });
}

#[test]
fn sums_have_the_same_bits_on_every_rank_and_path() {
    let sum = |single_copy: bool, world: usize, count: usize| {
        let results = threads(world, &options(single_copy), |group| {
            let mut values: Vec<f32> =
                (0..count).map(|at| ((at * 31 + group.rank().0 * 977) as f32).sin() * 1e3).collect();
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        });
        assert!(results.iter().all(|result| *result == results[0]));
        results[0].clone()
    };
    for world in [2, 3, 5] {
        let arena = sum(false, world, 70_001);
        assert_eq!(arena, sum(true, world, 70_001));
        // Shorter buffers take other paths; an element does not depend on how many follow it.
        assert_eq!(arena[..1000], sum(false, world, 1000));
    }
}

#[test]
fn tickets_finish_in_order_beside_operations_of_the_caller() {
    threads(3, &options(true), |group| {
        let mut buffers: Vec<Vec<i64>> = (0..50).map(|round| vec![round; 3000]).collect();
        let tickets: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let (input, output) = (Source::of(buffer), Target::of(buffer));
                let operation = Operation::AllReduce { input, output, dtype: DataType::I64, reduction: Reduction::Sum };
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

#[test]
fn two_groups_work_at_once() {
    threads(2, &options(false), |one| {
        let other = {
            // The second group's addresses travel through the first.
            let bound = Group::bind(options(false)).unwrap();
            let mut own = bound.address().to_bytes();
            let length = own.len();
            own.resize(512, 0);
            let mut all = vec![0u8; 1024];
            one.all_gather(&own, &mut all).unwrap();
            let addresses: Vec<_> = all
                .chunks(512)
                .map(|bytes| {
                    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
                    instep_collectives::Address::from_bytes(&bytes[..length.max(last + 1)]).unwrap()
                })
                .collect();
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

#[test]
fn what_contradicts_itself_leaves_the_group_usable() {
    threads(2, &options(false), |group| {
        let mut values = [1f32; 4];
        let refused = group.all_reduce(&mut values, Reduction::BitAnd);
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
        assert!(matches!(group.broadcast(&mut values, Rank(2)), Err(Error::Invalid { .. })));
        group.all_reduce(&mut values, Reduction::Sum).unwrap();
        assert_eq!(values, [2.0; 4]);
    });
}
