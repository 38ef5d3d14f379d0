//! Ports that tasks listen on, so that no two allocations of the cluster meet on one.

use std::collections::{BTreeMap, BTreeSet};

/// The names by which tasks learn of their ports, and where counting begins.
const NAMES: &[(&str, u16)] = &[
    ("DTRAIN_SSH_PORT", 12350),
    ("INTER_TRAIN_PROCESS_COMM_PORT_1", 12360),
    ("INTER_TRAIN_PROCESS_COMM_PORT_2", 12365),
    ("C10D_PORT", 29400),
];
/// The name of the port that a service listens on.
pub(super) const SERVICE_PORT: &str = "TENSORBOARD_PORT";
/// Where services listen, as Determined's do; above it once all of these are taken.
const SERVICE_PORTS: std::ops::Range<u16> = 2600..3500;

/// Which ports are taken.
#[derive(Debug, Default)]
pub(super) struct Ports {
    taken: BTreeSet<u16>,
}

impl Ports {
    /// Gives the lowest free port from its base on for each name; `None` if they are used up. `is_open` tells ports on which
    /// something else listens, as far as anybody knows.
    ///
    /// A service gets the first free one from `service_from` on, which is chosen at random: masters whose agents share a
    /// machine would otherwise give the same port at the same moment, before anything listens there.
    pub(super) fn give(
        &mut self,
        service_from: Option<u16>,
        is_open: impl Fn(u16) -> bool,
    ) -> Option<BTreeMap<String, u16>> {
        let mut given = BTreeMap::new();
        for (name, base) in NAMES {
            let port = self.first_free(*base..u16::MAX, &is_open);
            self.keep(name, port, &mut given)?;
        }
        if let Some(from) = service_from {
            let from = SERVICE_PORTS.start + from % SERVICE_PORTS.len() as u16;
            let around = (from..SERVICE_PORTS.end).chain(SERVICE_PORTS.start..from).chain(SERVICE_PORTS.end..u16::MAX);
            let port = self.first_free(around, &is_open);
            self.keep(SERVICE_PORT, port, &mut given)?;
        }
        Some(given)
    }

    fn first_free(&self, mut ports: impl Iterator<Item = u16>, is_open: impl Fn(u16) -> bool) -> Option<u16> {
        ports.find(|port| !self.taken.contains(port) && !is_open(*port))
    }

    /// Adds a port to those that are given; without one, none are.
    fn keep(&mut self, name: &str, port: Option<u16>, given: &mut BTreeMap<String, u16>) -> Option<()> {
        let Some(port) = port else {
            self.take_back(given);
            return None;
        };
        self.taken.insert(port);
        given.insert(name.to_owned(), port);
        Some(())
    }

    /// Ports that an allocation has from before the master was started.
    pub(super) fn claim(&mut self, ports: &BTreeMap<String, u16>) {
        self.taken.extend(ports.values());
    }

    /// They are free again.
    pub(super) fn take_back(&mut self, ports: &BTreeMap<String, u16>) {
        for port in ports.values() {
            self.taken.remove(port);
        }
    }
}

/// Whether something listens on a port of this machine, where tasks may run too.
pub(super) fn is_open_here(port: u16) -> bool {
    std::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port))
        .is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_until_it_is_free_again() {
        let mut ports = Ports::default();
        let first = ports.give(None, |_| false).unwrap();
        assert_eq!((first["DTRAIN_SSH_PORT"], first["C10D_PORT"]), (12350, 29400));
        let second = ports.give(None, |_| false).unwrap();
        assert_eq!((second["DTRAIN_SSH_PORT"], second["C10D_PORT"]), (12351, 29401));
        let mut all: Vec<u16> = first.values().chain(second.values()).copied().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
        ports.take_back(&first);
        assert_eq!(ports.give(None, |_| false).unwrap(), first);
        let mut restarted = Ports::default();
        restarted.claim(&first);
        assert_eq!(restarted.give(None, |_| false).unwrap()["C10D_PORT"], 29401);
    }
    #[test]
    fn a_port_on_which_something_listens_is_left_out() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().port();
        assert!(is_open_here(taken));
        drop(listener);
        assert!(!is_open_here(taken));
        let given = Ports::default().give(Some(0), |port| [2600, 2601, 29400].contains(&port)).unwrap();
        assert_eq!((given[SERVICE_PORT], given["C10D_PORT"], given["DTRAIN_SSH_PORT"]), (2602, 29401, 12350));
        let mut ports = Ports::default();
        let from = |ports: &mut Ports, from| ports.give(Some(from), |port| port < 2700).unwrap()[SERVICE_PORT];
        assert_eq!([899, 899, 65_535].map(|start| from(&mut ports, start)), [3499, 2700, 3335]);
    }
}
