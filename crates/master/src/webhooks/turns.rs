//! Which events are told next: webhooks take turns, so that a receiver that does not answer holds nobody else back.

use std::collections::{BTreeMap, BTreeSet};

use instep_database::DueEvent;

/// Events of one webhook that are told at the same time.
pub(super) const EACH: usize = 2;
/// Events that are told at the same time.
const AT_ONCE: usize = 32;

/// What is being told, and which webhook had its turn when.
#[derive(Debug, Default)]
pub(super) struct Turns {
    told: BTreeMap<i64, i64>,
    /// The number of the last turn of each webhook.
    last: BTreeMap<i64, u64>,
    turn: u64,
}

impl Turns {
    /// Begins with as many of the events that are due as there is room for: of those webhooks first that had no turn for
    /// the longest time.
    pub(super) fn begin(&mut self, due: &[DueEvent]) -> Vec<i64> {
        // Who has nothing to be told needs no place in the order.
        let waiting: BTreeSet<i64> = due.iter().map(|event| event.webhook).collect();
        self.last.retain(|webhook, _| waiting.contains(webhook));
        let mut begun = Vec::new();
        while self.told.len() < AT_ONCE {
            let may = |event: &&DueEvent| {
                !self.told.contains_key(&event.id)
                    && self.told.values().filter(|webhook| **webhook == event.webhook).count() < EACH
            };
            let next = due.iter().filter(may).min_by_key(|event| self.last.get(&event.webhook).copied());
            let Some(DueEvent { id, webhook }) = next else { break };
            self.turn += 1;
            self.last.insert(*webhook, self.turn);
            self.told.insert(*id, *webhook);
            begun.push(*id);
        }
        begun
    }

    /// An event was told, or will be tried again.
    pub(super) fn end(&mut self, event: i64) {
        self.told.remove(&event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(events: &[(i64, i64)]) -> Vec<DueEvent> {
        events.iter().map(|(id, webhook)| DueEvent { id: *id, webhook: *webhook }).collect()
    }

    #[test]
    fn a_webhook_has_two_places_at_most() {
        let mut turns = Turns::default();
        let all = due(&[(1, 7), (2, 7), (3, 7), (4, 8)]);
        assert_eq!(turns.begin(&all), [1, 4, 2]);
        assert_eq!(turns.begin(&all), Vec::<i64>::new(), "the third waits for one of the first two");
        turns.end(1);
        assert_eq!(turns.begin(&all[1..]), [3]);
    }

    #[test]
    fn who_was_told_last_comes_last() {
        let mut turns = Turns::default();
        // Many webhooks that never answer, all with older events than the one that comes later.
        let slow: Vec<(i64, i64)> = (0..100).map(|number| (number, number)).collect();
        assert_eq!(turns.begin(&due(&slow)).len(), AT_ONCE);
        let mut all = due(&slow);
        all.push(DueEvent { id: 1000, webhook: 1000 });
        turns.begin(&all);
        for _ in 0..100 {
            let event = *turns.told.keys().next().unwrap();
            if event == 1000 {
                return;
            }
            turns.end(event);
            turns.begin(&all);
            if turns.told.contains_key(&1000) {
                return;
            }
        }
        panic!("it has no turn among {:?}", turns.told);
    }
}
