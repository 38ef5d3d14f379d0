//! A group's side of the flight recorder: what is written down of its operations, if anything.

use std::sync::Arc;

use instep_recorder::{Class, Entry, GroupRecorder, Started};

use crate::Error;
use crate::call::{Call, Kind};
use crate::ticket::Ticket;

/// The recorder of a group. Without one, all of this does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlightRecorder(pub(crate) Option<Arc<GroupRecorder>>);

impl FlightRecorder {
    pub(crate) fn connected(&self, rank: usize, world: usize, generation: u64) {
        if let Some(recorder) = &self.0 {
            recorder.connected(rank, world, generation);
        }
    }

    /// An operation waits for its turn.
    pub(crate) fn submitted(&self, call: &Call) -> Option<Entry> {
        Some(self.0.as_ref()?.submitted(&described(call)))
    }

    /// An operation begins at once.
    pub(crate) fn begun(&self, call: &Call) -> Option<Entry> {
        Some(self.0.as_ref()?.begun(&described(call)))
    }

    pub(crate) fn started(&self, entry: Option<&mut Entry>) {
        if let (Some(recorder), Some(entry)) = (&self.0, entry) {
            recorder.started(entry);
        }
    }

    pub(crate) fn ended(&self, entry: Option<&Entry>, well: bool) {
        if let (Some(recorder), Some(entry)) = (&self.0, entry) {
            recorder.ended(*entry, well);
        }
    }

    /// A message that begins now, and ends with the ticket that `start` gives.
    pub(crate) fn message(&self, call: &Call, start: impl FnOnce() -> Result<Ticket, Error>) -> Result<Ticket, Error> {
        let Some(recorder) = &self.0 else { return start() };
        let entry = recorder.begun(&described(call));
        let ticket = start().inspect_err(|_| recorder.ended(entry, false))?;
        let recorder = Arc::clone(recorder);
        ticket.when_finished(move |result| recorder.ended(entry, result.is_ok()));
        Ok(ticket)
    }
}

fn described(call: &Call) -> Started<'static> {
    let class = match call.kind {
        Kind::Send => Class::Send,
        Kind::Receive => Class::Receive,
        _ => Class::Collective,
    };
    let (peer, tag) = (call.root.and_then(|root| u32::try_from(root.0).ok()), call.tag().unwrap_or(0));
    let (name, dtype, bytes) = (call.kind.name(), call.dtype.name(), call.count * call.dtype.size() as u64);
    Started { class, name, dtype, bytes, peer, tag }
}
