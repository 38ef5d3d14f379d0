//! What can go wrong, as a caller can act on it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::Rank;
use crate::call::{Call, Kind};
use crate::dtype::UnsupportedReduction;
use crate::rank::join_ranks;

/// Why an operation, or the group, failed. Clones are cheap: every operation in flight gets the same reason.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "most fields say what they are")]
pub enum Error {
    /// This reduction is not defined for this type; nothing was sent.
    #[error("{0}")]
    Unsupported(UnsupportedReduction),
    /// The arguments contradict each other; nothing was sent.
    #[error("{what}")]
    Invalid { what: String },
    /// Two ranks called different operations at the same point; the group is aborted.
    #[error("rank {rank} called {call} but rank {other_rank} called {other}{}", position(call, *sequence))]
    Mismatch {
        rank: Rank,
        call: Call,
        other_rank: Rank,
        other: Call,
        /// Which operation of the group, counted from 0 since it was connected; of messages: which of the sender's.
        sequence: u64,
    },
    /// Not every rank took part in time; the group is aborted.
    #[error(
        "{call} ({} {sequence}) timed out after {timeout:?} on rank {noticed_by}: {}",
        unit(call),
        waiting_for(call, missing)
    )]
    Timeout {
        call: Call,
        sequence: u64,
        timeout: Duration,
        /// Who had not even started it; empty when all had. Of a message: who it was to come from or go to.
        missing: Vec<Rank>,
        /// Whose deadline passed first.
        noticed_by: Rank,
    },
    /// A rank is gone; the group is aborted.
    #[error(
        "lost rank {rank} on {host} during {call} ({} {sequence}): {noticed}, noticed by rank {noticed_by}",
        unit(call)
    )]
    PeerLost { rank: Rank, host: String, call: Call, sequence: u64, noticed: LossCause, noticed_by: Rank },
    /// Somebody called [`crate::Group::abort`].
    #[error("the group was aborted by rank {by}")]
    Aborted { by: Rank },
    /// The group has no peers: a reconfiguration failed and no other has succeeded since.
    #[error("the group is not connected")]
    NotConnected,
    /// [`crate::Ticket::wait`] was given less time than the operation took; it goes on.
    #[error("the operation is not finished after {waited:?}")]
    Unfinished { waited: Duration },
    /// The ranks did not come together in time.
    #[error("could not connect the group within {timeout:?}: {what}")]
    Connect {
        timeout: Duration,
        /// Who did not come, or what was received instead.
        what: String,
    },
    /// An address does not parse.
    #[error("not an address of a rank: {what}")]
    Address { what: &'static str },
    /// The system refused something that the group cannot do without.
    #[error("could not {what}")]
    System { what: &'static str, source: Arc<io::Error> },
}

impl From<UnsupportedReduction> for Error {
    fn from(unsupported: UnsupportedReduction) -> Error {
        Error::Unsupported(unsupported)
    }
}

impl Error {
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> Error {
        Error::System { what, source: Arc::new(source.into()) }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Error {
        Error::Invalid { what: what.into() }
    }
}

/// How a rank's absence became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LossCause {
    /// The kernel reports that its process ended.
    ProcessEnded = 1,
    /// It gave up its membership, by dropping or reconfiguring its group.
    LeftGroup,
    /// Its end of a connection is closed, and it did not say why.
    ConnectionClosed,
    /// The other end of a connection does not exist any more.
    ConnectionReset,
    /// Its host has not answered for a long time.
    NoAnswer,
    /// It sent bytes that this version does not understand.
    Garbled,
    /// What came over its encrypted connection is not what it sent.
    Altered,
}

impl LossCause {
    const ALL: [LossCause; 7] = [
        LossCause::ProcessEnded,
        LossCause::LeftGroup,
        LossCause::ConnectionClosed,
        LossCause::ConnectionReset,
        LossCause::NoAnswer,
        LossCause::Garbled,
        LossCause::Altered,
    ];

    pub(crate) fn from_code(code: u64) -> Option<LossCause> {
        LossCause::ALL.into_iter().find(|noticed| *noticed as u64 == code)
    }

    /// What an error of a connection says about the peer.
    pub(crate) fn from_connection(error: &io::Error) -> LossCause {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected => {
                LossCause::ConnectionClosed
            }
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                LossCause::NoAnswer
            }
            io::ErrorKind::InvalidData => LossCause::Altered,
            _ => LossCause::ConnectionReset,
        }
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            LossCause::ProcessEnded => "its process ended",
            LossCause::LeftGroup => "it left the group",
            LossCause::ConnectionClosed => "its connection was closed",
            LossCause::ConnectionReset => "its connection was reset",
            LossCause::NoAnswer => "its host does not answer",
            LossCause::Garbled => "it sent invalid data",
            LossCause::Altered => "what arrived on its encrypted connection is not what it sent",
        })
    }
}

fn unit(call: &Call) -> &'static str {
    if call.kind.is_message() { "message" } else { "operation" }
}

fn position(call: &Call, sequence: u64) -> String {
    if call.kind.is_message() { String::new() } else { format!(" as operation {sequence} of the group") }
}

fn waiting_for(call: &Call, missing: &[Rank]) -> String {
    let names = match missing {
        [] => return "every rank had started it, not all had finished".to_owned(),
        [one] => format!("rank {one}"),
        several => format!("ranks {}", join_ranks(several)),
    };
    match call.kind {
        Kind::Send => format!("{names} had not taken it"),
        Kind::Receive => format!("{names} had not sent it"),
        _ => format!("{names} had not started it"),
    }
}
