//! What people change about agents and about jobs while they run.

use instep_api::agents::Agent as ShownAgent;
use instep_api::identifiers::ExperimentId;
use instep_policy::lifecycle::Event;
use instep_policy::schedule::{self, Moved, Side};

use super::actor::Actor;
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
                hit.push((allocation.experiment, allocation.run.clone()));
            }
        }
        for (experiment, run) in hit {
            self.event(experiment, Event::Evicted { run, why: why.to_owned() });
        }
    }

    /// Changes a job that the database knows to be changed. `false` if it does not live.
    pub(super) fn change_job(&mut self, id: ExperimentId, change: JobChange, reply: Reply<bool>) {
        let Some(live) = self.experiments.get_mut(&id) else { return self.answer(reply, Ok(false)) };
        let resources = &mut live.config.resources;
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
            live.position = position;
        }
        if let Some(pool) = change.pool {
            live.config.resources.resource_pool = pool.clone();
            self.move_to(id, &pool);
        }
        if let Some(live) = self.experiments.get_mut(&id) {
            live.full["resources"] = live.config.to_json()["resources"].clone();
        }
        self.pace.wanted();
        self.answer(reply, Ok(true));
    }

    /// What waits asks for slots of the new pool; what runs makes room and asks there.
    fn move_to(&mut self, id: ExperimentId, pool: &str) {
        let mut running = Vec::new();
        for allocation in self.allocations.values_mut() {
            if allocation.experiment != id || allocation.ended_at.is_some() || allocation.pool == pool {
                continue;
            }
            match allocation.placed {
                None => {
                    pool.clone_into(&mut allocation.pool);
                    self.changed.allocations.insert(allocation.id.clone());
                }
                Some(_) => running.push(allocation.run.clone()),
            }
        }
        for run in running {
            self.event(id, Event::Displaced { run, why: format!("its job was moved to pool {pool}") });
        }
    }

    /// Where jobs stand once one is moved next to another.
    pub(crate) fn moved(&self, job: &str, side: Side, anchor: &str) -> Result<Vec<(ExperimentId, Moved)>, Refusal> {
        let moved = schedule::move_job(&self.queue(), job, side, anchor).map_err(Refusal::Invalid)?;
        Ok(moved.into_iter().filter_map(|moved| Some((self.experiment_of(&moved.job)?, moved))).collect())
    }

    /// The experiment of a job that has not ended.
    pub(crate) fn experiment_of(&self, job: &str) -> Option<ExperimentId> {
        self.experiments.iter().find(|(_, live)| live.job == job).map(|(id, _)| *id)
    }
}
