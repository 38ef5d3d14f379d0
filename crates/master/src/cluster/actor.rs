//! The task that owns the cluster's state: takes messages, stores what follows from them, and only then acts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::secrets::GivenSecrets;
use instep_database::{Database, Decision, Error};
use tokio::sync::mpsc;

use super::Message;
use super::launch::Resume;
use super::outbox::{Action, Outbox};
use super::permit;
use super::state::ClusterState;
use crate::clock::now;
use crate::notices::Notices;
use crate::vault::Vault;

/// Messages that are taken into one transaction.
const MESSAGES_AT_A_TIME: usize = 256;
/// Between two attempts to store something on a disk that refuses.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// The longest sleep when nothing happens.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// What a task starts with; or why it may not start.
type Prepared = Result<(Resume, GivenSecrets), String>;

pub(super) struct Actor {
    pub(super) database: Database,
    notices: Arc<Notices>,
    pub(super) state: ClusterState,
    pub(super) outbox: Outbox,
    /// Set when this master must not decide any more.
    over: bool,
}

impl Actor {
    pub(super) fn new(database: Database, notices: Arc<Notices>, state: ClusterState) -> Actor {
        Actor { database, notices, state, outbox: Outbox::default(), over: false }
    }

    /// Takes messages until there are no more handles, or another master has taken over.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut waiting: Vec<Message> = Vec::with_capacity(MESSAGES_AT_A_TIME);
        self.commit_and_schedule().await;
        while !self.over {
            let sleep = self.until_next().min(LONGEST_SLEEP);
            if let Ok(count) = tokio::time::timeout(sleep, messages.recv_many(&mut waiting, MESSAGES_AT_A_TIME)).await {
                if count == 0 {
                    return;
                }
                for message in waiting.drain(..) {
                    message(&mut self.state, &mut self.outbox);
                }
            }
            self.commit_and_schedule().await;
        }
        // Whoever asks from now on is told that the master is ending.
        messages.close();
    }

    /// How long nothing has to be done, unless somebody asks.
    fn until_next(&self) -> Duration {
        let pass = self.outbox.pass_wanted().then(|| self.state.scheduler.until_next_pass());
        [self.state.until_deadline(), pass, self.state.agents.until_next_loss()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(LONGEST_SLEEP)
    }

    /// Lets time pass, stores what follows from everything so far, acts, and gives slots away.
    async fn commit_and_schedule(&mut self) {
        self.state.tick(&mut self.outbox);
        self.state.give_up_lost_agents(&mut self.outbox);
        self.store().await;
        for ready in self.state.ready_in_engines() {
            self.start(&ready.request, &ready.placement).await;
            self.store().await;
        }
        if self.outbox.pass_wanted() && self.state.scheduler.is_due(Instant::now()) && !self.over {
            self.schedule().await;
            self.store().await;
        }
    }

    /// Stores and acts, until nothing more follows.
    async fn store(&mut self) {
        loop {
            // What has begun or ended is wanted of an engine, or not any more.
            self.state.reconcile_engines(&mut self.outbox);
            if self.outbox.is_empty() || self.over {
                return;
            }
            let (rows, changed) = self.outbox.take_rows();
            let decision = self.state.add_rows(rows, changed);
            let created: Vec<(ExperimentId, String)> =
                decision.new_trials.iter().map(|trial| (trial.experiment, trial.request.clone())).collect();
            let Some(ids) = self.commit(decision).await else { return };
            self.act();
            let ClusterState { experiments, allocations, .. } = &mut self.state;
            for ((experiment, request), trial) in created.into_iter().zip(ids) {
                experiments.trial_created(experiment, &request, trial, allocations, &mut self.outbox);
            }
        }
    }

    /// Stores a decision, however long a full disk takes; gives the new trials' ids, or `None` if this master must not
    /// decide any more.
    async fn commit(&mut self, decision: Decision) -> Option<Vec<TrialId>> {
        // Whether this master may still give orders is asked of the database also where there is nothing to store.
        if decision.is_empty() && !self.outbox.has_orders() {
            return Some(Vec::new());
        }
        loop {
            match self.database.decide(decision.clone(), now()).await {
                Ok(created) => {
                    if !decision.lines.is_empty() || !decision.ended_tasks.is_empty() {
                        self.notices.logs_arrived();
                    }
                    return Some(created);
                }
                Err(error @ (Error::NotDurable(_) | Error::Engine(_))) => {
                    tracing::error!(%error, "cannot store decisions; retrying");
                    tokio::time::sleep(STORE_AGAIN).await;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot store decisions any more");
                    self.over = true;
                    // The process ends, too: it would serve on without anybody who decides.
                    self.database.end(&format!("cannot store decisions: {error}"));
                    return None;
                }
            }
        }
    }

    /// Does what was decided, now that it is stored.
    fn act(&mut self) {
        for action in self.outbox.take_actions() {
            match action {
                Action::Order(agent, order) => self.state.agents.send(&agent, order),
                Action::Signal(allocation, signal) => self.state.allocations.signal(&allocation, signal),
                Action::Engine(name, call) => self.state.engines.ask(&name, call, &mut self.outbox),
                Action::Collect(id) => super::collection::collect(self.database.clone(), Arc::clone(&self.notices), id),
                Action::Reply(send) => send(),
            }
        }
        if self.state.reap() {
            // The tokens of allocations that ended are gone from the database.
            self.notices.forget_sessions();
            self.outbox.request_pass();
        }
    }

    /// One pass over everything that waits for slots.
    async fn schedule(&mut self) {
        let plan = self.state.plan_pass();
        self.outbox.pass_done();
        self.state.apply(plan.waiting, plan.preempt, &mut self.outbox);
        for start in plan.start {
            self.start(&start.request, &start.placement).await;
        }
    }

    /// Looks up whether a task may still start, where it resumes and which secrets it is given; or why it may not.
    async fn prepare(&mut self, allocation: &str, trial: Option<TrialId>) -> Result<Prepared, Error> {
        let Some(task) = self.state.allocations.get(allocation).map(|allocation| allocation.task.clone()) else {
            return Ok(Err("it is not known any more".to_owned()));
        };
        let permit = match permit::check(&self.database, self.state.options().roles, &task).await? {
            Ok(permit) => permit,
            Err(why) => return Ok(Err(why)),
        };
        let resume = match trial {
            Some(trial) => self.database.resume_point(trial).await?,
            None => (None, 0),
        };
        let wanted = self.state.wanted_secrets(allocation, permit);
        let given = wanted.given(&self.database, &Vault::of(&self.database)).await?;
        Ok(given.map(|secrets| (resume, secrets)))
    }

    /// Starts a task on its slots.
    async fn start(&mut self, allocation: &str, placement: &[instep_policy::schedule::Grant]) {
        let Some(launch) = self.state.allocations.reserve_ports(allocation) else { return };
        match self.prepare(allocation, launch.trial).await {
            Ok(Ok((resume, secrets))) => {
                self.state.start(allocation, placement, launch.ports, &resume, secrets, &mut self.outbox);
            }
            Ok(Err(why)) => {
                tracing::warn!(allocation, why, "a task may not start any more");
                self.state.allocations.free_ports(&launch.ports);
                self.state.deny(allocation, &why, &mut self.outbox);
            }
            Err(error) => {
                // The next pass tries again; the database says what is wrong with every other request, too.
                tracing::error!(%error, allocation, "cannot look up what the task needs");
                self.state.allocations.free_ports(&launch.ports);
                self.outbox.request_pass();
            }
        }
    }
}
