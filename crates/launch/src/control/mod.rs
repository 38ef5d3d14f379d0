//! What launchers and the coordinator say to each other, on the store's own port.
//!
//! One JSON object per line, in both directions. A connection whose first byte is `{` is a launcher's; torch's store
//! clients begin with a zero byte. A launcher opens with [`ToCoordinator::Hello`] and is answered with
//! [`FromCoordinator::Welcome`] or [`FromCoordinator::Refused`].
//!
//! ```text
//! launcher     {"hello":{"protocol":6,"run_id":"456",...}}\n      {"finished":{}}\n
//! coordinator  {"welcome":{}}\n   {"start":{"round":0,...}}\n      {"complete":{}}\n
//! ```
//!
//! In a c10d job a launcher says [`ToCoordinator::Ping`] once an interval, and is answered. In an elastic job
//! every launcher has such a port, in case it must lead one day, and answers [`ToCoordinator::LeaderQuery`] there.
//!
//! Where the job has a token, connections between launchers are encrypted (module `channel`), and whoever does not have it
//! hears one refusal, whatever it says.
//!
//! A node that does not fit the job hears that and nothing else: whoever asks has proved nothing. The coordinator's own
//! launcher says why.
//!
//! Messages stand in module `messages`; `framing` makes lines of them. Texts are made fit to be shown as they are read, so
//! that nobody can forget it (module `text`).
//!
//! Lines are at most [`MAX_LINE_BYTES`] long; a longer or malformed one ends the connection.

pub(crate) mod channel;
pub mod connection;
mod framing;
pub mod heartbeat;
mod messages;
pub mod secret;
pub mod text;
pub mod token;

pub use self::framing::{ControlError, FIRST_BYTE, MAX_LINE_BYTES, decode, encode};
pub use self::messages::{
    DiagnoseRequest, FromCoordinator, Hello, Lead, LeaderQuery, LeaderReply, LostWorker, MovedRank, PROTOCOL,
    ProbeReport, Replace, Start, ToCoordinator, WireTerms,
};
