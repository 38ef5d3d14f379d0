//! Where a master is, as people write it.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The port of a master whose address names no scheme and no port, as Determined has it.
const DEFAULT_PORT: u16 = 8080;

/// A master's address: `host`, `host:port`, or a URL, which may have a path that a proxy listens under.
///
/// A bare host means `http` on port 8080; `http://` and `https://` have their usual ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `scheme://host:port/prefix`, without a slash at its end.
    base: String,
    host: String,
    port: u16,
}

impl Address {
    /// `scheme://host:port`, and the prefix if there is one, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.base
    }

    /// `host:port`.
    pub(crate) fn authority(&self) -> &str {
        let rest = self.base.split_once("://").map_or(self.base.as_str(), |(_, rest)| rest);
        rest.split('/').next().unwrap_or(rest)
    }

    /// The name or IP address, without brackets.
    pub fn host(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }

    /// The port, which may be its scheme's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether a proxy listens there under a path.
    pub fn has_path(&self) -> bool {
        self.base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'))
    }

    /// Whether it is this machine, by name.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether it is spoken to with TLS.
    pub fn is_encrypted(&self) -> bool {
        self.base.starts_with("https://")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.base)
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let refused = |why: &str| Error::Address { given: text.to_owned(), why: why.to_owned() };
        let trimmed = text.trim();
        let (scheme, rest, default_port) = match trimmed.split_once("://") {
            Some(("http", rest)) => ("http", rest, 80),
            Some(("https", rest)) => ("https", rest, 443),
            Some((other, _)) => return Err(refused(&format!("`{other}` is neither http nor https"))),
            None => ("http", trimmed, DEFAULT_PORT),
        };
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if rest.contains(['?', '#', '@']) || rest.contains(char::is_whitespace) || rest.contains(char::is_control) {
            return Err(refused("it has a query, a fragment, a user or a blank"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| refused("its port is not a number up to 65535"))?;
        if !is_host(host) {
            return Err(refused("its host is missing or has invalid characters"));
        }
        if prefix.starts_with("//") {
            return Err(refused("its scheme has no colon"));
        }
        if prefix.bytes().any(|byte| !byte.is_ascii_graphic() || b"\"<>\\^`{|}".contains(&byte)) {
            return Err(refused("its path has characters that must be percent-encoded"));
        }
        let (host, port) = (host.to_ascii_lowercase(), port.unwrap_or(default_port));
        let prefix = prefix.trim_end_matches('/');
        Ok(Address { base: format!("{scheme}://{host}:{port}{prefix}"), host, port })
    }
}

/// The addresses of one or several masters of a cluster, of which any answers for all: `URL1,URL2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    first: Address,
    others: Vec<Address>,
}

impl Addresses {
    /// The one that the cluster is known by.
    pub fn first(&self) -> &Address {
        &self.first
    }

    /// All, in the order in which they were given.
    pub fn all(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// One of them; numbers beyond the last begin again with the first.
    pub fn at(&self, number: usize) -> &Address {
        match number % self.count() {
            0 => &self.first,
            other => self.others.get(other - 1).unwrap_or(&self.first),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }
}

impl From<Address> for Addresses {
    fn from(first: Address) -> Addresses {
        Addresses { first, others: Vec::new() }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(formatter)?;
        self.others.iter().try_for_each(|other| write!(formatter, ",{other}"))
    }
}

impl FromStr for Addresses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Addresses, Error> {
        let mut parts = text.split(',').map(str::parse);
        // There is always a first part, and an empty one is refused.
        let first = parts.next().unwrap_or_else(|| "".parse())?;
        Ok(Addresses { first, others: parts.collect::<Result<_, _>>()? })
    }
}

/// Parts `host:port`; `None` if there is a port and it is no port.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    // A colon inside brackets belongs to an IPv6 address.
    let after_brackets = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[after_brackets..].rfind(':') {
        None => Some((authority, None)),
        Some(at) => {
            let (host, port) = authority.split_at(after_brackets + at);
            let digits = &port[1..];
            let number: u16 = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
            Some((host, Some(number).filter(|number| *number != 0)?.into()))
        }
    }
}

fn is_host(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok()),
        None => {
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(letters)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn addresses_mean_what_they_mean_to_determined() {
        let cases = [
            ("localhost", "http://localhost:8080"),
            ("Cluster.example:80", "http://cluster.example:80"),
            ("http://10.0.0.1", "http://10.0.0.1:80"),
            ("https://cluster.example/", "https://cluster.example:443"),
            ("https://cluster.example:8443/det/one/", "https://cluster.example:8443/det/one"),
            (" http://[::1]:8080 ", "http://[::1]:8080"),
        ];
        for (given, expected) in cases {
            assert_eq!(given.parse::<Address>().unwrap().as_str(), expected, "{given}");
        }
        for given in [
            "",
            "http://",
            "ftp://x",
            "x:port",
            "x:70000",
            "x:0",
            "a b",
            "http://u@h",
            "http://h?x",
            "[::1",
            "h\nx",
            "http//h:1",
        ] {
            let refused = given.parse::<Address>().unwrap_err();
            assert!(matches!(refused, Error::Address { .. }), "{given}: {refused}");
        }
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for (given, expected) in [("localhost", true), ("127.1.2.3:1", true), ("[::1]", true), ("10.0.0.1", false)] {
            assert_eq!(given.parse::<Address>().unwrap().is_loopback(), expected, "{given}");
        }
    }

    #[test]
    fn several_addresses_are_a_list() {
        let several: Addresses = "a, https://b:1/x ,[::1]:2".parse().unwrap();
        assert_eq!(several.to_string(), "http://a:8080,https://b:1/x,http://[::1]:2");
        assert_eq!((several.count(), several.first().as_str()), (3, "http://a:8080"));
        let turns: Vec<&str> = (0..4).map(|number| several.at(number).as_str()).collect();
        assert_eq!(turns, ["http://a:8080", "https://b:1/x", "http://[::1]:2", "http://a:8080"]);
        assert_eq!(Addresses::from(several.first().clone()).to_string(), "http://a:8080");
        for given in ["", ",", "a,", ",a", "a,,b", "a b", "a,ftp://b"] {
            assert!(given.parse::<Addresses>().is_err(), "{given}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_refused_or_read_the_same_twice(text in "[a-c.:,/0-9 \\[\\]ht]{0,24}") {
            if let Ok(addresses) = text.parse::<Addresses>() {
                prop_assert_eq!(addresses.count(), text.split(',').count());
                prop_assert_eq!(addresses.to_string().parse::<Addresses>().unwrap(), addresses);
            }
        }

        #[test]
        fn any_text_is_refused_or_read_the_same_twice(text in any::<String>()) {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.as_str().parse::<Address>().unwrap(), address);
            }
        }
    }
}
