//! Where a rank listens: opaque bytes for callers to exchange through a store of their choice.
//!
//! ```text
//! "instep" version(1) { tag(1) length(2, little endian) value }*
//! tag 1  host name, for messages        tag 3  abstract Unix socket
//! tag 2  which memory it shares         tag 4  token a caller must know
//! tag 5  which network it is in         tag 6  an endpoint in that network (any number of them)
//! tag 7  empty: sums are to be in the order of ranks everywhere
//! tag 8  the port for messages at those endpoints (2, little endian)
//! tag 9  empty: what goes over the network is encrypted
//! tag 10 how many channels it has between hosts (1), and how many bytes one is worth waking for (4, little endian)
//! ```
//! Fields with other tags are skipped, so that later versions can add ways to connect.

use std::fmt;
use std::net::SocketAddr;

use crate::Error;
use crate::partition::NetworkChannels;

const MAGIC: &[u8] = b"instep\x01";
const HOST: u8 = 1;
const MEMORY: u8 = 2;
const SOCKET: u8 = 3;
const TOKEN: u8 = 4;
const NETWORK: u8 = 5;
const ENDPOINT: u8 = 6;
const CANONICAL: u8 = 7;
const P2P_PORT: u8 = 8;
const ENCRYPTED: u8 = 9;
const CHANNELS: u8 = 10;

/// The most endpoints that an address may have: a rank calls them one after the other.
const MAX_ENDPOINTS: usize = 64;

/// Where a rank listens. Made by [`crate::Group::bind`], carried as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) host: String,
    /// Equal for two ranks that can share memory: see [`crate::shm::bootstrap::bind`].
    pub(crate) memory: String,
    pub(crate) socket: Vec<u8>,
    pub(crate) token: [u8; 16],
    /// Equal for two ranks that reach each other through loopback: the machine's boot and its network namespace.
    pub(crate) network: String,
    /// Where it can be called over the network; empty unless it was opened to it.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Where it takes messages, at the same places; 0 unless it was opened to the network.
    pub(crate) p2p_port: u16,
    /// It wants sums in the order of ranks, whatever the hosts.
    pub(crate) canonical: bool,
    /// It encrypts what it sends over the network, and takes nothing else.
    pub(crate) encrypted: bool,
    /// What it offers to use between hosts; ranks of versions without them use one.
    pub(crate) channels: NetworkChannels,
}

impl Address {
    /// The bytes to hand to the other ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let endpoints: Vec<String> = self.endpoints.iter().map(SocketAddr::to_string).collect();
        let p2p_port = self.p2p_port.to_le_bytes();
        let [one, two, three, four] = self.channels.least_bytes().to_le_bytes();
        let channels = [self.channels.count() as u8, one, two, three, four];
        let mut fields: Vec<(u8, &[u8])> = vec![
            (HOST, self.host.as_bytes()),
            (MEMORY, self.memory.as_bytes()),
            (SOCKET, &self.socket),
            (TOKEN, &self.token),
            (NETWORK, self.network.as_bytes()),
        ];
        fields.extend(endpoints.iter().take(MAX_ENDPOINTS).map(|endpoint| (ENDPOINT, endpoint.as_bytes())));
        if self.canonical {
            fields.push((CANONICAL, &[]));
        }
        if self.encrypted {
            fields.push((ENCRYPTED, &[]));
        }
        if self.p2p_port != 0 {
            fields.push((P2P_PORT, &p2p_port));
        }
        if self.channels != NetworkChannels::ONE {
            fields.push((CHANNELS, &channels));
        }
        let mut bytes = MAGIC.to_vec();
        for (tag, value) in fields {
            let value = &value[..value.len().min(usize::from(u16::MAX))];
            bytes.push(tag);
            bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        bytes
    }

    /// What [`Address::to_bytes`] of another rank gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Address, Error> {
        let wrong = |what| Error::Address { what };
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(wrong("it does not start as one of this version"))?;
        let (mut host, mut memory, mut socket, mut token, mut network) = (None, None, None, None, None);
        let (mut endpoints, mut canonical, mut p2p_port) = (Vec::new(), false, 0);
        let (mut encrypted, mut channels) = (false, NetworkChannels::ONE);
        while let [tag, low, high, after @ ..] = rest {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let (value, after) = after.split_at_checked(length).ok_or(wrong("it is cut off"))?;
            rest = after;
            let text = || String::from_utf8(value.to_vec()).map_err(|_| wrong("a name is not text"));
            match *tag {
                HOST => host = Some(text()?),
                MEMORY => memory = Some(text()?),
                SOCKET => socket = Some(value.to_vec()),
                TOKEN => token = Some(value.try_into().map_err(|_| wrong("its token has the wrong length"))?),
                NETWORK => network = Some(text()?),
                CANONICAL => canonical = true,
                ENCRYPTED => encrypted = true,
                P2P_PORT => {
                    let port = value.try_into().map_err(|_| wrong("its port for messages has the wrong length"))?;
                    p2p_port = u16::from_le_bytes(port);
                }
                CHANNELS => {
                    let &[count, ref least_bytes @ ..] = value else {
                        return Err(wrong("its channels have the wrong length"));
                    };
                    let least_bytes =
                        least_bytes.try_into().map_err(|_| wrong("its channels have the wrong length"))?;
                    channels = NetworkChannels::new(count.into(), u32::from_le_bytes(least_bytes) as usize);
                }
                ENDPOINT => {
                    let endpoint = text()?.parse().map_err(|_| wrong("an endpoint is none"))?;
                    if endpoints.len() < MAX_ENDPOINTS {
                        endpoints.push(endpoint);
                    }
                }
                _ => {}
            }
        }
        if !rest.is_empty() {
            return Err(wrong("it is cut off"));
        }
        match (host, memory, socket, token, network) {
            (Some(host), Some(memory), Some(socket), Some(token), Some(network)) => Ok(Address {
                host,
                memory,
                socket,
                token,
                network,
                endpoints,
                canonical,
                p2p_port,
                encrypted,
                channels,
            }),
            _ => Err(wrong("a field is missing")),
        }
    }

    /// The host's name, for messages.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Debug for Address {
    /// Without the token, which logs need not know.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({}", self.host)?;
        for endpoint in &self.endpoints {
            write!(formatter, " {endpoint}")?;
        }
        write!(formatter, " {})", String::from_utf8_lossy(&self.socket))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Address {
        Address {
            host: "a".into(),
            memory: "b:1".into(),
            socket: b"instep-1".to_vec(),
            token: [7; 16],
            network: "n".into(),
            canonical: false,
            encrypted: false,
            p2p_port: 80,
            channels: NetworkChannels::ONE,
            endpoints: vec!["127.0.0.1:80".parse().unwrap(), "[::1]:81".parse().unwrap()],
        }
    }

    #[test]
    fn unknown_fields_are_skipped_and_missing_ones_reported() {
        let mut bytes = sample().to_bytes();
        bytes.extend_from_slice(&[200, 2, 0, 1, 2]);
        assert_eq!(Address::from_bytes(&bytes).unwrap(), sample());
        assert!(Address::from_bytes(MAGIC).is_err());
        assert!(Address::from_bytes(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn channels_are_those_of_the_field_and_one_where_there_is_none() {
        let channels = |field: &[u8]| {
            let address = Address::from_bytes(&[&sample().to_bytes()[..], field].concat());
            address.map(|address| (address.channels.count(), address.channels.least_bytes()))
        };
        assert_eq!(channels(&[]).unwrap(), (1, 0));
        assert_eq!(channels(&[CHANNELS, 5, 0, 4, 0, 1, 0, 0]).unwrap(), (4, 256));
        assert_eq!(channels(&[CHANNELS, 5, 0, 0, 0, 1, 0, 0]).unwrap(), (1, 0));
        assert_eq!(channels(&[CHANNELS, 5, 0, 255, 0, 1, 0, 0]).unwrap(), (8, 256));
        for field in [&[CHANNELS, 0, 0][..], &[CHANNELS, 4, 0, 4, 0, 1, 0], &[CHANNELS, 6, 0, 4, 0, 1, 0, 0, 0]] {
            assert!(channels(field).unwrap_err().to_string().contains("its channels have the wrong length"));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_address_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Address::from_bytes(&bytes);
            let _ = Address::from_bytes(&[MAGIC, &bytes].concat());
        }

        #[test]
        fn addresses_survive_the_store(host in "\\PC{0,40}", token in any::<[u8; 16]>(), ip: [u8; 16], port: u16, p2p_port: u16, (canonical, encrypted) in any::<(bool, bool)>(), (count, least_bytes) in any::<(u8, u32)>()) {
            let endpoints = vec![(ip, port).into(), ([1, 2, 3, 4], port).into()];
            let channels = NetworkChannels::new(count.into(), least_bytes as usize);
            let address = Address { host, token, endpoints, canonical, encrypted, p2p_port, channels, ..sample() };
            prop_assert_eq!(Address::from_bytes(&address.to_bytes()).unwrap(), address);
        }
    }
}
