//! What running tasks ask: where the others are, whether to stop.

use instep_api::tasks::RendezvousInfo;
use serde_json::Value;
use tokio::sync::watch;

use super::actor::Actor;
use super::allocation::{Allocation, Happening, Signal};
use super::{Refusal, Reply, Word};

fn missing(allocation: &str) -> Refusal {
    Refusal::Missing(format!("allocation '{allocation}' not found, or it has ended"))
}

/// Tells everybody who still waits for an allocation that it is over.
pub(super) fn dismiss(allocation: Allocation) {
    let why = format!("allocation {} has ended", allocation.id);
    allocation.calls.signal.send_replace(Signal::Over);
    for (_, reply) in allocation.calls.rendezvous {
        let _ = reply.send(Err(Refusal::Precondition(why.clone())));
    }
    for (_, (_, reply)) in allocation.calls.gathering {
        let _ = reply.send(Err(Refusal::Precondition(why.clone())));
    }
}

impl Actor {
    /// A share wants to know where the others are.
    pub(super) fn rendezvous(&mut self, name: &str, resources: &str, reply: Reply<RendezvousInfo>) {
        let Some(allocation) = self.allocations.get_mut(name) else { return self.answer(reply, Err(missing(name))) };
        let Some(rank) = allocation.rank_of(resources) else {
            let what = format!("resources '{resources}' are not part of allocation {name}");
            return self.answer(reply, Err(Refusal::Missing(what)));
        };
        // A caller that has gone away may ask again: its answer was lost.
        let waits = allocation.calls.rendezvous.get(&rank).is_some_and(|earlier| !earlier.is_closed());
        if waits {
            let what = format!("resources {resources} have already asked for the rendezvous");
            return self.answer(reply, Err(Refusal::Invalid(what)));
        }
        allocation.calls.rendezvous.insert(rank, reply);
        self.try_to_meet(name);
    }

    /// Answers all shares once all run and have asked. That they have is stored first: after a restart of the master,
    /// those who were answered do not ask again, and the others must not wait for them.
    pub(super) fn try_to_meet(&mut self, name: &str) {
        let Some(allocation) = self.allocations.get(name) else { return };
        let Some(placed) = &allocation.placed else { return };
        let waits = |rank: usize| allocation.calls.rendezvous.get(&rank).is_some_and(|caller| !caller.is_closed());
        let all_here = || placed.shares.iter().all(|share| share.started) && (0..placed.shares.len()).all(waits);
        if !allocation.ready && !all_here() {
            return;
        }
        self.become_ready(name);
        let Some(allocation) = self.allocations.get_mut(name) else { return };
        let callers = std::mem::take(&mut allocation.calls.rendezvous);
        let answers: Vec<_> =
            callers.into_iter().filter_map(|(rank, reply)| Some((reply, allocation.meeting(rank)?))).collect();
        for (reply, meeting) in answers {
            self.answer(reply, Ok(meeting));
        }
    }

    fn become_ready(&mut self, name: &str) {
        let Some(allocation) = self.allocations.get_mut(name).filter(|allocation| !allocation.ready) else { return };
        allocation.ready = true;
        self.changed.allocations.insert(name.to_owned());
        self.happened(name, Happening::Ready);
    }

    pub(super) fn signal(&mut self, name: &str, reply: Reply<Option<watch::Receiver<Signal>>>) {
        let receiver = self.allocations.get(name).map(|allocation| allocation.calls.signal.subscribe());
        // It changes nothing, so it need not wait for anything to be stored.
        let _ = reply.send(Ok(receiver));
    }

    pub(super) fn said(&mut self, name: &str, word: Word, reply: Reply<()>) {
        let Some(allocation) = self.allocations.get_mut(name) else { return self.answer(reply, Err(missing(name))) };
        match word {
            Word::Ready => self.become_ready(name),
            Word::Acknowledged => self.happened(name, Happening::Acknowledged),
            Word::Pending => {
                let why = "an external preemption is pending".to_owned();
                self.happened(name, Happening::Displaced { why });
            }
            Word::Daemon(resources) => {
                let Some(rank) = allocation.rank_of(&resources) else {
                    let what = format!("resources '{resources}' are not part of allocation {name}");
                    return self.answer(reply, Err(Refusal::Missing(what)));
                };
                if let Some(placed) = &mut allocation.placed {
                    placed.gang.is_daemon(rank);
                }
                self.changed.allocations.insert(name.to_owned());
            }
            Word::Waiting | Word::Noted => {}
        }
        self.answer(reply, Ok(()));
    }

    /// A share brings something for the others.
    pub(super) fn gather(&mut self, name: &str, caller: String, peers: usize, data: Value, reply: Reply<Vec<Value>>) {
        let Some(allocation) = self.allocations.get_mut(name) else { return self.answer(reply, Err(missing(name))) };
        if peers == 0 || peers > 1_000_000 {
            let what = format!("{peers} is not a number of peers to wait for");
            return self.answer(reply, Err(Refusal::Invalid(what)));
        }
        let waiting = &mut allocation.calls.gathering;
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
