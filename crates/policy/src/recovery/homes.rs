//! On which node each rank runs, and where the ranks of a lost node go.
//!
//! A node offers the ranks of others as many places as it keeps spares. A rank that has moved stays: its node's next
//! processes for it need no further place, and when that node is lost too, it moves on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::membership::NodeId;

/// One node of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundNode {
    /// Which.
    pub node: NodeId,
    /// The ranks that it starts.
    pub ranks: Range<usize>,
    /// For how many ranks of other nodes it has room.
    pub spares: usize,
    /// What its workers are for: ranks move between nodes of one role.
    pub role: String,
}

#[derive(Debug)]
struct Home {
    node: NodeId,
    role: String,
    room: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Homes {
    /// Nodes that are there, in order of group rank.
    nodes: Vec<Home>,
    /// By rank: where it runs, and its role.
    ranks: Vec<(NodeId, String)>,
}

impl Homes {
    pub(super) fn new(nodes: &[RoundNode]) -> Homes {
        let home = |node: &RoundNode| Home { node: node.node, role: node.role.clone(), room: node.spares };
        let ranks = nodes.iter().flat_map(|node| node.ranks.clone().map(|_| (node.node, node.role.clone())));
        Homes { nodes: nodes.iter().map(home).collect(), ranks: ranks.collect() }
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|home| home.node == node)
    }

    /// The ranks that run on a node.
    pub(super) fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = usize> {
        self.ranks.iter().enumerate().filter(move |(_, (home, _))| *home == node).map(|(rank, _)| rank)
    }

    /// A node is there no more.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.retain(|home| home.node != node);
    }

    /// Finds a node for each of these ranks whose own is gone: the one with the most room, of those the first. Changes
    /// nothing where there is no room for all; then says how many ranks found none.
    pub(super) fn settle(&mut self, ranks: &BTreeSet<usize>) -> Result<BTreeMap<usize, NodeId>, usize> {
        let homeless = |rank: &&usize| self.ranks.get(**rank).is_some_and(|(node, _)| !self.has(*node));
        let homeless: Vec<usize> = ranks.iter().filter(homeless).copied().collect();
        let mut room: Vec<usize> = self.nodes.iter().map(|home| home.room).collect();
        let mut found = BTreeMap::new();
        for rank in &homeless {
            let role = &self.ranks[*rank].1;
            let fits = |index: &usize| room[*index] > 0 && self.nodes[*index].role == *role;
            let best = (0..room.len()).filter(fits).max_by_key(|index| (room[*index], std::cmp::Reverse(*index)));
            if let Some(index) = best {
                room[index] -= 1;
                found.insert(*rank, self.nodes[index].node);
            }
        }
        if found.len() < homeless.len() {
            return Err(homeless.len() - found.len());
        }
        self.nodes.iter_mut().zip(room).for_each(|(home, room)| home.room = room);
        for (rank, node) in &found {
            self.ranks[*rank].0 = *node;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::{Homes, RoundNode};
    use crate::membership::NodeId;
    use std::collections::{BTreeMap, BTreeSet};

    fn homes(nodes: &[(usize, usize, &str)]) -> Homes {
        let mut next = 0;
        let numbered = nodes.iter().zip(1..).map(|((workers, spares, role), id)| {
            let ranks = next..next + workers;
            next = ranks.end;
            RoundNode { node: NodeId(id), ranks, spares: *spares, role: (*role).to_owned() }
        });
        Homes::new(&numbered.collect::<Vec<_>>())
    }

    fn settled(homes: &mut Homes, ranks: &[usize]) -> Result<Vec<(usize, u64)>, usize> {
        let found = homes.settle(&ranks.iter().copied().collect::<BTreeSet<_>>());
        found.map(|found: BTreeMap<usize, NodeId>| found.into_iter().map(|(rank, node)| (rank, node.0)).collect())
    }

    #[test]
    fn ranks_of_a_lost_node_go_where_there_is_most_room() {
        let mut homes = homes(&[(2, 1, "a"), (3, 1, "a"), (2, 2, "a")]);
        homes.forget(NodeId(2));
        assert_eq!(settled(&mut homes, &[2, 3, 4]), Ok(vec![(2, 3), (3, 1), (4, 3)]));
        assert_eq!(settled(&mut homes, &[2, 0]), Ok(vec![]), "they have a node");
        assert_eq!(homes.ranks_on(NodeId(3)).collect::<Vec<_>>(), [2, 4, 5, 6]);
        homes.forget(NodeId(3));
        assert_eq!(settled(&mut homes, &[2, 4, 5, 6]), Err(4), "the other node's room is used");
    }

    #[test]
    fn where_room_is_short_nothing_changes() {
        let mut homes = homes(&[(1, 1, "a"), (2, 1, "a")]);
        homes.forget(NodeId(2));
        assert_eq!(settled(&mut homes, &[1, 2]), Err(1));
        assert_eq!(settled(&mut homes, &[1]), Ok(vec![(1, 1)]));
    }

    #[test]
    fn ranks_keep_to_nodes_of_their_role() {
        let mut homes = homes(&[(1, 9, "reader"), (1, 0, "trainer"), (1, 1, "trainer")]);
        homes.forget(NodeId(2));
        assert_eq!(settled(&mut homes, &[1]), Ok(vec![(1, 3)]));
    }
}
