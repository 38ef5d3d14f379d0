//! What a rank sends last: that no more comes, or why the group is aborted.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::ProgressThread;
use super::peers::accept_from;
use crate::Rank;
use crate::abort::AbortReason;
use crate::p2p::config::{P2pConfig, P2pListener};
use crate::p2p::link::Link;
use crate::p2p::wire::Frame;
use crate::socket::{linger, poll_timeout, send_all};

/// How long what is written may take to leave this rank when it closes.
const GRACE: Duration = Duration::from_secs(1);
/// And when the group is aborted: how long a peer may take to read what comes before the abort reason.
const ABORT_GRACE: Duration = Duration::from_millis(200);

impl ProgressThread {
    /// Peers of other hosts do not see that the group is aborted: they are told why. A frame that was begun is finished first, as
    /// long as its memory is there. Returns what later callers are told.
    pub(super) fn broadcast_abort(&mut self) -> Vec<u8> {
        let P2pListener::Network { .. } = self.config.listener else { return Vec::new() };
        let mut bytes = Vec::new();
        if let Some(reason) = self.config.abort.abort_reason() {
            bytes = abort_frame(&reason);
            let until = Instant::now() + ABORT_GRACE;
            for state in &mut self.peers {
                let Some(link) = state.out.and_then(|key| self.links.get_mut(&key)) else { continue };
                let begun = state.writing.take().filter(|writing| link.has_begun(writing));
                if begun.is_none_or(|writing| link.write_rest(&writing, until)) {
                    link.write_last(&bytes, until);
                }
            }
        }
        linger(self.links.values().map(Link::stream));
        bytes
    }

    /// Nothing is under way: what is written goes out, and a word that no more comes.
    pub(super) fn send_goodbye(&mut self) {
        let until = Instant::now() + GRACE;
        for (peer, state) in self.peers.iter_mut().enumerate() {
            if Rank(peer) != self.config.rank && state.out.is_some() {
                state.queue.push_back((Frame::Goodbye, 0));
            }
        }
        while Instant::now() < until {
            for peer in Rank::all(self.peers.len()) {
                if self.pump(peer).is_err() {
                    return;
                }
            }
            // Peers that are gone, or do not read, get nothing more.
            let mut handles: Vec<PollFd<'_>> = Vec::new();
            for state in &self.peers {
                if let Some(link) = state.out.and_then(|key| self.links.get(&key))
                    && (state.writing.is_some() || !state.queue.is_empty())
                {
                    handles.push(PollFd::new(link.stream().as_fd(), PollFlags::POLLOUT));
                }
            }
            if handles.is_empty() {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            let _ = poll(&mut handles, poll_timeout(left));
            if handles.iter().all(|handle| {
                handle.revents().is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
            }) {
                return;
            }
        }
    }
}

/// Ends messages that were never used: who waits for this rank is told that it leaves.
pub(in crate::p2p) fn refuse_pending(config: P2pConfig) {
    let goodbye = Frame::Goodbye.to_bytes();
    // Between hosts there is a thread to say it.
    if let P2pListener::Host(listener) = &config.listener {
        while let Ok((caller, _)) = accept_from(listener) {
            // A caller that is gone needs no answer.
            send_all(&caller, &goodbye, Instant::now());
        }
    }
}

fn abort_frame(reason: &AbortReason) -> Vec<u8> {
    [&Frame::Abort.to_bytes()[..], &reason.to_bytes()].concat()
}
