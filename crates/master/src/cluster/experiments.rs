//! Experiments that live: what happens to them, and what their state machines want done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use instep_api::config::{ExperimentConfig, Sources};
use instep_api::identifiers::{ExperimentId, TrialId, UserId, WorkspaceId};
use instep_api::link::{RunAs, RunGroup};
use instep_api::states::{LogLevel, State};
use instep_api::wire::Timestamp;
use instep_database::{ExperimentDecision, LiveExperiment, NewManagedTrial, RevisedTrial, Snapshot, TrialDecision};
use instep_policy::lifecycle::{Effect, Event, Experiment, Run, Terms};
use instep_policy::search::Search;
use serde_json::Value;

use super::allocation::{Allocation, Purpose};
use super::allocations::Allocations;
use super::journal::{Journal, Machine};
use super::log_policies::Patterns;
use super::outbox::{Action, Outbox};
use super::{Refusal, TrialReport, pool_of};
use crate::clock::now;
use crate::file_owners::{unix_group, unix_user};

/// Before SIGKILL, for what is ended on somebody's word.
const KILL_GRACE_SECONDS: u32 = 0;

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
    pub trials: BTreeMap<String, TrialParameters>,
    /// The checkpoint that its trials begin with.
    pub warm_start: Option<String>,
    /// The log policy that matched, by the request of the trial.
    pub matched: BTreeMap<String, String>,
    pub patterns: Arc<Patterns>,
}

/// What a trial was made with.
#[derive(Debug, Clone)]
pub(crate) struct TrialParameters {
    pub seed: u32,
    pub hparams: Value,
}

impl Live {
    /// From the database; with a new state machine if there is none yet.
    pub(super) fn of(found: &LiveExperiment) -> Result<Live, String> {
        let experiment = &found.experiment;
        let sources = Sources { managed: true, name: experiment.name.clone(), ..Sources::default() };
        let mut config =
            ExperimentConfig::from_value(experiment.config.clone().into_value(), &sources).map_err(|errors| {
                let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
                all.join("; ")
            })?;
        // It may have been given another since.
        config.name.clone_from(&experiment.name);
        let (machine, journal) = match Journal::read(&found.stored)? {
            Some(read) => read,
            None => (machine(experiment.id, &config, found.state == State::Paused)?, Journal::new()),
        };
        let parameters = |trial: &instep_database::LiveTrial| {
            (trial.request.clone(), TrialParameters { seed: trial.seed, hparams: trial.hparams.clone() })
        };
        Ok(Live {
            machine,
            journal,
            patterns: Arc::new(Patterns::of(&config)?),
            full: experiment.config.clone().into_value(),
            config,
            owner: Owner::of(found),
            job: experiment.job_id.clone(),
            workspace: experiment.workspace_id,
            submitted: experiment.start_time,
            position: experiment.start_time.0,
            trials: found.trials.iter().map(parameters).collect(),
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

    /// The pool whose slots it takes.
    pub(crate) fn pool(&self) -> &str {
        pool_of(&self.config.resources)
    }

    /// The name of a run's allocation.
    fn allocation_name(&self, run: &Run) -> Option<String> {
        let trial = self.machine.trials().get(&run.request)?;
        Some(format!("{}.{}", trial.task, run.number))
    }

    /// The allocation of a run, which waits for slots.
    fn allocation_for(
        &self,
        id: ExperimentId,
        run: Run,
        name: String,
        excluded: BTreeSet<String>,
    ) -> Option<Allocation> {
        let trial = self.machine.trials().get(&run.request)?;
        let purpose = Purpose::Trial { experiment: id, trial: TrialId(trial.id?.into()), run };
        let mut allocation = Allocation::queued(name, trial.task.clone(), purpose);
        allocation.pool = self.pool().to_owned();
        allocation.slots = self.config.resources.slots_per_trial;
        allocation.excluded = excluded;
        allocation.queued_at = now();
        Some(allocation)
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

/// The experiments that have not ended, and which trial belongs to which.
#[derive(Default)]
pub(crate) struct Experiments {
    live: BTreeMap<ExperimentId, Live>,
    trials: HashMap<TrialId, (ExperimentId, String)>,
}

impl Experiments {
    pub(super) fn get(&self, id: ExperimentId) -> Option<&Live> {
        self.live.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ExperimentId) -> Option<&mut Live> {
        self.live.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ExperimentId, &Live)> {
        self.live.iter().map(|(id, live)| (*id, live))
    }

    /// The experiment of a trial, and the search's request that made it.
    pub(super) fn of_trial(&self, trial: TrialId) -> Option<&(ExperimentId, String)> {
        self.trials.get(&trial)
    }

    /// Takes in one that the database knows, with its trials.
    pub(super) fn insert(&mut self, found: &LiveExperiment, live: Live) {
        let id = found.experiment.id;
        for trial in &found.trials {
            self.trials.insert(trial.id, (id, trial.request.clone()));
        }
        self.live.insert(id, live);
    }

    /// Starts a new experiment; gives what its author should know.
    pub(super) fn start(
        &mut self,
        found: &LiveExperiment,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) -> Result<Vec<String>, Refusal> {
        let live = Live::of(found).map_err(Refusal::Invalid)?;
        let warnings = live.config.warnings.clone();
        self.live.insert(found.experiment.id, live);
        self.on(found.experiment.id, Event::Started, allocations, outbox);
        Ok(warnings)
    }

    /// Continues an experiment that has ended.
    pub(super) fn continue_ended(
        &mut self,
        found: &LiveExperiment,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        let id = found.experiment.id;
        if self.live.contains_key(&id) {
            let what = format!("experiment {id} has not ended: only one that has can be continued");
            return Err(Refusal::Precondition(what));
        }
        let mut live = Live::of(found).map_err(Refusal::Invalid)?;
        let search = search(&live.config).map_err(Refusal::Invalid)?;
        let effects = live.machine.carry_on(terms(&live.config), search, now()).map_err(Refusal::Precondition)?;
        live.journal = Journal::new();
        self.insert(found, live);
        outbox.experiment_changed(id);
        for effect in effects {
            self.apply(id, effect, allocations, outbox);
        }
        Ok(())
    }

    /// Looks the checkpoints of an experiment through once more. One that runs is looked through at its end.
    pub(super) fn collect_again(&self, id: ExperimentId, outbox: &mut Outbox) {
        if !self.live.contains_key(&id) {
            outbox.decision.collect.push(id);
            outbox.after_commit(Action::Collect(id));
        }
    }

    /// Somebody wants something of an experiment. `false` if it does not live.
    pub(super) fn control(
        &mut self,
        id: ExperimentId,
        event: Event,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) -> Result<bool, Refusal> {
        let Some(live) = self.live.get(&id) else { return Ok(false) };
        if let Some(why) = live.machine.refusal(&event) {
            return Err(Refusal::Precondition(why));
        }
        self.on(id, event, allocations, outbox);
        Ok(true)
    }

    /// A trial reports something. `false` if the master does not run it now.
    pub(super) fn trial_reported(
        &mut self,
        trial: TrialId,
        report: TrialReport,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) -> bool {
        let Some((id, request)) = self.trials.get(&trial).cloned() else { return false };
        let event = match report {
            TrialReport::Validated(metrics, step) => {
                Event::Validated { request, metrics, steps: u64::try_from(step).unwrap_or(0) }
            }
            TrialReport::Progressed(progress) => Event::Progressed { request, progress },
            TrialReport::InvalidHyperparameters => Event::InvalidHyperparameters { request },
            TrialReport::Kill => Event::KillTrial { request },
        };
        self.on(id, event, allocations, outbox);
        true
    }

    /// A trial is in the database.
    pub(super) fn trial_created(
        &mut self,
        id: ExperimentId,
        request: &str,
        trial: TrialId,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) {
        self.trials.insert(trial, (id, request.to_owned()));
        // More than two thousand million trials are not made.
        let number = i32::try_from(trial.0).unwrap_or(i32::MAX);
        self.on(id, Event::TrialMade { request: request.to_owned(), trial: number }, allocations, outbox);
    }

    /// Feeds an event to an experiment, and does what follows.
    pub(super) fn on(&mut self, id: ExperimentId, event: Event, allocations: &mut Allocations, outbox: &mut Outbox) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let at = now();
        live.journal.note(&event, at);
        let effects = live.machine.on(event, at);
        outbox.experiment_changed(id);
        for effect in effects {
            self.apply(id, effect, allocations, outbox);
        }
    }

    /// Does one thing that the state machine of an experiment wants.
    pub(super) fn apply(
        &mut self,
        id: ExperimentId,
        effect: Effect,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) {
        let Some(live) = self.live.get_mut(&id) else { return };
        match effect {
            Effect::MakeTrial { request, seed, hyperparameters, state, .. } => {
                let hparams = Value::Object(hyperparameters);
                live.trials.insert(request.clone(), TrialParameters { seed, hparams: hparams.clone() });
                let warm_start_checkpoint = live.warm_start.clone();
                let new = NewManagedTrial { experiment: id, request, state, hparams, seed, warm_start_checkpoint };
                outbox.decision.new_trials.push(new);
            }
            Effect::ReviseTrial { request, seed, hyperparameters, task } => {
                let hparams = Value::Object(hyperparameters);
                live.trials.insert(request.clone(), TrialParameters { seed, hparams: hparams.clone() });
                outbox.decision.revised.push(RevisedTrial { experiment: id, request, task, hparams, seed });
            }
            Effect::Ask { run, allocation, excluded, .. } => {
                outbox.trial_changed(id, &run.request);
                if allocations.get(&allocation).is_none()
                    && let Some(queued) = live.allocation_for(id, run, allocation, excluded)
                {
                    allocations.queue(queued, outbox);
                }
            }
            Effect::Withdraw { run, why } => {
                outbox.trial_changed(id, &run.request);
                if let Some(name) = live.allocation_name(&run) {
                    allocations.withdraw(&name, why, outbox);
                }
            }
            Effect::Preempt { run, why, .. } => {
                if let Some(name) = live.allocation_name(&run) {
                    allocations.preempt(&name, why, outbox);
                }
            }
            Effect::Kill { run, why } => {
                if let Some(name) = live.allocation_name(&run) {
                    allocations.stop(&name, KILL_GRACE_SECONDS, &why, outbox);
                }
            }
            Effect::ExperimentState { state, why } => {
                tracing::info!(experiment = id.0, state = state.as_str(), why);
            }
            Effect::TrialState { request, state, why } => {
                tracing::info!(experiment = id.0, request, state = state.as_str(), why);
                if state.is_terminal()
                    && let Some(trial) = live.machine.trials().get(&request)
                {
                    outbox.decision.ended_tasks.push(trial.task.clone());
                }
                outbox.trial_changed(id, &request);
            }
            Effect::PolicyMatched { request, policy } => {
                outbox.trial_changed(id, &request);
                live.matched.insert(request, policy);
            }
            Effect::CollectCheckpoints => {
                outbox.decision.collect.push(id);
                outbox.after_commit(Action::Collect(id));
            }
            Effect::Note { request, level, text } => {
                let Some(trial) = live.machine.trials().get(&request) else { return };
                if matches!(level, LogLevel::Warning | LogLevel::Error | LogLevel::Critical) {
                    tracing::warn!(experiment = id.0, trial = trial.id, "{text}");
                }
                outbox.log(&trial.task, trial.allocation_name().as_deref(), level, &text);
            }
        }
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = Timestamp> {
        self.live.values().filter_map(|live| live.machine.deadline())
    }

    /// Those whose deadline has come.
    pub(super) fn due(&self, moment: Timestamp) -> Vec<ExperimentId> {
        let is_due = |live: &Live| live.machine.deadline().is_some_and(|deadline| deadline <= moment);
        self.iter().filter(|(_, live)| is_due(live)).map(|(id, _)| id).collect()
    }

    /// An experiment as it is stored now.
    pub(super) fn row(&mut self, id: ExperimentId) -> Option<ExperimentDecision> {
        let live = self.live.get_mut(&id)?;
        let state = live.machine.state();
        // Trials that are cut short count as done: an experiment that ends early stays where it was.
        let cut_short = state != State::Completed && (state.is_stopping() || state.is_terminal());
        let progress = (!cut_short).then(|| live.progress());
        Some(ExperimentDecision { id, state, progress, snapshot: live.snapshot() })
    }

    /// A trial as it is stored now.
    pub(super) fn trial_row(&self, id: ExperimentId, request: &str) -> Option<TrialDecision> {
        let live = self.live.get(&id)?;
        let trial = live.machine.trials().get(request)?;
        Some(TrialDecision {
            id: TrialId(trial.id?.into()),
            state: trial.state,
            restarts: trial.restarts.min(live.machine.terms().max_restarts).into(),
            run: trial.runs.into(),
            log_policy_matched: live.matched.get(request).cloned(),
        })
    }

    /// The trials of an experiment that are in the database, but whose ids its state machine has not heard.
    pub(super) fn unannounced_trials(&self, id: ExperimentId) -> Vec<(String, TrialId)> {
        let Some(live) = self.live.get(&id) else { return Vec::new() };
        self.trials
            .iter()
            .filter(|(_, (experiment, _))| *experiment == id)
            .filter(|(_, (_, request))| live.machine.trials().get(request).is_some_and(|trial| trial.id.is_none()))
            .map(|(trial, (_, request))| (request.clone(), *trial))
            .collect()
    }

    /// Removes those that have ended.
    pub(super) fn reap(&mut self) {
        let over: Vec<ExperimentId> =
            self.iter().filter(|(_, live)| live.machine.state().is_terminal()).map(|(id, _)| id).collect();
        for id in over {
            self.live.remove(&id);
            self.trials.retain(|_, (experiment, _)| *experiment != id);
        }
    }
}

/// The user an experiment or a command belongs to, and as whom it runs.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub id: UserId,
    pub name: String,
    pub run_as: Option<RunAs>,
    /// As which group it runs if no user is named.
    pub run_group: Option<RunGroup>,
}

impl Owner {
    fn of(found: &LiveExperiment) -> Owner {
        let experiment = &found.experiment;
        Owner::new(experiment.user_id, experiment.username.clone(), found.agent_user_group.as_ref())
    }

    /// With what the account says about the machines' users.
    pub(super) fn new(id: UserId, name: String, group: Option<&Value>) -> Owner {
        Owner { id, name, run_as: unix_user(group), run_group: unix_group(group) }
    }
}
