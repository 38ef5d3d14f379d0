//! What an experiment needs of a search: events in, actions out, and a state that can be stored.
//!
//! A trait, so that the lifecycle can be tested with a search that does exactly what a test wants.

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::search::{Action, EarlyExit as Early, Event};

/// Decides which trials there are.
pub trait Searcher: Serialize + DeserializeOwned {
    /// Takes an event and says what follows from it; an error ends the experiment.
    fn on(&mut self, event: Event) -> Result<Vec<Action>, String>;
}

impl Searcher for crate::search::Search {
    fn on(&mut self, event: Event) -> Result<Vec<Action>, String> {
        crate::search::Search::on(self, event).map_err(|error| error.to_string())
    }
}
