//! Who is at the other end of a connection from this machine: the kernel's table of connections names each one's user.
//!
//! The other end is a socket of this machine whose local address is the connection's remote one, so its row in
//! `/proc/net/tcp` or `tcp6` says who made it. Rows of other states than "established" are not believed: the kernel says
//! 0, which is root, for sockets that nobody owns any more.
//!
//! A row: `sl local remote state queues timer retransmits uid timeout inode …`, addresses as 32-bit words in hexadecimal,
//! each in the byte order of the machine, then a colon and the port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const ESTABLISHED: &str = "01";

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The caller.
    pub remote: SocketAddr,
    /// Where it is served.
    pub local: SocketAddr,
}

impl Peer {
    /// Whether the caller is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.remote.ip().to_canonical().is_loopback()
    }

    /// Whether the caller is a process of the user that this process belongs to, on this machine. Reads files of the
    /// kernel: call it where blocking is allowed.
    pub(crate) fn is_own_user(&self) -> bool {
        let own = nix::unistd::getuid().as_raw();
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        self.is_local()
            && tables.iter().any(|path| {
                std::fs::read_to_string(path).is_ok_and(|table| owner(&table, self.remote, self.local) == Some(own))
            })
    }
}

/// The user whose established connection goes from `from` to `to`.
fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let same = |text: &str, wanted: SocketAddr| {
        address(text).is_some_and(|(ip, port)| ip == wanted.ip().to_canonical() && port == wanted.port())
    };
    table.lines().find_map(|row| {
        let mut words = row.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        let found = state == ESTABLISHED && same(local, from) && same(remote, to);
        // Behind the state: the queues, the timer, the retransmits.
        found.then(|| words.nth(3)?.parse().ok()).flatten()
    })
}

/// An address as the kernel writes it, without the difference between IPv4 and IPv4 inside IPv6.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (digits, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(digits.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match digits.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As the kernel prints it: `%08X` of each word in memory.
    fn printed(address: SocketAddr, wide: bool) -> String {
        let words = |bytes: &[u8]| -> String {
            let word = |part: &[u8]| u32::from_ne_bytes([part[0], part[1], part[2], part[3]]);
            bytes.chunks(4).map(|part| format!("{:08X}", word(part))).collect()
        };
        let digits = match address.ip() {
            IpAddr::V4(ip) if wide => words(&ip.to_ipv6_mapped().octets()),
            IpAddr::V4(ip) => words(&ip.octets()),
            IpAddr::V6(ip) => words(&ip.octets()),
        };
        format!("{digits}:{:04X}", address.port())
    }

    fn row(from: SocketAddr, to: SocketAddr, state: &str, uid: u32, wide: bool) -> String {
        let (from, to) = (printed(from, wide), printed(to, wide));
        format!("   7: {from} {to} {state} 00000000:00000000 02:000A 00000000  {uid}        0 4711 2 0 20 4 0 10 -1\n")
    }

    fn addresses() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(|bytes| IpAddr::from(bytes).to_canonical())
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn the_right_row_is_found_among_others(
            from in addresses(), to in addresses(), other in addresses(), uid: u32, wide: bool
        ) {
            prop_assume!(from != to && other != from);
            let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n".to_owned()
                + &row(other, to, "01", 1, wide)
                + &row(to, from, "01", 2, wide)
                + &row(from, to, "06", 3, wide)
                + &row(from, to, "01", uid, wide);
            prop_assert_eq!(owner(&table, from, to), Some(uid));
            prop_assert_eq!(owner(&row(from, to, "05", uid, wide), from, to), None);
        }

        #[test]
        fn any_text_is_a_table_without_a_panic(table in ".{0,400}", words in "[ 0-9A-F:\n]{0,400}") {
            let somewhere = SocketAddr::from(([127, 0, 0, 1], 80));
            let _ = owner(&table, somewhere, somewhere);
            let _ = owner(&words, somewhere, somewhere);
        }
    }

    #[test]
    fn connections_of_this_process_are_its_own_user_s() {
        for server in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(server) else { continue };
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (served, remote) = listener.accept().unwrap();
            let peer = Peer { remote, local: served.local_addr().unwrap() };
            assert!(peer.is_own_user(), "{peer:?}");
            drop(client);
            let stranger = Peer { remote: SocketAddr::from(([10, 0, 0, 1], 80)), ..peer };
            assert!(!stranger.is_own_user());
        }
    }
}
