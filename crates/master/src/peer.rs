//! Who is at the other end of a connection from this machine: the kernel's table of connections names each one's user.
//!
//! The other end is a socket of this machine whose local address is the connection's remote one, so its row in
//! `/proc/net/tcp` or `tcp6` says who made it. Rows of other states than "established" are not believed: the kernel says
//! 0, which is root, for sockets that nobody owns any more. [`instep_api::sockets`] reads the tables.

use std::net::SocketAddr;

use instep_api::sockets::{TABLES, caller};

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The caller.
    pub remote: SocketAddr,
    /// Where it is served.
    pub local: SocketAddr,
    /// Another master has passed the request on, and says who the caller is; its machine is not this one.
    pub forwarded: bool,
}

impl Peer {
    /// Whether the caller is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        !self.forwarded && self.remote.ip().to_canonical().is_loopback()
    }

    /// Whether the caller is on this machine, by whichever of its addresses. What another master here passes on is, too.
    pub(crate) fn is_here(&self) -> bool {
        let (remote, local) = (self.remote.ip().to_canonical(), self.local.ip().to_canonical());
        (!self.forwarded || local.is_loopback()) && (remote.is_loopback() || remote == local)
    }

    /// Whether the caller is a process of the user that this process belongs to, on this machine. Reads files of the
    /// kernel: call it where blocking is allowed.
    pub(crate) fn is_own_user(&self) -> bool {
        let own = nix::unistd::getuid().as_raw();
        self.is_local()
            && TABLES.iter().any(|path| {
                std::fs::read_to_string(path).is_ok_and(|table| caller(&table, self.remote, self.local) == Some(own))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_this_process_are_its_own_user_s() {
        for server in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(server) else { continue };
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (served, remote) = listener.accept().unwrap();
            let peer = Peer { remote, local: served.local_addr().unwrap(), forwarded: false };
            assert!(peer.is_own_user(), "{peer:?}");
            let elsewhere = Peer { forwarded: true, ..peer };
            assert!(!elsewhere.is_own_user() && !elsewhere.is_local(), "who is local to another master is not to this");
            drop(client);
            let stranger = Peer { remote: SocketAddr::from(([10, 0, 0, 1], 80)), ..peer };
            assert!(!stranger.is_own_user());
            assert!(peer.is_here() && elsewhere.is_here() && !stranger.is_here(), "both masters are on one machine");
            let passed_on = Peer { local: SocketAddr::from(([10, 0, 0, 2], 80)), ..elsewhere };
            assert!(!passed_on.is_here(), "another master's machine is not this one");
        }
    }
}
