//! Agents: who lends slots, what they report, when they are given up.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use instep_api::link::{Device, Exit, Hello, Order, Report, Share as ShareName, ShareState, VERSION, Welcome};
use instep_api::states::AllocationState;
use instep_api::wire::Timestamp;
use instep_database::AgentRow;
use instep_policy::lifecycle::End;
use instep_policy::lifecycle::gang::Step;
use serde_json::json;
use tokio::sync::mpsc;

use super::actor::{Act, Actor};
use super::allocation::Happening;
use super::experiments::DEFAULT_POOL;
use super::{Refusal, Reply};
use crate::clock::now;

/// Before SIGKILL, for what the failure of another share takes along.
const GANG_GRACE_SECONDS: u32 = 5;

/// A machine that lends slots, or did a moment ago.
pub(crate) struct Agent {
    pub name: String,
    pub pool: String,
    pub version: String,
    pub addresses: Vec<String>,
    pub devices: Vec<Device>,
    pub enabled: bool,
    pub draining: bool,
    pub disabled_slots: BTreeSet<u32>,
    pub registered_at: Timestamp,
    /// It ends what it runs, and goes.
    pub leaving: bool,
    /// The connection; `None` since `silent_since`.
    pub link: Option<Link>,
    pub silent_since: Instant,
}

/// What people want of an agent, whether it is here or not.
#[derive(Debug, Clone)]
pub(crate) struct Wishes {
    pub enabled: bool,
    pub draining: bool,
    pub disabled_slots: BTreeSet<u32>,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes { enabled: true, draining: false, disabled_slots: BTreeSet::new() }
    }
}

/// A connection to an agent.
pub(crate) struct Link {
    pub number: u64,
    pub orders: mpsc::Sender<Order>,
}

impl Agent {
    /// From the database: it is awaited from now on.
    pub(super) fn awaited(row: AgentRow) -> Agent {
        Agent {
            name: row.name,
            pool: row.pool,
            version: row.version,
            addresses: serde_json::from_value(row.addresses).unwrap_or_default(),
            devices: serde_json::from_value(row.devices).unwrap_or_default(),
            enabled: row.enabled,
            draining: row.draining,
            disabled_slots: serde_json::from_value(row.disabled_slots).unwrap_or_default(),
            registered_at: row.registered_at,
            leaving: false,
            link: None,
            silent_since: Instant::now(),
        }
    }

    pub(super) fn row(&self) -> AgentRow {
        AgentRow {
            name: self.name.clone(),
            pool: self.pool.clone(),
            version: self.version.clone(),
            addresses: json!(self.addresses),
            devices: json!(self.devices),
            enabled: self.enabled,
            draining: self.draining,
            disabled_slots: json!(self.disabled_slots),
            registered_at: self.registered_at,
            last_seen_at: now(),
        }
    }

    /// What people want of it.
    pub(super) fn wishes(&self) -> Wishes {
        let (enabled, draining) = (self.enabled, self.draining);
        Wishes { enabled, draining, disabled_slots: self.disabled_slots.clone() }
    }

    /// Whether it is given new work.
    pub(crate) fn takes_work(&self) -> bool {
        self.link.is_some() && self.enabled && !self.draining && !self.leaving
    }
}

/// How an allocation ended, for people.
fn sentence(end: &End, why: Option<&str>) -> String {
    match end {
        End::Exited { code: 0 } => "all of it ended with exit code 0".to_owned(),
        End::Exited { code } => {
            why.map_or_else(|| format!("it failed with exit code {code}"), |why| format!("{why} (exit code {code})"))
        }
        End::Killed => "the master stopped it".to_owned(),
        End::NotStarted { why } => format!("it could not be started: {why}"),
        End::Lost { why } => format!("it was lost: {why}"),
        End::Impossible { why } => why.clone(),
    }
}

impl Actor {
    /// How long a silent agent's work is left alone: longer than it may take the agent itself to end it.
    fn patience(&self) -> Duration {
        self.options.reconnect_window + self.options.margin
    }

    /// An agent says who it is, what it lends and what it runs.
    pub(super) fn hello(&mut self, hello: Hello, orders: mpsc::Sender<Order>, reply: Reply<u64>) {
        if let Some(why) = self.objection(&hello) {
            tracing::warn!(agent = hello.agent, why, "refused an agent");
            return self.answer(reply, Err(Refusal::Precondition(why)));
        }
        self.connections += 1;
        let number = self.connections;
        let same = self.agents.remove(&hello.agent);
        let wishes = same.as_ref().map(Agent::wishes).or_else(|| self.absent.remove(&hello.agent)).unwrap_or_default();
        let agent = Agent {
            pool: if hello.pool.is_empty() { DEFAULT_POOL.to_owned() } else { hello.pool },
            version: hello.version,
            addresses: hello.addresses,
            devices: hello.devices,
            enabled: wishes.enabled,
            draining: wishes.draining,
            disabled_slots: wishes.disabled_slots,
            registered_at: same.map_or_else(now, |agent| agent.registered_at),
            leaving: false,
            link: Some(Link { number, orders }),
            silent_since: Instant::now(),
            name: hello.agent,
        };
        let name = agent.name.clone();
        tracing::info!(agent = name, pool = agent.pool, slots = agent.devices.len(), "agent connected");
        self.decision.agents.push(agent.row());
        self.agents.insert(name.clone(), agent);
        let welcome = Welcome {
            master_id: self.master_id.clone(),
            cluster_id: self.database.cluster_id().to_owned(),
            window_seconds: u32::try_from(self.options.reconnect_window.as_secs()).unwrap_or(u32::MAX),
            ping_seconds: self.options.ping_seconds(),
        };
        self.later(Act::Order(name.clone(), Order::Welcome(welcome)));
        self.compare(&name, hello.shares);
        self.pace.wanted();
        self.answer(reply, Ok(number));
    }

    /// Why an agent is not wanted.
    fn objection(&self, hello: &Hello) -> Option<String> {
        if hello.protocol != VERSION {
            let (theirs, ours) = (hello.protocol, VERSION);
            return Some(format!(
                "the agent speaks version {theirs} of the protocol, the master version {ours}\nhint: run the same \
                 version of instep on both"
            ));
        }
        let proper = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if hello.agent.is_empty() || hello.agent.len() > 255 || !hello.agent.chars().all(proper) {
            return Some(format!(
                "`{}` cannot be the name of an agent\nhint: use letters, digits, dots and dashes",
                hello.agent
            ));
        }
        let known = self.agents.get(&hello.agent).filter(|agent| agent.link.is_some() && !agent.leaving)?;
        // The same agent over a new connection, before the end of the old one was noticed.
        if known.addresses == hello.addresses && known.devices == hello.devices {
            return None;
        }
        let (name, address) = (&known.name, known.addresses.first().map_or("elsewhere", String::as_str));
        Some(format!("an agent named {name} is connected already, from {address}\nhint: choose another name"))
    }

    /// Brings what an agent runs and what it should run together.
    fn compare(&mut self, agent: &str, shares: Vec<ShareState>) {
        let mut heard: BTreeSet<ShareName> = BTreeSet::new();
        for state in shares {
            heard.insert(state.share.clone());
            match state.exit {
                Some(exit) => self.exited(agent, &state.share, exit),
                None if self.rank(agent, &state.share).is_some() => {
                    self.started(agent, &state.share);
                    self.stop_again(agent, &state.share);
                }
                None => {
                    let why = "it is unknown to the master".to_owned();
                    let stop = Order::Stop { share: state.share, grace_seconds: 0, why };
                    self.later(Act::Order(agent.to_owned(), stop));
                }
            }
        }
        for (share, start) in self.expected_of(agent) {
            if heard.contains(&share) {
                continue;
            }
            match start {
                Some(start) => self.later(Act::Order(agent.to_owned(), Order::Start(Box::new(start)))),
                None => {
                    let why = format!("agent {agent} reconnected without it");
                    self.exited(agent, &share, Exit::Lost { why });
                }
            }
        }
    }

    /// A share that is to end may have missed the word for it.
    fn stop_again(&mut self, agent: &str, share: &ShareName) {
        let Some(allocation) = self.allocations.get(&share.allocation) else { return };
        if allocation.state == AllocationState::Terminating {
            let (share, why) = (share.clone(), allocation.reason.clone());
            self.later(Act::Order(agent.to_owned(), Order::Stop { share, grace_seconds: GANG_GRACE_SECONDS, why }));
        }
    }

    /// The shares that an agent should run, and the orders of those that it may not have heard of.
    fn expected_of(&self, agent: &str) -> Vec<(ShareName, Option<instep_api::link::Start>)> {
        let mut expected = Vec::new();
        for allocation in self.allocations.values().filter(|allocation| allocation.ended_at.is_none()) {
            let Some(placed) = &allocation.placed else { continue };
            for rank in placed.gang.alive() {
                let Some(share) = placed.shares.get(rank).filter(|share| share.agent == agent) else { continue };
                let name = ShareName { allocation: allocation.id.clone(), resources: share.resources.clone() };
                let start = placed.starts.get(rank).filter(|_| !share.started).cloned();
                expected.push((name, start));
            }
        }
        expected
    }

    fn rank(&self, agent: &str, share: &ShareName) -> Option<usize> {
        let allocation = self.allocations.get(&share.allocation).filter(|allocation| allocation.ended_at.is_none())?;
        let rank = allocation.rank_of(&share.resources)?;
        (allocation.placed.as_ref()?.shares.get(rank)?.agent == agent).then_some(rank)
    }

    /// An agent reports. What comes over a connection that has been replaced is repeated over the new one.
    pub(super) fn report(&mut self, agent: &str, connection: u64, report: Report, reply: Reply<()>) {
        let current = self.agents.get(agent).and_then(|agent| agent.link.as_ref()).map(|link| link.number);
        if current == Some(connection) {
            match report {
                // It was heard when the connection began.
                Report::Hello(_) => {}
                Report::Leaving => {
                    if let Some(known) = self.agents.get_mut(agent) {
                        known.leaving = true;
                    }
                }
                Report::Started { share } => self.started(agent, &share),
                Report::Exited { share, exit } => self.exited(agent, &share, exit),
            }
        }
        self.answer(reply, Ok(()));
    }

    fn started(&mut self, agent: &str, share: &ShareName) {
        let Some(rank) = self.rank(agent, share) else { return };
        let Some(allocation) = self.allocations.get_mut(&share.allocation) else { return };
        let Some(placed) = &mut allocation.placed else { return };
        if let Some(share) = placed.shares.get_mut(rank).filter(|share| !share.started) {
            share.started = true;
            self.changed.allocations.insert(allocation.id.clone());
        }
        if let Some(Step::AllStarted) = placed.gang.started(rank) {
            allocation.state = AllocationState::Running;
            allocation.reason = "running".to_owned();
            self.happened(&share.allocation, Happening::Running);
        }
        self.try_to_meet(&share.allocation);
    }

    /// A share has ended; the agent may forget it once that is stored.
    fn exited(&mut self, agent: &str, share: &ShareName, exit: Exit) {
        let forget = Order::Forget { share: share.clone() };
        if let Some(rank) = self.rank(agent, share) {
            self.share_ended(&share.allocation, rank, exit);
        }
        self.later(Act::Order(agent.to_owned(), forget));
    }

    fn share_ended(&mut self, name: &str, rank: usize, exit: Exit) {
        let Some(allocation) = self.allocations.get_mut(name) else { return };
        let Some(placed) = &mut allocation.placed else { return };
        tracing::debug!(allocation = name, rank, ?exit, "a share has ended");
        if let Exit::Code { why: Some(why), .. } = &exit {
            allocation.why.get_or_insert_with(|| why.clone());
        }
        let steps = placed.gang.exited(rank, exit);
        self.changed.allocations.insert(name.to_owned());
        for step in steps {
            match step {
                Step::AllStarted => {}
                Step::EndOthers { why } => self.stop_shares(name, GANG_GRACE_SECONDS, &why),
                Step::Over(end) => {
                    let Some(allocation) = self.allocations.get_mut(name) else { return };
                    allocation.state = AllocationState::Terminated;
                    allocation.ended_at = Some(now());
                    allocation.reason = sentence(&end, allocation.why.as_deref());
                    allocation.end = Some(end.clone());
                    self.happened(name, Happening::Ended { end });
                }
            }
        }
        self.pace.wanted();
    }

    /// Ends what still runs of an allocation.
    pub(super) fn stop_shares(&mut self, name: &str, grace_seconds: u32, why: &str) {
        let Some(allocation) = self.allocations.get_mut(name) else { return };
        let Some(placed) = &mut allocation.placed else { return };
        placed.gang.ending();
        allocation.state = AllocationState::Terminating;
        allocation.reason = why.to_owned();
        let alive: Vec<(String, ShareName)> = placed
            .gang
            .alive()
            .filter_map(|rank| placed.shares.get(rank))
            .map(|share| {
                let name = ShareName { allocation: allocation.id.clone(), resources: share.resources.clone() };
                (share.agent.clone(), name)
            })
            .collect();
        self.changed.allocations.insert(name.to_owned());
        for (agent, share) in alive {
            self.later(Act::Order(agent, Order::Stop { share, grace_seconds, why: why.to_owned() }));
        }
    }

    pub(super) fn disconnected(&mut self, agent: &str, connection: u64, reply: Reply<()>) {
        if let Some(known) = self.agents.get_mut(agent)
            && known.link.as_ref().is_some_and(|link| link.number == connection)
        {
            tracing::warn!(agent, "agent disconnected");
            known.link = None;
            known.silent_since = Instant::now();
            let (row, leaving) = (known.row(), known.leaving);
            self.decision.agents.push(row);
            // One that said goodbye and runs nothing is not waited for.
            if leaving
                && self.expected_of(agent).is_empty()
                && let Some(gone) = self.agents.remove(agent)
            {
                self.absent.insert(agent.to_owned(), gone.wishes());
            }
        }
        self.answer(reply, Ok(()));
    }

    /// Sends an order, if the agent is here. One that is not hears it when it comes back.
    pub(super) fn send(&mut self, agent: &str, order: Order) {
        let Some(known) = self.agents.get_mut(agent) else { return };
        let Some(link) = &known.link else { return };
        if link.orders.try_send(order).is_err() {
            // It does not take what it is told: the connection is as good as dead. What it missed is said again.
            known.link = None;
            known.silent_since = Instant::now();
        }
    }

    /// Gives up agents that have been silent for too long, and with them what they ran.
    pub(super) fn give_up_lost_agents(&mut self) {
        let patience = self.patience();
        let gone: Vec<String> = self
            .agents
            .values()
            .filter(|agent| agent.link.is_none() && agent.silent_since.elapsed() >= patience)
            .map(|agent| agent.name.clone())
            .collect();
        for name in gone {
            tracing::warn!(agent = name, "agent lost");
            for (share, _) in self.expected_of(&name) {
                if let Some(rank) = self.rank(&name, &share) {
                    let why = format!("no contact with agent {name} for {} s", patience.as_secs());
                    self.share_ended(&share.allocation, rank, Exit::Lost { why });
                }
            }
            if let Some(agent) = self.agents.remove(&name) {
                self.absent.insert(name, agent.wishes());
            }
        }
    }

    /// How long no agent has to be given up.
    pub(super) fn until_next_loss(&self) -> Option<Duration> {
        let patience = self.patience();
        let silent = self.agents.values().filter(|agent| agent.link.is_none());
        silent.map(|agent| patience.saturating_sub(agent.silent_since.elapsed())).min()
    }

    /// How many slots a pool has now; `None` if there is no such pool.
    pub(super) fn slots_of(&self, pool: &str) -> Option<usize> {
        let name = if pool.is_empty() { DEFAULT_POOL } else { pool };
        let mut agents = self.agents.values().filter(|agent| agent.pool == name).peekable();
        if agents.peek().is_none() && name != DEFAULT_POOL {
            return None;
        }
        Some(agents.filter(|agent| agent.takes_work()).map(|agent| agent.devices.len()).sum())
    }
}
