//! The websocket to the master: messages of `instep_api::link`, one thread, every wait with a deadline.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_api::error::{ErrorBody, PlainErrorBody};
use instep_api::link::{Order, PATH, Report};
use instep_client::Address;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::client::IntoClientRequest;
use tungstenite::http::HeaderValue;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};

/// Until a connection stands, and until something is written.
const CONNECT: Duration = Duration::from_secs(5);
const WRITE: Duration = Duration::from_secs(30);
/// Bytes of a message of the master's: an order with an experiment's configuration.
const LONGEST_MESSAGE: usize = 16 << 20;

/// Why there is no connection.
#[derive(Debug)]
pub enum LinkError {
    /// The master does not want us, and will not.
    Refused(String),
    /// It cannot be reached, or the connection broke.
    Broken(String),
}

/// What came from the master.
pub enum Received {
    /// Something to do.
    Order(Box<Order>),
    /// That it is there.
    SignOfLife,
    /// Nothing, for as long as was asked.
    Nothing,
}

/// Plain or with TLS.
enum Stream {
    Plain(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
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

/// A connection to the master.
pub struct Link {
    socket: WebSocket<Stream>,
}

impl Link {
    /// Connects, and shows the token.
    pub fn open(master: &Address, certificates: Option<&Path>, token: &str) -> Result<Link, LinkError> {
        let broken = |why: String| LinkError::Broken(format!("cannot reach the master at {master}: {why}"));
        let (host, port) = host_and_port(master);
        let socket = connect(&host, port).map_err(|error| broken(error.to_string()))?;
        let stream = if master.is_encrypted() {
            encrypted(socket, &host, certificates).map_err(broken)?
        } else {
            Stream::Plain(socket)
        };
        let url = format!("{master}{PATH}").replacen("http", "ws", 1);
        let mut request = url.into_client_request().map_err(|error| broken(error.to_string()))?;
        let bearer = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| LinkError::Refused("the token contains invalid characters".to_owned()))?;
        request.headers_mut().insert("Authorization", bearer);
        let config = WebSocketConfig::default().max_message_size(Some(LONGEST_MESSAGE));
        let config = config.max_frame_size(Some(LONGEST_MESSAGE));
        match tungstenite::client::client_with_config(request, stream, Some(config)) {
            Ok((socket, _)) => Ok(Link { socket }),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                let status = response.status().as_u16();
                let said = said(response.body().as_deref().unwrap_or_default());
                match status {
                    401 | 403 => Err(LinkError::Refused(format!("the master at {master} refuses the token: {said}"))),
                    404 => Err(LinkError::Refused(format!(
                        "{master} does not accept agents: it is not a master, or is too old"
                    ))),
                    _ => Err(broken(format!("it answered with status {status}: {said}"))),
                }
            }
            Err(error) => Err(broken(error.to_string())),
        }
    }

    /// The address of this machine that the master sees.
    pub fn own_address(&self) -> Option<String> {
        self.socket.get_ref().socket().local_addr().ok().map(|address| address.ip().to_canonical().to_string())
    }

    /// Says something.
    pub fn send(&mut self, report: &Report) -> Result<(), LinkError> {
        let text = serde_json::to_string(report).map_err(|error| LinkError::Broken(error.to_string()))?;
        self.socket.send(Message::text(text)).map_err(broken)
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) -> Result<(), LinkError> {
        self.socket.send(Message::Ping(Vec::new().into())).map_err(broken)
    }

    /// Waits for what comes next, for at most so long.
    pub fn receive(&mut self, patience: Duration) -> Result<Received, LinkError> {
        let wait = self.socket.get_ref().socket().set_read_timeout(Some(patience));
        wait.map_err(|error| LinkError::Broken(error.to_string()))?;
        match self.socket.read() {
            Ok(Message::Text(text)) => match serde_json::from_str(text.as_str()) {
                Ok(order) => Ok(Received::Order(Box::new(order))),
                Err(error) => Err(LinkError::Broken(format!("the master sent an invalid message: {error}"))),
            },
            Ok(Message::Close(_)) => Err(LinkError::Broken("the master closed the connection".to_owned())),
            Ok(_) => Ok(Received::SignOfLife),
            Err(tungstenite::Error::Io(error)) if is_timeout(&error) => Ok(Received::Nothing),
            Err(error) => Err(broken(error)),
        }
    }

    /// Says good-bye.
    pub fn close(&mut self) {
        // Whether it is heard does not matter.
        let _ = self.socket.close(None);
        let _ = self.socket.flush();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn broken(error: tungstenite::Error) -> LinkError {
    LinkError::Broken(format!("the connection to the master broke: {error}"))
}

fn host_and_port(master: &Address) -> (String, u16) {
    let text = master.as_str();
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest).split('/').next().unwrap_or_default();
    // An address always has its port.
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    (host.trim_matches(['[', ']']).to_owned(), port.parse().unwrap_or(80))
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name does not resolve");
    let deadline = Instant::now() + 3 * CONNECT;
    for address in (host, port).to_socket_addrs()? {
        if Instant::now() > deadline {
            break;
        }
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                // For the handshakes; later reads have their own.
                socket.set_read_timeout(Some(WRITE))?;
                socket.set_write_timeout(Some(WRITE))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn encrypted(socket: TcpStream, host: &str, certificates: Option<&Path>) -> Result<Stream, String> {
    let mut roots = RootCertStore::empty();
    match certificates {
        Some(path) => {
            let failed = |error: String| format!("certificates in {}: {error}", path.display());
            let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?;
            for certificate in found {
                let certificate = certificate.map_err(|error| failed(error.to_string()))?;
                roots.add(certificate).map_err(|error| failed(error.to_string()))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    Ok(Stream::Encrypted(Box::new(StreamOwned::new(connection, socket))))
}

/// The sentence in the body of an answer.
fn said(body: &[u8]) -> String {
    if let Ok(error) = serde_json::from_slice::<ErrorBody>(body) {
        return error.error.error;
    }
    serde_json::from_slice::<PlainErrorBody>(body).map_or_else(|_| "no reason given".to_owned(), |body| body.message)
}
