//! What an experiment needs of a search: events in, actions out, and a state that can be stored.
//!
//! A trait, so that the lifecycle can be tested with a search that does exactly what a test wants.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::search::{Action, Event, Search, SearchError};

/// Decides which trials there are.
pub trait Searcher: Serialize + DeserializeOwned {
    /// Why it cannot go on; the experiment ends with it.
    type Error: std::fmt::Display;

    /// Takes an event and says what follows from it.
    fn on(&mut self, event: Event) -> Result<Vec<Action>, Self::Error>;
}

impl Searcher for Search {
    type Error = SearchError;

    fn on(&mut self, event: Event) -> Result<Vec<Action>, SearchError> {
        Search::on(self, event)
    }
}
