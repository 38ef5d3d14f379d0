//! The scheduler: when a pass over the queue is due, what the policy sees of the cluster, and what it decides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use instep_api::config::Resources;
use instep_api::identifiers::ExperimentId;
use instep_api::states::AllocationState;
use instep_api::wire::Timestamp;
use instep_policy::schedule::{
    self, Agent, Cluster, Grant, Holder, Job, Pool, Preempt, Queue, Request, Schedule, Slot, Waiting,
};
use serde_json::{Value, json};

use super::DEFAULT_POOL;
use super::allocation::{Allocation, AllocationEvent, Purpose};
use super::outbox::Outbox;
use super::state::ClusterState;
use crate::sync::lock;

/// Between two passes, at least.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// Pause at least this many times as long as the last pass took.
const PAUSE_FACTOR: u32 = 10;

/// Says when the next pass may begin, and counts them.
pub(crate) struct Scheduler {
    settings: schedule::Settings,
    /// The priority of jobs that do not say.
    default_priority: u32,
    last_pass: Option<(Instant, Duration)>,
    stats: Arc<SchedulerStats>,
}

/// How long passes take, and how much waits.
#[derive(Debug, Default)]
pub(crate) struct SchedulerStats {
    passes: Mutex<Passes>,
}

/// What the passes so far were like.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Passes {
    pub count: u64,
    pub last: Duration,
    pub longest: Duration,
    /// Allocations that wait for slots.
    pub waiting: usize,
}

impl SchedulerStats {
    pub(crate) fn passes(&self) -> Passes {
        *lock(&self.passes)
    }

    fn add(&self, took: Duration, waiting: usize) {
        let mut passes = lock(&self.passes);
        passes.count += 1;
        passes.last = took;
        passes.longest = passes.longest.max(took);
        passes.waiting = waiting;
    }
}

/// What an allocation asks of the scheduler, besides slots.
struct Terms {
    job: String,
    user: String,
    single_node: bool,
    preemptible: bool,
}

impl Scheduler {
    pub(super) fn new(settings: schedule::Settings, default_priority: u32, stats: Arc<SchedulerStats>) -> Scheduler {
        Scheduler { settings, default_priority, last_pass: None, stats }
    }

    fn next_pass(&self) -> Option<Instant> {
        self.last_pass.map(|(ended, took)| ended + (took * PAUSE_FACTOR).max(SHORTEST_PAUSE))
    }

    /// Whether a pass may begin now.
    pub(super) fn is_due(&self, moment: Instant) -> bool {
        self.next_pass().is_none_or(|next| next <= moment)
    }

    /// How long the next pass has to wait.
    pub(super) fn until_next_pass(&self) -> Duration {
        self.next_pass().map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    fn pass_done(&mut self, took: Duration, waiting: usize) {
        self.stats.add(took, waiting);
        self.last_pass = Some((Instant::now(), took));
    }

    /// The priority of a job.
    pub(super) fn priority_of(&self, resources: &Resources) -> u32 {
        resources.priority.unwrap_or(self.default_priority)
    }

    fn job(&self, name: String, pool: &str, resources: &Resources, at: (i64, Timestamp)) -> Job {
        Job {
            name,
            pool: pool.to_owned(),
            priority: self.priority_of(resources),
            weight: resources.weight,
            max_slots: resources.max_slots.map(|slots| slots as usize),
            position: at.0,
            submitted: at.1,
        }
    }
}

impl ClusterState {
    /// Decides who gets slots, who makes room and why the others wait.
    pub(super) fn plan_pass(&mut self) -> Schedule {
        let began = Instant::now();
        let plan = schedule::schedule(&self.cluster(), &self.queue_of_agents());
        let took = began.elapsed();
        self.scheduler.pass_done(took, plan.waiting.len());
        let (start, preempt, waiting) = (plan.start.len(), plan.preempt.len(), plan.waiting.len());
        tracing::debug!(?took, start, preempt, waiting, "a scheduling pass");
        plan
    }

    /// Notes why allocations wait, and displaces those whose slots others need.
    pub(super) fn apply(&mut self, waiting: Vec<Waiting>, preempt: Vec<Preempt>, outbox: &mut Outbox) {
        for waiting in waiting {
            // Not stored: every pass finds it anew, also the first one of the next master, and with thousands that wait
            // nearly all reasons change whenever a slot does.
            if let Some(allocation) = self.allocations.get_mut(&waiting.request) {
                allocation.reason = waiting.reason.to_string();
            }
        }
        for preempt in preempt {
            let displaced = AllocationEvent::Displaced { why: preempt.reason };
            self.allocation_event(&preempt.allocation, displaced, outbox);
        }
    }

    /// The machines, by pool.
    pub(super) fn cluster(&self) -> Cluster {
        let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
        let pool = || Pool { settings: self.scheduler.settings.clone(), agents: Vec::new() };
        pools.insert(DEFAULT_POOL.to_owned(), pool());
        pools.extend(self.engines.pools().map(|name| (name.to_owned(), pool())));
        for agent in self.agents.iter().filter(|agent| agent.bound.is_none()) {
            let slots = agent
                .devices
                .iter()
                .map(|device| Slot { id: device.id, enabled: !agent.admin.disabled_slots.contains(&device.id) });
            pools.entry(agent.pool.clone()).or_insert_with(pool).agents.push(Agent {
                id: agent.name.clone(),
                takes_work: agent.takes_work(),
                serves: agent.serves.clone(),
                slots: slots.collect(),
            });
        }
        Cluster { pools }
    }

    /// What waits, and what has slots.
    pub(super) fn queue(&self) -> Queue {
        let mut queue = Queue::default();
        for (id, live) in self.experiments.iter() {
            let name = format!("experiment {id}");
            let at = (live.position, live.submitted);
            let job = self.scheduler.job(name, live.pool(), &live.config.resources, at);
            queue.jobs.insert(live.job.clone(), job);
        }
        for (task, live) in self.commands.iter() {
            let name = format!("{} {task}", live.kind.noun().to_lowercase());
            let at = (live.position, live.submitted);
            let job = self.scheduler.job(name, live.pool(), &live.config.resources, at);
            queue.jobs.insert(live.job.clone(), Job { max_slots: None, ..job });
        }
        for allocation in self.allocations.open() {
            let Some(Terms { job, user, single_node, preemptible }) = self.terms_of(allocation) else { continue };
            match &allocation.placed {
                None => queue.waiting.push(Request {
                    id: allocation.id.clone(),
                    job,
                    user,
                    slots: allocation.slots as usize,
                    single_node,
                    preemptible,
                    excluded: allocation.excluded.clone(),
                    asked: allocation.queued_at,
                }),
                Some(_) => queue.running.push(Holder {
                    id: allocation.id.clone(),
                    job,
                    placement: allocation
                        .alive()
                        .map(|share| Grant { agent: share.agent.clone(), slots: share.devices.clone() })
                        .collect(),
                    preemptible,
                    stopping: allocation.preempting.is_some() || allocation.state == AllocationState::Terminating,
                    asked: allocation.queued_at,
                }),
            }
        }
        queue
    }

    /// The same without what waits for an engine. What an engine runs is on none of the machines that a pass looks at.
    fn queue_of_agents(&self) -> Queue {
        let mut queue = self.queue();
        let Queue { jobs, waiting, .. } = &mut queue;
        waiting.retain(|request| jobs.get(&request.job).is_none_or(|job| !self.engines.has(&job.pool)));
        queue
    }

    fn terms_of(&self, allocation: &Allocation) -> Option<Terms> {
        match &allocation.purpose {
            Purpose::Trial { experiment, .. } => {
                let live = self.experiments.get(*experiment)?;
                let single_node = live.config.resources.is_single_node.unwrap_or(false);
                Some(Terms { job: live.job.clone(), user: live.owner.name.clone(), single_node, preemptible: true })
            }
            // It could not resume where it stopped, and its parts would not find each other.
            Purpose::Command { .. } => {
                let live = self.commands.get(&allocation.task)?;
                let user = live.owner.name.clone();
                Some(Terms { job: live.job.clone(), user, single_node: true, preemptible: false })
            }
        }
    }

    /// Whether an experiment has slots, and how many jobs are before it.
    pub(crate) fn job_summary(&self, id: ExperimentId) -> Option<Value> {
        let live = self.experiments.get(id)?;
        let mine = |allocation: &&Allocation| allocation.experiment() == Some(id);
        let scheduled = self.allocations.iter().filter(mine).any(|allocation| allocation.placed.is_some());
        let order =
            schedule::jobs_in_order(&self.queue(), live.pool()).iter().position(|job| *job == live.job).unwrap_or(0);
        Some(json!({"state": if scheduled { "STATE_SCHEDULED" } else { "STATE_QUEUED" }, "jobsAhead": order}))
    }
}
