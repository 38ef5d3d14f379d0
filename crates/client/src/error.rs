//! What can go wrong between a client and a master.

use std::io;
use std::path::PathBuf;

use crate::address::Address;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Error {
    /// The address of a master makes no sense.
    #[error("`{given}` is not the address of a master: {why}")]
    Address {
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// Certificates could not be read.
    #[error("cannot read certificates from {}", path.display())]
    Certificates { path: PathBuf, source: io::Error },
    /// Nobody answers there, or the connection broke and stayed broken.
    #[error("cannot reach the master at {address}")]
    Unreachable {
        /// Where it should be.
        address: Address,
        source: Box<ureq::Error>,
    },
    /// The master answered that it will not do it.
    #[error("{message}")]
    Refused {
        /// HTTP's number for it.
        status: u16,
        /// The master's sentence.
        message: String,
    },
    /// Somebody answered, but not as a master does.
    #[error("{address} does not respond like a master: {what}")]
    Protocol {
        address: Address,
        /// What broke the protocol.
        what: String,
    },
}

impl Error {
    /// Whether what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Refused { status: 404, .. })
    }

    /// Whether the user is not known, or the session has run out.
    pub fn is_unauthenticated(&self) -> bool {
        matches!(self, Error::Refused { status: 401, .. })
    }

    /// Whether the same call may succeed a little later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Unreachable { .. } => true,
            Error::Refused { status, .. } => matches!(status, 429 | 502..=504),
            Error::Address { .. } | Error::Certificates { .. } | Error::Protocol { .. } => false,
        }
    }

    /// Whether somebody answers there whose certificate is not trusted.
    fn is_distrust(&self) -> bool {
        let Error::Unreachable { source, .. } = self else { return false };
        match source.as_ref() {
            ureq::Error::Io(error) => error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
            ureq::Error::Rustls(_) => true,
            _ => false,
        }
    }

    /// Whether the answer may be that of a master which encrypts connections, to somebody who does not.
    fn may_want_encryption(&self) -> bool {
        matches!(self, Error::Protocol { address, what } if !address.is_encrypted() && what.contains("http parse fail"))
    }

    /// Whether the answer is that of a master which does not encrypt connections, to somebody who does.
    fn may_want_no_encryption(&self) -> bool {
        let Error::Unreachable { source, .. } = self else { return false };
        let broken = |error: &rustls::Error| matches!(error, rustls::Error::InvalidMessage(_));
        match source.as_ref() {
            ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()).is_some_and(broken),
            ureq::Error::Rustls(error) => broken(error),
            _ => false,
        }
    }

    /// Whether this machine knows no address of the name in the master's.
    pub fn is_unknown_host(&self) -> bool {
        let Error::Unreachable { source, .. } = self else { return false };
        match source.as_ref() {
            ureq::Error::HostNotFound => true,
            // The standard library has no kind for it.
            ureq::Error::Io(error) => error.to_string().contains("failed to lookup address information"),
            _ => false,
        }
    }

    /// What to do where the address or the certificates are wrong: somebody answers there.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            _ if self.may_want_no_encryption() => {
                Some("if the master does not encrypt connections, its address begins with http://")
            }
            _ if self.is_distrust() => Some(
                "set INSTEP_MASTER_CERT_FILE to a file with the master's certificate (--tls-self-signed creates \
                 master.cert.pem next to its database)",
            ),
            _ if self.may_want_encryption() => {
                Some("if the master encrypts connections, its address begins with https://")
            }
            _ => None,
        }
    }

    /// Whether the call certainly did not arrive.
    pub(crate) fn is_unsent(&self) -> bool {
        let Error::Unreachable { source, .. } = self else { return false };
        match source.as_ref() {
            ureq::Error::Io(error) => {
                use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
                matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
            }
            ureq::Error::Timeout(phase) => matches!(phase, ureq::Timeout::Connect | ureq::Timeout::Resolve),
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
            _ => false,
        }
    }
}
