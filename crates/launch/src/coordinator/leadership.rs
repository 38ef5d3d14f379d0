//! Who leads: coordinators that wait, take over and step down.

use std::time::Duration;

use instep_policy::election::{Claim, HostPort, SUCCESSORS, steps_down};
use instep_policy::membership::{Event, Membership};
use instep_store::{ClientId, Context};
use serde_json::json;

use super::Coordinator;
use crate::control::{self, FromCoordinator, Lead, LeaderQuery, LeaderReply, ProbeReport};
use crate::election::shared::ProbeRequest;

impl Coordinator {
    /// The answer to a node that joins a coordinator which does not lead.
    pub(super) fn redirect(&self) -> FromCoordinator {
        match self.settings.leadership.leader() {
            Some(address) => FromCoordinator::Moved(address),
            None => FromCoordinator::NotLeading {},
        }
    }

    fn claim(&self) -> Option<Claim> {
        let membership = self.membership.as_ref()?;
        Some(Claim {
            launcher: self.settings.launcher,
            round: membership.round(),
            running: membership.is_running(),
            precedence: membership.precedence(self.settings.launcher),
        })
    }

    /// Another launcher of the job asks whether this one leads, follows or searches.
    pub(super) fn handle_leader_query(&mut self, client: ClientId, query: &LeaderQuery, context: &mut Context<'_>) {
        let peer = self.peers.remove(&client);
        if query.protocol == control::PROTOCOL && query.run_id == self.settings.run_id {
            let rival = query.claim.zip(peer).map(|((claim, port), (peer, _))| {
                (claim, HostPort { host: peer.ip().to_canonical().to_string(), port })
            });
            let reply = match (self.claim(), rival) {
                (Some(ours), Some((theirs, address))) if steps_down(&ours, &theirs) => {
                    self.step_down(&address, context);
                    LeaderReply::Following(address)
                }
                (Some(ours), _) => LeaderReply::Leading(ours),
                (None, rival) => match self.settings.leadership.leader() {
                    Some(leader) => LeaderReply::Following(leader),
                    None => {
                        if let Some((_, address)) = rival {
                            self.settings.leadership.set_leader_hint(address);
                        }
                        LeaderReply::Searching { round: self.settings.leadership.committed_round() }
                    }
                },
            };
            self.send(client, &FromCoordinator::LeaderReply(reply), context);
        }
        self.close(client, context);
    }

    /// Our own launcher tells us to lead.
    pub(super) fn take_over(&mut self, client: ClientId, lead: Lead, context: &mut Context<'_>) {
        self.peers.remove(&client);
        if lead.host_token == self.settings.host_token && self.membership.is_none() {
            self.addresses = lead.addresses.into_iter().collect();
            self.settings.master_address = lead.master_address;
            let terms = self.settings.terms.clone();
            self.began = context.now;
            self.next_heartbeat_check = context.now;
            self.membership = Some(Membership::resume(terms, lead.resumption, Duration::ZERO));
            self.detector = self.settings.failure_detector();
            self.paused_until = Duration::ZERO;
            self.resumed = true;
            self.send(client, &FromCoordinator::Welcome {}, context);
        }
        self.close(client, context);
    }

    /// Somebody of our own process has looked for those who are missing.
    pub(super) fn handle_probe_report(&mut self, client: ClientId, scouted: ProbeReport, context: &mut Context<'_>) {
        self.peers.remove(&client);
        self.close(client, context);
        if scouted.host_token != self.settings.host_token {
            return;
        }
        for launcher in scouted.dead {
            self.handle_event(Event::Dead { launcher }, context);
        }
        for (address, theirs) in scouted.leading {
            if self.claim().is_some_and(|ours| steps_down(&ours, &theirs)) {
                return self.step_down(&address, context);
            }
        }
    }

    /// Another coordinator leads the job: everybody who is here goes there.
    fn step_down(&mut self, address: &HostPort, context: &mut Context<'_>) {
        self.settings.leadership.set_leader(Some(address.clone()));
        self.settings.leadership.set_probe_request(None);
        self.broadcast(&FromCoordinator::Moved(address.clone()), context);
        let moved = json!({"leader": format!("{}:{}", address.host, address.port), "nodes": self.joined.len()});
        self.settings.events.note("moved", moved);
        for joined_node in std::mem::take(&mut self.joined).into_values() {
            self.close(joined_node.client, context);
        }
        self.membership = None;
        self.epoch = None;
        self.pending = None;
        self.resumed = false;
        self.failures.clear();
    }

    /// Says whom to look for: those of the round before, as long as they are missing, and, where this coordinator has
    /// taken over, whoever serves the first endpoint now.
    pub(super) fn update_probe_request(&mut self) {
        if !self.settings.terms.elastic() {
            return;
        }
        let probe_request = self.membership.as_ref().zip(self.claim()).and_then(|(membership, claim)| {
            let missing = if membership.is_running() { Vec::new() } else { membership.unaccounted() };
            let mut targets: Vec<_> = missing
                .into_iter()
                .filter_map(|launcher| Some((self.addresses.get(&launcher)?.clone(), Some(launcher))))
                .take(SUCCESSORS)
                .collect();
            targets.extend(self.settings.endpoint.clone().filter(|_| self.resumed).map(|address| (address, None)));
            (!targets.is_empty()).then_some(ProbeRequest { claim, targets })
        });
        if self.settings.leadership.probe_request() != probe_request {
            self.settings.leadership.set_probe_request(probe_request);
        }
    }
}
