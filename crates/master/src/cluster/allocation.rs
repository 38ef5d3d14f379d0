//! One attempt to run a task on slots, as the master holds it while it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::link::{Share as ShareName, Start};
use instep_api::states::AllocationState;
use instep_api::tasks::RendezvousInfo;
use instep_api::wire::Timestamp;
use instep_database::AllocationRow;
use instep_policy::lifecycle::command::CommandEvent;
use instep_policy::lifecycle::gang::Gang;
use instep_policy::lifecycle::{End, Event, Run};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::goodput::{ShareEnd, Usage};
use super::{Refusal, Reply};

/// What a task may be told while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Continue,
    /// To stop in good order.
    Preempt,
    /// Nothing any more.
    Ended,
}

/// What an allocation runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// One run of a trial.
    Trial { experiment: ExperimentId, trial: TrialId, run: Run },
    /// A run of a command, a TensorBoard or a generic task.
    Command { run: u32 },
}

/// What happened to an allocation that its experiment or command decides about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AllocationEvent {
    /// It has slots.
    Assigned,
    /// All shares have started.
    Running,
    /// It can hear signals, or serves.
    Ready,
    /// Its script says that it stops without being done.
    Acknowledged,
    /// Others need its slots.
    Displaced { why: String },
    /// Its slots are taken away at once.
    Evicted { why: String },
    /// Nothing of it is alive any more.
    Ended { end: End },
}

impl AllocationEvent {
    /// As the experiment of a trial hears it.
    pub(super) fn of_run(self, run: Run) -> Event {
        match self {
            AllocationEvent::Assigned => Event::Assigned { run },
            AllocationEvent::Running => Event::Running { run },
            AllocationEvent::Ready => Event::Ready { run },
            AllocationEvent::Acknowledged => Event::Acknowledged { run },
            AllocationEvent::Displaced { why } => Event::Displaced { run, why },
            AllocationEvent::Evicted { why } => Event::Evicted { run, why },
            AllocationEvent::Ended { end } => Event::Ended { run, end },
        }
    }

    /// As a command hears it, if it does.
    pub(super) fn of_command(self) -> Option<CommandEvent> {
        match self {
            AllocationEvent::Assigned => Some(CommandEvent::Assigned),
            AllocationEvent::Running => Some(CommandEvent::Running),
            AllocationEvent::Ready => Some(CommandEvent::Ready),
            // It cannot resume later, so there is nothing that it could stop for.
            AllocationEvent::Acknowledged => None,
            AllocationEvent::Displaced { why } | AllocationEvent::Evicted { why } => {
                Some(CommandEvent::Evicted { why })
            }
            AllocationEvent::Ended { end } => Some(CommandEvent::Ended { end }),
        }
    }
}

/// An allocation that has not ended.
pub(crate) struct Allocation {
    pub id: String,
    pub task: String,
    pub purpose: Purpose,
    pub pool: String,
    pub slots: u32,
    pub excluded: BTreeSet<String>,
    pub queued_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub state: AllocationState,
    pub ready: bool,
    pub end: Option<End>,
    /// Why it is in its state, for people.
    pub reason: String,
    /// What an agent said went wrong in the first share that failed.
    pub why: Option<String>,
    /// Where it runs; `None` while it waits for slots.
    pub placed: Option<Placed>,
    /// Why it was asked to stop, if it was.
    pub preempting: Option<String>,
    pub waiters: Waiters,
}

/// Where an allocation runs.
pub(crate) struct Placed {
    pub shares: Vec<Share>,
    pub gang: Gang,
    pub ports: BTreeMap<String, u16>,
    /// The orders, to be repeated to an agent that has not heard them. Not kept over restarts: they hold tokens.
    pub starts: Vec<Start>,
}

/// What one agent runs of it. The rank is the place in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub agent: String,
    pub resources: String,
    pub container: String,
    pub devices: Vec<u32>,
    /// The address under which the others reach it.
    pub address: String,
    pub started: bool,
    #[serde(default)]
    pub ended: Option<ShareEnd>,
}

/// What an allocation was told, as it is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Signals {
    gang: Option<Gang>,
    preempting: Option<String>,
}

/// What all shares of an allocation have brought to an exchange.
pub(crate) type Gathered = Arc<Vec<Value>>;

/// What a share brings to an exchange.
pub(crate) struct Brought {
    pub data: Value,
    /// Bytes of the request that it came with.
    pub size: usize,
}

/// The requests that wait for something to happen to an allocation.
pub(crate) struct Waiters {
    pub signal: watch::Sender<Signal>,
    /// By rank.
    pub rendezvous: BTreeMap<usize, Reply<RendezvousInfo>>,
    /// By the callers' own identifiers.
    pub gathering: BTreeMap<String, (Brought, Reply<Gathered>)>,
}

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters {
            signal: watch::Sender::new(Signal::Continue),
            rendezvous: BTreeMap::new(),
            gathering: BTreeMap::new(),
        }
    }
}

impl Allocation {
    /// One that waits for slots.
    pub(crate) fn queued(id: String, task: String, purpose: Purpose) -> Allocation {
        Allocation {
            id,
            task,
            purpose,
            pool: String::new(),
            slots: 0,
            excluded: BTreeSet::new(),
            queued_at: Timestamp(0),
            started_at: None,
            ended_at: None,
            state: AllocationState::Queued,
            ready: false,
            end: None,
            reason: "waiting for slots".to_owned(),
            why: None,
            placed: None,
            preempting: None,
            waiters: Waiters::default(),
        }
    }

    /// One that had slots when the master ended; `None` if the row cannot be read.
    pub(crate) fn restored(row: &AllocationRow, purpose: Purpose) -> Option<Allocation> {
        let shares: Vec<Share> = serde_json::from_value(row.shares.clone()).ok()?;
        let signals: Signals = serde_json::from_value(row.signals.clone()).ok()?;
        let ports = serde_json::from_value(row.ports.clone()).ok()?;
        let placed = signals.gang.map(|gang| Placed { shares, gang, ports, starts: Vec::new() });
        let mut allocation = Allocation::queued(row.id.clone(), row.task_id.clone(), purpose);
        allocation.pool.clone_from(&row.pool);
        allocation.slots = u32::try_from(row.slots).ok()?;
        allocation.queued_at = row.queued_at;
        allocation.started_at = row.started_at;
        allocation.state = row.state;
        allocation.ready = row.ready;
        allocation.reason.clone_from(&row.reason);
        allocation.placed = placed;
        if let Some(why) = signals.preempting {
            allocation.preempt(why);
        }
        Some(allocation)
    }

    /// As it is stored.
    pub(crate) fn row(&self) -> AllocationRow {
        let signals = Signals {
            gang: self.placed.as_ref().map(|placed| placed.gang.clone()),
            preempting: self.preempting.clone(),
        };
        let json = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Null);
        let shares = self.placed.as_ref().map_or(&[] as &[Share], |placed| &placed.shares);
        let no_ports = BTreeMap::new();
        let ports = self.placed.as_ref().map_or(&no_ports, |placed| &placed.ports);
        let (trial, run) = match &self.purpose {
            Purpose::Trial { trial, run, .. } => (Some(*trial), run.number.into()),
            Purpose::Command { run } => (None, (*run).into()),
        };
        AllocationRow {
            id: self.id.clone(),
            task_id: self.task.clone(),
            trial,
            experiment: self.experiment(),
            run,
            state: self.state,
            ready: self.ready,
            pool: self.pool.clone(),
            slots: self.slots.into(),
            shares: json(serde_json::to_value(shares)),
            ports: json(serde_json::to_value(ports)),
            signals: json(serde_json::to_value(signals)),
            exit: self.end.as_ref().map(|end| json(serde_json::to_value(end))),
            reason: self.reason.clone(),
            queued_at: self.queued_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
        }
    }

    /// The experiment of its trial, if it is one's.
    pub(crate) fn experiment(&self) -> Option<ExperimentId> {
        match &self.purpose {
            Purpose::Trial { experiment, .. } => Some(*experiment),
            Purpose::Command { .. } => None,
        }
    }

    /// What became of the time for which the run of a trial had slots, once it has ended.
    pub(super) fn usage(&self) -> Option<Usage> {
        let Purpose::Trial { run, .. } = &self.purpose else { return None };
        Some(Usage::new(self.started_at?, self.ended_at?, &self.placed.as_ref()?.shares, run.number == 1))
    }

    /// Lets its script know that it is to stop.
    pub(crate) fn preempt(&mut self, why: String) {
        self.preempting = Some(why);
        self.waiters.signal.send_replace(Signal::Preempt);
    }

    /// The shares that have not ended, by rank.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &Share> {
        let placed = self.placed.as_ref();
        placed.into_iter().flat_map(|placed| placed.gang.alive().filter_map(|rank| placed.shares.get(rank)))
    }

    /// What agents call one of its shares.
    pub(crate) fn share_name(&self, share: &Share) -> ShareName {
        ShareName { allocation: self.id.clone(), resources: share.resources.clone() }
    }

    /// Answers every request that still waits for it: it is over.
    pub(crate) fn close(self) {
        let why = format!("allocation {} has ended", self.id);
        self.waiters.signal.send_replace(Signal::Ended);
        for (_, reply) in self.waiters.rendezvous {
            let _ = reply.send(Err(Refusal::Precondition(why.clone())));
        }
        for (_, (_, reply)) in self.waiters.gathering {
            let _ = reply.send(Err(Refusal::Precondition(why.clone())));
        }
    }

    /// The rank of a share.
    pub(crate) fn rank_of(&self, resources: &str) -> Option<usize> {
        self.placed.as_ref()?.shares.iter().position(|share| share.resources == resources)
    }

    /// What the share of a rank is told when all have asked.
    pub(crate) fn rendezvous_info(&self, rank: usize) -> Option<RendezvousInfo> {
        let placed = self.placed.as_ref()?;
        Some(RendezvousInfo {
            addresses: placed.shares.iter().map(|share| share.address.clone()).collect(),
            rank: i64::try_from(rank).ok()?,
            slots: placed.shares.iter().map(|share| share.devices.len() as i64).collect(),
        })
    }
}
