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
const SERVICE: (&str, u16) = (SERVICE_PORT, 2600);

/// Which ports are taken.
#[derive(Debug, Default)]
pub(super) struct Ports {
    taken: BTreeSet<u16>,
}

impl Ports {
    /// Gives the lowest free port from its base on for each name; `None` if they are used up. `is_open` tells ports on which
    /// something else listens, as far as anybody knows.
    pub(super) fn give(&mut self, service: bool, is_open: impl Fn(u16) -> bool) -> Option<BTreeMap<String, u16>> {
        let mut given = BTreeMap::new();
        for (name, base) in NAMES.iter().chain(service.then_some(&SERVICE)) {
            let Some(port) = (*base..u16::MAX).find(|port| !self.taken.contains(port) && !is_open(*port)) else {
                self.take_back(&given);
                return None;
            };
            self.taken.insert(port);
            given.insert((*name).to_owned(), port);
        }
        Some(given)
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
        let first = ports.give(false, |_| false).unwrap();
        assert_eq!((first["DTRAIN_SSH_PORT"], first["C10D_PORT"]), (12350, 29400));
        let second = ports.give(false, |_| false).unwrap();
        assert_eq!((second["DTRAIN_SSH_PORT"], second["C10D_PORT"]), (12351, 29401));
        let mut all: Vec<u16> = first.values().chain(second.values()).copied().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
        ports.take_back(&first);
        assert_eq!(ports.give(false, |_| false).unwrap(), first);
        let mut restarted = Ports::default();
        restarted.claim(&first);
        assert_eq!(restarted.give(false, |_| false).unwrap()["C10D_PORT"], 29401);
    }
    #[test]
    fn a_port_on_which_something_listens_is_left_out() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().port();
        assert!(is_open_here(taken));
        drop(listener);
        assert!(!is_open_here(taken));
        let given = Ports::default().give(true, |port| [2600, 2601, 29400].contains(&port)).unwrap();
        assert_eq!((given[SERVICE_PORT], given["C10D_PORT"], given["DTRAIN_SSH_PORT"]), (2602, 29401, 12350));
    }
}
