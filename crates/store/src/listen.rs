//! Listening sockets, and the limit on open files that bounds how many connections they can accept.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel may queue before they are accepted. A whole job connects at once; the kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 16_384;

/// How often a pair of equal free ports is looked for on both loopback addresses.
const PORT_ATTEMPTS: usize = 32;

/// Listens on all interfaces, IPv6 and IPv4 with one socket, or IPv4 alone where there is no IPv6. Port 0: any.
pub fn listen(port: u16) -> io::Result<Vec<TcpListener>> {
    match bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if is_unavailable(&error) => listen_at(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        other => Ok(vec![other?]),
    }
}

/// Listens on 127.0.0.1 and, where there is one, on ::1 with the same port. Port 0: any that is free on both.
pub fn listen_loopback(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        attempts -= 1;
        let first = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let second = SocketAddr::from((Ipv6Addr::LOCALHOST, first.local_addr()?.port()));
        match bind(second) {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if is_unavailable(&error) => return Ok(vec![first]),
            Err(error) if port == 0 && attempts > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// Listens on one address. Port 0: any.
pub fn listen_at(address: SocketAddr) -> io::Result<Vec<TcpListener>> {
    Ok(vec![bind(address)?])
}

/// Raises this process's soft limit on open files to its hard limit and gives the limit now in force. Processes started
/// from here on inherit it.
pub fn raise_file_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let SocketAddr::V6(v6) = address {
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    // A restarted server must get its port back while connections of the former one are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The machine has no such address family or address, as opposed to: the port is taken.
fn is_unavailable(error: &io::Error) -> bool {
    use nix::errno::Errno;
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL | Errno::EPROTONOSUPPORT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn loopback_listeners_share_one_port() {
        let listeners = listen_loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        for listener in &listeners {
            assert_eq!(listener.local_addr().unwrap().port(), port);
        }
        let taken = listen_loopback(port).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn all_interfaces_answer_on_ipv4() {
        let listeners = listen(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn the_file_limit_ends_up_at_the_hard_limit() {
        let limit = raise_file_limit().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (limit, limit));
    }
}
