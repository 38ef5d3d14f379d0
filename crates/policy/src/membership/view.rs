//! The newest round as everybody knows it who may be alive, and who may go on when some of them are silent.
//!
//! A node whose connection broke has ended: its system said so. A node that is silent may be alive, and may see *us* as
//! silent. If both sides went on there would be two jobs. So the nodes of the newest round are counted, less those whose
//! connection broke: a side goes on if it has more than half of them, or exactly half with the first of them (the old
//! host, as long as it has not ended). Of two sides that do not see each other one at most has that, since both count the
//! same nodes of the same round, less some that have ended, which are on neither side.
//!
//! A node that fell silent and is *later* found to have ended still counts: it may have gone on with others before.
//!
//! Whoever was told to start a round and comes from there without having heard that it is committed tells of it
//! ([`Vote`]): it may be committed all the same. So it is counted only where a majority of that round is, too.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{LauncherId, NodeFacts, listed};

/// Who may go on after silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quorum {
    /// A majority of the nodes of the newest round.
    #[default]
    Majority,
    /// Any side that has the minimum of nodes: a cut may leave two jobs.
    Minimum,
}

/// A round that a node was told to start, and of which it has not heard that it is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Vote {
    pub round: u64,
    /// Who led it.
    pub host: LauncherId,
    /// That one has ended.
    pub host_ended: bool,
    /// How many nodes it has.
    pub size: usize,
    /// The first of them, in order of group rank.
    pub order: Vec<LauncherId>,
}

/// What is known of a job whose coordinator was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumption {
    /// Its newest round.
    pub round: u64,
    /// Restarts spent.
    pub restarts: u32,
    /// Membership changes so far.
    pub changes: u32,
    /// How many nodes the round had.
    pub size: usize,
    /// The first of them, in order of group rank.
    pub order: Vec<LauncherId>,
    /// The node that led it.
    pub host: LauncherId,
    /// Those that have ended.
    pub dead: Vec<LauncherId>,
    /// What happened, for people.
    pub reason: String,
}

#[derive(Debug, Clone)]
pub(super) struct RoundView {
    round: u64,
    size: usize,
    /// In order of group rank; the first ones where the round is somebody else's.
    order: Vec<LauncherId>,
    ranks: BTreeMap<LauncherId, usize>,
    host: Option<LauncherId>,
    dead: BTreeSet<LauncherId>,
    /// Found to have ended after they had fallen silent: not worth waiting for, but no less to be counted.
    found_dead: BTreeSet<LauncherId>,
    /// Who went, and how that was noticed.
    gone: BTreeMap<LauncherId, String>,
}

/// Who is there.
pub(super) struct Presence<'a> {
    launchers: BTreeMap<LauncherId, &'a NodeFacts>,
}

impl<'a> Presence<'a> {
    pub(super) fn of(nodes: impl Iterator<Item = &'a NodeFacts>) -> Presence<'a> {
        Presence { launchers: nodes.map(|facts| (facts.launcher, facts)).collect() }
    }
}

impl RoundView {
    pub(super) fn started(round: u64, launchers: &[(LauncherId, bool)]) -> RoundView {
        let order: Vec<LauncherId> = launchers.iter().map(|(launcher, _)| *launcher).collect();
        let host = launchers.iter().find(|(_, host)| *host).map(|(launcher, _)| *launcher);
        RoundView::new(round, order.len(), order, host)
    }

    pub(super) fn resumed(resumption: &Resumption) -> RoundView {
        let mut view =
            RoundView::new(resumption.round, resumption.size, resumption.order.clone(), Some(resumption.host));
        for launcher in &resumption.dead {
            let known = view.ranks.contains_key(launcher);
            if known { &mut view.dead } else { &mut view.found_dead }.insert(*launcher);
        }
        view
    }

    /// A round that others may have committed.
    pub(super) fn of_vote(vote: &Vote, ended: &BTreeSet<LauncherId>) -> RoundView {
        let mut view = RoundView::new(vote.round, vote.size, vote.order.clone(), Some(vote.host));
        let has_ended = |id: &&LauncherId| ended.contains(id) || (vote.host_ended && **id == vote.host);
        view.dead = vote.order.iter().filter(has_ended).copied().collect();
        view
    }

    pub(super) fn is_the_round_of(&self, vote: &Vote) -> bool {
        (self.round, self.host) == (vote.round, Some(vote.host))
    }

    fn new(round: u64, size: usize, order: Vec<LauncherId>, host: Option<LauncherId>) -> RoundView {
        let ranks = order.iter().enumerate().map(|(rank, launcher)| (*launcher, rank)).collect();
        RoundView {
            round,
            size,
            order,
            ranks,
            host,
            dead: BTreeSet::new(),
            found_dead: BTreeSet::new(),
            gone: BTreeMap::new(),
        }
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn precedence(&self, launcher: LauncherId) -> usize {
        self.ranks.get(&launcher).copied().unwrap_or(usize::MAX)
    }

    pub(super) fn gone(&mut self, launcher: LauncherId, how: String, silent: bool) {
        if self.ranks.contains_key(&launcher) {
            self.gone.insert(launcher, how);
            if !silent {
                self.dead.insert(launcher);
            }
        }
    }

    pub(super) fn returned(&mut self, launcher: LauncherId) {
        self.found_dead.remove(&launcher);
        self.gone.remove(&launcher);
    }

    pub(super) fn found_dead(&mut self, launcher: LauncherId) {
        self.found_dead.insert(launcher);
    }

    /// Members that are neither here nor known to have ended.
    pub(super) fn unaccounted(&self, here: &BTreeSet<LauncherId>) -> Vec<LauncherId> {
        let gone = |id: &&LauncherId| here.contains(id) || self.has_ended(**id);
        self.order.iter().filter(|id| !gone(id)).copied().collect()
    }

    /// Whether a launcher is not worth waiting for.
    pub(super) fn has_ended(&self, launcher: LauncherId) -> bool {
        self.dead.contains(&launcher) || self.found_dead.contains(&launcher)
    }

    pub(super) fn names_of_the_gone(&self) -> Option<String> {
        let names: Vec<String> = self.gone.values().cloned().collect();
        (!names.is_empty()).then(|| listed(&names))
    }

    /// Why those who are there may not go on, if so.
    pub(super) fn quorum_objection(&self, quorum: Quorum, presence: &Presence) -> Option<String> {
        if quorum == Quorum::Minimum {
            return None;
        }
        let alive = self.size.saturating_sub(self.dead.len());
        let is_member = |facts: &&&NodeFacts| {
            self.ranks.contains_key(&facts.launcher)
                || facts.last_round == Some(self.round)
                || facts.votes.iter().any(|vote| self.is_the_round_of(vote))
        };
        let present = presence.launchers.values().filter(is_member).count();
        let first = self.host.into_iter().chain(self.order.iter().copied()).find(|id| !self.dead.contains(id));
        let has_first = first.is_some_and(|first| presence.launchers.contains_key(&first));
        if 2 * present > alive || (2 * present == alive && has_first) {
            return None;
        }
        let silent = self.names_of_the_gone().map(|names| format!(" ({names})")).unwrap_or_default();
        Some(format!(
            "only {present} of the {alive} nodes of round {} that may be alive are here{silent}: the others may have \
             continued without this side, which waits for them (--rdzv-conf quorum=min lets the minimum decide)",
            self.round
        ))
    }
}
