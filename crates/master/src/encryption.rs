//! Certificates: from files that somebody made, or made here once.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

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
    let made =
        rcgen::generate_simple_self_signed(names.to_vec()).map_err(|error| failed(certificate, error.to_string()))?;
    // The key first: a certificate without its key would not be made again, and never work.
    for (path, text) in [(key, made.signing_key.serialize_pem()), (certificate, made.cert.pem())] {
        let file = std::fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| failed(path, error.to_string()))?;
    }
    Ok(())
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
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key).unwrap().permissions());
        assert_eq!(mode & 0o077, 0);
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
