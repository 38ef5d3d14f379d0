//! The TCPStore wire format of torch ≥ 2.2 (`TCPStoreBackend.hpp`): requests and replies as bytes.
//!
//! There is no frame header: a request is an operation code and its arguments, little-endian, without alignment.
//! Requests may arrive split at any byte or many in one packet.
//!
//! ```text
//! request   = code:u8 arguments
//! string    = length:u64 bytes
//! list      = count:u64 item*count
//!
//!   0 VALIDATE     magic:u32                         reply: none
//!   1 SET          key:string value:string           none
//!   2 COMPARE_SET  key:string expected:string desired:string   string
//!   3 GET          key:string                        string
//!   4 ADD          key:string delta:i64              i64
//!   5 CHECK        list of key:string                u8 (0 all present, 1 not)
//!   6 WAIT         list of key:string                u8 (0 once all are present)
//!   7 GETNUMKEYS                                     i64
//!   8 DELETE_KEY   key:string                        i64 (1 deleted, 0 absent)
//!   9 APPEND       key:string value:string           none
//!  10 MULTI_GET    list of key:string                string, one per key, no count
//!  11 MULTI_SET    list of (key:string value:string) none
//!  12 CANCEL_WAIT                                    u8 (1)
//!  13 PING         nonce:u32                         u32 (the nonce)
//!  14 QUEUE_PUSH   key:string value:string           none
//!  15 QUEUE_POP    key:string                        i64 (length before), then string if it was not 0
//!  16 QUEUE_LEN    key:string                        i64
//!  17 LIST_KEYS                                      i64 count, then string per key
//!  18 BARRIER      key:string world_size:i64         u8 (0 once enough have arrived)
//! ```
//!
//! [`Decoder`] works in two steps: a scan that remembers where it stopped, so that a large request arriving in small
//! pieces costs time linear in its size, and a parse of the complete request that borrows from the buffer.

use std::sync::Arc;

/// What a client sends first, as the argument of `VALIDATE`.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The first five bytes of every connection: `VALIDATE` and its magic number.
pub const HELLO: [u8; 5] = [0x00, 0xCE, 0xF7, 0x85, 0x3C];

/// A stored value; shared, so that a reply to many clients does not copy it.
pub type Value = Arc<Vec<u8>>;

/// Bounds on what one request, and on what all clients together, may ask of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one key.
    pub key: usize,
    /// Bytes of one value.
    pub payload: usize,
    /// Keys in one request.
    pub keys: usize,
    /// Bytes of one whole request. Ours: torch has no such bound, and 131,072 values of 8 MiB would be a terabyte.
    pub request: usize,
    /// Bytes of all keys, values, queues and waits together, with [`ENTRY_BYTES`] for each.
    pub stored: usize,
    /// Bytes of all replies together that clients have not read; what several share is counted once.
    pub unread: usize,
    /// Bytes of all requests together that have arrived in part.
    pub incomplete: usize,
    /// Connections open at a time; fewer where the process may open fewer files.
    pub connections: usize,
}

/// What an entry costs besides its bytes, roughly: many small keys are bounded too.
pub const ENTRY_BYTES: usize = 128;

impl Default for Limits {
    /// The limits of torch's libuv server for one request. The others are ours. What all clients do together is bounded for
    /// small machines here: [`Limits::for_memory`] allows what large jobs need.
    fn default() -> Limits {
        Limits {
            key: 8 << 10,
            payload: 8 << 20,
            keys: 128 << 10,
            request: 64 << 20,
            stored: 1 << 30,
            unread: 1 << 30,
            incomplete: 1 << 30,
            connections: 128 << 10,
        }
    }
}

impl Limits {
    /// The limits on a machine with so much memory. What jobs store grows with the square of their ranks: each rank of a
    /// gloo group stores 8 bytes for every other one, which are 2.1 GB a group with 16,384 ranks.
    pub fn for_memory(bytes: usize) -> Limits {
        let usual = Limits::default();
        Limits {
            stored: usual.stored.max(bytes / 4),
            unread: usual.unread.max(bytes / 4),
            incomplete: usual.incomplete.max(bytes / 8),
            ..usual
        }
    }
}

/// Why a connection has to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Violation {
    #[error("operation {code} is unknown")]
    UnknownOperation { code: u8 },
    #[error("a key of {length} bytes is over the limit of {limit}")]
    KeyTooLong { length: u64, limit: usize },
    #[error("a value of {length} bytes is over the limit of {limit}")]
    PayloadTooLong { length: u64, limit: usize },
    #[error("{count} keys in one request are over the limit of {limit}")]
    TooManyKeys { count: u64, limit: usize },
    #[error("a request of more than {limit} bytes is over the limit")]
    RequestTooLong { limit: usize },
    #[error(
        "the keys and values of all clients together would be over the limit of {limit} bytes; delete keys that are no \
         longer needed, or serve the store on a machine with more memory, of which it takes up to a quarter"
    )]
    StoreFull { limit: usize },
    #[error("a reply of more than {limit} bytes is over the limit")]
    ReplyTooLong { limit: usize },
    #[error(
        "the replies that clients have not read are over the limit of {limit} bytes together; it has left the most"
    )]
    TooMuchUnread { limit: usize },
    #[error(
        "the requests of all clients that have arrived in part are over the limit of {limit} bytes together; it has \
         kept the most for the longest"
    )]
    TooMuchIncomplete { limit: usize },
    #[error("the validation message may only be the first one")]
    RepeatedValidation,
    #[error("add needs a number, but the value of {key:?} is not one")]
    NotANumber { key: String },
    #[error("the client is not connected")]
    NotConnected,
}

/// One request; keys and values borrow from the buffer it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the arguments are drawn in the module's table")]
pub enum Request<'a> {
    Validate { magic: u32 },
    Set { key: &'a [u8], value: &'a [u8] },
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: &'a [u8] },
    Get { key: &'a [u8] },
    Add { key: &'a [u8], delta: i64 },
    Check { keys: Vec<&'a [u8]> },
    Wait { keys: Vec<&'a [u8]> },
    NumKeys,
    DeleteKey { key: &'a [u8] },
    Append { key: &'a [u8], value: &'a [u8] },
    MultiGet { keys: Vec<&'a [u8]> },
    MultiSet { pairs: Vec<(&'a [u8], &'a [u8])> },
    CancelWait,
    Ping { nonce: u32 },
    QueuePush { key: &'a [u8], value: &'a [u8] },
    QueuePop { key: &'a [u8] },
    QueueLength { key: &'a [u8] },
    ListKeys,
    Barrier { key: &'a [u8], world_size: i64 },
}

impl Request<'_> {
    /// Appends the request's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.code());
        match self {
            Request::Validate { magic: number } | Request::Ping { nonce: number } => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Request::Set { key, value } | Request::Append { key, value } | Request::QueuePush { key, value } => {
                put_string(out, key);
                put_string(out, value);
            }
            Request::CompareSet { key, expected, desired } => {
                put_string(out, key);
                put_string(out, expected);
                put_string(out, desired);
            }
            Request::Get { key }
            | Request::DeleteKey { key }
            | Request::QueuePop { key }
            | Request::QueueLength { key } => put_string(out, key),
            Request::Add { key, delta: number } | Request::Barrier { key, world_size: number } => {
                put_string(out, key);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                put_length(out, keys.len());
                for key in keys {
                    put_string(out, key);
                }
            }
            Request::MultiSet { pairs } => {
                put_length(out, pairs.len());
                for (key, value) in pairs {
                    put_string(out, key);
                    put_string(out, value);
                }
            }
            Request::NumKeys | Request::CancelWait | Request::ListKeys => {}
        }
    }

    fn code(&self) -> u8 {
        match self {
            Request::Validate { .. } => 0,
            Request::Set { .. } => 1,
            Request::CompareSet { .. } => 2,
            Request::Get { .. } => 3,
            Request::Add { .. } => 4,
            Request::Check { .. } => 5,
            Request::Wait { .. } => 6,
            Request::NumKeys => 7,
            Request::DeleteKey { .. } => 8,
            Request::Append { .. } => 9,
            Request::MultiGet { .. } => 10,
            Request::MultiSet { .. } => 11,
            Request::CancelWait => 12,
            Request::Ping { .. } => 13,
            Request::QueuePush { .. } => 14,
            Request::QueuePop { .. } => 15,
            Request::QueueLength { .. } => 16,
            Request::ListKeys => 17,
            Request::Barrier { .. } => 18,
        }
    }
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `CHECK`: all keys are present. `WAIT`, `BARRIER`: the wait is over.
    Ready,
    /// `CHECK`: at least one key is missing.
    NotReady,
    /// `CANCEL_WAIT`: this connection waits for nothing any more.
    Cancelled,
    /// `ADD`, `GETNUMKEYS`, `DELETE_KEY`, `QUEUE_LEN`.
    Integer(i64),
    /// `PING`.
    Nonce(u32),
    /// `GET`, `COMPARE_SET`.
    Value(Value),
    /// `MULTI_GET`.
    Values(Vec<Value>),
    /// `QUEUE_POP` of an empty queue.
    QueueEmpty,
    /// `QUEUE_POP`: the length before the pop, at least 1, and the oldest item.
    QueueItem(i64, Value),
    /// `LIST_KEYS`.
    Keys(Vec<Arc<[u8]>>),
}

/// Where a reply's bytes go. Separate from `Vec<u8>` so that the server can queue a large value without copying it.
pub(crate) trait Sink {
    fn bytes(&mut self, bytes: &[u8]);
    fn shared(&mut self, value: &Value);
}

impl Sink for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn shared(&mut self, value: &Value) {
        self.extend_from_slice(value);
    }
}

impl Reply {
    /// Appends the reply's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    pub(crate) fn write(&self, sink: &mut impl Sink) {
        match self {
            Reply::Ready => sink.bytes(&[0]),
            Reply::NotReady | Reply::Cancelled => sink.bytes(&[1]),
            Reply::Integer(number) => sink.bytes(&number.to_le_bytes()),
            Reply::Nonce(nonce) => sink.bytes(&nonce.to_le_bytes()),
            Reply::Value(value) => write_value(sink, value),
            Reply::Values(values) => values.iter().for_each(|value| write_value(sink, value)),
            Reply::QueueEmpty => sink.bytes(&0i64.to_le_bytes()),
            Reply::QueueItem(length, value) => {
                sink.bytes(&length.to_le_bytes());
                write_value(sink, value);
            }
            Reply::Keys(keys) => {
                sink.bytes(&(keys.len() as u64).to_le_bytes());
                for key in keys {
                    sink.bytes(&(key.len() as u64).to_le_bytes());
                    sink.bytes(key);
                }
            }
        }
    }
}

fn write_value(sink: &mut impl Sink, value: &Value) {
    sink.bytes(&(value.len() as u64).to_le_bytes());
    sink.shared(value);
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Decodes the request at the start of `bytes`; `None` until it is complete, else the request and its length.
pub fn decode<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Option<(Request<'a>, usize)>, Violation> {
    Decoder::default().decode(bytes, limits)
}

/// Decodes one request after the other and remembers how far it has scanned an incomplete one.
///
/// Call it with the same start of the buffer and more bytes until it gives a request; then with what follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    /// Bytes scanned and found good, counted from the start of the request.
    scanned: usize,
    /// Items of the list (or the one tuple of arguments) still to scan; meaningful once `scanned` > 0.
    items: usize,
    /// Fields of the current item already scanned.
    fields: usize,
}

#[derive(Clone, Copy)]
enum Field {
    Fixed(usize),
    Key,
    Payload,
}

/// The arguments of an operation: whether they are a counted list, and the fields of one item.
fn arguments(code: u8) -> Result<(bool, &'static [Field]), Violation> {
    use Field::{Fixed, Key, Payload};
    Ok(match code {
        0 | 13 => (false, &[Fixed(4)]),
        1 | 9 | 14 => (false, &[Key, Payload]),
        2 => (false, &[Key, Payload, Payload]),
        3 | 8 | 15 | 16 => (false, &[Key]),
        4 | 18 => (false, &[Key, Fixed(8)]),
        5 | 6 | 10 => (true, &[Key]),
        7 | 12 | 17 => (false, &[]),
        11 => (true, &[Key, Payload]),
        19.. => return Err(Violation::UnknownOperation { code }),
    })
}

impl Decoder {
    /// As the function [`decode`], but does not scan again what it has scanned.
    pub fn decode<'a>(&mut self, bytes: &'a [u8], limits: &Limits) -> Result<Option<(Request<'a>, usize)>, Violation> {
        let Some(length) = self.scan(bytes, limits)? else {
            return Ok(None);
        };
        *self = Decoder::default();
        Ok(parse(&bytes[..length]).map(|request| (request, length)))
    }

    /// The length of the request once all of it is there.
    pub(crate) fn scan(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, Violation> {
        let Some(&code) = bytes.first() else {
            return Ok(None);
        };
        let (is_list, fields) = arguments(code)?;
        if self.scanned == 0 {
            self.items = 1;
            self.fields = 0;
            let mut start = 1;
            if is_list {
                let Some(count) = length_at(bytes, 1) else {
                    return Ok(None);
                };
                self.items = within(count, limits.keys).ok_or(Violation::TooManyKeys { count, limit: limits.keys })?;
                start += 8;
            }
            self.scanned = start;
        }
        while self.items > 0 {
            while let Some(&field) = fields.get(self.fields) {
                let Some(end) = self.field_end(field, bytes, limits)? else {
                    return Ok(None);
                };
                self.scanned = end;
                self.fields += 1;
            }
            self.fields = 0;
            self.items -= 1;
        }
        Ok(Some(self.scanned))
    }

    /// Where the field that starts at `scanned` ends, once all of it is there.
    fn field_end(&self, field: Field, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, Violation> {
        let (start, length) = match field {
            Field::Fixed(length) => (self.scanned, length),
            Field::Key | Field::Payload => {
                let Some(length) = length_at(bytes, self.scanned) else {
                    return Ok(None);
                };
                let (limit, violation) = match field {
                    Field::Key => {
                        let limit = limits.key;
                        (limit, Violation::KeyTooLong { length, limit })
                    }
                    Field::Payload | Field::Fixed(_) => {
                        let limit = limits.payload;
                        (limit, Violation::PayloadTooLong { length, limit })
                    }
                };
                (self.scanned + 8, within(length, limit).ok_or(violation)?)
            }
        };
        let end = start + length;
        if end > limits.request {
            return Err(Violation::RequestTooLong { limit: limits.request });
        }
        Ok((end <= bytes.len()).then_some(end))
    }
}

fn within(number: u64, limit: usize) -> Option<usize> {
    usize::try_from(number).ok().filter(|&size| size <= limit)
}

fn length_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Reads a complete request. `None` cannot happen after a scan that found the end.
fn parse(bytes: &[u8]) -> Option<Request<'_>> {
    let (&code, rest) = bytes.split_first()?;
    let mut arguments = Arguments(rest);
    Some(match code {
        0 => Request::Validate { magic: u32::from_le_bytes(arguments.fixed()?) },
        1 => Request::Set { key: arguments.string()?, value: arguments.string()? },
        2 => Request::CompareSet {
            key: arguments.string()?,
            expected: arguments.string()?,
            desired: arguments.string()?,
        },
        3 => Request::Get { key: arguments.string()? },
        4 => Request::Add { key: arguments.string()?, delta: i64::from_le_bytes(arguments.fixed()?) },
        5 => Request::Check { keys: arguments.list(Arguments::string)? },
        6 => Request::Wait { keys: arguments.list(Arguments::string)? },
        7 => Request::NumKeys,
        8 => Request::DeleteKey { key: arguments.string()? },
        9 => Request::Append { key: arguments.string()?, value: arguments.string()? },
        10 => Request::MultiGet { keys: arguments.list(Arguments::string)? },
        11 => Request::MultiSet { pairs: arguments.list(|item| Some((item.string()?, item.string()?)))? },
        12 => Request::CancelWait,
        13 => Request::Ping { nonce: u32::from_le_bytes(arguments.fixed()?) },
        14 => Request::QueuePush { key: arguments.string()?, value: arguments.string()? },
        15 => Request::QueuePop { key: arguments.string()? },
        16 => Request::QueueLength { key: arguments.string()? },
        17 => Request::ListKeys,
        18 => Request::Barrier { key: arguments.string()?, world_size: i64::from_le_bytes(arguments.fixed()?) },
        19.. => return None,
    })
}

struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn fixed<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.fixed()?)).ok()
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.length()?;
        (0..count).map(|_| item(self)).collect()
    }
}
