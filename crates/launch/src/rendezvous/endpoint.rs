//! Where a job's launchers meet: parsing of `host:port`, whether that is this machine, and connecting with a reason
//! when it fails.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The port of a `c10d` endpoint that names none.
pub const DEFAULT_DYNAMIC_PORT: u16 = 29400;
/// The port of a `static` rendezvous that names none.
pub const DEFAULT_STATIC_PORT: u16 = 29500;

/// `host[:port]` as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port, if one was given.
    pub port: Option<u16>,
}

/// Why an endpoint cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The part behind the last colon is not a port.
    #[error("the port in endpoint \"{0}\" is not a number from 0 to 65535")]
    Port(String),
    /// The part before the colon is not a host.
    #[error("endpoint \"{0}\" has no valid host name")]
    Host(String),
    /// Several colons without brackets.
    #[error("endpoint \"{0}\" looks like an IPv6 address without brackets; write {bracketed}", bracketed = bracketed(.0))]
    Brackets(String),
}

/// An IPv6 address as it was probably meant: a last group that cannot be one of the address is the port.
fn bracketed(text: &str) -> String {
    let is_address = |text: &str| text.parse::<std::net::Ipv6Addr>().is_ok();
    match text.rsplit_once(':') {
        Some((host, port)) if !is_address(text) && is_address(host) && port.parse::<u16>().is_ok() => {
            format!("[{host}]:{port}")
        }
        _ => format!("[{text}]:PORT"),
    }
}

impl Endpoint {
    /// Parses `host`, `host:port`, `[v6]` or `[v6]:port`; nothing at all means this machine.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Endpoint { host: "localhost".to_owned(), port: None });
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(|| EndpointError::Host(text.to_owned()))?;
            let port = match after {
                "" => None,
                _ => Some(after.strip_prefix(':').ok_or_else(|| EndpointError::Port(text.to_owned()))?),
            };
            (host, port)
        } else if text.matches(':').count() > 1 {
            return Err(EndpointError::Brackets(text.to_owned()));
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_' | ':' | '%');
        if host.is_empty() || !host.chars().all(legal) {
            return Err(EndpointError::Host(text.to_owned()));
        }
        let port = port.map(str::parse).transpose().map_err(|_| EndpointError::Port(text.to_owned()))?;
        Ok(Endpoint { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(formatter, "{}{}{}", open.0, self.host, open.1)?;
        self.port.map_or(Ok(()), |port| write!(formatter, ":{port}"))
    }
}

/// This machine's name.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

/// Whether `host` names this machine: by name, as a loopback address, or because an address of it is one of ours.
pub fn is_this_host(host: &str) -> bool {
    if host == "localhost" || host == host_name() {
        return true;
    }
    if let Ok(address) = host.parse::<IpAddr>()
        && address.is_loopback()
    {
        return true;
    }
    let ours: Vec<IpAddr> = interfaces().into_iter().map(|(_, address)| address).collect();
    (host, 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| ours.contains(&address.ip())))
}

/// Addresses of this machine with the interface that carries each.
fn interfaces() -> Vec<(String, IpAddr)> {
    let Ok(found) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    found
        .filter_map(|interface| {
            let storage = interface.address?;
            let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            let v6 = storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
            Some((interface.interface_name, v4.or(v6)?))
        })
        .collect()
}

/// The interface through which the system would send to `target`, and our address on it. Nothing is sent.
fn route_to(target: SocketAddr) -> Option<String> {
    let any: SocketAddr = if target.is_ipv6() { ([0u16; 8], 0).into() } else { ([0u8; 4], 0).into() };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    let local = socket.local_addr().ok()?.ip();
    let name = interfaces().into_iter().find(|(_, address)| *address == local).map(|(name, _)| name);
    Some(match name {
        Some(name) => format!("{name} ({local})"),
        None => local.to_string(),
    })
}

/// What one try to reach the endpoint came to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The name has no address.
    #[error("the name \"{host}\" does not resolve ({cause})")]
    Unresolved { host: String, cause: String },
    /// The machine answers, but nothing listens there.
    #[error("nothing listens at {target}{}", via(route))]
    Refused {
        target: SocketAddr,
        /// Through which interface.
        route: String,
    },
    /// No answer in time.
    #[error("{target} does not answer{}: a firewall, or the machine is down", via(route))]
    TimedOut {
        target: SocketAddr,
        /// Through which interface.
        route: String,
    },
    /// The system has no way to that address, or another error.
    #[error("{target} cannot be reached: {cause}")]
    Unreachable { target: SocketAddr, cause: String },
}

/// Which way was tried; on this machine itself there is only one.
fn via(route: &str) -> String {
    if route.starts_with("lo ") { String::new() } else { format!(" (asked through {route})") }
}

impl ConnectError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            ConnectError::Unresolved { .. } => {
                "check the spelling, or give the address of the first node instead of its name"
            }
            ConnectError::Refused { .. } => {
                "start the launcher of the first node, and check that both sides name the same port"
            }
            ConnectError::TimedOut { .. } | ConnectError::Unreachable { .. } => {
                "check the network between the nodes, and that the port is open"
            }
        }
    }
}

/// One try: each address of `host` in turn, `timeout` for each.
pub fn try_connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, ConnectError> {
    let unresolved = |cause: String| ConnectError::Unresolved { host: host.to_owned(), cause };
    let targets: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| unresolved(resolver_text(&error)))?.collect();
    let mut connect_error = unresolved("no address".to_owned());
    for target in targets {
        let route = || route_to(target).unwrap_or_else(|| "no interface".to_owned());
        match TcpStream::connect_timeout(&target, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                connect_error = match error.kind() {
                    io::ErrorKind::ConnectionRefused => ConnectError::Refused { target, route: route() },
                    io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                        ConnectError::TimedOut { target, route: route() }
                    }
                    _ => ConnectError::Unreachable { target, cause: error.to_string() },
                }
            }
        }
    }
    Err(connect_error)
}

/// A connection to the server of this process.
pub(crate) fn connect_to_self(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).or_else(|_| TcpStream::connect(("::1", port)))
}

fn resolver_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned()
}

/// Tries until `deadline`. `pause` waits between two tries, hears why the last one failed when that reason is new, and
/// may give up by returning false.
pub fn connect(
    host: &str,
    port: u16,
    deadline: Instant,
    mut pause: impl FnMut(Duration, Option<&ConnectError>) -> bool,
) -> Result<TcpStream, ConnectError> {
    let mut wait = Duration::from_millis(20);
    // An unreachable machine gives two reasons in turn: no answer, and then the system's word that there was none.
    let mut told: Vec<ConnectError> = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = left.clamp(Duration::from_millis(100), Duration::from_secs(2));
        let connect_error = match try_connect(host, port, timeout) {
            Ok(stream) => return Ok(stream),
            Err(connect_error) => connect_error,
        };
        let is_news = !told.contains(&connect_error);
        if Instant::now() + wait >= deadline || !pause(wait, is_news.then_some(&connect_error)) {
            return Err(connect_error);
        }
        if is_news {
            told.push(connect_error);
        }
        wait = (wait * 2).min(Duration::from_millis(500));
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectError, Endpoint, is_this_host, try_connect};
    use std::time::Duration;

    #[test]
    fn endpoints_are_parsed_or_refused() {
        for (text, host, port) in [
            ("", "localhost", None),
            ("node-a", "node-a", None),
            ("node-a:29400", "node-a", Some(29400)),
            ("10.0.0.1:0", "10.0.0.1", Some(0)),
            ("[fd00::1]:29603", "fd00::1", Some(29603)),
            ("[::1]", "::1", None),
        ] {
            assert_eq!(Endpoint::parse(text), Ok(Endpoint { host: host.to_owned(), port }), "{text}");
        }
        for text in ["a:b", "a:70000", ":29400", "[fd00::1", "[::1]29", "fd00::1:29603", "a b:1", "[]:1"] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
        assert_eq!(Endpoint::parse("[fd00::1]:5").expect("valid").to_string(), "[fd00::1]:5");
        for (text, advice) in [
            ("::1:29603", "write [::1]:29603"),
            ("1:2:3:4:5:6:7:8:80", "write [1:2:3:4:5:6:7:8]:80"),
            ("fd00::1", "write [fd00::1]:PORT"),
            // Four digits may be a group of the address.
            ("fd00::1:2960", "write [fd00::1:2960]:PORT"),
        ] {
            let error = Endpoint::parse(text).expect_err("no brackets").to_string();
            assert!(error.ends_with(advice), "{error}");
        }
    }

    #[test]
    fn loopback_is_this_host() {
        assert!(is_this_host("localhost"));
        assert!(is_this_host("127.0.0.1"));
        assert!(is_this_host("::1"));
        assert!(!is_this_host("203.0.113.7"));
        assert!(!is_this_host("no-such-host.invalid"));
    }

    #[test]
    fn refusal_and_unknown_names_are_last_error_apart() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("address").port();
        let refused = try_connect("127.0.0.1", free, Duration::from_secs(1)).expect_err("nothing listens");
        assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
        let unknown = try_connect("no-such-host.invalid", 1, Duration::from_secs(1)).expect_err("unknown");
        assert!(matches!(unknown, ConnectError::Unresolved { .. }), "{unknown}");
    }
}
