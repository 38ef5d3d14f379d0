//! Allocations that live, with the ports they hold: queued, placed, started, stopped, reaped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use instep_api::identifiers::TrialId;
use instep_api::link::{Ending, Exit, Order, Share as ShareName, Start};
use instep_api::states::AllocationState;
use instep_api::wire::Timestamp;
use instep_policy::lifecycle::End;
use instep_policy::lifecycle::gang::{Gang, Step};

use super::allocation::{Allocation, AllocationEvent, Placed, Purpose, Share, Signal};
use super::goodput::{GoodputTotals, ShareEnd};
use super::outbox::{Action, Outbox};
use super::ports::{Ports, is_open_here};
use crate::clock::now;
use crate::random;

/// Before SIGKILL, for what the failure of another share takes along.
const GANG_GRACE_SECONDS: u32 = 5;

#[derive(Default)]
pub(crate) struct Allocations {
    live: BTreeMap<String, Allocation>,
    ports: Ports,
    goodput: Arc<GoodputTotals>,
}

/// What is known of an allocation before it starts.
pub(super) struct Reservation {
    pub ports: BTreeMap<String, u16>,
    /// The trial that it runs, if it is one.
    pub trial: Option<TrialId>,
}

/// How an allocation ended, for people; `why` is what its first failed rank said, `stopped_for` what it was stopped for.
fn sentence(end: &End, why: Option<&str>, stopped_for: Option<&str>) -> String {
    match end {
        End::Exited { code: 0 } => "it exited successfully: all of it ended with exit code 0".to_owned(),
        End::Exited { code } => {
            why.map_or_else(|| format!("it failed with exit code {code}"), |why| format!("{why} (exit code {code})"))
        }
        End::Killed => stopped_for
            .map_or_else(|| "it was stopped".to_owned(), |stopped_for| format!("it was stopped: {stopped_for}")),
        End::NotStarted { why } => format!("it could not be started: {why}"),
        End::Lost { why } => format!("it was lost: {why}"),
        End::Impossible { why } => why.clone(),
    }
}

impl Allocations {
    pub(super) fn get(&self, name: &str) -> Option<&Allocation> {
        self.live.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Allocation> {
        self.live.get_mut(name)
    }

    /// What became of the time of trials.
    pub(super) fn goodput(&self) -> Arc<GoodputTotals> {
        Arc::clone(&self.goodput)
    }

    /// Those that have not ended.
    pub(super) fn open(&self) -> impl Iterator<Item = &Allocation> {
        self.live.values().filter(|allocation| allocation.ended_at.is_none())
    }

    pub(super) fn open_mut(&mut self) -> impl Iterator<Item = &mut Allocation> {
        self.live.values_mut().filter(|allocation| allocation.ended_at.is_none())
    }

    /// Those that were not reaped yet, ended or not.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.live.values()
    }

    /// Lets one wait for slots.
    pub(super) fn queue(&mut self, allocation: Allocation, outbox: &mut Outbox) {
        outbox.allocation_changed(&allocation.id);
        self.live.insert(allocation.id.clone(), allocation);
        outbox.request_pass();
    }

    /// Takes over one that the database knows.
    pub(super) fn restore(&mut self, allocation: Allocation) {
        if let Some(placed) = &allocation.placed {
            self.ports.claim(&placed.ports);
        }
        self.live.insert(allocation.id.clone(), allocation);
    }

    /// Takes one out of the queue.
    pub(super) fn withdraw(&mut self, name: &str, why: String, outbox: &mut Outbox) {
        if let Some(allocation) = self.live.get_mut(name) {
            allocation.reason = why;
            allocation.ended_at = Some(now());
            allocation.state = AllocationState::Terminated;
            outbox.allocation_changed(name);
        }
    }

    /// Ends one in the queue that may not start.
    pub(super) fn deny(&mut self, name: &str, end: End, outbox: &mut Outbox) {
        self.withdraw(name, sentence(&end, None, None), outbox);
        if let Some(allocation) = self.live.get_mut(name) {
            allocation.end = Some(end);
        }
        outbox.request_pass();
    }

    /// Asks the script of one to stop in good order.
    pub(super) fn preempt(&mut self, name: &str, why: String, outbox: &mut Outbox) {
        if let Some(allocation) = self.live.get_mut(name) {
            allocation.reason = format!("it was asked to stop: {why}");
            allocation.preempting = Some(why);
            outbox.allocation_changed(name);
            outbox.after_commit(Action::Signal(name.to_owned(), Signal::Preempt));
        }
    }

    /// Ends what still runs of one.
    pub(super) fn stop(&mut self, name: &str, grace_seconds: u32, why: &str, outbox: &mut Outbox) {
        let Some(allocation) = self.live.get_mut(name) else { return };
        let Some(placed) = &mut allocation.placed else { return };
        placed.gang.ending();
        allocation.state = AllocationState::Terminating;
        allocation.reason = why.to_owned();
        outbox.allocation_changed(name);
        for share in allocation.alive() {
            let stop = Order::Stop { share: allocation.share_name(share), grace_seconds, why: why.to_owned() };
            outbox.order(&share.agent, stop);
        }
    }

    /// Repeats the order to stop, which the agent of a share may have missed.
    pub(super) fn stop_again(&self, agent: &str, share: &ShareName, outbox: &mut Outbox) {
        let Some(allocation) = self.live.get(&share.allocation) else { return };
        if allocation.placed.as_ref().is_some_and(|placed| placed.gang.is_ending()) {
            let (share, why) = (share.clone(), allocation.reason.clone());
            outbox.order(agent, Order::Stop { share, grace_seconds: GANG_GRACE_SECONDS, why });
        }
    }

    /// The one of a task that has not ended, the newest if there are several.
    pub(super) fn of_task(&self, task: &str) -> Option<&Allocation> {
        let prefix = format!("{task}.");
        let of_task = self.live.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
        let running = |allocation: &Allocation| (allocation.state == AllocationState::Running, allocation.queued_at);
        of_task.map(|(_, allocation)| allocation).filter(|found| found.task == task).max_by_key(|found| running(found))
    }

    /// Sets ports aside for one that is to start; `None` if there are none, or no such allocation.
    pub(super) fn reserve_ports(&mut self, name: &str) -> Option<Reservation> {
        let (service_from, trial) = match &self.live.get(name)?.purpose {
            Purpose::Trial { trial, .. } => (None, Some(*trial)),
            Purpose::Command { .. } => (Some(u16::from_le_bytes(random::bytes())), None),
        };
        let ports = self.ports.give(service_from, is_open_here);
        if ports.is_none() {
            tracing::error!(allocation = name, "there are no free ports");
        }
        Some(Reservation { ports: ports?, trial })
    }

    pub(super) fn free_ports(&mut self, ports: &BTreeMap<String, u16>) {
        self.ports.take_back(ports);
    }

    /// Gives one its shares, which are about to start.
    pub(super) fn place(
        &mut self,
        name: &str,
        (shares, starts): (Vec<Share>, Vec<Start>),
        ports: BTreeMap<String, u16>,
        decided_at: Timestamp,
        outbox: &mut Outbox,
    ) {
        let Some(allocation) = self.live.get_mut(name) else { return };
        allocation.placed = Some(Placed { gang: Gang::new(shares.len()), shares, ports, starts });
        allocation.state = AllocationState::Starting;
        allocation.started_at = Some(decided_at);
        allocation.reason = "starting".to_owned();
        outbox.allocation_changed(name);
    }

    /// The rank of a share that runs on an agent.
    pub(super) fn rank(&self, agent: &str, share: &ShareName) -> Option<usize> {
        let allocation = self.live.get(&share.allocation).filter(|allocation| allocation.ended_at.is_none())?;
        let rank = allocation.rank_of(&share.resources)?;
        (allocation.placed.as_ref()?.shares.get(rank)?.agent == agent).then_some(rank)
    }

    /// The shares that an agent should run, and the orders of those that it may not have heard of and is still to start.
    pub(super) fn expected_on(&self, agent: &str) -> Vec<(ShareName, Option<Start>)> {
        let mut expected = Vec::new();
        for allocation in self.open() {
            let Some(placed) = &allocation.placed else { continue };
            for rank in placed.gang.alive() {
                let Some(share) = placed.shares.get(rank).filter(|share| share.agent == agent) else { continue };
                let starts = !share.started && !placed.gang.is_ending();
                let start = placed.starts.get(rank).filter(|_| starts).cloned();
                expected.push((allocation.share_name(share), start));
            }
        }
        expected
    }

    /// Those that run on an agent, or on one of its slots.
    pub(super) fn on_agent(&self, agent: &str, slot: Option<u32>) -> Vec<String> {
        let uses = |share: &Share| share.agent == agent && slot.is_none_or(|slot| share.devices.contains(&slot));
        self.open().filter(|allocation| allocation.alive().any(uses)).map(|allocation| allocation.id.clone()).collect()
    }

    /// The agents that something runs on.
    pub(super) fn busy_agents(&self) -> BTreeSet<String> {
        let placed = self.live.values().filter_map(|allocation| allocation.placed.as_ref());
        placed.flat_map(|placed| placed.shares.iter().map(|share| share.agent.clone())).collect()
    }

    pub(super) fn share_started(&mut self, name: &str, rank: usize, outbox: &mut Outbox) -> Option<AllocationEvent> {
        let allocation = self.live.get_mut(name)?;
        let placed = allocation.placed.as_mut()?;
        if let Some(share) = placed.shares.get_mut(rank).filter(|share| !share.started) {
            share.started = true;
            outbox.allocation_changed(name);
        }
        let Some(Step::AllStarted) = placed.gang.started(rank) else { return None };
        allocation.state = AllocationState::Running;
        allocation.reason = "running".to_owned();
        Some(AllocationEvent::Running)
    }

    pub(super) fn share_ended(
        &mut self,
        name: &str,
        rank: usize,
        ending: Ending,
        outbox: &mut Outbox,
    ) -> Option<AllocationEvent> {
        let allocation = self.live.get_mut(name)?;
        let placed = allocation.placed.as_mut()?;
        let Ending { exit, goodput } = ending;
        tracing::debug!(allocation = name, rank, ?exit, "a share has ended");
        if let Exit::Code { why: Some(why), .. } = &exit {
            allocation.why.get_or_insert_with(|| why.clone());
        }
        let moment = now();
        if let (Some(share), Some(began)) = (placed.shares.get_mut(rank), allocation.started_at) {
            share.ended.get_or_insert_with(|| ShareEnd::new(began, moment, goodput));
        }
        let steps = placed.gang.exited(rank, exit);
        outbox.allocation_changed(name);
        outbox.request_pass();
        let mut event = None;
        for step in steps {
            match step {
                Step::AllStarted => {}
                Step::EndOthers { why } => self.stop(name, GANG_GRACE_SECONDS, &why, outbox),
                Step::Over(end) => {
                    let allocation = self.live.get_mut(name)?;
                    let is_stopped = allocation.state == AllocationState::Terminating;
                    let stopped_for = is_stopped.then_some(allocation.reason.as_str());
                    allocation.reason = sentence(&end, allocation.why.as_deref(), stopped_for);
                    allocation.state = AllocationState::Terminated;
                    allocation.ended_at = Some(moment);
                    if let Some(usage) = allocation.usage() {
                        self.goodput.add(&usage);
                    }
                    allocation.end = Some(end.clone());
                    event = Some(AllocationEvent::Ended { end });
                }
            }
        }
        event
    }

    /// Signals the script of one.
    pub(super) fn signal(&self, name: &str, signal: Signal) {
        if let Some(allocation) = self.live.get(name) {
            allocation.waiters.signal.send_replace(signal);
        }
    }

    /// Removes those that have ended; `true` if there were any.
    pub(super) fn reap(&mut self) -> bool {
        let is_ended = |allocation: &&Allocation| allocation.ended_at.is_some();
        let ended: Vec<String> = self.live.values().filter(is_ended).map(|ended| ended.id.clone()).collect();
        for allocation in ended.iter().filter_map(|id| self.live.remove(id)) {
            if let Some(placed) = &allocation.placed {
                self.ports.take_back(&placed.ports);
            }
            allocation.close();
        }
        !ended.is_empty()
    }
}
