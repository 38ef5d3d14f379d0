//! The first exchange on a control connection: this node says hello, and the coordinator welcomes, refuses or redirects it.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use instep_policy::election::HostPort;
use instep_policy::membership::{LauncherId, Vote};
use socket2::{SockRef, TcpKeepalive};

use super::endpoint::Endpoint;
use super::error::RendezvousError;
use crate::control::channel::{Channel, ChannelError, Inbound};
use crate::control::connection::CoordinatorConnection;
use crate::control::heartbeat::Heartbeat;
use crate::control::{self, FromCoordinator, Hello, ToCoordinator, WireTerms};
use crate::plan::Plan;

/// How long a launcher waits for the answer to its hello: the coordinator never blocks, so this is network time.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel's keep-alive on control connections without heartbeats.
const KEEPALIVE: Heartbeat = Heartbeat { interval: Duration::from_secs(5), attempts: 3 };

/// What a launcher says of itself on each of its connections.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) launcher: LauncherId,
    pub(crate) standby_port: Option<u16>,
    pub(crate) last_round: Option<u64>,
    pub(crate) votes: Vec<Vote>,
    /// Workers of that round are still being ended.
    pub(crate) busy: bool,
    /// The previous coordinator had fallen silent.
    pub(crate) after_silence: bool,
}

/// What answered a hello.
pub(super) enum HandshakeReply {
    Welcome(Box<CoordinatorConnection>),
    /// The job is led there.
    Moved(HostPort),
    /// The job is being taken over by another launcher.
    NotLeading,
    /// Not a coordinator; what was seen instead.
    NotACoordinator(String),
}

/// Why there was no answer. A read that times out is "Resource temporarily unavailable" to the system.
fn silence(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it did not answer within {} s", HELLO_TIMEOUT.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "it closed the connection".to_owned(),
        _ => format!("it did not answer: {cause}"),
    }
}

/// Says hello on a fresh connection; `host_token` is given to the coordinator of this process alone.
pub(super) fn handshake(
    plan: &Plan,
    identity: &Identity,
    mut stream: TcpStream,
    host_token: Option<u64>,
    endpoint: &Endpoint,
) -> Result<HandshakeReply, RendezvousError> {
    set_socket_options(&stream, plan.heartbeat.unwrap_or(KEEPALIVE))?;
    let hello = control::encode(&ToCoordinator::Hello(hello(plan, identity, host_token)));
    let mut channel = match Channel::open(&mut stream, plan.token.as_ref()) {
        Ok(channel) => channel,
        Err(ChannelError::NotProved) => return Err(RendezvousError::NotProved { endpoint: endpoint.clone() }),
        Err(error @ ChannelError::Text(_)) => {
            return Err(RendezvousError::NoChannel { endpoint: endpoint.clone(), what: error.to_string() });
        }
        Err(ChannelError::Io(cause)) => return Ok(HandshakeReply::NotACoordinator(silence(&cause))),
    };
    let mut received = Vec::new();
    let answer = channel.write(&mut stream, &hello);
    let answer = answer.and_then(|()| read_line(&mut stream, &mut channel.inbound, &mut received));
    if let Err(cause) = answer {
        return Ok(HandshakeReply::NotACoordinator(silence(&cause)));
    }
    match control::decode::<FromCoordinator>(&received) {
        Ok(Some((FromCoordinator::Welcome {}, length))) => {
            received.drain(..length);
            let connection = CoordinatorConnection::new(OwnedFd::from(stream), channel, received, plan.heartbeat)?;
            Ok(HandshakeReply::Welcome(Box::new(connection)))
        }
        Ok(Some((FromCoordinator::Refused { reason }, _))) => {
            Err(RendezvousError::Refused { endpoint: endpoint.clone(), reason })
        }
        Ok(Some((FromCoordinator::Moved(leader), _))) => Ok(HandshakeReply::Moved(leader)),
        Ok(Some((FromCoordinator::NotLeading {}, _))) => Ok(HandshakeReply::NotLeading),
        // torchrun's store never answers a hello: it closes the connection.
        _ => Err(RendezvousError::NotACoordinator {
            endpoint: endpoint.clone(),
            what: format!("it answered \"{}\"", received.iter().take(16).copied().collect::<Vec<u8>>().escape_ascii()),
        }),
    }
}

fn hello(plan: &Plan, identity: &Identity, host_token: Option<u64>) -> Hello {
    Hello {
        protocol: control::PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        run_id: plan.job.run_id.clone(),
        host_token,
        launcher: identity.launcher,
        last_round: identity.last_round,
        votes: identity.votes.clone(),
        busy: identity.busy,
        after_silence: identity.after_silence,
        standby_port: identity.standby_port.filter(|_| plan.terms.elastic()),
        address: plan.address.clone(),
        process: std::process::id(),
        workers: plan.job.workers,
        role: plan.job.role.clone(),
        node_rank: plan.node_rank,
        spares: plan.spares.for_any_rank(),
        stands_by: true,
        terms: WireTerms::from(&plan.terms),
    }
}

fn set_socket_options(stream: &TcpStream, heartbeat: Heartbeat) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(whole_seconds(heartbeat.interval))
        .with_interval(whole_seconds(heartbeat.interval))
        .with_retries(heartbeat.attempts);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // Keep-alive probes are not sent while something waits to be acknowledged: this limits that wait.
    socket.set_tcp_user_timeout(Some(heartbeat.window() + heartbeat.interval))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))
}

/// The kernel counts its probes in seconds.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs().max(1))
}

/// Reads through a channel until there is a whole line.
pub(super) fn read_line(stream: &mut TcpStream, inbound: &mut Inbound, received: &mut Vec<u8>) -> io::Result<()> {
    let (mut buffer, mut arrived) = ([0u8; 4096], Vec::new());
    while !received.contains(&b'\n') && received.len() < control::MAX_LINE_BYTES {
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            count => {
                arrived.extend_from_slice(&buffer[..count]);
                inbound.unwrap(&mut arrived, received).map_err(|cause| io::Error::other(cause.to_string()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_says_nothing_is_described_in_words() {
        for (kind, said) in [
            (io::ErrorKind::WouldBlock, "it did not answer within 10 s"),
            (io::ErrorKind::TimedOut, "it did not answer within 10 s"),
            (io::ErrorKind::UnexpectedEof, "it closed the connection"),
        ] {
            assert_eq!(silence(&io::Error::from(kind)), said);
        }
    }
}
