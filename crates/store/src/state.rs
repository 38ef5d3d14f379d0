//! What the store answers: clients, generations and their key spaces. Pure: no sockets, no clock.
//!
//! Invariants:
//! 1. A client lives in the key space of the generation in which it connected, for its whole life. After a restart of
//!    the workers the keys of the dead ones are therefore invisible to the new attempt, on the same port, while a
//!    straggler of the old attempt cannot disturb it.
//! 2. A key space other than the current one exists only while it has clients.
//! 3. A client waits for at most one thing; a further `WAIT` or `BARRIER` replaces the former one.
//! 4. What clients store in all generations together stays within [`Limits::stored`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::key_space::{KeySpace, Room};
use crate::protocol::{Limits, Reply, Request, Violation};

/// A connection to the store; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A key space; counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// Replies in the order in which they are to be sent.
pub(crate) type Replies = Vec<(ClientId, Reply)>;

/// The whole store.
#[derive(Debug)]
pub struct State {
    current: Generation,
    current_keys: KeySpace,
    older: HashMap<Generation, KeySpace>,
    clients: HashMap<ClientId, Generation>,
    limits: Limits,
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

impl State {
    /// An empty store in generation 0.
    pub fn new() -> State {
        State::with_limits(Limits::default())
    }

    /// An empty store with bounds of its own.
    pub fn with_limits(limits: Limits) -> State {
        State {
            current: Generation(0),
            current_keys: KeySpace::default(),
            older: HashMap::new(),
            clients: HashMap::new(),
            limits,
        }
    }

    /// Adds a client to the current generation; one that is connected already stays where it is.
    pub fn connect(&mut self, client: ClientId) {
        if let Entry::Vacant(entry) = self.clients.entry(client) {
            entry.insert(self.current);
            self.current_keys.clients += 1;
        }
    }

    /// Serves one request, which may answer many waiting clients. An error means: close this client.
    pub fn handle(&mut self, client: ClientId, request: Request<'_>) -> Result<Vec<(ClientId, Reply)>, Violation> {
        let mut replies = Vec::new();
        self.handle_into(client, request, &mut replies)?;
        Ok(replies)
    }

    /// As [`State::handle`], appending to a list that the caller reuses.
    pub(crate) fn handle_into(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        replies: &mut Replies,
    ) -> Result<(), Violation> {
        let generation = *self.clients.get(&client).ok_or(Violation::NotConnected)?;
        let limits = self.limits;
        // There is hardly ever more than one generation.
        let older: usize = self.older.values().map(KeySpace::stored).sum();
        let stored = self.current_keys.stored() + older;
        let key_space = self.key_space(generation).ok_or(Violation::NotConnected)?;
        key_space.handle(client, request, &Room { limits, stored }, replies)
    }

    /// Removes a client and what it waits for.
    pub fn disconnect(&mut self, client: ClientId) {
        let Some(generation) = self.clients.remove(&client) else {
            return;
        };
        let Some(key_space) = self.key_space(generation) else {
            return;
        };
        key_space.cancel(client);
        key_space.clients -= 1;
        if key_space.clients == 0 {
            self.older.remove(&generation);
        }
    }

    /// Starts a generation: new connections see clean keys, existing ones keep theirs.
    pub fn begin_generation(&mut self) -> Generation {
        let key_space = std::mem::take(&mut self.current_keys);
        if key_space.clients > 0 {
            self.older.insert(self.current, key_space);
        }
        self.current.0 += 1;
        self.current
    }

    /// The current generation.
    pub fn generation(&self) -> Generation {
        self.current
    }

    /// How many clients are connected, in all generations.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// The value of a key of the current generation. `key` is the wire key, with its leading `/`.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.current_keys.get(key)
    }

    /// Sets a key of the current generation; gives the replies to those who waited for it.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Vec<(ClientId, Reply)> {
        let mut replies = Vec::new();
        self.current_keys.set(key, value, &mut replies);
        replies
    }

    /// Adds to a counter of the current generation; gives the sum and the replies to those who waited for it.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<(i64, Vec<(ClientId, Reply)>), Violation> {
        let mut replies = Vec::new();
        let sum = self.current_keys.add(key, delta, None, &mut replies)?;
        Ok((sum, replies))
    }

    fn key_space(&mut self, generation: Generation) -> Option<&mut KeySpace> {
        if generation == self.current { Some(&mut self.current_keys) } else { self.older.get_mut(&generation) }
    }
}
