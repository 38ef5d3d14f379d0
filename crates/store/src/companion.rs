//! A second protocol on the store's port, told apart by the first byte of a connection.
//!
//! The launcher's coordinator lives here: one port to open, one thread, and decisions that take effect in the store
//! between two requests. The server owns the sockets; a [`Companion`] sees bytes and acts through a [`Context`].

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use crate::connection::Sealed;
use crate::notice::Notice;
use crate::protocol::{Reply, Request, Violation};
use crate::state::{ClientId, Generation, State};

/// Something else spoken on the store's port. Called on the server's thread: it must not block.
pub trait Companion: Send {
    /// Whether a connection that starts with this byte is the companion's. One that claims `0x00` too, with which the store's
    /// own clients begin, keeps the store to those that it hands over ([`Context::serve_store`]).
    fn claims(&self, first: u8) -> bool;

    /// A connection was claimed.
    fn connected(&mut self, client: ClientId, peer: SocketAddr, context: &mut Context<'_>);

    /// Bytes of a claimed connection, the first byte included; gives how many were consumed. The rest is offered again
    /// together with what follows. A connection that leaves more than 1 MiB unconsumed is closed.
    fn received(&mut self, client: ClientId, bytes: &[u8], context: &mut Context<'_>) -> usize;

    /// The peer closed, an I/O error occurred or a limit was passed. Not called after [`Context::close`].
    fn closed(&mut self, client: ClientId, context: &mut Context<'_>);

    /// Called after every batch of events and when the instant that it gave last has passed.
    fn tick(&mut self, context: &mut Context<'_>) -> Option<Instant>;

    /// Why a store request from this peer must not be served, if so; its connection is then closed.
    fn refuses(&mut self, request: &Request<'_>, peer: SocketAddr) -> Option<String> {
        let _ = (request, peer);
        None
    }
}

/// What stands between the store and a client whose connection the companion has handed over, such as encryption.
pub trait Envelope: Send {
    /// Opens what is complete at the start of `arrived`, appends what it holds to `opened`, and gives how many bytes it took.
    /// After an error the connection is closed.
    fn open(&mut self, arrived: &[u8], opened: &mut Vec<u8>) -> io::Result<usize>;

    /// Appends what the client is to receive to `sealed`.
    fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()>;
}

/// What a companion decided, to be carried out by the server after the call.
pub(crate) enum Action {
    Reply(ClientId, Reply),
    ServeStore(ClientId, Sealed),
    Send(ClientId, Vec<u8>),
    Close(ClientId),
    Notify(Notice),
    Stop,
}

/// What a companion can see and do.
pub struct Context<'a> {
    /// The time of this batch of events.
    pub now: Instant,
    pub(crate) state: &'a mut State,
    pub(crate) actions: &'a mut Vec<Action>,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Context").field("now", &self.now).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Context<'_> {
    /// The store, to look at. Writes go through this context, which delivers their replies.
    pub fn state(&self) -> &State {
        self.state
    }

    /// The value of a key of the current generation. `key` is the wire key, with its leading `/`.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.state.get(key)
    }

    /// Sets a key of the current generation and answers those who wait for it.
    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        let replies = self.state.set(key, value);
        self.deliver(replies);
    }

    /// Adds to a counter of the current generation and answers those who wait for it.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Violation> {
        let (sum, replies) = self.state.add(key, delta)?;
        self.deliver(replies);
        Ok(sum)
    }

    /// Starts a generation: connections from now on see clean keys.
    pub fn begin_generation(&mut self) -> Generation {
        self.state.begin_generation()
    }

    /// Sends bytes on a claimed connection. A peer that leaves more than 16 MiB unread is disconnected.
    pub fn send(&mut self, client: ClientId, bytes: Vec<u8>) {
        self.actions.push(Action::Send(client, bytes));
    }

    /// Hands a claimed connection over to the store, whose client it is from here on: what arrives goes through `envelope`, in
    /// both directions. `opened` was opened already, and begins with the store's hello.
    pub fn serve_store(&mut self, client: ClientId, envelope: Box<dyn Envelope>, opened: Vec<u8>) {
        self.actions.push(Action::ServeStore(client, Sealed { envelope, opened }));
    }

    /// Closes a connection once what was sent to it is written.
    pub fn close(&mut self, client: ClientId) {
        self.actions.push(Action::Close(client));
    }

    /// Tells whoever started the server that this peer was refused, and why.
    pub fn notify_refused(&mut self, peer: SocketAddr, reason: String) {
        self.actions.push(Action::Notify(Notice::Refused { peer, reason }));
    }

    /// Ends the server once everything sent is written, within a short deadline.
    pub fn stop(&mut self) {
        self.actions.push(Action::Stop);
    }

    fn deliver(&mut self, replies: Vec<(ClientId, Reply)>) {
        let replies = replies.into_iter();
        self.actions.extend(replies.map(|(client, reply)| Action::Reply(client, reply)));
    }
}
