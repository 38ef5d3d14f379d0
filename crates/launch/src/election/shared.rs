//! What a launcher and its own coordinator leave for each other to see: they run on different threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use instep_policy::membership::LauncherId;
use instep_policy::succession::{Claim, Place};

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Post {
    /// Where the coordinator is that this launcher follows.
    leader: Mutex<Option<Place>>,
    errands: Mutex<Option<Errands>>,
    /// Where somebody who leads said that it does, while this launcher follows nobody.
    rumour: Mutex<Option<Place>>,
    /// The newest committed round of which this launcher knows.
    round: Mutex<Option<u64>>,
}

/// What the coordinator would like to know of nodes that are not here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Errands {
    /// Who asks.
    pub(crate) claim: Claim,
    /// Whom to ask, and who is expected there.
    pub(crate) targets: Vec<(Place, Option<LauncherId>)>,
}

impl Post {
    pub(crate) fn follow(&self, leader: Option<Place>) {
        *held(&self.leader) = leader;
    }

    pub(crate) fn leader(&self) -> Option<Place> {
        held(&self.leader).clone()
    }

    pub(crate) fn know(&self, round: u64) {
        *held(&self.round) = Some(round);
    }

    pub(crate) fn round(&self) -> Option<u64> {
        *held(&self.round)
    }

    pub(crate) fn hear(&self, rumour: Place) {
        *held(&self.rumour) = Some(rumour);
    }

    pub(crate) fn rumour(&self) -> Option<Place> {
        held(&self.rumour).take()
    }

    pub(crate) fn wish(&self, errands: Option<Errands>) {
        *held(&self.errands) = errands;
    }

    pub(crate) fn errands(&self) -> Option<Errands> {
        held(&self.errands).clone()
    }
}

/// A value is replaced as a whole, so that one from before a panic is as good as any.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
