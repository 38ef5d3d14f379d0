//! What the supervisor does when its coordinator is gone: ends its workers, looks for the next coordinator, or becomes it.

use std::time::{Duration, Instant};

use instep_policy::election::{HostPort, Loss};
use instep_policy::membership::Resumption;
use nix::sys::signal::Signal;
use serde_json::json;

use super::Supervisor;
use super::leadership::LeaderEvent;
use super::phase::{AfterStop, Phase, RunEnd};
use crate::console::Note;
use crate::election::search::SearchOutcome;
use crate::plan::RendezvousMode;

/// How long to wait before a search that led nowhere is begun again.
const SEARCH_PAUSE: Duration = Duration::from_millis(200);

impl Supervisor<'_> {
    /// Notices that the coordinator is gone, and how the search for another one has ended.
    pub(super) fn check_leadership(&mut self) -> Option<RunEnd> {
        match self.leadership.check()? {
            LeaderEvent::Lost { loss, how } => self.coordinator_lost(loss, &how),
            LeaderEvent::SearchEnded(SearchOutcome::Leader(leader)) => self.join(leader),
            LeaderEvent::SearchEnded(SearchOutcome::Elected(resumption)) => self.lead(*resumption),
            LeaderEvent::SearchEnded(SearchOutcome::NotFound(seen)) => {
                let limit = self.plan.terms.join_timeout.as_secs_f64();
                let reason = format!(
                    "no node that leads the job was found within {limit} s ({seen}); whether others continue is unknown here"
                );
                self.apply(AfterStop::End(RunEnd::failure(reason)))
            }
        }
    }

    /// A launcher that was stopped for long and waits for a round must not start one that was ordered meanwhile: the
    /// others have given this node up and may have started the next. So it leaves its coordinator; or, if that is in this
    /// process and was stopped too, lets the orders to start pass that have come until now, which is what true says.
    /// If workers run, the coordinator will tell.
    pub(super) fn check_own_absence(&mut self) -> bool {
        let absent = self.leadership.may_have_been_dropped();
        if !absent || !self.plan.terms.elastic() || !matches!(self.phase, Phase::Waiting) {
            return false;
        }
        if self.leadership.leads() {
            return true;
        }
        self.leadership.disconnect("it was suspended".to_owned());
        let leader = self.leadership.leader().clone();
        // Nothing runs, so that this ends nothing.
        let _ = self.search(Loss::Silent, "this launcher was suspended".to_owned(), Some(leader));
        false
    }

    fn coordinator_lost(&mut self, loss: Loss, how: &str) -> Option<RunEnd> {
        match &self.phase {
            Phase::Stopping { then: Some(AfterStop::End(_)) } => None,
            _ if self.plan.terms.elastic() => {
                let leader = self.leadership.leader();
                let name = format!("{}:{}", leader.host, leader.port);
                let reason = format!("the node that led the job, at {name}, was lost: {how}");
                self.console.note(Note::Warning(format!("{reason}; looking for the next one")));
                let details = json!({"cause": how, "silent": loss == Loss::Silent});
                self.reports.events.note("coordinator_lost", details);
                let endpoint = self.endpoint();
                self.search(loss, reason, endpoint)
            }
            // Our part is done; the first node may have ended before its last message arrived.
            Phase::Finished => {
                let text =
                    "the first node disappeared before all nodes had finished; this node's workers all exited with 0";
                self.console.note(Note::Warning(text.to_owned()));
                Some(RunEnd::success())
            }
            Phase::Waiting | Phase::Running | Phase::Stopping { .. } => {
                let reason = match loss {
                    Loss::Broken => "lost the connection to the first node, which leads the job".to_owned(),
                    Loss::Silent => format!("lost the connection to the first node, which leads the job: {how}"),
                };
                let end = self.apply(AfterStop::End(RunEnd::failure(reason)));
                if loss == Loss::Silent && self.plan.terms.step_recovery {
                    // Others have these ranks by now, or will any moment.
                    self.workers.signal(Signal::SIGKILL);
                    self.timers.start_kill(Instant::now());
                }
                end
            }
        }
    }

    /// The coordinator has given this node up, which may join again.
    pub(super) fn handle_dropped(&mut self, reason: &str) -> Option<RunEnd> {
        self.leadership.close_connection();
        if !self.plan.terms.elastic() {
            return self.coordinator_lost(Loss::Silent, reason);
        }
        let reason = format!("the node that leads the job had dropped this one: {reason}");
        self.console.note(Note::Warning(format!("{reason}; joining again")));
        let leader = self.leadership.leader().clone();
        self.search(Loss::Silent, reason, Some(leader))
    }

    /// The job is led elsewhere.
    pub(super) fn handle_moved(&mut self, leader: HostPort) -> Option<RunEnd> {
        self.leadership.close_connection();
        let reason = format!("the job is led at {}:{} now", leader.host, leader.port);
        self.console.note(Note::Progress(format!("{reason}; joining it there")));
        self.search(Loss::Silent, reason, Some(leader))
    }

    fn endpoint(&self) -> Option<HostPort> {
        match &self.plan.rendezvous {
            RendezvousMode::C10d { host, port, .. } => Some(HostPort { host: host.clone(), port: *port }),
            RendezvousMode::Standalone | RendezvousMode::Static { .. } => None,
        }
    }

    /// Ends the workers and looks for a coordinator meanwhile.
    fn search(&mut self, loss: Loss, reason: String, ask_also: Option<HostPort>) -> Option<RunEnd> {
        if matches!(self.phase, Phase::Stopping { then: Some(AfterStop::End(_)) }) {
            return None;
        }
        self.note_stop(&reason);
        if let Err(cause) = self.leadership.start_search(self.plan, loss, reason, ask_also) {
            let reason = format!("cannot look for the next node to lead the job: {cause}");
            return self.apply(AfterStop::End(RunEnd::failure(reason)));
        }
        let now = Instant::now();
        match &mut self.phase {
            // Behind a cut link others will take these ranks: what is saved from now on would be in their way.
            Phase::Running if loss == Loss::Silent => {
                self.workers.signal(Signal::SIGKILL);
                self.timers.start_kill(now);
                self.phase = Phase::Stopping { then: Some(AfterStop::Rejoin) };
            }
            Phase::Running => self.stop(Signal::SIGTERM, self.plan.grace_period, Some(AfterStop::Rejoin)),
            Phase::Stopping { then: then @ None } => *then = Some(AfterStop::Rejoin),
            Phase::Stopping { .. } => {}
            Phase::Waiting | Phase::Finished => self.phase = Phase::Waiting,
        }
        if loss == Loss::Silent {
            self.timers.kill_now(now);
        }
        self.finish_stop_unless_alive()
    }

    /// This node was elected: its coordinator takes over.
    fn lead(&mut self, resumption: Resumption) -> Option<RunEnd> {
        let address = self.leadership.own_address(self.plan)?;
        self.reports.events.note("rehosted", json!({"address": address.host, "port": address.port}));
        if let Err(cause) = self.leadership.promote(resumption, address.host.clone()) {
            return self.apply(AfterStop::End(RunEnd::failure(format!("cannot lead the job: {cause}"))));
        }
        let text = format!("this node now leads the job, at {}:{}", address.host, address.port);
        self.console.note(Note::Progress(text));
        self.join(address)
    }

    /// Joins the coordinator that was found. Workers that are still being ended do not prevent it: it is told of them.
    fn join(&mut self, leader: HostPort) -> Option<RunEnd> {
        let name = format!("{}:{}", leader.host, leader.port);
        match self.leadership.join(self.plan, &leader, self.workers.any()) {
            Ok(()) => {
                self.reports.events.note("joined", json!({"leader": name}));
                None
            }
            Err(cause) => {
                self.console.note(Note::Warning(format!("cannot join {name}: {cause}")));
                std::thread::sleep(SEARCH_PAUSE);
                let reason = "looking for the node that leads the job".to_owned();
                self.search(self.leadership.loss(), reason, Some(leader))
            }
        }
    }
}
