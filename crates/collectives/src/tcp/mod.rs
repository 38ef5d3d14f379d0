//! Collectives over TCP: schedules executed, with the same bits as through shared memory.
//!
//! | module | what it is for |
//! |---|---|
//! | `network` | where a rank can be reached |
//! | `secret` | what only the ranks of a job know |
//! | `handshake` | two ranks recognise each other on a new connection |
//! | `setup` | which connections are opened, when, and who is late: pure |
//! | `connect` | sockets for handshakes |
//! | `bootstrap` | sockets for a set-up: pairs of ranks get their connections |
//! | `stream` | a connection: as it is, or encrypted |
//! | `wire` | handshakes and messages, as bytes |
//! | `buffers` | the memory of an operation, and its [schedule](crate::schedule) |
//! | `exchange` | executes a schedule |
//! | `channels` | several connections to each peer, with a thread each, for large operations |
//! | `share` | what one of them does of an operation: pure |
//! | `heartbeat` | notices hosts that fall silent, and tells all hosts why a group is aborted and which ranks are late |
//! | `messages` | what hosts send each other there, as bytes |
//!
//! In every operation each rank hears from every other, also where there is nothing to move, and compares what they call:
//! none returns before all have entered. Buffers are cut into messages, so that the memory beside them is bounded. All of it
//! happens on the thread of the caller, but for what other `channels` do of large operations.
//!
//! A rank that finds out that the group must be aborted sends the reason to all peers before anything else, so that they
//! report the same error. A message that was begun is finished first, which is why messages are not long.
#![expect(unsafe_code, reason = "copies and reduces memory that callers vouch for")]

pub(crate) mod bootstrap;
mod buffers;
pub(crate) mod channels;
pub(crate) mod connect;
mod context;
mod exchange;
pub(crate) mod handshake;
pub(crate) mod heartbeat;
mod messages;
pub(crate) mod network;
mod peer;
pub(crate) mod secret;
pub(crate) mod setup;
mod share;
pub(crate) mod stream;
pub(crate) mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::abort::{ABORT_BYTES, Abort, AbortFlag, AbortReason};
use crate::call::CALL_WORDS;
use crate::operation::{Operation, Source, Target, Whole};
use crate::rank::ring;
use crate::schedule::Thresholds;
use crate::shm::arena::Arena;
use crate::socket::{is_silent, linger};
use crate::sync::{ForkGuard, MAX_TIMEOUT};
use crate::ticket::Output;
use crate::{DataType, Error, Rank};
use context::{ExchangeContext, ExchangeError};
use exchange::THRESHOLDS;
use heartbeat::Heartbeat;
use peer::TcpPeer;
use share::Share;
use stream::Stream;
use wire::{MessageHeader, MessageKind};

/// How often a rank looks at its connections before it sleeps: some microseconds. Who sleeps is woken at once on a machine
/// that others use too; who lets others run in between gets its core back when they please.
const SPINS_BEFORE_SLEEP: u32 = 8;
/// How long a peer may take to read what comes before an abort reason.
const GRACE: Duration = Duration::from_millis(500);

/// Which ranks a TCP transport connects: all of a group, or one of each host.
#[derive(Clone)]
pub(crate) struct TcpMembership {
    /// Which of the members this rank is.
    pub(crate) index: usize,
    /// The group's rank of every member.
    pub(crate) members: Vec<Rank>,
    pub(crate) generation: u64,
    /// In the order of the group's ranks.
    pub(crate) hosts: Vec<String>,
    pub(crate) abort_flag: Arc<AbortFlag>,
    /// Shared with other ranks of this host, which may abort the group there.
    pub(crate) arena: Option<Arc<Arena>>,
}

/// One rank's side of the collectives over TCP, in one channel.
pub(crate) struct TcpTransport {
    /// Which of the members this is.
    index: usize,
    members: Vec<Rank>,
    generation: u64,
    hosts: Vec<String>,
    abort_flag: Arc<AbortFlag>,
    arena: Option<Arc<Arena>>,
    /// In the order of members; none for this one.
    peers: Vec<Option<TcpPeer>>,
    /// Which members have begun the operation under way, as any channel has heard: they do not exchange something in each.
    entered: Arc<[AtomicBool]>,
    sequence: u64,
    /// How often to look at the connections before sleeping.
    spins_before_sleep: u32,
    /// Where its schedules change, and how finely they cut.
    thresholds: Thresholds,
    scratch: Vec<u8>,
    touched: bool,
    /// The abort reason is on its way to the peers.
    abort_sent: bool,
    owner: ForkGuard,
    agreed: Option<u64>,
    /// The first rank of each host has one.
    heartbeat: Option<Heartbeat>,
}

impl TcpTransport {
    /// One of so many channels, on connections that nothing was sent on.
    fn unused(
        connections: Vec<Option<Stream>>,
        membership: TcpMembership,
        channels: usize,
        entered: Arc<[AtomicBool]>,
    ) -> TcpTransport {
        let TcpMembership { index, members, generation, hosts, abort_flag, arena } = membership;
        let peers = connections.into_iter().map(|connection| connection.map(TcpPeer::new)).collect();
        TcpTransport {
            index,
            members,
            generation,
            hosts,
            abort_flag,
            arena,
            peers,
            entered,
            sequence: 0,
            spins_before_sleep: SPINS_BEFORE_SLEEP,
            thresholds: Thresholds { scratch: THRESHOLDS.scratch / channels, ..THRESHOLDS },
            scratch: Vec::new(),
            touched: false,
            abort_sent: false,
            owner: ForkGuard::new(),
            agreed: None,
            heartbeat: None,
        }
    }

    /// Exchanges with the others how many operations of the generation before they completed.
    fn agree_on_history(&mut self, history: Option<u64>, timeout: Duration) -> Result<(), Error> {
        let own = [history.map_or(0, |completed| completed as i64 + 1)];
        let world = self.world();
        let mut all = vec![0i64; world];
        let (input, outputs) = (Source::of(&own), Target::of(&mut all).split(world));
        let operation = Operation::AllGather { input, outputs, dtype: DataType::I64 };
        let call = operation.check(self.index, world)?;
        let whole = Whole { call, sequence: 0, ranks: world, timeout };
        self.run_share(&operation, Share::WHOLE, &whole, timeout)?;
        self.agreed = all.into_iter().filter(|completed| *completed > 0).map(|completed| completed as u64 - 1).min();
        Ok(())
    }

    /// From now on notices when another host is silent.
    fn start_heartbeat(&mut self, connections: Vec<Option<Stream>>) -> Result<(), Error> {
        let heartbeat = Heartbeat::start(self.rank(), Vec::new(), connections, self.abort(), &self.abort_flag)?;
        self.heartbeat = Some(heartbeat);
        Ok(())
    }

    fn world(&self) -> usize {
        self.peers.len()
    }

    /// Runs this channel's share of a part of what the group's ranks called, in the time that is left for it.
    fn run_share(&mut self, operation: &Operation, share: Share, whole: &Whole, left: Duration) -> Result<(), Error> {
        self.touched = false;
        let &Whole { call, sequence: user_sequence, ranks, timeout } = whole;
        let deadline = Instant::now() + left.min(MAX_TIMEOUT);
        self.abort_flag.begin(call, user_sequence);
        let context = ExchangeContext { call, sequence: self.sequence, user_sequence, ranks, timeout, deadline };
        // In another channel ranks may be ahead, and contradict each other there.
        let aborted = self.abort_flag.abort_reason().is_some_and(|reason| reason.concerns(user_sequence));
        let result = if aborted {
            Err(ExchangeError::Aborted)
        } else {
            // Others may have given up an operation after they had sent all their parts of it.
            self.perform(operation, share, &context).and_then(|()| self.check_for_late_abort(&context))
        };
        match result {
            Ok(()) => {
                self.sequence += 1;
                Ok(())
            }
            Err(stop) => Err(self.failed(stop, &context)),
        }
    }

    fn failed(&mut self, stop: ExchangeError, context: &ExchangeContext) -> Error {
        let by = self.rank();
        let &ExchangeContext { call, user_sequence: sequence, timeout, .. } = context;
        let reason = match stop {
            ExchangeError::Aborted => None,
            ExchangeError::Abort(reason) => Some(reason),
            ExchangeError::Lost(peer, noticed) => {
                Some(AbortReason::Lost { rank: self.members[peer], call, sequence, noticed, by })
            }
            ExchangeError::Deadline => {
                let is_late = |peer: &usize| !self.entered[*peer].load(Ordering::Relaxed);
                let mut silent: Vec<Rank> = self.peers().filter(is_late).map(|peer| self.members[peer]).collect();
                silent.sort_unstable();
                // A rank says nothing while it waits for others of its host: that host knows for whom.
                let reported = self.arena.as_ref().and_then(|arena| arena.late_elsewhere(sequence));
                let missing = reported.unwrap_or(silent);
                Some(AbortReason::Timeout { call, sequence, timeout, missing, by })
            }
        };
        if let Some(reason) = reason {
            self.abort_flag.abort(&reason);
        }
        // The other ranks of this host must not wait for what is gone.
        if let (Some(arena), Some(reason)) = (&self.arena, self.abort_flag.abort_reason()) {
            arena.abort(reason);
        }
        self.broadcast_abort();
        self.abort().to_error(by, &self.hosts)
    }

    fn header(&self, kind: MessageKind, length: usize) -> MessageHeader {
        MessageHeader {
            kind,
            generation: self.generation,
            sequence: self.sequence,
            step: 0,
            call: [0; CALL_WORDS],
            sends: 0,
            expects: 0,
            length: length as u64,
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        ring(self.index, self.world())
    }

    fn rank(&self) -> Rank {
        self.members[self.index]
    }

    fn abort(&self) -> Abort {
        Abort::Tcp(Arc::clone(&self.abort_flag))
    }

    /// What the last operation that failed did to its output.
    fn output(&self) -> Output {
        if self.touched { Output::Undefined } else { Output::Untouched }
    }

    /// Sends the abort reason to all peers, if there is one and it is not sent yet.
    fn broadcast_abort(&mut self) {
        let Some(reason) = self.abort_flag.abort_reason() else { return };
        if std::mem::replace(&mut self.abort_sent, true) {
            return;
        }
        let mut bytes = self.header(MessageKind::Abort, ABORT_BYTES).to_bytes().to_vec();
        bytes.extend(reason.to_bytes());
        // One limit for all: peers that do not read cost this much once, and those whose hosts do not answer nothing.
        let (at_once, later) = (Instant::now(), Instant::now() + GRACE);
        for peer in self.peers.iter_mut().flatten() {
            let until = if is_silent(&peer.stream) { at_once } else { later };
            let stream = &mut peer.stream;
            let whole = peer.unsent.take().is_none_or(|rest| {
                // SAFETY: called from inside the operation that gave the payload; between operations nothing is unsent.
                unsafe { stream.send_rest(&rest.header, rest.payload, rest.length, rest.done, until) }
            });
            if whole {
                stream.send_all(&bytes, until);
            }
            stream.shut_down_writing();
        }
    }
}

impl Drop for TcpTransport {
    /// Peers that still need this rank learn at once that it is gone.
    fn drop(&mut self) {
        if !self.owner.is_owner() {
            return;
        }
        self.broadcast_abort();
        if !self.abort_sent {
            let goodbye = self.header(MessageKind::Goodbye, 0).to_bytes();
            for peer in self.peers.iter_mut().flatten() {
                peer.stream.send_all(&goodbye, Instant::now());
                peer.stream.shut_down_writing();
            }
        }
        linger(self.peers.iter().flatten().map(|peer| &peer.stream));
    }
}
