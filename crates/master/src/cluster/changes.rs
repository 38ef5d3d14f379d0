//! What people change about agents and about jobs while they run.

use instep_api::agents::Agent as ShownAgent;
use instep_api::identifiers::ExperimentId;
use instep_policy::schedule::{self, Moved, Side};

use super::actor::Actor;
use super::allocation::Happening;
use super::{Refusal, Reply};

/// What becomes of an agent or a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    /// It takes work.
    Enabled,
    /// It takes no new work; what runs may end by itself.
    Draining,
    /// It takes no new work, and what runs is ended and started again elsewhere.
    Disabled,
}

/// What changes about a job; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct JobChange {
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
    Single(String),
}

fn missing(agent: &str) -> Refusal {
    Refusal::Missing(format!("agent '{agent}' not found"))
}

impl Actor {
    /// Lets an agent take work, or not.
    pub(super) fn set_agent(&mut self, name: &str, availability: Availability, reply: Reply<ShownAgent>) {
        let Some(agent) = self.agents.get_mut(name) else { return self.answer(reply, Err(missing(name))) };
        agent.enabled = availability == Availability::Enabled;
        agent.draining = availability == Availability::Draining;
        let row = agent.row();
        self.decision.agents.push(row);
        if availability == Availability::Disabled {
            self.evict(name, None, &format!("agent {name} was disabled"));
        }
        self.pace.wanted();
        let shown = self.shown_agent(name).ok_or_else(|| missing(name));
        self.answer(reply, shown);
    }

    /// Lets one of its slots take work, or not.
    pub(super) fn set_slot(&mut self, name: &str, slot: u32, availability: Availability, reply: Reply<ShownAgent>) {
        let Some(agent) = self.agents.get_mut(name) else { return self.answer(reply, Err(missing(name))) };
        if !agent.devices.iter().any(|device| device.id == slot) {
            let what = format!("slot '{slot}' of agent '{name}' not found");
            return self.answer(reply, Err(Refusal::Missing(what)));
        }
        match availability {
            Availability::Enabled => agent.disabled_slots.remove(&slot),
            Availability::Draining | Availability::Disabled => agent.disabled_slots.insert(slot),
        };
        let row = agent.row();
        self.decision.agents.push(row);
        if availability == Availability::Disabled {
            self.evict(name, Some(slot), &format!("slot {slot} of agent {name} was disabled"));
        }
        self.pace.wanted();
        let shown = self.shown_agent(name).ok_or_else(|| missing(name));
        self.answer(reply, shown);
    }

    /// Ends what runs on an agent, or on one of its slots; it is started again elsewhere.
    fn evict(&mut self, agent: &str, slot: Option<u32>, why: &str) {
        let mut hit = Vec::new();
        for allocation in self.allocations.values().filter(|allocation| allocation.ended_at.is_none()) {
            let Some(placed) = &allocation.placed else { continue };
            let shares = placed.gang.alive().filter_map(|rank| placed.shares.get(rank));
            let mut here = shares.filter(|share| share.agent == agent);
            if here.any(|share| slot.is_none_or(|slot| share.devices.contains(&slot))) {
                hit.push(allocation.id.clone());
            }
        }
        for name in hit {
            self.happened(&name, Happening::Evicted { why: why.to_owned() });
        }
    }

    /// Changes a job that the database knows to be changed. `false` if it does not live.
    pub(super) fn change_job(&mut self, job: &JobOf, change: JobChange, reply: Reply<bool>) {
        let found = match job {
            JobOf::Experiment(id) => {
                self.experiments.get_mut(id).map(|live| (&mut live.config.resources, &mut live.position))
            }
            JobOf::Single(task) => {
                self.singles.get_mut(task).map(|live| (&mut live.config.resources, &mut live.position))
            }
        };
        let Some((resources, place)) = found else { return self.answer(reply, Ok(false)) };
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
            self.move_to(job, &pool);
        }
        if let JobOf::Experiment(id) = job
            && let Some(live) = self.experiments.get_mut(id)
        {
            live.full["resources"] = live.config.to_json()["resources"].clone();
        }
        self.pace.wanted();
        self.answer(reply, Ok(true));
    }

    /// What waits asks for slots of the new pool; what runs makes room and asks there.
    fn move_to(&mut self, job: &JobOf, pool: &str) {
        let mut running = Vec::new();
        for allocation in self.allocations.values_mut() {
            let mine = match job {
                JobOf::Experiment(id) => allocation.experiment() == Some(*id),
                JobOf::Single(task) => allocation.task == *task,
            };
            if !mine || allocation.ended_at.is_some() || allocation.pool == pool {
                continue;
            }
            match allocation.placed {
                None => {
                    pool.clone_into(&mut allocation.pool);
                    self.changed.allocations.insert(allocation.id.clone());
                }
                Some(_) => running.push(allocation.id.clone()),
            }
        }
        for name in running {
            self.happened(&name, Happening::Displaced { why: format!("its job was moved to pool {pool}") });
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
        let single = || self.singles.iter().find(|(_, live)| live.job == job);
        match experiment {
            Some((id, _)) => Some(JobOf::Experiment(*id)),
            None => single().map(|(task, _)| JobOf::Single(task.clone())),
        }
    }
}
