//! What the post decides about memory: copies, large messages read where they lie, and the end of a send or receive.
#![expect(unsafe_code, reason = "copies to and from memory that callers vouch for")]

use super::{Carrier, End};
use crate::Rank;
use crate::arena::remote;
use crate::mail::post::{Action, Id};
use crate::mail::{MOST_PENDING, Task};
use crate::queue::lock;
use crate::ticket::Output;

/// Bytes read out of a peer's memory between two looks at the group's fate.
const FETCH_BYTES: usize = 16 << 20;

impl Carrier {
    pub(super) fn perform(&mut self, action: Action) -> Result<(), End> {
        match action {
            Action::Write { to, frame, offset } => self.routes[to].queue.push_back((frame, offset)),
            Action::Finish { id, source } => self.finish(id, source),
            Action::Copy { send, receive } => {
                let (from, bytes) = self.source(send);
                let to = self.target(receive);
                // SAFETY: both operations are under way and, as the post compared, of the same size.
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
                // SAFETY: the receive is under way and, as the post compared, of this size.
                unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr(), to, memory.len()) };
            }
            Action::Forget { held } => drop(self.held.remove(&held)),
            Action::Fetch { from, message, pointer, receive } => self.fetch(from, message, pointer, receive)?,
            Action::Reach { peer } => self.reach(peer)?,
        }
        Ok(())
    }

    pub(super) fn source(&self, send: Id) -> (*const u8, usize) {
        match self.errands.get(&send).map(|errand| &errand.task) {
            Some(Task::Send { source, .. }) => (source.pointer, source.bytes),
            _ => unreachable!("the post speaks of sends under way"),
        }
    }

    /// Where a receive wants its bytes; from now on they may be there.
    pub(super) fn target(&mut self, receive: Id) -> *mut u8 {
        let errand = self.errands.get_mut(&receive).expect("the post speaks of receives under way");
        errand.touched = true;
        match &errand.task {
            Task::Receive { target, .. } => target.pointer,
            Task::Send { .. } => unreachable!("the post speaks of receives"),
        }
    }

    fn finish(&mut self, id: Id, source: Option<usize>) {
        let Some(errand) = self.errands.remove(&id) else { return };
        self.deadlines.remove(&(errand.deadline, id));
        {
            let mut inbox = lock(&self.shared.inbox);
            inbox.pending = inbox.pending.saturating_sub(1);
            if inbox.pending + 1 >= MOST_PENDING {
                self.shared.room.notify_all();
            }
        }
        errand.ticket.finish_from(Ok(()), Output::Complete, source.map(Rank));
    }

    /// Reads a large message where it lies.
    ///
    /// A sender that fails writes the group's verdict before it gives its memory back. So if there is no verdict after the
    /// reading, what was read was the message.
    fn fetch(&mut self, from: usize, message: u64, pointer: u64, receive: Id) -> Result<(), End> {
        let process = self.links.values().find(|link| link.peer == Some(from)).map_or(0, |link| link.process);
        let bytes = self.post.pending(receive).map_or(0, |pending| pending.bytes);
        let to = self.target(receive);
        let mut done = 0;
        while done < bytes && process > 0 {
            let length = (bytes - done).min(FETCH_BYTES);
            // SAFETY: the receive is under way and has room for all bytes; the kernel checks the peer's side.
            let read = unsafe { remote::read(process, pointer + done as u64, to.wrapping_add(done), length) };
            self.look_for_verdict()?;
            if read.is_err() {
                break;
            }
            done += length;
        }
        self.post.fetched(from, message, receive, done == bytes);
        Ok(())
    }
}
