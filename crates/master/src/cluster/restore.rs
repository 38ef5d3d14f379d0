//! What is found in the database at the start: everything goes on from where it stood.
//!
//! Runs that had slots are awaited: their agents say what became of them, or are given up. What was decided and may not
//! have been done is done again.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::identifiers::TrialId;
use instep_api::states::AllocationState;
use instep_policy::lifecycle::allocation::Phase;
use instep_policy::lifecycle::{Effect, End, Event, Run};

use super::actor::{Act, Actor};
use super::agents::Agent;
use super::allocation::Allocation;
use super::experiments::Live;
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
                    if found.snapshot.is_none() {
                        fresh.push(id);
                    }
                    self.experiments.insert(id, live);
                }
                // It stays as it is stored, for a version that can read it.
                Err(why) => tracing::error!(experiment = id.0, why, "cannot go on with an experiment"),
            }
        }
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
            let request = row.trial.and_then(|trial| self.trials.get(&trial)).map(|(_, request)| request.clone());
            let Some(mut allocation) = request.and_then(|request| Allocation::restored(&row, request)) else {
                continue;
            };
            let current = self.is_current(&allocation);
            if let Some(placed) = &allocation.placed {
                self.ports.claim(&placed.ports);
            }
            if !current && allocation.placed.is_none() {
                allocation.ended_at = Some(now());
                allocation.state = AllocationState::Terminated;
                allocation.reason = "nobody wants it any more".to_owned();
            }
            let (id, stray) = (allocation.id.clone(), !current && allocation.placed.is_some());
            self.allocations.insert(id.clone(), allocation);
            if stray {
                self.stop_shares(&id, 0, "nobody wants it any more");
            } else if !current {
                self.changed.allocations.insert(id);
            }
        }
        Ok(())
    }

    fn is_current(&self, allocation: &Allocation) -> bool {
        let live = self.experiments.get(&allocation.experiment);
        let trial = live.and_then(|live| live.machine.trials().get(&allocation.run.request));
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
                let why = "the master found no trace of it after a restart".to_owned();
                self.event(id, Event::Ended { run, end: End::NotStarted { why } });
            }
        }
    }
}
