//! What people change about agents and about jobs while they run.

use instep_api::agents::Agent as ShownAgent;
use instep_api::identifiers::ExperimentId;
use instep_policy::schedule::{self, Moved, Side};

use super::Refusal;
use super::agents::Availability;
use super::allocation::AllocationEvent;
use super::outbox::Outbox;
use super::state::ClusterState;

/// What changes about a job; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct JobChange {
    /// Of an experiment.
    pub name: Option<String>,
    pub priority: Option<u32>,
    pub weight: Option<f64>,
    /// `Some(None)`: as many as there are.
    pub max_slots: Option<Option<u32>>,
    pub pool: Option<String>,
    pub position: Option<i64>,
}

/// Whose job something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobOf {
    Experiment(ExperimentId),
    /// The task.
    Command(String),
}

impl ClusterState {
    /// Lets an agent, or one of its slots, take work or not.
    pub(super) fn set_availability(
        &mut self,
        agent: &str,
        slot: Option<u32>,
        availability: Availability,
        outbox: &mut Outbox,
    ) -> Result<ShownAgent, Refusal> {
        let what = match slot {
            None => {
                self.agents.set(agent, availability, outbox)?;
                format!("agent {agent}")
            }
            Some(slot) => {
                self.agents.set_slot(agent, slot, availability, outbox)?;
                format!("slot {slot} of agent {agent}")
            }
        };
        if availability == Availability::Disabled {
            // Ended here, and started again elsewhere.
            for name in self.allocations.on_agent(agent, slot) {
                let why = format!("{what} was disabled");
                self.allocation_event(&name, AllocationEvent::Evicted { why }, outbox);
            }
        }
        self.shown_agent(agent).ok_or_else(|| Refusal::Missing(format!("agent '{agent}' not found")))
    }

    /// Changes a job that the database knows to be changed. `false` if it does not live.
    pub(super) fn change_job(&mut self, job: &JobOf, change: JobChange, outbox: &mut Outbox) -> bool {
        let found = match job {
            JobOf::Experiment(id) => {
                self.experiments.get_mut(*id).map(|live| (&mut live.config.resources, &mut live.position))
            }
            JobOf::Command(task) => {
                self.commands.get_mut(task).map(|live| (&mut live.config.resources, &mut live.position))
            }
        };
        let Some((resources, place)) = found else { return false };
        if let Some(priority) = change.priority {
            resources.priority = Some(priority);
        }
        if let Some(weight) = change.weight {
            resources.weight = weight;
        }
        if let Some(max_slots) = change.max_slots {
            resources.max_slots = max_slots;
        }
        if let Some(position) = change.position {
            *place = position;
        }
        if let Some(pool) = change.pool {
            resources.resource_pool = pool.clone();
            self.move_to(job, &pool, outbox);
        }
        if let JobOf::Experiment(id) = job
            && let Some(live) = self.experiments.get_mut(*id)
        {
            if let Some(name) = change.name {
                live.config.name = name;
            }
            live.full["resources"] = live.config.to_json()["resources"].clone();
        }
        outbox.request_pass();
        true
    }

    /// What waits asks for slots of the new pool; what runs makes room and asks there.
    fn move_to(&mut self, job: &JobOf, pool: &str, outbox: &mut Outbox) {
        let mut running = Vec::new();
        for allocation in self.allocations.open_mut() {
            let mine = match job {
                JobOf::Experiment(id) => allocation.experiment() == Some(*id),
                JobOf::Command(task) => allocation.task == *task,
            };
            if !mine || allocation.pool == pool {
                continue;
            }
            match allocation.placed {
                None => {
                    pool.clone_into(&mut allocation.pool);
                    outbox.allocation_changed(&allocation.id);
                }
                Some(_) => running.push(allocation.id.clone()),
            }
        }
        for name in running {
            let why = format!("its job was moved to pool {pool}");
            self.allocation_event(&name, AllocationEvent::Displaced { why }, outbox);
        }
    }

    /// Where jobs stand once one is moved next to another.
    pub(crate) fn moved(&self, job: &str, side: Side, anchor: &str) -> Result<Vec<(JobOf, Moved)>, Refusal> {
        let moved = schedule::move_job(&self.queue(), job, side, anchor).map_err(Refusal::Invalid)?;
        Ok(moved.into_iter().filter_map(|moved| Some((self.job_of(&moved.job)?, moved))).collect())
    }

    /// Whose job it is, if that has not ended.
    pub(crate) fn job_of(&self, job: &str) -> Option<JobOf> {
        let experiment = self.experiments.iter().find(|(_, live)| live.job == job);
        let command = || self.commands.iter().find(|(_, live)| live.job == job);
        match experiment {
            Some((id, _)) => Some(JobOf::Experiment(id)),
            None => command().map(|(task, _)| JobOf::Command(task.clone())),
        }
    }
}
