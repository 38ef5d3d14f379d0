//! A small blocking client of the store, for the launcher, the tools and Python.
//!
//! Keys are what a script writes: the client adds the leading `/` that torch's client adds, so both see the same keys.
//! [`Key::raw`] escapes it for the few keys that torch sends bare (`init/`). Every call has a deadline; a wait that passes
//! it is cancelled on the server and the connection stays usable, as with torch ≥ 2.2.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::protocol::{Decoder, Limits, MAGIC, Request, Violation};

/// What is not a wait is answered at once, so at least this long is given: less would break a connection that is merely
/// slow, because a late reply cannot be told from the next one.
const REPLY_DEADLINE: Duration = Duration::from_secs(10);
/// For one address: one that swallows packets must not keep the others from being tried.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How often a wait looks whether it is interrupted.
const INTERRUPT_EVERY: Duration = Duration::from_millis(100);
/// A caller's "for ever", kept where adding it to an instant cannot overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// What a reply may claim to hold; more is a broken stream.
const REPLY_BYTES: u64 = 4 << 30;

/// What a call on a [`Client`] can fail with.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub enum Error {
    /// No server answered at that address in time.
    #[error("could not connect to the store at {host}:{port} within {timeout:?}")]
    Connect {
        /// As given by the caller.
        host: String,
        /// As given by the caller.
        port: u16,
        /// As given by the caller.
        timeout: Duration,
        /// Why the last attempt failed.
        source: io::Error,
    },
    /// The wait passed its deadline; the connection is still usable.
    #[error("the store did not have {what} within {timeout:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        timeout: Duration,
    },
    /// The request is over a limit of the protocol and was not sent.
    #[error(transparent)]
    TooLarge(#[from] Violation),
    /// The wait was given up because the caller's interrupt check said so.
    #[error("the wait was interrupted")]
    Interrupted,
    /// The connection is gone; a new client is needed.
    #[error("the connection to the store is closed")]
    Closed { source: io::Error },
    /// The server sent what the protocol does not allow; a new client is needed.
    #[error("the store answered {found}, which the protocol does not allow here")]
    Protocol {
        /// What came.
        found: String,
    },
}

type Result<T> = std::result::Result<T, Error>;

/// A key as sent: with the leading `/` unless made by [`Key::raw`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl Key {
    /// A key that is sent as it is, such as torch's `init/`.
    pub fn raw(bytes: impl AsRef<[u8]>) -> Key {
        Key(bytes.as_ref().to_vec())
    }
}

impl<T: AsRef<str> + ?Sized> From<&T> for Key {
    fn from(name: &T) -> Key {
        let name = name.as_ref();
        let mut bytes = Vec::with_capacity(name.len() + 1);
        bytes.push(b'/');
        bytes.extend_from_slice(name.as_bytes());
        Key(bytes)
    }
}

/// Asked now and then during a wait; true gives the wait up. Not while a single connection attempt is under way.
type Interrupt = Box<dyn FnMut() -> bool + Send>;

/// A connection to a store.
pub struct Client {
    stream: TcpStream,
    timeout: Duration,
    /// The read timeout the socket has now; setting it is a system call.
    read_timeout: Duration,
    interrupt: Option<Interrupt>,
    request: Vec<u8>,
    received: Vec<u8>,
    consumed: usize,
    broken: bool,
}

impl Client {
    /// Connects, retrying until `timeout`, which is also the deadline of every later call.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Client> {
        Client::retry(host, port, timeout, &mut || false)
    }

    /// As [`Client::connect`]; while connecting and in every wait `interrupt` is asked about ten times a second, and once
    /// it says true the call ends with [`Error::Interrupted`].
    pub fn connect_with(
        host: &str,
        port: u16,
        timeout: Duration,
        mut interrupt: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Client> {
        let mut client = Client::retry(host, port, timeout, &mut interrupt)?;
        client.interrupt = Some(Box::new(interrupt));
        Ok(client)
    }

    fn retry(host: &str, port: u16, timeout: Duration, interrupt: &mut dyn FnMut() -> bool) -> Result<Client> {
        let deadline = Instant::now() + timeout.min(LONGEST_WAIT);
        let mut pause = FIRST_RETRY;
        loop {
            let source = match Client::attempt(host, port, timeout, deadline) {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            let now = Instant::now();
            if now >= deadline {
                let host = host.to_owned();
                return Err(Error::Connect { host, port, timeout, source });
            }
            let resume = deadline.min(now + pause);
            while Instant::now() < resume {
                if interrupt() {
                    return Err(Error::Interrupted);
                }
                thread::sleep(resume.saturating_duration_since(Instant::now()).min(INTERRUPT_EVERY));
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Tries every address of the host once.
    fn attempt(host: &str, port: u16, timeout: Duration, deadline: Instant) -> io::Result<Client> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in (host, port).to_socket_addrs()? {
            match Client::handshake(address, timeout, deadline) {
                Ok(client) => return Ok(client),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn handshake(address: SocketAddr, timeout: Duration, deadline: Instant) -> io::Result<Client> {
        // Zero is not a valid connect timeout; an expired deadline still gets one quick attempt.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&address, left.min(ATTEMPT_DEADLINE))?;
        stream.set_nodelay(true)?;
        let mut client = Client {
            stream,
            timeout: timeout.min(LONGEST_WAIT),
            read_timeout: Duration::ZERO,
            interrupt: None,
            request: Vec::new(),
            received: Vec::new(),
            consumed: 0,
            broken: false,
        };
        let nonce = std::process::id();
        Request::Validate { magic: MAGIC }.encode(&mut client.request);
        Request::Ping { nonce }.encode(&mut client.request);
        let answer = client.send().and_then(|()| client.fill(4, left));
        let answer = answer.and_then(|answered| if answered { client.fixed().map(Some) } else { Ok(None) });
        match answer {
            Ok(Some(bytes)) if u32::from_le_bytes(bytes) == nonce => Ok(client),
            Ok(None) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server there does not answer")),
            Ok(Some(_)) => Err(io::Error::new(io::ErrorKind::InvalidData, "the server there is not a store")),
            Err(Error::Closed { source }) => Err(source),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// The deadline of every call.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes the deadline of every call.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout.min(LONGEST_WAIT);
    }

    /// Stores a value.
    pub fn set(&mut self, key: impl Into<Key>, value: &[u8]) -> Result<()> {
        let key = key.into();
        self.submit(&Request::Set { key: &key.0, value })
    }

    /// Waits until the key exists and gives its value.
    pub fn get(&mut self, key: impl Into<Key>) -> Result<Vec<u8>> {
        let key = key.into();
        self.wait_for(&[&key.0], self.timeout)?;
        self.submit(&Request::Get { key: &key.0 })?;
        self.string()
    }

    /// The value of the key, if it exists now.
    pub fn try_get(&mut self, key: impl Into<Key>) -> Result<Option<Vec<u8>>> {
        let key = key.into();
        if !self.check_raw(vec![&key.0])? {
            return Ok(None);
        }
        self.submit(&Request::Get { key: &key.0 })?;
        self.string().map(Some)
    }

    /// Whether all keys exist now.
    pub fn check(&mut self, keys: &[Key]) -> Result<bool> {
        self.check_raw(borrow(keys))
    }

    /// Adds to a counter and gives the sum.
    pub fn add(&mut self, key: impl Into<Key>, delta: i64) -> Result<i64> {
        let key = key.into();
        self.submit(&Request::Add { key: &key.0, delta })?;
        self.integer()
    }

    /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Gives the value
    /// that is stored then; for a missing key that was not created, `expected`, as torch does.
    pub fn compare_set(&mut self, key: impl Into<Key>, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let key = key.into();
        self.submit(&Request::CompareSet { key: &key.0, expected, desired })?;
        self.string()
    }

    /// Waits until all keys exist.
    pub fn wait(&mut self, keys: &[Key]) -> Result<()> {
        self.wait_for(&borrow(keys), self.timeout)
    }

    /// As [`Client::wait`], with a timeout of its own.
    pub fn wait_timeout(&mut self, keys: &[Key], timeout: Duration) -> Result<()> {
        self.wait_for(&borrow(keys), timeout)
    }

    /// Deletes a key; true if it existed.
    pub fn delete(&mut self, key: impl Into<Key>) -> Result<bool> {
        let key = key.into();
        self.submit(&Request::DeleteKey { key: &key.0 })?;
        Ok(self.integer()? > 0)
    }

    /// Waits until all keys exist and gives their values.
    pub fn multi_get(&mut self, keys: &[Key]) -> Result<Vec<Vec<u8>>> {
        self.wait(keys)?;
        self.submit(&Request::MultiGet { keys: borrow(keys) })?;
        keys.iter().map(|_| self.string()).collect()
    }

    /// Stores several values with one request.
    pub fn multi_set(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<()> {
        let pairs = pairs.iter().map(|(key, value)| (&key.0[..], &value[..])).collect();
        self.submit(&Request::MultiSet { pairs })
    }

    /// Appends to a value, or stores it.
    pub fn append(&mut self, key: impl Into<Key>, value: &[u8]) -> Result<()> {
        let key = key.into();
        self.submit(&Request::Append { key: &key.0, value })
    }

    /// How many keys there are; queues do not count.
    pub fn num_keys(&mut self) -> Result<i64> {
        self.submit(&Request::NumKeys)?;
        self.integer()
    }

    /// The keys with a leading `/`, without it, in no particular order.
    pub fn list_keys(&mut self) -> Result<Vec<Vec<u8>>> {
        self.submit(&Request::ListKeys)?;
        let count = self.integer()?;
        let mut keys = Vec::new();
        for _ in 0..count {
            let key = self.string()?;
            keys.extend(key.strip_prefix(b"/").map(<[u8]>::to_vec));
        }
        Ok(keys)
    }

    /// Adds an item to the end of a queue.
    pub fn queue_push(&mut self, key: impl Into<Key>, value: &[u8]) -> Result<()> {
        let key = key.into();
        self.submit(&Request::QueuePush { key: &key.0, value })
    }

    /// Waits for an item of a queue and takes the oldest. `None` if another client was quicker.
    pub fn queue_pop(&mut self, key: impl Into<Key>) -> Result<Option<Vec<u8>>> {
        let key = key.into();
        self.wait_for(&[&key.0], self.timeout)?;
        self.try_queue_pop(Key(key.0))
    }

    /// Takes the oldest item of a queue, if there is one now.
    pub fn try_queue_pop(&mut self, key: impl Into<Key>) -> Result<Option<Vec<u8>>> {
        let key = key.into();
        self.submit(&Request::QueuePop { key: &key.0 })?;
        match self.integer()? {
            0 => Ok(None),
            _ => self.string().map(Some),
        }
    }

    /// How many items a queue has.
    pub fn queue_length(&mut self, key: impl Into<Key>) -> Result<i64> {
        let key = key.into();
        self.submit(&Request::QueueLength { key: &key.0 })?;
        self.integer()
    }

    /// Waits until `world_size` clients have arrived at the key's counter.
    pub fn barrier(&mut self, key: impl Into<Key>, world_size: i64) -> Result<()> {
        let key = key.into();
        self.submit(&Request::Barrier { key: &key.0, world_size })?;
        self.await_ready(&[&key.0], self.timeout)
    }

    fn check_raw(&mut self, keys: Vec<&[u8]>) -> Result<bool> {
        self.submit(&Request::Check { keys })?;
        match self.fixed()? {
            [0] => Ok(true),
            [1] => Ok(false),
            [other] => Err(self.unexpected(other)),
        }
    }

    fn wait_for(&mut self, keys: &[&[u8]], timeout: Duration) -> Result<()> {
        self.submit(&Request::Wait { keys: keys.to_vec() })?;
        self.await_ready(keys, timeout)
    }

    /// Reads the answer to a `WAIT` or `BARRIER`; past the deadline cancels it.
    fn await_ready(&mut self, keys: &[&[u8]], timeout: Duration) -> Result<()> {
        let timeout = timeout.min(LONGEST_WAIT);
        let deadline = Instant::now() + timeout;
        // The whole timeout at first, not what is left of it: the socket usually has it set already.
        let mut left = timeout;
        loop {
            let slice = if self.interrupt.is_some() { left.min(INTERRUPT_EVERY) } else { left };
            if self.fill(1, slice)? {
                return match self.fixed()? {
                    [0] => Ok(()),
                    [other] => Err(self.unexpected(other)),
                };
            }
            let interrupted = self.interrupt.as_mut().is_some_and(|interrupt| interrupt());
            if interrupted || slice == left {
                if self.cancel()? {
                    return Ok(());
                }
                let what = describe(keys);
                return Err(if interrupted { Error::Interrupted } else { Error::Timeout { what, timeout } });
            }
            left = deadline.saturating_duration_since(Instant::now());
        }
    }

    /// Cancels the wait; true if it was answered before that.
    fn cancel(&mut self) -> Result<bool> {
        self.submit(&Request::CancelWait)?;
        let mut was_ready = false;
        loop {
            if !self.fill(1, REPLY_DEADLINE)? {
                return Err(self.closed(io::ErrorKind::TimedOut.into()));
            }
            match self.fixed()? {
                [0] => was_ready = true,
                [1] => return Ok(was_ready),
                [other] => return Err(self.unexpected(other)),
            }
        }
    }

    fn submit(&mut self, request: &Request<'_>) -> Result<()> {
        self.request.clear();
        request.encode(&mut self.request);
        Decoder::default().scan(&self.request, &Limits::default())?;
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        if self.broken {
            return Err(Error::Closed { source: io::ErrorKind::NotConnected.into() });
        }
        let written = self.stream.write_all(&self.request);
        written.map_err(|error| self.closed(error))
    }

    fn integer(&mut self) -> Result<i64> {
        self.fixed().map(i64::from_le_bytes)
    }

    fn string(&mut self) -> Result<Vec<u8>> {
        let length = u64::from_le_bytes(self.fixed()?);
        if length > REPLY_BYTES {
            self.broken = true;
            return Err(Error::Protocol { found: format!("a value of {length} bytes") });
        }
        let length = length as usize;
        self.need(length)?;
        let value = self.received[self.consumed..self.consumed + length].to_vec();
        self.consume(length);
        Ok(value)
    }

    fn fixed<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH]> {
        self.need(LENGTH)?;
        let mut bytes = [0; LENGTH];
        bytes.copy_from_slice(&self.received[self.consumed..self.consumed + LENGTH]);
        self.consume(LENGTH);
        Ok(bytes)
    }

    fn consume(&mut self, length: usize) {
        self.consumed += length;
        if self.consumed == self.received.len() {
            self.received.clear();
            self.consumed = 0;
        }
    }

    /// Has `length` bytes at hand, or breaks the connection.
    fn need(&mut self, length: usize) -> Result<()> {
        match self.fill(length, self.timeout.max(REPLY_DEADLINE))? {
            true => Ok(()),
            false => Err(self.closed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Reads until `length` bytes are at hand; false if `timeout` passed without any byte.
    fn fill(&mut self, length: usize, timeout: Duration) -> Result<bool> {
        let mut buffer = [0; 16 << 10];
        while self.received.len() - self.consumed < length {
            // Zero would mean no timeout at all.
            let timeout = timeout.max(Duration::from_millis(1));
            if self.read_timeout != timeout {
                let set = self.stream.set_read_timeout(Some(timeout));
                set.map_err(|error| self.closed(error))?;
                self.read_timeout = timeout;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.closed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(self.closed(error)),
                },
            }
        }
        Ok(true)
    }

    fn closed(&mut self, source: io::Error) -> Error {
        self.broken = true;
        Error::Closed { source }
    }

    fn unexpected(&mut self, byte: u8) -> Error {
        self.broken = true;
        Error::Protocol { found: format!("byte {byte}") }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Client")
            .field("peer", &self.stream.peer_addr().ok())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

fn borrow(keys: &[Key]) -> Vec<&[u8]> {
    keys.iter().map(|key| &key.0[..]).collect()
}

/// The keys for a message, at most a few of them.
fn describe(keys: &[&[u8]]) -> String {
    const SHOWN: usize = 3;
    let name = |key: &&[u8]| format!("{:?}", String::from_utf8_lossy(key.strip_prefix(b"/").unwrap_or(key)));
    let mut text = keys.iter().take(SHOWN).map(name).collect::<Vec<_>>().join(", ");
    if keys.len() > SHOWN {
        text += &format!(" and {} more", keys.len() - SHOWN);
    }
    text
}
