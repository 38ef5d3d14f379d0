//! Which ranks share memory, and which of them are connected over the network.
//!
//! Ranks that share memory are a *host*. Ranks of the same number in their hosts form a *rail*: they are connected, so that
//! every rank has as many links as there are other hosts. There are as many rails as the smallest host has ranks.

use crate::Rank;
use crate::rank::LocalRank;

/// The ranks of a group by host. Hosts are in the order of their first ranks, ranks in their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) hosts: Vec<Vec<Rank>>,
    /// By rank: its host, and its number there.
    locations: Vec<(usize, LocalRank)>,
}

impl Topology {
    /// Ranks with the same key share memory.
    pub(crate) fn new<Key: Eq>(keys: &[Key]) -> Topology {
        let mut hosts: Vec<Vec<Rank>> = Vec::new();
        let mut locations = Vec::with_capacity(keys.len());
        for (rank, key) in keys.iter().enumerate() {
            let host = hosts.iter().position(|host| keys[host[0].0] == *key).unwrap_or_else(|| {
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            locations.push((host, LocalRank(hosts[host].len())));
            hosts[host].push(Rank(rank));
        }
        Topology { hosts, locations }
    }

    pub(crate) fn host(&self, rank: Rank) -> usize {
        self.locations[rank.0].0
    }

    /// A rank's number in its host.
    pub(crate) fn local(&self, rank: Rank) -> LocalRank {
        self.locations[rank.0].1
    }

    pub(crate) fn rails(&self) -> usize {
        self.hosts.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// The ranks of a rail, by host.
    pub(crate) fn rail(&self, number: LocalRank) -> Vec<Rank> {
        self.hosts.iter().map(|host| host[number.0]).collect()
    }

    /// Whether all hosts have as many ranks.
    pub(crate) fn is_even(&self) -> bool {
        self.hosts.iter().all(|host| host.len() == self.hosts[0].len())
    }

    /// Whether there is something to gain from reducing inside the hosts first, with at most so many ranks in one.
    pub(crate) fn has_two_levels(&self, most: usize) -> bool {
        let sizes = || self.hosts.iter().map(Vec::len);
        self.hosts.len() > 1 && sizes().any(|size| size > 1) && sizes().all(|size| size <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(numbers: Vec<usize>) -> Vec<Rank> {
        numbers.into_iter().map(Rank).collect()
    }

    #[test]
    fn ranks_are_found_by_host_and_rail() {
        let topology = Topology::new(&["b", "a", "b", "b", "a", "c", "c"]);
        assert_eq!(topology.hosts, [vec![0, 2, 3], vec![1, 4], vec![5, 6]].map(ranks));
        assert_eq!((topology.host(Rank(3)), topology.local(Rank(3))), (0, LocalRank(2)));
        assert_eq!((topology.rails(), topology.rail(LocalRank(1))), (2, ranks(vec![2, 4, 6])));
        assert!(!topology.is_even() && topology.has_two_levels(3) && !topology.has_two_levels(2));
        assert!(!Topology::new(&[1, 2, 3]).has_two_levels(9) && !Topology::new(&[1, 1]).has_two_levels(9));
    }
}
