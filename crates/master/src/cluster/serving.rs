//! Where tasks serve: what their kind makes them serve, once it is ready, and the ports that their configurations name.

use instep_api::config::ProxyPort;
use instep_api::link::{Protocol, Service};
use instep_api::states::AllocationState;

use super::agents::Agent;
use super::allocation::{Allocation, Purpose};
use super::ports::SERVICE_PORT;
use super::state::ClusterState;

/// What of a task is meant: what it serves, or one of its ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub task: String,
    pub port: Option<u16>,
}

impl Target {
    /// `TASK` or `TASK:PORT`, with a name that can stand in addresses and cookies.
    pub(crate) fn parse(text: &str) -> Option<Target> {
        let (task, port) = match text.split_once(':') {
            // As it is written in addresses, so that no two names mean one port.
            Some((task, digits)) => (task, Some(digits.parse().ok().filter(|port: &u16| port.to_string() == digits)?)),
            None => (text, None),
        };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let named = !task.is_empty() && task.len() <= LONGEST_NAME && task.chars().all(plain);
        (named && port != Some(0)).then(|| Target { task: task.to_owned(), port })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => write!(formatter, "{}:{port}", self.task),
            None => write!(formatter, "{}", self.task),
        }
    }
}

/// Bytes of a task's name.
const LONGEST_NAME: usize = 64;

/// Where a task serves, and who may connect.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Serving {
    pub service: Service,
    /// What it asks of whoever connects.
    pub secret: Option<String>,
    /// Whether nobody is asked who they are: it asks itself, or is for everybody.
    pub unauthenticated: bool,
    /// Whether it may be on the master's machine.
    pub may_be_here: bool,
}

/// Why a task does not serve what is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It does not run.
    NotRunning,
    /// Its configuration names no such port.
    Unnamed,
    /// It has not begun yet.
    NotReady,
}

impl ClusterState {
    /// Why a task does not serve now what is asked for, if it does not.
    pub(crate) fn absent(&self, target: &Target) -> Absent {
        let Some(allocation) = self.allocations.of_task(&target.task) else { return Absent::NotRunning };
        let serves = self.commands.get(&target.task).is_some_and(|live| live.kind.protocol().is_some());
        let ports = self.proxy_ports(allocation).unwrap_or_default();
        let named = match target.port {
            Some(wanted) => ports.iter().any(|port| port.proxy_port == wanted),
            None => serves || ports.iter().any(|port| port.default_service_id),
        };
        if named { Absent::NotReady } else { Absent::Unnamed }
    }

    /// Where a task serves now; `None` if it does not.
    pub(crate) fn serving(&self, target: &Target) -> Option<Serving> {
        let allocation = self.allocations.of_task(&target.task)?;
        let placed = allocation.placed.as_ref().filter(|_| allocation.state == AllocationState::Running)?;
        // Of several machines it is the first one's, where the chief runs.
        let first = placed.shares.first()?;
        let address = &first.address;
        let may_be_here = self.agents.get(&first.agent).is_some_and(Agent::may_be_here);
        let live = self.commands.get(&target.task);
        if let (None, Some(live)) = (target.port, live)
            && let Some(service) = live.service(&target.task, address, placed.ports.get(SERVICE_PORT).copied())
        {
            // Only then the agent has seen that it is the task's own program that listens: no other gets the secret.
            if !allocation.ready {
                return None;
            }
            // The server of a shell asks for its key.
            let unauthenticated = service.protocol == Protocol::Tcp;
            return Some(Serving { service, secret: live.details.secret.clone(), unauthenticated, may_be_here });
        }
        let port = self.proxy_ports(allocation)?.iter().find(|port| match target.port {
            Some(wanted) => port.proxy_port == wanted,
            None => port.default_service_id,
        })?;
        let service = Service {
            address: address.clone(),
            port: port.proxy_port,
            path: format!("/proxy/{target}/"),
            protocol: if port.proxy_tcp { Protocol::Tcp } else { Protocol::Http },
        };
        Some(Serving { service, secret: None, unauthenticated: port.unauthenticated, may_be_here })
    }

    /// The ports of a task that others may reach, as its configuration names them.
    pub(super) fn proxy_ports(&self, allocation: &Allocation) -> Option<&[ProxyPort]> {
        let environment = match &allocation.purpose {
            Purpose::Trial { experiment, .. } => &self.experiments.get(*experiment)?.config.environment,
            Purpose::Command { .. } => &self.commands.get(&allocation.task)?.config.environment,
        };
        Some(&environment.proxy_ports)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_target_is_a_task_or_a_port_of_it() {
        let target = |task: &str, port| Some(Target { task: task.to_owned(), port });
        for (text, expected) in [
            ("1.a-b_c", target("1.a-b_c", None)),
            ("t:8080", target("t", Some(8080))),
            ("t:65535", target("t", Some(65535))),
            ("t:65536", None),
            ("t:0", None),
            ("t:080", None),
            ("t:+80", None),
            ("t:", None),
            (":80", None),
            ("", None),
            ("t:80:90", None),
            ("a/b", None),
        ] {
            assert_eq!(Target::parse(text), expected, "{text}");
        }
        assert_eq!(Target::parse(&"a".repeat(LONGEST_NAME + 1)), None);
    }

    proptest! {
        #[test]
        fn a_target_has_one_name(text in "[a-z0-9.:_/%+ -]{0,12}") {
            if let Some(target) = Target::parse(&text) {
                prop_assert_eq!(target.to_string(), text);
            }
        }
    }
}
