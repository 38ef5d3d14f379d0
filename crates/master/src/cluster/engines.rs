//! Allocations that an engine runs: their jobs are wanted, submitted and cancelled; their agents are let in, and when all are
//! there, the allocation starts on them as on any others.
//!
//! [`Jobs`] decides; here are its questions answered and its actions carried out. A token of an allocation's agents is a
//! session of that allocation: stored before the job is submitted, and gone with the allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use instep_api::config::SlurmSection;
use instep_api::identifiers::UserId;
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
use super::outbox::{Action, Outbox};
use super::state::ClusterState;
use super::{DEFAULT_POOL, Message, Refusal};
use crate::clock::now;
use crate::engines::Gang;
use crate::engines::line::{self, Answer, Call, Pace};
use crate::engines::options::{EngineOptions, EnginePool, EngineSettings};
use crate::engines::slurm::Slurm;
use crate::passwords::token_hash;
use crate::random;

/// How people call it.
const SLURM: &str = "Slurm";
/// Calls that may wait for an engine. One more is as good as one that failed.
const CALLS_AHEAD: usize = 4096;

/// The engines of a master and their jobs.
pub(crate) struct Engines {
    pools: BTreeMap<String, EnginePool>,
    jobs: Jobs,
    calls: Option<mpsc::Sender<Call>>,
    is_list_wanted: Arc<AtomicBool>,
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

/// The node of an agent, which is called after its node and its job.
fn node_of(agent: &str) -> Option<String> {
    agent.rsplit_once('-').map(|(node, _)| node.to_owned())
}

/// The job of an agent.
fn job_of(agent: &str) -> Option<JobId> {
    agent.rsplit_once('-').map(|(_, job)| JobId(job.to_owned()))
}

impl Engines {
    /// Those that the settings say, which are told of through `messages`.
    pub(super) fn start(options: &EngineOptions, cluster: &str, messages: &mpsc::Sender<Message>) -> Engines {
        let pools: BTreeMap<String, EnginePool> =
            options.pools.iter().map(|pool| (pool.pool_name.clone(), pool.clone())).collect();
        let is_list_wanted = Arc::new(AtomicBool::new(true));
        let calls = (!pools.is_empty()).then(|| {
            let (calls, received) = mpsc::channel(CALLS_AHEAD);
            let pace = Pace { interval: options.slurm_interval(), is_wanted: Arc::clone(&is_list_wanted) };
            // The cluster's task ends with the last of its handles, and this one with it.
            let messages = messages.downgrade();
            let tell = move |answer| {
                let messages = messages.clone();
                async move {
                    let Some(messages) = messages.upgrade() else { return false };
                    let message: Message = Box::new(move |state, outbox| state.engine_answered(answer, outbox));
                    messages.send(message).await.is_ok()
                }
            };
            tokio::spawn(line::run(Slurm::new(cluster, options), received, pace, tell));
            calls
        });
        Engines { pools, jobs: Jobs::new(SLURM), calls, is_list_wanted }
    }

    /// Whether an engine runs the work of a pool.
    pub(super) fn has(&self, pool: &str) -> bool {
        self.pools.contains_key(pool)
    }

    /// The pools whose work engines run.
    pub(super) fn pools(&self) -> impl Iterator<Item = &str> {
        self.pools.keys().map(String::as_str)
    }

    /// How a pool is described, and the slots of its nodes.
    pub(super) fn pool(&self, name: &str) -> Option<(&str, u32)> {
        let pool = self.pools.get(name)?;
        let EngineSettings::Slurm(slurm) = &pool.engine;
        Some((&pool.description, slurm.slots_per_node))
    }

    /// When something must be done even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.jobs.deadline()
    }

    /// Passes a call on.
    pub(super) fn ask(&mut self, call: Call, outbox: &mut Outbox) {
        let Some(calls) = &self.calls else { return };
        if let Err(error) = calls.try_send(call)
            && let Call::Submit(gang) = error.into_inner()
        {
            let why = "too many calls wait for it".to_owned();
            // It was not submitted: there is nothing to cancel.
            self.jobs.submitted(&gang.allocation, Err(why), now());
            outbox.request_pass();
        }
    }
}

impl ClusterState {
    /// What the configuration of an allocation's task says about Slurm, whose it is, and how people call it.
    fn terms_in_slurm(&self, allocation: &Allocation) -> Option<(&SlurmSection, UserId, String)> {
        match &allocation.purpose {
            Purpose::Trial { experiment, trial, .. } => {
                let live = self.experiments.get(*experiment)?;
                Some((&live.config.slurm, live.owner.id, format!("instep-trial-{trial}")))
            }
            Purpose::Command { .. } => {
                let live = self.commands.get(&allocation.task)?;
                let task: String = allocation.task.chars().take(8).collect();
                Some((&live.config.slurm, live.owner.id, format!("instep-{}-{task}", live.kind.word().to_lowercase())))
            }
        }
    }

    fn shape_of(&self, allocation: &Allocation) -> Option<Shape> {
        let (_, per_node) = self.engines.pool(&allocation.pool)?;
        let (section, ..) = self.terms_in_slurm(allocation)?;
        shape(allocation.slots, section.slots_per_node.unwrap_or(per_node))
    }

    /// Tells the engines which allocations there are, and does what follows.
    pub(super) fn reconcile_engines(&mut self, outbox: &mut Outbox) {
        if self.engines.pools.is_empty() {
            return;
        }
        let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
        let mut impossible = Vec::new();
        for allocation in self.allocations.open().filter(|allocation| self.engines.has(&allocation.pool)) {
            let placed = allocation.placed.as_ref();
            let placed = placed.and_then(|placed| placed.shares.first()).and_then(|share| job_of(&share.agent));
            match self.shape_of(allocation) {
                Some(Shape { nodes, .. }) => {
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
        let actions = self.engines.jobs.reconcile(&wanted, now());
        self.fulfil(actions, outbox);
    }

    /// An engine has answered.
    pub(super) fn engine_answered(&mut self, answer: Answer, outbox: &mut Outbox) {
        let moment = now();
        let actions = match answer {
            Answer::Submitted(allocation, answer) => {
                match &answer {
                    Ok(job) => tracing::info!(allocation, %job, "submitted a job to {SLURM}"),
                    Err(why) => self.submission_failed(&allocation, why, outbox),
                }
                self.engines.jobs.submitted(&allocation, answer, moment)
            }
            Answer::Listed(answer) => {
                if let Err(why) = &answer {
                    tracing::warn!(why, "{SLURM} does not list its jobs");
                }
                self.engines.jobs.listed(answer, moment)
            }
        };
        self.fulfil(actions, outbox);
        self.note_reasons_of_engines();
    }

    /// Says so in the log of the task, once for each complaint.
    fn submission_failed(&mut self, allocation: &str, why: &str, outbox: &mut Outbox) {
        tracing::warn!(allocation, why, "{SLURM} did not take a job");
        let Some(found) = self.allocations.get(allocation) else { return };
        if !found.reason.contains(why) {
            let text = format!("{SLURM} did not take the job, which is submitted again: {why}");
            outbox.log(&found.task, Some(allocation), LogLevel::Warning, &text);
        }
    }

    /// Not stored: the first list of the next master says it, too.
    fn note_reasons_of_engines(&mut self) {
        for allocation in self.allocations.open_mut().filter(|allocation| allocation.placed.is_none()) {
            if let Some(reason) = self.engines.jobs.reason(&allocation.id) {
                allocation.reason = reason;
            }
        }
    }

    /// Does what follows for an engine's jobs.
    fn fulfil(&mut self, actions: Vec<JobAction>, outbox: &mut Outbox) {
        for action in actions {
            match action {
                JobAction::Submit { allocation } => self.submit(&allocation, outbox),
                JobAction::Cancel { job } => {
                    tracing::info!(%job, "cancelling a job of {SLURM}");
                    outbox.after_commit(Action::Engine(Call::Cancel(job)));
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
        self.engines.is_list_wanted.store(self.engines.jobs.wants_list(), Ordering::Relaxed);
    }

    fn submit(&mut self, name: &str, outbox: &mut Outbox) {
        let found = self.allocations.get(name).and_then(|allocation| {
            let (section, owner, title) = self.terms_in_slurm(allocation)?;
            let Shape { nodes, slots_per_node } = self.shape_of(allocation)?;
            let excluded: BTreeSet<String> = allocation.excluded.iter().filter_map(|agent| node_of(agent)).collect();
            let gang = Gang {
                allocation: name.to_owned(),
                title,
                pool: allocation.pool.clone(),
                nodes,
                slots_per_node,
                gpu_type: section.gpu_type.clone(),
                arguments: section.sbatch_args.clone(),
                excluded: excluded.into_iter().collect(),
                token: random::token(),
            };
            Some((owner, gang))
        });
        let Some((user, gang)) = found else {
            let why = "what it runs is not known any more".to_owned();
            self.engines.jobs.submitted(name, Err(why), now());
            return;
        };
        let session = TaskSession { token_hash: token_hash(&gang.token), user, allocation: name.to_owned() };
        outbox.decision.sessions.push(session);
        outbox.after_commit(Action::Engine(Call::Submit(Box::new(gang))));
    }

    /// The allocations whose agents are all there, with what each is given of them.
    pub(super) fn ready_in_engines(&self) -> Vec<Start> {
        let placed = |name: &String| self.allocations.get(name).is_none_or(|found| found.placed.is_some());
        let ready = self.engines.jobs.ready().into_iter().filter(|ready| !placed(&ready.allocation));
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
            tracing::warn!(agent = hello.agent, job = bound.job, why, "refused an agent of a job of {SLURM}");
            Refusal::Precondition(why)
        };
        let ended = || format!("allocation {} has ended, or does not run in {SLURM}", bound.allocation);
        let found = self.allocations.get(&bound.allocation).filter(|allocation| allocation.ended_at.is_none());
        let allocation = found.ok_or_else(|| refused(ended()))?;
        let Shape { nodes, slots_per_node } = self.shape_of(allocation).ok_or_else(|| refused(ended()))?;
        let (here, needed) = (hello.devices.len(), slots_per_node as usize);
        let objection = if let Some(placed) = &allocation.placed {
            let has_share = placed.shares.iter().any(|share| share.agent == hello.agent);
            (!has_share).then(|| format!("allocation {} runs on other agents", bound.allocation))
        } else if bound.nodes != nodes || bound.node >= nodes {
            Some(format!("job {} has {} nodes, and {} needs {nodes}", bound.job, bound.nodes, bound.allocation))
        } else if job_of(&hello.agent).is_none_or(|job| job.0 != bound.job) {
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
        self.engines.jobs.admit(&bound.allocation, &job).map_err(refused)
    }

    /// A pool has either agents that lend slots, or an engine.
    pub(super) fn refuse_in_pool_of_engine(&self, hello: &Hello) -> Result<(), Refusal> {
        let pool = if hello.pool.is_empty() { DEFAULT_POOL } else { &hello.pool };
        if !self.engines.has(pool) {
            return Ok(());
        }
        let why = format!("{SLURM} runs the work of pool {pool}, which takes no agents\nhint: choose another --pool");
        tracing::warn!(agent = hello.agent, why, "refused an agent");
        Err(Refusal::Precondition(why))
    }

    /// An agent of an engine's job is here.
    pub(super) fn bound_joined(&mut self, bound: &Bound, agent: &str) {
        self.engines.jobs.joined(&bound.allocation, bound.node, agent);
        self.note_reasons_of_engines();
    }

    /// An agent of an engine's job has no connection any more: the engine may know why.
    pub(super) fn bound_left(&mut self, allocation: &str, agent: &str, outbox: &mut Outbox) {
        self.engines.jobs.left(allocation, agent);
        outbox.after_commit(Action::Engine(Call::Look));
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
            Some((_, per_node)) => {
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
