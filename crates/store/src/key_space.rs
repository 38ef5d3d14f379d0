//! One key space: values, queues, and who waits for which key.
//!
//! Matches torch's libuv server (`TCPStoreLibUvBackend.cpp`, 2.15) as observed on the wire, with these differences:
//! a `WAIT` is also answered by the first arrival at a `BARRIER` of its key (torch answers only a wait that begins after
//! it), and a barrier is released by any write that brings its counter up to the world size, never by a smaller one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::protocol::{ENTRY_BYTES, Limits, Reply, Request, Value, Violation};
use crate::state::{ClientId, Replies};

type Key = Arc<[u8]>;

/// The order in which waits began: queues serve the oldest first.
type Ticket = u64;

/// The decimal text of a counter is no longer.
const COUNTER_BYTES: usize = 20;

/// How much more may be stored while one request is handled.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) limits: Limits,
    /// What all key spaces hold together, as [`KeySpace::stored`] counts it.
    pub(crate) stored: usize,
}

impl Room {
    fn check(&self, growth: usize) -> Result<(), Violation> {
        let limit = self.limits.stored;
        if growth > 0 && self.stored + growth > limit { Err(Violation::StoreFull { limit }) } else { Ok(()) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct KeySpace {
    /// Connected clients of this generation; kept by `State`.
    pub(crate) clients: usize,
    /// What the four collections below hold, by [`cost`].
    stored: usize,
    values: HashMap<Key, Value>,
    /// Never holds an empty queue.
    queues: HashMap<Key, VecDeque<Value>>,
    waits: HashMap<ClientId, Wait>,
    /// Indexed by key, so that a write costs nothing for waiters of other keys. Never holds an empty map.
    waiting: HashMap<Key, BTreeMap<Ticket, ClientId>>,
    /// Ordered by world size, so that an arrival does not look at those it cannot release. Never holds an empty map.
    barriers: HashMap<Key, BTreeMap<(i64, Ticket), ClientId>>,
    next_ticket: Ticket,
}

#[derive(Debug)]
enum Wait {
    Keys { ticket: Ticket, missing: usize, keys: Vec<Key> },
    Barrier { ticket: Ticket, world_size: i64, key: Key },
}

impl KeySpace {
    pub(crate) fn handle(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        room: &Room,
        replies: &mut Replies,
    ) -> Result<(), Violation> {
        let reply = match request {
            Request::Validate { .. } => return Err(Violation::RepeatedValidation),
            Request::Set { key, value } => {
                room.check(self.growth(key, value.len()))?;
                self.set(key, value, replies);
                return Ok(());
            }
            Request::CompareSet { key, expected, desired } => {
                Reply::Value(self.compare_set(key, expected, desired, room, replies)?)
            }
            Request::Get { key } => Reply::Value(self.value(key)),
            Request::Add { key, delta } => Reply::Integer(self.add(key, delta, Some(room), replies)?),
            Request::Check { keys } => match keys.iter().all(|key| self.has(key)) {
                true => Reply::Ready,
                false => Reply::NotReady,
            },
            Request::Wait { keys } => match self.wait(client, &keys, room)? {
                true => Reply::Ready,
                false => return Ok(()),
            },
            Request::NumKeys => Reply::Integer(count(self.values.len())),
            Request::DeleteKey { key } => Reply::Integer(i64::from(self.delete(key))),
            Request::Append { key, value } => {
                self.append(key, value, room, replies)?;
                return Ok(());
            }
            Request::MultiGet { keys } => Reply::Values(keys.iter().map(|key| self.value(key)).collect()),
            Request::MultiSet { pairs } => {
                // What the request replaces is not set off: all of it is stored, or nothing.
                room.check(pairs.iter().map(|(key, value)| cost(key.len(), value.len())).sum())?;
                for (key, value) in pairs {
                    self.set(key, value, replies);
                }
                return Ok(());
            }
            Request::CancelWait => {
                self.cancel(client);
                Reply::Cancelled
            }
            Request::Ping { nonce } => Reply::Nonce(nonce),
            Request::QueuePush { key, value } => {
                room.check(cost(key.len(), value.len()))?;
                self.queue_push(key, value, replies);
                return Ok(());
            }
            Request::QueuePop { key } => self.queue_pop(key),
            Request::QueueLength { key } => Reply::Integer(self.queues.get(key).map_or(0, |queue| count(queue.len()))),
            Request::ListKeys => self.list_keys(room.limits.request)?,
            Request::Barrier { key, world_size } => {
                return self.barrier(client, key, world_size, room, replies);
            }
        };
        replies.push((client, reply));
        Ok(())
    }

    /// How much this key space holds: bytes, and [`ENTRY_BYTES`] for each value, item of a queue and key of a wait.
    pub(crate) fn stored(&self) -> usize {
        self.stored
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|value| value.as_slice())
    }

    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], replies: &mut Replies) {
        self.store(key, value);
        self.wake(key, replies);
    }

    /// Adds to a counter; without `room`, for the server itself, in any case.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        delta: i64,
        room: Option<&Room>,
        replies: &mut Replies,
    ) -> Result<i64, Violation> {
        let sum = self.counter(key)?.wrapping_add(delta);
        if let Some(room) = room {
            room.check(self.growth(key, COUNTER_BYTES))?;
        }
        self.store(key, sum.to_string().as_bytes());
        self.wake(key, replies);
        Ok(sum)
    }

    /// Forgets what a client waits for.
    pub(crate) fn cancel(&mut self, client: ClientId) {
        match self.waits.remove(&client) {
            None => {}
            Some(Wait::Keys { ticket, keys, .. }) => {
                self.stored -= cost_of_keys(&keys);
                for key in keys {
                    remove_entry(&mut self.waiting, &key, &ticket);
                }
            }
            Some(Wait::Barrier { ticket, world_size, key }) => {
                self.stored -= cost(key.len(), 0);
                remove_entry(&mut self.barriers, &key, &(world_size, ticket))
            }
        }
    }

    /// Keys are copied into the reply: it has a limit of its own.
    fn list_keys(&self, limit: usize) -> Result<Reply, Violation> {
        let length: usize = self.values.keys().map(|key| size_of::<u64>() + key.len()).sum();
        if length > limit {
            return Err(Violation::ReplyTooLong { limit });
        }
        Ok(Reply::Keys(self.values.keys().cloned().collect()))
    }

    fn value(&self, key: &[u8]) -> Value {
        self.values.get(key).cloned().unwrap_or_default()
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    /// How much more is stored once the key has a value of this length.
    fn growth(&self, key: &[u8], length: usize) -> usize {
        self.values.get(key).map_or(cost(key.len(), length), |value| length.saturating_sub(value.len()))
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let removed = self.values.remove(key);
        self.stored -= removed.as_ref().map_or(0, |value| cost(key.len(), value.len()));
        removed.is_some()
    }

    fn store(&mut self, key: &[u8], bytes: &[u8]) {
        self.stored += bytes.len();
        match self.values.get_mut(key) {
            None => {
                self.stored += cost(key.len(), 0);
                self.values.insert(Key::from(key), Value::new(bytes.to_vec()));
            }
            // Counters and heartbeats are rewritten all the time: reuse the memory unless a reply still shares it or
            // the new value would leave most of it unused.
            Some(value) => {
                self.stored -= value.len();
                match Arc::get_mut(value) {
                    Some(memory) if memory.capacity() <= (2 * bytes.len()).max(64) => {
                        memory.clear();
                        memory.extend_from_slice(bytes);
                    }
                    _ => *value = Value::new(bytes.to_vec()),
                }
            }
        }
    }

    fn counter(&self, key: &[u8]) -> Result<i64, Violation> {
        match self.values.get(key) {
            None => Ok(0),
            Some(value) => leading_number(value)
                .ok_or_else(|| Violation::NotANumber { key: String::from_utf8_lossy(key).into_owned() }),
        }
    }

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        room: &Room,
        replies: &mut Replies,
    ) -> Result<Value, Violation> {
        let matches = match self.values.get(key) {
            // torch answers with what the caller expected although nothing is stored; scripts may rely on it.
            None if !expected.is_empty() => return Ok(Value::new(expected.to_vec())),
            None => true,
            Some(value) => value.as_slice() == expected,
        };
        if matches {
            room.check(self.growth(key, desired.len()))?;
            self.set(key, desired, replies);
        }
        Ok(self.value(key))
    }

    /// Makes a value longer, up to the limit of a value.
    fn append(&mut self, key: &[u8], bytes: &[u8], room: &Room, replies: &mut Replies) -> Result<(), Violation> {
        let length = self.values.get(key).map_or(0, |value| value.len()) + bytes.len();
        let limit = room.limits.payload;
        if length > limit {
            return Err(Violation::PayloadTooLong { length: length as u64, limit });
        }
        room.check(self.growth(key, length))?;
        match self.values.get_mut(key) {
            Some(value) => {
                Arc::make_mut(value).extend_from_slice(bytes);
                self.stored += bytes.len();
            }
            None => self.store(key, bytes),
        }
        self.wake(key, replies);
        Ok(())
    }

    /// Whether all keys are present; if not, the client waits for the missing ones.
    fn wait(&mut self, client: ClientId, keys: &[&[u8]], room: &Room) -> Result<bool, Violation> {
        if !self.waits.is_empty() {
            self.cancel(client);
        }
        if keys.iter().all(|key| self.has(key)) {
            return Ok(true);
        }
        room.check(cost_of_keys(keys))?;
        let ticket = self.ticket();
        let mut missing = Vec::new();
        for &key in keys {
            if self.has(key) {
                continue;
            }
            let key = Key::from(key);
            let waiters = self.waiting.entry(key.clone()).or_default();
            if waiters.insert(ticket, client).is_none() {
                missing.push(key);
            }
        }
        self.stored += cost_of_keys(&missing);
        let wait = Wait::Keys { ticket, missing: missing.len(), keys: missing };
        self.waits.insert(client, wait);
        Ok(false)
    }

    fn barrier(
        &mut self,
        client: ClientId,
        key: &[u8],
        world_size: i64,
        room: &Room,
        replies: &mut Replies,
    ) -> Result<(), Violation> {
        self.cancel(client);
        room.check(self.growth(key, COUNTER_BYTES) + cost(key.len(), 0))?;
        let arrived = self.add(key, 1, Some(room), replies)?;
        if arrived >= world_size {
            replies.push((client, Reply::Ready));
            return Ok(());
        }
        let ticket = self.ticket();
        self.stored += cost(key.len(), 0);
        let key = Key::from(key);
        let wait = Wait::Barrier { ticket, world_size, key: key.clone() };
        self.waits.insert(client, wait);
        let waiters = self.barriers.entry(key).or_default();
        waiters.insert((world_size, ticket), client);
        Ok(())
    }

    fn queue_push(&mut self, key: &[u8], item: &[u8], replies: &mut Replies) {
        self.stored += cost(key.len(), item.len());
        let item = Value::new(item.to_vec());
        match self.queues.get_mut(key) {
            Some(queue) => queue.push_back(item),
            None => {
                self.queues.insert(Key::from(key), VecDeque::from([item]));
            }
        }
        self.wake_one(key, replies);
    }

    fn queue_pop(&mut self, key: &[u8]) -> Reply {
        let Some(queue) = self.queues.get_mut(key) else {
            return Reply::QueueEmpty;
        };
        let length = count(queue.len());
        let item = queue.pop_front();
        self.stored -= item.as_ref().map_or(0, |item| cost(key.len(), item.len()));
        if queue.is_empty() {
            self.queues.remove(key);
        }
        item.map_or(Reply::QueueEmpty, |item| Reply::QueueItem(length, item))
    }

    /// After a write: answers those whose last missing key this was, and the barriers whose counter is high enough.
    fn wake(&mut self, key: &[u8], replies: &mut Replies) {
        if !self.waiting.is_empty()
            && let Some(waiters) = self.waiting.remove(key)
        {
            for client in waiters.into_values() {
                self.key_arrived(client, replies);
            }
        }
        if !self.barriers.is_empty() {
            self.release_barrier(key, replies);
        }
    }

    /// After a push: answers the oldest waiter that then has all it waits for. The item is for one of them only, so the
    /// others go on waiting.
    fn wake_one(&mut self, key: &[u8], replies: &mut Replies) {
        let Some(mut waiters) = self.waiting.remove(key) else {
            return;
        };
        while let Some((_, client)) = waiters.pop_first() {
            if self.key_arrived(client, replies) {
                break;
            }
        }
        if !waiters.is_empty() {
            self.waiting.insert(Key::from(key), waiters);
        }
    }

    /// One key that the client waits for is there; true if it was the last and the client is answered.
    fn key_arrived(&mut self, client: ClientId, replies: &mut Replies) -> bool {
        let Some(Wait::Keys { missing, .. }) = self.waits.get_mut(&client) else {
            return false;
        };
        *missing -= 1;
        if *missing > 0 {
            return false;
        }
        if let Some(Wait::Keys { keys, .. }) = self.waits.remove(&client) {
            self.stored -= cost_of_keys(&keys);
        }
        replies.push((client, Reply::Ready));
        true
    }

    fn release_barrier(&mut self, key: &[u8], replies: &mut Replies) {
        let Some(arrived) = self.get(key).and_then(leading_number) else {
            return;
        };
        let Some(waiters) = self.barriers.get_mut(key) else {
            return;
        };
        let too_large = match arrived.checked_add(1) {
            Some(more) => waiters.split_off(&(more, 0)),
            None => BTreeMap::new(),
        };
        let released = std::mem::replace(waiters, too_large);
        if waiters.is_empty() {
            self.barriers.remove(key);
        }
        for client in released.into_values() {
            self.waits.remove(&client);
            self.stored -= cost(key.len(), 0);
            replies.push((client, Reply::Ready));
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }
}

fn remove_entry<Order: Ord>(index: &mut HashMap<Key, BTreeMap<Order, ClientId>>, key: &Key, order: &Order) {
    if let Some(waiters) = index.get_mut(key) {
        waiters.remove(order);
        if waiters.is_empty() {
            index.remove(key);
        }
    }
}

/// What an entry counts for.
fn cost(key: usize, value: usize) -> usize {
    key + value + ENTRY_BYTES
}

fn cost_of_keys<K: AsRef<[u8]>>(keys: &[K]) -> usize {
    keys.iter().map(|key| cost(key.as_ref().len(), 0)).sum()
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// The number at the start of a value, as C++'s `std::stoll` reads it: white space, a sign, digits, then anything.
fn leading_number(bytes: &[u8]) -> Option<i64> {
    let start = bytes.iter().position(|byte| !(byte.is_ascii_whitespace() || *byte == 0x0B))?;
    let text = &bytes[start..];
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if length == 0 {
        return None;
    }
    // Counted downwards, because the most negative number has no positive twin.
    let mut number = 0i64;
    for digit in &digits[..length] {
        number = number.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(number) } else { number.checked_neg() }
}

#[cfg(test)]
#[path = "key_space_tests.rs"]
mod tests;
