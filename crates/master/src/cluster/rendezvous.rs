//! What running tasks ask the master: where the other shares are, whether to stop, an exchange of values.

use instep_api::tasks::RendezvousInfo;
use serde_json::Value;
use tokio::sync::watch;

use super::allocation::{AllocationEvent, Signal};
use super::allocations::Allocations;
use super::outbox::Outbox;
use super::state::ClusterState;
use super::{Refusal, Reply, TaskReport};

fn missing(allocation: &str) -> Refusal {
    Refusal::Missing(format!("allocation '{allocation}' not found, or it has ended"))
}

fn not_part(resources: &str, allocation: &str) -> Refusal {
    Refusal::Missing(format!("resources '{resources}' are not part of allocation {allocation}"))
}

impl Allocations {
    /// Lets a share wait until all others have asked, too.
    fn await_rendezvous(
        &mut self,
        name: &str,
        resources: &str,
        reply: Reply<RendezvousInfo>,
    ) -> Result<(), (Refusal, Reply<RendezvousInfo>)> {
        let Some(allocation) = self.get_mut(name) else { return Err((missing(name), reply)) };
        let Some(rank) = allocation.rank_of(resources) else { return Err((not_part(resources, name), reply)) };
        // A caller that has gone away may ask again: its answer was lost.
        let waits = allocation.waiters.rendezvous.get(&rank).is_some_and(|earlier| !earlier.is_closed());
        if waits {
            let what = format!("resources {resources} have already asked for the rendezvous");
            return Err((Refusal::Invalid(what), reply));
        }
        allocation.waiters.rendezvous.insert(rank, reply);
        Ok(())
    }

    /// Whether all shares run and have asked, or had before.
    fn is_rendezvous_complete(&self, name: &str) -> bool {
        let Some(allocation) = self.get(name) else { return false };
        let Some(placed) = &allocation.placed else { return false };
        let waits = |rank: usize| allocation.waiters.rendezvous.get(&rank).is_some_and(|caller| !caller.is_closed());
        let all_here = || placed.shares.iter().all(|share| share.started) && (0..placed.shares.len()).all(waits);
        allocation.ready || all_here()
    }

    fn answer_rendezvous(&mut self, name: &str, outbox: &mut Outbox) {
        let Some(allocation) = self.get_mut(name) else { return };
        let waiters = std::mem::take(&mut allocation.waiters.rendezvous);
        for (rank, reply) in waiters {
            if let Some(info) = allocation.rendezvous_info(rank) {
                outbox.reply(reply, Ok(info));
            }
        }
    }

    /// Whether this is the first time that one is ready.
    fn set_ready(&mut self, name: &str, outbox: &mut Outbox) -> bool {
        let Some(allocation) = self.get_mut(name).filter(|allocation| !allocation.ready) else { return false };
        allocation.ready = true;
        outbox.allocation_changed(name);
        true
    }

    /// A share of one serves others, and nobody waits for its end.
    fn set_daemon(&mut self, name: &str, resources: &str, outbox: &mut Outbox) -> Result<(), Refusal> {
        let allocation = self.get_mut(name).ok_or_else(|| missing(name))?;
        let rank = allocation.rank_of(resources).ok_or_else(|| not_part(resources, name))?;
        if let Some(placed) = &mut allocation.placed {
            placed.gang.is_daemon(rank);
        }
        outbox.allocation_changed(name);
        Ok(())
    }

    /// To be woken when a script is signalled; `None` if its allocation does not live.
    pub(super) fn signals(&self, name: &str) -> Option<watch::Receiver<Signal>> {
        self.get(name).map(|allocation| allocation.waiters.signal.subscribe())
    }

    /// A share brings a value, and waits until as many have come as there are peers.
    pub(super) fn gather(
        &mut self,
        name: &str,
        caller: String,
        (peers, data): (usize, Value),
        reply: Reply<Vec<Value>>,
        outbox: &mut Outbox,
    ) {
        let Some(allocation) = self.get_mut(name) else { return outbox.reply(reply, Err(missing(name))) };
        if peers == 0 || peers > 1_000_000 {
            let what = format!("{peers} is not a number of peers to wait for");
            return outbox.reply(reply, Err(Refusal::Invalid(what)));
        }
        let waiting = &mut allocation.waiters.gathering;
        waiting.retain(|_, (_, earlier)| !earlier.is_closed());
        if let Some((_, earlier)) = waiting.insert(caller, (data, reply)) {
            let _ = earlier.send(Err(Refusal::Invalid("the same caller has asked again".to_owned())));
        }
        if waiting.len() >= peers {
            let all = std::mem::take(waiting);
            let brought: Vec<Value> = all.values().map(|(data, _)| data.clone()).collect();
            for (_, (_, reply)) in all {
                let _ = reply.send(Ok(brought.clone()));
            }
        }
    }
}

impl ClusterState {
    /// A share wants to know where the others are.
    pub(super) fn rendezvous(
        &mut self,
        name: &str,
        resources: &str,
        reply: Reply<RendezvousInfo>,
        outbox: &mut Outbox,
    ) {
        match self.allocations.await_rendezvous(name, resources, reply) {
            Ok(()) => self.try_rendezvous(name, outbox),
            Err((refusal, reply)) => outbox.reply(reply, Err(refusal)),
        }
    }

    /// Answers all shares once all run and have asked. That they have is stored first: after a restart of the master,
    /// those that were answered do not ask again, and the others must not wait for them.
    pub(super) fn try_rendezvous(&mut self, name: &str, outbox: &mut Outbox) {
        if self.allocations.is_rendezvous_complete(name) {
            self.become_ready(name, outbox);
            self.allocations.answer_rendezvous(name, outbox);
        }
    }

    fn become_ready(&mut self, name: &str, outbox: &mut Outbox) {
        if self.allocations.set_ready(name, outbox) {
            self.allocation_event(name, AllocationEvent::Ready, outbox);
        }
    }

    /// A task reports about itself.
    pub(super) fn task_reported(&mut self, name: &str, report: TaskReport, outbox: &mut Outbox) -> Result<(), Refusal> {
        self.allocations.get(name).ok_or_else(|| missing(name))?;
        match report {
            TaskReport::Ready => self.become_ready(name, outbox),
            TaskReport::Acknowledged => self.allocation_event(name, AllocationEvent::Acknowledged, outbox),
            TaskReport::Pending => {
                let why = "its launcher asked for its preemption".to_owned();
                self.allocation_event(name, AllocationEvent::Displaced { why }, outbox);
            }
            TaskReport::Daemon(resources) => self.allocations.set_daemon(name, &resources, outbox)?,
            TaskReport::Waiting | TaskReport::Noted => {}
        }
        Ok(())
    }
}
