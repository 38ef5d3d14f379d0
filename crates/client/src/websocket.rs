//! A websocket to the master, plain or with TLS: blocking, and every wait has a deadline.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use instep_api::error::{ErrorBody, PlainErrorBody};
use rustls::{ClientConnection, StreamOwned};
use tungstenite::WebSocket;
use tungstenite::client::IntoClientRequest;
use tungstenite::http::HeaderValue;
use tungstenite::protocol::WebSocketConfig;

use crate::tls::Tls;
use crate::{Address, Addresses};

/// Until a connection stands, and until something is written.
const CONNECT: Duration = Duration::from_secs(5);
const WRITE: Duration = Duration::from_secs(30);
/// How long a master may be silent before there is a websocket, if it is the only one.
const ONLY_ONE: Duration = Duration::from_secs(30);
/// The same where another can be asked: a process that is stopped still accepts connections.
const ONE_OF_SEVERAL: Duration = Duration::from_secs(5);

/// Why there is no websocket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The master answers with something else.
    #[error("the master at {master} answered with status {status}: {said}")]
    Answered {
        /// Who.
        master: String,
        /// Of HTTP.
        status: u16,
        /// The sentence in its answer.
        said: String,
    },
    /// The token cannot be sent.
    #[error("the token contains invalid characters")]
    Token,
    /// It cannot be reached.
    #[error("cannot reach the master at {master}: {why}")]
    Broken {
        /// Who.
        master: String,
        /// For people.
        why: String,
    },
}

/// Where a websocket leads, and who asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// Where the master is.
    pub master: &'a Address,
    /// The certificates to trust instead of the public ones.
    pub certificates: Option<&'a Path>,
    /// Below the master's address.
    pub path: &'a str,
    /// Who asks.
    pub token: Option<&'a str>,
    /// Bytes of a message from the master.
    pub longest_message: usize,
    /// How long the master may take for each answer until there is a websocket: see [`answer_timeout`].
    pub timeout: Duration,
}

/// How long one of so many masters may be silent before there is a websocket.
pub fn answer_timeout(masters: &Addresses) -> Duration {
    if masters.count() > 1 { ONE_OF_SEVERAL } else { ONLY_ONE }
}

/// Plain or with TLS.
pub enum Stream {
    /// Everybody on the way can read it.
    Plain(TcpStream),
    /// Nobody can.
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// What is below it.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Encrypted(stream) => &stream.sock,
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Encrypted(stream) => stream.read(buffer),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Encrypted(stream) => stream.flush(),
        }
    }
}

impl Destination<'_> {
    /// Connects, and shows the token.
    pub fn open(&self) -> Result<WebSocket<Stream>, SocketError> {
        let master = self.master;
        let broken = |why: String| SocketError::Broken { master: master.to_string(), why };
        let socket = connect(master.host(), master.port(), self.timeout).map_err(broken)?;
        let stream = if master.is_encrypted() {
            let connection = Tls::new(self.certificates).and_then(|tls| tls.connection(master)).map_err(broken)?;
            Stream::Encrypted(Box::new(StreamOwned::new(connection, socket)))
        } else {
            Stream::Plain(socket)
        };
        let url = format!("{master}{}", self.path).replacen("http", "ws", 1);
        let mut request = url.into_client_request().map_err(|error| broken(error.to_string()))?;
        if let Some(token) = self.token {
            let bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| SocketError::Token)?;
            request.headers_mut().insert("Authorization", bearer);
        }
        let config = WebSocketConfig::default().max_message_size(Some(self.longest_message));
        let config = config.max_frame_size(Some(self.longest_message));
        match tungstenite::client::client_with_config(request, stream, Some(config)) {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                let said = said(response.body().as_deref().unwrap_or_default());
                Err(SocketError::Answered { master: master.to_string(), status: response.status().as_u16(), said })
            }
            Err(error) => Err(broken(explained(&error))),
        }
    }
}

/// Why there is no websocket, with what to do where an encrypted connection meets one that is not.
fn explained<Role: tungstenite::handshake::HandshakeRole>(error: &tungstenite::HandshakeError<Role>) -> String {
    use tungstenite::error::ProtocolError;
    let tungstenite::HandshakeError::Failure(failure) = error else { return error.to_string() };
    let hint = match failure {
        tungstenite::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()).and_then(hint_of_tls),
        tungstenite::Error::Protocol(ProtocolError::HttparseError(_)) => {
            Some("if the master encrypts connections, its address begins with https://")
        }
        _ => None,
    };
    hint.map_or_else(|| error.to_string(), |hint| format!("{error}\nhint: {hint}"))
}

fn hint_of_tls(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidMessage(_) => {
            Some("if the master does not encrypt connections, its address begins with http://")
        }
        rustls::Error::InvalidCertificate(_) => {
            Some("set INSTEP_MASTER_CERT_FILE to a file with the certificates of all masters that are named")
        }
        _ => None,
    }
}

fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let unknown = |why: &str| {
        let hint = format!("check the name: `getent hosts {host}` shows what this machine knows of it");
        format!("`{host}` does not resolve: {why}\nhint: {hint}")
    };
    let mut last = unknown("it has no address");
    let deadline = Instant::now() + timeout.min(3 * CONNECT);
    for address in (host, port).to_socket_addrs().map_err(|error| unknown(&error.to_string()))? {
        if Instant::now() > deadline {
            break;
        }
        let connected = TcpStream::connect_timeout(&address, CONNECT);
        match connected.and_then(|socket| prepared(socket, timeout)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

fn prepared(socket: TcpStream, timeout: Duration) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    // For the handshakes; later reads have their own.
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(WRITE))?;
    Ok(socket)
}

/// The sentence in the body of an answer.
fn said(body: &[u8]) -> String {
    if let Ok(error) = serde_json::from_slice::<ErrorBody>(body) {
        return error.error.error;
    }
    serde_json::from_slice::<PlainErrorBody>(body).map_or_else(|_| "no reason given".to_owned(), |body| body.message)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_master_that_accepts_and_says_nothing_is_given_up() {
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        let master: Address = frozen.local_addr().unwrap().to_string().parse().unwrap();
        let timeout = Duration::from_millis(200);
        let destination =
            Destination { master: &master, certificates: None, path: "/x", token: None, longest_message: 1, timeout };
        let begin = Instant::now();
        assert!(matches!(destination.open(), Err(SocketError::Broken { .. })));
        assert!(begin.elapsed() < ONE_OF_SEVERAL, "{:?}", begin.elapsed());
    }

    /// What is said about a master at an address; the one that is there answers with these bytes.
    fn said_of(scheme: &str, host: &str, answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = format!("{scheme}://{host}:{}", listener.local_addr().unwrap().port());
        let answering = std::thread::spawn(move || {
            // A name that nobody knows leads nobody here.
            if answer.is_empty() {
                return;
            }
            let (mut socket, _) = listener.accept().unwrap();
            let _ = io::Read::read(&mut socket, &mut [0; 4096]);
            let _ = io::Write::write_all(&mut socket, answer);
        });
        let master: Address = master.parse().unwrap();
        let timeout = Duration::from_secs(5);
        let destination =
            Destination { master: &master, certificates: None, path: "/x", token: None, longest_message: 1, timeout };
        let said = destination.open().err().unwrap().to_string();
        answering.join().unwrap();
        said
    }

    #[test]
    fn an_address_that_does_not_fit_is_explained() {
        let plain = said_of("https", "127.0.0.1", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        assert!(plain.contains("\nhint: ") && plain.ends_with("begins with http://"), "{plain}");
        // An alert of TLS.
        let encrypted = said_of("http", "127.0.0.1", b"\x15\x03\x01\x00\x02\x02\x0a");
        assert!(encrypted.contains("\nhint: ") && encrypted.ends_with("begins with https://"), "{encrypted}");
        let unknown = said_of("http", "no-such-host.invalid", b"");
        assert!(
            unknown.contains("`no-such-host.invalid` does not resolve") && unknown.contains("\nhint: "),
            "{unknown}"
        );
    }

    #[test]
    fn several_masters_are_waited_for_less_than_one() {
        let of = |text: &str| answer_timeout(&text.parse().unwrap());
        assert_eq!((of("a"), of("a,b")), (ONLY_ONE, ONE_OF_SEVERAL));
    }
}
