//! Which rank caused the end of a round: decided from how workers ended, without a clock or a process.
//!
//! A worker that failed by itself is the cause, the earliest if there are several. A worker whose last output blames another
//! rank ([`Blame`]) is a consequence: the blame is followed from rank to rank until it ends at one that blames nobody. Texts
//! that name nobody (gloo's) leave those ranks that are no consequences; if that is one rank, it is the cause, and if it
//! is several, nobody knows. A wrong name is worse than none.

use std::collections::BTreeMap;

use crate::failure::blame::{Blame, BlameKind};

/// How one worker ended, as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerEnd {
    /// Its rank in the world.
    pub rank: usize,
    /// It ended with 0.
    pub success: bool,
    /// In seconds since 1970.
    pub time: f64,
    /// The launcher's signal ended it, for no reason of its own.
    pub stopped: bool,
    /// It ended, in whatever way, after the launcher had told it to.
    pub after_stop: bool,
    /// Whom its last output blames.
    pub blame: Option<Blame>,
}

/// What is known of the round apart from those that ended.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Workers on all nodes.
    pub world_size: usize,
    /// Nothing more is waited for: what is known now decides.
    pub is_final: bool,
}

/// Who caused it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Cause {
    /// This rank failed by itself.
    Failed { rank: usize },
    /// This rank ended with 0, left its group or did not come while others waited for it.
    Absent {
        /// The rank, and others that are as much to blame.
        ranks: Vec<usize>,
        /// Who waited.
        waiting: usize,
        /// What that one had found out.
        kind: BlameKind,
        /// In what it waited.
        operation: Option<String>,
    },
    /// Ranks called different things; nobody knows which of them is right.
    Disagreement {
        /// Those that are named; may be empty.
        ranks: Vec<usize>,
        /// Whose text says so.
        noticed_by: usize,
    },
    /// All that failed did so because of others.
    Unknown {
        /// Those that failed.
        consequences: Vec<usize>,
    },
}

impl Cause {
    /// The rank to look at first, if there is one.
    pub fn rank(&self) -> Option<usize> {
        match self {
            Cause::Failed { rank } => Some(*rank),
            Cause::Absent { ranks, .. } | Cause::Disagreement { ranks, .. } => ranks.first().copied(),
            Cause::Unknown { .. } => None,
        }
    }
}

/// Who caused the end of a round in which these have ended; `None` to wait for more, or where nobody failed.
pub fn root_cause(ends: &[WorkerEnd], round: Round) -> Option<Cause> {
    let is_final = round.is_final || ends.len() >= round.world_size;
    let failed = || ends.iter().filter(|end| !end.success);
    let mut by_themselves: Vec<&WorkerEnd> = failed().filter(|end| !end.after_stop).collect();
    by_themselves.sort_by(|a, b| a.time.total_cmp(&b.time).then(a.rank.cmp(&b.rank)));
    if let Some(own) = by_themselves.iter().find(|end| end.blame.is_none()) {
        return Some(Cause::Failed { rank: own.rank });
    }
    let consequences: Vec<(usize, &Blame)> =
        by_themselves.iter().filter_map(|end| Some((end.rank, end.blame.as_ref()?))).collect();
    if consequences.is_empty() {
        // All were told to end, for a reason outside of this node's workers. Those that the launcher ended are no cause.
        let first = failed().filter(|end| !end.stopped).min_by(|a, b| a.time.total_cmp(&b.time));
        return first.filter(|_| is_final).map(|end| Cause::Failed { rank: end.rank });
    }
    if let Some((rank, blame)) = consequences.iter().find(|(_, blame)| blame.kind == BlameKind::Disagreement) {
        return Some(Cause::Disagreement { ranks: blame.ranks.clone(), noticed_by: *rank });
    }
    let unknown = || Cause::Unknown { consequences: consequences.iter().map(|(rank, _)| *rank).collect() };
    let named = consequences.iter().any(|(_, blame)| !blame.ranks.is_empty());
    let suspects = if named { blamed(&consequences) } else { without_blame(&consequences, round.world_size) };
    let Some((waiting, blame)) = suspects.values().next().copied().filter(|_| named || suspects.len() == 1) else {
        return is_final.then(unknown);
    };
    // A rank that was lost ends any moment, and its own exception is worth a moment. One that does not come may never end;
    // but where it is not named, it may turn out to wait for others itself.
    let has_ended = |rank: &usize| ends.iter().any(|end| end.rank == *rank);
    let certain = suspects.keys().all(has_ended) || named && blame.kind == BlameKind::Late;
    let mut ranks: Vec<usize> = suspects.keys().copied().collect();
    ranks.sort_by_key(|rank| !has_ended(rank));
    let cause = Cause::Absent { ranks, waiting, kind: blame.kind, operation: blame.operation.clone() };
    (certain || is_final).then_some(cause)
}

/// Where texts that name ranks lead to: those that are no consequences themselves, with who blames them.
fn blamed<'a>(consequences: &[(usize, &'a Blame)]) -> BTreeMap<usize, (usize, &'a Blame)> {
    let is_consequence = |rank: &usize| consequences.iter().any(|(other, _)| other == rank);
    let mut found = BTreeMap::new();
    for (rank, blame) in consequences {
        for blamed in blame.ranks.iter().filter(|blamed| !is_consequence(blamed)) {
            found.entry(*blamed).or_insert((*rank, *blame));
        }
    }
    found
}

/// Where texts name nobody: all that are no consequences.
fn without_blame<'a>(consequences: &[(usize, &'a Blame)], world_size: usize) -> BTreeMap<usize, (usize, &'a Blame)> {
    let Some(first) = consequences.first().copied() else { return BTreeMap::new() };
    let is_consequence = |rank: &usize| consequences.iter().any(|(other, _)| other == rank);
    (0..world_size).filter(|rank| !is_consequence(rank)).map(|rank| (rank, first)).collect()
}

#[cfg(test)]
mod tests;
