//! Collectives over TCP: plans carried out, with the same bits as through shared memory.
//!
//! | module | what it is for |
//! |---|---|
//! | `network` | where a rank can be reached |
//! | `secret` | what only the ranks of a job know |
//! | `introduction` | two ranks recognise each other on a new connection |
//! | `meeting` | ranks come together: pairs of them get their connections |
//! | `wire` | what ranks say to each other, as bytes |
//! | `moves` | the operations as plans, see [`crate::route`] |
//! | `exchange` | carries out a plan |
//! | `pulse` | notices hosts that fall silent, and tells all hosts why a group ends and who has not come |
//! | `words` | what hosts say to each other there, as bytes |
//!
//! In every operation each rank hears from every other, also where there is nothing to move, and compares what they call:
//! none returns before all have entered. Buffers are cut into messages, so that the memory beside them is bounded. All of it
//! happens on the thread of the caller.
//!
//! A rank that finds out that the group cannot go on sends the verdict to all peers before anything else, so that they tell
//! the same story. A message that was begun is finished first, which is why messages are not long.
#![expect(unsafe_code, reason = "copies and reduces memory that callers vouch for")]

mod exchange;
pub(crate) mod introduction;
pub(crate) mod meeting;
mod moves;
pub(crate) mod network;
pub(crate) mod pulse;
pub(crate) mod secret;
pub(crate) mod wire;
mod words;

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use self::exchange::Stop;
use self::pulse::Pulse;
use self::wire::{Header, Kind, VERDICT_BYTES};
use crate::arena::Arena;
use crate::arena::verdict::Verdict;
use crate::call::{CALL_WORDS, Call};
use crate::fate::Fate;
use crate::operation::{Operation, Source, Target, Whole};
use crate::queue::lock;
use crate::socket::{is_silent, linger, send_all, send_rest};
use crate::ticket::Output;
use crate::{DataType, Error, Rank};

/// The longest time an operation can be given: far, but where instants do not overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Operations of the engine itself before the caller's first.
const OWN_OPERATIONS: u64 = 1;
/// How often a rank looks at its connections before it sleeps: some microseconds. Who sleeps is woken at once on a machine
/// that others use too; who lets others run in between gets its core back when they please.
const LOOKS: u32 = 8;
/// How long a peer may take to read what comes before a verdict.
const GRACE: Duration = Duration::from_millis(500);

/// Why the group is aborted, and something that wakes whoever waits in this process.
pub(crate) struct Alarm {
    verdict: OnceLock<Verdict>,
    wake: EventFd,
    /// The last operation that this rank began, for whoever finds a peer gone.
    under_way: Mutex<(Call, u64)>,
    /// Where this rank is among those of its host.
    position: Mutex<Position>,
}

/// The operation that a rank is in, or that it calls next, and the part of the arena's work that begins it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    pub(crate) operation: u64,
    pub(crate) part: u64,
}

impl Alarm {
    pub(crate) fn new() -> Result<Alarm, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake =
            EventFd::from_value_and_flags(0, flags).map_err(|error| Error::system("create an event handle", error))?;
        let nothing = Call::new(crate::Kind::Barrier, DataType::Bytes, 0);
        let (under_way, position) = (Mutex::new((nothing, 0)), Mutex::new(Position::default()));
        Ok(Alarm { verdict: OnceLock::new(), wake, under_way, position })
    }

    /// Aborts the group for this reason, unless it is aborted already. Nobody reads the event: it stays.
    pub(crate) fn abort(&self, verdict: &Verdict) {
        if self.verdict.set(verdict.clone()).is_ok() {
            let _ = self.wake.write(1);
        }
    }

    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.get()
    }

    /// An operation begins.
    pub(crate) fn begin(&self, call: Call, sequence: u64) {
        *lock(&self.under_way) = (call, sequence);
    }

    /// This rank is done with all operations before this one.
    pub(crate) fn come_to(&self, position: Position) {
        *lock(&self.position) = position;
    }

    fn position(&self) -> Position {
        *lock(&self.position)
    }

    /// The operation that began last.
    fn under_way(&self) -> (Call, u64) {
        *lock(&self.under_way)
    }
}

/// What every exchange of an operation needs to know.
struct Watch {
    call: Call,
    sequence: u64,
    /// Which operation of the caller, without the engine's own at the start.
    shown: u64,
    /// How many ranks' values the result is of.
    ranks: usize,
    timeout: Duration,
    deadline: Instant,
}

/// The connection to one rank.
struct Peer {
    socket: TcpStream,
    /// A message that is not all out: its header, where the rest is, and how much is done.
    unsent: Option<Unsent>,
    /// Which line of the plan that is.
    sending: Option<usize>,
    /// What comes, as far as it is there.
    coming: Option<exchange::Coming>,
    /// Messages of the operation under way that were begun to be sent, and that were received.
    sent: u64,
    received: u64,
    /// Has sent a part of the operation under way.
    entered: bool,
    /// Its end is closed, and there is nothing left to learn from it.
    hung_up: bool,
}

struct Unsent {
    header: [u8; wire::HEADER_BYTES],
    payload: *const u8,
    length: usize,
    done: usize,
}

// SAFETY: the pointer is used only during the call that gave it, by the thread that holds the engine.
unsafe impl Send for Unsent {}

/// Where an engine is among the ranks of a group.
pub(crate) struct Seat {
    /// Which of the members this rank is.
    pub(crate) index: usize,
    /// The group's rank of every member.
    pub(crate) members: Vec<usize>,
    pub(crate) generation: u64,
    /// In the order of the group's ranks.
    pub(crate) hosts: Vec<String>,
    pub(crate) alarm: Arc<Alarm>,
    /// Shared with other ranks of this host, which may abort the group there.
    pub(crate) arena: Option<Arc<Arena>>,
}

/// A rank's place among the others.
pub(crate) struct Engine {
    /// Which of the members this is.
    rank: usize,
    members: Vec<usize>,
    generation: u64,
    hosts: Vec<String>,
    alarm: Arc<Alarm>,
    arena: Option<Arc<Arena>>,
    /// In the order of members; none for this one.
    peers: Vec<Option<Peer>>,
    sequence: u64,
    /// How often to look at the connections before sleeping.
    looks: u32,
    scratch: Vec<u8>,
    touched: bool,
    /// The verdict is on its way to the peers.
    told: bool,
    /// Who made it: a forked child has a copy, which must not speak for its parent.
    process: u32,
    agreed: Option<u64>,
    /// Feels the pulse of the other hosts.
    pulse: Option<Pulse>,
}

impl Engine {
    /// Takes the place, and exchanges with the others what they remember.
    pub(crate) fn new(
        connections: Vec<Option<TcpStream>>,
        seat: Seat,
        history: Option<u64>,
        timeout: Duration,
    ) -> Result<Engine, Error> {
        let Seat { index, members, generation, hosts, alarm, arena } = seat;
        let peer = |socket| Peer {
            socket,
            unsent: None,
            sending: None,
            coming: None,
            sent: 0,
            received: 0,
            entered: false,
            hung_up: false,
        };
        let peers: Vec<Option<Peer>> = connections.into_iter().map(|connection| connection.map(peer)).collect();
        let world = peers.len();
        let mut engine = Engine {
            rank: index,
            members,
            generation,
            hosts,
            alarm,
            arena,
            peers,
            sequence: 0,
            looks: LOOKS,
            scratch: Vec::new(),
            touched: false,
            told: false,
            process: std::process::id(),
            agreed: None,
            pulse: None,
        };
        let own = [history.map_or(0, |completed| completed as i64 + 1)];
        let mut all = vec![0i64; world];
        let (input, outputs) = (Source::of(&own), Target::of(&mut all).split(world));
        engine.run(&Operation::AllGather { input, outputs, dtype: DataType::I64 }, timeout)?;
        engine.agreed = all.into_iter().filter(|completed| *completed > 0).map(|completed| completed as u64 - 1).min();
        Ok(engine)
    }

    /// From now on notices when another host is silent.
    pub(crate) fn feel_pulse(&mut self, connections: Vec<Option<TcpStream>>) -> Result<(), Error> {
        let fate = Fate::Streams(Arc::clone(&self.alarm));
        self.pulse = Some(Pulse::start(self.rank(), Vec::new(), connections, fate, Arc::clone(&self.alarm))?);
        Ok(())
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// The group's number of this rank.
    pub(crate) fn rank(&self) -> usize {
        self.members[self.rank]
    }

    fn world(&self) -> usize {
        self.peers.len()
    }

    /// Operations completed since the group was connected.
    pub(crate) fn completed(&self) -> u64 {
        self.sequence.saturating_sub(OWN_OPERATIONS)
    }

    pub(crate) fn agreed(&self) -> Option<u64> {
        self.agreed
    }

    /// What the last operation that failed did to its output.
    pub(crate) fn output(&self) -> Output {
        if self.touched { Output::Undefined } else { Output::Untouched }
    }

    /// Runs an operation whose buffers are valid until it returns. After an error the group is aborted, except for an
    /// operation that contradicts itself, of which nothing was sent.
    pub(crate) fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error> {
        let call = operation.check(self.rank, self.world())?;
        let timeout = timeout.min(LONGEST);
        let whole = Whole { call, sequence: self.completed(), ranks: self.world(), timeout };
        self.run_part(operation, &whole, timeout)
    }

    /// Runs a part of what the group's ranks called, in the time that is left for it; as [`Engine::run`] otherwise.
    pub(crate) fn run_part(&mut self, operation: &Operation, whole: &Whole, left: Duration) -> Result<(), Error> {
        self.touched = false;
        let &Whole { call, sequence: shown, ranks, timeout } = whole;
        let deadline = Instant::now() + left.min(LONGEST);
        self.alarm.begin(call, shown);
        let watch = Watch { call, sequence: self.sequence, shown, ranks, timeout, deadline };
        self.peers.iter_mut().flatten().for_each(|peer| peer.entered = false);
        let result = match self.alarm.verdict() {
            Some(_) => Err(Stop::Aborted),
            // Others may have given up an operation after they had sent all their parts of it.
            None => self.perform(operation, &watch).and_then(|()| self.overhear(&watch)),
        };
        match result {
            Ok(()) => {
                self.sequence += 1;
                Ok(())
            }
            Err(stop) => Err(self.failed(stop, &watch)),
        }
    }

    fn failed(&mut self, stop: Stop, watch: &Watch) -> Error {
        let by = self.members[self.rank];
        let &Watch { call, shown: sequence, timeout, .. } = watch;
        let verdict = match stop {
            Stop::Aborted => None,
            Stop::Verdict(verdict) => Some(verdict),
            Stop::Lost(peer, noticed) => Some(Verdict::Lost { rank: self.members[peer], call, sequence, noticed, by }),
            Stop::Deadline => {
                let absent = |rank: &usize| self.peers[*rank].as_ref().is_some_and(|peer| !peer.entered);
                let silent = (0..self.world()).filter(absent).map(|peer| self.members[peer]).collect();
                // A rank says nothing while it waits for others of its host: that host knows for whom.
                let reported = self.arena.as_ref().and_then(|arena| arena.absent_elsewhere(sequence));
                let missing = reported.unwrap_or(silent);
                Some(Verdict::Timeout { call, sequence, timeout, missing, by })
            }
        };
        if let Some(verdict) = verdict {
            self.alarm.abort(&verdict);
        }
        // The other ranks of this host must not wait for what will not come.
        if let (Some(arena), Some(verdict)) = (&self.arena, self.alarm.verdict()) {
            arena.abort(verdict);
        }
        self.tell();
        let host = |rank: usize| self.hosts.get(rank).cloned().unwrap_or_default();
        self.alarm.verdict().map_or(Error::Aborted { by: Rank(by) }, |verdict| verdict.to_error(host))
    }

    fn header(&self, kind: Kind, length: usize) -> Header {
        Header {
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

    /// Sends the verdict to all peers, if there is one and it is not sent yet.
    pub(crate) fn tell(&mut self) {
        let Some(verdict) = self.alarm.verdict() else { return };
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let mut bytes = self.header(Kind::Verdict, VERDICT_BYTES).to_bytes().to_vec();
        bytes.extend(wire::verdict_to_bytes(verdict));
        // One limit for all: peers that do not read cost this much once, and those whose hosts do not answer nothing.
        let (at_once, later) = (Instant::now(), Instant::now() + GRACE);
        for peer in self.peers.iter_mut().flatten() {
            let until = if is_silent(&peer.socket) { at_once } else { later };
            let whole = peer.unsent.take().is_none_or(|rest| {
                // SAFETY: told from inside the operation that gave the payload; between operations nothing is unsent.
                unsafe { send_rest(&peer.socket, &rest.header, rest.payload, rest.length, rest.done, until) }
            });
            if whole {
                send_all(&peer.socket, &bytes, until);
            }
            let _ = peer.socket.shutdown(Shutdown::Write);
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world());
        (1..world).map(move |distance| (rank + distance) % world)
    }
}

impl Drop for Engine {
    /// Peers that still need this rank learn at once that it will not come.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.tell();
        if !self.told {
            let goodbye = self.header(Kind::Goodbye, 0).to_bytes();
            for peer in self.peers.iter().flatten() {
                send_all(&peer.socket, &goodbye, Instant::now());
                let _ = peer.socket.shutdown(Shutdown::Write);
            }
        }
        linger(self.peers.iter().flatten().map(|peer| &peer.socket));
    }
}

impl Alarm {
    fn handle(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
