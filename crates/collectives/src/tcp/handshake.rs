//! The handshake of two ranks on a new connection, from the side of the initiator and from that of the responder.
//!
//! The initiator says who it is, with a nonce; the responder answers with a nonce of its own and a proof that it is the rank that was
//! called; the initiator proves the same, and says with it that this connection is the one it takes, of those it may have opened at
//! several endpoints. Until then the responder believes nothing. See [`super::wire`].
//!
//! Bytes in, bytes out; but the keys of encrypted connections are the system's random numbers. The sockets are in [`super::connect`].

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use instep_noise::{Initiator, Session, respond};

use super::secret::{self, NONCE_BYTES, Nonce, Proof, Prover, Secret, TOKEN_BYTES};
use super::wire::{
    self, ANSWER_BYTES, Answer, CONFIRMATION_BYTES, Claim, HELLO_BYTES, Hello, LONGEST_TEXT, PROVED_BYTES, Purpose,
};
use crate::{Address, Error, Rank};

/// Between two calls of the same rank at its endpoints.
pub(crate) const STAGGER: Duration = Duration::from_millis(250);
/// An initiator who connects and says nothing is given up after this.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// One that was answered, after this. A member confirms at once, unless its process is stopped: it then believes to have a
/// connection, so this is not short.
pub(crate) const CONFIRMATION_DEADLINE: Duration = Duration::from_secs(30);
/// Initiators that are listened to, besides two of each rank.
pub(crate) const MAX_UNIDENTIFIED: usize = 64;
/// Initiators that are accepted before those that are there are listened to.
pub(crate) const MAX_ACCEPTED_AT_ONCE: usize = 16;

/// Who belongs to a generation of a group, as one of its ranks knows it.
#[derive(Clone, Copy)]
pub(crate) struct Membership<'a> {
    pub(crate) rank: Rank,
    pub(crate) addresses: &'a [Address],
    pub(crate) generation: u64,
    /// What all of them know.
    pub(crate) secret: Option<&'a Secret>,
    /// What they send each other is encrypted.
    pub(crate) encrypt: bool,
}

impl Membership<'_> {
    /// Where a peer may be reached from here for a purpose: messages have a port of their own.
    pub(crate) fn endpoints(&self, peer: Rank, purpose: Purpose) -> Result<Vec<SocketAddr>, Error> {
        let (own, other) = (&self.addresses[self.rank.0], &self.addresses[peer.0]);
        let near = own.network == other.network;
        let (loopback, far): (Vec<SocketAddr>, Vec<SocketAddr>) =
            other.endpoints.iter().partition(|endpoint| endpoint.ip().is_loopback());
        let mut endpoints = if near { [loopback, far].concat() } else { far };
        if purpose == Purpose::P2p {
            endpoints.iter_mut().for_each(|endpoint| endpoint.set_port(other.p2p_port));
        }
        if endpoints.is_empty() {
            return Err(Error::invalid(format!(
                "rank {peer} on {} has no network address that rank {} on {} could call\nhint: it shares no memory with \
                 this rank; call open_to_network on every rank and exchange the addresses again",
                other.host, self.rank, own.host
            )));
        }
        if endpoints.iter().any(|endpoint| endpoint.port() == 0) {
            return Err(Error::invalid(format!(
                "rank {peer} on {} has no port for messages\nhint: it runs another version of instep",
                other.host
            )));
        }
        Ok(endpoints)
    }

    /// For the proofs of connections to a rank.
    fn prover(&self, responder: Rank) -> Prover {
        Prover::new(self.secret, &self.addresses[responder.0].token)
    }
}

/// What became of a call.
pub(crate) enum HandshakeStatus {
    /// Nothing yet.
    Waiting,
    /// The initiator: it was answered by the right one, and now confirms. The responder: the initiator takes this connection.
    Done,
    /// There is nobody at that endpoint, or no way to it.
    Unreachable(io::ErrorKind),
    /// The other side hung up, or is a stranger.
    Closed,
    /// A member said why not.
    Refused(String),
}

// What a proof is of, so that none serves for another.
const OF_HELLO: &[u8] = b"hello";
const OF_REFUSAL: &[u8] = b"refusal";
const OF_WELCOME: &[u8] = b"welcome";
const OF_CONFIRMATION: &[u8] = b"confirmation";

/// The initiator's side, from its hello on.
pub(crate) struct InitiatorHandshake {
    prover: Prover,
    own_token: [u8; TOKEN_BYTES],
    hello: [u8; HELLO_BYTES],
    answer: Vec<u8>,
    /// Of the answer, as far as it is known.
    length: usize,
    confirmation: [u8; CONFIRMATION_BYTES],
    /// Where what follows is encrypted: before the answer and after it.
    initiator: Option<Initiator>,
    session: Option<Session>,
}

impl InitiatorHandshake {
    /// Fails where the system has no random numbers for a key.
    pub(crate) fn new(
        membership: Membership<'_>,
        peer: Rank,
        purpose: Purpose,
        nonce: Nonce,
    ) -> Result<InitiatorHandshake, instep_noise::Error> {
        let prover = membership.prover(peer);
        let claim = Claim {
            generation: membership.generation,
            world: membership.addresses.len() as u32,
            rank: membership.rank.0 as u32,
            purpose,
            encrypted: membership.encrypt,
            nonce,
        };
        let begun = membership.encrypt.then(|| Initiator::start(&prover.session_key(), &claim.to_bytes()));
        let (initiator, noise_message) = match begun.transpose()? {
            Some((initiator, noise_message)) => (Some(initiator), noise_message),
            None => (None, [0; instep_noise::HELLO_BYTES]),
        };
        let proof = prover.proof(&[OF_HELLO, &claim.to_bytes(), &noise_message]);
        Ok(InitiatorHandshake {
            prover,
            own_token: membership.addresses[membership.rank.0].token,
            hello: Hello { claim, noise_message, proof }.to_bytes(),
            answer: Vec::new(),
            length: ANSWER_BYTES,
            confirmation: [0; CONFIRMATION_BYTES],
            initiator,
            session: None,
        })
    }

    /// What to send first.
    pub(crate) fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// How what follows is encrypted, after [`HandshakeStatus::Done`].
    pub(crate) fn take_session(&mut self) -> Option<Session> {
        self.session.take()
    }

    /// What to send last, if this connection is taken after [`HandshakeStatus::Done`].
    pub(crate) fn confirmation(&self) -> &[u8] {
        &self.confirmation
    }

    /// How many bytes come next.
    pub(crate) fn wanted(&self) -> usize {
        self.length - self.answer.len()
    }

    /// Takes bytes of the other side, no more than wanted.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> HandshakeStatus {
        self.answer.extend_from_slice(bytes);
        if self.wanted() > 0 {
            return HandshakeStatus::Waiting;
        }
        let (start, text) = self.answer.split_at(ANSWER_BYTES);
        let start: &[u8; ANSWER_BYTES] = start.try_into().expect("that many were gathered");
        let Some(answer) = Answer::from_bytes(start) else { return HandshakeStatus::Closed };
        if answer.length > text.len() {
            self.length += answer.length;
            return HandshakeStatus::Waiting;
        }
        if !text.is_empty() {
            let authentic = self.prover.accepts(&answer.proof, &[OF_REFUSAL, &self.hello, text]);
            let refused = || HandshakeStatus::Refused(String::from_utf8_lossy(text).into_owned());
            return if authentic { refused() } else { HandshakeStatus::Closed };
        }
        let of = |label| [label, &self.hello[..], &answer.nonce, &answer.noise_message, &self.own_token];
        if !self.prover.accepts(&answer.proof, &of(OF_WELCOME)) {
            return HandshakeStatus::Closed;
        }
        self.confirmation = wire::confirmation(self.prover.proof(&of(OF_CONFIRMATION)));
        match self.initiator.take().map(|initiator| initiator.finish(&answer.noise_message)).transpose() {
            Ok(session) => self.session = session,
            Err(_) => return HandshakeStatus::Closed,
        }
        HandshakeStatus::Done
    }
}

/// The responder's side, from the accepted connection on.
pub(crate) struct ResponderHandshake {
    since: Instant,
    nonce: Nonce,
    received: Vec<u8>,
    /// It has said hello as a member would, without the proof of one.
    unauthenticated: bool,
    /// Who it says it is, once it has said so; then its confirmation is awaited. Its hello may be an old one.
    claimed: Option<Claimed>,
}

/// What a hello that was welcomed says, and what confirms it.
struct Claimed {
    rank: Rank,
    purpose: Purpose,
    proof: Proof,
    session: Option<Session>,
}

impl ResponderHandshake {
    pub(crate) fn new(now: Instant, nonce: Nonce) -> ResponderHandshake {
        ResponderHandshake { since: now, nonce, received: Vec::new(), unauthenticated: false, claimed: None }
    }

    /// When an initiator that says nothing more is given up.
    pub(crate) fn deadline(&self) -> Instant {
        self.since + if self.claimed.is_some() { CONFIRMATION_DEADLINE } else { HELLO_DEADLINE }
    }

    /// Who the initiator says it is. Only after [`HandshakeStatus::Done`] it is.
    pub(crate) fn claimed(&self) -> Option<(Rank, Purpose)> {
        self.claimed.as_ref().map(|claimed| (claimed.rank, claimed.purpose))
    }

    /// How what follows is encrypted, after [`HandshakeStatus::Done`].
    pub(crate) fn take_session(&mut self) -> Option<Session> {
        self.claimed.as_mut().and_then(|claimed| claimed.session.take())
    }

    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.unauthenticated
    }

    /// How many bytes come next.
    pub(crate) fn wanted(&self) -> usize {
        let length = if self.claimed.is_some() { CONFIRMATION_BYTES } else { HELLO_BYTES };
        length - self.received.len()
    }

    /// Takes bytes of the initiator, no more than wanted; gives what to answer, which may be nothing.
    ///
    /// `expects` knows who may call what for; others are let go, and call again if they are early. Who is let in where
    /// `closing` says why not is told that.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        membership: Membership<'_>,
        expects: impl Fn(Rank, Purpose) -> bool,
        closing: Option<&str>,
        welcomed: &mut WelcomedHellos,
    ) -> (HandshakeStatus, Vec<u8>) {
        self.received.extend_from_slice(bytes);
        if self.wanted() > 0 {
            return (HandshakeStatus::Waiting, Vec::new());
        }
        let received = std::mem::take(&mut self.received);
        if let Some(Claimed { proof, .. }) = &self.claimed {
            let bytes: [u8; CONFIRMATION_BYTES] = received[..].try_into().expect("that many were gathered");
            let confirmed = wire::confirmed_by(&bytes).is_some_and(|given| secret::same(&given, proof));
            return (if confirmed { HandshakeStatus::Done } else { HandshakeStatus::Closed }, Vec::new());
        }
        let hello: [u8; HELLO_BYTES] = received[..].try_into().expect("that many were gathered");
        let Some(Hello { claim, noise_message, proof }) = Hello::from_bytes(&hello) else {
            return (HandshakeStatus::Closed, Vec::new());
        };
        let prover = membership.prover(membership.rank);
        self.unauthenticated = !prover.accepts(&proof, &[OF_HELLO, &hello[..PROVED_BYTES]]);
        if self.unauthenticated {
            return (HandshakeStatus::Closed, Vec::new());
        }
        let peer = Rank(claim.rank as usize);
        match admit(membership, &claim, expects, closing) {
            Admission::Welcome if !welcomed.insert(claim.nonce) => (HandshakeStatus::Closed, Vec::new()),
            Admission::Welcome => {
                let begun = claim.encrypted.then(|| respond(&prover.session_key(), &claim.to_bytes(), &noise_message));
                let (session, noise_message) = match begun.transpose() {
                    Ok(Some((session, noise_message))) => (Some(session), noise_message),
                    Ok(None) => (None, [0; instep_noise::ANSWER_BYTES]),
                    Err(_) => return (HandshakeStatus::Closed, Vec::new()),
                };
                let token = &membership.addresses[peer.0].token;
                let [of_welcome, proof] = [OF_WELCOME, OF_CONFIRMATION]
                    .map(|label| prover.proof(&[label, &hello, &self.nonce, &noise_message, token]));
                self.claimed = Some(Claimed { rank: peer, purpose: claim.purpose, proof, session });
                let answer = Answer { nonce: self.nonce, noise_message, proof: of_welcome, length: 0 };
                (HandshakeStatus::Waiting, answer.to_bytes().to_vec())
            }
            Admission::Refused(text) => {
                let text = &text.as_bytes()[..text.len().min(LONGEST_TEXT)];
                let proof = prover.proof(&[OF_REFUSAL, &hello, text]);
                let (nonce, noise_message) = ([0; NONCE_BYTES], [0; instep_noise::ANSWER_BYTES]);
                let answer = Answer { nonce, noise_message, proof, length: text.len() };
                (HandshakeStatus::Closed, [&answer.to_bytes()[..], text].concat())
            }
            Admission::Stranger => (HandshakeStatus::Closed, Vec::new()),
        }
    }
}

/// The nonces of hellos that were answered here. Only members make new hellos, one for each connection: one that comes again
/// is a recording, and must not take the place of those that are still to prove themselves.
#[derive(Default)]
pub(crate) struct WelcomedHellos(BTreeSet<Nonce>);

impl WelcomedHellos {
    /// False if it was there.
    fn insert(&mut self, nonce: Nonce) -> bool {
        self.0.insert(nonce)
    }
}

/// Which of these initiators gives way where there are as many as there may be: the one that has been silent the longest, of
/// those that have shown nothing if there are any.
pub(crate) fn gives_way<Key>(initiators: impl Iterator<Item = (Key, Option<(Rank, Purpose)>)>) -> Option<Key> {
    let mut oldest = None;
    for (key, claimed) in initiators {
        if claimed.is_none() {
            return Some(key);
        }
        oldest = oldest.or(Some(key));
    }
    oldest
}

/// Of two ranks one encrypts what it sends, and the other does not.
pub(crate) fn disagreement(encrypts: Rank, not: Rank) -> String {
    format!(
        "rank {encrypts} encrypts what it sends to other hosts, rank {not} does not\nhint: set INSTEP_ENCRYPT=1 on all \
         nodes, or on none"
    )
}

/// What an initiator gets.
enum Admission {
    Welcome,
    /// A member is told why.
    Refused(String),
    /// Nothing: it is no member, or calls again by itself.
    Stranger,
}

/// Who is welcome, of initiators that know the secret or have recorded somebody who does.
fn admit(
    membership: Membership<'_>,
    claim: &Claim,
    expects: impl Fn(Rank, Purpose) -> bool,
    closing: Option<&str>,
) -> Admission {
    let (rank, peer, world) = (membership.rank, Rank(claim.rank as usize), membership.addresses.len());
    if peer.0 >= world {
        return Admission::Stranger;
    }
    if claim.generation > membership.generation {
        // It is ahead: it calls again when this rank may have followed.
        return Admission::Stranger;
    }
    if claim.generation < membership.generation {
        let (ours, theirs) = (membership.generation, claim.generation);
        return Admission::Refused(format!("rank {rank} is at generation {ours}, rank {peer} at {theirs}"));
    }
    if claim.world as usize != world {
        return Admission::Refused(format!("rank {rank} expects {world} ranks, rank {peer} {}", claim.world));
    }
    if claim.encrypted != membership.encrypt {
        let (encrypts, not) = if membership.encrypt { (rank, peer) } else { (peer, rank) };
        return Admission::Refused(disagreement(encrypts, not));
    }
    if !expects(peer, claim.purpose) {
        // For a later bootstrap of the same generation: it calls again.
        return Admission::Stranger;
    }
    match closing {
        Some(text) => Admission::Refused(text.to_owned()),
        None => Admission::Welcome,
    }
}
