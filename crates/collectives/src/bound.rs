//! A rank before it has met its peers, and how it meets them.
//!
//! Ranks exchange their addresses through whatever the caller has. When all of them share memory they meet in an arena.
//! Otherwise each opens a port ([`Bound::needs_network`], [`Bound::open_to_network`]) and they exchange addresses once more:
//! nobody listens on the network who need not.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use instep_recorder::GroupRecorder;

use crate::arena::{MOST_LANES, handshake};
use crate::engine::Wishes;
use crate::group::Group;
use crate::mail::{self, Setup, Ways};
use crate::mixed::{self, Outside};
use crate::route::Topology;
use crate::streams::meeting::Wanted;
use crate::streams::network::{self, Network};
use crate::streams::wire::Purpose;
use crate::streams::{self, Alarm, Seat, meeting};
use crate::transport::Engine;
use crate::{Address, Error, Rank, Secret, engine, plan};

const SMALLEST_SLOT: usize = 64 << 10;

/// How a group works. All ranks must use the same `slot_bytes`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How messages call this host; its own name unless given.
    pub host: Option<String>,
    /// How long an operation may take that does not say so itself.
    pub timeout: Duration,
    /// Whether peers read long messages straight out of each other's memory, if the kernel permits it.
    pub single_copy: bool,
    /// Bytes of a slot in shared memory, two of which every rank has. A step uses a quarter of it, to stay in the private
    /// cache, or all of it when there are more ranks than cores.
    pub slot_bytes: usize,
    /// How many threads of a rank share the work of a large operation inside a host, up to eight; unless given, one
    /// less than there are cores for each rank, up to four. All ranks do as the most modest of them.
    pub lanes: Option<usize>,
    /// What each of them moves at least. All ranks do as the most modest of them.
    pub lane_bytes: usize,
    /// How many ranks of the job share the cores of this host; those of the group unless given.
    pub local_world: Option<usize>,
    /// What the bytes travel through.
    pub transport: Transport,
    /// The network interfaces to be reached at (`"eth0"`, or several with commas between), all unless given.
    pub interface: Option<String>,
    /// Where the operations are written down for those who ask why a job hangs.
    pub recorder: Option<Arc<GroupRecorder>>,
    /// What ranks of other hosts must know to be let in; all ranks have the same, or none has one.
    pub secret: Option<Secret>,
    /// Sums in the order of ranks whatever the hosts: the same bits on every topology, for more bytes between hosts. If one
    /// rank says so, all do.
    pub canonical: bool,
    /// Ranks with different names here share no memory even if they could, as if they were on different hosts: for tests.
    pub island: Option<String>,
}

/// What the bytes of a group travel through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory if all ranks share it, TCP otherwise.
    #[default]
    Automatic,
    /// TCP also inside a host; if one rank says so, all use it.
    Streams,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: None,
            timeout: Duration::from_secs(30 * 60),
            single_copy: true,
            slot_bytes: 1 << 20,
            lanes: None,
            lane_bytes: 512 << 10,
            local_world: None,
            transport: Transport::Automatic,
            interface: None,
            recorder: None,
            secret: None,
            canonical: false,
            island: None,
        }
    }
}

/// A rank that can be met but has not met its peers yet.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    /// As it is without a network.
    near: Address,
    /// The open ports, and the address with them.
    network: OnceLock<(Network, Address)>,
    pub(crate) options: Options,
}

/// What a rank has once it has met its peers.
pub(crate) struct Met {
    pub(crate) engine: Engine,
    pub(crate) mail: Setup,
}

impl Group {
    /// Makes this process ready to be met. The address is for the other ranks.
    pub fn bind(options: Options) -> Result<Bound, Error> {
        if options.slot_bytes < SMALLEST_SLOT || !options.slot_bytes.is_multiple_of(4096) {
            return Err(Error::invalid(format!(
                "slot_bytes is {}, it must be a multiple of 4096 and at least {SMALLEST_SLOT}",
                options.slot_bytes
            )));
        }
        let own_name = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = options.host.clone().or_else(own_name).unwrap_or_else(|| "localhost".to_owned());
        let (listener, mut near) = handshake::bind(host)?;
        if options.transport == Transport::Streams {
            // Memory that nobody else has: every rank draws the same conclusion from the addresses.
            near.memory = format!("{}/{}", near.memory, String::from_utf8_lossy(&near.socket));
        }
        near.canonical = options.canonical;
        if let Some(island) = &options.island {
            near.memory = format!("{}/{island}", near.memory);
        }
        Ok(Bound { listener, near, network: OnceLock::new(), options })
    }
}

impl Bound {
    /// Where this rank can be met.
    pub fn address(&self) -> &Address {
        self.network.get().map_or(&self.near, |(_, address)| address)
    }

    /// Whether these ranks need a network to meet. All ranks get the same answer for the same addresses.
    pub fn needs_network(&self, addresses: &[Address]) -> bool {
        !handshake::can_share(addresses)
    }

    /// Opens TCP ports for the other ranks, unless they are open already. The address is another one then.
    pub fn open_to_network(&self) -> Result<(), Error> {
        if self.network.get().is_none() {
            let network = network::open(self.options.interface.as_deref())?;
            let (endpoints, mail_port) = (network.endpoints.clone(), network.mail_port);
            let address = Address { endpoints, mail_port, ..self.near.clone() };
            // Of two threads that do this at once, one opens the ports that count.
            let _ = self.network.set((network, address));
        }
        Ok(())
    }

    /// Meets the other ranks, whose addresses are given in the order of ranks. All give the same generation.
    pub fn connect(
        self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        timeout: Duration,
    ) -> Result<Group, Error> {
        self.check(rank, addresses)?;
        let met = self.meet(rank, addresses, generation, None, timeout)?;
        Group::new(self, met, generation)
    }

    pub(crate) fn check(&self, rank: Rank, addresses: &[Address]) -> Result<(), Error> {
        match addresses.get(rank.0) {
            None => Err(Error::invalid(format!("rank {rank} is not one of {} addresses", addresses.len()))),
            Some(address) if address != self.address() => {
                Err(Error::invalid(format!("the address given for rank {rank} is not the one bound here")))
            }
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn meet(
        &self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        history: Option<u64>,
        timeout: Duration,
    ) -> Result<Met, Error> {
        let started = Instant::now();
        let timeout = timeout.min(Duration::from_secs(365 * 24 * 3600));
        let deadline = started + timeout;
        let hosts = addresses.iter().map(|address| address.host.clone()).collect();
        let (engine, ways) = if self.needs_network(addresses) {
            let Some((Network { listener, mail, .. }, _)) = self.network.get() else {
                let other = addresses.iter().enumerate().find(|(_, address)| address.memory != self.near.memory);
                let (other, host) = other.map_or((rank.0, self.near.host()), |(rank, other)| (rank, other.host()));
                return Err(Error::invalid(format!(
                    "rank {other} on {host} shares no memory with rank {rank} on {}, and the network is not open\nhint: \
                     call open_to_network on every rank and exchange the addresses again",
                    self.near.host()
                )));
            };
            let duplicate = |listener: &TcpListener| {
                listener.try_clone().map_err(|error| Error::system("duplicate a socket", error))
            };
            let ways = Ways::Network { listener: duplicate(mail)?, secret: self.options.secret.clone() };
            let outside = Outside {
                listener: duplicate(listener)?,
                addresses: addresses.to_vec(),
                generation,
                secret: self.options.secret.clone(),
            };
            (self.meet_over_network(rank.0, outside, history, timeout, deadline)?, ways)
        } else {
            // Before the meeting: after it, peers may want to send.
            let ways = Ways::Host(mail::listen(&self.near, generation)?);
            let members = (0..addresses.len()).collect();
            let engine =
                self.meet_in_host(rank.0, addresses, (members, hosts), generation, history, (timeout, deadline))?;
            (Engine::Arena(Box::new(engine)), ways)
        };
        let mail = Setup {
            rank: rank.0,
            addresses: addresses.to_vec(),
            generation,
            ways,
            fate: engine.fate(),
            single_copy: engine.uses_single_copy(),
        };
        Ok(Met { engine, mail })
    }

    /// Meets the ranks of this host, of which this is the given one; who they are in the group, and all hosts' names.
    fn meet_in_host(
        &self,
        rank: usize,
        addresses: &[Address],
        (members, hosts): (Vec<usize>, Vec<String>),
        generation: u64,
        history: Option<u64>,
        (timeout, deadline): (Duration, Instant),
    ) -> Result<engine::Engine, Error> {
        let &Options { slot_bytes, single_copy, lanes, lane_bytes, local_world, .. } = &self.options;
        let ranks = addresses.len().max(local_world.unwrap_or(1));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // One rank has nobody to exchange with, and where some are elsewhere the network is the limit.
        let of_use = addresses.len() > 1 && addresses.len() == hosts.len();
        let lanes = if of_use { lanes.unwrap_or_else(|| plan::lanes(ranks, cores)) } else { 1 };
        let wishes = Wishes { cores, single_copy, lanes: lanes.clamp(1, MOST_LANES), lane_bytes };
        let (listener, names, lanes) = (&self.listener, &members[..], wishes.lanes);
        let meeting =
            handshake::Meeting { listener, rank, names, addresses, generation, slot_bytes, lanes, timeout, deadline };
        let met = meeting.hold()?;
        let left = deadline.saturating_duration_since(Instant::now());
        engine::Engine::new(met, rank, members, hosts, &wishes, history, left)
    }

    /// Meets ranks of which not all are in this host.
    fn meet_over_network(
        &self,
        rank: usize,
        outside: Outside,
        history: Option<u64>,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Engine, Error> {
        let Outside { listener, addresses, generation, .. } = &outside;
        let (generation, world) = (*generation, addresses.len());
        let members = outside.members(rank);
        // Messages may go to any of them later.
        for peer in (0..world).filter(|peer| *peer != rank) {
            members.endpoints(peer, Purpose::Mail)?;
        }
        let hosts: Vec<String> = addresses.iter().map(|address| address.host.clone()).collect();
        let memories: Vec<&str> = addresses.iter().map(|address| &address.memory[..]).collect();
        let topology = Topology::new(&memories);
        let two_levels = topology.has_two_levels(handshake::MOST_RANKS);
        let to_all = |purpose: Purpose| {
            let peers = (0..world).filter(move |peer| *peer != rank);
            peers.map(move |peer| Wanted { peer, purpose })
        };
        let mut wanted: Vec<Wanted> =
            if two_levels { mixed::wanted(&topology, rank) } else { to_all(Purpose::Collectives).collect() };
        let first_ranks: Vec<usize> = topology.hosts.iter().map(|host| host[0]).collect();
        let is_first = first_ranks.contains(&rank);
        if is_first {
            let others = first_ranks.iter().filter(|peer| **peer != rank);
            wanted.extend(others.map(|peer| Wanted { peer: *peer, purpose: Purpose::Pulse }));
        }
        // A host's own ranks first: who is missing there is known by name.
        let local = if two_levels {
            let members = topology.hosts[topology.host(rank)].clone();
            let near: Vec<Address> = members.iter().map(|member| addresses[*member].clone()).collect();
            let (local, names) = (topology.local(rank), (members, hosts.clone()));
            Some(self.meet_in_host(local, &near, names, generation, history, (timeout, deadline))?)
        } else {
            None
        };
        let meeting = meeting::Meeting { listener, members, wanted: &wanted, timeout, deadline };
        let mut connections = meeting.hold()?;
        let pulses = connections.take(Purpose::Pulse, world);
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(local) = local {
            let rail = connections.take(Purpose::Rail, world);
            let mut engine = mixed::Engine::new(rank, topology, local, rail, outside, left())?;
            if is_first {
                engine.feel_pulse(pulses)?;
            }
            return Ok(Engine::Mixed(Box::new(engine)));
        }
        let connections = connections.take(Purpose::Collectives, world);
        let (members, alarm) = ((0..world).collect(), Arc::new(Alarm::new()?));
        let seat = Seat { index: rank, members, generation, hosts, alarm, arena: None };
        let mut engine = streams::Engine::new(connections, seat, history, left())?;
        if is_first {
            engine.feel_pulse(pulses)?;
        }
        Ok(Engine::Streams(Box::new(engine)))
    }
}
