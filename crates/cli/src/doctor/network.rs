//! What workers and nodes need to reach each other: loopback, free ports, a host name that others can use.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use instep_api::sockets::{Socket, State, TABLES, sockets};
use instep_launch::PlanError;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::check::{Check, RESOLVE_TIMEOUT, ok, problem, read_text, warning};

/// Ports that c10d and static rendezvous use where the user names none.
const DEFAULT_PORTS: [u16; 2] = [29400, 29500];

pub(super) fn loopback() -> Check {
    let binds = |address: IpAddr| TcpListener::bind(SocketAddr::new(address, 0)).map(drop);
    judge_loopback(binds(Ipv4Addr::LOCALHOST.into()), binds(Ipv6Addr::LOCALHOST.into()))
}

pub(super) fn judge_loopback(version_4: io::Result<()>, version_6: io::Result<()>) -> Check {
    match (version_4, version_6) {
        (Ok(()), Ok(())) => ok("loopback", "127.0.0.1 and ::1"),
        (Ok(()), Err(_)) => ok("loopback", "127.0.0.1 (no IPv6)"),
        (Err(error), Ok(())) => warning(
            "loopback",
            format!("::1 only; 127.0.0.1: {error}"),
            "torch's default master address is 127.0.0.1: bring up the lo interface with its IPv4 address",
        ),
        (Err(error), Err(_)) => problem(
            "loopback",
            format!("cannot bind any port: {error}"),
            "bring up the lo interface: ip link set lo up",
        ),
    }
}

pub(super) fn default_ports() -> Check {
    let busy = DEFAULT_PORTS.iter().filter(|&&port| {
        let any = |address: IpAddr| TcpListener::bind(SocketAddr::new(address, port)).map(drop);
        // Dual-stack where there is IPv6, as the store listens.
        let bound = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Err(error),
            _ => any(Ipv4Addr::UNSPECIFIED.into()),
        });
        bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    });
    judge_default_ports(&busy.map(|&port| (port, holder(port))).collect::<Vec<_>>())
}

pub(super) fn judge_default_ports(busy: &[(u16, Option<String>)]) -> Check {
    const NAME: &str = "default ports";
    if busy.is_empty() {
        return ok(NAME, DEFAULT_PORTS.map(|port| port.to_string()).join(" and ") + " are free");
    }
    let busy: Vec<String> = busy
        .iter()
        .map(|(port, holder)| match holder {
            Some(holder) => format!("{port} is used by {holder}"),
            None => format!("{port} is in use (perhaps by another user's job)"),
        })
        .collect();
    warning(
        NAME,
        busy.join(", "),
        "only jobs with several nodes use them; give those another --rdzv-endpoint HOST:PORT",
    )
}

/// The process that listens on a port, as far as this user may see.
fn holder(port: u16) -> Option<String> {
    let tables = TABLES.map(|table| read_text(table).unwrap_or_default()).join("\n");
    let listens = |socket: &Socket| socket.state == State::Listening && socket.local.port() == port;
    let socket = format!("socket:[{}]", sockets(&tables).find(listens)?.inode);
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        // Not `self` and its like: the number is wanted.
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        files.find(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket.as_str()))?;
        let name = read_text(entry.path().join("comm")).unwrap_or_default();
        Some(format!("{name} (pid {pid})"))
    })
}

/// Chooses interfaces for the ranks' own connections.
pub(super) const INTERFACES: &str = "INSTEP_SOCKET_IFNAME";

/// A network interface that is up.
#[derive(Debug)]
pub(super) struct Interface {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    /// As far as its driver says.
    pub megabits: Option<u32>,
    pub mtu: Option<u32>,
}

/// The interfaces at which ranks of other nodes may reach those here: those that are up and no loopback. Link-local
/// addresses need a scope that other nodes do not know.
pub(super) fn interfaces() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    let up =
        |flags: InterfaceFlags| flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK);
    for one in getifaddrs().into_iter().flatten().filter(|one| up(one.flags)) {
        let (name, address) = (one.interface_name, one.address);
        let four = address.as_ref().and_then(|address| address.as_sockaddr_in()).map(|four| IpAddr::V4(four.ip()));
        let six = || address.as_ref().and_then(|address| address.as_sockaddr_in6()).map(|six| IpAddr::V6(six.ip()));
        let address = four.or_else(six).filter(|address| match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        });
        match found.iter_mut().find(|known| known.name == name) {
            Some(known) => known.addresses.extend(address),
            None => {
                let number = |what: &str| read_text(format!("/sys/class/net/{name}/{what}"))?.parse().ok();
                let (megabits, mtu) = (number("speed"), number("mtu"));
                found.push(Interface { addresses: address.into_iter().collect(), megabits, mtu, name });
            }
        }
    }
    found
}

/// `chosen`: the interfaces that the user names.
pub(super) fn judge_interfaces(found: &[Interface], chosen: Option<&str>) -> Check {
    const NAME: &str = "interfaces";
    // As ranks read it.
    let chosen = chosen.filter(|names| !names.is_empty());
    let wanted: Vec<&str> = chosen.iter().flat_map(|names| names.split(',')).map(str::trim).collect();
    let is_used = |one: &Interface| wanted.is_empty() || wanted.contains(&one.name.as_str());
    let shown: Vec<String> =
        found.iter().filter(|one| is_used(one) && !one.addresses.is_empty()).map(describe).collect();
    let others: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    if let Some(missing) = wanted.iter().find(|name| !found.iter().any(|one| one.name == **name)) {
        return warning(
            NAME,
            format!("{INTERFACES} names {missing}, which is not here or not up"),
            format!("interfaces that are up: {others}"),
        );
    }
    match (shown.is_empty(), chosen) {
        (true, None) => ok(NAME, "none but loopback: jobs on this machine alone"),
        (true, Some(chosen)) => warning(
            NAME,
            format!("{INTERFACES}={chosen} leaves no address that other nodes can reach"),
            format!("interfaces that are up: {others}"),
        ),
        (false, None) => ok(NAME, shown.join("; ")),
        (false, Some(_)) => ok(NAME, format!("{} (chosen by {INTERFACES})", shown.join("; "))),
    }
}

fn describe(interface: &Interface) -> String {
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    let speed = interface.megabits.filter(|megabits| *megabits > 0).map(|megabits| match megabits {
        1000.. => format!("{} Gbit/s", f64::from(megabits) / 1000.0),
        _ => format!("{megabits} Mbit/s"),
    });
    let mtu = interface.mtu.map(|mtu| format!("MTU {mtu}"));
    let extra: Vec<String> = speed.into_iter().chain(mtu).collect();
    let extra = if extra.is_empty() { String::new() } else { format!(" ({})", extra.join(", ")) };
    format!("{} {}{extra}", interface.name, addresses.join(" and "))
}

/// `None`: the resolver did not answer in time.
pub(super) fn judge_host_name(host: &str, addresses: Option<io::Result<Vec<IpAddr>>>) -> Check {
    const NAME: &str = "host name";
    let hint = "jobs on this machine alone are fine; over several nodes give --local-addr, or fix /etc/hosts or DNS";
    match addresses {
        None => {
            let finding = format!("{host}: no answer from the resolver within {} s", RESOLVE_TIMEOUT.as_secs());
            warning(NAME, finding, hint)
        }
        Some(Err(error)) => warning(NAME, format!("{host} does not resolve: {error}"), hint),
        Some(Ok(mut addresses)) => {
            addresses.dedup();
            let text = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            // Peers are told the first address that resolves, and 127.0.1.1 means themselves.
            match addresses.first() {
                None => warning(NAME, format!("{host} resolves to no address"), hint),
                Some(first) if first.is_loopback() => {
                    warning(NAME, format!("{host} resolves to {text}, which other nodes cannot reach"), hint)
                }
                Some(_) => ok(NAME, format!("{host} resolves to {text}")),
            }
        }
    }
}

/// What Slurm or Kubernetes say of this process, and how many tasks of a Slurm step share a node.
pub(super) fn judge_scheduler(found: Option<Result<String, PlanError>>, tasks: Option<usize>) -> Check {
    const NAME: &str = "scheduler";
    match (found, tasks) {
        (None, _) => ok(NAME, "none: no variables of a Slurm job or an indexed Job of Kubernetes"),
        (Some(Err(PlanError { message, hint })), _) => warning(NAME, message, hint),
        (Some(Ok(found)), Some(tasks)) if tasks > 1 => warning(
            NAME,
            format!("{found}, with {tasks} tasks on one node"),
            "instep run starts the ranks itself: srun --ntasks-per-node=1",
        ),
        (Some(Ok(found)), _) => ok(NAME, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(holder(port).unwrap().ends_with(&format!("(pid {})", std::process::id())));
    }
}
