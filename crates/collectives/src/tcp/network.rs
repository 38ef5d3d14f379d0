//! Where a rank can be reached over the network: its listeners and the addresses of its interfaces.
//!
//! There are two: one for connecting the ranks, which listen together and only then, and one for messages, at which a
//! rank may be called at any time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use socket2::{Domain, Protocol, Socket, Type};

use crate::Error;

/// Callers that wait for an answer; the kernel may allow fewer.
const BACKLOG: i32 = 1024;

/// Open ports, and everything they can be reached at.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) listener: TcpListener,
    /// With the port of `listener`.
    pub(crate) endpoints: Vec<SocketAddr>,
    pub(crate) p2p: TcpListener,
    pub(crate) p2p_port: u16,
}

/// Opens the ports on all interfaces, or on those with these names (separated by commas).
pub(crate) fn open(interfaces: Option<&str>) -> Result<Network, Error> {
    let mut addresses = usable(interfaces)?;
    let (listener, both_families) = listen()?;
    let (p2p, both_for_p2p) = listen()?;
    let port = |listener: &TcpListener| {
        let address = listener.local_addr().map_err(|error| Error::system("ask for the number of a port", error));
        address.map(|address| address.port())
    };
    let (port, p2p_port) = (port(&listener)?, port(&p2p)?);
    if !(both_families && both_for_p2p) {
        addresses.retain(IpAddr::is_ipv4);
    }
    let endpoints = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
    Ok(Network { listener, endpoints, p2p, p2p_port })
}

/// A listener for both families, or for IPv4 where there is no other.
fn listen() -> Result<(TcpListener, bool), Error> {
    let bind = |domain: Domain, address: IpAddr| {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
        socket.listen(BACKLOG)?;
        Ok(TcpListener::from(socket))
    };
    if let Ok(listener) = bind(Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()) {
        return Ok((listener, true));
    }
    let listener: std::io::Result<TcpListener> = bind(Domain::IPV4, Ipv4Addr::UNSPECIFIED.into());
    listener.map(|listener| (listener, false)).map_err(|error| Error::system("listen on a TCP port", error))
}

/// The addresses of interfaces that are up, loopback last. Link-local ones need a scope that other hosts do not know.
fn usable(interfaces: Option<&str>) -> Result<Vec<IpAddr>, Error> {
    let wanted: Option<Vec<&str>> = interfaces.map(|names| names.split(',').map(str::trim).collect());
    let all = getifaddrs().map_err(|error| Error::system("list the network interfaces", error))?;
    let mut names: Vec<String> = Vec::new();
    let (mut found, mut loopback) = (Vec::new(), Vec::new());
    for interface in all.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP)) {
        if !names.contains(&interface.interface_name) {
            names.push(interface.interface_name.clone());
        }
        let Some(ip) = interface.address.and_then(|address| {
            let four = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        }) else {
            continue;
        };
        let link_local = match ip {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let named = wanted.as_ref().is_none_or(|wanted| wanted.contains(&interface.interface_name.as_str()));
        if ip.is_loopback() {
            loopback.push(ip);
        } else if named && !link_local {
            found.push(ip);
        }
    }
    if let Some(missing) = wanted.iter().flatten().find(|wanted| !names.iter().any(|name| name == *wanted)) {
        return Err(Error::invalid(format!(
            "no network interface {missing} is up\nhint: there are {}",
            names.join(", ")
        )));
    }
    if loopback.is_empty() && found.is_empty() {
        return Err(Error::invalid("no network interface has an address\nhint: `ip address` shows them"));
    }
    // Only ranks in the same network namespace use loopback, so it does no harm beside a choice of interfaces.
    found.extend(loopback);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn every_endpoint_of_this_host_answers() {
        let network = open(None).unwrap();
        assert!(!network.endpoints.is_empty());
        for endpoint in &network.endpoints {
            TcpStream::connect(endpoint).unwrap();
            TcpStream::connect((endpoint.ip(), network.p2p_port)).unwrap();
        }
        assert!(network.endpoints.last().unwrap().ip().is_loopback());
    }

    #[test]
    fn an_interface_that_does_not_exist_is_named() {
        let error = open(Some("lo, nothing7")).unwrap_err().to_string();
        assert!(error.contains("no network interface nothing7") && error.contains("there are lo"), "{error}");
        assert!(open(Some("lo")).unwrap().endpoints.iter().all(|endpoint| endpoint.ip().is_loopback()));
    }
}
