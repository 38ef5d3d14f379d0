//! What happens when a rank is lost and its peers are to keep their step: `--recover step`.
//!
//! One [`Recovery`] lives in the coordinator beside [`crate::membership`], for one round. Launchers tell it which of their
//! workers ended ([`Loss`]), the coordinator which nodes are gone ([`NodeLoss`]); it answers with a [`Decision`]. A
//! *generation* is one composition of the ranks inside a round: generation 0 has the processes that the round started with,
//! and every loss that is replaced begins the next one, in which the lost ranks have new processes (their next
//! *incarnation*) and all others keep theirs. When the ranks have met in a generation and agreed on a step they say so
//! ([`Recovery::resumed`]).
//!
//! Rules, in the order in which they are looked at:
//!
//! 1. A rank that failed by its own error twice in one step ends the job: a bug is not a fault. Signals, which mostly come
//!    from outside, may end a rank [`MAX_SIGNALS`] times in one step. Which step that was the rank says before it fails, or
//!    it is known when the ranks resume; until then all losses of a rank count as losses in one step. What the script does
//!    wrong on every rank and every time ends the job at once (module `script`).
//! 2. All restart where a replacement cannot help: it could not be started; some rank has finished, and would be missing;
//!    no rank with the state of the step is left; a surviving rank has no session that waits for generations; or the other
//!    nodes have too few spares for the ranks of a lost one. So they do when a rank says that it cannot recover.
//! 3. Else the lost ranks are replaced, those that are lost together in one generation: on their own node, or if that is
//!    lost, on others, also such as joined while the round ran (module `placement`). A loss while a recovery is under way begins the next generation.
//!
//! Invariant, beside M1–M6 of membership and cited by the simulation in `tests/integration`:
//!
//! - M7: at most one process takes part in a generation for each logical rank. Each incarnation is ordered once, of one
//!   launcher: after the one that has the rank said that its process ended, or was lost. On a node that is only silent, the
//!   old process may live for a moment; it belongs to an earlier generation, in which nobody is left to meet.
//!
//! Deliberately absent: steps and their state, which are the ranks' own; who is a node of the job, which is membership's.

mod faults;
mod placement;
mod script;

use std::collections::{BTreeMap, BTreeSet};

use faults::Faults;
use placement::Placement;
pub use placement::RoundNode;

use crate::membership::NodeId;

/// How often signals may end a rank in one step.
pub const MAX_SIGNALS: u32 = 5;
/// How often a rank may fail by its own error in one step.
const MAX_OWN_ERRORS: u32 = 1;

/// How a worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// A signal ended it.
    Signal,
    /// It ended by itself, with an exit code or an exception.
    OwnError,
    /// It was to replace another, and could not be started.
    NotStarted,
    /// Its node was lost.
    WithNode,
}

/// A worker that ended and should not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Its logical rank.
    pub rank: usize,
    /// Which of the rank's processes it was, counted from 0.
    pub incarnation: u32,
    /// How it was lost.
    pub kind: LossKind,
    /// What happened, for people: "rank 3 on a was killed by SIGKILL".
    pub cause: String,
}

/// A node that is gone, with all of its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLoss {
    /// Which.
    pub node: NodeId,
    /// What happened, for people: "node a (pid 3) was lost: its connection broke".
    pub cause: String,
}

/// What follows a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Decision {
    /// These ranks get new processes, all others keep theirs.
    Replace {
        generation: u64,
        /// The ranks lost, and the incarnation that each gets.
        incarnations: BTreeMap<usize, u32>,
        /// Those of them that another node starts from now on, and which.
        moved: BTreeMap<usize, NodeId>,
        /// Why, for people.
        reason: String,
    },
    /// All workers of the round end, and start again if there are restarts left.
    RestartAll {
        /// The generation that will not be.
        generation: u64,
        /// Why, for people.
        reason: String,
    },
    /// The job fails: to start again would not help.
    End {
        /// The rank that failed.
        rank: usize,
        /// Why, for people.
        reason: String,
    },
}

/// The decisions about one round. See the module documentation.
#[derive(Debug)]
pub struct Recovery {
    /// By rank: which of its processes is the newest.
    incarnations: Vec<u32>,
    placement: Placement,
    generation: u64,
    /// The newest generation in which the ranks have resumed.
    resumed: u64,
    /// Ranks that have the state of the step: neither lost nor replaced since the ranks last resumed.
    intact: BTreeSet<usize>,
    finished: BTreeSet<usize>,
    faults: BTreeMap<usize, Faults>,
    /// Why there is a newest generation, for people.
    cause: String,
    /// Nothing follows.
    over: bool,
}

impl Recovery {
    /// A round of these nodes, in order of group rank, whose ranks have just started.
    pub fn new(nodes: &[RoundNode]) -> Recovery {
        let world_size = nodes.iter().map(|node| node.ranks.len()).sum();
        Recovery {
            incarnations: vec![0; world_size],
            placement: Placement::new(nodes),
            generation: 0,
            resumed: 0,
            intact: (0..world_size).collect(),
            finished: BTreeSet::new(),
            faults: BTreeMap::new(),
            cause: String::new(),
            over: false,
        }
    }

    /// The newest generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Generations of which it is not known whether the ranks resumed.
    pub fn unresumed(&self) -> std::ops::RangeInclusive<u64> {
        self.resumed + 1..=self.generation
    }

    /// Every rank that has been replaced, with its newest incarnation.
    pub fn incarnations(&self) -> BTreeMap<usize, u32> {
        self.incarnations.iter().copied().enumerate().filter(|(_, incarnation)| *incarnation > 0).collect()
    }

    /// Whether ranks of this round may run on a node.
    pub fn has_node(&self, node: NodeId) -> bool {
        self.placement.has(node)
    }

    /// These nodes have no ranks and wait, as of now; so many of them may become nodes of the round when ranks of lost nodes
    /// find no other place.
    pub fn stand_by(&mut self, standbys: &[RoundNode], most: usize) {
        self.placement.stand_by(standbys, most);
    }

    /// A rank has ended with 0. If that was before it heard of a generation that is under way, that one never meets.
    pub fn finished(&mut self, rank: usize) -> Option<Decision> {
        self.finished.insert(rank);
        if self.over || self.unresumed().is_empty() {
            return None;
        }
        self.over = true;
        let reason = format!("{}: {}", self.cause, finished_already(rank));
        Some(Decision::RestartAll { generation: self.generation + 1, reason })
    }

    /// Ranks and nodes were lost, all at the same moment. `has_session` tells of a rank whether its script waits for
    /// generations.
    pub fn lost(
        &mut self,
        losses: &[Loss],
        nodes: &[NodeLoss],
        has_session: impl Fn(usize) -> bool,
    ) -> Option<Decision> {
        let is_news = |loss: &Loss| self.incarnations.get(loss.rank) == Some(&loss.incarnation);
        let mut losses: Vec<Loss> = losses.iter().filter(|loss| is_news(loss)).cloned().collect();
        for NodeLoss { node, cause } in nodes {
            losses.extend(self.losses_with(*node, cause));
            self.placement.forget(*node);
        }
        let first = losses.first().filter(|_| !self.over)?;
        for loss in &losses {
            self.intact.remove(&loss.rank);
            self.faults.entry(loss.rank).or_default().lost(loss);
        }
        let generation = self.generation + 1;
        let lost: BTreeSet<usize> = losses.iter().map(|loss| loss.rank).collect();
        if let Some(end) = self.ending_fault(&lost) {
            return Some(end);
        }
        let moved = match self.objection(&losses, &lost, has_session) {
            None => self.placement.settle(&lost).map_err(without_spares),
            Some(why) => Err(why),
        };
        let moved = match moved {
            Ok(moved) => moved,
            Err(why) => {
                self.over = true;
                return Some(Decision::RestartAll { generation, reason: format!("{}: {why}", first.cause) });
            }
        };
        self.generation = generation;
        let mut incarnations = BTreeMap::new();
        for rank in lost {
            if let Some(incarnation) = self.incarnations.get_mut(rank) {
                *incarnation += 1;
                incarnations.insert(rank, *incarnation);
            }
        }
        let mut causes: Vec<&str> = losses.iter().map(|loss| loss.cause.as_str()).collect();
        causes.dedup();
        self.cause = causes.join("; ");
        Some(Decision::Replace { generation, incarnations, moved, reason: self.cause.clone() })
    }

    /// What the loss of a node means: of every rank it has and that has not finished.
    fn losses_with(&self, node: NodeId, cause: &str) -> Vec<Loss> {
        let ranks =
            self.placement.ranks_on(node).filter(|rank| self.placement.has(node) && !self.finished.contains(rank));
        let kind = LossKind::WithNode;
        let loss = |rank| Loss { rank, incarnation: self.incarnations[rank], kind, cause: cause.to_owned() };
        ranks.map(loss).collect()
    }

    /// The ranks of a generation have met, and do this step next. The job ends if that shows a rank to fail in it always.
    pub fn resumed(&mut self, generation: u64, step: u64) -> Option<Decision> {
        if self.over || !self.unresumed().contains(&generation) {
            return None;
        }
        self.resumed = generation;
        if generation == self.generation {
            self.intact = (0..self.incarnations.len()).collect();
        }
        self.faults.values_mut().for_each(|faults| faults.resumed(step));
        let all = self.faults.keys().copied().collect();
        self.ending_fault(&all)
    }

    /// Rule 1.
    fn ending_fault(&mut self, ranks: &BTreeSet<usize>) -> Option<Decision> {
        let (rank, reason) = ranks.iter().find_map(|rank| Some((*rank, self.faults.get(rank)?.refusal(*rank)?)))?;
        self.over = true;
        Some(Decision::End { rank, reason })
    }

    /// Rule 2: why a replacement cannot help.
    fn objection(
        &self,
        losses: &[Loss],
        lost: &BTreeSet<usize>,
        has_session: impl Fn(usize) -> bool,
    ) -> Option<String> {
        if losses.iter().any(|loss| loss.kind == LossKind::NotStarted) {
            return Some("its replacement could not be started, so all workers restart".to_owned());
        }
        if let Some(rank) = self.finished.first() {
            return Some(finished_already(*rank));
        }
        if self.intact.is_empty() {
            return Some("no rank with the state of the step is left, so all workers restart".to_owned());
        }
        // A replacement meets the others in whichever generation is the newest when it has started.
        let waits = |rank: &usize| lost.contains(rank) || self.incarnations[*rank] > 0 || has_session(*rank);
        let without = (0..self.incarnations.len()).find(|rank| !waits(rank))?;
        Some(format!("rank {without} has no instep.elastic.Session, so all workers restart"))
    }
}

fn without_spares(short: usize) -> String {
    let plural = if short == 1 { "" } else { "s" };
    format!("the other nodes are {short} spare{plural} short (--spares), so all workers restart")
}

fn finished_already(rank: usize) -> String {
    format!("rank {rank} has already finished, so all workers restart")
}

#[cfg(test)]
mod tests;
