//! Everything that lives in the cluster, by the part that owns it, and what happens between the parts.
//!
//! Events flow one way: agents report about allocations, allocations tell experiments and commands, and those act on
//! allocations again. What is to be stored or sent goes into the [`Outbox`].

use std::time::Duration;

use instep_api::identifiers::ExperimentId;
use instep_database::Decision;
use instep_policy::lifecycle::Event;
use instep_policy::lifecycle::command::CommandEvent;

use super::ClusterOptions;
use super::agents::Agents;
use super::allocation::{Allocation, AllocationEvent, Purpose};
use super::allocations::Allocations;
use super::commands::Commands;
use super::engines::Engines;
use super::experiments::Experiments;
use super::outbox::{Changed, Outbox};
use super::scheduler::Scheduler;
use crate::clock::now;

pub(crate) struct ClusterState {
    pub(super) options: ClusterOptions,
    pub(super) experiments: Experiments,
    pub(super) commands: Commands,
    pub(super) allocations: Allocations,
    pub(super) agents: Agents,
    pub(super) scheduler: Scheduler,
    pub(super) engines: Engines,
}

impl ClusterState {
    pub(super) fn new(options: ClusterOptions, agents: Agents, scheduler: Scheduler, engines: Engines) -> ClusterState {
        ClusterState {
            options,
            experiments: Experiments::default(),
            commands: Commands::default(),
            allocations: Allocations::default(),
            agents,
            scheduler,
            engines,
        }
    }

    pub(crate) fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// Feeds an event to an experiment, and does what follows.
    pub(super) fn experiment_event(&mut self, id: ExperimentId, event: Event, outbox: &mut Outbox) {
        self.experiments.on(id, event, &mut self.allocations, outbox);
    }

    /// Tells the experiment or command that an allocation belongs to what happened to it.
    pub(super) fn allocation_event(&mut self, name: &str, event: AllocationEvent, outbox: &mut Outbox) {
        let Some(allocation) = self.allocations.get(name) else { return };
        match allocation.purpose.clone() {
            Purpose::Trial { experiment, run, .. } => {
                self.experiments.on(experiment, event.of_run(run), &mut self.allocations, outbox);
            }
            Purpose::Command { .. } => {
                let task = allocation.task.clone();
                if let Some(event) = event.of_command() {
                    self.commands.on(&task, event, &mut self.allocations, outbox);
                }
            }
        }
    }

    /// How long no experiment or command has a deadline; `None` if none has any.
    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let engines = self.engines.deadline();
        let soonest = self.experiments.deadlines().chain(self.commands.deadlines()).chain(engines).min()?;
        Some(Duration::from_micros(u64::try_from(soonest.0.saturating_sub(now().0)).unwrap_or(0)))
    }

    pub(super) fn tick(&mut self, outbox: &mut Outbox) {
        let moment = now();
        for id in self.experiments.due(moment) {
            self.experiment_event(id, Event::Tick, outbox);
        }
        for task in self.commands.due(moment) {
            self.commands.on(&task, CommandEvent::Tick, &mut self.allocations, outbox);
        }
    }

    /// Adds the rows of everything that has changed, as it is now.
    pub(super) fn add_rows(&mut self, mut decision: Decision, changed: Changed) -> Decision {
        for id in changed.experiments {
            decision.experiments.extend(self.experiments.row(id));
        }
        for (id, request) in changed.trials {
            decision.trials.extend(self.experiments.trial_row(id, &request));
        }
        for id in changed.allocations {
            decision.allocations.extend(self.allocations.get(&id).map(Allocation::row));
        }
        decision
    }

    /// Removes what has ended; `true` if allocations did.
    pub(super) fn reap(&mut self) -> bool {
        self.experiments.reap();
        self.allocations.reap()
    }
}
