//! Random hosts with random numbers of ranks: every operation gives what a naive one would, and sums have the promised bits.

mod ranks;

use instep_collectives::{DataType, Options, Reduction};
use proptest::prelude::*;
use ranks::{check_operations, in_network_channels, options, threads_on};

/// A letter for the host of each rank, in any order, as many as it may be.
fn topologies() -> impl Strategy<Value = String> {
    proptest::collection::vec(0u8..4, 2..8)
        .prop_map(|hosts| hosts.into_iter().map(|host| char::from(b'a' + host)).collect())
}

/// Numbers whose sum depends on the order in which they are added.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| (at as f32 + 1.0) / (rank as f32 + 3.0)).collect()
}

/// The sum of vectors in this order.
fn sum(vectors: &[Vec<f32>]) -> Vec<f32> {
    let add = |sum: Vec<f32>, next: &Vec<f32>| sum.iter().zip(next).map(|(one, other)| one + other).collect();
    vectors[1..].iter().fold(vectors[0].clone(), add)
}

/// In every host in the order of ranks, then in the order of hosts, which is that of their first ranks.
fn sum_by_host(hosts: &str, count: usize) -> Vec<f32> {
    let mut names: Vec<char> = Vec::new();
    for name in hosts.chars() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of_host = |name: &char| {
        let members = hosts.chars().enumerate().filter(|(_, host)| host == name);
        sum(&members.map(|(rank, _)| values(rank, count)).collect::<Vec<_>>())
    };
    sum(&names.iter().map(of_host).collect::<Vec<_>>())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    // Each case makes ranks, connections and shared memory.
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_is_right_on_random_hosts(hosts in topologies(), count in 0usize..3000, (canonical, channels) in any::<(bool, bool)>()) {
        let expected = if canonical {
            sum(&(0..hosts.len()).map(|rank| values(rank, count)).collect::<Vec<_>>())
        } else {
            sum_by_host(&hosts, count)
        };
        let options = Options { canonical, ..options(false) };
        let options = if channels { in_network_channels(options) } else { options };
        let found = threads_on(&hosts, &options, |group| {
            check_operations(&group, DataType::I64, count);
            check_operations(&group, DataType::F32, count / 7);
            let mut own = values(group.rank().0, count);
            group.all_reduce(&mut own, Reduction::Sum).unwrap();
            own
        });
        for (rank, own) in found.iter().enumerate() {
            prop_assert!(bits(own) == bits(&expected), "rank {} on {}", rank, hosts);
        }
    }
}
