//! Several hosts with several ranks each: through shared memory inside a host, over TCP between hosts.
//!
//! An operation is done in stages: ranks of a host do their part in their arena, ranks of a *rail* (of the same number in
//! their hosts, see [`Topology`]) theirs over TCP, then those of a host again. A rank has as many connections for collectives
//! as there are other hosts. What has no stages (see `stages` and `gather_scatter`) goes straight from rank to rank; the connections for that are
//! opened when it is called first.
//!
//! The order of summation: the values of a host in the order of its ranks, then the sums of the hosts in the order of hosts.
//! It depends on nothing but who runs where, so all ranks have the same bits and the next run has them again; half-precision
//! numbers are rounded once in a host and once between hosts.
//!
//! Where a rank asks for the canonical order, reductions go straight from rank to rank, and have the bits of any other
//! topology: every rank's values cross the network, not every host's.
//!
//! The abort reason lies in two places: in the arena for the ranks of this host, and in the abort flag of every process for its
//! connections. Who finds it in one puts it into the other ([`HierarchicalTransport::broadcast_abort`]); waiting on the network looks at the
//! arena now and then.

mod gather_scatter;
mod stages;

use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abort::{Abort, AbortFlag, AbortReason, Position};
use crate::operation::{Operation, Target, Whole};
use crate::partition::NetworkChannels;
use crate::schedule::Topology;
use crate::shm::transport::{ShmTransport, Work};
use crate::sync::{ForkGuard, MAX_TIMEOUT, until};
use crate::tcp::TcpMembership;
use crate::tcp::bootstrap::TcpBootstrap;
use crate::tcp::channels::TcpChannels;
use crate::tcp::handshake::Membership;
use crate::tcp::heartbeat::Heartbeat;
use crate::tcp::setup::WantedConnection;
use crate::tcp::stream::Stream;
use crate::tcp::wire::Purpose;
use crate::ticket::Output;
use crate::transport::Transport;
use crate::{Address, DataType, Error, Rank, Secret};

/// By how much the deadlines of stages lie apart. Whoever waits nearest to a rank that does not come knows who it is, also
/// when that is the one who would tell other hosts; the others must not be the first to say that they waited long enough.
const STAGE_STAGGER: Duration = Duration::from_millis(150);

/// What ranks need to open further connections.
pub(crate) struct NetworkContext {
    pub(crate) listener: TcpListener,
    pub(crate) addresses: Vec<Address>,
    pub(crate) generation: u64,
    pub(crate) secret: Option<Secret>,
    pub(crate) encrypt: bool,
}

impl NetworkContext {
    pub(crate) fn membership(&self, rank: Rank) -> Membership<'_> {
        let &NetworkContext { ref addresses, generation, ref secret, encrypt, .. } = self;
        Membership { rank, addresses, generation, secret: secret.as_ref(), encrypt }
    }

    /// How many channels a transport of so many members has.
    pub(crate) fn channels(&self, members: usize) -> NetworkChannels {
        NetworkChannels::agreed(self.addresses.iter().map(|address| address.channels), members - 1)
    }

    /// By rank.
    fn hosts(&self) -> Vec<String> {
        self.addresses.iter().map(|address| address.host.clone()).collect()
    }
}

/// One rank's side of the collectives inside its host and between hosts.
pub(crate) struct HierarchicalTransport {
    rank: Rank,
    topology: Topology,
    /// Sums are in the order of ranks.
    canonical: bool,
    /// The ranks of this host.
    local: ShmTransport,
    /// The ranks of the same number in other hosts; none where the smallest host has no such rank.
    rail: Option<TcpChannels>,
    /// All ranks, once an operation needs them.
    flat: Option<TcpChannels>,
    /// The connections for that which there were when it was given up.
    given_up: Vec<TcpStream>,
    network: NetworkContext,
    abort_flag: Arc<AbortFlag>,
    completed: u64,
    scratch: Vec<u8>,
    touched: bool,
    owner: ForkGuard,
    agreed: Option<u64>,
    /// The first rank of each host has one.
    heartbeat: Option<Heartbeat>,
}

/// One operation while it is under way.
struct StageContext {
    whole: Whole,
    deadline: Instant,
    /// All ranks of this host have come.
    host_entered: Cell<bool>,
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

impl StageContext {
    fn left(&self, waiting: WaitsFor) -> Duration {
        let deadline = self.deadline + STAGE_STAGGER * waiting as u32;
        until(deadline)
    }
}

/// The connections that a rank of this topology has to have for collectives.
pub(crate) fn wanted(topology: &Topology, rank: Rank, channels: NetworkChannels) -> Vec<WantedConnection> {
    let number = topology.local(rank);
    let rail = if number.0 < topology.rails() { topology.rail(number) } else { Vec::new() };
    let peers = rail.into_iter().filter(|peer| *peer != rank);
    WantedConnection::in_channels(peers, channels, Purpose::Rail)
}

impl HierarchicalTransport {
    /// `local` is connected already; `connections` are those of the rail in every channel, by the group's ranks.
    pub(crate) fn new(
        rank: Rank,
        topology: Topology,
        local: ShmTransport,
        connections: Vec<Vec<Option<Stream>>>,
        network: NetworkContext,
        timeout: Duration,
    ) -> Result<HierarchicalTransport, Error> {
        let deadline = Instant::now() + timeout.min(MAX_TIMEOUT);
        let abort_flag = Arc::new(AbortFlag::new()?);
        let number = topology.local(rank);
        let mut transport = HierarchicalTransport {
            rank,
            agreed: local.agreed(),
            canonical: network.addresses.iter().any(|address| address.canonical),
            topology,
            local,
            rail: None,
            flat: None,
            given_up: Vec::new(),
            network,
            abort_flag,
            completed: 0,
            scratch: Vec::new(),
            touched: false,
            owner: ForkGuard::new(),
            heartbeat: None,
        };
        if number.0 < transport.topology.rails() {
            let members = transport.topology.rail(number);
            let channels = transport.network.channels(members.len());
            let of_rail = |mut connections: Vec<Option<Stream>>| -> Vec<Option<Stream>> {
                members.iter().map(|member| connections[member.0].take()).collect()
            };
            let connections = connections.into_iter().map(of_rail).collect();
            let membership = transport.membership(transport.topology.host(rank), members.clone());
            let left = until(deadline);
            let rail = TcpChannels::new(connections, &membership, channels, transport.agreed, left)?;
            transport.agreed = rail.agreed();
            transport.rail = Some(rail);
        }
        transport.share_agreed(deadline)?;
        transport.publish_position();
        Ok(transport)
    }

    /// From now on notices when another host is silent.
    pub(crate) fn start_heartbeat(&mut self, connections: Vec<Option<Stream>>) -> Result<(), Error> {
        let members = self.topology.hosts[self.topology.host(self.rank)].clone();
        self.heartbeat = Some(Heartbeat::start(self.rank, members, connections, self.abort(), &self.abort_flag)?);
        Ok(())
    }

    /// What comes next, for the thread that tells other hosts who has not come.
    fn publish_position(&self) {
        self.abort_flag.set_position(Position { operation: self.completed, part: self.local.next_part() });
    }

    fn membership(&self, index: usize, members: Vec<Rank>) -> TcpMembership {
        TcpMembership {
            index,
            members,
            generation: self.network.generation,
            hosts: self.network.hosts(),
            abort_flag: Arc::clone(&self.abort_flag),
            arena: Some(Arc::clone(self.local.arena())),
        }
    }

    /// Ranks without a rail learn what the hosts agree on from the first rank of theirs.
    fn share_agreed(&mut self, deadline: Instant) -> Result<(), Error> {
        let mut word = [self.agreed.map_or(0, |completed| completed as i64 + 1)];
        let (buffer, dtype) = (Target::of(&mut word), DataType::I64);
        let operation = Operation::Broadcast { buffer, dtype, root: Rank(0) };
        self.local.run(&operation, until(deadline))?;
        self.agreed = (word[0] > 0).then(|| word[0] as u64 - 1);
        Ok(())
    }

    fn world(&self) -> usize {
        self.network.addresses.len()
    }

    fn abort_error(&self) -> Error {
        self.abort().to_error(self.rank, &self.network.hosts())
    }

    /// A part of the operation among the ranks of this host.
    fn intra_host(&mut self, work: &Work<'_>, context: &StageContext) -> Result<(), Error> {
        let waiting = if context.host_entered.get() { WaitsFor::HostAgain } else { WaitsFor::Host };
        self.local.run_part(work, &context.whole, context.left(waiting))?;
        context.host_entered.set(true);
        Ok(())
    }

    /// Nobody of this host goes on before all have come.
    fn host_barrier(&mut self, context: &StageContext) -> Result<(), Error> {
        self.intra_host(&Work::Operation(&Operation::Barrier), context)
    }

    /// A part of the operation among the hosts, for ranks that have a rail.
    fn inter_host(&mut self, operation: &Operation, context: &StageContext) -> Result<(), Error> {
        match &mut self.rail {
            Some(rail) => rail.run_part(operation, &context.whole, context.left(WaitsFor::Hosts)),
            None => Ok(()),
        }
    }

    /// A part of the operation among the hosts, and work inside this one at the same time. The thread for the former ends
    /// with it; if there is no work, the part is done here.
    fn overlap(
        &mut self,
        operation: Operation,
        context: &StageContext,
        work: Option<impl FnOnce(&mut HierarchicalTransport) -> Result<(), Error>>,
    ) -> Result<(), Error> {
        let Some(work) = work else { return self.inter_host(&operation, context) };
        let Some(mut rail) = self.rail.take() else { return work(self) };
        let results = std::thread::scope(|scope| {
            let (rail, whole, left) = (&mut rail, context.whole, context.left(WaitsFor::Hosts));
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
    fn direct(&mut self, operation: &Operation, context: &StageContext) -> Result<(), Error> {
        self.host_barrier(context)?;
        self.inter_host(&Operation::Barrier, context)?;
        if self.flat.is_none() {
            self.host_barrier(context)?;
            let (rank, world) = (self.rank, self.world());
            let channels = self.network.channels(world);
            // Of a rank that is lost now nothing else is noticed here: nobody has a connection to it yet.
            let aborted = || {
                self.local.abort_if_peer_is_lost(&context.whole);
                self.abort().is_aborted().then(|| self.abort_error())
            };
            let bootstrap = TcpBootstrap {
                listener: &self.network.listener,
                membership: self.network.membership(rank),
                wanted: &WantedConnection::in_channels(rank.others(world), channels, Purpose::Collectives),
                timeout: context.whole.timeout,
                deadline: context.deadline,
                in_vain: &aborted,
            };
            let connected = bootstrap.run().map_err(|given_up| {
                self.given_up = given_up.sockets;
                given_up.error
            });
            let connections = connected?.take_channels(Purpose::Collectives, channels, world);
            let membership = self.membership(rank.0, Rank::all(world).collect());
            let left = context.left(WaitsFor::Hosts);
            self.flat = Some(TcpChannels::new(connections, &membership, channels, None, left)?);
        }
        let Some(flat) = &mut self.flat else { return Ok(()) };
        let result = flat.run_part(operation, &context.whole, context.left(WaitsFor::Hosts));
        self.touched |= flat.output() == Output::Undefined;
        result
    }
}

impl Transport for HierarchicalTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn abort(&self) -> Abort {
        Abort::Hierarchical(Arc::clone(self.local.arena()), Arc::clone(&self.abort_flag))
    }

    fn run(&mut self, operation: &Operation, timeout: Duration) -> Result<(), Error> {
        self.touched = false;
        let call = operation.check(self.rank.0, self.world())?;
        let timeout = timeout.min(MAX_TIMEOUT);
        let whole = Whole { call, sequence: self.completed, ranks: self.world(), timeout };
        let context = StageContext { whole, deadline: Instant::now() + timeout, host_entered: Cell::new(false) };
        self.abort_flag.begin(call, self.completed);
        let result =
            if self.abort().is_aborted() { Err(self.abort_error()) } else { self.perform(operation, &context) };
        match result {
            Ok(()) => {
                self.completed += 1;
                self.publish_position();
                Ok(())
            }
            Err(error) => {
                let abort = self.abort();
                // Without a reason it is something that happened to this rank alone.
                abort.abort(&abort.abort_reason().unwrap_or(AbortReason::Aborted { by: self.rank }));
                self.broadcast_abort();
                Err(error)
            }
        }
    }

    fn broadcast_abort(&mut self) {
        let abort = self.abort();
        let Some(reason) = abort.abort_reason() else { return };
        abort.abort(&reason);
        for transport in self.rail.iter_mut().chain(self.flat.iter_mut()) {
            transport.broadcast_abort();
        }
    }

    fn completed(&self) -> u64 {
        self.completed
    }

    fn agreed(&self) -> Option<u64> {
        self.agreed
    }

    fn output(&self) -> Output {
        if self.touched { Output::Undefined } else { Output::Untouched }
    }
}

impl Drop for HierarchicalTransport {
    fn drop(&mut self) {
        // The parts say goodbye themselves; what is decided goes ahead of that.
        if self.owner.is_owner() {
            self.broadcast_abort();
        }
    }
}
