//! Allocations that an engine runs: their jobs are wanted, submitted and cancelled; their agents are let in, and when all are
//! there, the allocation starts on them as on any others.
//!
//! [`Jobs`] decides; here are its questions answered and its actions carried out. A token of an allocation's agents is a
//! session of that allocation: stored before the job is submitted, and gone with the allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use instep_api::config::{Environment, SlurmSection};
use instep_api::link::{Bound, Hello, Order};
use instep_api::states::LogLevel;
use instep_api::wire::Timestamp;
use instep_database::TaskSession;
use instep_policy::engine::{Action as JobAction, JobId, Jobs, Wanted};
use instep_policy::lifecycle::End;
use instep_policy::schedule::{Grant, Start};
use tokio::sync::mpsc;

use super::agents::Room;
use super::allocation::{Allocation, AllocationEvent, Purpose};
use super::experiments::Owner;
use super::outbox::{Action, Outbox};
use super::state::ClusterState;
use super::{DEFAULT_POOL, Message, Refusal};
use crate::clock::now;
use crate::engines::kubernetes::{Kubernetes, job_name};
use crate::engines::line::{self, Answer, Call, Pace};
use crate::engines::options::{EngineKind, EngineName, EngineOptions, EnginePool, EngineSettings};
use crate::engines::slurm::Slurm;
use crate::engines::{Container, Gang};
use crate::passwords::token_hash;
use crate::random;

/// Calls that may wait for an engine. One more is as good as one that failed.
const CALLS_AHEAD: usize = 4096;
/// Between two looks at what is known of Kubernetes, which asks for one when something changes.
const KUBERNETES_INTERVAL: Duration = Duration::from_secs(10);

/// The engines of a master and their jobs.
pub(crate) struct Engines {
    /// Of the database, which jobs are named after.
    cluster: String,
    pools: BTreeMap<String, EnginePool>,
    running: BTreeMap<EngineName, Engine>,
}

/// One of them.
struct Engine {
    jobs: Jobs,
    calls: mpsc::Sender<Call>,
    is_list_wanted: Arc<AtomicBool>,
    /// Of allocations whose submission has not succeeded: another attempt needs no other session.
    tokens: BTreeMap<String, String>,
}

/// What the configuration of a task says that an engine runs.
struct Terms<'a> {
    slurm: &'a SlurmSection,
    environment: &'a Environment,
    owner: &'a Owner,
    /// For people.
    title: String,
}

/// How many nodes an allocation needs, and how many slots of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    nodes: u32,
    slots_per_node: u32,
}

/// How many nodes with so many slots a task needs; `None` if they cannot be shared out evenly.
fn shape(slots: u32, per_node: u32) -> Option<Shape> {
    match slots {
        _ if slots <= per_node => Some(Shape { nodes: 1, slots_per_node: slots }),
        _ if slots.is_multiple_of(per_node) => Some(Shape { nodes: slots / per_node, slots_per_node: per_node }),
        _ => None,
    }
}

/// The node of an agent, which is called after its node and its job, or its pod.
fn node_of(agent: &str) -> Option<String> {
    agent.rsplit_once('-').map(|(node, _)| node.to_owned())
}

/// Whether an agent is called after its node and its pod's uid, as those in pods are.
fn has_name_of_pod(agent: &str) -> bool {
    let is_digit = |letter: u8| matches!(letter, b'0'..=b'9' | b'a'..=b'f');
    agent.rsplit_once('-').is_some_and(|(_, uid)| uid.len() == 32 && uid.bytes().all(is_digit))
}

impl Engines {
    /// Those that the settings say, which are told of through `messages`.
    pub(super) fn start(options: &EngineOptions, cluster: &str, messages: &mpsc::Sender<Message>) -> Engines {
        let pools: BTreeMap<String, EnginePool> =
            options.pools.iter().map(|pool| (pool.pool_name.clone(), pool.clone())).collect();
        let used: BTreeSet<EngineName> = pools.values().map(EnginePool::engine_name).collect();
        let started = used.into_iter().map(|name| (name.clone(), Engine::start(name, options, cluster, messages)));
        let running = started.collect();
        Engines { cluster: cluster.to_owned(), pools, running }
    }

    /// Whether an engine runs the work of a pool.
    pub(super) fn has(&self, pool: &str) -> bool {
        self.pools.contains_key(pool)
    }

    /// The pools whose work engines run.
    pub(super) fn pools(&self) -> impl Iterator<Item = &str> {
        self.pools.keys().map(String::as_str)
    }

    /// How a pool is described, the slots of its nodes, and whose it is.
    pub(super) fn pool(&self, name: &str) -> Option<(&str, u32, EngineKind)> {
        let pool = self.pools.get(name)?;
        Some((&pool.description, pool.engine.slots_per_node(), pool.engine.kind()))
    }

    /// Why a pool does not take what a configuration says of containers.
    pub(super) fn container_objection(&self, pool: &str, container: &Container) -> Option<String> {
        match &self.pools.get(pool)?.engine {
            EngineSettings::Slurm(_) => None,
            EngineSettings::Kubernetes(settings) => container.objection(settings),
        }
    }

    /// The job of an allocation's agent.
    fn job_of(&self, kind: EngineKind, allocation: &str, agent: &str) -> Option<JobId> {
        match kind {
            EngineKind::Slurm => agent.rsplit_once('-').map(|(_, job)| JobId(job.to_owned())),
            // Names of machines that lend their slots are not for pods.
            EngineKind::Kubernetes if !has_name_of_pod(agent) => None,
            EngineKind::Kubernetes => Some(JobId(job_name(&self.cluster, allocation))),
        }
    }

    /// The engine that runs the work of a pool.
    fn of_pool(&mut self, pool: &str) -> Option<&mut Engine> {
        self.running.get_mut(&self.pools.get(pool)?.engine_name())
    }

    /// When something must be done even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.running.values().filter_map(|engine| engine.jobs.deadline()).min()
    }

    /// Passes a call on.
    pub(super) fn ask(&mut self, name: &EngineName, call: Call, outbox: &mut Outbox) {
        let Some(engine) = self.running.get_mut(name) else { return };
        if let Err(error) = engine.calls.try_send(call)
            && let Call::Submit(gang) = error.into_inner()
        {
            let why = "too many calls wait for it".to_owned();
            // It was not submitted: there is nothing to cancel.
            engine.jobs.submitted(&gang.allocation, Err(why), now());
            outbox.request_pass();
        }
    }
}

impl Engine {
    fn start(name: EngineName, options: &EngineOptions, cluster: &str, messages: &mpsc::Sender<Message>) -> Engine {
        let is_list_wanted = Arc::new(AtomicBool::new(true));
        let (calls, received) = mpsc::channel(CALLS_AHEAD);
        let pace = |interval| Pace { interval, is_wanted: Arc::clone(&is_list_wanted) };
        // The cluster's task ends with the last of its handles, and this one with it.
        let (messages, teller) = (messages.downgrade(), name.clone());
        let tell = move |answer| {
            let (messages, name) = (messages.clone(), teller.clone());
            async move {
                let Some(messages) = messages.upgrade() else { return false };
                let message: Message = Box::new(move |state, outbox| state.engine_answered(&name, answer, outbox));
                messages.send(message).await.is_ok()
            }
        };
        match &name {
            EngineName::Slurm => {
                let slurm = Slurm::new(cluster, options);
                tokio::spawn(line::run(slurm, received, pace(options.slurm_interval()), tell));
            }
            EngineName::Kubernetes { pool } => {
                let calls = calls.downgrade();
                // One that does not fit is not needed: others wait that end in a list, too.
                let look = move || drop(calls.upgrade().map(|calls| calls.try_send(Call::Look)));
                if let Some(kubernetes) = Kubernetes::start(cluster, pool, options, look) {
                    tokio::spawn(line::run(kubernetes, received, pace(KUBERNETES_INTERVAL), tell));
                }
            }
        }
        Engine { jobs: Jobs::new(name.kind().name()), calls, is_list_wanted, tokens: BTreeMap::new() }
    }
}

impl ClusterState {
    /// What the configuration of an allocation's task says about engines, whose it is, and how people call it.
    fn terms_in_engine(&self, allocation: &Allocation) -> Option<Terms<'_>> {
        match &allocation.purpose {
            Purpose::Trial { experiment, trial, .. } => {
                let live = self.experiments.get(*experiment)?;
                let (slurm, environment) = (&live.config.slurm, &live.config.environment);
                Some(Terms { slurm, environment, owner: &live.owner, title: format!("instep-trial-{trial}") })
            }
            Purpose::Command { .. } => {
                let live = self.commands.get(&allocation.task)?;
                let task: String = allocation.task.chars().take(8).collect();
                let (slurm, environment) = (&live.config.slurm, &live.config.environment);
                let title = format!("instep-{}-{task}", live.kind.word().to_lowercase());
                Some(Terms { slurm, environment, owner: &live.owner, title })
            }
        }
    }

    fn shape_of(&self, allocation: &Allocation) -> Option<Shape> {
        let (_, per_node, _) = self.engines.pool(&allocation.pool)?;
        let Terms { slurm, .. } = self.terms_in_engine(allocation)?;
        shape(allocation.slots, slurm.slots_per_node.unwrap_or(per_node))
    }

    /// Tells the engines which allocations there are, and does what follows.
    pub(super) fn reconcile_engines(&mut self, outbox: &mut Outbox) {
        if self.engines.pools.is_empty() {
            return;
        }
        let mut wanted: BTreeMap<EngineName, BTreeMap<String, Wanted>> = BTreeMap::new();
        let mut impossible = Vec::new();
        for allocation in self.allocations.open() {
            let Some(pool) = self.engines.pools.get(&allocation.pool) else { continue };
            let name = pool.engine_name();
            let placed = allocation.placed.as_ref().and_then(|placed| placed.shares.first());
            let placed = placed.and_then(|share| self.engines.job_of(name.kind(), &allocation.id, &share.agent));
            match self.shape_of(allocation) {
                Some(Shape { nodes, .. }) => {
                    let wanted = wanted.entry(name).or_default();
                    wanted.insert(allocation.id.clone(), Wanted { nodes, placed });
                }
                None if placed.is_some() => {}
                // It came from another pool.
                None => impossible.push((allocation.id.clone(), allocation.slots, allocation.pool.clone())),
            }
        }
        for (name, slots, pool) in impossible {
            let why = format!("{slots} slots cannot be shared out evenly over the nodes of pool {pool}");
            self.deny(&name, &why, outbox);
        }
        let names: Vec<EngineName> = self.engines.running.keys().cloned().collect();
        for name in names {
            let wanted = wanted.remove(&name).unwrap_or_default();
            let actions = self.engines.running.get_mut(&name).map(|engine| {
                engine.tokens.retain(|allocation, _| wanted.contains_key(allocation));
                engine.jobs.reconcile(&wanted, now())
            });
            self.fulfil(&name, actions.unwrap_or_default(), outbox);
        }
    }

    /// An engine has answered.
    pub(super) fn engine_answered(&mut self, name: &EngineName, answer: Answer, outbox: &mut Outbox) {
        let (moment, engine) = (now(), name.kind().name());
        if let Answer::Submitted(allocation, answer) = &answer {
            match answer {
                Ok(job) => tracing::info!(allocation, %job, "submitted a job to {engine}"),
                Err(why) => self.submission_failed(name.kind(), allocation, why, outbox),
            }
        }
        let Some(Engine { jobs, tokens, .. }) = self.engines.running.get_mut(name) else { return };
        let actions = match answer {
            Answer::Submitted(allocation, answer) => {
                if answer.is_ok() {
                    tokens.remove(&allocation);
                }
                jobs.submitted(&allocation, answer, moment)
            }
            Answer::Listed(answer) => {
                match (&answer, jobs.silence()) {
                    // Once: it is asked every few seconds.
                    (Err(why), before) if before != Some(why) => tracing::warn!(why, "{engine} does not list its jobs"),
                    (Ok(_), Some(_)) => tracing::info!("{engine} lists its jobs again"),
                    (Ok(_) | Err(_), _) => {}
                }
                jobs.listed(answer, moment)
            }
        };
        self.fulfil(name, actions, outbox);
        self.note_reasons_of_engines();
    }

    /// Says so in the log of the task, once for each complaint.
    fn submission_failed(&mut self, kind: EngineKind, allocation: &str, why: &str, outbox: &mut Outbox) {
        let engine = kind.name();
        tracing::warn!(allocation, why, "{engine} did not take a job");
        let Some(found) = self.allocations.get(allocation) else { return };
        if !found.reason.contains(why) {
            let text = format!("{engine} did not take the job, which is submitted again: {why}");
            outbox.log(&found.task, Some(allocation), LogLevel::Warning, &text);
        }
    }

    /// Not stored: the first list of the next master says it, too.
    fn note_reasons_of_engines(&mut self) {
        for allocation in self.allocations.open_mut().filter(|allocation| allocation.placed.is_none()) {
            if let Some(reason) =
                self.engines.of_pool(&allocation.pool).and_then(|engine| engine.jobs.reason(&allocation.id))
            {
                allocation.reason = reason;
            }
        }
    }

    /// Does what follows for an engine's jobs.
    fn fulfil(&mut self, engine: &EngineName, actions: Vec<JobAction>, outbox: &mut Outbox) {
        for action in actions {
            match action {
                JobAction::Submit { allocation } => self.submit(engine, &allocation, outbox),
                JobAction::Cancel { job } => {
                    tracing::info!(%job, "cancelling a job of {}", engine.kind().name());
                    outbox.after_commit(Action::Engine(engine.clone(), Call::Cancel(job)));
                }
                JobAction::Leave { agent, why } => outbox.order(&agent, Order::Leave { why }),
                JobAction::Gone { allocation, why } => {
                    let end = End::NotStarted { why };
                    self.allocations.deny(&allocation, end.clone(), outbox);
                    self.allocation_event(&allocation, AllocationEvent::Ended { end }, outbox);
                }
                JobAction::Note { allocation, why } => {
                    // `<task>.<run>`: it may have ended.
                    let task = allocation.rsplit_once('.').map_or(allocation.as_str(), |(task, _)| task);
                    outbox.log(task, Some(&allocation), LogLevel::Warning, &why);
                }
            }
        }
        if let Some(engine) = self.engines.running.get(engine) {
            engine.is_list_wanted.store(engine.jobs.wants_list(), Ordering::Relaxed);
        }
    }

    fn submit(&mut self, engine: &EngineName, name: &str, outbox: &mut Outbox) {
        let found = self.allocations.get(name).and_then(|allocation| {
            let Terms { slurm, environment, owner, title } = self.terms_in_engine(allocation)?;
            let Shape { nodes, slots_per_node } = self.shape_of(allocation)?;
            let excluded: BTreeSet<String> = allocation.excluded.iter().filter_map(|agent| node_of(agent)).collect();
            let gang = Gang {
                allocation: name.to_owned(),
                title,
                user: owner.name.clone(),
                pool: allocation.pool.clone(),
                nodes,
                slots_per_node,
                gpu_type: slurm.gpu_type.clone(),
                arguments: slurm.sbatch_args.clone(),
                container: Container::of(environment, slots_per_node > 0),
                excluded: excluded.into_iter().collect(),
                token: String::new(),
            };
            Some((owner.id, gang))
        });
        let Some((user, mut gang)) = found else {
            let why = "what it runs is not known any more".to_owned();
            if let Some(engine) = self.engines.running.get_mut(engine) {
                engine.jobs.submitted(name, Err(why), now());
            }
            return;
        };
        let Some(Engine { tokens, .. }) = self.engines.running.get_mut(engine) else { return };
        gang.token = tokens.get(name).cloned().unwrap_or_else(|| {
            let token = random::token();
            let session = TaskSession { token_hash: token_hash(&token), user, allocation: name.to_owned() };
            outbox.decision.sessions.push(session);
            tokens.insert(name.to_owned(), token.clone());
            token
        });
        outbox.after_commit(Action::Engine(engine.clone(), Call::Submit(Box::new(gang))));
    }

    /// The allocations whose agents are all there, with what each is given of them.
    pub(super) fn ready_in_engines(&self) -> Vec<Start> {
        let placed = |name: &String| self.allocations.get(name).is_none_or(|found| found.placed.is_some());
        let ready = self
            .engines
            .running
            .values()
            .flat_map(|engine| engine.jobs.ready())
            .filter(|ready| !placed(&ready.allocation));
        ready
            .filter_map(|ready| {
                let Shape { slots_per_node, .. } = self.shape_of(self.allocations.get(&ready.allocation)?)?;
                let grant = |agent: String| {
                    let devices = &self.agents.get(&agent)?.devices;
                    let slots = devices.iter().map(|device| device.id).take(slots_per_node as usize).collect();
                    Some(Grant { agent, slots })
                };
                let placement = ready.agents.into_iter().map(grant).collect::<Option<Vec<_>>>()?;
                Some(Start { request: ready.allocation, placement, backfilled: false })
            })
            .collect()
    }

    /// Lets an agent of an engine's job in, into the pool of its allocation; or says why not.
    pub(super) fn admit_bound(&mut self, hello: &mut Hello, outbox: &mut Outbox) -> Result<(), Refusal> {
        let Some(bound) = hello.bound.clone() else { return Ok(()) };
        let refused = |why: String| {
            tracing::warn!(agent = hello.agent, job = bound.job, why, "refused an agent of an engine's job");
            Refusal::Precondition(why)
        };
        let ended = || format!("allocation {} has ended, or is not run by an engine", bound.allocation);
        let found = self.allocations.get(&bound.allocation).filter(|allocation| allocation.ended_at.is_none());
        let allocation = found.ok_or_else(|| refused(ended()))?;
        let Shape { nodes, slots_per_node } = self.shape_of(allocation).ok_or_else(|| refused(ended()))?;
        let (here, needed) = (hello.devices.len(), slots_per_node as usize);
        let kind = self.engines.pool(&allocation.pool).map(|(.., kind)| kind);
        let job = kind.and_then(|kind| self.engines.job_of(kind, &allocation.id, &hello.agent));
        let objection = if let Some(placed) = &allocation.placed {
            let has_share = placed.shares.iter().any(|share| share.agent == hello.agent);
            (!has_share).then(|| format!("allocation {} runs on other agents", bound.allocation))
        } else if bound.nodes != nodes || bound.node >= nodes {
            Some(format!("job {} has {} nodes, and {} needs {nodes}", bound.job, bound.nodes, bound.allocation))
        } else if job.is_none_or(|job| job.0 != bound.job) {
            Some(format!("an agent of job {} cannot be called {}", bound.job, hello.agent))
        } else if here < needed {
            Some(format!("agent {} found {here} slots on its node, and needs {needed}", hello.agent))
        } else {
            None
        };
        hello.pool = allocation.pool.clone();
        if let Some(why) = objection {
            outbox.log(&allocation.task, Some(&bound.allocation), LogLevel::Error, &why);
            return Err(refused(why));
        }
        let job = JobId(bound.job.clone());
        let pool = allocation.pool.clone();
        let engine = self.engines.of_pool(&pool).ok_or_else(|| refused(ended()))?;
        engine.jobs.admit(&bound.allocation, &job).map_err(refused)
    }

    /// A pool has either agents that lend slots, or an engine.
    pub(super) fn refuse_in_pool_of_engine(&self, hello: &Hello) -> Result<(), Refusal> {
        let pool = if hello.pool.is_empty() { DEFAULT_POOL } else { &hello.pool };
        let Some((_, _, kind)) = self.engines.pool(pool) else { return Ok(()) };
        let engine = kind.name();
        let why = format!("{engine} runs the work of pool {pool}, which takes no agents\nhint: choose another --pool");
        tracing::warn!(agent = hello.agent, why, "refused an agent");
        Err(Refusal::Precondition(why))
    }

    /// An agent of an engine's job is here.
    pub(super) fn bound_joined(&mut self, bound: &Bound, agent: &str) {
        let pool = self.allocations.get(&bound.allocation).map(|allocation| allocation.pool.clone());
        let engine = pool.and_then(|pool| self.engines.of_pool(&pool));
        if let Some(before) = engine.and_then(|engine| engine.jobs.joined(&bound.allocation, bound.node, agent)) {
            // Whoever has the token of an allocation could bring any number of them otherwise.
            self.agents.remove(&before, format!("agent {agent} runs on node {} of job {}", bound.node, bound.job));
        }
        self.note_reasons_of_engines();
    }

    /// An agent of an engine's job has no connection any more: the engine may know why.
    pub(super) fn bound_left(&mut self, allocation: &str, agent: &str, outbox: &mut Outbox) {
        // One that has ended has a job no more, and which engine it was is not known.
        for (name, engine) in &mut self.engines.running {
            engine.jobs.left(allocation, agent);
            outbox.after_commit(Action::Engine(name.clone(), Call::Look));
        }
    }

    /// An engine is about to end an agent that it has started.
    pub(super) fn notice_to_bound(&mut self, agent: &str, why: String, outbox: &mut Outbox) {
        let Some(name) = self.agents.get(agent).and_then(|agent| agent.bound.clone()) else { return };
        // Commands cannot resume later: they have the time that is left.
        if self.allocations.get(&name).is_some_and(|allocation| allocation.experiment().is_some()) {
            self.allocation_event(&name, AllocationEvent::Displaced { why }, outbox);
        }
    }

    /// After a restart: waits for the agents of jobs on which something runs.
    pub(super) fn wait_for_bound_agents(&mut self) {
        for allocation in self.allocations.iter().filter(|allocation| self.engines.has(&allocation.pool)) {
            for share in allocation.alive() {
                self.agents.wait_for_bound(&share.agent, &allocation.id, &allocation.pool);
            }
        }
    }

    /// What a pool has for tasks; `None` if there is no such pool.
    pub(super) fn room_in(&self, pool: &str) -> Option<Room> {
        let name = if pool.is_empty() { DEFAULT_POOL } else { pool };
        match self.engines.pool(name) {
            Some((_, per_node, _)) => {
                let per_node = per_node as usize;
                Some(Room { slots: usize::MAX, largest: Some(per_node), per_node: Some(per_node) })
            }
            None => self.agents.room_in(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shared_out_evenly_over_nodes() {
        for (slots, per_node, expected) in [
            (0, 4, Some((1, 0))),
            (1, 4, Some((1, 1))),
            (4, 4, Some((1, 4))),
            (8, 4, Some((2, 4))),
            (6, 4, None),
            (3, 1, Some((3, 1))),
        ] {
            let expected = expected.map(|(nodes, slots_per_node)| Shape { nodes, slots_per_node });
            assert_eq!(shape(slots, per_node), expected, "{slots} on nodes of {per_node}");
        }
    }
}
