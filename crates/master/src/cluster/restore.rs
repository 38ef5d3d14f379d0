//! What is found in the database at the start: everything goes on from where it stood.
//!
//! Runs that had slots are awaited: their agents say what became of them, or are given up. What was decided and may not
//! have been done is done again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use instep_api::identifiers::TrialId;
use instep_api::states::AllocationState;
use instep_database::AllocationRow;
use instep_policy::lifecycle::allocation::Phase;
use instep_policy::lifecycle::{Effect, End, Event, Run};

use super::actor::{Act, Actor};
use super::agents::Agent;
use super::allocation::{Allocation, Purpose};
use super::experiments::Live;
use super::singles::LiveSingle;
use crate::clock::now;

impl Actor {
    /// Loads everything that lives. It is acted on when the task runs.
    pub(super) async fn restore(&mut self) -> instep_database::Result<()> {
        for row in self.database.agents().await? {
            self.agents.insert(row.name.clone(), Agent::awaited(row));
        }
        let positions = self.database.job_positions().await?;
        let mut fresh = Vec::new();
        for found in self.database.live_experiments(now()).await? {
            let id = found.experiment.id;
            match Live::of(&found) {
                Ok(mut live) => {
                    live.position = positions.get(&live.job).copied().unwrap_or(live.position);
                    for trial in &found.trials {
                        self.trials.insert(trial.id, (id, trial.request.clone()));
                    }
                    if found.standing.whole.is_none() {
                        fresh.push(id);
                    }
                    self.experiments.insert(id, live);
                }
                // It stays as it is stored, for a version that can read it.
                Err(why) => tracing::error!(experiment = id.0, why, "cannot resume an experiment"),
            }
        }
        self.restore_singles(&positions).await?;
        self.restore_allocations().await?;
        for id in fresh {
            self.event(id, Event::Started);
        }
        self.repeat();
        for id in self.database.uncollected_experiments().await? {
            self.later(Act::Collect(id));
        }
        self.wait_for_busy_agents();
        self.pace.wanted();
        Ok(())
    }

    /// An agent that ran nothing is not waited for.
    fn wait_for_busy_agents(&mut self) {
        let placed = self.allocations.values().filter_map(|allocation| allocation.placed.as_ref());
        let busy: BTreeSet<String> =
            placed.flat_map(|placed| placed.shares.iter().map(|share| share.agent.clone())).collect();
        let (awaited, absent) = std::mem::take(&mut self.agents).into_iter().partition(|(name, _)| busy.contains(name));
        self.agents = awaited;
        let absent: BTreeMap<String, Agent> = absent;
        self.absent = absent.into_iter().map(|(name, agent)| (name, agent.wishes())).collect();
    }

    async fn restore_allocations(&mut self) -> instep_database::Result<()> {
        for row in self.database.open_allocations().await? {
            let purpose = self.purpose_of(&row);
            let Some(mut allocation) = purpose.and_then(|purpose| Allocation::restored(&row, purpose)) else {
                continue;
            };
            let current = self.is_current(&allocation);
            if let Some(placed) = &allocation.placed {
                self.ports.claim(&placed.ports);
            }
            if !current && allocation.placed.is_none() {
                allocation.ended_at = Some(now());
                allocation.state = AllocationState::Terminated;
                allocation.reason = "it is no longer needed".to_owned();
            }
            let (id, stray) = (allocation.id.clone(), !current && allocation.placed.is_some());
            self.allocations.insert(id.clone(), allocation);
            if stray {
                self.stop_shares(&id, 0, "it is no longer needed");
            } else if !current {
                self.changed.allocations.insert(id);
            }
        }
        Ok(())
    }

    fn purpose_of(&self, row: &AllocationRow) -> Option<Purpose> {
        let Some(trial) = row.trial else {
            return self.singles.contains_key(&row.task_id).then_some(Purpose::Single);
        };
        let (experiment, request) = self.trials.get(&trial)?.clone();
        let run = Run { request, number: u32::try_from(row.run).ok()? };
        Some(Purpose::Trial { experiment, trial, run })
    }

    /// Those that were never queued are queued now; those whose end the master did not hear of are still awaited.
    async fn restore_singles(&mut self, positions: &HashMap<String, i64>) -> instep_database::Result<()> {
        for row in self.database.live_singles().await? {
            match LiveSingle::of(&row) {
                Ok(mut live) => {
                    live.position = positions.get(&live.job).copied().unwrap_or(live.position);
                    match row.allocation {
                        None => self.queue_single(row.task, live),
                        Some(_) => {
                            self.singles.insert(row.task, live);
                        }
                    }
                }
                // It stays as it is stored, for a version that can read it.
                Err(why) => tracing::error!(task = row.task, why, "cannot resume a task"),
            }
        }
        Ok(())
    }

    fn is_current(&self, allocation: &Allocation) -> bool {
        let Purpose::Trial { experiment, run, .. } = &allocation.purpose else { return true };
        let live = self.experiments.get(experiment);
        let trial = live.and_then(|live| live.machine.trials().get(&run.request));
        trial.and_then(|trial| trial.allocation_name()).as_deref() == Some(allocation.id.as_str())
    }

    /// Does again what may not have been done.
    fn repeat(&mut self) {
        let ids: Vec<_> = self.experiments.keys().copied().collect();
        for id in ids {
            let Some(live) = self.experiments.get(&id) else { continue };
            let mut effects = live.machine.repeat();
            let mut lost = Vec::new();
            for trial in live.machine.trials().values() {
                let Some(run) = &trial.allocation else { continue };
                let known = trial.allocation_name().is_some_and(|name| self.allocations.contains_key(&name));
                if run.phase > Phase::Asked && !known {
                    lost.push(Run { request: trial.request.clone(), number: run.run });
                }
            }
            // Trials that the database made, and whose number the experiment has not heard.
            let made: Vec<(String, TrialId)> = self
                .trials
                .iter()
                .filter(|(_, (experiment, _))| *experiment == id)
                .filter(|(_, (_, request))| live.machine.trials().get(request).is_some_and(|trial| trial.id.is_none()))
                .map(|(trial, (_, request))| (request.clone(), *trial))
                .collect();
            effects.retain(|effect| {
                !matches!(effect, Effect::MakeTrial { request, .. }
                    if made.iter().any(|(known, _)| known == request))
            });
            for effect in effects {
                self.effect(id, effect);
            }
            for (request, trial) in made {
                self.trial_made(id, &request, trial);
            }
            for run in lost {
                let why = "the master did not find it after a restart".to_owned();
                self.event(id, Event::Ended { run, end: End::NotStarted { why } });
            }
        }
    }
}
