//! What is stored of an experiment with every event: the event itself, and the whole state machine now and then.
//!
//! A state machine grows with its trials, and an event does not. So the whole is written again only when the events since
//! would fill as much space: a search of any size costs at most twice its events. State machines are deterministic, so
//! reading the whole and letting the same happen again leads to the same place.

use instep_api::wire::Timestamp;
use instep_database::{Snapshot, StoredState};
use instep_policy::lifecycle::{Event, Experiment};
use instep_policy::search::Search;
use serde::{Deserialize, Serialize};

/// The state machine of an experiment.
pub(super) type Machine = Experiment<Search>;

/// Events of fewer bytes than this are not worth writing the whole for.
const LEAST: usize = 64 << 10;
/// More events than this are not waited for after a restart.
const MOST: usize = 20_000;

#[derive(Serialize, Deserialize)]
struct Entry {
    at: Timestamp,
    event: Event,
}

/// What happened since the whole was last stored.
#[derive(Debug)]
pub(super) struct Journal {
    /// What is not stored yet.
    new: Vec<(i64, String)>,
    next: i64,
    bytes: usize,
    count: usize,
    snapshot_bytes: usize,
    /// Something changed that no event tells.
    snapshot_wanted: bool,
}

impl Journal {
    /// Of a state machine that was never stored, or has changed without an event.
    pub(super) fn new() -> Journal {
        Journal { new: Vec::new(), next: 1, bytes: 0, count: 0, snapshot_bytes: 0, snapshot_wanted: true }
    }

    /// Reads a state machine back; `None` if it was never stored.
    pub(super) fn read(stored: &StoredState) -> Result<Option<(Machine, Journal)>, String> {
        let Some(whole) = &stored.snapshot else { return Ok(None) };
        let mut machine: Machine =
            serde_json::from_str(whole).map_err(|error| format!("its snapshot cannot be read: {error}"))?;
        let mut journal = Journal { snapshot_bytes: whole.len(), snapshot_wanted: false, ..Journal::new() };
        for (number, content) in &stored.events {
            let entry: Entry = serde_json::from_str(content)
                .map_err(|error| format!("what happened to it cannot be read (number {number}): {error}"))?;
            // What followed was stored with the event.
            machine.on(entry.event, entry.at);
            journal.next = number + 1;
            journal.bytes += content.len();
            journal.count += 1;
        }
        Ok(Some((machine, journal)))
    }

    /// Something is about to happen.
    pub(super) fn note(&mut self, event: &Event, at: Timestamp) {
        // JSON has no such numbers.
        let unsayable = matches!(event, Event::Progressed { progress, .. } if !progress.is_finite());
        if unsayable {
            self.snapshot_wanted = true;
        }
        if self.snapshot_wanted {
            return;
        }
        let entry = Entry { at, event: event.clone() };
        match serde_json::to_string(&entry) {
            Ok(text) => {
                self.bytes += text.len();
                self.count += 1;
                self.new.push((self.next, text));
                self.next += 1;
            }
            Err(_) => self.snapshot_wanted = true,
        }
    }

    /// What is to be stored now; `over` if nothing follows.
    pub(super) fn take(&mut self, machine: &Machine, over: bool) -> Snapshot {
        let full = self.bytes > self.snapshot_bytes.max(LEAST) || self.count > MOST;
        if !self.snapshot_wanted && !full && !over {
            return Snapshot::Events(std::mem::take(&mut self.new));
        }
        let whole = serde_json::to_string(machine).unwrap_or_else(|error| unreachable!("all keys are texts: {error}"));
        // Numbers go on: an event that was stored before must not be taken for a later one.
        *self = Journal { next: self.next, snapshot_bytes: whole.len(), snapshot_wanted: false, ..Journal::new() };
        Snapshot::Full(whole)
    }
}

#[cfg(test)]
mod tests {
    use instep_api::config::{ExperimentConfig, Sources};
    use instep_policy::lifecycle::{Effect, Run, Terms};
    use serde_json::json;

    use super::*;

    fn machine(trials: u32) -> Machine {
        let config = json!({
            "searcher": {"name": "random", "metric": "x", "max_trials": trials, "max_concurrent_trials": trials},
            "hyperparameters": {"rate": {"type": "double", "minval": 0, "maxval": 1}},
        });
        let config = ExperimentConfig::from_value(config, &Sources::default()).unwrap();
        let search = Search::new(&config.searcher, &config.hyperparameters, 7).unwrap();
        let terms = Terms { max_restarts: 1, preemption_timeout: std::time::Duration::from_secs(9), single: false };
        Experiment::new(1, terms, search, false)
    }

    /// Lets events happen, stores after each, and gives the bytes that were stored for the last.
    fn play(trials: u32) -> (Machine, StoredState, Vec<usize>) {
        let (mut machine, mut journal) = (machine(trials), Journal::new());
        let (mut stored, mut sizes) = (StoredState::default(), Vec::new());
        let mut waiting = vec![Event::Started];
        let mut moment = 0;
        while let Some(event) = waiting.pop() {
            moment += 1;
            journal.note(&event, Timestamp(moment));
            for effect in machine.on(event, Timestamp(moment)) {
                match effect {
                    Effect::MakeTrial { request, .. } => {
                        let trial = i32::try_from(moment).unwrap();
                        waiting.push(Event::TrialMade { request, trial });
                    }
                    Effect::Ask { run: Run { request, number }, .. } => {
                        let run = Run { request: request.clone(), number };
                        waiting.push(Event::Running { run: run.clone() });
                        waiting.push(Event::Assigned { run });
                        waiting.push(Event::Progressed { request, progress: 0.1 });
                    }
                    _ => {}
                }
            }
            match journal.take(&machine, false) {
                Snapshot::Full(text) => {
                    sizes.push(text.len());
                    stored = StoredState { snapshot: Some(text), events: Vec::new() };
                }
                Snapshot::Events(events) => {
                    sizes.push(events.iter().map(|(_, text)| text.len()).sum());
                    // Stored twice, as by a master that did not hear the first answer.
                    for event in events.iter().chain(&events) {
                        if !stored.events.contains(event) {
                            stored.events.push(event.clone());
                        }
                    }
                }
            }
            let (read, _) = Journal::read(&stored).unwrap().unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&machine).unwrap());
        }
        (machine, stored, sizes)
    }

    #[test]
    fn what_is_read_back_stands_where_the_other_does_after_every_event() {
        let (machine, stored, _) = play(20);
        assert!(!stored.events.is_empty());
        assert_eq!(machine.trials().len(), 20);
    }

    #[test]
    fn an_event_costs_the_same_however_many_trials_there_are() {
        let middle = |sizes: Vec<usize>| {
            let mut sizes = sizes;
            sizes.sort_unstable();
            sizes[sizes.len() / 2]
        };
        let (few, many) = (middle(play(5).2), middle(play(60).2));
        assert!(many < few + 50, "{few} bytes with few trials, {many} with many");
    }

    #[test]
    fn what_no_event_can_tell_is_stored_whole() {
        let mut journal = Journal::new();
        let machine = machine(1);
        assert!(matches!(journal.take(&machine, false), Snapshot::Full(_)));
        assert_eq!(journal.take(&machine, false), Snapshot::Events(Vec::new()));
        journal.note(&Event::Progressed { request: "r".to_owned(), progress: f64::NAN }, Timestamp(1));
        assert!(matches!(journal.take(&machine, false), Snapshot::Full(_)));
        assert!(matches!(journal.take(&machine, true), Snapshot::Full(_)), "the end is whole");
    }
}
