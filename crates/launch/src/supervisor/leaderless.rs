//! A launcher whose coordinator is gone: ends its workers, looks for the next coordinator, or becomes it.

use instep_policy::succession::{Loss, Place, Search};
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

use super::{ABANDON_AFTER, Next, Phase, Supervisor, failed};
use crate::console::Note;
use crate::control::ToCoordinator;
use crate::meeting;
use crate::plan::Meeting;
use crate::seek::{Found, Seek};

/// How often a search that led nowhere is begun again.
const SEEK_AGAIN: Duration = Duration::from_millis(200);

impl Supervisor<'_> {
    /// Notices that the coordinator is gone, and what the search for another one has found.
    pub(super) fn look_after_the_link(&mut self) -> Option<Next> {
        if let Some(found) = self.seek.as_mut().and_then(Seek::result) {
            self.seek = None;
            return self.act_on(found);
        }
        if self.seek.is_some() {
            return None;
        }
        if self.link.is_closed() {
            return self.coordinator_lost(Loss::Broken, "its connection broke");
        }
        if self.service.as_ref().is_some_and(|service| service.leads) {
            // It is in this process.
            return None;
        }
        let silence = self.link.silence()?;
        self.link.send(&ToCoordinator::Parting { cause: format!("it received nothing from here: {silence}") });
        self.link.close();
        self.coordinator_lost(Loss::Silent, &silence)
    }

    /// A launcher that was stopped for long and waits for a round must not start one that was ordered meanwhile: the
    /// others have given this node up and may have started the next. So it leaves its coordinator; or, if that is in this
    /// process and was stopped too, lets the orders to start pass that have come until now, which is what true says.
    /// If workers run, the coordinator will tell.
    pub(super) fn notice_own_absence(&mut self) -> bool {
        if !self.link.was_away() || !self.plan.terms.elastic() || !matches!(self.phase, Phase::Waiting) {
            return false;
        }
        if self.service.as_ref().is_some_and(|service| service.leads) {
            return true;
        }
        let cause = "it was suspended".to_owned();
        self.link.send(&ToCoordinator::Parting { cause });
        self.link.close();
        let leader = self.leader.clone();
        // Nothing runs, so that this ends nothing.
        let _ = self.search(Loss::Silent, "this launcher was suspended".to_owned(), Some(leader));
        false
    }

    fn coordinator_lost(&mut self, loss: Loss, how: &str) -> Option<Next> {
        match &self.phase {
            Phase::Stopping { then: Some(Next::End { .. }), .. } => None,
            _ if self.plan.terms.elastic() => {
                let name = format!("{}:{}", self.leader.address, self.leader.port);
                let reason = format!("the node that led the job, at {name}, was lost: {how}");
                self.console.note(Note::Warning(format!("{reason}; looking for the next one")));
                self.events.note("coordinator_lost", json!({"cause": how, "silent": loss == Loss::Silent}));
                let endpoint = self.endpoint();
                self.search(loss, reason, endpoint)
            }
            // Our part is done; the first node may have ended before its farewell arrived.
            Phase::Finished => {
                let text =
                    "the first node disappeared before all nodes had finished; this node's workers all exited with 0";
                self.console.note(Note::Warning(text.to_owned()));
                Some(Next::End { success: true, reason: None, signal: None })
            }
            Phase::Waiting | Phase::Running | Phase::Stopping { .. } => {
                self.order(failed("lost the connection to the first node, which leads the job".to_owned()))
            }
        }
    }

    /// The coordinator has given this node up, which may join again.
    pub(super) fn dropped(&mut self, reason: &str) -> Option<Next> {
        self.link.close();
        if !self.plan.terms.elastic() {
            return self.coordinator_lost(Loss::Silent, reason);
        }
        let reason = format!("the node that leads the job had dropped this one: {reason}");
        self.console.note(Note::Warning(format!("{reason}; joining again")));
        let leader = self.leader.clone();
        self.search(Loss::Silent, reason, Some(leader))
    }

    /// The job is led elsewhere.
    pub(super) fn moved(&mut self, place: Place) -> Option<Next> {
        self.link.close();
        let reason = format!("the job is led at {}:{} now", place.address, place.port);
        self.console.note(Note::Progress(format!("{reason}; going there")));
        self.search(Loss::Silent, reason, Some(place))
    }

    fn endpoint(&self) -> Option<Place> {
        match &self.plan.meeting {
            Meeting::Dynamic { host, port, .. } => Some(Place { address: host.clone(), port: *port }),
            Meeting::Alone | Meeting::Fixed { .. } => None,
        }
    }

    /// Ends the workers and looks for a coordinator meanwhile.
    fn search(&mut self, loss: Loss, reason: String, ask_also: Option<Place>) -> Option<Next> {
        if matches!(self.phase, Phase::Stopping { then: Some(Next::End { .. }), .. }) {
            return None;
        }
        let leads_the_lineage = self.led_by.is_some() && self.led_by == self.lineage.as_ref().and_then(|one| one.host);
        if leads_the_lineage || loss == Loss::Silent {
            self.loss = loss;
        }
        if let Some(leader) = self.led_by.take().filter(|_| loss == Loss::Broken) {
            self.pledges.ended(leader);
        }
        self.note_stop(&reason);
        if let Some(service) = &mut self.service {
            service.leads = false;
            service.post.follow(None);
        }
        let launcher = self.identity.launcher;
        let others = ask_also.into_iter().collect();
        let search =
            Search::new(launcher, self.lineage.clone(), self.loss, reason, others).with(self.pledges.companions());
        let post = self.service.as_ref().map(|service| service.post.clone());
        match Seek::start(search, self.plan.job.run_id.clone(), self.plan.terms.join_timeout, post) {
            Ok(seek) => self.seek = Some(seek),
            Err(cause) => return self.order(failed(format!("cannot look for the next node to lead the job: {cause}"))),
        }
        match &mut self.phase {
            // Behind a cut link others will take these ranks: what is saved from now on would be in their way.
            Phase::Running if loss == Loss::Silent => {
                self.stop(Signal::SIGKILL, ABANDON_AFTER, Some(Next::Rejoin));
                if let Phase::Stopping { killed, .. } = &mut self.phase {
                    *killed = true;
                }
            }
            Phase::Running => self.stop(Signal::SIGTERM, self.plan.grace_period, Some(Next::Rejoin)),
            Phase::Stopping { then: then @ None, .. } => *then = Some(Next::Rejoin),
            Phase::Stopping { .. } => {}
            Phase::Waiting | Phase::Finished => self.phase = Phase::Waiting,
        }
        if let Phase::Stopping { kill_at, killed: false, .. } = &mut self.phase
            && loss == Loss::Silent
        {
            *kill_at = (*kill_at).min(Instant::now());
        }
        if self.attempt.is_none() { self.settle() } else { None }
    }

    fn act_on(&mut self, found: Found) -> Option<Next> {
        match found {
            Found::Leader(place) => self.join(place),
            Found::Ourselves(resumption) => {
                let own = self.lineage.as_ref().and_then(|lineage| {
                    lineage.successors.iter().find(|successor| successor.launcher == self.identity.launcher)
                });
                let seen_at = own.map(|successor| successor.place.clone());
                let address = self.plan.local_address.clone().or(seen_at.map(|place| place.address));
                let address = address.unwrap_or_else(|| self.plan.address.clone());
                let companions = self.pledges.companions();
                let (Some(service), Some(lineage)) = (&mut self.service, &self.lineage) else { return None };
                let place = Place { address: address.clone(), port: service.port() };
                self.events.note("rehosted", json!({"address": place.address, "port": place.port}));
                if let Err(cause) = meeting::lead(service, *resumption, lineage, &companions, address) {
                    return self.order(failed(format!("cannot lead the job: {cause}")));
                }
                service.leads = true;
                let text = format!("this node now leads the job, at {}:{}", place.address, place.port);
                self.console.note(Note::Progress(text));
                self.join(place)
            }
            Found::Nobody(seen) => {
                let limit = self.plan.terms.join_timeout.as_secs_f64();
                let reason = format!(
                    "no node that leads the job was found within {limit} s ({seen}); whether others continue is unknown here"
                );
                self.order(failed(reason))
            }
        }
    }

    /// Joins the coordinator that was found. Workers that are still being ended are no obstacle: it is told of them.
    fn join(&mut self, place: Place) -> Option<Next> {
        self.identity.busy = self.attempt.is_some();
        self.identity.after_silence = self.loss == Loss::Silent;
        self.identity.pledges = self.pledges.told();
        let joined = match &self.service {
            Some(service) if service.leads => {
                meeting::join_own(self.plan, &self.identity, service).map_err(|cause| cause.to_string())
            }
            _ => meeting::rejoin(self.plan, &self.identity, &place),
        };
        match joined {
            Ok(link) => {
                self.link = link;
                if let Some(service) = self.service.as_ref().filter(|service| !service.leads) {
                    service.post.follow(Some(place.clone()));
                }
                self.events.note("joined", json!({"leader": format!("{}:{}", place.address, place.port)}));
                self.leader = place;
                None
            }
            Err(cause) => {
                self.console.note(Note::Warning(format!("cannot join {}:{}: {cause}", place.address, place.port)));
                std::thread::sleep(SEEK_AGAIN);
                self.search(self.loss, "looking for the node that leads the job".to_owned(), Some(place))
            }
        }
    }
}
