//! What all connections together may use up, and who has to go when it is passed: whoever uses most of it. Whoever speaks
//! next may be a rank that has asked for little.

use std::net::SocketAddr;

use super::EventLoop;
use crate::connection::{Connection, Role};
use crate::notice::Notice;
use crate::protocol::{Limits, Violation};
use crate::state::ClientId;

/// Files that the process needs for other things: what its connections must leave it, at most a quarter of all.
const FILES_FOR_OTHERS: usize = 256;
/// What is unread is counted again after this part of its limit at the earliest.
const RECOUNT_PART: usize = 16;

impl EventLoop {
    /// Makes room for a connection: closes the one that has taken longest to say what it is. False if all have said it.
    pub(super) fn close_undecided(&mut self) -> bool {
        while let Some((_, client)) = self.openings.pop_front() {
            let undecided = self.connections.get(&client).filter(|connection| connection.role == Role::Unknown);
            if let Some(peer) = undecided.map(|connection| connection.peer) {
                self.notify(self.too_many_connections(peer));
                self.remove(client);
                return true;
            }
        }
        false
    }

    pub(super) fn too_many_connections(&self, peer: SocketAddr) -> Notice {
        Notice::TooManyConnections { peer, limit: self.limits.connections, by_file_limit: self.by_file_limit }
    }

    /// Bounds what has arrived of requests that are not complete.
    pub(super) fn bound_incomplete(&mut self) {
        let (limit, now) = (self.limits.incomplete, self.now);
        // Requests of ranks are large or slow at times, but hardly both.
        let kept = |connection: &Connection| {
            let since = connection.input_since.unwrap_or(now);
            connection.incomplete() as u128 * (1 + now.saturating_duration_since(since).as_micros())
        };
        while self.incomplete > limit {
            let most = self.connections.iter().max_by_key(|(_, connection)| kept(connection));
            let Some(client) = most.map(|(client, _)| *client) else { return };
            self.disconnect_hoarder(client, Violation::TooMuchIncomplete { limit });
        }
    }

    /// Bounds the memory of what is not written yet. What has been replied since it was counted bounds how much more it can be.
    pub(super) fn bound_unread(&mut self) {
        let limit = self.limits.unread;
        while self.replied >= self.recount_at {
            let (mut all, mut most) = (0, None);
            for (client, connection) in &self.connections {
                let memory = connection.output.memory();
                all += memory;
                most = most.max(Some((memory, *client)));
            }
            match most {
                Some((_, client)) if all > limit => {
                    self.disconnect_hoarder(client, Violation::TooMuchUnread { limit });
                }
                _ => {
                    self.recount_at = self.replied + (limit - all).max(limit / RECOUNT_PART).max(1) as u64;
                }
            }
        }
    }

    fn disconnect_hoarder(&mut self, client: ClientId, reason: Violation) {
        if let Some(peer) = self.connections.get(&client).map(|connection| connection.peer) {
            self.notify(Notice::Violation { peer, reason });
            self.connection_lost(client);
        }
    }
}

/// As many connections as are allowed, and fewer where the process may open fewer files.
pub(super) fn connections_within(limits: Limits, file_limit: u64) -> Limits {
    let files = usize::try_from(file_limit).unwrap_or(usize::MAX);
    Limits { connections: limits.connections.min(files - FILES_FOR_OTHERS.min(files / 4)), ..limits }
}
