//! Whose TCP sockets there are on a machine, from the text of the kernel's tables.
//!
//! Master, agent and launcher all talk to programs of their own machine, where a port alone says nothing about who is behind it: any
//! user may listen on one that is free. The kernel knows the user of each socket. This module reads what it says; who
//! calls it reads the files ([`TABLES`]).
//!
//! A row: `sl local remote state queues timer retransmits uid timeout inode …`, addresses as 32-bit words in hexadecimal,
//! each in the byte order of the machine, then a colon and the port. IPv4 inside IPv6 is read as IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The kernel's tables, of this network namespace. The second is missing where there is no IPv6.
pub const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// For one connection.
    Established,
    /// For those that will come.
    Listening,
    /// For one that begins or ends. The kernel says 0, which is root, for those of them that nobody owns any more.
    Other,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Socket {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: State,
    /// The user who made it.
    pub uid: u32,
    pub inode: u64,
}

impl Socket {
    fn read(row: &str) -> Option<Socket> {
        let mut words = row.split_ascii_whitespace().skip(1);
        let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
        let state = match words.next()? {
            "01" => State::Established,
            "0A" => State::Listening,
            _ => State::Other,
        };
        // Between the state and the user: the queues, the timer, the retransmits. Behind it: the timeout.
        let uid = words.nth(3)?.parse().ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        Some(Socket { local, remote, state, uid, inode })
    }
}

/// The rows of a table; what is none, such as its head, is passed over.
pub fn sockets(table: &str) -> impl Iterator<Item = Socket> {
    table.lines().filter_map(Socket::read)
}

/// The user whose established connection goes from `from` to `to`.
pub fn caller(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let (from, to) = (canonical(from), canonical(to));
    let mut all = sockets(table);
    all.find(|one| one.state == State::Established && one.local == from && one.remote == to).map(|one| one.uid)
}

/// The users who listen where a connection to `at` leads; there are several only if they share the port. As the kernel
/// does it, the address itself comes before all addresses, and those of its own family before those of both.
pub fn listeners(tables: &str, at: SocketAddr) -> Vec<u32> {
    let at = canonical(at);
    let distance = |ip: IpAddr| match ip {
        _ if ip == at.ip() => Some(0),
        IpAddr::V4(_) if at.is_ipv6() => None,
        _ if ip.is_unspecified() => Some(if ip.is_ipv4() == at.is_ipv4() { 1 } else { 2 }),
        _ => None,
    };
    let here = sockets(tables).filter(|one| one.state == State::Listening && one.local.port() == at.port());
    let found: Vec<(u8, u32)> = here.filter_map(|one| Some((distance(one.local.ip())?, one.uid))).collect();
    let nearest = found.iter().map(|(distance, _)| *distance).min();
    found.iter().filter(|(distance, _)| Some(*distance) == nearest).map(|(_, uid)| *uid).collect()
}

/// Without the difference between IPv4 and IPv4 inside IPv6, and without what no table says.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An address as the kernel writes it.
fn address(text: &str) -> Option<SocketAddr> {
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
    Some(SocketAddr::new(ip, port))
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

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n";

    proptest! {
        #[test]
        fn what_the_kernel_prints_is_read(from in addresses(), to in addresses(), uid: u32, wide: bool) {
            for (text, state) in [("01", State::Established), ("0A", State::Listening), ("06", State::Other)] {
                let table = HEAD.to_owned() + &row(from, to, text, uid, wide);
                let expected = Socket { local: from, remote: to, state, uid, inode: 4711 };
                prop_assert_eq!(sockets(&table).collect::<Vec<_>>(), [expected]);
            }
        }

        #[test]
        fn the_right_caller_is_found_among_others(
            from in addresses(), to in addresses(), other in addresses(), uid: u32, wide: bool
        ) {
            prop_assume!(from != to && other != from);
            let table = HEAD.to_owned()
                + &row(other, to, "01", 1, wide)
                + &row(to, from, "01", 2, wide)
                + &row(from, to, "06", 3, wide)
                + &row(from, to, "01", uid, wide);
            prop_assert_eq!(caller(&table, from, to), Some(uid));
            prop_assert_eq!(caller(&row(from, to, "05", uid, wide), from, to), None);
        }

        #[test]
        fn only_who_listens_at_an_address_counts(
            at in addresses(), other in addresses(), uid: u32, stranger: u32, wide: bool
        ) {
            prop_assume!(!at.ip().is_unspecified() && !other.ip().is_unspecified() && at.ip() != other.ip());
            let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
            let elsewhere = row(SocketAddr::new(other.ip(), at.port()), nobody, "0A", stranger, wide)
                + &row(SocketAddr::new(at.ip(), at.port().wrapping_add(1)), nobody, "0A", stranger, wide)
                + &row(at, other, "01", stranger, wide);
            prop_assert_eq!(listeners(&elsewhere, at), Vec::<u32>::new());
            let everywhere = |ip: IpAddr, uid| row(SocketAddr::new(ip, at.port()), nobody, "0A", uid, false);
            let (v4, v6) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED));
            let both = elsewhere + &everywhere(v6, uid);
            prop_assert_eq!(listeners(&both, at), vec![uid], "a server for both families has the port of each");
            let own_family = both.clone() + &everywhere(v4, stranger);
            prop_assert_eq!(listeners(&own_family, at), vec![if at.is_ipv4() { stranger } else { uid }]);
            let exact = own_family + &row(at, nobody, "0A", uid, wide) + &row(at, nobody, "0A", stranger, wide);
            prop_assert_eq!(listeners(&exact, at), vec![uid, stranger]);
        }

        #[test]
        fn any_text_is_a_table_without_a_panic(table in ".{0,400}", words in "[ 0-9A-F:\n]{0,400}") {
            let somewhere = SocketAddr::from(([127, 0, 0, 1], 80));
            for text in [&table, &words] {
                let _ = (caller(text, somewhere, somewhere), listeners(text, somewhere));
            }
        }
    }
}
