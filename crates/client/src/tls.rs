//! TLS to a master: which certificates are trusted, and a connection whose two directions are two threads' own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::address::{Address, Addresses};
use crate::error::{Error, Result};
use crate::sync::lock;

/// Bytes that are read from a socket at a time.
const PIECE: usize = 16 << 10;

/// What `ureq` trusts instead of the public certificates, if any master encrypts.
pub(crate) fn trusted(addresses: &Addresses, certificates: Option<&Path>) -> Result<Option<TlsConfig>> {
    let Some(path) = certificates.filter(|_| addresses.all().any(Address::is_encrypted)) else { return Ok(None) };
    let roots = RootCerts::new_with_certs(&in_file(path)?);
    Ok(Some(TlsConfig::builder().root_certs(roots).build()))
}

/// The certificates in a PEM file.
fn in_file(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let refused = |source: io::Error| Error::Certificates { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(refused)?;
    let invalid = |what: String| refused(io::Error::new(io::ErrorKind::InvalidData, what));
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| invalid(error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(invalid("it contains no PEM certificate".to_owned())) } else { Ok(found) }
}

/// How connections to masters are encrypted.
#[derive(Debug, Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts the certificates in a PEM file, or the public ones.
    pub fn new(certificates: Option<&Path>) -> std::result::Result<Tls, String> {
        let mut roots = RootCertStore::empty();
        match certificates {
            Some(path) => {
                let failed = |error: String| format!("certificates in {}: {error}", path.display());
                let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?;
                for certificate in found {
                    let certificate = certificate.map_err(|error| failed(error.to_string()))?;
                    roots.add(certificate).map_err(|error| failed(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(failed("there is none in PEM format".to_owned()));
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
        Ok(Tls(Arc::new(config)))
    }

    /// A connection that is not begun, to somebody with a certificate for the master's host.
    pub(crate) fn connection(&self, master: &Address) -> std::result::Result<ClientConnection, String> {
        let name = ServerName::try_from(master.host().to_owned()).map_err(|error| error.to_string())?;
        ClientConnection::new(self.0.clone(), name).map_err(|error| error.to_string())
    }

    /// Encrypts a connection, within the time-outs of its socket, and divides it.
    pub fn divide(&self, mut socket: TcpStream, master: &Address) -> io::Result<(Reader, Writer)> {
        let mut connection = self.connection(master).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        let connection = Arc::new(Mutex::new(connection));
        let writer = Writer { connection: connection.clone(), socket: socket.try_clone()? };
        Ok((Reader { connection, socket, piece: vec![0; PIECE], unread: 0..0 }, writer))
    }
}

/// What a master says on an encrypted connection.
#[derive(Debug)]
pub struct Reader {
    connection: Arc<Mutex<ClientConnection>>,
    socket: TcpStream,
    piece: Vec<u8>,
    /// Of `piece`, what is not decrypted yet.
    unread: std::ops::Range<usize>,
}

impl Reader {
    /// What is below it.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl Read for Reader {
    /// The socket is waited for without holding up the writer. An end without the master's word that it is one is an error.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match lock(&self.connection).reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                decrypted => return decrypted,
            }
            if self.unread.is_empty() {
                self.unread = 0..self.socket.read(&mut self.piece)?;
            }
            let mut connection = lock(&self.connection);
            let mut rest = &self.piece[self.unread.clone()];
            connection.read_tls(&mut rest)?;
            self.unread.start = self.unread.end - rest.len();
            connection.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

/// What is said to a master on an encrypted connection.
#[derive(Debug)]
pub struct Writer {
    connection: Arc<Mutex<ClientConnection>>,
    socket: TcpStream,
}

impl Writer {
    /// What is below it.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Says that there is no more to come.
    pub fn end(&mut self) -> io::Result<()> {
        lock(&self.connection).send_close_notify();
        self.flush()
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = lock(&self.connection).writer().write(bytes)?;
        self.flush()?;
        Ok(taken)
    }

    /// Only this sends anything, so that what is encrypted first is sent first. The socket is waited for without holding up
    /// the reader.
    fn flush(&mut self) -> io::Result<()> {
        let mut encrypted = Vec::new();
        {
            let mut connection = lock(&self.connection);
            while connection.wants_write() {
                connection.write_tls(&mut encrypted)?;
            }
        }
        self.socket.write_all(&encrypted)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    const PIECES: usize = 64;

    /// A master's end of a connection, and ours.
    fn pair(folder: &Path) -> (StreamOwned<ServerConnection, TcpStream>, (Reader, Writer)) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let trusted = folder.join("trusted.pem");
        std::fs::write(&trusted, made.cert.pem()).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind("localhost:0").unwrap();
        let master: Address = format!("https://localhost:{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let accepting = thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
            while connection.is_handshaking() {
                connection.complete_io(&mut socket).unwrap();
            }
            StreamOwned::new(connection, socket)
        });
        let socket = TcpStream::connect((master.host(), master.port())).unwrap();
        let ours = Tls::new(Some(&trusted)).unwrap().divide(socket, &master).unwrap();
        (accepting.join().unwrap(), ours)
    }

    #[test]
    fn both_directions_are_busy_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (mut master, (mut reader, mut writer)) = pair(folder.path());
        // More than sockets keep, and neither side reads before it has written a piece.
        let echoing = thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            for _ in 0..PIECES {
                master.read_exact(&mut piece).unwrap();
                master.write_all(&piece).unwrap();
                master.flush().unwrap();
            }
            master.conn.send_close_notify();
            master.flush().unwrap();
        });
        let writing = thread::spawn(move || {
            for number in 0..PIECES {
                writer.write_all(&vec![u8::try_from(number).unwrap(); PIECE]).unwrap();
            }
        });
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        let wanted: Vec<u8> = (0..PIECES * PIECE).map(|at| u8::try_from(at / PIECE).unwrap()).collect();
        assert!(heard == wanted, "{} bytes", heard.len());
        writing.join().unwrap();
        echoing.join().unwrap();
    }

    #[test]
    fn silence_is_not_an_end_and_a_lost_connection_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (mut master, (mut reader, mut writer)) = pair(folder.path());
        reader.socket().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut heard = [0; 4];
        assert_eq!(reader.read(&mut heard).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        master.write_all(b"late").unwrap();
        reader.socket().set_read_timeout(None).unwrap();
        reader.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"late");

        writer.end().unwrap();
        assert_eq!(master.read(&mut heard).unwrap(), 0, "told");
        drop(master);
        assert_eq!(reader.read(&mut heard).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
