//! Gangs that Kubernetes has placed in part, where no Kueue prevents it: which of them gives its nodes back, and when it
//! tries again. A pure table.
//!
//! The pods of a Job are scheduled one by one, so two gangs may hold half of the nodes each and wait for the other. After
//! some patience the youngest of them lets go, and the others get as much patience again: so the oldest gets what it needs
//! if it exists, and one that can never be complete does not keep nodes from those that can.
//!
//! A gang lets go by `spec.suspend`, upon which Kubernetes ends its pods; it keeps its name, its Secret, and its place.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two attempts, at most, without what is added at random.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// A gang, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gang {
    pub name: String,
    /// When it was created, in a form that sorts by time.
    pub created: String,
    /// How often it has let go.
    pub released: u32,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It holds nodes, and waits for more.
    Incomplete,
    /// It has let go, and none of its pods is left.
    Released,
    /// It has let go, and its pods are being ended; or it waits for its first node, or runs.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Let go, for the n-th time.
    Release { name: String, times: u32 },
    /// Try again.
    Resume { name: String },
}

/// Since when gangs have been as they are.
#[derive(Debug)]
pub(crate) struct Gangs {
    patience: Duration,
    since: BTreeMap<String, (State, Instant)>,
}

impl Gangs {
    pub(crate) fn new(patience: Duration) -> Gangs {
        Gangs { patience, since: BTreeMap::new() }
    }

    /// What is to be done about all gangs of the pool.
    pub(crate) fn decide(&mut self, gangs: &[Gang], now: Instant) -> Vec<Action> {
        let before = std::mem::take(&mut self.since);
        for gang in gangs.iter().filter(|gang| gang.state != State::Other) {
            let since =
                before.get(&gang.name).filter(|(state, _)| *state == gang.state).map_or(now, |(_, since)| *since);
            self.since.insert(gang.name.clone(), (gang.state, since));
        }
        let waited = |gang: &&Gang| self.since.get(&gang.name).map(|(_, since)| now.duration_since(*since));
        let mut actions = Vec::new();
        let again = gangs.iter().filter(|gang| gang.state == State::Released);
        let again = again.filter(|gang| waited(gang) >= Some(pause(self.patience, gang)));
        actions.extend(again.map(|gang| Action::Resume { name: gang.name.clone() }));
        let incomplete = || gangs.iter().filter(|gang| gang.state == State::Incomplete);
        if incomplete().any(|gang| waited(&gang) >= Some(self.patience))
            && let Some(youngest) = incomplete().max_by_key(|gang| (&gang.created, &gang.name))
        {
            actions.push(Action::Release { name: youngest.name.clone(), times: youngest.released + 1 });
            for gang in incomplete() {
                self.since.insert(gang.name.clone(), (State::Incomplete, now));
            }
        }
        actions
    }

    /// How long nothing has to be decided unless something changes.
    pub(crate) fn until_next(&self, now: Instant) -> Option<Duration> {
        let least = |(_, since): &(State, Instant)| self.patience.saturating_sub(now.duration_since(*since));
        self.since.values().map(least).min()
    }
}

/// How long a gang waits before it tries again: twice as long each time, and no two gangs equally long.
fn pause(patience: Duration, gang: &Gang) -> Duration {
    let doubled = patience.saturating_mul(1 << gang.released.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    let spread = gang.name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % 50;
    doubled + doubled * spread / 100
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn gang(name: &str, state: State) -> Gang {
        Gang { name: name.to_owned(), created: name.to_owned(), released: 0, state }
    }

    #[test]
    fn of_two_half_placed_gangs_the_younger_lets_go() {
        let (mut gangs, start) = (Gangs::new(PATIENCE), Instant::now());
        let both = [gang("a", State::Incomplete), gang("b", State::Incomplete)];
        assert!(gangs.decide(&both, start).is_empty());
        assert_eq!(gangs.until_next(start), Some(PATIENCE));
        let release = Action::Release { name: "b".to_owned(), times: 1 };
        assert_eq!(gangs.decide(&both, start + PATIENCE), [release]);
        let released = [gang("a", State::Incomplete), Gang { released: 1, ..gang("b", State::Released) }];
        assert!(gangs.decide(&released, start + PATIENCE * 3 / 2).is_empty(), "the older one has its time again");
        let second = gangs.decide(&released, start + PATIENCE * 2);
        assert_eq!(second, [Action::Release { name: "a".to_owned(), times: 1 }], "what never fits blocks nobody");
        let resumed = gangs.decide(&released[1..], start + PATIENCE * 3 + PATIENCE / 2);
        assert_eq!(resumed, [Action::Resume { name: "b".to_owned() }]);
    }

    #[test]
    fn a_gang_that_becomes_complete_keeps_its_nodes() {
        let (mut gangs, start) = (Gangs::new(PATIENCE), Instant::now());
        gangs.decide(&[gang("a", State::Incomplete)], start);
        assert!(gangs.decide(&[gang("a", State::Other)], start + PATIENCE / 2).is_empty());
        assert!(gangs.decide(&[gang("a", State::Incomplete)], start + PATIENCE).is_empty(), "it counts anew");
    }

    #[test]
    fn pauses_grow_and_end() {
        let after = |released| pause(PATIENCE, &Gang { released, ..gang("a", State::Released) });
        assert!(after(1) >= PATIENCE && after(2) >= 2 * PATIENCE && after(200) <= LONGEST_PAUSE * 3 / 2);
    }

    /// Nodes of one slot each; gangs ask for some, and get what is free one by one.
    fn simulate(free: usize, wants: &[usize], order: &[usize]) -> bool {
        let (mut table, start) = (Gangs::new(PATIENCE), Instant::now());
        let mut held = vec![0usize; wants.len()];
        let mut released: Vec<Option<u32>> = vec![None; wants.len()];
        let mut times = vec![0u32; wants.len()];
        let mut done = vec![false; wants.len()];
        for turn in 0..2000u32 {
            for at in order.iter().map(|at| at % wants.len()) {
                let used: usize = held.iter().sum();
                if !done[at] && released[at].is_none() && held[at] < wants[at] && used < free {
                    held[at] += 1;
                }
            }
            for at in 0..wants.len() {
                // Whoever is complete runs, and gives its nodes back.
                if held[at] == wants[at] {
                    (held[at], done[at]) = (0, true);
                }
            }
            if (0..wants.len()).all(|at| done[at] || wants[at] > free) {
                return true;
            }
            let now = start + Duration::from_secs(5) * turn;
            let state = |at: usize| match (done[at], released[at], held[at]) {
                (false, Some(_), _) => State::Released,
                (false, None, 1..) => State::Incomplete,
                _ => State::Other,
            };
            let gangs: Vec<Gang> = (0..wants.len())
                .map(|at| Gang { released: times[at], ..gang(&format!("g{at:02}"), state(at)) })
                .collect();
            for action in table.decide(&gangs, now) {
                match action {
                    Action::Release { name, times: count } => {
                        let at: usize = name[1..].parse().unwrap();
                        (held[at], released[at], times[at]) = (0, Some(count), count);
                    }
                    Action::Resume { name } => released[name[1..].parse::<usize>().unwrap()] = None,
                }
            }
        }
        false
    }

    proptest! {
        #[test]
        fn every_gang_that_fits_runs_in_the_end(
            free in 1usize..6,
            wants in prop::collection::vec(1usize..8, 1..5),
            order in prop::collection::vec(0usize..5, 20..40),
        ) {
            let order: Vec<usize> = order.into_iter().chain(0..wants.len()).collect();
            prop_assert!(simulate(free, &wants, &order));
        }
    }
}
