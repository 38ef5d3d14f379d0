//! Connections with ranks of the same host: dialling, accepting, and finding a peer gone.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Instant;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

use super::{Disconnect, ProgressEnd, ProgressThread};
use crate::p2p::config::{P2pListener, socket_name};
use crate::p2p::link::Link;
use crate::p2p::wire::Hello;
use crate::socket::ACCEPT_PAUSE;
use crate::tcp::stream::Stream;
use crate::{LossCause, Rank};

/// Callers who have not said hello yet.
const MAX_UNIDENTIFIED: usize = 64;

impl ProgressThread {
    /// Makes sure that there is a connection to a peer.
    pub(super) fn reach(&mut self, peer: Rank) -> Result<(), ProgressEnd> {
        let state = &self.peers[peer.0];
        if state.out.is_some() || state.dial_again || state.dialing.is_some() || state.disconnect.is_some() {
            return Ok(());
        }
        if let P2pListener::Network { .. } = self.config.listener {
            self.start_dial(peer);
            return Ok(());
        }
        match self.dial(peer) {
            Ok(link) => {
                let key = self.add(link);
                self.peers[peer.0].out = Some(key);
                Ok(())
            }
            // Its queue of callers is full for a moment.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.peers[peer.0].dial_again = true;
                Ok(())
            }
            Err(_) => {
                self.peers[peer.0].disconnect = Disconnect::now(LossCause::ConnectionClosed);
                Ok(())
            }
        }
    }

    fn dial(&self, peer: Rank) -> io::Result<Link> {
        let address = &self.config.addresses[peer.0];
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let handle = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let name = UnixAddr::new_abstract(&socket_name(address, self.config.generation))?;
        connect(handle.as_raw_fd(), &name)?;
        let process = getsockopt(&handle, PeerCredentials).map_or(0, |credentials| credentials.pid());
        let hello = Hello { token: address.token, ..self.hello() };
        Ok(Link::dialed(Stream::new(handle, None), peer, process, hello.to_bytes().to_vec(), Instant::now()))
    }

    fn hello(&self) -> Hello {
        Hello {
            token: self.config.addresses[self.config.rank.0].token,
            generation: self.config.generation,
            world: self.config.addresses.len() as u32,
            rank: self.config.rank.0 as u32,
        }
    }

    pub(super) fn add(&mut self, link: Link) -> usize {
        let key = self.next_link;
        self.next_link += 1;
        self.links.insert(key, link);
        key
    }

    pub(super) fn accept(&mut self) {
        loop {
            let P2pListener::Host(listener) = &self.config.listener else { return };
            let (handle, process) = match accept_from(listener) {
                Ok(caller) => caller,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors, most likely: try again when some may be free.
                    self.accept_paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            let strangers = self.links.values().filter(|link| link.peer.is_none()).count();
            if strangers < MAX_UNIDENTIFIED {
                self.add(Link::accepted(Stream::new(handle, None), process, Instant::now()));
            }
        }
    }

    /// Somebody said hello; who is no member is sent away without a word.
    pub(super) fn admit(&mut self, key: usize, hello: Hello) {
        let expected = Hello { rank: hello.rank, ..self.hello() };
        let peer = Rank(hello.rank as usize);
        let known = self.links.values().filter(|link| link.peer == Some(peer)).count();
        if hello != expected || peer.0 >= self.peers.len() || peer == self.config.rank || known >= 2 {
            self.links.remove(&key);
            return;
        }
        if let Some(link) = self.links.get_mut(&key) {
            link.peer = Some(peer);
        }
        self.peers[peer.0].out.get_or_insert(key);
        self.peers[peer.0].dial_again = false;
    }

    /// Peers without a connection are gone, once the hellos of all who called are read.
    pub(super) fn reap(&mut self) -> Result<(), ProgressEnd> {
        if self.peers.iter().all(|state| state.disconnect.is_none()) {
            return Ok(());
        }
        if let P2pListener::Network { .. } = self.config.listener {
            return self.reap_remote();
        }
        self.accept();
        let strangers: Vec<usize> =
            self.links.iter().filter(|(_, link)| link.peer.is_none()).map(|(key, _)| *key).collect();
        for key in strangers {
            let Some(link) = self.links.get_mut(&key) else { continue };
            let received = link.read();
            self.receive(key, received)?;
        }
        if self.links.values().any(|link| link.peer.is_none()) {
            return Ok(());
        }
        for peer in Rank::all(self.peers.len()) {
            if let Some(Disconnect { noticed, .. }) = self.peers[peer.0].disconnect.take()
                && self.links.values().all(|link| link.peer != Some(peer))
            {
                self.peer_lost(peer, noticed)?;
            }
        }
        Ok(())
    }

    pub(super) fn peer_lost(&mut self, peer: Rank, noticed: LossCause) -> Result<(), ProgressEnd> {
        let lost = self.matching.peer_lost(peer, noticed);
        self.peers[peer.0].queue.clear();
        self.decide(lost)
    }
}

/// The next caller who is the same user, with its process.
pub(super) fn accept_from(listener: &UnixListener) -> io::Result<(OwnedFd, i32)> {
    loop {
        let (stream, _) = listener.accept()?;
        let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { continue };
        if credentials.uid() == nix::unistd::geteuid().as_raw() {
            return Ok((stream.into(), credentials.pid()));
        }
    }
}
