//! What agents report, and what follows for the allocations they run.

use std::collections::BTreeSet;

use instep_api::link::{Ending, Exit, Hello, Order, Report, Share as ShareName, ShareState};
use tokio::sync::mpsc;

use super::Refusal;
use super::outbox::Outbox;
use super::state::ClusterState;

/// Characters of a reason that are kept.
const LONGEST_WHY: usize = 8000;

/// How a share ended, as people can be shown it: agents pass on what tasks say.
fn readable(ending: Ending) -> Ending {
    let exit = match ending.exit {
        Exit::Code { code, why } => Exit::Code { code, why: why.map(plain) },
        Exit::Failed { why } => Exit::Failed { why: plain(why) },
        Exit::Lost { why } => Exit::Lost { why: plain(why) },
        Exit::Killed => Exit::Killed,
    };
    Ending { exit, ..ending }
}

fn plain(why: String) -> String {
    let plain = |letter: char| if letter.is_control() && letter != '\n' { ' ' } else { letter };
    why.chars().take(LONGEST_WHY).map(plain).collect()
}

impl ClusterState {
    /// An agent says who it is, what it lends and what it runs.
    pub(super) fn hello(
        &mut self,
        mut hello: Hello,
        orders: mpsc::Sender<Order>,
        is_here: bool,
        outbox: &mut Outbox,
    ) -> Result<u64, Refusal> {
        let (name, shares) = (hello.agent.clone(), std::mem::take(&mut hello.shares));
        let bound = hello.bound.clone();
        match &bound {
            Some(_) => self.admit_bound(&mut hello, outbox)?,
            None => self.refuse_in_pool_of_engine(&hello)?,
        }
        let number = self.agents.register(hello, orders, is_here, outbox)?;
        if let Some(bound) = &bound {
            self.bound_joined(bound, &name);
        }
        self.reconcile(&name, shares, outbox);
        Ok(number)
    }

    /// Compares what an agent runs with what it should run, and makes up the difference.
    fn reconcile(&mut self, agent: &str, shares: Vec<ShareState>, outbox: &mut Outbox) {
        let mut reported: BTreeSet<ShareName> = BTreeSet::new();
        for state in shares {
            reported.insert(state.share.clone());
            match state.exit {
                Some(exit) => self.exited(agent, &state.share, exit, outbox),
                None if self.allocations.rank(agent, &state.share).is_some() => {
                    self.started(agent, &state.share, outbox);
                    self.allocations.stop_again(agent, &state.share, outbox);
                }
                None => {
                    let why = "it is unknown to the master".to_owned();
                    outbox.order(agent, Order::Stop { share: state.share, grace_seconds: 0, why });
                }
            }
        }
        for (share, start) in self.allocations.expected_on(agent) {
            if reported.contains(&share) {
                continue;
            }
            match start {
                Some(start) => outbox.order(agent, Order::Start(Box::new(start))),
                None => {
                    let why = format!("agent {agent} reconnected without it");
                    self.exited(agent, &share, Exit::Lost { why }.into(), outbox);
                }
            }
        }
    }

    /// An agent reports. What comes over a connection that has been replaced is repeated over the new one.
    pub(super) fn report(&mut self, agent: &str, connection: u64, report: Report, outbox: &mut Outbox) {
        if !self.agents.is_current(agent, connection) {
            return;
        }
        match report {
            // It came when the connection began.
            Report::Hello(_) => {}
            Report::Leaving => self.agents.leaving(agent),
            Report::Notice { why } => self.notice_to_bound(agent, plain(why), outbox),
            Report::Started { share } => self.started(agent, &share, outbox),
            Report::Exited { share, exit } => self.exited(agent, &share, exit, outbox),
        }
    }

    fn started(&mut self, agent: &str, share: &ShareName, outbox: &mut Outbox) {
        let Some(rank) = self.allocations.rank(agent, share) else { return };
        if let Some(event) = self.allocations.share_started(&share.allocation, rank, outbox) {
            self.allocation_event(&share.allocation, event, outbox);
        }
        self.try_rendezvous(&share.allocation, outbox);
    }

    /// A share has ended; the agent may forget it once that is stored.
    fn exited(&mut self, agent: &str, share: &ShareName, exit: Ending, outbox: &mut Outbox) {
        if let Some(rank) = self.allocations.rank(agent, share) {
            self.share_ended(&share.allocation, rank, readable(exit), outbox);
        }
        outbox.order(agent, Order::Forget { share: share.clone() });
    }

    fn share_ended(&mut self, allocation: &str, rank: usize, exit: Ending, outbox: &mut Outbox) {
        if let Some(event) = self.allocations.share_ended(allocation, rank, exit, outbox) {
            self.allocation_event(allocation, event, outbox);
        }
    }

    pub(super) fn disconnected(&mut self, agent: &str, connection: u64, outbox: &mut Outbox) {
        let bound = self.agents.get(agent).and_then(|agent| agent.bound.clone());
        let leaving = self.agents.disconnected(agent, connection, outbox);
        if let (Some(allocation), false) = (bound, self.agents.is_here(agent)) {
            self.bound_left(&allocation, agent, outbox);
        }
        // One that is leaving and runs nothing is not waited for.
        if leaving && self.allocations.expected_on(agent).is_empty() {
            self.agents.forget(agent);
        }
    }

    /// Gives up agents that have been silent for too long, and with them what they ran.
    pub(super) fn give_up_lost_agents(&mut self, outbox: &mut Outbox) {
        let timeout = self.agents.reconnect_timeout().as_secs();
        for name in self.agents.lost() {
            tracing::warn!(agent = name, "agent lost");
            for (share, _) in self.allocations.expected_on(&name) {
                if let Some(rank) = self.allocations.rank(&name, &share) {
                    let why = format!("agent {name} was silent for {timeout} s");
                    self.share_ended(&share.allocation, rank, Exit::Lost { why }.into(), outbox);
                }
            }
            self.agents.forget(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_agents_can_be_shown() {
        let exit = Exit::Failed { why: format!("\u{1b}[2Jno\nhint: x{}", "y".repeat(2 * LONGEST_WHY)) };
        let Exit::Failed { why } = readable(exit.into()).exit else { panic!("another end") };
        assert!(why.starts_with(" [2Jno\nhint: xy"));
        assert_eq!(why.len(), LONGEST_WHY);
    }
}
