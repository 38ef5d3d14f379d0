//! Certificates: from files that somebody made, or made here once.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::random;

/// Where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Encryption {
    /// PEM files: the certificate with its chain, and its key.
    Files {
        /// The certificate, then those that vouch for it.
        certificate: PathBuf,
        key: PathBuf,
    },
    /// One that vouches for itself, made beside the database at the first start and kept.
    SelfSigned,
}

/// Files that cannot serve for encryption.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} for encryption: {why}", path.display())]
pub struct EncryptionError {
    path: PathBuf,
    why: String,
}

impl Encryption {
    /// The files, which are made if they are to be made here. `names` are those under which the master is asked.
    pub(crate) fn files(&self, database: &Path, names: &[String]) -> Result<(PathBuf, PathBuf), EncryptionError> {
        match self {
            Encryption::Files { certificate, key } => Ok((certificate.clone(), key.clone())),
            Encryption::SelfSigned => {
                let (certificate, key) = (database.with_extension("cert.pem"), database.with_extension("key.pem"));
                if !certificate.exists() || !key.exists() {
                    make(&certificate, &key, names)?;
                }
                Ok((certificate, key))
            }
        }
    }
}

fn make(certificate: &Path, key: &Path, names: &[String]) -> Result<(), EncryptionError> {
    let failed = |path: &Path, why: String| EncryptionError { path: path.to_owned(), why };
    let made = self_signed(names).map_err(|error| failed(certificate, error.to_string()))?;
    // The key first: a certificate without its key would not be made again, and never work. Everybody is shown the
    // certificate who connects, and other users need it in order to.
    let files = [(key, made.signing_key.serialize_pem(), 0o600), (certificate, made.cert.pem(), 0o644)];
    for (path, text, mode) in files {
        let file = std::fs::File::options().create(true).write(true).truncate(true).mode(mode).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| failed(path, error.to_string()))?;
    }
    Ok(())
}

/// Makes a certificate with a subject that no other has: of several with one subject in a file, OpenSSL tries the first only.
fn self_signed(names: &[String]) -> Result<rcgen::CertifiedKey<rcgen::KeyPair>, rcgen::Error> {
    let signing_key = rcgen::KeyPair::generate()?;
    let mut wanted = rcgen::CertificateParams::new(names.to_vec())?;
    wanted.distinguished_name.push(rcgen::DnType::CommonName, format!("instep master {}", random::uuid()));
    let cert = wanted.self_signed(&signing_key)?;
    Ok(rcgen::CertifiedKey { cert, signing_key })
}

/// Reads the files and makes what takes connections with them.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, EncryptionError> {
    let failed = |path: &Path, why: String| EncryptionError { path: path.to_owned(), why };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| failed(certificate, error.to_string()))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| failed(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(failed(certificate, "it contains no certificate".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error.to_string()))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| failed(certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The certificate that a server with these files shows, without those that vouch for it.
pub(crate) fn shown(certificate: &Path) -> Result<Vec<u8>, EncryptionError> {
    let failed = |why: String| EncryptionError { path: certificate.to_owned(), why };
    let mut chain = CertificateDer::pem_file_iter(certificate).map_err(|error| failed(error.to_string()))?;
    let first = chain.next().ok_or_else(|| failed("it contains no certificate".to_owned()))?;
    Ok(first.map_err(|error| failed(error.to_string()))?.to_vec())
}

/// Connects to a server that shows one certificate and no other, whoever signed it and whatever it is called.
#[derive(Clone)]
pub(crate) struct Pinned(TlsConnector);

impl Pinned {
    pub(crate) fn to(certificate: &[u8]) -> Result<Pinned, String> {
        let provider = crypto::ring::default_provider();
        let verifier = Arc::new(Only {
            certificate: certificate.to_vec(),
            algorithms: provider.signature_verification_algorithms,
        });
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Pinned(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        // A name has to be said; the certificate is known.
        let name = ServerName::try_from("leader.invalid").map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// Takes this certificate, from who has its key.
#[derive(Debug)]
struct Only {
    certificate: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if certificate.as_ref() == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General("it shows another certificate than the leader's".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_can_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let (certificate, key) = Encryption::SelfSigned.files(&database, &names).unwrap();
        acceptor(&certificate, &key).unwrap();
        let first = std::fs::read(&certificate).unwrap();
        Encryption::SelfSigned.files(&database, &names).unwrap();
        assert_eq!(std::fs::read(&certificate).unwrap(), first);
        let mode = |path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
        assert_eq!(mode(&key) & 0o077, 0);
        assert_eq!(mode(&certificate) & 0o133, 0);
    }

    #[tokio::test]
    async fn a_pinned_certificate_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one.db", "other.db"].map(|name| folder.path().join(name));
        let names = ["somewhere".to_owned()];
        let (certificate, key) = Encryption::SelfSigned.files(&one, &names).unwrap();
        let (foreign, _) = Encryption::SelfSigned.files(&other, &names).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = acceptor(&certificate, &key).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // The one that wants another certificate breaks off.
                let _ = acceptor.accept(stream).await;
            }
        });
        for (file, expected) in [(&certificate, true), (&foreign, false)] {
            let pinned = Pinned::to(&shown(file).unwrap()).unwrap();
            let stream = TcpStream::connect(address).await.unwrap();
            assert_eq!(pinned.connect(stream).await.is_ok(), expected, "{}", file.display());
        }
    }

    #[test]
    fn files_that_cannot_serve_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, empty] = ["one", "other", "empty"].map(|name| folder.path().join(name));
        std::fs::write(&empty, "").unwrap();
        assert!(acceptor(&one, &one).err().unwrap().to_string().contains("one for encryption"));
        assert!(acceptor(&empty, &empty).is_err());
        make(&one, &other, &["localhost".to_owned()]).unwrap();
        assert!(acceptor(&one, &empty).err().unwrap().to_string().contains("empty for encryption"));
        let foreign = folder.path().join("foreign");
        make(&empty, &foreign, &["localhost".to_owned()]).unwrap();
        assert!(acceptor(&one, &foreign).is_err(), "a key of another certificate");
    }
}
