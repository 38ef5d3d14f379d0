//! On which node each rank runs, and where the ranks of a lost node go.
//!
//! A node offers the ranks of others as many places as it keeps spares. A rank that has moved stays: its node's next
//! processes for it need no further place, and when that node is lost too, it moves on.
//!
//! Nodes that joined while the round ran *stand by*: they have no ranks yet, and take those for which the others have no
//! room. From then on they are nodes of the round like any other.

use std::cmp::Reverse;
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
struct NodeRoom {
    node: NodeId,
    role: String,
    room: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Placement {
    /// Nodes that are there, in order of group rank.
    nodes: Vec<NodeRoom>,
    /// By rank: where it runs, and its role.
    ranks: Vec<(NodeId, String)>,
    /// Nodes without ranks, and how many of them may get some.
    standbys: Vec<NodeRoom>,
    most_standbys: usize,
}

impl Placement {
    pub(super) fn new(nodes: &[RoundNode]) -> Placement {
        let ranks = nodes.iter().flat_map(|node| node.ranks.clone().map(|_| (node.node, node.role.clone())));
        Placement {
            nodes: nodes.iter().map(room_of).collect(),
            ranks: ranks.collect(),
            standbys: Vec::new(),
            most_standbys: 0,
        }
    }

    /// Which nodes stand by from now on, and how many of them may become nodes of the round.
    pub(super) fn stand_by(&mut self, standbys: &[RoundNode], most: usize) {
        self.standbys = standbys.iter().filter(|standby| !self.has(standby.node)).map(room_of).collect();
        self.most_standbys = most;
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|there| there.node == node)
    }

    /// The ranks that run on a node.
    pub(super) fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = usize> {
        self.ranks.iter().enumerate().filter(move |(_, (at, _))| *at == node).map(|(rank, _)| rank)
    }

    /// A node is there no more.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.retain(|there| there.node != node);
    }

    /// Finds a node for each of these ranks whose own is gone: the one with the most room, of those the first; one that
    /// stands by where the others have none. Changes nothing where there is no room for all; then says how many ranks found
    /// none.
    pub(super) fn settle(&mut self, ranks: &BTreeSet<usize>) -> Result<BTreeMap<usize, NodeId>, usize> {
        let unplaced = |rank: &&usize| self.ranks.get(**rank).is_some_and(|(node, _)| !self.has(*node));
        let unplaced: Vec<usize> = ranks.iter().filter(unplaced).copied().collect();
        let there = self.nodes.len();
        let nodes: Vec<&NodeRoom> = self.nodes.iter().chain(&self.standbys).collect();
        let mut room: Vec<usize> = nodes.iter().map(|node| node.room).collect();
        let mut called = BTreeSet::new();
        let mut found = BTreeMap::new();
        for rank in &unplaced {
            let role = &self.ranks[*rank].1;
            let may_be_called = |index: usize| called.contains(&index) || called.len() < self.most_standbys;
            let fits = |index: &usize| {
                room[*index] > 0 && nodes[*index].role == *role && (*index < there || may_be_called(*index))
            };
            // Those with ranks come first, then those that have been called for another rank.
            let order = |index: &usize| (*index < there, called.contains(index), room[*index], Reverse(*index));
            if let Some(index) = (0..room.len()).filter(fits).max_by_key(order) {
                room[index] -= 1;
                found.insert(*rank, nodes[index].node);
                if index >= there {
                    called.insert(index);
                }
            }
        }
        if found.len() < unplaced.len() {
            return Err(unplaced.len() - found.len());
        }
        let mut standbys = std::mem::take(&mut self.standbys);
        self.nodes.iter_mut().chain(&mut standbys).zip(&room).for_each(|(node, left)| node.room = *left);
        for (index, standby) in standbys.into_iter().enumerate() {
            let is_called = called.contains(&(there + index));
            if is_called { &mut self.nodes } else { &mut self.standbys }.push(standby);
        }
        self.most_standbys -= called.len();
        for (rank, node) in &found {
            self.ranks[*rank].0 = *node;
        }
        Ok(found)
    }
}

fn room_of(node: &RoundNode) -> NodeRoom {
    NodeRoom { node: node.node, role: node.role.clone(), room: node.spares }
}

#[cfg(test)]
mod tests {
    use super::{Placement, RoundNode};
    use crate::membership::NodeId;
    use std::collections::{BTreeMap, BTreeSet};

    fn placement(nodes: &[(usize, usize, &str)]) -> Placement {
        let mut next = 0;
        let numbered = nodes.iter().zip(1..).map(|((workers, spares, role), id)| {
            let ranks = next..next + workers;
            next = ranks.end;
            RoundNode { node: NodeId(id), ranks, spares: *spares, role: (*role).to_owned() }
        });
        Placement::new(&numbered.collect::<Vec<_>>())
    }

    fn settled(placement: &mut Placement, ranks: &[usize]) -> Result<Vec<(usize, u64)>, usize> {
        let found = placement.settle(&ranks.iter().copied().collect::<BTreeSet<_>>());
        found.map(|found: BTreeMap<usize, NodeId>| found.into_iter().map(|(rank, node)| (rank, node.0)).collect())
    }

    #[test]
    fn ranks_of_a_lost_node_go_where_there_is_most_room() {
        let mut placement = placement(&[(2, 1, "a"), (3, 1, "a"), (2, 2, "a")]);
        placement.forget(NodeId(2));
        assert_eq!(settled(&mut placement, &[2, 3, 4]), Ok(vec![(2, 3), (3, 1), (4, 3)]));
        assert_eq!(settled(&mut placement, &[2, 0]), Ok(vec![]), "they have a node");
        assert_eq!(placement.ranks_on(NodeId(3)).collect::<Vec<_>>(), [2, 4, 5, 6]);
        placement.forget(NodeId(3));
        assert_eq!(settled(&mut placement, &[2, 4, 5, 6]), Err(4), "the other node's room is used");
    }

    #[test]
    fn where_room_is_short_nothing_changes() {
        let mut placement = placement(&[(1, 1, "a"), (2, 1, "a")]);
        placement.forget(NodeId(2));
        assert_eq!(settled(&mut placement, &[1, 2]), Err(1));
        assert_eq!(settled(&mut placement, &[1]), Ok(vec![(1, 1)]));
    }

    #[test]
    fn ranks_keep_to_nodes_of_their_role() {
        let mut placement = placement(&[(1, 9, "reader"), (1, 0, "trainer"), (1, 1, "trainer")]);
        placement.forget(NodeId(2));
        assert_eq!(settled(&mut placement, &[1]), Ok(vec![(1, 3)]));
    }

    #[test]
    fn nodes_that_stand_by_take_what_the_others_have_no_room_for() {
        let standby =
            |node, spares, role: &str| RoundNode { node: NodeId(node), ranks: 0..0, spares, role: role.to_owned() };
        let waiting = [standby(7, 4, "b"), standby(8, 2, "a"), standby(9, 3, "a")];
        let mut placement = placement(&[(1, 1, "a"), (3, 0, "a")]);
        placement.forget(NodeId(2));
        placement.stand_by(&waiting, 0);
        assert_eq!(settled(&mut placement, &[1, 2, 3]), Err(2), "no node may be added");
        placement.stand_by(&waiting, 1);
        assert_eq!(settled(&mut placement, &[1, 2, 3]), Ok(vec![(1, 1), (2, 9), (3, 9)]));
        assert!(placement.has(NodeId(9)) && !placement.has(NodeId(8)));
        placement.stand_by(&waiting, 0);
        placement.forget(NodeId(1));
        assert_eq!(settled(&mut placement, &[0]), Ok(vec![(0, 9)]), "it has room like any other, once");
        placement.forget(NodeId(9));
        placement.stand_by(&waiting[..2], 2);
        assert_eq!(settled(&mut placement, &[0, 1, 2, 3]), Err(2), "node 7 is for other ranks");
    }

    #[test]
    fn a_node_that_was_called_has_no_more_room_than_it_had() {
        let standby = |node, spares| RoundNode { node: NodeId(node), ranks: 0..0, spares, role: "a".to_owned() };
        let mut placement = placement(&[(1, 0, "a"), (6, 0, "a")]);
        placement.forget(NodeId(2));
        placement.stand_by(&[standby(8, 5), standby(9, 6)], 1);
        assert_eq!(
            settled(&mut placement, &[1, 2, 3, 4, 5, 6]).unwrap(),
            (1..=6).map(|rank| (rank, 9)).collect::<Vec<_>>()
        );
        placement.forget(NodeId(1));
        assert_eq!(settled(&mut placement, &[0]), Err(1), "node 8 may not be called, and node 9 is full");
    }
}
