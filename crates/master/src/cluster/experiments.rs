//! Experiments that live: what happens to them, and what their state machines want done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instep_api::config::{ExperimentConfig, Sources};
use instep_api::identifiers::{ExperimentId, TrialId, UserId, WorkspaceId};
use instep_api::link::RunAs;
use instep_api::states::{AllocationState, LogLevel, State};
use instep_api::wire::Timestamp;
use instep_database::{LiveExperiment, NewManagedTrial, RevisedTrial, Snapshot};
use instep_policy::lifecycle::single::SingleEvent;
use instep_policy::lifecycle::{Effect, Event, Experiment, Run, Terms};
use instep_policy::search::Search;
use serde_json::Value;

use super::actor::{Act, Actor};
use super::allocation::{Allocation, Happening, Purpose, Signal};
use super::journal::Journal;
use super::policies::Patterns;
use super::{Refusal, Reply, TrialNews};
use crate::clock::now;

/// The name of the pool of those that name none.
pub(crate) const DEFAULT_POOL: &str = "default";
/// Before SIGKILL, for what is ended on somebody's word.
const KILL_GRACE_SECONDS: u32 = 0;

/// The state machine of an experiment.
pub(super) type Machine = Experiment<Search>;

/// An experiment that has not ended.
pub(crate) struct Live {
    pub machine: Machine,
    pub(super) journal: Journal,
    pub config: ExperimentConfig,
    /// The same as JSON, as tasks get it.
    pub full: Value,
    pub owner: Owner,
    pub job: String,
    pub workspace: WorkspaceId,
    pub submitted: Timestamp,
    /// Its place among jobs of the same priority.
    pub position: i64,
    pub trials: BTreeMap<String, Facts>,
    /// The checkpoint that its trials begin with.
    pub warm_start: Option<String>,
    /// Trials, and the log policy that matched.
    pub matched: BTreeMap<String, String>,
    pub patterns: Patterns,
}

/// What does not change about a trial.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub seed: u32,
    pub hparams: Value,
}

impl Live {
    /// From the database; with a new state machine if there is none yet.
    pub(super) fn of(found: &LiveExperiment) -> Result<Live, String> {
        let experiment = &found.experiment;
        let sources = Sources { managed: true, name: experiment.name.clone(), ..Sources::default() };
        let config = ExperimentConfig::from_value(experiment.config.clone(), &sources).map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            all.join("; ")
        })?;
        let (machine, journal) = match Journal::read(&found.standing)? {
            Some(read) => read,
            None => (machine(experiment.id, &config, found.state == State::Paused)?, Journal::new()),
        };
        let facts = |trial: &instep_database::LiveTrial| {
            (trial.request.clone(), Facts { seed: trial.seed, hparams: trial.hparams.clone() })
        };
        Ok(Live {
            machine,
            journal,
            patterns: Patterns::of(&config)?,
            full: experiment.config.clone(),
            config,
            owner: Owner::of(found),
            job: experiment.job_id.clone(),
            workspace: experiment.workspace_id,
            submitted: experiment.start_time,
            position: experiment.start_time.0,
            trials: found.trials.iter().map(facts).collect(),
            warm_start: found.warm_start.clone(),
            matched: BTreeMap::new(),
        })
    }

    pub(super) fn progress(&self) -> f64 {
        match self.machine.state() {
            State::Completed => 1.0,
            _ => self.machine.search().progress(),
        }
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.journal.take(&self.machine, self.machine.state().is_terminal())
    }

    /// Whose slots it takes.
    pub(crate) fn pool(&self) -> &str {
        match self.config.resources.resource_pool.as_str() {
            "" => DEFAULT_POOL,
            pool => pool,
        }
    }
}

fn machine(id: ExperimentId, config: &ExperimentConfig, paused: bool) -> Result<Machine, String> {
    let id = i32::try_from(id.0).map_err(|_| "there are too many experiments".to_owned())?;
    Ok(Experiment::new(id, terms(config), search(config)?, paused))
}

fn terms(config: &ExperimentConfig) -> Terms {
    Terms {
        max_restarts: config.max_restarts,
        preemption_timeout: Duration::from_secs(config.preemption_timeout.into()),
        single: config.searcher.name() == "single",
    }
}

fn search(config: &ExperimentConfig) -> Result<Search, String> {
    let seed = config.reproducibility.experiment_seed;
    Search::new(&config.searcher, &config.hyperparameters, seed).map_err(|error| error.to_string())
}

impl Actor {
    /// Sets a new experiment in motion.
    pub(super) fn begin(&mut self, found: LiveExperiment, reply: Reply<Vec<String>>) {
        let id = found.experiment.id;
        match Live::of(&found) {
            Ok(live) => {
                let warnings = live.config.warnings.clone();
                self.experiments.insert(id, live);
                self.event(id, Event::Started);
                self.answer(reply, Ok(warnings));
            }
            Err(why) => self.answer(reply, Err(Refusal::Invalid(why))),
        }
    }

    /// Goes on with an experiment that has ended.
    pub(super) fn carry_on(&mut self, found: &LiveExperiment, reply: Reply<()>) {
        let id = found.experiment.id;
        if self.experiments.contains_key(&id) {
            let what = format!("experiment {id} has not ended: only one that has can be continued");
            return self.answer(reply, Err(Refusal::Precondition(what)));
        }
        let prepared = Live::of(found).and_then(|live| Ok((search(&live.config)?, live)));
        let (search, mut live) = match prepared {
            Ok(prepared) => prepared,
            Err(why) => return self.answer(reply, Err(Refusal::Invalid(why))),
        };
        match live.machine.carry_on(terms(&live.config), search, now()) {
            Ok(effects) => {
                live.journal = Journal::new();
                for trial in &found.trials {
                    self.trials.insert(trial.id, (id, trial.request.clone()));
                }
                self.experiments.insert(id, live);
                self.changed.experiments.insert(id);
                for effect in effects {
                    self.effect(id, effect);
                }
                self.answer(reply, Ok(()));
            }
            Err(why) => self.answer(reply, Err(Refusal::Precondition(why))),
        }
    }

    /// Looks the checkpoints of an experiment through once more.
    pub(super) fn collect_again(&mut self, id: ExperimentId, reply: Reply<()>) {
        if !self.experiments.contains_key(&id) {
            self.decision.collect.push(id);
            self.later(Act::Collect(id));
        }
        // One that runs is looked through at its end.
        self.answer(reply, Ok(()));
    }

    /// Somebody wants something.
    pub(super) fn control(&mut self, id: ExperimentId, event: Event, reply: Reply<bool>) {
        let Some(live) = self.experiments.get(&id) else { return self.answer(reply, Ok(false)) };
        if let Some(why) = live.machine.refusal(&event) {
            return self.answer(reply, Err(Refusal::Precondition(why)));
        }
        self.event(id, event);
        self.answer(reply, Ok(true));
    }

    /// A trial reports something.
    pub(super) fn tell(&mut self, trial: TrialId, news: TrialNews, reply: Reply<bool>) {
        let Some((id, request)) = self.trials.get(&trial).cloned() else { return self.answer(reply, Ok(false)) };
        let event = match news {
            TrialNews::Validated(metrics, step) => {
                Event::Validated { request, metrics, steps: u64::try_from(step).unwrap_or(0) }
            }
            TrialNews::Progressed(progress) => Event::Progressed { request, progress },
            TrialNews::InvalidHyperparameters => Event::InvalidHyperparameters { request },
            TrialNews::Kill => Event::KillTrial { request },
        };
        self.event(id, event);
        self.answer(reply, Ok(true));
    }

    /// Feeds an event to an experiment, and does what follows.
    pub(super) fn event(&mut self, id: ExperimentId, event: Event) {
        let Some(live) = self.experiments.get_mut(&id) else { return };
        let at = now();
        live.journal.note(&event, at);
        let effects = live.machine.on(event, at);
        self.changed.experiments.insert(id);
        for effect in effects {
            self.effect(id, effect);
        }
    }

    /// Tells whoever an allocation is for what happened to it.
    pub(super) fn happened(&mut self, name: &str, what: Happening) {
        let Some(allocation) = self.allocations.get(name) else { return };
        match allocation.purpose.clone() {
            Purpose::Trial { experiment, run, .. } => self.event(experiment, happened_to(run, what)),
            Purpose::Single => {
                let task = allocation.task.clone();
                let event = match what {
                    Happening::Assigned => SingleEvent::Assigned,
                    Happening::Running => SingleEvent::Running,
                    Happening::Ready => SingleEvent::Ready,
                    // It cannot go on later, so there is nothing that it could stop for.
                    Happening::Acknowledged => return,
                    Happening::Displaced { why } | Happening::Evicted { why } => SingleEvent::Kill { why },
                    Happening::Ended { end } => SingleEvent::Ended { end },
                };
                self.single_event(&task, event);
            }
        }
    }

    /// Takes an allocation out of the queue.
    pub(super) fn withdraw(&mut self, name: &str, why: String) {
        if let Some(allocation) = self.allocations.get_mut(name) {
            allocation.reason = why;
            allocation.ended_at = Some(now());
            allocation.state = AllocationState::Terminated;
            self.changed.allocations.insert(name.to_owned());
        }
    }

    /// A trial is in the database.
    pub(super) fn trial_made(&mut self, id: ExperimentId, request: &str, trial: TrialId) {
        self.trials.insert(trial, (id, request.to_owned()));
        // More than two thousand million trials are not made.
        let number = i32::try_from(trial.0).unwrap_or(i32::MAX);
        self.event(id, Event::TrialMade { request: request.to_owned(), trial: number });
    }

    pub(super) fn effect(&mut self, id: ExperimentId, effect: Effect) {
        match effect {
            Effect::MakeTrial { request, seed, hyperparameters, state, .. } => {
                let hparams = Value::Object(hyperparameters);
                let warm = self.warm_start(id);
                if let Some(live) = self.experiments.get_mut(&id) {
                    live.trials.insert(request.clone(), Facts { seed, hparams: hparams.clone() });
                }
                let new =
                    NewManagedTrial { experiment: id, request, state, hparams, seed, warm_start_checkpoint: warm };
                self.decision.new_trials.push(new);
            }
            Effect::ReviseTrial { request, seed, hyperparameters, task } => {
                let hparams = Value::Object(hyperparameters);
                if let Some(live) = self.experiments.get_mut(&id) {
                    live.trials.insert(request.clone(), Facts { seed, hparams: hparams.clone() });
                }
                self.decision.revised.push(RevisedTrial { experiment: id, request, task, hparams, seed });
            }
            Effect::Ask { run, allocation, excluded, .. } => {
                self.changed.trials.insert((id, run.request.clone()));
                self.ask_for_slots(id, run, allocation, excluded);
            }
            Effect::Withdraw { run, why } => {
                self.changed.trials.insert((id, run.request.clone()));
                if let Some(name) = self.allocation_of(id, &run).map(|allocation| allocation.id.clone()) {
                    self.withdraw(&name, why);
                }
            }
            Effect::Preempt { run, why, .. } => {
                if let Some(allocation) = self.allocation_of(id, &run) {
                    allocation.reason = format!("it was asked to stop: {why}");
                    allocation.preempting = Some(why);
                    let name = allocation.id.clone();
                    self.changed.allocations.insert(name.clone());
                    self.later(Act::Signal(name, Signal::Preempt));
                }
            }
            Effect::Kill { run, why } => {
                if let Some(name) = self.allocation_of(id, &run).map(|allocation| allocation.id.clone()) {
                    self.stop_shares(&name, KILL_GRACE_SECONDS, &why);
                }
            }
            Effect::ExperimentState { state, why } => {
                tracing::info!(experiment = id.0, state = state.as_str(), why);
            }
            Effect::TrialState { request, state, why } => {
                tracing::info!(experiment = id.0, request, state = state.as_str(), why);
                if state.is_terminal()
                    && let Some(task) = self.task_of(id, &request)
                {
                    self.decision.ended_tasks.push(task);
                }
                self.changed.trials.insert((id, request));
            }
            Effect::PolicyMatched { request, policy } => {
                if let Some(live) = self.experiments.get_mut(&id) {
                    live.matched.insert(request.clone(), policy);
                }
                self.changed.trials.insert((id, request));
            }
            Effect::CollectCheckpoints => {
                self.decision.collect.push(id);
                self.later(Act::Collect(id));
            }
            Effect::Note { request, level, text } => {
                let trial = self.experiments.get(&id).and_then(|live| live.machine.trials().get(&request));
                let Some(trial) = trial else { return };
                let (task, allocation) = (trial.task.clone(), trial.allocation_name());
                if matches!(level, LogLevel::Warning | LogLevel::Error | LogLevel::Critical) {
                    tracing::warn!(experiment = id.0, trial = trial.id, "{text}");
                }
                self.note(&task, allocation.as_deref(), level, &text);
            }
        }
    }

    fn task_of(&self, id: ExperimentId, request: &str) -> Option<String> {
        Some(self.experiments.get(&id)?.machine.trials().get(request)?.task.clone())
    }

    fn warm_start(&self, id: ExperimentId) -> Option<String> {
        self.experiments.get(&id)?.warm_start.clone()
    }

    /// The present allocation of a run.
    pub(super) fn allocation_of(&mut self, id: ExperimentId, run: &Run) -> Option<&mut Allocation> {
        let task = self.task_of(id, &run.request)?;
        self.allocations.get_mut(&format!("{task}.{}", run.number))
    }

    /// Queues a run, unless it is queued already.
    fn ask_for_slots(&mut self, id: ExperimentId, run: Run, name: String, excluded: BTreeSet<String>) {
        let Some(live) = self.experiments.get(&id) else { return };
        let Some(trial) = live.machine.trials().get(&run.request) else { return };
        let Some(number) = trial.id else { return };
        if self.allocations.contains_key(&name) {
            return;
        }
        let purpose = Purpose::Trial { experiment: id, trial: TrialId(number.into()), run };
        let mut allocation = Allocation::queued(name.clone(), trial.task.clone(), purpose);
        allocation.pool = live.pool().to_owned();
        allocation.slots = live.config.resources.slots_per_trial;
        allocation.excluded = excluded;
        allocation.queued_at = now();
        self.allocations.insert(name.clone(), allocation);
        self.changed.allocations.insert(name);
        self.pace.wanted();
    }
}

fn happened_to(run: Run, what: Happening) -> Event {
    match what {
        Happening::Assigned => Event::Assigned { run },
        Happening::Running => Event::Running { run },
        Happening::Ready => Event::Ready { run },
        Happening::Acknowledged => Event::Acknowledged { run },
        Happening::Displaced { why } => Event::Displaced { run, why },
        Happening::Evicted { why } => Event::Evicted { run, why },
        Happening::Ended { end } => Event::Ended { run, end },
    }
}

/// Who an experiment or a task belongs to, and as whom it runs.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub id: UserId,
    pub name: String,
    pub run_as: Option<RunAs>,
}

impl Owner {
    fn of(found: &LiveExperiment) -> Owner {
        let experiment = &found.experiment;
        Owner::new(experiment.user_id, experiment.username.clone(), found.agent_user_group.as_ref())
    }

    /// With what the account says about the machines' users.
    pub(super) fn new(id: UserId, name: String, group: Option<&Value>) -> Owner {
        let number = |name: &str| {
            let value = group?.get(name)?;
            let number = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
            u32::try_from(number).ok()
        };
        let run_as = number("agentUid").zip(number("agentGid")).map(|(uid, gid)| RunAs { uid, gid });
        Owner { id, name, run_as }
    }
}
