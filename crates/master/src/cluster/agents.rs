//! Agents: the machines that lend slots, how to reach them, and when they are given up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use instep_api::link::{Bound, Device, Hello, Order, Serves, VERSION, Welcome};
use instep_api::wire::Timestamp;
use instep_database::AgentRow;
use instep_policy::versions::{Speaker, agent_objection};
use serde_json::json;
use tokio::sync::mpsc;

use super::outbox::Outbox;
use super::{DEFAULT_POOL, Refusal};
use crate::clock::now;
use crate::names;

/// Whether an agent or a slot takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    Enabled,
    /// It takes no new work; what runs may end by itself.
    Draining,
    /// It takes no new work, and what runs is ended and started again elsewhere.
    Disabled,
}

/// A machine that lends slots, or did a moment ago.
pub(crate) struct Agent {
    pub name: String,
    pub pool: String,
    pub version: String,
    pub addresses: Vec<String>,
    pub devices: Vec<Device>,
    /// Whose tasks it takes, as it said or as was decided since.
    pub serves: Serves,
    pub admin: AdminState,
    pub registered_at: Timestamp,
    /// The allocation that an engine has started it for: it is given nothing else, and not remembered.
    pub bound: Option<String>,
    /// Of its state folder; empty if it says none, or has not said it to this master.
    pub identity: String,
    /// It ends what it runs, and goes.
    pub leaving: bool,
    /// The connection; `None` since `silent_since`.
    pub link: Option<Link>,
    pub silent_since: Instant,
}

/// What administrators set about an agent, kept whether it is here or not.
#[derive(Debug, Clone)]
pub(crate) struct AdminState {
    pub enabled: bool,
    pub draining: bool,
    pub disabled_slots: BTreeSet<u32>,
}

impl Default for AdminState {
    fn default() -> AdminState {
        AdminState { enabled: true, draining: false, disabled_slots: BTreeSet::new() }
    }
}

/// A connection to an agent.
pub(crate) struct Link {
    pub number: u64,
    pub orders: mpsc::Sender<Order>,
    /// The agent is on the master's machine.
    pub is_here: bool,
}

impl Agent {
    /// Whether what it serves may be on the master's machine: an engine's agent may be a user's program, and say anything.
    pub(super) fn may_be_here(&self) -> bool {
        self.bound.is_none() || self.link.as_ref().is_some_and(|link| link.is_here)
    }

    /// From the database: it is awaited from now on.
    fn from_row(row: AgentRow) -> Agent {
        Agent {
            name: row.name,
            pool: row.pool,
            version: row.version,
            addresses: serde_json::from_value(row.addresses).unwrap_or_default(),
            devices: serde_json::from_value(row.devices).unwrap_or_default(),
            // It says so when it comes back, and gets no work before.
            serves: Serves::Everybody,
            admin: AdminState {
                enabled: row.enabled,
                draining: row.draining,
                disabled_slots: serde_json::from_value(row.disabled_slots).unwrap_or_default(),
            },
            registered_at: row.registered_at,
            bound: None,
            identity: String::new(),
            leaving: false,
            link: None,
            silent_since: Instant::now(),
        }
    }

    /// Of an engine's job, which the database knows by its allocation.
    fn for_allocation(name: &str, allocation: &str, pool: &str) -> Agent {
        Agent {
            name: name.to_owned(),
            pool: pool.to_owned(),
            version: String::new(),
            addresses: Vec::new(),
            devices: Vec::new(),
            serves: Serves::Everybody,
            admin: AdminState::default(),
            registered_at: now(),
            bound: Some(allocation.to_owned()),
            identity: String::new(),
            leaving: false,
            link: None,
            silent_since: Instant::now(),
        }
    }

    /// As it is remembered, if it is.
    fn row(&self) -> Option<AgentRow> {
        if self.bound.is_some() {
            return None;
        }
        Some(AgentRow {
            name: self.name.clone(),
            pool: self.pool.clone(),
            version: self.version.clone(),
            addresses: json!(self.addresses),
            devices: json!(self.devices),
            enabled: self.admin.enabled,
            draining: self.admin.draining,
            disabled_slots: json!(self.admin.disabled_slots),
            registered_at: self.registered_at,
            last_seen_at: now(),
        })
    }

    fn disconnect(&mut self) {
        self.link = None;
        self.silent_since = Instant::now();
    }

    /// Whether it is given new work.
    pub(crate) fn takes_work(&self) -> bool {
        self.link.is_some() && self.admin.enabled && !self.admin.draining && !self.leaving
    }
}

/// The agents that are connected or awaited, and what administrators want of those that are neither.
pub(crate) struct Agents {
    known: BTreeMap<String, Agent>,
    absent: BTreeMap<String, AdminState>,
    /// Counts connections, so that a report over one that was replaced is told from a new one.
    connections: u64,
    welcome: Welcome,
    /// How long a silent agent's work is left alone: longer than it may take the agent itself to end it.
    reconnect_timeout: Duration,
}

/// Whether an agent can have this name.
pub(crate) fn can_name_an_agent(name: &str) -> bool {
    let proper = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=LONGEST_TEXT).contains(&name.len()) && name.chars().all(proper)
}

/// Bytes of a text that an agent says of itself.
const LONGEST_TEXT: usize = 255;
/// Slots of an agent.
const MOST_DEVICES: usize = 4096;

/// What is wrong with what an agent says of itself: people are shown it, and the scheduler counts with it. Repeats nothing long.
pub(crate) fn fault_of(hello: &Hello) -> Option<String> {
    if hello.agent.len() > LONGEST_TEXT {
        return Some(format!("the agent's name is longer than {LONGEST_TEXT} bytes"));
    }
    if !can_name_an_agent(&hello.agent) {
        let hint = "use letters, digits, dots and dashes";
        return Some(format!("`{}` cannot be the name of an agent\nhint: {hint}", hello.agent));
    }
    let served = match &hello.serves {
        Serves::User { name } => Some(name),
        Serves::Everybody | Serves::First => None,
    };
    let devices = hello.devices.iter().flat_map(|device| [("device", &device.brand), ("device", &device.uuid)]);
    let addresses = hello.addresses.iter().map(|address| ("address", address));
    let bound = hello.bound.iter().flat_map(|bound| [("allocation", &bound.allocation), ("job", &bound.job)]);
    let texts = [("pool", &hello.pool), ("version", &hello.version), ("identity", &hello.identity)].into_iter();
    let texts = texts.chain(addresses).chain(devices).chain(bound);
    for (what, text) in texts.chain(served.map(|name| ("user", name))) {
        if text.len() > LONGEST_TEXT {
            return Some(format!("the agent's {what} is longer than {LONGEST_TEXT} bytes"));
        }
        if let Some(why) = names::objection(text) {
            return Some(format!("the agent's {what} {why}"));
        }
    }
    let ids: BTreeSet<u32> = hello.devices.iter().map(|device| device.id).collect();
    if ids.len() != hello.devices.len() || ids.len() > MOST_DEVICES || hello.addresses.len() > MOST_DEVICES {
        return Some(format!("the agent names a slot twice, or more than {MOST_DEVICES} slots or addresses"));
    }
    None
}

fn missing(agent: &str) -> Refusal {
    Refusal::Missing(format!("agent '{agent}' not found"))
}

impl Agents {
    /// `welcome` is what every agent is told first.
    pub(super) fn new(welcome: Welcome, reconnect_timeout: Duration) -> Agents {
        Agents { known: BTreeMap::new(), absent: BTreeMap::new(), connections: 0, welcome, reconnect_timeout }
    }

    /// Takes over what the database knows. An agent that runs nothing is not waited for.
    pub(super) fn restore(&mut self, rows: Vec<AgentRow>, busy: &BTreeSet<String>) {
        for agent in rows.into_iter().map(Agent::from_row) {
            if busy.contains(&agent.name) {
                self.known.insert(agent.name.clone(), agent);
            } else {
                self.absent.insert(agent.name.clone(), agent.admin);
            }
        }
    }

    /// Waits for an agent of an engine's job, on which something runs.
    pub(super) fn wait_for_bound(&mut self, name: &str, allocation: &str, pool: &str) {
        self.known.entry(name.to_owned()).or_insert_with(|| Agent::for_allocation(name, allocation, pool));
    }

    pub(super) fn get(&self, name: &str) -> Option<&Agent> {
        self.known.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.known.values()
    }

    pub(super) fn reconnect_timeout(&self) -> Duration {
        self.reconnect_timeout
    }

    /// Takes in an agent that says who it is; gives the number of its connection.
    pub(super) fn register(
        &mut self,
        hello: Hello,
        orders: mpsc::Sender<Order>,
        is_here: bool,
        outbox: &mut Outbox,
    ) -> Result<u64, Refusal> {
        if let Some(why) = self.objection(&hello) {
            tracing::warn!(agent = hello.agent, why, "refused an agent");
            return Err(Refusal::Precondition(why));
        }
        self.connections += 1;
        let number = self.connections;
        let (admin, registered_at) = match self.known.remove(&hello.agent) {
            Some(same) => (same.admin, same.registered_at),
            None => (self.absent.remove(&hello.agent).unwrap_or_default(), now()),
        };
        let agent = Agent {
            pool: if hello.pool.is_empty() { DEFAULT_POOL.to_owned() } else { hello.pool },
            version: hello.version,
            addresses: hello.addresses,
            devices: hello.devices,
            serves: hello.serves,
            admin,
            registered_at,
            bound: hello.bound.map(|bound| bound.allocation),
            identity: hello.identity,
            leaving: false,
            link: Some(Link { number, orders, is_here }),
            silent_since: Instant::now(),
            name: hello.agent,
        };
        tracing::info!(agent = agent.name, pool = agent.pool, slots = agent.devices.len(), "agent connected");
        outbox.decision.agents.extend(agent.row());
        outbox.order(&agent.name, Order::Welcome(self.welcome.clone()));
        outbox.request_pass();
        self.known.insert(agent.name.clone(), agent);
        Ok(number)
    }

    /// Why an agent is refused.
    fn objection(&self, hello: &Hello) -> Option<String> {
        if let Some(why) = fault_of(hello) {
            return Some(why);
        }
        let theirs = Speaker { protocol: hello.protocol, version: &hello.version };
        let ours = Speaker { protocol: VERSION, version: env!("CARGO_PKG_VERSION") };
        if let Some(why) = agent_objection(theirs, ours) {
            return Some(why);
        }
        if let Some(why) = self.name_of_others(hello) {
            return Some(why);
        }
        let known = self.known.get(&hello.agent).filter(|agent| agent.link.is_some() && !agent.leaving)?;
        // The same agent over a new connection, before the end of the old one was noticed.
        let looks_alike = known.addresses == hello.addresses && known.devices == hello.devices;
        let [before, after] = [&known.identity, &hello.identity];
        if looks_alike && (before == after || before.is_empty() || after.is_empty() || known.bound.is_some()) {
            return None;
        }
        let (name, address) = (&known.name, known.addresses.first().map_or("elsewhere", String::as_str));
        let hint = "`instep up` has started one on its own machine; for a second one there, choose another --name";
        Some(format!("an agent named {name} is connected already, from {address}\nhint: {hint}"))
    }

    /// Why a name is not free, if it is that of an agent of another kind: one that an engine has started shows a token that
    /// its tasks know, too, and must not pass for a machine that lends its slots.
    fn name_of_others(&self, hello: &Hello) -> Option<String> {
        let allocation = |bound: &Bound| bound.allocation.clone();
        let taken = match self.known.get(&hello.agent) {
            Some(known) => known.bound != hello.bound.as_ref().map(allocation),
            None => hello.bound.is_some() && self.absent.contains_key(&hello.agent),
        };
        let name = &hello.agent;
        taken.then(|| format!("{name} is the name of another agent\nhint: choose another with --name"))
    }

    /// Whether an agent has a connection.
    pub(super) fn is_here(&self, agent: &str) -> bool {
        self.known.get(agent).is_some_and(|agent| agent.link.is_some())
    }

    /// Whether this is the connection that an agent has now.
    pub(super) fn is_current(&self, agent: &str, connection: u64) -> bool {
        let link = self.known.get(agent).and_then(|agent| agent.link.as_ref());
        link.is_some_and(|link| link.number == connection)
    }

    /// An agent is about to end.
    pub(super) fn leaving(&mut self, agent: &str) {
        if let Some(known) = self.known.get_mut(agent) {
            known.leaving = true;
        }
    }

    /// A connection has ended; `true` if its agent said before that it is leaving.
    pub(super) fn disconnected(&mut self, agent: &str, connection: u64, outbox: &mut Outbox) -> bool {
        let current = self.is_current(agent, connection);
        let Some(known) = self.known.get_mut(agent).filter(|_| current) else { return false };
        tracing::warn!(agent, "agent disconnected");
        known.disconnect();
        outbox.decision.agents.extend(known.row());
        // The engine's job does not come back.
        known.leaving || known.bound.is_some()
    }

    /// Stops waiting for an agent; it may come again.
    pub(super) fn forget(&mut self, agent: &str) {
        if let Some(gone) = self.known.remove(agent).filter(|gone| gone.bound.is_none()) {
            self.absent.insert(agent.to_owned(), gone.admin);
        }
    }

    /// A task of a user goes to an agent, which may serve nobody else from now on.
    pub(super) fn admit(&mut self, agent: &str, user: &str) {
        if let Some(known) = self.known.get_mut(agent).filter(|known| known.serves == Serves::First) {
            known.serves = Serves::User { name: user.to_owned() };
        }
    }

    /// Sends an order, if the agent is here. One that is not hears it when it comes back.
    pub(super) fn send(&mut self, agent: &str, order: Order) {
        let Some(known) = self.known.get_mut(agent) else { return };
        let Some(link) = &known.link else { return };
        if link.orders.try_send(order).is_err() {
            // It does not take what it is told: the connection is as good as dead. What it missed is said again.
            known.disconnect();
        }
    }

    /// Sends an agent away at once, and forgets it.
    pub(super) fn remove(&mut self, agent: &str, why: String) {
        let Some(Agent { link: Some(link), .. }) = self.known.remove(agent) else { return };
        // One that does not read is sent away by the end of its connection.
        let _ = link.orders.try_send(Order::Refused { why });
    }

    /// Agents that have been silent for too long.
    pub(super) fn lost(&self) -> Vec<String> {
        let silent = self.known.values().filter(|agent| agent.link.is_none());
        silent
            .filter(|agent| agent.silent_since.elapsed() >= self.reconnect_timeout)
            .map(|agent| agent.name.clone())
            .collect()
    }

    /// How long no agent has to be given up.
    pub(super) fn until_next_loss(&self) -> Option<Duration> {
        let silent = self.known.values().filter(|agent| agent.link.is_none());
        silent.map(|agent| self.reconnect_timeout.saturating_sub(agent.silent_since.elapsed())).min()
    }

    /// Lets an agent take work, or not.
    pub(super) fn set(&mut self, name: &str, availability: Availability, outbox: &mut Outbox) -> Result<(), Refusal> {
        let agent = self.known.get_mut(name).ok_or_else(|| missing(name))?;
        agent.admin.enabled = availability == Availability::Enabled;
        agent.admin.draining = availability == Availability::Draining;
        outbox.decision.agents.extend(agent.row());
        outbox.request_pass();
        Ok(())
    }

    /// Lets one of an agent's slots take work, or not.
    pub(super) fn set_slot(
        &mut self,
        name: &str,
        slot: u32,
        availability: Availability,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        let agent = self.known.get_mut(name).ok_or_else(|| missing(name))?;
        if !agent.devices.iter().any(|device| device.id == slot) {
            return Err(Refusal::Missing(format!("slot '{slot}' of agent '{name}' not found")));
        }
        match availability {
            Availability::Enabled => agent.admin.disabled_slots.remove(&slot),
            Availability::Draining | Availability::Disabled => agent.admin.disabled_slots.insert(slot),
        };
        outbox.decision.agents.extend(agent.row());
        outbox.request_pass();
        Ok(())
    }

    /// What a pool has for tasks; `None` if there is no such pool.
    pub(super) fn room_in(&self, pool: &str) -> Option<Room> {
        let name = if pool.is_empty() { DEFAULT_POOL } else { pool };
        let agents: Vec<&Agent> =
            self.known.values().filter(|agent| agent.pool == name && agent.bound.is_none()).collect();
        if agents.is_empty() && name != DEFAULT_POOL {
            return None;
        }
        let slots = agents.iter().filter(|agent| agent.takes_work()).map(|agent| agent.devices.len()).sum();
        Some(Room { slots, largest: agents.iter().map(|agent| agent.devices.len()).max(), per_node: None })
    }
}

/// What a pool has for tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Slots of agents that take work now.
    pub slots: usize,
    /// Slots of the largest agent, be it away; `None` if no agent was ever here.
    pub largest: Option<usize>,
    /// Slots of every node, where an engine gives whole nodes.
    pub per_node: Option<usize>,
}

#[cfg(test)]
mod tests {
    use instep_api::link::DeviceKind;

    use super::*;

    #[test]
    fn what_an_agent_says_of_itself_can_be_shown_and_counted() {
        let device = |id| Device { id, kind: DeviceKind::Cpu, brand: "CPU".to_owned(), uuid: String::new() };
        let hello = || Hello {
            protocol: VERSION,
            version: "1".to_owned(),
            agent: "a".to_owned(),
            pool: String::new(),
            addresses: vec!["10.0.0.1".to_owned()],
            devices: vec![device(0), device(1)],
            shares: Vec::new(),
            serves: Serves::Everybody,
            bound: None,
            identity: String::new(),
        };
        assert_eq!(fault_of(&hello()), None);
        type Spoil = fn(&mut Hello);
        let wrong: [(&str, Spoil); 8] = [
            ("name is longer", |hello| hello.agent = "a".repeat(1 << 20)),
            ("cannot be the name", |hello| hello.agent = "a b".to_owned()),
            ("pool has the control", |hello| hello.pool = "\u{1b}[2J".to_owned()),
            ("version is longer", |hello| hello.version = "1".repeat(256)),
            ("address has the control", |hello| hello.addresses.push("a\nb".to_owned())),
            ("device has the control", |hello| hello.devices[1].brand = "\0".to_owned()),
            ("user has the control", |hello| hello.serves = Serves::User { name: "\r".to_owned() }),
            ("names a slot twice", |hello| hello.devices[1].id = 0),
        ];
        for (expected, spoil) in wrong {
            let mut hello = hello();
            spoil(&mut hello);
            let why = fault_of(&hello).unwrap();
            assert!(why.contains(expected) && why.len() < 400, "{why}");
        }
    }
}
