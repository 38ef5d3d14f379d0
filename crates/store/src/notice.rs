//! What the server has to tell a person: one line each, printed by whoever started it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::protocol::Violation;

/// Something the server noticed and survived.
#[derive(Debug)]
pub enum Notice {
    /// A client of torch before 2.2 was refused: it numbers the operations differently.
    OldClient {
        /// Where it connected from.
        peer: SocketAddr,
    },
    /// Something that does not speak the store's protocol was refused: a browser, a scanner, a wrong port.
    NotAStoreClient {
        /// Where it connected from.
        peer: SocketAddr,
        /// The first bytes it sent, at most 16.
        first: Vec<u8>,
    },
    /// A store client broke the protocol and was disconnected.
    Violation {
        /// Where it connected from.
        peer: SocketAddr,
        /// What it did.
        reason: Violation,
    },
    /// The companion did not let a store request in; its client was disconnected.
    Refused {
        /// Where it connected from.
        peer: SocketAddr,
        /// What the companion said.
        reason: String,
    },
    /// A companion's connection was dropped because one direction piled up.
    Overflow {
        /// Where it connected from.
        peer: SocketAddr,
        /// Which direction, and the limit.
        reason: String,
    },
    /// A connection was closed that had not said what it is, because as many as are allowed are open.
    TooManyConnections {
        /// Where it connected from.
        peer: SocketAddr,
        /// How many are allowed.
        limit: usize,
        /// It is the limit on open files that allows no more.
        by_file_limit: bool,
    },
    /// Notices were left out, because there were too many.
    LeftOut {
        /// How many.
        count: u64,
    },
    /// A connection could not be accepted; the server tries again shortly.
    AcceptFailed {
        /// The operating system's reason, usually the limit on open files.
        cause: io::Error,
        /// Connections open at that time.
        open: usize,
    },
    /// The event loop itself failed; the server is stopping.
    LoopFailed {
        /// The operating system's reason.
        cause: io::Error,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::OldClient { peer } => write!(
                out,
                "refused {peer}: its PyTorch is older than 2.2, which speaks another store protocol; upgrade PyTorch there"
            ),
            Notice::NotAStoreClient { peer, first } => {
                write!(out, "refused {peer}: not a store client, it began with \"{}\"", first.escape_ascii())
            }
            Notice::Violation { peer, reason } => write!(out, "disconnected {peer}: {reason}"),
            Notice::Refused { peer, reason } => write!(out, "refused {peer}: {reason}"),
            Notice::Overflow { peer, reason } => write!(out, "disconnected {peer}: {reason}"),
            Notice::TooManyConnections { peer, limit, by_file_limit: false } => {
                write!(out, "refused {peer}: {limit} connections are open, which is the limit")
            }
            Notice::TooManyConnections { peer, limit, by_file_limit: true } => write!(
                out,
                "refused {peer}: {limit} connections are open, and the limit on open files allows no more; raise it \
                 (ulimit -n)"
            ),
            Notice::LeftOut { count } => write!(out, "{count} more notices of this kind were left out"),
            Notice::AcceptFailed { cause, open } => write!(
                out,
                "could not accept a connection with {open} open: {cause}; raise the limit on open files (ulimit -n)"
            ),
            Notice::LoopFailed { cause } => write!(out, "the store server stopped: {cause}"),
        }
    }
}

/// Lets some notices of each kind through a minute: strangers must not flood whoever reads them, nor hide by notices of one
/// kind what those of another kind say. What the server says of itself, it says in any case.
#[derive(Debug, Default)]
pub(crate) struct Budgets(HashMap<Discriminant<Notice>, Budget>);

impl Budgets {
    /// What is to be said now: this notice, and before it how many of its kind were left out until then.
    pub(crate) fn admit(&mut self, notice: Notice, now: Instant) -> impl Iterator<Item = Notice> {
        let (left_out, shown) = match notice {
            Notice::AcceptFailed { .. } | Notice::LoopFailed { .. } => (0, true),
            Notice::OldClient { .. }
            | Notice::NotAStoreClient { .. }
            | Notice::Violation { .. }
            | Notice::Refused { .. }
            | Notice::Overflow { .. }
            | Notice::TooManyConnections { .. }
            | Notice::LeftOut { .. } => self.0.entry(discriminant(&notice)).or_default().spend(now),
        };
        let earlier = (left_out > 0).then_some(Notice::LeftOut { count: left_out });
        earlier.into_iter().chain(shown.then_some(notice))
    }
}

#[derive(Debug, Default)]
struct Budget {
    began: Option<Instant>,
    shown: u32,
    left_out: u64,
}

impl Budget {
    const PERIOD: Duration = Duration::from_secs(60);
    const NOTICES: u32 = 32;

    /// How many were left out in the minute that is over, and whether one more is shown.
    fn spend(&mut self, now: Instant) -> (u64, bool) {
        let mut left_out = 0;
        if self.began.is_none_or(|began| now >= began + Self::PERIOD) {
            left_out = self.left_out;
            *self = Budget { began: Some(now), ..Budget::default() };
        }
        let shown = self.shown < Self::NOTICES;
        if shown {
            self.shown += 1
        } else {
            self.left_out += 1
        }
        (left_out, shown)
    }
}

#[cfg(test)]
mod tests {
    use super::{Budgets, Notice};
    use std::io;
    use std::net::SocketAddr;
    use std::time::{Duration, Instant};

    #[test]
    fn strangers_do_not_flood_the_reader() {
        let notice = || Notice::OldClient { peer: SocketAddr::from(([127, 0, 0, 1], 1)) };
        let (mut budgets, began) = (Budgets::default(), Instant::now());
        let minute: usize = (0..1000)
            .map(|step| began + Duration::from_millis(step))
            .map(|now| budgets.admit(notice(), now).count())
            .sum();
        assert_eq!(minute, 32);
        let later: Vec<String> =
            budgets.admit(notice(), began + Duration::from_secs(60)).map(|notice| notice.to_string()).collect();
        assert_eq!(later.len(), 2);
        assert_eq!(later[0], "968 more notices of this kind were left out");
    }
    #[test]
    fn notices_of_one_kind_do_not_hide_those_of_another() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let (mut budgets, now) = (Budgets::default(), Instant::now());
        let mut shown = |notice| budgets.admit(notice, now).count();
        let junk = || Notice::NotAStoreClient { peer, first: b"junk".to_vec() };
        assert_eq!((0..100).map(|_| shown(junk())).sum::<usize>(), 32);
        let full = || Notice::AcceptFailed { cause: io::ErrorKind::OutOfMemory.into(), open: 1 };
        assert_eq!((0..100).map(|_| shown(full())).sum::<usize>(), 100);
        assert_eq!(shown(Notice::Refused { peer, reason: "it wants another job".to_owned() }), 1);
        assert_eq!(shown(Notice::LoopFailed { cause: io::ErrorKind::Other.into() }), 1);
    }

    #[test]
    fn where_the_limit_on_open_files_decides_it_is_named() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let notice = |by_file_limit| Notice::TooManyConnections { peer, limit: 768, by_file_limit }.to_string();
        assert_eq!(notice(false), "refused 127.0.0.1:1: 768 connections are open, which is the limit");
        assert!(notice(true).ends_with("and the limit on open files allows no more; raise it (ulimit -n)"));
    }
}
