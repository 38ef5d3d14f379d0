//! What the matching decides about memory: copies, large messages read where they lie, and the end of a send or receive.
#![expect(unsafe_code, reason = "copies to and from memory that callers vouch for")]

use super::{ProgressEnd, ProgressThread};
use crate::Rank;
use crate::p2p::matching::{Action, Id};
use crate::p2p::request::{MAX_PENDING, RequestKind};
use crate::shm::remote;
use crate::sync::lock;
use crate::ticket::Output;

/// Bytes read out of a peer's memory between two looks whether the group is aborted.
const FETCH_BYTES: usize = 64 << 20;

impl ProgressThread {
    pub(super) fn perform(&mut self, action: Action) -> Result<(), ProgressEnd> {
        match action {
            Action::Write { to, frame, offset } => self.peers[to.0].queue.push_back((frame, offset)),
            Action::Finish { id, source } => self.finish(id, source),
            Action::Copy { send, receive } => {
                let (from, bytes) = self.source(send);
                let to = self.target(receive);
                // SAFETY: both operations are under way and, as the matching compared, of the same size.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            Action::Keep { send, held } => {
                let (from, bytes) = self.source(send);
                let mut memory = vec![0; bytes];
                // SAFETY: the operation is under way; the memory is new.
                unsafe { std::ptr::copy_nonoverlapping(from, memory.as_mut_ptr(), bytes) };
                self.held.insert(held, memory);
            }
            Action::Deliver { held, receive } => {
                let memory = self.held.remove(&held).unwrap_or_default();
                let to = self.target(receive);
                // SAFETY: the receive is under way and, as the matching compared, of this size.
                unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr(), to, memory.len()) };
            }
            Action::Forget { held } => drop(self.held.remove(&held)),
            Action::Fetch { from, message, pointer, receive } => self.fetch(from, message, pointer, receive)?,
            Action::Reach { peer } => self.reach(peer)?,
        }
        Ok(())
    }

    pub(super) fn source(&self, send: Id) -> (*const u8, usize) {
        match self.requests.get(&send).map(|request| &request.kind) {
            Some(RequestKind::Send { source, .. }) => (source.pointer, source.bytes),
            _ => unreachable!("the matching speaks of sends under way"),
        }
    }

    /// Where a receive wants its bytes; from now on they may be there.
    pub(super) fn target(&mut self, receive: Id) -> *mut u8 {
        let request = self.requests.get_mut(&receive).expect("the matching speaks of receives under way");
        request.touched = true;
        match &request.kind {
            RequestKind::Receive { target, .. } => target.pointer,
            RequestKind::Send { .. } => unreachable!("the matching speaks of receives"),
        }
    }

    fn finish(&mut self, id: Id, source: Option<Rank>) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.deadlines.remove(&(request.deadline, id));
        {
            let mut inbox = lock(&self.shared.inbox);
            inbox.pending = inbox.pending.saturating_sub(1);
            if inbox.pending + 1 >= MAX_PENDING {
                self.shared.room.notify_all();
            }
        }
        request.ticket.finish_from(Ok(()), Output::Complete, source);
    }

    /// Reads a large message where it lies.
    ///
    /// A sender that fails aborts the group before it gives its memory back. So if the group is not aborted after the
    /// reading, what was read was the message.
    fn fetch(&mut self, from: Rank, message: u64, pointer: u64, receive: Id) -> Result<(), ProgressEnd> {
        let process = self.links.values().find(|link| link.peer == Some(from)).map_or(0, |link| link.process);
        let bytes = self.matching.pending(receive).map_or(0, |pending| pending.bytes);
        let to = self.target(receive);
        let mut done = 0;
        while done < bytes && process > 0 {
            let length = (bytes - done).min(FETCH_BYTES);
            // SAFETY: the receive is under way and has room for all bytes; the kernel checks the peer's side.
            let read =
                unsafe { remote::read_in_parallel(process, pointer + done as u64, to.wrapping_add(done), length) };
            self.check_abort()?;
            if read.is_err() {
                break;
            }
            done += length;
        }
        self.matching.fetched(from, message, receive, done == bytes);
        Ok(())
    }
}
