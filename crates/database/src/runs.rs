//! Runs: trials as Determined's newer pages see them, each with its experiment and project.

use std::collections::BTreeMap;
use std::sync::Arc;

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, ProjectId, TrialId};
use instep_api::trials::Trial;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::{Error, Result};
use crate::experiments::best_trial;
use crate::sql::{Connection, OptionalExtension, params};
use crate::trials::{complete, forget, trial_by_id, trials_of};

/// A trial, and what it belongs to.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its summary of metrics is there if that was wanted.
    pub trial: Trial,
    /// Of the trial alone; its experiment may be archived as well.
    pub archived: bool,
    /// The id that whoever runs it elsewhere has given it.
    pub external_id: Option<String>,
    /// Of the project.
    pub project_key: String,
    /// What it is part of.
    pub experiment: Arc<Experiment>,
}

fn project_key(connection: &Connection, id: ProjectId) -> Result<String> {
    let mut statement = connection.prepare_cached("SELECT key FROM projects WHERE id = ?")?;
    Ok(statement.query_row([id.0], |row| row.get(0))?)
}

/// Whether a trial is archived, and its external id.
fn marks(connection: &Connection, id: TrialId) -> Result<(bool, Option<String>)> {
    let mut statement = connection.prepare_cached("SELECT archived, external_id FROM trials WHERE id = ?")?;
    Ok(statement.query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

impl Database {
    /// The runs of some experiments; with their summaries of metrics if wanted, which have to be read from metrics.
    pub async fn runs_of(&self, experiments: Vec<Experiment>, with_metrics: bool, now: Timestamp) -> Result<Vec<Run>> {
        self.executor
            .read(move |connection| {
                let mut runs = Vec::new();
                for experiment in experiments.into_iter().map(Arc::new) {
                    let project_key = project_key(connection, experiment.project_id)?;
                    for trial in trials_of(connection, experiment.id, now)? {
                        let (archived, external_id) = marks(connection, trial.id)?;
                        let trial = if with_metrics { complete(connection, trial)? } else { trial };
                        let (project_key, experiment) = (project_key.clone(), Arc::clone(&experiment));
                        runs.push(Run { trial, archived, external_id, project_key, experiment });
                    }
                }
                Ok(runs)
            })
            .await
    }

    /// The trial with the best validation of each experiment that has one, with its external id.
    pub async fn best_trials(
        &self,
        experiments: Vec<ExperimentId>,
        now: Timestamp,
    ) -> Result<BTreeMap<ExperimentId, (Trial, Option<String>)>> {
        self.executor
            .read(move |connection| {
                let mut found = BTreeMap::new();
                for id in experiments {
                    if let Some((trial, _)) = best_trial(connection, id)? {
                        let (_, external_id) = marks(connection, trial)?;
                        found.insert(id, (trial_by_id(connection, trial, now)?, external_id));
                    }
                }
                Ok(found)
            })
            .await
    }

    /// Puts a run into the archive, or takes it out again.
    pub async fn archive_run(&self, id: TrialId, archived: bool) -> Result<()> {
        self.executor
            .write(move |connection| {
                let changed =
                    connection.execute("UPDATE trials SET archived = ? WHERE id = ?", params![archived, id.0])?;
                if changed == 0 { Err(Error::not_found("trial", id)) } else { Ok(()) }
            })
            .await
    }

    /// Deletes a run that has ended, and gives its checkpoints up; which they were. Its experiment stays.
    pub async fn delete_run(&self, id: TrialId, now: Timestamp) -> Result<Vec<String>> {
        self.executor
            .write(move |connection| {
                let trial = trial_by_id(connection, id, now)?;
                if !trial.state.is_terminal() {
                    return Err(Error::Precondition("Run is not in a terminal state.".to_owned()));
                }
                let uuids = crate::deletions::give_up_of_trial(connection, id)?;
                forget(connection, id)?;
                Ok(uuids)
            })
            .await
    }

    /// The project that has this key.
    pub async fn project_by_key(&self, key: String) -> Result<Option<ProjectId>> {
        self.executor
            .read(move |connection| {
                let mut statement = connection.prepare_cached("SELECT id FROM projects WHERE key = ?")?;
                Ok(statement.query_row([key], |row| row.get(0).map(ProjectId)).optional()?)
            })
            .await
    }
}
