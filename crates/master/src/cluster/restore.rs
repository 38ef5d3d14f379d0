//! What is found in the database at the start: everything resumes from where it was.
//!
//! Runs that had slots are awaited: their agents say what became of them, or are given up. What was decided and may not
//! have been done is done again.

use std::collections::HashMap;

use instep_api::identifiers::ExperimentId;
use instep_api::states::AllocationState;
use instep_database::{AllocationRow, CommandRow, LiveExperiment};
use instep_policy::lifecycle::allocation::Phase;
use instep_policy::lifecycle::{Effect, End, Event, Run};

use super::actor::Actor;
use super::allocation::{Allocation, Purpose};
use super::commands::LiveCommand;
use super::experiments::Live;
use super::outbox::{Action, Outbox};
use super::state::ClusterState;
use crate::clock::now;

/// The places of jobs that were moved in the queue.
type Positions = HashMap<String, i64>;

impl Actor {
    /// Loads everything that lives. It is acted on when the task runs.
    pub(super) async fn restore(&mut self) -> instep_database::Result<()> {
        let (state, outbox) = (&mut self.state, &mut self.outbox);
        let agents = self.database.agents().await?;
        let positions = self.database.job_positions().await?;
        let fresh = state.restore_experiments(self.database.live_experiments(now()).await?, &positions);
        state.restore_commands(self.database.live_commands().await?, &positions, outbox);
        state.restore_allocations(self.database.open_allocations().await?, outbox);
        for id in fresh {
            state.experiment_event(id, Event::Started, outbox);
        }
        state.repeat_effects(outbox);
        for id in self.database.uncollected_experiments().await? {
            outbox.after_commit(Action::Collect(id));
        }
        let busy = state.allocations.busy_agents();
        state.agents.restore(agents, &busy);
        state.wait_for_bound_agents();
        outbox.request_pass();
        Ok(())
    }
}

impl ClusterState {
    /// Gives those that were never started.
    fn restore_experiments(&mut self, found: Vec<LiveExperiment>, positions: &Positions) -> Vec<ExperimentId> {
        let mut fresh = Vec::new();
        for found in found {
            let id = found.experiment.id;
            match Live::of(&found) {
                Ok(mut live) => {
                    live.position = positions.get(&live.job).copied().unwrap_or(live.position);
                    if found.stored.snapshot.is_none() {
                        fresh.push(id);
                    }
                    self.experiments.insert(&found, live);
                }
                // It stays as it is stored, for a version that can read it.
                Err(why) => tracing::error!(experiment = id.0, why, "cannot resume an experiment"),
            }
        }
        fresh
    }

    /// Those that were never queued are queued now; those whose end the master did not hear of are still awaited.
    fn restore_commands(&mut self, rows: Vec<CommandRow>, positions: &Positions, outbox: &mut Outbox) {
        for row in rows {
            match LiveCommand::of(&row) {
                Ok(mut live) => {
                    live.position = positions.get(&live.job).copied().unwrap_or(live.position);
                    match row.allocation {
                        None => self.commands.queue(row.task, live, &mut self.allocations, outbox),
                        Some(_) => self.commands.insert(row.task, live),
                    }
                }
                // It stays as it is stored, for a version that can read it.
                Err(why) => tracing::error!(task = row.task, why, "cannot resume a task"),
            }
        }
    }

    fn restore_allocations(&mut self, rows: Vec<AllocationRow>, outbox: &mut Outbox) {
        for row in rows {
            let purpose = self.purpose_of(&row);
            let Some(mut allocation) = purpose.and_then(|purpose| Allocation::restored(&row, purpose)) else {
                continue;
            };
            let current = self.is_current(&allocation);
            if !current && allocation.placed.is_none() {
                allocation.ended_at = Some(now());
                allocation.state = AllocationState::Terminated;
                allocation.reason = "it is not needed any more".to_owned();
            }
            let (id, stray) = (allocation.id.clone(), !current && allocation.placed.is_some());
            self.allocations.restore(allocation);
            if stray {
                self.allocations.stop(&id, 0, "it is not needed any more", outbox);
            } else if !current {
                outbox.allocation_changed(&id);
            }
        }
    }

    fn purpose_of(&self, row: &AllocationRow) -> Option<Purpose> {
        let Some(trial) = row.trial else {
            let run = u32::try_from(row.run).ok()?;
            return self.commands.get(&row.task_id).map(|_| Purpose::Command { run });
        };
        let (experiment, request) = self.experiments.of_trial(trial)?.clone();
        let run = Run { request, number: u32::try_from(row.run).ok()? };
        Some(Purpose::Trial { experiment, trial, run })
    }

    fn is_current(&self, allocation: &Allocation) -> bool {
        let Purpose::Trial { experiment, run, .. } = &allocation.purpose else { return true };
        let live = self.experiments.get(*experiment);
        let trial = live.and_then(|live| live.machine.trials().get(&run.request));
        trial.and_then(|trial| trial.allocation_name()).as_deref() == Some(allocation.id.as_str())
    }

    /// Does again what may not have been done.
    fn repeat_effects(&mut self, outbox: &mut Outbox) {
        let ids: Vec<ExperimentId> = self.experiments.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Some(live) = self.experiments.get(id) else { continue };
            let mut effects = live.machine.repeat();
            let lost = self.lost_runs(live);
            let made = self.experiments.unannounced_trials(id);
            effects.retain(|effect| {
                !matches!(effect, Effect::MakeTrial { request, .. }
                    if made.iter().any(|(known, _)| known == request))
            });
            for effect in effects {
                self.experiments.apply(id, effect, &mut self.allocations, outbox);
            }
            for (request, trial) in made {
                self.experiments.trial_created(id, &request, trial, &mut self.allocations, outbox);
            }
            for run in lost {
                let why = "the master did not find it after a restart".to_owned();
                self.experiment_event(id, Event::Ended { run, end: End::NotStarted { why } }, outbox);
            }
        }
    }

    /// Runs that had slots, of which the database knows no allocation.
    fn lost_runs(&self, live: &Live) -> Vec<Run> {
        let mut lost = Vec::new();
        for trial in live.machine.trials().values() {
            let Some(run) = &trial.allocation else { continue };
            let known = trial.allocation_name().is_some_and(|name| self.allocations.get(&name).is_some());
            if run.phase > Phase::Asked && !known {
                lost.push(Run { request: trial.request.clone(), number: run.run });
            }
        }
        lost
    }
}
