//! How ranks of several hosts are connected: the sockets around [`super::setup`].

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::connect::{configure, dial, has_connected, read_some};
use super::handshake::{MAX_ACCEPTED_AT_ONCE, Membership};
use super::secret::Nonces;
use super::setup::{ConnectionId, Setup, SetupAction, SetupOutcome, WantedConnection};
use super::stream::Stream;
use super::wire::Purpose;
use crate::Error;
use crate::deadline::LOOK;
use crate::partition::NetworkChannels;
use crate::socket::{ACCEPT_PAUSE, poll_timeout, send_all};
use crate::sync::until;

/// How one rank gets its connections.
pub(crate) struct TcpBootstrap<'a> {
    pub(crate) listener: &'a TcpListener,
    pub(crate) membership: Membership<'a>,
    /// The connections that this rank is to have; the other side wants them, too.
    pub(crate) wanted: &'a [WantedConnection],
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// Why waiting longer is in vain, if it is: looked at every [`LOOK`].
    pub(crate) in_vain: &'a dyn Fn() -> Option<Error>,
}

/// The connections that were wanted.
pub(crate) struct Connections(Vec<(WantedConnection, Option<Stream>)>);

impl Connections {
    /// Those for a purpose in so many channels.
    pub(crate) fn take_channels(
        &mut self,
        purpose: impl Fn(u8) -> Purpose,
        channels: NetworkChannels,
        world: usize,
    ) -> Vec<Vec<Option<Stream>>> {
        channels.numbers().map(|channel| self.take(purpose(channel), world)).collect()
    }

    /// Those for a purpose, in the order of ranks; none where none was wanted.
    pub(crate) fn take(&mut self, purpose: Purpose, world: usize) -> Vec<Option<Stream>> {
        let mut taken: Vec<Option<Stream>> = (0..world).map(|_| None).collect();
        for (wanted, stream) in self.0.iter_mut().filter(|(wanted, _)| wanted.purpose == purpose) {
            taken[wanted.peer.0] = stream.take();
        }
        taken
    }
}

/// Why the ranks are not connected, and the sockets that there were. Peers which have all their connections take this rank
/// for lost when those end: hold on to them until the peers hear the reason.
pub(crate) struct GivenUp {
    pub(crate) error: Error,
    pub(crate) sockets: Vec<TcpStream>,
}

impl From<Error> for Box<GivenUp> {
    fn from(error: Error) -> Box<GivenUp> {
        Box::new(GivenUp { error, sockets: Vec::new() })
    }
}

/// A socket, and whether its connection is there.
struct Connection {
    socket: TcpStream,
    connected: bool,
}

impl TcpBootstrap<'_> {
    /// Connects with the other ranks, or says which are missing.
    pub(crate) fn run(&self) -> Result<Connections, Box<GivenUp>> {
        let nonces = Nonces::of_system().map_err(|error| Error::system("read /dev/urandom", error))?;
        let mut setup = Setup::new(self.membership, self.wanted, nonces, Instant::now(), self.deadline)?;
        let mut sockets: BTreeMap<ConnectionId, Connection> = BTreeMap::new();
        let mut accepts_at = Instant::now();
        loop {
            let failure = match setup.outcome(Instant::now()) {
                SetupOutcome::Waiting => (self.in_vain)(),
                SetupOutcome::Failed(what) => Some(Error::Connect { timeout: self.timeout, what }),
                SetupOutcome::Connected(ids) => return Ok(self.handed_over(&mut setup, &ids, sockets)?),
            };
            if let Some(error) = failure {
                let sockets = sockets.into_values().map(|connection| connection.socket).collect();
                return Err(Box::new(GivenUp { error, sockets }));
            }
            setup.tick(Instant::now());
            perform(&mut setup, &mut sockets);
            self.sleep(&setup, &sockets, accepts_at);
            if !self.accept(&mut setup, &mut sockets) {
                accepts_at = Instant::now() + ACCEPT_PAUSE;
            }
            let ids: Vec<ConnectionId> = sockets.keys().copied().collect();
            for id in ids {
                progress(&mut setup, &mut sockets, id);
            }
        }
    }

    fn handed_over(
        &self,
        setup: &mut Setup<'_>,
        ids: &[ConnectionId],
        mut sockets: BTreeMap<ConnectionId, Connection>,
    ) -> Result<Connections, Error> {
        let mut connections = Vec::with_capacity(ids.len());
        for (wanted, id) in self.wanted.iter().zip(ids) {
            let socket = sockets.remove(id).map(|connection| connection.socket);
            if let Some(socket) = &socket {
                configure(socket).map_err(|error| Error::system("tune a connection", error))?;
            }
            let session = setup.take_session(*id);
            connections.push((*wanted, socket.map(|socket| Stream::new(socket, session))));
        }
        Ok(Connections(connections))
    }

    /// Accepts who has called; false if that does not go well, mostly for lack of descriptors.
    fn accept(&self, setup: &mut Setup<'_>, sockets: &mut BTreeMap<ConnectionId, Connection>) -> bool {
        for _ in 0..MAX_ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    sockets.insert(setup.accepted(Instant::now()), Connection { socket, connected: true });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // Gone before it was let in.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits for something to do; for callers not before `accepts_at`.
    fn sleep(&self, setup: &Setup<'_>, sockets: &BTreeMap<ConnectionId, Connection>, accepts_at: Instant) {
        let pause = accepts_at.saturating_duration_since(Instant::now());
        let listener = pause.is_zero().then(|| PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        let mut handles: Vec<PollFd<'_>> = listener.into_iter().collect();
        for (id, Connection { socket, connected }) in sockets {
            if !connected {
                handles.push(PollFd::new(socket.as_fd(), PollFlags::POLLOUT));
            } else if setup.wanted_bytes(*id) > 0 {
                handles.push(PollFd::new(socket.as_fd(), PollFlags::POLLIN));
            }
        }
        // An error of poll is a signal, or no memory: look again.
        let mut longest = until(setup.wakeup()).min(until(self.deadline)).min(LOOK);
        if !pause.is_zero() {
            longest = longest.min(pause);
        }
        let _ = poll(&mut handles, poll_timeout(longest));
    }
}

/// Does what the machine wants; what cannot be done is the end of a connection.
fn perform(setup: &mut Setup<'_>, sockets: &mut BTreeMap<ConnectionId, Connection>) {
    while let Some(action) = setup.next_action() {
        match action {
            SetupAction::Dial { id, endpoint } => match dial(endpoint) {
                Ok(socket) => drop(sockets.insert(id, Connection { socket, connected: false })),
                Err(_) => setup.closed(id),
            },
            // A new connection has room for so little.
            SetupAction::Send { id, bytes } => {
                if !sockets.get(&id).is_some_and(|connection| send_all(&connection.socket, &bytes, Instant::now())) {
                    sockets.remove(&id);
                    setup.closed(id);
                }
            }
            SetupAction::Close { id } => drop(sockets.remove(&id)),
        }
    }
}

/// Passes on what has happened to one connection.
fn progress(setup: &mut Setup<'_>, sockets: &mut BTreeMap<ConnectionId, Connection>, id: ConnectionId) {
    if let Some(connection) = sockets.get_mut(&id).filter(|connection| !connection.connected) {
        match has_connected(&connection.socket) {
            Ok(false) => return,
            Ok(true) => {
                connection.connected = true;
                setup.connected(id);
            }
            Err(_) => {
                sockets.remove(&id);
                setup.closed(id);
            }
        }
        perform(setup, sockets);
    }
    while let (wanted @ 1.., Some(connection)) = (setup.wanted_bytes(id), sockets.get(&id)) {
        match read_some(&connection.socket, wanted) {
            Ok(Some(bytes)) => setup.received(id, &bytes),
            Ok(None) => return,
            Err(_) => {
                sockets.remove(&id);
                setup.closed(id);
            }
        }
        perform(setup, sockets);
    }
}
