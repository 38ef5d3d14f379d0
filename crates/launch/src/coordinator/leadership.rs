//! Who leads: coordinators that wait, take over and give way.

use std::time::Duration;

use instep_policy::membership::{Event, Membership};
use instep_policy::succession::{Claim, Place, SUCCESSORS, yields};
use instep_store::{ClientId, Context};
use serde_json::json;

use super::Coordinator;
use crate::control::{self, Contact, FromCoordinator, Lead, Scouted, Stand};
use crate::election::shared::Errands;

impl Coordinator {
    /// What a node hears that comes to a coordinator which does not lead.
    pub(super) fn direction(&self) -> FromCoordinator {
        match self.hosting.post.leader() {
            Some(place) => FromCoordinator::Moved(place),
            None => FromCoordinator::NotLeading {},
        }
    }

    fn claim(&self) -> Option<Claim> {
        let membership = self.membership.as_ref()?;
        Some(Claim {
            launcher: self.hosting.launcher,
            round: membership.round(),
            running: membership.is_running(),
            precedence: membership.precedence(self.hosting.launcher),
        })
    }

    /// Another launcher of the job asks where we stand.
    pub(super) fn contacted(&mut self, client: ClientId, contact: &Contact, context: &mut Context<'_>) {
        let peer = self.peers.remove(&client);
        if contact.protocol == control::PROTOCOL && contact.run_id == self.hosting.run_id {
            let rival = contact
                .claim
                .zip(peer)
                .map(|((claim, port), peer)| (claim, Place { address: peer.ip().to_canonical().to_string(), port }));
            let stand = match (self.claim(), rival) {
                (Some(ours), Some((theirs, place))) if yields(&ours, &theirs) => {
                    self.give_way(&place, context);
                    Stand::Following(place)
                }
                (Some(ours), _) => Stand::Leading(ours),
                (None, rival) => match self.hosting.post.leader() {
                    Some(leader) => Stand::Following(leader),
                    None => {
                        if let Some((_, place)) = rival {
                            self.hosting.post.hear(place);
                        }
                        Stand::Searching { round: self.hosting.post.round() }
                    }
                },
            };
            context.send(client, control::encode(&FromCoordinator::Stand(stand)));
        }
        context.close(client);
    }

    /// Our own launcher tells us to lead.
    pub(super) fn lead(&mut self, client: ClientId, lead: Lead, context: &mut Context<'_>) {
        self.peers.remove(&client);
        if lead.host_token == self.hosting.host_token && self.membership.is_none() {
            self.places = lead.places.into_iter().collect();
            self.hosting.master_address = lead.master_address;
            let terms = self.hosting.terms.clone();
            self.began = context.now;
            self.next_look = context.now;
            self.membership = Some(Membership::resume(terms, lead.resumption, Duration::ZERO));
            self.silence = self.hosting.silence();
            self.woke = Duration::ZERO;
            self.resumed = true;
            context.send(client, control::encode(&FromCoordinator::Welcome {}));
        }
        context.close(client);
    }

    /// Somebody of our own process has looked for those who are missing.
    pub(super) fn scouted(&mut self, client: ClientId, scouted: Scouted, context: &mut Context<'_>) {
        self.peers.remove(&client);
        context.close(client);
        if scouted.host_token != self.hosting.host_token {
            return;
        }
        for launcher in scouted.dead {
            self.happened(Event::Dead { launcher }, context);
        }
        for (place, theirs) in scouted.leading {
            if self.claim().is_some_and(|ours| yields(&ours, &theirs)) {
                return self.give_way(&place, context);
            }
        }
    }

    /// Another coordinator leads the job: everybody who is here goes there.
    fn give_way(&mut self, place: &Place, context: &mut Context<'_>) {
        self.hosting.post.follow(Some(place.clone()));
        self.hosting.post.wish(None);
        self.tell_all(&FromCoordinator::Moved(place.clone()), context);
        let moved = json!({"leader": format!("{}:{}", place.address, place.port), "nodes": self.joined.len()});
        self.hosting.events.note("moved", moved);
        for guest in std::mem::take(&mut self.joined).into_values() {
            context.close(guest.client);
        }
        self.membership = None;
        self.lineage = None;
        self.pending = None;
        self.resumed = false;
        self.failures.clear();
    }

    /// Says whom to look for: those of the round before, as long as they are missing, and, where this coordinator has
    /// taken over, whoever serves the first endpoint now.
    pub(super) fn send_out_scouts(&mut self) {
        if !self.hosting.terms.elastic() {
            return;
        }
        let errands = self.membership.as_ref().zip(self.claim()).and_then(|(membership, claim)| {
            let missing = if membership.is_running() { Vec::new() } else { membership.unaccounted() };
            let mut targets: Vec<_> = missing
                .into_iter()
                .filter_map(|launcher| Some((self.places.get(&launcher)?.clone(), Some(launcher))))
                .take(SUCCESSORS)
                .collect();
            targets.extend(self.hosting.endpoint.clone().filter(|_| self.resumed).map(|place| (place, None)));
            (!targets.is_empty()).then_some(Errands { claim, targets })
        });
        if self.hosting.post.errands() != errands {
            self.hosting.post.wish(errands);
        }
    }
}
