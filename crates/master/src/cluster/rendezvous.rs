//! What running tasks ask the master: where the other shares are, whether to stop, an exchange of values.

use std::sync::Arc;

use instep_api::tasks::RendezvousInfo;
use tokio::sync::watch;

use super::allocation::{AllocationEvent, Brought, Gathered, Signal};
use super::allocations::Allocations;
use super::outbox::Outbox;
use super::state::ClusterState;
use super::{Refusal, Reply, TaskReport};

/// Bytes that the shares of an allocation may bring to an exchange, all of them together: each is given all of it.
const MOST_GATHERED: usize = 1 << 20;

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
        (peers, brought): (usize, Brought),
        reply: Reply<Gathered>,
        outbox: &mut Outbox,
    ) {
        let Some(allocation) = self.get_mut(name) else { return outbox.reply(reply, Err(missing(name))) };
        if peers == 0 || peers > 1_000_000 {
            let what = format!("{peers} is not a number of peers to wait for");
            return outbox.reply(reply, Err(Refusal::Invalid(what)));
        }
        let waiting = &mut allocation.waiters.gathering;
        waiting.retain(|_, (_, earlier)| !earlier.is_closed());
        let others = waiting.iter().filter(|(known, _)| **known != caller).map(|(_, (brought, _))| brought.size);
        if others.sum::<usize>() + brought.size > MOST_GATHERED {
            let what = format!("the shares of an allocation may exchange {MOST_GATHERED} bytes at a time");
            return outbox.reply(reply, Err(Refusal::Invalid(what)));
        }
        if let Some((_, earlier)) = waiting.insert(caller, (brought, reply)) {
            let _ = earlier.send(Err(Refusal::Invalid("the same caller has asked again".to_owned())));
        }
        if waiting.len() >= peers {
            let (brought, replies): (Vec<Brought>, Vec<_>) = std::mem::take(waiting).into_values().unzip();
            let all = Arc::new(brought.into_iter().map(|brought| brought.data).collect::<Vec<_>>());
            for reply in replies {
                let _ = reply.send(Ok(Arc::clone(&all)));
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::super::allocation::{Allocation, Purpose};
    use super::super::outbox::Action;
    use super::*;

    #[test]
    fn an_exchange_of_too_much_is_refused_and_others_go_on() {
        let (mut allocations, mut outbox) = (Allocations::default(), Outbox::default());
        allocations
            .queue(Allocation::queued("t.1".to_owned(), "t".to_owned(), Purpose::Command { run: 1 }), &mut outbox);
        let mut bring = |caller: &str, size: usize| {
            let (reply, answer) = oneshot::channel();
            let brought = Brought { data: json!(caller), size };
            allocations.gather("t.1", caller.to_owned(), (2, brought), reply, &mut outbox);
            for action in outbox.take_actions() {
                if let Action::Reply(send) = action {
                    send();
                }
            }
            answer
        };
        let mut first = bring("a", MOST_GATHERED - 10);
        assert!(matches!(bring("b", 11).try_recv().unwrap(), Err(Refusal::Invalid(_))));
        assert!(first.try_recv().is_err(), "it waits on");
        assert_eq!(*bring("b", 10).try_recv().unwrap().unwrap(), vec![json!("a"), json!("b")]);
        assert_eq!(*first.try_recv().unwrap().unwrap(), vec![json!("a"), json!("b")]);
    }
}
