//! Starts allocations on the slots they were given: the orders for agents, with everything a task needs to know.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use instep_api::config::{BindMount, Entrypoint as Configured, Environment, ExperimentConfig};
use instep_api::identifiers::UserId;
use instep_api::link::{DeviceKind, Entrypoint, Mount, Order, Share as ShareName, Start};
use instep_api::secrets::GivenSecrets;
use instep_database::TaskSession;
use instep_policy::schedule::Grant;

use super::allocation::{AllocationEvent, Purpose, Share};
use super::environment::{self, TrialVariables};
use super::experiments::Owner;
use super::outbox::Outbox;
use super::permit::Permit;
use super::ports::SERVICE_PORT;
use super::state::ClusterState;
use crate::clock::now;
use crate::passwords::token_hash;
use crate::vault::WantedSecrets;
use crate::{random, ssh_keys};

/// The checkpoint that a trial resumes from, and how many steps it holds.
pub(super) type Resume = (Option<String>, i64);

impl ClusterState {
    /// Gives an allocation its slots, and the agents their orders.
    pub(super) fn start(
        &mut self,
        name: &str,
        placement: &[Grant],
        ports: BTreeMap<String, u16>,
        resume: &Resume,
        secrets: GivenSecrets,
        outbox: &mut Outbox,
    ) {
        let shares: Vec<Share> = placement.iter().map(|grant| self.share_on(grant)).collect();
        let user_token = random::token();
        let Some((owner, order)) = self.order_for(name, &shares, &ports, resume, &user_token) else {
            return self.allocations.free_ports(&ports);
        };
        let order = Start { secrets, ..order };
        for hash in [token_hash(&order.token), token_hash(&user_token)] {
            let session = TaskSession { token_hash: hash, user: owner, allocation: name.to_owned() };
            outbox.decision.sessions.push(session);
        }
        let starts: Vec<Start> =
            shares.iter().enumerate().map(|(rank, share)| self.order_of_share(name, rank, share, &order)).collect();
        for (share, start) in shares.iter().zip(&starts) {
            // By the name that the agent goes by.
            self.agents.admit(&share.agent, start.environment.get("DET_USER").map_or("", String::as_str));
            outbox.order(&share.agent, Order::Start(Box::new(start.clone())));
        }
        self.allocations.place(name, (shares, starts), ports, order.decided_at, outbox);
        self.allocation_event(name, AllocationEvent::Assigned, outbox);
    }

    /// What all shares of an allocation are told, and whose it is. What differs between them is empty.
    fn order_for(
        &self,
        name: &str,
        shares: &[Share],
        ports: &BTreeMap<String, u16>,
        (checkpoint, steps): &Resume,
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
            secrets: GivenSecrets::default(),
            entrypoint: Entrypoint::Shell(String::new()),
            token: random::token(),
            context: true,
            rendezvous: false,
            run_as: None,
            run_group: None,
            shared_memory_bytes: None,
            mounts: Vec::new(),
            paths: Vec::new(),
            service: None,
            ssh_keys: None,
            job_token: None,
            notes: Vec::new(),
            decided_at: now(),
        };
        let session =
            |owner: &'_ Owner| environment::Session { username: owner.name.clone(), user_token: user_token.to_owned() };
        match &allocation.purpose {
            Purpose::Trial { experiment, trial, run } => {
                let live = self.experiments.get(*experiment)?;
                let parameters = live.trials.get(&run.request)?;
                let variables = environment::of_trial(&TrialVariables {
                    task,
                    allocation: name,
                    experiment: *experiment,
                    trial: *trial,
                    run: run.number.into(),
                    seed: parameters.seed,
                    config: &live.full,
                    hparams: &parameters.hparams,
                    checkpoint: checkpoint.as_deref(),
                    steps: *steps,
                    session: &session(&live.owner),
                    ports,
                });
                let start = Start {
                    entrypoint: entrypoint(&live.config),
                    rendezvous: true,
                    ssh_keys: (shares.len() > 1).then(ssh_keys::generate),
                    job_token: (shares.len() > 1).then(random::token),
                    run_as: live.owner.run_as.clone(),
                    run_group: live.owner.run_group.clone(),
                    shared_memory_bytes: live.config.resources.shm_size.and_then(NonZeroU64::new),
                    mounts: mounts(&live.config.bind_mounts),
                    notes: live.config.warnings.clone(),
                    ..order(variables)
                };
                Some((live.owner.id, start))
            }
            Purpose::Command { .. } => {
                let live = self.commands.get(task)?;
                let address = shares.first().map_or("127.0.0.1", |share| share.address.as_str());
                let service = live.service(task, address, ports.get(SERVICE_PORT).copied());
                let mut variables = environment::of_task(live.kind.word(), task, name, &session(&live.owner), ports);
                variables.extend(live.variables(service.as_ref()));
                let start = Start {
                    entrypoint: live.entrypoint(service.as_ref()),
                    run_as: live.owner.run_as.clone(),
                    run_group: live.owner.run_group.clone(),
                    shared_memory_bytes: live.config.resources.shm_size.and_then(NonZeroU64::new),
                    mounts: mounts(&live.config.bind_mounts),
                    paths: live.paths(),
                    service,
                    ..order(variables)
                };
                Some((live.owner.id, start))
            }
        }
    }

    /// The secrets that an allocation's configuration names, for who may have them.
    pub(super) fn wanted_secrets(&self, name: &str, permit: Permit) -> WantedSecrets {
        let environment = self.allocations.get(name).and_then(|allocation| match &allocation.purpose {
            Purpose::Trial { experiment, .. } => Some(&self.experiments.get(*experiment)?.config.environment),
            Purpose::Command { .. } => Some(&self.commands.get(&allocation.task)?.config.environment),
        });
        let wanted = environment.map(|environment| WantedSecrets::of(environment, permit.owner, permit.workspace));
        wanted.unwrap_or_default()
    }

    /// What one share of an allocation is told.
    fn order_of_share(&self, name: &str, rank: usize, share: &Share, order: &Start) -> Start {
        let kind = self.agents.get(&share.agent).and_then(|agent| agent.devices.first()).map(|device| device.kind);
        let allocation = self.allocations.get(name);
        let variables = match allocation.map(|allocation| &allocation.purpose) {
            Some(Purpose::Trial { experiment, .. }) => {
                self.experiments.get(*experiment).map(|live| &live.config.environment)
            }
            Some(Purpose::Command { .. }) => allocation
                .and_then(|allocation| self.commands.get(&allocation.task))
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
            ended: None,
        }
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
