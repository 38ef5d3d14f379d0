//! What the server has to tell a person: one line each, printed by whoever started it.

use std::fmt;
use std::io;
use std::net::SocketAddr;

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
            Notice::AcceptFailed { cause, open } => write!(
                out,
                "could not accept a connection with {open} open: {cause}; raise the limit on open files (ulimit -n)"
            ),
            Notice::LoopFailed { cause } => write!(out, "the store server stopped: {cause}"),
        }
    }
}
