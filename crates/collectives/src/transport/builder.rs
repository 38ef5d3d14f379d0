//! Which transport a group gets, and how its ranks are connected for it.
//!
//! Every rank decides the same from the same addresses: shared memory if all ranks share it; TCP if no two do, or a host has
//! more ranks than an arena takes; hierarchical otherwise.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use super::Transport;
use crate::abort::AbortFlag;
use crate::deadline::Deadline;
use crate::hierarchical::{self, HierarchicalTransport, NetworkContext};
use crate::options::Options;
use crate::p2p::config::{P2pConfig, P2pListener};
use crate::rank::LocalRank;
use crate::schedule::Topology;
use crate::shm::arena::MAX_CHANNELS;
use crate::shm::bootstrap::{self, ShmBootstrap};
use crate::shm::transport::{ShmMembership, ShmPreferences, ShmTransport};
use crate::sync::until;
use crate::tcp::TcpMembership;
use crate::tcp::bootstrap::TcpBootstrap;
use crate::tcp::channels::TcpChannels;
use crate::tcp::handshake::disagreement;
use crate::tcp::network::Network;
use crate::tcp::setup::WantedConnection;
use crate::tcp::wire::Purpose;
use crate::{Address, Error, Rank, partition};

/// Everything that decides which transport a rank gets, and that it takes to connect it.
pub(crate) struct TransportBuilder<'a> {
    pub(crate) options: &'a Options,
    pub(crate) rank: Rank,
    /// Of all ranks, in their order.
    pub(crate) addresses: &'a [Address],
    pub(crate) generation: u64,
    /// Operations that this rank completed in the generation before, if it was a member.
    pub(crate) history: Option<u64>,
    /// Where ranks of this host ask for the arena.
    pub(crate) listener: &'a UnixListener,
    /// The open ports, if there are any.
    pub(crate) network: Option<&'a Network>,
    /// Errors say it; `deadline` is when it ends.
    pub(crate) timeout: Duration,
    pub(crate) deadline: Deadline,
}

/// What a rank has once it is connected to its peers.
pub(crate) struct Connected {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) p2p: P2pConfig,
}

/// The ranks of this host that share an arena.
struct LocalGroup<'a> {
    local_rank: LocalRank,
    /// The group's rank of each.
    members: Vec<Rank>,
    /// In the order of `members`.
    addresses: &'a [Address],
}

impl TransportBuilder<'_> {
    /// Connects this rank to its peers, in time or not at all.
    pub(crate) fn connect(&self) -> Result<Connected, Error> {
        let (transport, listener) =
            if bootstrap::can_share(self.addresses) { self.on_one_host()? } else { self.on_several_hosts()? };
        let p2p = P2pConfig {
            rank: self.rank,
            addresses: self.addresses.to_vec(),
            generation: self.generation,
            listener,
            abort: transport.abort(),
            single_copy: transport.uses_single_copy(),
        };
        Ok(Connected { transport, p2p })
    }

    fn on_one_host(&self) -> Result<(Box<dyn Transport>, P2pListener), Error> {
        // Before the ranks are connected: after that, peers may want to send.
        let listener = P2pListener::on_host(&self.addresses[self.rank.0], self.generation)?;
        let members = Rank::all(self.addresses.len()).collect();
        let group = LocalGroup { local_rank: LocalRank(self.rank.0), members, addresses: self.addresses };
        Ok((Box::new(self.connect_shm(group)?), listener))
    }

    fn on_several_hosts(&self) -> Result<(Box<dyn Transport>, P2pListener), Error> {
        let Some(network) = self.network else { return Err(self.network_is_closed()) };
        let duplicate =
            |listener: &TcpListener| listener.try_clone().map_err(|error| Error::system("duplicate a socket", error));
        let secret = self.options.secret.clone();
        let encrypt = self.options.encrypt;
        self.check_encryption()?;
        let p2p_listener = P2pListener::Network { listener: duplicate(&network.p2p)?, secret: secret.clone(), encrypt };
        let context = NetworkContext {
            listener: duplicate(&network.listener)?,
            addresses: self.addresses.to_vec(),
            generation: self.generation,
            secret,
            encrypt,
        };
        Ok((self.connect_network(context)?, p2p_listener))
    }

    /// All ranks encrypt what they send over the network, or none does: every rank comes to the same conclusion.
    fn check_encryption(&self) -> Result<(), Error> {
        let find = |encrypted: bool| self.addresses.iter().position(|address| address.encrypted == encrypted);
        if let (Some(encrypts), Some(not)) = (find(true), find(false)) {
            return Err(Error::invalid(disagreement(Rank(encrypts), Rank(not))));
        }
        if self.options.encrypt && self.options.secret.is_none() {
            return Err(Error::invalid(
                "what ranks send to other hosts cannot be encrypted without a secret\nhint: set INSTEP_SECRET to the same \
                 long random text on all nodes; `instep run` does so itself, unless nodes of torchrun take part",
            ));
        }
        Ok(())
    }

    fn network_is_closed(&self) -> Error {
        let own = &self.addresses[self.rank.0];
        let other = self.addresses.iter().enumerate().find(|(_, address)| address.memory != own.memory);
        let (other, host) = other.map_or((self.rank.0, own.host()), |(rank, other)| (rank, other.host()));
        Error::invalid(format!(
            "rank {other} on {host} shares no memory with rank {} on {}, and the network is not open\nhint: \
             call open_to_network on every rank and exchange the addresses again",
            self.rank,
            own.host()
        ))
    }

    fn hosts(&self) -> Vec<String> {
        self.addresses.iter().map(|address| address.host.clone()).collect()
    }

    fn connect_shm(&self, group: LocalGroup<'_>) -> Result<ShmTransport, Error> {
        let &Options { slot_bytes, single_copy, channels, channel_bytes, local_world, .. } = self.options;
        let LocalGroup { local_rank, members, addresses } = group;
        let ranks = addresses.len().max(local_world.unwrap_or(1));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // One rank has nobody to exchange with, and where some are elsewhere the network is the limit.
        let of_use = addresses.len() > 1 && addresses.len() == self.addresses.len();
        let channels = if of_use { channels.unwrap_or_else(|| partition::channels(ranks, cores)) } else { 1 };
        let channels = channels.clamp(1, MAX_CHANNELS);
        let bootstrap = ShmBootstrap {
            listener: self.listener,
            local_rank,
            group_ranks: &members,
            addresses,
            generation: self.generation,
            slot_bytes,
            channels,
            timeout: self.timeout,
            deadline: self.deadline.clone(),
        };
        let shared = bootstrap.run()?;
        let membership = ShmMembership { local_rank, members, hosts: self.hosts(), history: self.history };
        let preferences = ShmPreferences { cores, single_copy, channels, channel_bytes };
        ShmTransport::new(shared, membership, &preferences, until(self.deadline.at))
    }

    fn connect_network(&self, context: NetworkContext) -> Result<Box<dyn Transport>, Error> {
        let (rank, world) = (self.rank, self.addresses.len());
        let membership = context.membership(rank);
        // Messages may go to any of them later.
        for peer in rank.others(world) {
            membership.endpoints(peer, Purpose::P2p)?;
        }
        let memories: Vec<&str> = self.addresses.iter().map(|address| &address.memory[..]).collect();
        let topology = Topology::new(&memories);
        let two_levels = topology.has_two_levels(bootstrap::MAX_RANKS);
        let channels = context.channels(if two_levels { topology.hosts.len() } else { world });
        let mut wanted: Vec<WantedConnection> = if two_levels {
            hierarchical::wanted(&topology, rank, channels)
        } else {
            WantedConnection::in_channels(rank.others(world), channels, Purpose::Collectives)
        };
        let first_ranks: Vec<Rank> = topology.hosts.iter().map(|host| host[0]).collect();
        let is_first = first_ranks.contains(&rank);
        if is_first {
            let others = first_ranks.into_iter().filter(|peer| *peer != rank);
            wanted.extend(others.map(|peer| WantedConnection { peer, purpose: Purpose::Heartbeat }));
        }
        // A host's own ranks first: who is missing there is known by name.
        let local = if two_levels {
            let members = topology.hosts[topology.host(rank)].clone();
            let addresses: Vec<Address> = members.iter().map(|member| self.addresses[member.0].clone()).collect();
            let group = LocalGroup { local_rank: topology.local(rank), members, addresses: &addresses };
            Some(self.connect_shm(group)?)
        } else {
            None
        };
        let superseded = || {
            let what = "another rank was lost meanwhile".to_owned();
            self.deadline.is_superseded().then_some(Error::Connect { timeout: self.timeout, what })
        };
        let bootstrap = TcpBootstrap {
            listener: &context.listener,
            membership,
            wanted: &wanted,
            timeout: self.timeout,
            deadline: self.deadline.at,
            in_vain: &superseded,
        };
        let mut connections = bootstrap.run().map_err(|given_up| given_up.error)?;
        let heartbeats = connections.take(Purpose::Heartbeat, world);
        if let Some(local) = local {
            let rail = connections.take_channels(Purpose::Rail, channels, world);
            let mut transport =
                HierarchicalTransport::new(rank, topology, local, rail, context, until(self.deadline.at))?;
            if is_first {
                transport.start_heartbeat(heartbeats)?;
            }
            return Ok(Box::new(transport));
        }
        let connections = connections.take_channels(Purpose::Collectives, channels, world);
        let membership = TcpMembership {
            index: rank.0,
            members: Rank::all(world).collect(),
            generation: self.generation,
            hosts: self.hosts(),
            abort_flag: Arc::new(AbortFlag::new()?),
            arena: None,
        };
        let left = until(self.deadline.at);
        let mut transport = TcpChannels::new(connections, &membership, channels, self.history, left)?;
        if is_first {
            transport.start_heartbeat(heartbeats)?;
        }
        Ok(Box::new(transport))
    }
}
