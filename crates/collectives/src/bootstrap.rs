//! A rank before it is connected to its peers.
//!
//! Ranks exchange their addresses through whatever the caller has. When all of them share memory they connect through an
//! arena. Otherwise each opens a port ([`Bound::needs_network`], [`Bound::open_to_network`]) and they exchange addresses once
//! more: nobody listens on the network who need not.

use std::os::unix::net::UnixListener;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::group::Group;
use crate::options::{Options, TransportChoice};
use crate::sync::MAX_TIMEOUT;
use crate::tcp::network::{self, Network};
use crate::transport::builder::{Connected, TransportBuilder};
use crate::{Address, Error, Rank, shm};

const SMALLEST_SLOT: usize = 64 << 10;

/// A rank that listens for its peers and is not connected to them yet.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    /// As it is without a network.
    local_address: Address,
    /// The open ports, and the address with them.
    network: OnceLock<(Network, Address)>,
    pub(crate) options: Options,
}

impl Group {
    /// Has this process listen for its peers. The address is for the other ranks.
    pub fn bind(options: Options) -> Result<Bound, Error> {
        if options.slot_bytes < SMALLEST_SLOT || !options.slot_bytes.is_multiple_of(4096) {
            return Err(Error::invalid(format!(
                "slot_bytes is {}, it must be a multiple of 4096 and at least {SMALLEST_SLOT}",
                options.slot_bytes
            )));
        }
        let own_name = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = options.host.clone().or_else(own_name).unwrap_or_else(|| "localhost".to_owned());
        let (listener, mut local_address) = shm::bootstrap::bind(host)?;
        if options.transport == TransportChoice::Tcp {
            // Memory that nobody else has: every rank draws the same conclusion from the addresses.
            local_address.memory =
                format!("{}/{}", local_address.memory, String::from_utf8_lossy(&local_address.socket));
        }
        local_address.canonical = options.canonical;
        local_address.encrypted = options.encrypt;
        local_address.channels = options.offered_channels();
        if let Some(island) = &options.island {
            local_address.memory = format!("{}/{island}", local_address.memory);
        }
        Ok(Bound { listener, local_address, network: OnceLock::new(), options })
    }
}

impl Bound {
    /// Where this rank listens.
    pub fn address(&self) -> &Address {
        self.network.get().map_or(&self.local_address, |(_, address)| address)
    }

    /// Whether these ranks need a network to connect. All ranks get the same answer for the same addresses.
    pub fn needs_network(&self, addresses: &[Address]) -> bool {
        !shm::bootstrap::can_share(addresses)
    }

    /// Opens TCP ports for the other ranks, unless they are open already. The address is another one then.
    pub fn open_to_network(&self) -> Result<(), Error> {
        if self.network.get().is_none() {
            let network = network::open(self.options.interface.as_deref())?;
            let (endpoints, p2p_port) = (network.endpoints.clone(), network.p2p_port);
            let address = Address { endpoints, p2p_port, ..self.local_address.clone() };
            // Of two threads that do this at once, one opens the ports that count.
            let _ = self.network.set((network, address));
        }
        Ok(())
    }

    /// Connects to the other ranks, whose addresses are given in the order of ranks. All give the same generation.
    pub fn connect(
        self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        timeout: Duration,
    ) -> Result<Group, Error> {
        self.check(rank, addresses)?;
        let connected = self.connect_transport(rank, addresses, generation, None, timeout)?;
        Group::new(self, connected, generation)
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

    /// Connects to these peers. `history` is what this rank completed in the generation before.
    pub(crate) fn connect_transport(
        &self,
        rank: Rank,
        addresses: &[Address],
        generation: u64,
        history: Option<u64>,
        timeout: Duration,
    ) -> Result<Connected, Error> {
        let timeout = timeout.min(MAX_TIMEOUT);
        let builder = TransportBuilder {
            options: &self.options,
            rank,
            addresses,
            generation,
            history,
            listener: &self.listener,
            network: self.network.get().map(|(network, _)| network),
            timeout,
            deadline: Deadline { at: Instant::now() + timeout, generation, newest: self.options.newest.clone() },
        };
        builder.connect()
    }
}
