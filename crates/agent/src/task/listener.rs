//! Whose program listens where a task's service should.
//!
//! The port of a service is no secret: every user of the machine sees it in the command line, and may listen there before
//! the task's own program does. So nothing is asked, no secret is sent and nothing is called ready before the kernel says
//! that a program of the task's own user listens. The supervisor, which asks, runs as that user.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use instep_api::link::Service;
use instep_api::sockets::{TABLES, listeners};
use nix::unistd::geteuid;

/// Why a service is not talked to.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Somebody else listens in its place.
    #[error(
        "another program has the port {port} of this task, at {ip}: it belongs to Unix user {theirs}, the task runs as \
         {own}\nhint: start it again, on another port; an administrator of the machine finds the program with `ss -ltnp`",
        port = .at.port(), ip = .at.ip()
    )]
    #[expect(missing_docs, reason = "the names say it")]
    Taken { at: SocketAddr, theirs: u32, own: u32 },
    /// It does not answer, or not yet.
    #[error(transparent)]
    Unanswered(#[from] io::Error),
}

/// Where a service is.
pub fn address(service: &Service) -> io::Result<SocketAddr> {
    let mut addresses = (service.address.as_str(), service.port).to_socket_addrs()?;
    addresses.next().ok_or_else(|| io::Error::other("the address does not resolve"))
}

/// Whether our own user listens at an address.
pub fn check(at: SocketAddr) -> Result<(), Unusable> {
    let mut tables = fs::read_to_string(TABLES[0])?;
    // It is missing where there is no IPv6.
    tables.push_str(&fs::read_to_string(TABLES[1]).unwrap_or_default());
    judge(&tables, at, geteuid().as_raw())
}

fn judge(tables: &str, at: SocketAddr, own: u32) -> Result<(), Unusable> {
    let found = listeners(tables, at);
    match found.iter().find(|uid| **uid != own) {
        Some(theirs) => Err(Unusable::Taken { at, theirs: *theirs, own }),
        None if found.is_empty() => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_a_program_of_the_task_s_user_is_talked_to() {
        let at = SocketAddr::from(([127, 0, 0, 1], 2600));
        let table = "   0: 0100007F:0A28 00000000:0000 0A 00000000:00000000 00:00000000 00000000  41002        0 7 1\n";
        assert!(judge(table, at, 41_002).is_ok());
        let taken = judge(table, at, 41_001).unwrap_err();
        assert!(matches!(taken, Unusable::Taken { theirs: 41_002, own: 41_001, .. }), "{taken:?}");
        assert!(taken.to_string().starts_with("another program has the port 2600 of this task"), "{taken}");
        assert!(judge(table, at, 0).is_err(), "root's task as well");
        let absent = judge(table, SocketAddr::from(([127, 0, 0, 1], 2601)), 41_002);
        assert!(matches!(absent, Err(Unusable::Unanswered(_))), "{absent:?}");
    }

    #[test]
    fn the_kernel_names_who_listens() {
        for place in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(place) else { continue };
            let port = listener.local_addr().unwrap().port();
            check(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        }
    }
}
