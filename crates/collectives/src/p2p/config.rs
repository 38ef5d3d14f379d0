//! What point-to-point messages have to know about their group, and where a rank listens for them.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use crate::abort::Abort;
use crate::{Address, Error, Rank, Secret};

/// Where a rank listens for its peers.
pub(crate) enum P2pListener {
    /// On an abstract Unix socket of the generation: all ranks are on this host.
    Host(UnixListener),
    /// On the TCP port for messages. The secret is what all ranks of the job know.
    Network { listener: TcpListener, secret: Option<Secret>, encrypt: bool },
}

/// One rank's side of the messages of one generation.
pub(crate) struct P2pConfig {
    pub(crate) rank: Rank,
    pub(crate) addresses: Vec<Address>,
    pub(crate) generation: u64,
    pub(crate) listener: P2pListener,
    pub(crate) abort: Abort,
    /// Ranks can read each other's memory.
    pub(crate) single_copy: bool,
}

impl P2pListener {
    /// Opens the socket for messages of a generation, before any peer can want to use it.
    pub(crate) fn on_host(address: &Address, generation: u64) -> Result<P2pListener, Error> {
        SocketAddr::from_abstract_name(socket_name(address, generation))
            .and_then(|name| UnixListener::bind_addr(&name))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| P2pListener::Host(listener)))
            .map_err(|error| Error::system("listen on a Unix socket for messages", error))
    }
}

/// The abstract name under which a rank takes messages of a generation.
pub(super) fn socket_name(address: &Address, generation: u64) -> Vec<u8> {
    [&address.socket[..], format!("-mail-{generation}").as_bytes()].concat()
}
