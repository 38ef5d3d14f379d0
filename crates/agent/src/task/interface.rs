//! Which network interface of this machine has an address.
//!
//! Gloo takes the address that the host's name stands for. On many machines that is the loopback's, which no other
//! machine reaches, so tasks on several machines are told the interface under whose address the others know this one.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// By which gloo is told.
pub const VARIABLE: &str = "GLOO_SOCKET_IFNAME";

/// The name of the interface with an address; `None` for names of hosts, and for addresses that are not ours.
pub fn of_address(address: &str) -> Option<String> {
    let wanted: IpAddr = address.parse().ok()?;
    let all = getifaddrs().ok()?;
    all.into_iter().find(|found| found.address.as_ref().and_then(ip) == Some(wanted)).map(|found| found.interface_name)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let fourth = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    fourth.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_have_an_interface() {
        assert_eq!(of_address("127.0.0.1").as_deref(), Some("lo"));
        // Kept for documentation: no machine has it.
        assert_eq!(of_address("192.0.2.1"), None);
        assert_eq!(of_address("2001:db8::1"), None);
        assert_eq!(of_address("localhost"), None);
        assert_eq!(of_address(""), None);
    }
}
