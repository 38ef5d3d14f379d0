//! Ranks, by what they count in: [`Rank`] in the group, [`LocalRank`] among the ranks of a host that share memory.

use std::fmt;

/// A member's number in its group, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Rank(pub usize);

/// A member's number among those of its host that share an arena, from 0, in the order of their ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct LocalRank(pub(crate) usize);

impl fmt::Display for Rank {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Rank {
    /// All ranks of a group of this size.
    pub(crate) fn all(world: usize) -> impl Iterator<Item = Rank> + Clone {
        (0..world).map(Rank)
    }

    /// All ranks but this one, in their order.
    pub(crate) fn others(self, world: usize) -> impl Iterator<Item = Rank> + Clone {
        Rank::all(world).filter(move |rank| *rank != self)
    }
}

impl LocalRank {
    pub(crate) fn all(world: usize) -> impl Iterator<Item = LocalRank> + Clone {
        (0..world).map(LocalRank)
    }
}

/// Ranks as people read them: `1, 2, 5`.
pub(crate) fn join_ranks(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

/// The other members of a ring, starting after this one so that not all begin with the same.
pub(crate) fn ring(index: usize, world: usize) -> impl Iterator<Item = usize> + Clone + use<> {
    (1..world).map(move |distance| (index + distance) % world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_visits_everybody_else_once_from_the_next_one_on() {
        assert_eq!(ring(2, 4).collect::<Vec<_>>(), [3, 0, 1]);
        assert_eq!(ring(0, 1).count(), 0);
    }
}
