//! What the flight recorder hears of a group's operations. Without a recorder all of this does nothing.

use std::sync::Arc;

use instep_recorder::{Class, Entry, GroupRecorder, Started};

use crate::Error;
use crate::call::{Call, Kind};
use crate::ticket::Ticket;

/// Where the operations of a group are written down, if anywhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Diary(pub(crate) Option<Arc<GroupRecorder>>);

impl Diary {
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

    /// A message that begins now, and ends with the ticket that `post` gives.
    pub(crate) fn message(&self, call: &Call, post: impl FnOnce() -> Result<Ticket, Error>) -> Result<Ticket, Error> {
        let Some(recorder) = &self.0 else { return post() };
        let entry = recorder.begun(&described(call));
        let ticket = post().inspect_err(|_| recorder.ended(entry, false))?;
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
