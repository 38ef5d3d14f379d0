//! A rank before it has met its peers, and how it meets them.
//!
//! Ranks exchange their addresses through whatever the caller has. When all of them share memory they meet in an arena.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use crate::arena::handshake::{self, Meeting};
use crate::engine::Engine;
use crate::fate::Fate;
use crate::group::Group;
use crate::mail::{self, Setup, Ways};
use crate::{Address, Error, Rank};

const SMALLEST_SLOT: usize = 64 << 10;

/// How a group works. All ranks must use the same `slot_bytes`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How messages call this host; its own name unless given.
    pub host: Option<String>,
    /// How long an operation may take that does not say so itself.
    pub timeout: Duration,
    /// From how many bytes on peers read each other's memory, if the kernel permits it; `None`: never.
    pub single_copy_bytes: Option<usize>,
    /// Bytes of a slot in shared memory, two of which every rank has. A step uses a quarter of it, to stay in the private
    /// cache, or all of it when there are more ranks than cores.
    pub slot_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: None,
            timeout: Duration::from_secs(30 * 60),
            single_copy_bytes: Some(32 << 20),
            slot_bytes: 1 << 20,
        }
    }
}

/// A rank that can be met but has not met its peers yet.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    address: Address,
    pub(crate) options: Options,
}

/// What a rank has once it has met its peers.
pub(crate) struct Met {
    pub(crate) engine: Engine,
    pub(crate) fate: Fate,
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
        let (listener, address) = handshake::bind(host)?;
        Ok(Bound { listener, address, options })
    }
}

impl Bound {
    /// Where this rank can be met.
    pub fn address(&self) -> &Address {
        &self.address
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
            Some(address) if *address != self.address => {
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
        let meeting = Meeting {
            listener: &self.listener,
            rank: rank.0,
            addresses,
            generation,
            slot_bytes: self.options.slot_bytes,
            timeout,
            deadline: started + timeout,
        };
        // Before the meeting: after it, peers may want to send.
        let ways = Ways::Host(mail::listen(&self.address, generation)?);
        let met = meeting.hold()?;
        let hosts = addresses.iter().map(|address| address.host.clone()).collect();
        let left = timeout.saturating_sub(started.elapsed());
        let engine = Engine::new(met, rank.0, hosts, self.options.single_copy_bytes, history, left)?;
        let fate = Fate::Arena(std::sync::Arc::clone(engine.arena()));
        let mail = Setup {
            rank: rank.0,
            addresses: addresses.to_vec(),
            generation,
            ways,
            fate: fate.clone(),
            single_copy: engine.uses_single_copy(),
        };
        Ok(Met { engine, fate, mail })
    }
}
