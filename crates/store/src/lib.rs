//! A key-value store that speaks PyTorch's TCPStore protocol, so that unmodified training scripts meet through it.
//!
//! | module | what it is for |
//! |---|---|
//! | [`protocol`] | requests and replies as bytes: decoder, encoder, limits |
//! | [`State`] | what the store answers: pure, no sockets and no clock |
//! | [`Server`] | one thread that moves bytes between sockets and the state |
//! | [`Companion`] | a second protocol on the store's port (the launcher's coordinator) |
//! | [`Client`] | a small blocking client |
//!
//! Not here: persistence, authentication and encryption. The store lives as long as its process and trusts its network,
//! as torch's own does, unless a companion claims all connections and hands over those it trusts ([`Envelope`]).

mod client;
mod companion;
mod connection;
mod event_loop;
mod key_space;
mod listen;
mod memory;
mod notice;
mod output;
pub mod protocol;
mod server;
mod state;

pub use client::{Client, Error, Key};
pub use companion::{Companion, Context, Envelope};
pub use listen::{listen, listen_at, listen_loopback, raise_file_limit};
pub use notice::Notice;
pub use protocol::{Limits, Reply, Request, Violation};
pub use server::Server;
pub use state::{ClientId, Generation, State};
