//! Experiments, trials, allocations, checkpoints, models and templates.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Importer, decline, decline_below, note_there, owner};
use crate::error::Result;
use crate::mapping::work::{self, TrialDetails};
use crate::tables;

/// What is known of trials, by their ids in Determined.
#[derive(Default)]
pub(super) struct Trials {
    /// The tasks of those that are added, the first run's first.
    tasks: HashMap<i64, Vec<String>>,
    /// The trial of a task, of those that are here already too.
    of_task: HashMap<String, i64>,
    /// The experiment of a trial, likewise.
    experiments: HashMap<i64, i64>,
}

impl Trials {
    /// The first task of a trial.
    pub(super) fn first_task(&self, trial: i64) -> Option<&str> {
        self.tasks.get(&trial)?.first().map(String::as_str)
    }

    /// The trial of a task, if it is here in the end.
    pub(super) fn of_task(&self, task: &str) -> Option<i64> {
        self.of_task.get(task).copied()
    }
}

impl Importer<'_> {
    pub(super) fn experiments(&mut self) -> Result<()> {
        let (plan, cluster) = (self.plan, self.cluster);
        self.stage(
            &tables::EXPERIMENTS,
            |row, notes| {
                let source = row.integer("id")?;
                let project = plan.projects.id(row.integer("project_id")?);
                let (Some(id), Some(project)) = (plan.experiments.new_id(source), project) else {
                    decline(&plan.experiments, source, &mut notes.tally);
                    return Ok(None);
                };
                let parent = row.optional_integer("parent_id")?.and_then(|id| plan.experiments.id(id));
                let owner = owner(plan, row, "owner_id")?;
                let mut experiment = work::experiment(row, id, project, owner, parent)?;
                // One of another script that reports here under the same name: it goes on reporting there.
                experiment.external_id.take_if(|text| plan.external_ids.contains(text));
                Ok(Some((source, experiment)))
            },
            |batch, experiments, tally| {
                for (source, experiment) in experiments {
                    batch.experiment(&experiment)?;
                    batch.note(cluster, "experiment", &source.to_string(), experiment.id)?;
                    tally.taken_over += 1;
                }
                Ok(())
            },
        )
    }

    /// Adds the trials and their tasks.
    pub(super) fn trials(&mut self) -> Result<Trials> {
        let (plan, cluster) = (self.plan, self.cluster);
        let mut times = HashMap::new();
        let mut others = 0;
        self.each(&tables::TASKS, |row| {
            if row.text("task_type")? == "TRIAL" {
                times.insert(row.text("task_id")?, (row.time("start_time")?, row.optional_time("end_time")?));
            } else {
                others += 1;
            }
            Ok(())
        })?;
        let mut trials = Trials::default();
        self.each(&tables::TRIAL_TASKS, |row| {
            let (trial, task) = (row.integer("run_id")?, row.text("task_id")?);
            if plan.trials.id(trial).is_some() {
                trials.of_task.insert(task.clone(), trial);
            }
            if plan.trials.new_id(trial).is_some() {
                trials.tasks.entry(trial).or_default().push(task);
            }
            Ok(())
        })?;
        for tasks in trials.tasks.values_mut() {
            tasks.sort_by_key(|task| (times.get(task).map(|(start, _)| start.0), task.clone()));
        }
        let mut details: HashMap<i64, TrialDetails> = HashMap::new();
        self.each(&tables::TRIAL_REQUESTS, |row| {
            if let Some(trial) = row.optional_integer("run_id")? {
                let detail = details.entry(trial).or_default();
                detail.request_id = row.optional_text("request_id")?;
                detail.seed = row.integer("seed")?;
            }
            Ok(())
        })?;
        self.each(&tables::TRIAL_METADATA, |row| {
            details.entry(row.integer("run_id")?).or_default().metadata = row.optional_text("metadata")?;
            Ok(())
        })?;
        self.each(&tables::TRIAL_IDS, |row| {
            let (trial, experiment) = (row.integer("id")?, row.integer("experiment_id")?);
            if plan.trials.id(trial).is_some() {
                trials.experiments.insert(trial, experiment);
            }
            if plan.trials.new_id(trial).is_some() {
                let tasks = trials.tasks.entry(trial).or_default();
                if tasks.is_empty() {
                    // Every trial has a task here. Those of the earliest versions had none.
                    let task = format!("{cluster}.{experiment}.{trial}");
                    trials.of_task.insert(task.clone(), trial);
                    tasks.push(task);
                }
            }
            Ok(())
        })?;
        let known = &trials;
        self.stage(
            &tables::TRIALS,
            |row, notes| {
                let source = row.integer("id")?;
                let experiment = plan.experiments.id(row.integer("experiment_id")?);
                let (Some(id), Some(experiment), Some(tasks)) =
                    (plan.trials.new_id(source), experiment, known.tasks.get(&source))
                else {
                    decline(&plan.trials, source, &mut notes.tally);
                    return Ok(None);
                };
                let details = details.remove(&source).unwrap_or_default();
                let trial = work::trial(row, id, experiment, tasks[0].clone(), details)?;
                let spans = tasks.iter().map(|task| {
                    let (start, end) = times.get(task).copied().unwrap_or((trial.started_at, None));
                    (task.clone(), start, end.unwrap_or(trial.ended_at))
                });
                let spans: Vec<_> = spans.collect();
                Ok(Some((source, trial, spans)))
            },
            |batch, trials, tally| {
                for (source, trial, tasks) in trials {
                    batch.trial(&trial)?;
                    for (task, start, end) in tasks {
                        batch.task(&task, trial.id, start, end)?;
                    }
                    batch.note(cluster, "trial", &source.to_string(), trial.id)?;
                    tally.taken_over += 1;
                }
                Ok(())
            },
        )?;
        if others > 0 {
            let tally = self.summary.tables.entry(tables::TASKS.name.to_owned()).or_default();
            tally.not_taken_over.insert("commands, notebooks, shells, TensorBoards and clean-up".to_owned(), others);
        }
        Ok(trials)
    }

    /// Adds when trials ran, on how many slots.
    pub(super) fn allocations(&mut self, trials: &Trials) -> Result<()> {
        let plan = self.plan;
        self.stage(
            &tables::ALLOCATIONS,
            |row, notes| {
                let source = trials.of_task(&row.text("task_id")?);
                let experiment = source.and_then(|trial| plan.experiments.id(*trials.experiments.get(&trial)?));
                let trial = source.and_then(|source| plan.trials.id(source));
                let (Some(trial), Some(experiment)) = (trial, experiment) else {
                    decline_below(&plan.trials, source, &mut notes.tally);
                    return Ok(None);
                };
                let allocation = work::allocation(row, trial, experiment)?;
                if allocation.is_none() {
                    notes.tally.lose("it never ran");
                } else if source.and_then(|source| plan.trials.new_id(source)).is_none() {
                    decline_below(&plan.trials, source, &mut notes.tally);
                    return Ok(None);
                }
                Ok(allocation)
            },
            |batch, allocations, tally| {
                for allocation in allocations {
                    match batch.allocation(&allocation)? {
                        true => tally.taken_over += 1,
                        false => tally.there_already += 1,
                    }
                }
                Ok(())
            },
        )
    }

    /// Adds what is known of checkpoints, and says which trials started from which.
    pub(super) fn checkpoints(&mut self, trials: &Trials) -> Result<()> {
        let plan = self.plan;
        let storages = self.storages()?;
        let mut owners: HashMap<String, i64> = HashMap::new();
        self.each(&tables::TRIAL_CHECKPOINTS, |row| {
            owners.insert(row.text("checkpoint_id")?, row.integer("run_id")?);
            Ok(())
        })?;
        let mut warm: HashMap<i64, Vec<i64>> = HashMap::new();
        self.each(&tables::TRIAL_IDS, |row| {
            let trial = plan.trials.new_id(row.integer("id")?);
            if let (Some(trial), Some(checkpoint)) = (trial, row.optional_integer("warm_start_checkpoint_id")?) {
                warm.entry(checkpoint).or_default().push(trial);
            }
            Ok(())
        })?;
        self.stage(
            &tables::CHECKPOINTS,
            |row, notes| {
                let uuid = row.text("uuid")?;
                let started = row.optional_integer("id")?.and_then(|id| warm.remove(&id)).unwrap_or_default();
                let trial = owners.get(&uuid).copied();
                let Some((source, id)) = trial.and_then(|source| Some((source, plan.trials.new_id(source)?))) else {
                    decline_below(&plan.trials, trial, &mut notes.tally);
                    return Ok(Some((None, uuid, started)));
                };
                let task = row.optional_text("task_id")?.filter(|task| trials.of_task(task).is_some());
                let task = task.or_else(|| trials.first_task(source).map(str::to_owned)).unwrap_or_default();
                let storage = row.optional_integer("storage_id")?.and_then(|id| storages.get(&id).cloned());
                Ok(Some((Some(work::checkpoint(row, id, task, storage)?), uuid, started)))
            },
            |batch, checkpoints, tally| {
                for (checkpoint, uuid, started) in checkpoints {
                    if let Some(checkpoint) = checkpoint {
                        match batch.checkpoint(&checkpoint)? {
                            true => tally.taken_over += 1,
                            false => tally.lose("there is a checkpoint with this UUID here"),
                        }
                    }
                    for trial in started {
                        batch.warm_start(trial, &uuid)?;
                    }
                }
                Ok(())
            },
        )
    }

    /// Where checkpoints lie, as configurations spell it, by id.
    fn storages(&mut self) -> Result<HashMap<i64, Value>> {
        let mut found: HashMap<(&str, i64), Value> = HashMap::new();
        for (column, kind, table) in tables::STORAGE_KINDS {
            self.each(table, |row| {
                let mut config = Map::from_iter([("type".to_owned(), Value::from(*kind))]);
                for name in table.columns.iter().filter(|name| **name != "id") {
                    config.extend(row.optional_text(name)?.map(|text| ((*name).to_owned(), Value::from(text))));
                }
                found.insert((*column, row.integer("id")?), Value::Object(config));
                Ok(())
            })?;
        }
        let mut storages = HashMap::new();
        self.each(&tables::STORAGES, |row| {
            for (column, _, _) in tables::STORAGE_KINDS {
                let config = row.optional_integer(column)?.and_then(|id| found.get(&(*column, id)));
                if let Some(config) = config {
                    storages.insert(row.integer("id")?, config.clone());
                }
            }
            Ok(())
        })?;
        Ok(storages)
    }

    /// Adds models, their versions and the templates.
    pub(super) fn models(&mut self) -> Result<()> {
        let (plan, cluster, now) = (self.plan, self.cluster, self.now);
        self.stage(
            &tables::MODELS,
            |row, notes| {
                let source = row.integer("id")?;
                let place = plan.workspaces.id(row.integer("workspace_id")?);
                let (Some(id), Some(place)) = (plan.models.new_id(source), place) else {
                    decline(&plan.models, source, &mut notes.tally);
                    return Ok(None);
                };
                Ok(Some((source, work::model(row, id, place, owner(plan, row, "user_id")?)?)))
            },
            |batch, models, tally| {
                for (source, model) in models {
                    batch.model(&model)?;
                    batch.note(cluster, "model", &source.to_string(), model.id)?;
                    tally.taken_over += 1;
                }
                note_there(batch, cluster, "model", &plan.models)
            },
        )?;
        self.stage(
            &tables::MODEL_VERSIONS,
            |row, notes| {
                let source = row.integer("id")?;
                let model = plan.models.id(row.integer("model_id")?);
                let (Some(id), Some(model)) = (plan.model_versions.new_id(source), model) else {
                    decline(&plan.model_versions, source, &mut notes.tally);
                    return Ok(None);
                };
                Ok(Some((source, work::model_version(row, id, model, owner(plan, row, "user_id")?)?)))
            },
            |batch, versions, tally| {
                for (source, version) in versions {
                    if !batch.has_checkpoint(&version.checkpoint)? {
                        tally.lose("its checkpoint is not taken over");
                    } else if batch.model_version(&version)? {
                        batch.note(cluster, "model version", &source.to_string(), version.id)?;
                        tally.taken_over += 1;
                    } else {
                        tally.lose("the model has a version with this number here");
                    }
                }
                Ok(())
            },
        )?;
        self.stage(
            &tables::TEMPLATES,
            |row, notes| {
                let place = plan.workspaces.id(row.integer("workspace_id")?);
                match (plan.templates.contains(&row.text("name")?), place) {
                    (true, Some(place)) => Ok(Some(work::template(row, place, plan.users.id(1).unwrap_or(1), now)?)),
                    (true, None) => {
                        notes.tally.lose("its workspace is not here");
                        Ok(None)
                    }
                    (false, _) => {
                        notes.tally.there_already += 1;
                        Ok(None)
                    }
                }
            },
            |batch, templates, tally| {
                for template in templates {
                    match batch.template(&template)? {
                        true => tally.taken_over += 1,
                        false => tally.there_already += 1,
                    }
                }
                Ok(())
            },
        )
    }
}
