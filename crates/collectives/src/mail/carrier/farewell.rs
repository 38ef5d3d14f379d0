//! The last words of a rank: that no more comes, or why the group is aborted.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::Carrier;
use super::peers::accept_from;
use crate::arena::verdict::Verdict;
use crate::mail::link::{Link, Writing};
use crate::mail::wire::{Frame, verdict_to_bytes};
use crate::mail::{Setup, Ways};
use crate::socket::{linger, poll_timeout, send_all};

/// How long what is written may take to leave this rank when it closes.
const GRACE: Duration = Duration::from_secs(1);
/// And when the group is aborted: how long a peer may take to read what comes before the verdict.
const VERDICT_GRACE: Duration = Duration::from_millis(200);

impl Carrier {
    /// Peers of other hosts do not see that the group is aborted: they hear why. A frame that was begun is finished first, as
    /// long as its memory is there. Returns what later callers are told.
    pub(super) fn pass_on_verdict(&mut self) -> Vec<u8> {
        let Ways::Network { .. } = self.setup.ways else { return Vec::new() };
        let mut bytes = Vec::new();
        if let Some(verdict) = self.setup.fate.verdict() {
            bytes = verdict_frame(&verdict);
            let until = Instant::now() + VERDICT_GRACE;
            for route in &mut self.routes {
                let Some(link) = route.out.and_then(|key| self.links.get_mut(&key)) else { continue };
                let begun = route.writing.take().filter(Writing::is_begun);
                if begun.is_none_or(|writing| link.write_rest(&writing, until)) {
                    send_all(link.socket(), &bytes, until);
                }
            }
        }
        linger(self.links.values().map(Link::socket));
        bytes
    }

    /// Nothing is under way: what is written goes out, and a word that no more comes.
    pub(super) fn say_goodbye(&mut self) {
        let until = Instant::now() + GRACE;
        for (peer, route) in self.routes.iter_mut().enumerate() {
            if peer != self.setup.rank && route.out.is_some() {
                route.queue.push_back((Frame::Goodbye, 0));
            }
        }
        while Instant::now() < until {
            for peer in 0..self.routes.len() {
                if self.pump(peer).is_err() {
                    return;
                }
            }
            // Peers that are gone, or do not read, get nothing more.
            let mut handles: Vec<PollFd<'_>> = Vec::new();
            for route in &self.routes {
                if let Some(link) = route.out.and_then(|key| self.links.get(&key))
                    && (route.writing.is_some() || !route.queue.is_empty())
                {
                    handles.push(PollFd::new(link.socket().as_fd(), PollFlags::POLLOUT));
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

/// Mail that was never used ends: who waits for this rank hears that it leaves.
pub(in crate::mail) fn decline(setup: Setup) {
    let goodbye = Frame::Goodbye.to_bytes();
    // Between hosts there is a thread to say it.
    if let Ways::Host(listener) = &setup.ways {
        while let Ok((caller, _)) = accept_from(listener) {
            // A caller that is gone needs no answer.
            send_all(&caller, &goodbye, Instant::now());
        }
    }
}

fn verdict_frame(verdict: &Verdict) -> Vec<u8> {
    [&Frame::Verdict.to_bytes()[..], &verdict_to_bytes(verdict)].concat()
}
