//! A search that does what a test wants, and counts ends as every search does.

use instep_policy::lifecycle::Searcher;
use instep_policy::search::{Action, EarlyExit, Event};
use serde::{Deserialize, Serialize};
use serde_json::Map;

/// Wants some trials at once. A trial that reports `stop` is stopped, `fail` is an error of the search, and invalid
/// hyperparameters are replaced by others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Double {
    pub at_once: usize,
    pub requested: usize,
    pub closed: usize,
    pub errored: usize,
    pub cancelled: usize,
    pub heard: Vec<String>,
}

impl Double {
    pub fn of(at_once: usize) -> Double {
        Double { at_once, requested: 0, closed: 0, errored: 0, cancelled: 0, heard: Vec::new() }
    }

    fn create(&mut self) -> Action {
        self.requested += 1;
        Action::Create {
            request: format!("r{}", self.requested),
            seed: self.requested as u32,
            hyperparameters: Map::new(),
        }
    }
}

impl Searcher for Double {
    type Error = String;

    fn on(&mut self, event: Event) -> Result<Vec<Action>, String> {
        match event {
            Event::Started => Ok((0..self.at_once).map(|_| self.create()).collect()),
            Event::TrialCreated { .. } | Event::Progressed { .. } | Event::CompletedBefore { .. } => Ok(Vec::new()),
            Event::Validated { metrics, .. } if metrics.contains_key("fail") => Err("no such metric".to_owned()),
            Event::Validated { request, metrics, .. } if metrics.contains_key("stop") => {
                Ok(vec![Action::Stop { request, reason: "it is told to".to_owned() }])
            }
            Event::Validated { .. } => Ok(Vec::new()),
            Event::ExitedEarly { request, reason } => {
                self.heard.push(format!("{request} {reason:?}"));
                match reason {
                    EarlyExit::Errored => self.errored += 1,
                    EarlyExit::UserCancelled => self.cancelled += 1,
                    EarlyExit::InvalidHyperparameters => return Ok(vec![self.create()]),
                }
                Ok(Vec::new())
            }
            Event::Exited { request } => {
                self.heard.push(format!("{request} exited"));
                self.closed += 1;
                let over = self.closed == self.requested;
                let (cancelled, failed) = (self.cancelled >= self.requested, self.errored >= self.requested);
                Ok(if over { vec![Action::Shutdown { cancelled, failed }] } else { Vec::new() })
            }
        }
    }
}
