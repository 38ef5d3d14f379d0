//! Gives slots away: builds what the policy looks at, and starts what it decides.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use instep_api::config::{BindMount, Entrypoint as Configured, Environment, ExperimentConfig};
use instep_api::identifiers::{ExperimentId, UserId};
use instep_api::link::{DeviceKind, Entrypoint, Mount, Order, Share as ShareName, Start};
use instep_api::states::AllocationState;
use instep_database::TaskSession;
use instep_policy::lifecycle::gang::Gang;
use instep_policy::schedule::{self, Agent, Cluster, Grant, Holder, Job, Pool, Queue, Request, Slot};
use serde_json::{Value, json};

use super::actor::{Act, Actor};
use super::allocation::{Allocation, Happening, Placed, Purpose, Share};
use super::environment::{self, Facts};
use super::experiments::{DEFAULT_POOL, Owner};
use super::singles::SERVICE_PORT;
use super::{Refusal, Reply};
use crate::clock::now;
use crate::passwords::token_hash;
use crate::random;

/// Between two passes, at least.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// A pass takes at most this part of the time.
const PART_OF_TIME: u32 = 10;

/// When the next pass is due.
#[derive(Debug, Default)]
pub(super) struct Pace {
    wanted: bool,
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// Something changed that a pass should look at.
    pub(super) fn wanted(&mut self) {
        self.wanted = true;
    }

    fn next(&self) -> Option<Instant> {
        self.last.map(|(ended, took)| ended + (took * PART_OF_TIME).max(SHORTEST_PAUSE))
    }

    pub(super) fn is_due(&self, moment: Instant) -> bool {
        self.wanted && self.next().is_none_or(|next| next <= moment)
    }

    pub(super) fn until_next(&self) -> Option<Duration> {
        let wait = self.next().map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        self.wanted.then_some(wait)
    }

    fn done(&mut self, took: Duration) {
        self.wanted = false;
        self.last = Some((Instant::now(), took));
    }
}

/// How long passes take, and how much waits.
#[derive(Debug, Default)]
pub(crate) struct Measures {
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

impl Measures {
    pub(crate) fn passes(&self) -> Passes {
        *self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, took: Duration, waiting: usize) {
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        passes.count += 1;
        passes.last = took;
        passes.longest = passes.longest.max(took);
        passes.waiting = waiting;
    }
}

/// How an allocation wants to be treated.
struct Wish {
    job: String,
    single_node: bool,
    preemptible: bool,
}

impl Actor {
    /// One pass over everything that waits.
    pub(super) async fn place(&mut self) {
        let began = Instant::now();
        let (cluster, queue) = (self.cluster(), self.queue());
        let plan = schedule::schedule(&cluster, &queue);
        let took = began.elapsed();
        self.measures.note(took, plan.waiting.len());
        self.pace.done(took);
        let (start, preempt, waiting) = (plan.start.len(), plan.preempt.len(), plan.waiting.len());
        tracing::debug!(?took, start, preempt, waiting, "a scheduling pass");
        for waiting in plan.waiting {
            // Not stored: every pass finds it anew, also the first one of the next master, and with thousands that wait
            // nearly all reasons change whenever a slot does.
            if let Some(allocation) = self.allocations.get_mut(&waiting.request) {
                allocation.reason = waiting.reason.to_string();
            }
        }
        for preempt in plan.preempt {
            self.happened(&preempt.allocation, Happening::Displaced { why: preempt.reason });
        }
        for start in plan.start {
            self.start(&start.request, &start.placement).await;
        }
    }

    /// The machines, by pool.
    pub(crate) fn cluster(&self) -> Cluster {
        let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
        let pool = || Pool { settings: self.options.scheduling.clone(), agents: Vec::new() };
        pools.insert(DEFAULT_POOL.to_owned(), pool());
        for agent in self.agents.values() {
            let slots = agent
                .devices
                .iter()
                .map(|device| Slot { id: device.id, enabled: !agent.disabled_slots.contains(&device.id) });
            pools.entry(agent.pool.clone()).or_insert_with(pool).agents.push(Agent {
                id: agent.name.clone(),
                takes_work: agent.takes_work(),
                slots: slots.collect(),
            });
        }
        Cluster { pools }
    }

    /// What waits, and what has slots.
    pub(crate) fn queue(&self) -> Queue {
        let mut queue = Queue::default();
        for (id, live) in &self.experiments {
            let resources = &live.config.resources;
            queue.jobs.insert(
                live.job.clone(),
                Job {
                    name: format!("experiment {id}"),
                    pool: live.pool().to_owned(),
                    priority: resources.priority.unwrap_or(self.options.default_priority),
                    weight: resources.weight,
                    max_slots: resources.max_slots.map(|slots| slots as usize),
                    position: live.position,
                    submitted: live.submitted,
                },
            );
        }
        for (task, live) in &self.singles {
            let resources = &live.config.resources;
            queue.jobs.insert(
                live.job.clone(),
                Job {
                    name: format!("{} {task}", live.kind.noun().to_lowercase()),
                    pool: live.pool().to_owned(),
                    priority: resources.priority.unwrap_or(self.options.default_priority),
                    weight: resources.weight,
                    max_slots: None,
                    position: live.position,
                    submitted: live.submitted,
                },
            );
        }
        for allocation in self.allocations.values().filter(|allocation| allocation.ended_at.is_none()) {
            let Some(Wish { job, single_node, preemptible }) = self.wish(allocation) else { continue };
            match &allocation.placed {
                None => queue.waiting.push(Request {
                    id: allocation.id.clone(),
                    job,
                    slots: allocation.slots as usize,
                    single_node,
                    preemptible,
                    excluded: allocation.excluded.clone(),
                    asked: allocation.queued_at,
                }),
                Some(placed) => queue.running.push(Holder {
                    id: allocation.id.clone(),
                    job,
                    placement: placed
                        .gang
                        .alive()
                        .filter_map(|rank| placed.shares.get(rank))
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

    /// How an allocation wants to be treated.
    fn wish(&self, allocation: &Allocation) -> Option<Wish> {
        match &allocation.purpose {
            Purpose::Trial { experiment, .. } => {
                let live = self.experiments.get(experiment)?;
                let single_node = live.config.resources.is_single_node.unwrap_or(false);
                Some(Wish { job: live.job.clone(), single_node, preemptible: true })
            }
            // It could not go on where it stopped, and its parts would not find each other.
            Purpose::Single => {
                let live = self.singles.get(&allocation.task)?;
                Some(Wish { job: live.job.clone(), single_node: true, preemptible: false })
            }
        }
    }

    /// Gives an allocation its slots, and the agents their orders.
    async fn start(&mut self, name: &str, placement: &[Grant]) {
        let Some(allocation) = self.allocations.get(name) else { return };
        let purpose = allocation.purpose.clone();
        let Some(ports) = self.ports.give(purpose == Purpose::Single) else {
            tracing::error!(allocation = name, "there are no free ports");
            return;
        };
        let resume = match &purpose {
            Purpose::Trial { trial, .. } => self.database.resume_point(*trial).await,
            Purpose::Single => Ok((None, 0)),
        };
        let resume = match resume {
            Ok(found) => found,
            Err(error) => {
                // The next pass tries again; the database says what is wrong with every other request, too.
                tracing::error!(%error, allocation = name, "cannot look up the trial's latest checkpoint");
                self.ports.take_back(&ports);
                return self.pace.wanted();
            }
        };
        let shares: Vec<Share> = placement.iter().map(|grant| self.share_on(grant)).collect();
        let user_token = random::token();
        let Some((owner, order)) = self.order_for(name, &shares, &ports, &resume, &user_token) else {
            return self.ports.take_back(&ports);
        };
        let token = order.token.clone();
        for hash in [token_hash(&token), token_hash(&user_token)] {
            let session = TaskSession { token_hash: hash, user: owner, allocation: name.to_owned() };
            self.decision.sessions.push(session);
        }
        let starts: Vec<Start> =
            shares.iter().enumerate().map(|(rank, share)| self.start_of(name, rank, share, &order)).collect();
        for (share, start) in shares.iter().zip(&starts) {
            self.later(Act::Order(share.agent.clone(), Order::Start(Box::new(start.clone()))));
        }
        let Some(allocation) = self.allocations.get_mut(name) else { return };
        allocation.placed = Some(Placed { gang: Gang::new(shares.len()), shares, ports, starts });
        allocation.state = AllocationState::Starting;
        allocation.started_at = Some(order.decided_at);
        allocation.reason = "starting".to_owned();
        self.changed.allocations.insert(name.to_owned());
        self.happened(name, Happening::Assigned);
    }

    /// What all shares of an allocation are told, and whose it is. What differs between them is empty.
    fn order_for(
        &self,
        name: &str,
        shares: &[Share],
        ports: &BTreeMap<String, u16>,
        (checkpoint, steps): &(Option<String>, i64),
        user_token: &str,
    ) -> Option<(UserId, Start)> {
        let allocation = self.allocations.get(name)?;
        let task = &allocation.task;
        let order = |environment| Start {
            share: ShareName { allocation: name.to_owned(), resources: String::new() },
            task: task.clone(),
            devices: Vec::new(),
            container: String::new(),
            environment,
            user_environment: Vec::new(),
            entrypoint: Entrypoint::Shell(String::new()),
            token: random::token(),
            context: true,
            rendezvous: false,
            run_as: None,
            mounts: Vec::new(),
            paths: Vec::new(),
            service: None,
            notes: Vec::new(),
            decided_at: now(),
        };
        let session =
            |owner: &'_ Owner| environment::Session { username: owner.name.clone(), user_token: user_token.to_owned() };
        match &allocation.purpose {
            Purpose::Trial { experiment, trial, run } => {
                let live = self.experiments.get(experiment)?;
                let facts = live.trials.get(&run.request)?;
                let variables = environment::of_trial(&Facts {
                    task,
                    allocation: name,
                    experiment: *experiment,
                    trial: *trial,
                    run: run.number.into(),
                    seed: facts.seed,
                    config: &live.full,
                    hparams: &facts.hparams,
                    checkpoint: checkpoint.as_deref(),
                    steps: *steps,
                    session: &session(&live.owner),
                    ports,
                });
                let start = Start {
                    entrypoint: entrypoint(&live.config),
                    rendezvous: true,
                    run_as: live.owner.run_as.clone(),
                    mounts: mounts(&live.config.bind_mounts),
                    notes: live.config.warnings.clone(),
                    ..order(variables)
                };
                Some((live.owner.id, start))
            }
            Purpose::Single => {
                let live = self.singles.get(task)?;
                let address = shares.first().map_or("127.0.0.1", |share| share.address.as_str());
                let service = live.service(task, address, ports.get(SERVICE_PORT).copied());
                let variables = environment::of_single(live.kind.word(), task, name, &session(&live.owner), ports);
                let start = Start {
                    entrypoint: live.entrypoint(service.as_ref()),
                    run_as: live.owner.run_as.clone(),
                    mounts: mounts(&live.config.bind_mounts),
                    paths: live.paths(),
                    service,
                    ..order(variables)
                };
                Some((live.owner.id, start))
            }
        }
    }

    /// What one share of an allocation is told.
    fn start_of(&self, name: &str, rank: usize, share: &Share, order: &Start) -> Start {
        let kind = self.agents.get(&share.agent).and_then(|agent| agent.devices.first()).map(|device| device.kind);
        let allocation = self.allocations.get(name);
        let variables = match allocation.map(|allocation| &allocation.purpose) {
            Some(Purpose::Trial { experiment, .. }) => {
                self.experiments.get(experiment).map(|live| &live.config.environment)
            }
            Some(Purpose::Single) => allocation
                .and_then(|allocation| self.singles.get(&allocation.task))
                .map(|live| &live.config.environment),
            None => None,
        };
        Start {
            share: ShareName { allocation: name.to_owned(), resources: share.resources.clone() },
            devices: share.devices.clone(),
            container: share.container.clone(),
            user_environment: variables.map(|variables| user_environment(variables, kind)).unwrap_or_default(),
            notes: if rank == 0 { order.notes.clone() } else { Vec::new() },
            ..order.clone()
        }
    }

    fn share_on(&self, grant: &Grant) -> Share {
        let address = self.agents.get(&grant.agent).and_then(|agent| agent.addresses.first().cloned());
        Share {
            agent: grant.agent.clone(),
            resources: random::uuid(),
            container: random::uuid(),
            devices: grant.slots.clone(),
            address: address.unwrap_or_else(|| "127.0.0.1".to_owned()),
            started: false,
        }
    }

    /// Whether an experiment has slots, and how many jobs are before it.
    pub(super) fn job_summary(&mut self, id: ExperimentId, reply: Reply<Option<Value>>) {
        let summary = self.experiments.get(&id).map(|live| {
            let mine = |allocation: &&Allocation| allocation.experiment() == Some(id);
            let scheduled = self.allocations.values().filter(mine).any(|allocation| allocation.placed.is_some());
            let order = schedule::jobs_in_order(&self.queue(), live.pool())
                .iter()
                .position(|job| *job == live.job)
                .unwrap_or(0);
            json!({"state": if scheduled { "STATE_SCHEDULED" } else { "STATE_QUEUED" }, "jobsAhead": order})
        });
        self.answer(reply, Ok::<_, Refusal>(summary));
    }
}

fn entrypoint(config: &ExperimentConfig) -> Entrypoint {
    match &config.entrypoint {
        Some(Configured::Line(line)) => Entrypoint::Shell(line.clone()),
        Some(Configured::Words(words)) => Entrypoint::Arguments(words.clone()),
        // Configurations of managed experiments have one.
        None => Entrypoint::Shell(String::new()),
    }
}

fn user_environment(environment: &Environment, kind: Option<DeviceKind>) -> Vec<String> {
    let variables = &environment.environment_variables;
    match kind {
        Some(DeviceKind::Cuda) => variables.cuda.clone(),
        Some(DeviceKind::Cpu) | None => variables.cpu.clone(),
    }
}

fn mounts(mounts: &[BindMount]) -> Vec<Mount> {
    let mount = |mount: &BindMount| Mount {
        host_path: mount.host_path.clone(),
        task_path: mount.container_path.clone(),
        read_only: mount.read_only,
    };
    mounts.iter().map(mount).collect()
}
