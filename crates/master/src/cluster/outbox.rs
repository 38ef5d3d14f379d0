//! What follows from the messages handled so far: rows for one transaction, and what is done once they are stored.

use std::collections::BTreeSet;

use instep_api::identifiers::ExperimentId;
use instep_api::link::Order;
use instep_api::logs::LogLine;
use instep_api::states::LogLevel;
use instep_database::Decision;

use super::allocation::Signal;
use super::{Refusal, Reply};
use crate::clock::now;
use crate::engines::line::Call;
use crate::engines::options::EngineName;

/// What is done once a decision is stored.
pub(super) enum Action {
    /// Sends an order to an agent.
    Order(String, Order),
    /// Signals the script of an allocation.
    Signal(String, Signal),
    /// Deletes the checkpoints that an experiment does not keep.
    Collect(ExperimentId),
    /// Asks an engine for something.
    Engine(EngineName, Call),
    /// Answers a request.
    Reply(Box<dyn FnOnce() + Send>),
}

/// Collects rows, actions and changes until the actor stores them.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Rows that are complete already.
    pub(super) decision: Decision,
    changed: Changed,
    actions: Vec<Action>,
    pass_wanted: bool,
}

/// What differs from its row in the database. The rows are made when the transaction begins.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub experiments: BTreeSet<ExperimentId>,
    pub trials: BTreeSet<(ExperimentId, String)>,
    pub allocations: BTreeSet<String>,
}

impl Outbox {
    pub(super) fn experiment_changed(&mut self, id: ExperimentId) {
        self.changed.experiments.insert(id);
    }

    pub(super) fn trial_changed(&mut self, id: ExperimentId, request: &str) {
        self.changed.trials.insert((id, request.to_owned()));
    }

    pub(super) fn allocation_changed(&mut self, id: &str) {
        self.changed.allocations.insert(id.to_owned());
    }

    /// Does something once everything so far is stored.
    pub(super) fn after_commit(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Sends an order once everything so far is stored.
    pub(super) fn order(&mut self, agent: &str, order: Order) {
        self.after_commit(Action::Order(agent.to_owned(), order));
    }

    /// Answers once everything so far is stored.
    pub(super) fn reply<T: Send + 'static>(&mut self, reply: Reply<T>, answer: Result<T, Refusal>) {
        self.after_commit(Action::Reply(Box::new(move || {
            // Nobody listens any more when the request was given up.
            let _ = reply.send(answer);
        })));
    }

    /// Writes a line of the master's own to the log of a task.
    pub(super) fn log(&mut self, task: &str, allocation: Option<&str>, level: LogLevel, text: &str) {
        self.decision.lines.push(LogLine {
            id: 0,
            task_id: task.to_owned(),
            allocation_id: allocation.map(str::to_owned),
            agent_id: None,
            container_id: None,
            rank_id: None,
            timestamp: now(),
            level,
            source: Some("master".to_owned()),
            stdtype: None,
            log: format!("{text}\n"),
        });
    }

    /// Something changed that the scheduler should look at.
    pub(super) fn request_pass(&mut self) {
        self.pass_wanted = true;
    }

    pub(super) fn pass_wanted(&self) -> bool {
        self.pass_wanted
    }

    /// The scheduler has looked at everything so far.
    pub(super) fn pass_done(&mut self) {
        self.pass_wanted = false;
    }

    /// Whether an agent or an engine is to be told something.
    pub(super) fn has_orders(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Order(..) | Action::Engine(..)))
    }

    pub(super) fn is_empty(&self) -> bool {
        let Changed { experiments, trials, allocations } = &self.changed;
        let changed = experiments.len() + trials.len() + allocations.len();
        self.decision.is_empty() && changed + self.actions.len() == 0
    }

    /// The rows so far, and what else has changed.
    pub(super) fn take_rows(&mut self) -> (Decision, Changed) {
        (std::mem::take(&mut self.decision), std::mem::take(&mut self.changed))
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}
