//! The machines of the simulation: what really runs where, whatever the master believes.

use std::collections::BTreeMap;

pub const SECOND: i64 = 1_000_000;
/// How long an agent without a connection lets its work run.
pub const WINDOW: i64 = 25 * SECOND;
/// When the master gives up the work of an agent that is away: later.
pub const GIVEN_UP: i64 = 40 * SECOND;

/// What really runs.
#[derive(Debug, Default)]
pub struct Machines {
    /// By machine and slot: the allocation.
    busy: BTreeMap<(String, u32), String>,
    /// By allocation and rank: the machine and its slots.
    shares: BTreeMap<(String, usize), (String, Vec<u32>)>,
}

impl Machines {
    /// A share begins to run. Nothing else may be on its slots.
    pub fn begin(&mut self, seed: u64, allocation: &str, rank: usize, agent: &str, slots: &[u32]) {
        let trial = trial_of(allocation);
        for (other, _) in self.shares.keys() {
            assert!(
                other == allocation || trial_of(other) != trial,
                "SEED={seed}: {trial} runs twice: {other}, {allocation}"
            );
        }
        for slot in slots {
            let before = self.busy.insert((agent.to_owned(), *slot), allocation.to_owned());
            assert_eq!(before, None, "SEED={seed}: slot {slot} of {agent} is given to {allocation} as well");
        }
        self.shares.insert((allocation.to_owned(), rank), (agent.to_owned(), slots.to_vec()));
    }

    /// A share has ended. False if it had before.
    pub fn end(&mut self, allocation: &str, rank: usize) -> bool {
        let Some((agent, slots)) = self.shares.remove(&(allocation.to_owned(), rank)) else { return false };
        for slot in slots {
            self.busy.remove(&(agent.clone(), slot));
        }
        true
    }

    /// Which shares run on a machine.
    pub fn on(&self, agent: &str) -> Vec<(String, usize)> {
        self.shares
            .iter()
            .filter(|(_, (where_it_is, _))| where_it_is == agent)
            .map(|(share, _)| share.clone())
            .collect()
    }

    pub fn is_idle(&self) -> bool {
        self.shares.is_empty() && self.busy.is_empty()
    }
}

/// `<experiment>.<request>` of `<experiment>.<request>.<run>`.
fn trial_of(allocation: &str) -> &str {
    allocation.rsplit_once('.').map_or(allocation, |(trial, _)| trial)
}
