//! Who the carrier is connected to: calling, being called, and finding a peer gone.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Instant;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

use super::{Carrier, DEAF_FOR, End, Ending};
use crate::Noticed;
use crate::mail::link::Link;
use crate::mail::wire::{Hello, Purpose};
use crate::mail::{Ways, socket_name};

/// Callers who have not said hello yet.
const MOST_STRANGERS: usize = 64;

impl Carrier {
    /// Makes sure that there is a connection to a peer.
    pub(super) fn reach(&mut self, peer: usize) -> Result<(), End> {
        let route = &self.routes[peer];
        if route.out.is_some() || route.dial_again || route.calling.is_some() || route.ending.is_some() {
            return Ok(());
        }
        if let Ways::Network { .. } = self.setup.ways {
            self.begin_to_call(peer);
            return Ok(());
        }
        match self.dial(peer) {
            Ok(link) => {
                let key = self.add(link);
                self.routes[peer].out = Some(key);
                Ok(())
            }
            // Its queue of callers is full for a moment.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.routes[peer].dial_again = true;
                Ok(())
            }
            Err(_) => {
                self.routes[peer].ending = Ending::now(Noticed::ConnectionClosed);
                Ok(())
            }
        }
    }

    fn dial(&self, peer: usize) -> io::Result<Link> {
        let address = &self.setup.addresses[peer];
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let handle = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let name = UnixAddr::new_abstract(&socket_name(address, self.setup.generation))?;
        connect(handle.as_raw_fd(), &name)?;
        let process = getsockopt(&handle, PeerCredentials).map_or(0, |credentials| credentials.pid());
        let hello = Hello { token: address.token, ..self.hello() };
        Ok(Link::dialed(handle, peer, process, hello.to_bytes().to_vec(), Instant::now()))
    }

    fn hello(&self) -> Hello {
        Hello {
            token: self.setup.addresses[self.setup.rank].token,
            generation: self.setup.generation,
            world: self.setup.addresses.len() as u32,
            rank: self.setup.rank as u32,
            purpose: Purpose::Mail,
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
            let Ways::Host(listener) = &self.setup.ways else { return };
            let (handle, process) = match accept_from(listener) {
                Ok(caller) => caller,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors, most likely: try again when some may be free.
                    self.deaf_until = Some(Instant::now() + DEAF_FOR);
                    return;
                }
            };
            let strangers = self.links.values().filter(|link| link.peer.is_none()).count();
            if strangers < MOST_STRANGERS {
                self.add(Link::accepted(handle, process, Instant::now()));
            }
        }
    }

    /// Somebody said hello; who is no member is sent away without a word.
    pub(super) fn admit(&mut self, key: usize, hello: Hello) {
        let expected = Hello { rank: hello.rank, ..self.hello() };
        let peer = hello.rank as usize;
        let known = self.links.values().filter(|link| link.peer == Some(peer)).count();
        if hello != expected || peer >= self.routes.len() || peer == self.setup.rank || known >= 2 {
            self.links.remove(&key);
            return;
        }
        if let Some(link) = self.links.get_mut(&key) {
            link.peer = Some(peer);
        }
        self.routes[peer].out.get_or_insert(key);
        self.routes[peer].dial_again = false;
    }

    /// Peers without a connection are gone, once everybody who called has been heard.
    pub(super) fn bury(&mut self) -> Result<(), End> {
        if self.routes.iter().all(|route| route.ending.is_none()) {
            return Ok(());
        }
        if let Ways::Network { .. } = self.setup.ways {
            return self.bury_of_other_hosts();
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
        for peer in 0..self.routes.len() {
            if let Some(Ending { noticed, .. }) = self.routes[peer].ending.take()
                && self.links.values().all(|link| link.peer != Some(peer))
            {
                self.lose(peer, noticed)?;
            }
        }
        Ok(())
    }

    pub(super) fn lose(&mut self, peer: usize, noticed: Noticed) -> Result<(), End> {
        let lost = self.post.lose(peer, noticed);
        self.routes[peer].queue.clear();
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
