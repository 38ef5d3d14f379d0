//! Listens, and lets in whoever has the key.
//!
//! Anybody who reaches the port may try, so that strangers are bounded: so many at a time, each for so long, each with a few
//! keys. A client that shows another key is told why: it may go on with questions (`keyboard-interactive`), of which there
//! are none, but a sentence before them, which `ssh` prints.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Response, Session, run_stream};
use russh::{Channel, ChannelOpenFailure, Disconnect, MethodKind, MethodSet, SshId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use super::gate::{Gate, Gated};
use super::session::Surroundings;
use super::{forward, session};

/// Clients at a time that have not shown the key yet. Of more, the one goes that has had the most time.
const STRANGERS: usize = 32;
/// Keys that one client may show, and what else it may try.
const ATTEMPTS: usize = 10;
/// How long a client may take to show the key.
const LOGIN: Duration = Duration::from_secs(30);
/// Sessions and forwarded connections of one client.
const CHANNELS: usize = 256;
/// How long a client may be silent before it is asked whether it is there, and how often it is asked.
const ASK: (Duration, usize) = (Duration::from_secs(30), 4);
/// Between what a client is refused and the end of the connection, so that it reads why.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a server needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens.
    pub address: String,
    /// Where it listens.
    pub port: u16,
    /// The public key that opens it, as it stands in a file of OpenSSH's.
    pub key: String,
    /// What sessions find in their environment.
    pub variables: BTreeMap<OsString, OsString>,
    /// This program, which serves files too.
    pub program: PathBuf,
    /// What a client is told whose key does not open it.
    pub refusal: String,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is given as a key is none.
    #[error("the shell's key cannot be read")]
    Key(#[source] russh::keys::ssh_key::Error),
    /// The port cannot be had.
    #[error("cannot listen on {address} port {port}")]
    Listen {
        /// Where.
        address: String,
        /// Where.
        port: u16,
        /// Why not.
        source: io::Error,
    },
    /// Something that no shell can do without.
    #[error("cannot start the shell's server")]
    Start(#[source] io::Error),
}

/// Serves for ever; says so once clients can connect.
pub fn serve(settings: Settings, listening: impl FnOnce()) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Start)?;
    runtime.block_on(async {
        let key = PublicKey::from_openssh(&settings.key).map_err(Error::Key)?;
        let (address, port) = (settings.address.clone(), settings.port);
        let listener = TcpListener::bind((address.as_str(), port)).await;
        let listener = listener.map_err(|source| Error::Listen { address, port, source })?;
        let door = Door::new(settings, key)?;
        listening();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => door.open_for(stream),
                // Such as that there are no more files: that passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// What all connections share.
#[derive(Clone)]
struct Door {
    config: Arc<Config>,
    key: Arc<PublicKey>,
    around: Arc<Surroundings>,
    refusal: Arc<str>,
    strangers: Arc<Mutex<Strangers>>,
}

/// The clients that have not shown the key yet, in the order in which they came.
#[derive(Default)]
struct Strangers {
    came: u64,
    waiting: VecDeque<(u64, Arc<Notify>)>,
}

/// A client among them, until this is dropped.
struct Place {
    number: u64,
    turned_away: Arc<Notify>,
    strangers: Arc<Mutex<Strangers>>,
}

impl Place {
    /// Takes a place; for it, the client may have to go that came first.
    fn take(strangers: &Arc<Mutex<Strangers>>) -> Place {
        let mut all = strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, turned_away) = (all.came, Arc::new(Notify::new()));
        all.came += 1;
        all.waiting.push_back((number, Arc::clone(&turned_away)));
        if all.waiting.len() > STRANGERS
            && let Some((_, first)) = all.waiting.pop_front()
        {
            first.notify_one();
        }
        Place { number, turned_away, strangers: Arc::clone(strangers) }
    }

    /// Waits until the client has to go: why.
    async fn lost(&self) -> String {
        tokio::select! {
            () = tokio::time::sleep(LOGIN) => format!("no key was shown within {} s", LOGIN.as_secs()),
            () = self.turned_away.notified() => "too many others connect at the same time".to_owned(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        all.waiting.retain(|(other, _)| *other != self.number);
    }
}

impl Door {
    fn new(settings: Settings, key: PublicKey) -> Result<Door, Error> {
        // Clients get here by the shell's name, through the master: a key that lasts would tell them nothing more.
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| Error::Start(io::Error::other(error)))?;
        let own = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
        let config = Config {
            server_id: SshId::Standard(Cow::Borrowed("SSH-2.0-instep")),
            methods: MethodSet::from(&[MethodKind::PublicKey][..]),
            auth_rejection_time: Duration::ZERO,
            keys: vec![own],
            max_auth_attempts: ATTEMPTS,
            inactivity_timeout: None,
            keepalive_interval: Some(ASK.0),
            keepalive_max: ASK.1,
            nodelay: true,
            ..Config::default()
        };
        let around = Surroundings { variables: settings.variables, program: settings.program };
        Ok(Door {
            config: Arc::new(config),
            key: Arc::new(key),
            around: Arc::new(around),
            refusal: settings.refusal.into(),
            strangers: Arc::default(),
        })
    }

    /// Talks to a client, in the background.
    fn open_for(&self, stream: TcpStream) {
        let (door, place) = (self.clone(), Place::take(&self.strangers));
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let known = Arc::new(Notify::new());
            let gate = Arc::new(Gate::default());
            let client = Client {
                door: door.clone(),
                known: Arc::clone(&known),
                gate: Arc::clone(&gate),
                channels: Arc::new(Semaphore::new(CHANNELS)),
            };
            let stream = Gated { inner: stream, gate };
            let began = tokio::select! {
                began = run_stream(Arc::clone(&door.config), stream, client) => began,
                _ = place.lost() => return,
            };
            let Ok(mut session) = began else { return };
            let handle = session.handle();
            let why = tokio::select! {
                _ = &mut session => return,
                () = known.notified() => {
                    drop(place);
                    let _ = session.await;
                    return;
                }
                why = place.lost() => why,
            };
            let _ = handle.disconnect(Disconnect::NoMoreAuthMethodsAvailable, why, String::new()).await;
            let _ = tokio::time::timeout(FAREWELL, session).await;
        });
    }
}

/// One connection.
struct Client {
    door: Door,
    known: Arc<Notify>,
    gate: Arc<Gate>,
    channels: Arc<Semaphore>,
}

impl Client {
    fn judged(&self, key: &PublicKey) -> Auth {
        if key.key_data() == self.door.key.key_data() {
            return Auth::Accept;
        }
        // Another key may follow, and then the sentence.
        let left = MethodSet::from(&[MethodKind::PublicKey, MethodKind::KeyboardInteractive][..]);
        Auth::Reject { proceed_with_methods: Some(left), partial_success: false }
    }
}

impl Handler for Client {
    type Error = russh::Error;

    async fn auth_publickey_offered(&mut self, _user: &str, key: &PublicKey) -> Result<Auth, russh::Error> {
        Ok(self.judged(key))
    }

    async fn auth_publickey(&mut self, _user: &str, key: &PublicKey) -> Result<Auth, russh::Error> {
        Ok(self.judged(key))
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, russh::Error> {
        let none = Auth::Reject { proceed_with_methods: Some(MethodSet::empty()), partial_success: false };
        Ok(match response {
            Some(_) => none,
            None => Auth::Partial {
                name: Cow::Borrowed(""),
                instructions: Cow::Owned(self.door.refusal.to_string()),
                prompts: Cow::Borrowed(&[]),
            },
        })
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), russh::Error> {
        self.known.notify_one();
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Ok(place) = Arc::clone(&self.channels).try_acquire_owned() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        reply.accept().await;
        let (handle, gate, around) = (session.handle(), Arc::clone(&self.gate), Arc::clone(&self.door.around));
        // Ends with its channel.
        tokio::spawn(async move {
            session::run(channel, handle, gate, around).await;
            drop(place);
        });
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Ok(place) = Arc::clone(&self.channels).try_acquire_owned() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (host, gate) = (host.to_owned(), Arc::clone(&self.gate));
        // Ends with its channel, or with the port's connection.
        tokio::spawn(async move {
            match forward::connect(&host, port).await {
                Some(stream) => {
                    reply.accept().await;
                    forward::carry(channel, stream, gate).await;
                }
                None => reply.reject(ChannelOpenFailure::ConnectFailed).await,
            }
            drop(place);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn has_to_go(place: &Place) -> bool {
        tokio::time::timeout(Duration::from_millis(10), place.turned_away.notified()).await.is_ok()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn of_too_many_strangers_the_first_has_to_go() {
        let all = Arc::new(Mutex::new(Strangers::default()));
        let mut places: Vec<Place> = (0..STRANGERS).map(|_| Place::take(&all)).collect();
        drop(places.remove(3));
        places.push(Place::take(&all));
        assert!(!has_to_go(&places[0]).await, "there was room");
        places.push(Place::take(&all));
        assert!(has_to_go(&places[0]).await && !has_to_go(&places[1]).await);
        drop(places);
        assert!(all.lock().unwrap().waiting.is_empty());
    }
}
