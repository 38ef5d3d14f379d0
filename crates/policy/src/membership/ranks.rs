//! Who gets which ranks in a round.

use std::collections::BTreeMap;

use super::{NodeFacts, NodeId};

/// One node's place in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct RoundMember {
    pub node: NodeId,
    /// Rank of the node among the nodes.
    pub group_rank: usize,
    /// How many workers it starts.
    pub workers: usize,
    /// Rank of its first worker.
    pub first_rank: usize,
    /// Rank of its first worker among the workers of the same role.
    pub first_role_rank: usize,
    /// How many workers share the role.
    pub role_world_size: usize,
}

/// A node that may get a place.
pub(super) struct RankCandidate<'a> {
    pub(super) node: NodeId,
    pub(super) facts: &'a NodeFacts,
    /// Before all others.
    pub(super) first: bool,
    /// Its group rank in the round before: ranks should move as little as they can, and spares displace nobody.
    pub(super) previous_rank: usize,
}

/// Gives out at most `most` places, in order of group rank, and says how many workers that makes.
pub(super) fn assign_ranks(mut candidates: Vec<RankCandidate<'_>>, most: usize) -> (Vec<RoundMember>, usize) {
    candidates.sort_by_key(|candidate| {
        let facts = candidate.facts;
        (
            !candidate.first,
            candidate.previous_rank,
            facts.node_rank,
            facts.address.clone(),
            facts.process,
            candidate.node,
        )
    });
    candidates.truncate(most);
    let mut role_sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for candidate in &candidates {
        *role_sizes.entry(&candidate.facts.role).or_default() += candidate.facts.workers;
    }
    let mut role_given: BTreeMap<&str, usize> = BTreeMap::new();
    let mut world_size = 0;
    let mut members = Vec::with_capacity(candidates.len());
    for (group_rank, RankCandidate { node, facts, .. }) in candidates.iter().enumerate() {
        let given = role_given.entry(&facts.role).or_default();
        members.push(RoundMember {
            node: *node,
            group_rank,
            workers: facts.workers,
            first_rank: world_size,
            first_role_rank: *given,
            role_world_size: role_sizes.get(facts.role.as_str()).copied().unwrap_or_default(),
        });
        *given += facts.workers;
        world_size += facts.workers;
    }
    (members, world_size)
}
