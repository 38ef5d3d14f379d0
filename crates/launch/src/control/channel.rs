//! What stands between messages and the socket: nothing, or encryption by which both sides prove that they have the job's
//! token.
//!
//! ```text
//! launcher ── N hello ──▶ coordinator        `N`, then what `instep_noise` draws
//! launcher ◀── answer ── coordinator         to a stranger: a refusal, in the clear, always the same
//! launcher ── frame ────▶ coordinator        an empty one: it proves that the hello was no recording
//! both     ◀── frames ──▶ both               lines of JSON
//! ```
//!
//! Where the first byte inside the frames is the one with which clients of the store begin, a launcher relays one of its
//! workers' connections (module `relay`), and the coordinator hands it over to the store ([`StoreEnvelope`]).

use std::io::{self, Read, Write};
use std::net::TcpStream;

use instep_noise::{ANSWER_BYTES, Error, FRAME_OVERHEAD, HELLO_BYTES, Initiator, Opener, Sealer, Session, respond};
use instep_store::Envelope;

use crate::control::PROTOCOL;
use crate::control::token::JobToken;

/// The first byte of a connection that is encrypted.
pub(crate) const FIRST_BYTE: u8 = b'N';
const OPENING_BYTES: usize = 1 + HELLO_BYTES;
/// Of an answer in another protocol.
const SHOWN_BYTES: usize = 16;
/// What the store's clients begin with.
const STORE_FIRST_BYTE: u8 = instep_store::protocol::HELLO[0];

/// What both sides agree on besides the token: what is spoken inside, as [`PROTOCOL`] counts it, and that launchers relay the
/// store.
fn prologue() -> String {
    format!("instep control {PROTOCOL} and store")
}

/// Both directions of a control connection.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
}

/// Messages on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbound(Option<Sealer>);

/// Messages on their way in.
#[derive(Debug, Default)]
pub(crate) struct Inbound(Option<Opener>);

impl From<Session> for Channel {
    fn from(session: Session) -> Channel {
        Channel { outbound: Outbound(Some(session.sealer)), inbound: Inbound(Some(session.opener)) }
    }
}

/// Why a channel cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// The other side has another token, or none, or another [`PROTOCOL`].
    #[error("it did not prove that it has this job's token")]
    NotProved,
    /// It speaks another protocol, in text.
    #[error("it answered \"{}\"", .0.escape_ascii())]
    Text(Vec<u8>),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Channel {
    /// Opens the channel on a connection to a coordinator, within the time limits of the stream: without a token there is
    /// nothing to do.
    pub(crate) fn open(stream: &mut TcpStream, token: Option<&JobToken>) -> Result<Channel, ChannelError> {
        let Some(token) = token else { return Ok(Channel::default()) };
        let (initiator, opening) = initiate(token)?;
        stream.write_all(&opening)?;
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(cause.kind(), "it closed the connection"),
            _ => cause,
        })?;
        let (channel, proof) = answered(initiator, &answer)?;
        stream.write_all(&proof)?;
        Ok(channel)
    }

    /// Sends bytes on a blocking stream.
    pub(crate) fn write(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(&self.outbound.wrap(bytes)?)
    }
}

/// Begins to open a channel; gives what to send.
pub(crate) fn initiate(token: &JobToken) -> io::Result<(Initiator, Vec<u8>)> {
    let started = Initiator::start(&token.control, prologue().as_bytes());
    let (initiator, hello) = started.map_err(|cause: Error| io::Error::other(cause.to_string()))?;
    Ok((initiator, [&[FIRST_BYTE], &hello[..]].concat()))
}

/// Takes the answer; gives the channel, and the proof to send before anything else.
pub(crate) fn answered(initiator: Initiator, answer: &[u8; ANSWER_BYTES]) -> Result<(Channel, Vec<u8>), ChannelError> {
    let refused = || match &answer[..SHOWN_BYTES] {
        // What a node answers looks random, or is a line of JSON where it refuses.
        text if text[0] != b'{' && text.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n')) => {
            ChannelError::Text(text.to_vec())
        }
        _ => ChannelError::NotProved,
    };
    let session = initiator.finish(answer).map_err(|_| refused())?;
    let mut channel = Channel::from(session);
    let proof = channel.outbound.wrap(&[])?;
    Ok((channel, proof))
}

impl From<ChannelError> for io::Error {
    fn from(error: ChannelError) -> io::Error {
        match error {
            ChannelError::NotProved | ChannelError::Text(_) => io::Error::other(error.to_string()),
            ChannelError::Io(cause) => cause,
        }
    }
}

impl Outbound {
    /// The bytes as they are to be sent.
    pub(crate) fn wrap(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let Some(sealer) = &mut self.0 else { return Ok(bytes.to_vec()) };
        let mut sealed = Vec::with_capacity(bytes.len() + FRAME_OVERHEAD);
        sealer.seal(bytes, &mut sealed).map_err(|cause| io::Error::other(cause.to_string()))?;
        Ok(sealed)
    }
}

impl Inbound {
    /// Takes what has arrived off the front of `arrived`, as far as it is complete, and appends it to `plain`. An error says
    /// that it is not what the other side sent.
    pub(crate) fn unwrap(&mut self, arrived: &mut Vec<u8>, plain: &mut Vec<u8>) -> Result<(), Error> {
        match &mut self.0 {
            None => plain.append(arrived),
            Some(opener) => {
                let consumed = opener.open(arrived, plain)?;
                arrived.drain(..consumed);
            }
        }
        Ok(())
    }
}

/// The coordinator's end of a connection that proves a token.
#[derive(Debug)]
pub(crate) struct EncryptedConnection {
    sealer: Sealer,
    opener: Opener,
    /// Opened, and not yet understood.
    pub(crate) plain: Vec<u8>,
}

/// What the first bytes of a connection to a coordinator come to.
pub(crate) enum Opening {
    /// More must arrive.
    Incomplete,
    /// Nobody of this job.
    Unproved,
    /// Perhaps one of this job: how many bytes it took, and what to answer.
    Begun(Box<EncryptedConnection>, usize, [u8; ANSWER_BYTES]),
}

/// Looks at the first bytes of a connection, where the job has a token.
pub(crate) fn opening(bytes: &[u8], token: &JobToken) -> Opening {
    if bytes.first().is_some_and(|first| *first != FIRST_BYTE) {
        return Opening::Unproved;
    }
    let Some(hello) = bytes.get(1..OPENING_BYTES).and_then(|hello| hello.try_into().ok()) else {
        return Opening::Incomplete;
    };
    match respond(&token.control, prologue().as_bytes(), hello) {
        Ok((Session { sealer, opener }, answer)) => {
            Opening::Begun(Box::new(EncryptedConnection { sealer, opener, plain: Vec::new() }), OPENING_BYTES, answer)
        }
        Err(_) => Opening::Unproved,
    }
}

impl EncryptedConnection {
    /// Opens the frames at the start of `bytes`; gives how many bytes they took. Until it has proved itself, it sends the
    /// proof alone, so that nobody else has anything kept for them.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let consumed = self.opener.open(bytes, &mut self.plain)?;
        let is_too_long = !self.opener.is_proved() && bytes.len() >= FRAME_OVERHEAD;
        if is_too_long { Err(Error::NotProved) } else { Ok(consumed) }
    }

    pub(crate) fn seal(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let mut sealed = Vec::with_capacity(bytes.len() + FRAME_OVERHEAD);
        self.sealer.seal(bytes, &mut sealed)?;
        Ok(sealed)
    }

    /// Whether what was opened so far is a worker's, whose connection a launcher relays to the store.
    pub(crate) fn is_of_a_worker(&self) -> bool {
        self.plain.first() == Some(&STORE_FIRST_BYTE)
    }

    /// What the store is to put between itself and that worker, and what was opened already.
    pub(crate) fn into_envelope(self) -> (StoreEnvelope, Vec<u8>) {
        (StoreEnvelope { sealer: self.sealer, opener: self.opener }, self.plain)
    }
}

/// Encrypts a worker's connection to the store, between the launcher that relays it and this one.
#[derive(Debug)]
pub(crate) struct StoreEnvelope {
    sealer: Sealer,
    opener: Opener,
}

impl Envelope for StoreEnvelope {
    fn open(&mut self, arrived: &[u8], opened: &mut Vec<u8>) -> io::Result<usize> {
        self.opener.open(arrived, opened).map_err(|cause| io::Error::other(cause.to_string()))
    }

    fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        self.sealer.seal(plain, sealed).map_err(|cause| io::Error::other(cause.to_string()))
    }
}
