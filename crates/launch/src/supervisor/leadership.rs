//! This launcher's relation to the coordinator: the connection, what it knows of the newest epoch, and the search for
//! the next coordinator once the connection is lost.
//!
//! No decision about workers is taken here: [`Leadership::check`] says what happened, and the supervisor acts on it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use instep_policy::election::{Election, Epoch, HostPort, Loss, Votes};
use instep_policy::membership::{LauncherId, Resumption};
use nix::poll::{PollFd, PollFlags};

use crate::control::connection::CoordinatorConnection;
use crate::control::{FromCoordinator, Start, ToCoordinator};
use crate::election::query::Asker;
use crate::election::search::{CoordinatorSearch, SearchOutcome};
use crate::plan::Plan;
use crate::rendezvous::{self, CoordinatorService, Identity, Joined, RendezvousError};

/// What has become of the coordinator.
pub(super) enum LeaderEvent {
    /// It is gone, or does not answer.
    Lost { loss: Loss, how: String },
    /// The search for another one has ended.
    SearchEnded(SearchOutcome),
}

/// See the module documentation.
pub(super) struct Leadership {
    connection: CoordinatorConnection,
    /// Where the coordinator is.
    leader: HostPort,
    identity: Identity,
    /// The server of this node, where it leads the job or may have to.
    service: Option<CoordinatorService>,
    /// The newest committed round, in case the coordinator is lost.
    epoch: Option<Epoch>,
    /// The search for a coordinator, where there is none.
    search: Option<CoordinatorSearch>,
    /// How the coordinator of that epoch was lost.
    loss: Loss,
    /// The coordinator, once this node has had a part in a round of it: what it ordered before is not known here.
    led_by: Option<LauncherId>,
    /// Rounds that were started here and may be committed.
    votes: Votes,
}

impl Leadership {
    pub(super) fn new(joined: Joined) -> Leadership {
        Leadership {
            connection: joined.connection,
            leader: joined.leader,
            identity: joined.identity,
            service: joined.service,
            epoch: None,
            search: None,
            loss: Loss::Broken,
            led_by: None,
            votes: Votes::default(),
        }
    }

    /// Who this launcher is.
    pub(super) fn launcher(&self) -> LauncherId {
        self.identity.launcher
    }

    pub(super) fn leader(&self) -> &HostPort {
        &self.leader
    }

    /// How the coordinator of the newest epoch was lost.
    pub(super) fn loss(&self) -> Loss {
        self.loss
    }

    /// Whether the coordinator is in this process.
    pub(super) fn leads(&self) -> bool {
        self.service.as_ref().is_some_and(|service| service.leads)
    }

    /// Where the server of the coordinator was reached, which also has the store.
    pub(super) fn server(&self) -> Option<SocketAddr> {
        self.connection.peer()
    }

    pub(super) fn send(&mut self, message: &ToCoordinator) {
        self.connection.send(message);
    }

    pub(super) fn receive(&mut self) -> Vec<FromCoordinator> {
        self.connection.receive()
    }

    pub(super) fn flush(&mut self) {
        self.connection.flush();
    }

    pub(super) fn close_connection(&mut self) {
        self.connection.close();
    }

    /// See [`CoordinatorConnection::may_have_been_dropped`].
    pub(super) fn may_have_been_dropped(&mut self) -> bool {
        self.connection.may_have_been_dropped()
    }

    /// When [`Leadership::check`] is due at the latest.
    pub(super) fn check_by(&self) -> Option<Instant> {
        self.connection.check_by()
    }

    /// What to poll: the connection while it is open, and the search while there is one.
    pub(super) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let write = if self.connection.wants_to_write() { PollFlags::POLLOUT } else { PollFlags::empty() };
        let open = (!self.connection.is_closed()).then(|| self.connection.source());
        let connection = open.map(|source: BorrowedFd<'_>| PollFd::new(source, PollFlags::POLLIN | write));
        let search = self.search.as_ref().map(|search| PollFd::new(search.source(), PollFlags::POLLIN));
        connection.into_iter().chain(search)
    }

    /// Notices that the coordinator is gone, or that the search for another one has ended.
    pub(super) fn check(&mut self) -> Option<LeaderEvent> {
        if let Some(search) = &mut self.search {
            let outcome = search.result()?;
            self.search = None;
            return Some(LeaderEvent::SearchEnded(outcome));
        }
        if self.connection.is_closed() {
            return Some(LeaderEvent::Lost { loss: Loss::Broken, how: "its connection broke".to_owned() });
        }
        if self.leads() {
            return None;
        }
        let silence = self.connection.coordinator_timeout()?;
        self.disconnect(format!("it received nothing from here: {silence}"));
        Some(LeaderEvent::Lost { loss: Loss::Silent, how: silence })
    }

    /// Leaves a coordinator that may be alive, and tells it why.
    pub(super) fn disconnect(&mut self, cause: String) {
        self.connection.send(&ToCoordinator::Disconnecting { cause });
        self.connection.close();
    }

    /// The workers of a round are about to start.
    pub(super) fn round_started(&mut self, start: &Start) {
        if let Some(epoch) = &start.epoch {
            self.led_by = epoch.host;
            self.votes.started(epoch.clone());
        }
    }

    /// A round is committed.
    pub(super) fn committed(&mut self, epoch: Epoch) {
        if self.votes.committed(&epoch) {
            self.identity.last_round = Some(epoch.round);
            self.led_by = epoch.host;
        }
        if let Some(service) = &self.service {
            service.leadership.set_committed_round(epoch.round);
        }
        self.epoch = Some(epoch);
    }

    /// Looks for a coordinator among the launchers of the newest epoch, and at `ask_also`.
    pub(super) fn start_search(
        &mut self,
        plan: &Plan,
        loss: Loss,
        reason: String,
        ask_also: Option<HostPort>,
    ) -> io::Result<()> {
        let leads_the_epoch = self.led_by.is_some() && self.led_by == self.epoch.as_ref().and_then(|epoch| epoch.host);
        if leads_the_epoch || loss == Loss::Silent {
            self.loss = loss;
        }
        if let Some(leader) = self.led_by.take().filter(|_| loss == Loss::Broken) {
            self.votes.ended(leader);
        }
        if let Some(service) = &mut self.service {
            service.leads = false;
            service.leadership.set_leader(None);
        }
        let others = ask_also.into_iter().collect();
        let election = Election::new(self.identity.launcher, self.epoch.clone(), self.loss, reason, others)
            .with(self.votes.uncommitted_members());
        let leadership = self.service.as_ref().map(|service| service.leadership.clone());
        let limit = plan.terms.join_timeout;
        let asker = Asker { run_id: plan.job.run_id.clone(), token: plan.token.clone() };
        self.search = Some(CoordinatorSearch::start(election, asker, limit, leadership)?);
        Ok(())
    }

    /// Where this node leads once it is elected: its address as other nodes know it. `None` if it cannot lead.
    pub(super) fn own_address(&self, plan: &Plan) -> Option<HostPort> {
        let (service, epoch) = (self.service.as_ref()?, self.epoch.as_ref()?);
        let own = epoch.successors.iter().find(|successor| successor.launcher == self.identity.launcher);
        let host = plan.local_address.clone().or_else(|| own.map(|successor| successor.address.host.clone()));
        Some(HostPort { host: host.unwrap_or_else(|| plan.address.clone()), port: service.port() })
    }

    /// Tells this node's coordinator to lead the job.
    pub(super) fn promote(&mut self, resumption: Resumption, master_address: String) -> Result<(), RendezvousError> {
        let (Some(service), Some(epoch)) = (&mut self.service, &self.epoch) else { return Ok(()) };
        service.promote(resumption, epoch, &self.votes.uncommitted_members(), master_address)?;
        service.leads = true;
        Ok(())
    }

    /// Joins the coordinator at `leader`; `busy` while workers of an earlier round are being ended.
    pub(super) fn join(&mut self, plan: &Plan, leader: &HostPort, busy: bool) -> Result<(), String> {
        self.identity.busy = busy;
        self.identity.after_silence = self.loss == Loss::Silent;
        self.identity.votes = self.votes.uncommitted();
        self.connection = match self.service.as_ref().filter(|service| service.leads) {
            Some(own) => rendezvous::join_own_coordinator(plan, &self.identity, own).map_err(|cause| cause.to_string()),
            None => rendezvous::rejoin(plan, &self.identity, leader),
        }?;
        if let Some(service) = self.service.as_ref().filter(|service| !service.leads) {
            service.leadership.set_leader(Some(leader.clone()));
        }
        self.leader = leader.clone();
        Ok(())
    }

    /// Sends a last message, and waits a moment until the coordinator has read it.
    pub(super) fn leave(&mut self, message: &ToCoordinator, timeout: Duration) {
        self.connection.shutdown(message, timeout);
    }

    pub(super) fn stop_search(&mut self) {
        self.search = None;
    }

    /// Ends this node's server, which first writes what others still have to hear.
    pub(super) fn shutdown_service(&mut self) {
        if let Some(service) = self.service.take() {
            service.shutdown();
        }
    }
}
