//! Looks up a master's address in the time that is left for it.
//!
//! The lookup itself has no time limit, so it runs on a thread of its own. A process that may have no more threads, such as
//! that of a task which has used up its number, looks the name up where it is instead of failing.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::{io, thread, vec};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

type Found = io::Result<vec::IntoIter<SocketAddr>>;

/// Starts the lookup of an address in the background.
type Start = fn(mpsc::SyncSender<Found>, String) -> io::Result<()>;

/// Finds the addresses behind a name.
#[derive(Debug)]
pub(crate) struct NameResolver {
    start: Start,
}

impl Default for NameResolver {
    fn default() -> NameResolver {
        NameResolver { start: on_a_thread }
    }
}

fn on_a_thread(sender: mpsc::SyncSender<Found>, address: String) -> io::Result<()> {
    let look_up = move || drop(sender.send(address.to_socket_addrs()));
    thread::Builder::new().name("instep-lookup".to_owned()).spawn(look_up).map(drop)
}

impl Resolver for NameResolver {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let parts = uri.scheme().zip(uri.authority());
        let address = parts.and_then(|(scheme, authority)| DefaultResolver::host_and_port(scheme, authority));
        let address = address.ok_or_else(|| Error::BadUri(uri.to_string()))?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let found = match (self.start)(sender, address.clone()) {
            Ok(()) => match receiver.recv_timeout(*timeout.after) {
                Ok(found) => found?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(Error::Timeout(timeout.reason));
                }
            },
            Err(_) => address.to_socket_addrs()?,
        };
        let mut result = self.empty();
        for address in found.take(MOST_ADDRESSES) {
            result.push(address);
        }
        if result.is_empty() { Err(Error::HostNotFound) } else { Ok(result) }
    }
}

/// What the list takes.
const MOST_ADDRESSES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(resolver: &NameResolver) -> Vec<SocketAddr> {
        let uri = "http://127.0.0.1:81/x".parse().unwrap();
        let found = resolver.resolve(&uri, &Config::default(), NextTimeout::default()).unwrap();
        found.iter().copied().collect()
    }

    #[test]
    fn a_process_without_another_thread_still_finds_its_master() {
        let expected: Vec<SocketAddr> = vec!["127.0.0.1:81".parse().unwrap()];
        assert_eq!(resolved(&NameResolver::default()), expected);
        let no_thread = NameResolver { start: |_, _| Err(io::ErrorKind::WouldBlock.into()) };
        assert_eq!(resolved(&no_thread), expected);
    }
}
