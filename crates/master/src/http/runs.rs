//! One wish for many runs: those that are named, or all that a filter finds.
//!
//! A run is a trial. What only experiments can do (pausing, moving) is done to the experiment of a run.

use std::collections::BTreeSet;

use instep_api::identifiers::{ExperimentId, ProjectId, TrialId};
use instep_api::runs::{MoveRunsRequest, RunResult, RunsRequest, RunsResponse};
use instep_database::Subject;
use instep_policy::filter::{Filter, Table};
use instep_policy::lifecycle::Event;

use super::call::Call;
use super::control::{IfEnded, send_event};
use super::experiments::may_make_in;
use super::failure::Failure;
use super::models::undeleted;
use super::reply::Json;
use super::search::{FoundRun, seen_runs};
use crate::clock::now;
use crate::cluster::TrialReport;

/// Which runs are meant.
struct Meant {
    found: Vec<FoundRun>,
    /// Named, but not there or not to be seen.
    missing: Vec<TrialId>,
}

async fn meant(
    call: &Call,
    project: Option<ProjectId>,
    named: Option<Vec<TrialId>>,
    filter: Option<String>,
) -> Result<Meant, Failure> {
    let named = named.unwrap_or_default();
    let filter = filter.filter(|text| !text.is_empty());
    let filter = filter.map(|text| Filter::parse(&text, Table::Runs)).transpose().map_err(Failure::invalid)?;
    if filter.is_some() && !named.is_empty() {
        return Err(Failure::invalid("if filter is provided run id list must be empty"));
    }
    let filtered = filter.is_some();
    let mut found = seen_runs(call, project, filter, false).await?;
    if filtered {
        return Ok(Meant { found, missing: Vec::new() });
    }
    found.retain(|run| named.contains(&run.0.trial.id));
    let there: BTreeSet<TrialId> = found.iter().map(|run| run.0.trial.id).collect();
    Ok(Meant { found, missing: named.into_iter().filter(|id| !there.contains(id)).collect() })
}

/// What is wanted of each.
enum Wish {
    Kill,
    Pause,
    Resume,
    Archive(bool),
    Delete,
    Move { project: ProjectId, skip_multitrial: bool },
}

/// A refusal in the words of a run.
fn refused(why: impl Into<String>) -> Result<(), Failure> {
    Err(Failure::invalid(why))
}

impl Wish {
    async fn grant(&self, call: &Call, run: &FoundRun) -> Result<(), Failure> {
        let (id, experiment) = (run.0.trial.id, run.0.experiment.id);
        let is_terminal = run.0.trial.state.is_terminal();
        let is_shut = run.is_archived() || run.0.experiment.parent_archived;
        let database = &call.application.database;
        call.may_change(Subject::Trial(id)).await?;
        match self {
            Wish::Kill if is_terminal => Ok(()),
            Wish::Kill => match call.application.cluster.trial_reported(id, TrialReport::Kill).await? {
                true => Ok(()),
                false => refused(format!("Failed to kill run: run {id} runs elsewhere: the master cannot stop it")),
            },
            Wish::Pause | Wish::Resume if is_shut => refused("Run is archived."),
            Wish::Pause | Wish::Resume if run.is_multitrial() => {
                refused(format!("Cannot pause/unpause run '{id}' (part of multi-trial)."))
            }
            Wish::Pause => send_event(&call.application, experiment, Event::Pause, IfEnded::Refuse).await,
            Wish::Resume => send_event(&call.application, experiment, Event::Activate, IfEnded::Refuse).await,
            Wish::Archive(_) if run.0.experiment.archived => {
                refused(format!("Run is part of archived Search (id: '{experiment}')."))
            }
            Wish::Archive(archived) if run.0.archived == *archived => Ok(()),
            Wish::Archive(_) if !is_terminal => refused("Run is not in terminal state."),
            Wish::Archive(archived) => Ok(database.archive_run(id, *archived).await?),
            Wish::Delete if !is_terminal => refused("Run is not in a terminal state."),
            Wish::Delete => delete_one(call, id).await,
            Wish::Move { .. } if is_shut => refused("Run is archived."),
            Wish::Move { skip_multitrial: true, .. } if run.is_multitrial() => {
                refused(format!("Skipping run '{id}' (part of multi-trial)."))
            }
            Wish::Move { project, .. } => Ok(database.move_experiment(experiment, *project, now()).await.map(drop)?),
        }
    }
}

async fn delete_one(call: &Call, id: TrialId) -> Result<(), Failure> {
    match call.application.database.delete_run(id, now()).await {
        Ok(uuids) => super::files::gone(call, &uuids).await.map(drop),
        Err(error) => Err(undeleted(call, error).await),
    }
}

async fn each(call: &Call, meant: Meant, wish: Wish) -> Result<Json<RunsResponse>, Failure> {
    let mut results = Vec::new();
    let mut moved: BTreeSet<ExperimentId> = BTreeSet::new();
    for run in &meant.found {
        let (id, experiment) = (run.0.trial.id, run.0.experiment.id);
        // With one run of an experiment all of them move.
        let is_done = matches!(wish, Wish::Move { .. }) && moved.contains(&experiment);
        let outcome = if is_done { Ok(()) } else { wish.grant(call, run).await };
        match outcome {
            Ok(()) => {
                moved.insert(experiment);
                results.push(RunResult { id, error: String::new() });
            }
            Err(failure) => {
                call.noted.not_done(Subject::Trial(id));
                results.push(RunResult { id, error: failure.message });
            }
        }
    }
    let missing = meant.missing.into_iter();
    results.extend(missing.map(|id| RunResult { id, error: format!("Run with id '{id}' not found") }));
    Ok(Json(RunsResponse { results }))
}

async fn all(call: &Call, wish: Wish) -> Result<Json<RunsResponse>, Failure> {
    let request: RunsRequest = call.json()?;
    let meant = meant(call, request.project_id, request.run_ids, request.filter).await?;
    each(call, meant, wish).await
}

pub(crate) async fn kill(call: Call) -> Result<Json<RunsResponse>, Failure> {
    all(&call, Wish::Kill).await
}

pub(crate) async fn pause(call: Call) -> Result<Json<RunsResponse>, Failure> {
    all(&call, Wish::Pause).await
}

pub(crate) async fn resume(call: Call) -> Result<Json<RunsResponse>, Failure> {
    all(&call, Wish::Resume).await
}

pub(crate) async fn set_archived(call: Call) -> Result<Json<RunsResponse>, Failure> {
    all(&call, Wish::Archive(call.archives())).await
}

pub(crate) async fn delete(call: Call) -> Result<Json<RunsResponse>, Failure> {
    all(&call, Wish::Delete).await
}

pub(crate) async fn relocate(call: Call) -> Result<Json<RunsResponse>, Failure> {
    let request: MoveRunsRequest = call.json()?;
    let project = request.destination_project_id.ok_or_else(|| Failure::invalid("destinationProjectId is missing"))?;
    may_make_in(&call, Some(project), None).await?;
    if call.application.database.project(project).await?.archived {
        return Err(Failure::invalid(format!("project ({project}) is archived and cannot add new runs")));
    }
    let meant = meant(&call, request.source_project_id, request.run_ids, request.filter).await?;
    if request.source_project_id == Some(project) {
        return Ok(Json(RunsResponse { results: Vec::new() }));
    }
    each(&call, meant, Wish::Move { project, skip_multitrial: request.skip_multitrial.unwrap_or(false) }).await
}
