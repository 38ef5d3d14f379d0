//! What people see of agents, pools, the queue and running tasks. Nothing is decided here.

use std::collections::{BTreeMap, HashMap};

use instep_api::agents::{
    Agent as ShownAgent, Container, Device as ShownDevice, DeviceStats, PoolDetails, PrioritySchedulerDetails,
    QueueStats, ResourcePool, Slot, SlotStats,
};
use instep_api::cluster::COMPATIBLE_VERSION;
use instep_api::config::ProxyPort;
use instep_api::jobs::{AllocationSummary, Job, JobSummary, ResourceDevices, ResourcesSummary};
use instep_api::link::{Device, DeviceKind};
use instep_api::states::AllocationState;
use instep_policy::schedule::{self, Fitting, Rule};
use serde_json::{Value, json};

use super::DEFAULT_POOL;
use super::agents::Agent;
use super::allocation::{Allocation, Purpose, Share};
use super::commands::LiveCommand;
use super::experiments::Live;
use super::state::ClusterState;
use crate::engines::options::EngineKind;

/// What the allocations of a job have and want.
#[derive(Debug, Clone, Copy, Default)]
struct Held<'a> {
    allocated: i64,
    requested: i64,
    /// Whether any of them has its place, be it one without slots.
    scheduled: bool,
    /// Why one of them waits.
    reason: &'a str,
}

impl Held<'_> {
    fn summary(&self, ahead: i64) -> JobSummary {
        let state = if self.scheduled { "STATE_SCHEDULED" } else { "STATE_QUEUED" };
        JobSummary { state: state.to_owned(), jobs_ahead: ahead }
    }
}

impl ClusterState {
    /// All agents that are here or awaited.
    pub(crate) fn shown_agents(&self) -> Vec<ShownAgent> {
        let running = self.running();
        self.agents.iter().map(|agent| shown_agent(agent, running.get(agent.name.as_str()))).collect()
    }

    /// One of them.
    pub(crate) fn shown_agent(&self, name: &str) -> Option<ShownAgent> {
        let agent = self.agents.get(name)?;
        Some(shown_agent(agent, self.running().get(name)))
    }

    /// The shares that live, by agent.
    fn running(&self) -> HashMap<&str, Vec<(&Allocation, &Share)>> {
        let mut found: HashMap<&str, Vec<(&Allocation, &Share)>> = HashMap::new();
        for allocation in self.allocations.open() {
            for share in allocation.alive() {
                found.entry(share.agent.as_str()).or_default().push((allocation, share));
            }
        }
        found
    }

    /// All pools, the default one first.
    pub(crate) fn shown_pools(&self) -> Vec<ResourcePool> {
        let cluster = self.cluster();
        let running = self.running();
        let mut pools: Vec<ResourcePool> =
            cluster.pools.iter().map(|(name, pool)| self.shown_pool(name, pool, &running)).collect();
        pools.sort_by_key(|pool| !pool.default_compute_pool);
        pools
    }

    fn shown_pool(
        &self,
        name: &str,
        pool: &schedule::Pool,
        running: &HashMap<&str, Vec<(&Allocation, &Share)>>,
    ) -> ResourcePool {
        let agents: Vec<&Agent> = self.agents.iter().filter(|agent| agent.pool == name).collect();
        let here: Vec<&&Agent> = agents.iter().filter(|agent| agent.link.is_some()).collect();
        let shares = agents.iter().filter_map(|agent| running.get(agent.name.as_str())).flatten();
        let (mut used, mut auxiliary) = (0, 0);
        for (_, share) in shares {
            used += share.devices.len();
            auxiliary += usize::from(share.devices.is_empty());
        }
        let slots: usize = here.iter().map(|agent| agent.devices.len()).sum();
        let mine = |allocation: &&Allocation| allocation.pool == name;
        let waiting = self.allocations.open().filter(mine).filter(|allocation| allocation.placed.is_none()).count();
        let scheduled = self.allocations.open().filter(mine).count() - waiting;
        let default = name == DEFAULT_POOL;
        let preemption = matches!(pool.settings.rule, Rule::Priority { preemption: true }) || is_fair(pool);
        let engine = self.engines.pool(name);
        let slots_per_agent = match engine {
            Some((_, per_node, _)) => i64::from(per_node),
            None => here.iter().map(|agent| count(agent.devices.len())).max().unwrap_or(0),
        };
        let preemption = preemption && engine.is_none();
        ResourcePool {
            name: name.to_owned(),
            description: engine.map_or_else(String::new, |(description, ..)| description.to_owned()),
            kind: "RESOURCE_POOL_TYPE_STATIC".to_owned(),
            num_agents: count(here.len()),
            slots_available: count(slots),
            slots_used: count(used),
            slot_type: here.iter().flat_map(|agent| &agent.devices).next().map_or("TYPE_UNSPECIFIED", kind).to_owned(),
            slots_per_agent,
            aux_container_capacity: count(pool.settings.most_without_slots * here.len()),
            aux_containers_running: count(auxiliary),
            aux_container_capacity_per_agent: count(pool.settings.most_without_slots),
            default_compute_pool: default,
            default_aux_pool: default,
            preemptible: preemption,
            scheduler_type: match engine {
                Some((_, _, EngineKind::Slurm)) => "SCHEDULER_TYPE_SLURM",
                Some((_, _, EngineKind::Kubernetes)) => "SCHEDULER_TYPE_KUBERNETES",
                None if is_fair(pool) => "SCHEDULER_TYPE_FAIR_SHARE",
                None => "SCHEDULER_TYPE_PRIORITY",
            }
            .to_owned(),
            scheduler_fitting_policy: match (engine, pool.settings.fitting) {
                (Some((_, _, EngineKind::Slurm)), _) => "FITTING_POLICY_SLURM",
                (Some((_, _, EngineKind::Kubernetes)), _) => "FITTING_POLICY_KUBERNETES",
                (None, Fitting::Best) => "FITTING_POLICY_BEST",
                (None, Fitting::Worst) => "FITTING_POLICY_WORST",
            }
            .to_owned(),
            location: "on-prem".to_owned(),
            details: PoolDetails {
                priority_scheduler: (!is_fair(pool) && engine.is_none()).then(|| PrioritySchedulerDetails {
                    preemption,
                    default_priority: i64::from(self.options.default_priority),
                    k8_priorities: Vec::new(),
                }),
                ..PoolDetails::default()
            },
            stats: QueueStats { queued_count: count(waiting), scheduled_count: count(scheduled) },
            ..ResourcePool::default()
        }
    }

    /// All jobs of a pool, or of all, in the order in which they get slots.
    pub(crate) fn shown_jobs(&self, pool: Option<&str>) -> Vec<Job> {
        let queue = self.queue();
        let cluster = self.cluster();
        let experiments: HashMap<&str, (i64, &Live)> =
            self.experiments.iter().map(|(id, live)| (live.job.as_str(), (id.0, live))).collect();
        let commands: HashMap<&str, (&String, &LiveCommand)> =
            self.commands.iter().map(|(task, live)| (live.job.as_str(), (task, live))).collect();
        let mut held: HashMap<&str, Held<'_>> = HashMap::new();
        for allocation in self.allocations.open() {
            let Some(job) = self.job_name(allocation) else { continue };
            let held = held.entry(job).or_default();
            held.requested += i64::from(allocation.slots);
            match allocation.placed {
                Some(_) => {
                    held.scheduled = true;
                    held.allocated += i64::from(allocation.slots);
                }
                None => held.reason = &allocation.reason,
            }
        }
        let mut jobs = Vec::new();
        for name in cluster.pools.keys().filter(|name| pool.is_none_or(|wanted| wanted == *name)) {
            let fair = cluster.pools.get(name).is_some_and(is_fair);
            for (place, job) in schedule::jobs_in_order(&queue, name).iter().enumerate() {
                let held = held.get(*job).copied().unwrap_or_default();
                let ahead = if fair { -1 } else { count(place) };
                match (experiments.get(*job), commands.get(*job)) {
                    (Some((id, live)), _) => jobs.push(self.shown_job(*id, live, held, ahead)),
                    (None, Some((task, live))) => jobs.push(self.shown_command(task, live, held, ahead)),
                    (None, None) => {}
                }
            }
        }
        jobs
    }

    fn shown_job(&self, id: i64, live: &Live, held: Held<'_>, ahead: i64) -> Job {
        let resources = &live.config.resources;
        Job {
            job_id: live.job.clone(),
            entity_id: id.to_string(),
            kind: "TYPE_EXPERIMENT".to_owned(),
            submission_time: live.submitted,
            username: live.owner.name.clone(),
            user_id: live.owner.id,
            resource_pool: live.pool().to_owned(),
            is_preemptible: true,
            priority: Some(i64::from(self.scheduler.priority_of(resources))),
            weight: resources.weight,
            name: live.config.name.clone(),
            requested_slots: held.requested,
            allocated_slots: held.allocated,
            workspace_id: live.workspace,
            progress: live.progress(),
            summary: Some(held.summary(ahead)),
            reason: held.reason.to_owned(),
        }
    }

    fn shown_command(&self, task: &str, live: &LiveCommand, held: Held<'_>, ahead: i64) -> Job {
        let resources = &live.config.resources;
        Job {
            job_id: live.job.clone(),
            entity_id: task.to_owned(),
            kind: format!("TYPE_{}", live.kind.word()),
            submission_time: live.submitted,
            username: live.owner.name.clone(),
            user_id: live.owner.id,
            resource_pool: live.pool().to_owned(),
            is_preemptible: false,
            priority: Some(i64::from(self.scheduler.priority_of(resources))),
            weight: resources.weight,
            name: live.config.description.clone().unwrap_or_else(|| live.name.clone()),
            requested_slots: held.requested,
            allocated_slots: held.allocated,
            workspace_id: live.workspace,
            progress: 0.0,
            summary: Some(held.summary(ahead)),
            reason: held.reason.to_owned(),
        }
    }

    /// The job of an allocation.
    fn job_name(&self, allocation: &Allocation) -> Option<&str> {
        match allocation.experiment() {
            Some(experiment) => self.experiments.get(experiment).map(|live| live.job.as_str()),
            None => self.commands.get(&allocation.task).map(|live| live.job.as_str()),
        }
    }

    /// What runs or waits, by allocation.
    pub(crate) fn shown_allocations(&self) -> BTreeMap<String, AllocationSummary> {
        let living = self.allocations.open();
        living.map(|allocation| (allocation.id.clone(), self.shown_allocation(allocation))).collect()
    }

    fn shown_allocation(&self, allocation: &Allocation) -> AllocationSummary {
        let resources = match allocation.experiment() {
            Some(experiment) => self.experiments.get(experiment).map(|live| &live.config.resources),
            None => self.commands.get(&allocation.task).map(|live| &live.config.resources),
        };
        let priority = resources.map(|resources| self.scheduler.priority_of(resources));
        let resources = allocation.alive().map(|share| {
            let devices = self.agents.get(&share.agent).map(|agent| devices(agent, &share.devices));
            let devices = ResourceDevices { devices: devices.unwrap_or_default() };
            ResourcesSummary {
                resources_id: share.resources.clone(),
                resources_type: "docker-container".to_owned(),
                allocation_id: allocation.id.clone(),
                agent_devices: BTreeMap::from([(share.agent.clone(), devices)]),
                container_id: Some(share.container.clone()),
            }
        });
        AllocationSummary {
            task_id: allocation.task.clone(),
            allocation_id: allocation.id.clone(),
            name: self.name_of(allocation),
            slots_needed: i64::from(allocation.slots),
            registered_time: Some(allocation.queued_at),
            resources: resources.collect(),
            priority: priority.map(i64::from),
            scheduler_type: "priority".to_owned(),
            resource_pool: allocation.pool.clone(),
            proxy_ports: self.shown_ports(allocation),
        }
    }

    /// The ports of an allocation that others reach, as Determined shows them.
    fn shown_ports(&self, allocation: &Allocation) -> Vec<Value> {
        let task = &allocation.task;
        let shown = |port: &ProxyPort| {
            let service = if port.default_service_id { task.clone() } else { format!("{task}:{}", port.proxy_port) };
            json!({
                "serviceId": service,
                "port": port.proxy_port,
                "proxyTcp": port.proxy_tcp,
                "unauthenticated": port.unauthenticated,
            })
        };
        self.proxy_ports(allocation).unwrap_or_default().iter().map(shown).collect()
    }

    /// The name that people see of what an allocation runs.
    fn name_of(&self, allocation: &Allocation) -> String {
        match &allocation.purpose {
            Purpose::Trial { experiment, trial, .. } => format!("Trial {trial} (Experiment {experiment})"),
            Purpose::Command { .. } => {
                self.commands.get(&allocation.task).map(|live| live.name.clone()).unwrap_or_default()
            }
        }
    }

    /// Where a command runs, as a container.
    pub(crate) fn shown_container(&self, task: &str) -> Option<Container> {
        let allocation = self.allocations.get(&self.commands.get(task)?.allocation_name(task))?;
        let share = allocation.alive().next()?;
        Some(container(self.agents.get(&share.agent)?, allocation, share))
    }

    /// Why a command's allocation is in its state: while it waits, this is known here alone.
    pub(crate) fn reason_of(&self, task: &str) -> Option<String> {
        let allocation = self.allocations.get(&self.commands.get(task)?.allocation_name(task))?;
        Some(allocation.reason.clone())
    }
}

fn is_fair(pool: &schedule::Pool) -> bool {
    matches!(pool.settings.rule, Rule::FairShare)
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn kind(device: &Device) -> &'static str {
    match device.kind {
        DeviceKind::Cpu => "TYPE_CPU",
        DeviceKind::Cuda => "TYPE_CUDA",
    }
}

fn shown_device(device: &Device) -> ShownDevice {
    ShownDevice { id: device.id, brand: device.brand.clone(), uuid: device.uuid.clone(), kind: kind(device).to_owned() }
}

fn devices(agent: &Agent, ids: &[u32]) -> Vec<ShownDevice> {
    agent.devices.iter().filter(|device| ids.contains(&device.id)).map(shown_device).collect()
}

fn container(agent: &Agent, allocation: &Allocation, share: &Share) -> Container {
    let state = match allocation.state {
        AllocationState::Running | AllocationState::Terminating => "STATE_RUNNING",
        _ if share.started => "STATE_RUNNING",
        _ => "STATE_STARTING",
    };
    Container {
        id: share.container.clone(),
        parent: agent.name.clone(),
        state: state.to_owned(),
        devices: devices(agent, &share.devices),
        permission_denied: false,
    }
}

fn shown_agent(agent: &Agent, running: Option<&Vec<(&Allocation, &Share)>>) -> ShownAgent {
    // One without a connection takes no work, and what it runs is left alone for a while.
    let here = agent.link.is_some();
    let enabled = agent.admin.enabled && here;
    let draining = agent.admin.draining || agent.leaving || !here;
    let shares = || running.into_iter().flatten();
    let mut stats = SlotStats::default();
    let mut slots = BTreeMap::new();
    for device in &agent.devices {
        let user = shares().find(|(_, share)| share.devices.contains(&device.id));
        let slot = Slot {
            id: device.id.to_string(),
            device: shown_device(device),
            enabled: enabled && !agent.admin.disabled_slots.contains(&device.id),
            draining,
            container: user.map(|(allocation, share)| container(agent, allocation, share)),
        };
        for stats in [
            stats.type_stats.entry(kind(device).to_owned()).or_default(),
            stats.brand_stats.entry(device.brand.clone()).or_default(),
        ] {
            add(stats, &slot);
        }
        slots.insert(slot.id.clone(), slot);
    }
    ShownAgent {
        id: agent.name.clone(),
        registered_time: Some(agent.registered_at),
        slots,
        containers: shares()
            .map(|(allocation, share)| (share.container.clone(), container(agent, allocation, share)))
            .collect(),
        addresses: agent.addresses.clone(),
        enabled,
        draining,
        connected: here,
        version: COMPATIBLE_VERSION.to_owned(),
        instep_version: agent.version.clone(),
        resource_pools: vec![agent.pool.clone()],
        slot_stats: stats,
    }
}

fn add(stats: &mut DeviceStats, slot: &Slot) {
    stats.total += 1;
    stats.disabled += i64::from(!slot.enabled);
    stats.draining += i64::from(slot.draining);
    if let Some(container) = &slot.container {
        *stats.states.entry(container.state.clone()).or_default() += 1;
    }
}
