//! The task that owns everything that lives.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::link::Order;
use instep_api::logs::LogLine;
use instep_api::states::LogLevel;
use instep_api::wire::Timestamp;
use instep_database::{Database, Decision, Error, ExperimentDecision, TrialDecision};
use instep_policy::lifecycle::Event;
use instep_policy::lifecycle::single::SingleEvent;
use tokio::sync::mpsc;

use super::agents::{Agent, Wishes};
use super::allocation::{Allocation, Signal};
use super::experiments::Live;
use super::placing::{Measures, Pace};
use super::ports::Ports;
use super::singles::LiveSingle;
use super::{ClusterOptions, Command, Refusal, Reply};
use crate::clock::now;
use crate::notices::Notices;

/// Commands that are taken into one transaction.
const COMMANDS_AT_A_TIME: usize = 256;
/// Between two attempts to store something on a disk that refuses.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// The longest sleep when nothing happens.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// What is done once a decision is stored.
pub(super) enum Act {
    /// An agent is told something.
    Order(String, Order),
    /// An allocation is told something.
    Signal(String, Signal),
    /// Checkpoints of an experiment are looked through.
    Collect(ExperimentId),
    /// Anything else: answers to callers.
    Do(Box<dyn FnOnce() + Send>),
}

/// Everything that lives, and what is about to be stored.
pub(crate) struct Actor {
    pub(super) database: Database,
    pub(super) notices: Arc<Notices>,
    pub(super) master_id: String,
    pub(super) options: ClusterOptions,
    pub(super) experiments: BTreeMap<ExperimentId, Live>,
    pub(super) trials: HashMap<TrialId, (ExperimentId, String)>,
    /// Tasks that stand alone.
    pub(super) singles: BTreeMap<String, LiveSingle>,
    pub(super) allocations: BTreeMap<String, Allocation>,
    pub(super) agents: BTreeMap<String, Agent>,
    /// Agents that were here once.
    pub(super) absent: BTreeMap<String, Wishes>,
    pub(super) ports: Ports,
    pub(super) pace: Pace,
    pub(super) measures: Arc<Measures>,
    /// What is to be stored next, and who stands elsewhere than is stored.
    pub(super) decision: Decision,
    pub(super) changed: Changed,
    acts: Vec<Act>,
    /// Counts the connections of agents.
    pub(super) connections: u64,
    /// Set when this master must not decide any more.
    over: bool,
}

/// Who stands elsewhere than is stored.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub experiments: BTreeSet<ExperimentId>,
    pub trials: BTreeSet<(ExperimentId, String)>,
    pub allocations: BTreeSet<String>,
}

impl Actor {
    pub(super) fn new(
        database: Database,
        notices: Arc<Notices>,
        master_id: String,
        options: ClusterOptions,
        measures: Arc<Measures>,
    ) -> Actor {
        Actor {
            database,
            notices,
            master_id,
            options,
            experiments: BTreeMap::new(),
            trials: HashMap::new(),
            singles: BTreeMap::new(),
            allocations: BTreeMap::new(),
            agents: BTreeMap::new(),
            absent: BTreeMap::new(),
            ports: Ports::default(),
            pace: Pace::default(),
            measures,
            decision: Decision::default(),
            changed: Changed::default(),
            acts: Vec::new(),
            connections: 0,
            over: false,
        }
    }

    /// Takes commands until there are no more handles, or another master has taken over.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut waiting: Vec<Command> = Vec::with_capacity(COMMANDS_AT_A_TIME);
        self.settle().await;
        while !self.over {
            let sleep = self.until_next().min(LONGEST_SLEEP);
            if let Ok(count) = tokio::time::timeout(sleep, commands.recv_many(&mut waiting, COMMANDS_AT_A_TIME)).await {
                if count == 0 {
                    return;
                }
                for command in waiting.drain(..) {
                    command(&mut self);
                }
            }
            self.settle().await;
        }
        // Whoever asks from now on is told that the master is ending.
        commands.close();
    }

    /// How long nothing has to be done, unless somebody asks.
    fn until_next(&self) -> Duration {
        let deadlines = self.experiments.values().filter_map(|live| live.machine.deadline());
        let soonest = deadlines
            .chain(self.singles.values().filter_map(|live| live.machine.deadline()))
            .min()
            .map(|deadline| Duration::from_micros(u64::try_from(deadline.0.saturating_sub(now().0)).unwrap_or(0)));
        [soonest, self.pace.until_next(), self.until_next_loss()].into_iter().flatten().min().unwrap_or(LONGEST_SLEEP)
    }

    /// Lets time pass, stores what follows from everything so far, acts, and gives slots away.
    async fn settle(&mut self) {
        self.let_time_pass();
        self.give_up_lost_agents();
        self.store().await;
        if self.pace.is_due(Instant::now()) && !self.over {
            self.place().await;
            self.store().await;
        }
    }

    fn let_time_pass(&mut self) {
        let moment = now();
        let due: Vec<ExperimentId> = self
            .experiments
            .iter()
            .filter(|(_, live)| live.machine.deadline().is_some_and(|deadline| deadline <= moment))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.event(id, Event::Tick);
        }
        let is_due = |live: &LiveSingle| live.machine.deadline().is_some_and(|deadline| deadline <= moment);
        let due: Vec<String> =
            self.singles.iter().filter(|(_, live)| is_due(live)).map(|(task, _)| task.clone()).collect();
        for task in due {
            self.single_event(&task, SingleEvent::Tick);
        }
    }

    /// Stores and acts, until nothing more follows.
    async fn store(&mut self) {
        while self.has_news() && !self.over {
            let decision = self.take_decision();
            let made: Vec<(ExperimentId, String)> =
                decision.new_trials.iter().map(|trial| (trial.experiment, trial.request.clone())).collect();
            let Some(ids) = self.commit(decision).await else { return };
            self.act();
            for ((experiment, request), trial) in made.into_iter().zip(ids) {
                self.trial_made(experiment, &request, trial);
            }
        }
    }

    fn has_news(&self) -> bool {
        let Changed { experiments, trials, allocations } = &self.changed;
        let changed = experiments.len() + trials.len() + allocations.len();
        !self.decision.is_empty() || changed + self.acts.len() > 0
    }

    /// What is to be stored: with everybody who has changed, as they stand now.
    fn take_decision(&mut self) -> Decision {
        let mut decision = std::mem::take(&mut self.decision);
        let changed = std::mem::take(&mut self.changed);
        for id in changed.experiments {
            let Some(live) = self.experiments.get_mut(&id) else { continue };
            let (state, progress) = (live.machine.state(), live.progress());
            decision.experiments.push(ExperimentDecision { id, state, progress, snapshot: live.snapshot() });
        }
        for (id, request) in changed.trials {
            let Some(live) = self.experiments.get(&id) else { continue };
            let Some(trial) = live.machine.trials().get(&request) else { continue };
            let Some(number) = trial.id else { continue };
            decision.trials.push(TrialDecision {
                id: TrialId(number.into()),
                state: trial.state,
                restarts: trial.restarts.min(live.machine.terms().max_restarts).into(),
                run: trial.runs.into(),
                log_policy_matched: live.matched.get(&request).cloned(),
            });
        }
        for id in changed.allocations {
            decision.allocations.extend(self.allocations.get(&id).map(Allocation::row));
        }
        decision
    }

    /// Stores a decision, however long a full disk takes; gives the new trials' ids, or `None` if this master must not
    /// decide any more.
    async fn commit(&mut self, decision: Decision) -> Option<Vec<TrialId>> {
        if decision.is_empty() {
            return Some(Vec::new());
        }
        loop {
            match self.database.decide(decision.clone(), now()).await {
                Ok(made) => {
                    if !decision.lines.is_empty() || !decision.ended_tasks.is_empty() {
                        self.notices.logs_arrived();
                    }
                    return Some(made);
                }
                Err(error @ (Error::NotDurable(_) | Error::Engine(_))) => {
                    tracing::error!(%error, "cannot store decisions; retrying");
                    tokio::time::sleep(STORE_AGAIN).await;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot continue scheduling experiments");
                    self.over = true;
                    return None;
                }
            }
        }
    }

    /// Does what was decided, now that it is stored.
    fn act(&mut self) {
        for act in std::mem::take(&mut self.acts) {
            match act {
                Act::Order(agent, order) => self.send(&agent, order),
                Act::Signal(id, signal) => {
                    if let Some(allocation) = self.allocations.get(&id) {
                        allocation.calls.signal.send_replace(signal);
                    }
                }
                Act::Collect(id) => super::collection::collect(self.database.clone(), Arc::clone(&self.notices), id),
                Act::Do(work) => work(),
            }
        }
        self.bury();
    }

    /// Lets go of what has ended.
    fn bury(&mut self) {
        let ended: Vec<String> =
            self.allocations.values().filter(|one| one.ended_at.is_some()).map(|one| one.id.clone()).collect();
        for id in &ended {
            if let Some(allocation) = self.allocations.remove(id) {
                if let Some(placed) = &allocation.placed {
                    self.ports.take_back(&placed.ports);
                }
                super::tasks::dismiss(allocation);
            }
        }
        if !ended.is_empty() {
            // Their tokens are gone from the database.
            self.notices.forget_sessions();
            self.pace.wanted();
        }
        let over: Vec<ExperimentId> =
            self.experiments.iter().filter(|(_, live)| live.machine.state().is_terminal()).map(|(id, _)| *id).collect();
        for id in over {
            self.experiments.remove(&id);
            self.trials.retain(|_, (experiment, _)| *experiment != id);
        }
    }

    /// How it is run.
    pub(crate) fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// To be done once everything so far is stored.
    pub(super) fn later(&mut self, act: Act) {
        self.acts.push(act);
    }

    /// Answers once everything so far is stored.
    pub(super) fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, answer: Result<T, Refusal>) {
        self.later(Act::Do(Box::new(move || {
            // Nobody listens any more when the request was given up.
            let _ = reply.send(answer);
        })));
    }

    /// A line of the master's own for the log of a task.
    pub(super) fn note(&mut self, task: &str, allocation: Option<&str>, level: LogLevel, text: &str) {
        self.decision.lines.push(line(task, allocation, level, text, now()));
    }
}

fn line(task: &str, allocation: Option<&str>, level: LogLevel, text: &str, timestamp: Timestamp) -> LogLine {
    LogLine {
        id: 0,
        task_id: task.to_owned(),
        allocation_id: allocation.map(str::to_owned),
        agent_id: None,
        container_id: None,
        rank_id: None,
        timestamp,
        level,
        source: Some("master".to_owned()),
        stdtype: None,
        log: format!("{text}\n"),
    }
}
