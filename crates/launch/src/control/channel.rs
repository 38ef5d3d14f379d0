//! What stands between messages and the socket: nothing, or encryption by which both sides prove that they have the job's
//! token.
//!
//! ```text
//! launcher ── N hello ──▶ coordinator        `N`, then what `instep_noise` draws
//! launcher ◀── answer ── coordinator         to a stranger: a refusal, in the clear, always the same
//! launcher ── frame ────▶ coordinator        an empty one: it proves that the hello was no recording
//! both     ◀── frames ──▶ both               lines of JSON
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;

use instep_noise::{ANSWER_BYTES, Error, FRAME_OVERHEAD, HELLO_BYTES, Initiator, Opener, Sealer, Session, respond};

use crate::control::PROTOCOL;
use crate::control::token::JobToken;

/// The first byte of a connection that is encrypted.
pub(crate) const FIRST_BYTE: u8 = b'N';
const OPENING_BYTES: usize = 1 + HELLO_BYTES;

/// What both sides agree on besides the token: what is spoken inside, as [`PROTOCOL`] counts it.
fn prologue() -> String {
    format!("instep control {PROTOCOL}")
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
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Channel {
    /// Opens the channel on a connection to a coordinator, within the time limits of the stream: without a token there is
    /// nothing to do.
    pub(crate) fn open(stream: &mut TcpStream, token: Option<&JobToken>) -> Result<Channel, ChannelError> {
        let Some(token) = token else { return Ok(Channel::default()) };
        let unavailable = |cause: Error| io::Error::other(cause.to_string());
        let (initiator, hello) = Initiator::start(&token.control, prologue().as_bytes()).map_err(unavailable)?;
        let mut opening = vec![FIRST_BYTE];
        opening.extend(hello);
        stream.write_all(&opening)?;
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(cause.kind(), "it closed the connection"),
            _ => cause,
        })?;
        let session = initiator.finish(&answer).map_err(|_| ChannelError::NotProved)?;
        let mut channel = Channel::from(session);
        stream.write_all(&channel.outbound.wrap(&[])?)?;
        Ok(channel)
    }

    /// Sends bytes on a blocking stream.
    pub(crate) fn write(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(&self.outbound.wrap(bytes)?)
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
pub(crate) struct Guest {
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
    Guest(Box<Guest>, usize, [u8; ANSWER_BYTES]),
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
            Opening::Guest(Box::new(Guest { sealer, opener, plain: Vec::new() }), OPENING_BYTES, answer)
        }
        Err(_) => Opening::Unproved,
    }
}

impl Guest {
    /// Opens the frames at the start of `bytes`; gives how many bytes they took. Until it has proved itself, a guest sends the
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
}
