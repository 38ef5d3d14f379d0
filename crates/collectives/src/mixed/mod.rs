//! Several hosts with several ranks each: through shared memory inside a host, over TCP between hosts.
//!
//! An operation is done in stages: ranks of a host do their part in their arena, ranks of a *rail* (of the same number in
//! their hosts, see [`Topology`]) theirs over TCP, then those of a host again. A rank has as many connections for collectives
//! as there are other hosts. What has no stages (see `stages` and `parts`) goes straight from rank to rank; the connections for that are
//! opened when it is called first.
//!
//! The order of summation: the values of a host in the order of its ranks, then the sums of the hosts in the order of hosts.
//! It depends on nothing but who runs where, so all ranks have the same bits and the next run has them again; half-precision
//! numbers are rounded once in a host and once between hosts.
//!
//! Where a rank asks for the canonical order, reductions go straight from rank to rank, and have the bits of any other
//! topology: every rank's values cross the network, not every host's.
//!
//! The verdict lives in two places: in the arena for the ranks of this host, and in the alarm of every process for its
//! connections. Who finds it in one puts it into the other ([`Engine::tell`]); waiting on the network looks at the
//! arena now and then.

mod parts;
mod stages;

use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::verdict::Verdict;
use crate::engine::Work;
use crate::fate::Fate;
use crate::operation::{Operation, Target, Whole};
use crate::route::Topology;
use crate::streams::introduction::Members;
use crate::streams::meeting::{Meeting, Wanted};
use crate::streams::pulse::Pulse;
use crate::streams::wire::Purpose;
use crate::streams::{Alarm, Position, Seat};
use crate::ticket::Output;
use crate::{Address, DataType, Error, Rank, Secret, engine, streams};

/// The longest time an operation can be given: far, but where instants do not overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// By how much the deadlines of stages lie apart. Whoever waits nearest to a rank that does not come knows who it is, also
/// when that is the one who would tell other hosts; the others must not be the first to say that they waited long enough.
const LATER: Duration = Duration::from_millis(150);

/// What ranks need to open further connections.
pub(crate) struct Outside {
    pub(crate) listener: TcpListener,
    pub(crate) addresses: Vec<Address>,
    pub(crate) generation: u64,
    pub(crate) secret: Option<Secret>,
}

impl Outside {
    pub(crate) fn members(&self, rank: usize) -> Members<'_> {
        let Outside { addresses, generation, secret, .. } = self;
        Members { rank, addresses, generation: *generation, secret: secret.as_ref() }
    }
}

/// A rank's place among those of its host, and among the hosts.
pub(crate) struct Engine {
    rank: usize,
    topology: Topology,
    /// Sums are in the order of ranks.
    canonical: bool,
    /// The ranks of this host.
    local: engine::Engine,
    /// The ranks of the same number in other hosts; none where the smallest host has no such rank.
    rail: Option<streams::Engine>,
    /// All ranks, once an operation needs them.
    flat: Option<streams::Engine>,
    outside: Outside,
    alarm: Arc<Alarm>,
    completed: u64,
    scratch: Vec<u8>,
    touched: bool,
    /// Who made it: a forked child has a copy, which must not speak for its parent.
    process: u32,
    agreed: Option<u64>,
    /// Feels the pulse of the other hosts; the first rank of a host does.
    pulse: Option<Pulse>,
}

/// One operation while it is under way.
struct Watch {
    whole: Whole,
    deadline: Instant,
    /// All ranks of this host have come.
    met: Cell<bool>,
}

/// What a rank waits for, from where a delay comes to where it only arrives.
#[derive(Clone, Copy)]
enum WaitsFor {
    /// The ranks of its own host to call the operation.
    Host = 0,
    /// Other hosts, whose ranks may wait for one of theirs.
    Hosts = 1,
    /// The ranks of its own host again, which may wait for other hosts.
    HostAgain = 2,
}

impl Watch {
    fn left(&self, waiting: WaitsFor) -> Duration {
        let deadline = self.deadline + LATER * waiting as u32;
        deadline.saturating_duration_since(Instant::now())
    }
}

/// The connections that a rank of this topology has to have for collectives.
pub(crate) fn wanted(topology: &Topology, rank: usize) -> Vec<Wanted> {
    let number = topology.local(rank);
    let rail = if number < topology.rails() { topology.rail(number) } else { Vec::new() };
    rail.into_iter().filter(|peer| *peer != rank).map(|peer| Wanted { peer, purpose: Purpose::Rail }).collect()
}

impl Engine {
    /// Takes the place; `local` has done its own part of that, and `rail` are the connections by the group's ranks.
    pub(crate) fn new(
        rank: usize,
        topology: Topology,
        local: engine::Engine,
        mut connections: Vec<Option<TcpStream>>,
        outside: Outside,
        timeout: Duration,
    ) -> Result<Engine, Error> {
        let deadline = Instant::now() + timeout.min(LONGEST);
        let alarm = Arc::new(Alarm::new()?);
        let number = topology.local(rank);
        let mut engine = Engine {
            rank,
            agreed: local.agreed(),
            canonical: outside.addresses.iter().any(|address| address.canonical),
            topology,
            local,
            rail: None,
            flat: None,
            outside,
            alarm,
            completed: 0,
            scratch: Vec::new(),
            touched: false,
            process: std::process::id(),
            pulse: None,
        };
        if number < engine.topology.rails() {
            let members = engine.topology.rail(number);
            let connections = members.iter().map(|member| connections[*member].take()).collect();
            let seat = engine.seat(engine.topology.host(rank), members);
            let left = deadline.saturating_duration_since(Instant::now());
            let rail = streams::Engine::new(connections, seat, engine.agreed, left)?;
            engine.agreed = rail.agreed();
            engine.rail = Some(rail);
        }
        engine.share_agreed(deadline)?;
        engine.take_position();
        Ok(engine)
    }

    /// From now on notices when another host is silent.
    pub(crate) fn feel_pulse(&mut self, connections: Vec<Option<TcpStream>>) -> Result<(), Error> {
        let members = self.topology.hosts[self.topology.host(self.rank)].clone();
        self.pulse = Some(Pulse::start(self.rank, members, connections, self.fate(), Arc::clone(&self.alarm))?);
        Ok(())
    }

    /// What comes next, for the thread that tells other hosts who has not come.
    fn take_position(&self) {
        self.alarm.come_to(Position { operation: self.completed, part: self.local.next_part() });
    }

    fn seat(&self, index: usize, members: Vec<usize>) -> Seat {
        Seat {
            index,
            members,
            generation: self.outside.generation,
            hosts: self.outside.addresses.iter().map(|address| address.host.clone()).collect(),
            alarm: Arc::clone(&self.alarm),
            arena: Some(Arc::clone(self.local.arena())),
        }
    }

    /// Ranks without a rail learn what the hosts agree on from the first rank of theirs.
    fn share_agreed(&mut self, deadline: Instant) -> Result<(), Error> {
        let mut word = [self.agreed.map_or(0, |completed| completed as i64 + 1)];
        let (buffer, dtype) = (Target::of(&mut word), DataType::I64);
        let operation = Operation::Broadcast { buffer, dtype, root: Rank(0) };
        self.local.run(&operation, deadline.saturating_duration_since(Instant::now()))?;
        self.agreed = (word[0] > 0).then(|| word[0] as u64 - 1);
        Ok(())
    }

    pub(crate) fn fate(&self) -> Fate {
        Fate::Mixed(Arc::clone(self.local.arena()), Arc::clone(&self.alarm))
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.outside.addresses.len()
    }

    /// Operations completed since the group was connected.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
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
        self.touched = false;
        let call = operation.check(self.rank, self.world())?;
        let timeout = timeout.min(LONGEST);
        let whole = Whole { call, sequence: self.completed, ranks: self.world(), timeout };
        let watch = Watch { whole, deadline: Instant::now() + timeout, met: Cell::new(false) };
        self.alarm.begin(call, self.completed);
        let result = if self.fate().is_aborted() { Err(self.why_aborted()) } else { self.perform(operation, &watch) };
        match result {
            Ok(()) => {
                self.completed += 1;
                self.take_position();
                Ok(())
            }
            Err(error) => {
                let fate = self.fate();
                // Without a verdict it is something that happened to this rank alone.
                fate.abort(&fate.verdict().unwrap_or(Verdict::Aborted { by: self.rank }));
                self.tell();
                Err(error)
            }
        }
    }

    /// Lets everybody know that the group is aborted.
    pub(crate) fn tell(&mut self) {
        let fate = self.fate();
        let Some(verdict) = fate.verdict() else { return };
        fate.abort(&verdict);
        for streams in self.rail.iter_mut().chain(self.flat.iter_mut()) {
            streams.tell();
        }
    }

    fn why_aborted(&self) -> Error {
        let host =
            |rank: usize| self.outside.addresses.get(rank).map(|address| address.host.clone()).unwrap_or_default();
        let own = || Error::Aborted { by: Rank(self.rank) };
        self.fate().verdict().map_or_else(own, |verdict| verdict.to_error(host))
    }

    /// A part of the operation among the ranks of this host.
    fn inside(&mut self, work: &Work<'_>, watch: &Watch) -> Result<(), Error> {
        let waiting = if watch.met.get() { WaitsFor::HostAgain } else { WaitsFor::Host };
        self.local.run_part(work, &watch.whole, watch.left(waiting))?;
        watch.met.set(true);
        Ok(())
    }

    /// Nobody of this host goes on before all have come.
    fn meet_inside(&mut self, watch: &Watch) -> Result<(), Error> {
        self.inside(&Work::Operation(&Operation::Barrier), watch)
    }

    /// A part of the operation among the hosts, for ranks that have a rail.
    fn between(&mut self, operation: &Operation, watch: &Watch) -> Result<(), Error> {
        match &mut self.rail {
            Some(rail) => rail.run_part(operation, &watch.whole, watch.left(WaitsFor::Hosts)),
            None => Ok(()),
        }
    }

    /// A part of the operation among the hosts, and work inside this one at the same time. The thread for the former ends
    /// with it; if there is no work, the part is done here.
    fn meanwhile(
        &mut self,
        operation: Operation,
        watch: &Watch,
        work: Option<impl FnOnce(&mut Engine) -> Result<(), Error>>,
    ) -> Result<(), Error> {
        let Some(work) = work else { return self.between(&operation, watch) };
        let Some(mut rail) = self.rail.take() else { return work(self) };
        let results = std::thread::scope(|scope| {
            let (rail, whole, left) = (&mut rail, watch.whole, watch.left(WaitsFor::Hosts));
            let travel = move || rail.run_part(&operation, &whole, left);
            let thread = std::thread::Builder::new().name("instep-rail".to_owned()).spawn_scoped(scope, travel);
            let thread = thread.map_err(|error| Error::system("start a thread", error))?;
            let near = work(self);
            // Whoever fails first aborts the group, which ends the other one.
            let far = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            near.and(far)
        });
        self.rail = Some(rail);
        results
    }

    /// An operation without stages. The ranks compare what they call before, with those who have called something else.
    fn straight(&mut self, operation: &Operation, watch: &Watch) -> Result<(), Error> {
        self.meet_inside(watch)?;
        self.between(&Operation::Barrier, watch)?;
        if self.flat.is_none() {
            self.meet_inside(watch)?;
            let (rank, world) = (self.rank, self.world());
            let purpose = Purpose::Collectives;
            let wanted: Vec<Wanted> =
                (0..world).filter(|peer| *peer != rank).map(|peer| Wanted { peer, purpose }).collect();
            let (listener, members) = (&self.outside.listener, self.outside.members(rank));
            let (timeout, deadline) = (watch.whole.timeout, watch.deadline);
            let meeting = Meeting { listener, members, wanted: &wanted, timeout, deadline };
            let connections = meeting.hold()?.take(purpose, world);
            let seat = self.seat(rank, (0..world).collect());
            self.flat = Some(streams::Engine::new(connections, seat, None, watch.left(WaitsFor::Hosts))?);
        }
        let Some(flat) = &mut self.flat else { return Ok(()) };
        let result = flat.run_part(operation, &watch.whole, watch.left(WaitsFor::Hosts));
        self.touched |= flat.output() == Output::Undefined;
        result
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The parts say goodbye themselves; what is decided goes ahead of that.
        if self.process == std::process::id() {
            self.tell();
        }
    }
}
