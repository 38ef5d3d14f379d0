//! Deleting workspaces and projects, with the experiments and tasks in them.
//!
//! Everything is looked at first: nothing is deleted if a part may not be. Then the tasks of a workspace are killed, and
//! experiment by experiment goes, which may take long; whoever asked waits a while, and the work goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use instep_api::error::Code;
use instep_api::identifiers::{ExperimentId, ProjectId, WorkspaceId};
use instep_api::workspaces::DeletionResponse;
use instep_database::{Error, Subject};

use super::call::Call;
use super::failure::Failure;
use super::models::undeleted;
use super::reply::Json;
use crate::application::Application;
use crate::clock::now;
use crate::deletions::carry_out;

/// How long an answer waits for the end.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// How long tasks and experiments that were killed may take to end, a lost agent's too.
const MOST_ENDING: Duration = Duration::from_secs(180);
/// How often it is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Experiments that a refusal names.
const MOST_NAMED: usize = 5;

/// What is to be deleted: the experiments of projects, the projects, then their workspace with its tasks.
struct Doomed {
    experiments: Vec<ExperimentId>,
    projects: Vec<ProjectId>,
    workspace: Option<WorkspaceId>,
    /// Who wants it.
    username: String,
}

pub(crate) async fn workspace(call: Call) -> Result<Json<DeletionResponse>, Failure> {
    let id: WorkspaceId = call.id("id")?;
    let database = &call.application.database;
    let workspace = database.workspace(id).await?;
    mutable(workspace.immutable, "workspace", &workspace.name)?;
    let models = database.models().await?.into_iter().filter(|model| model.workspace_id == id).count();
    if models > 0 {
        let what = format!("workspace '{}' still holds models: {models}", workspace.name);
        return Err(Failure::new(Code::FailedPrecondition, format!("{what}\nhint: move or delete them first")));
    }
    for template in database.templates().await?.into_iter().filter(|template| template.workspace_id == id) {
        call.may_change(Subject::Template(template.name)).await?;
    }
    for task in database.live_commands_of(id).await? {
        call.may_change(Subject::Task(task)).await?;
    }
    let projects = database.projects(id).await?.into_iter().map(|project| project.id).collect();
    carried_out(&call, projects, Some(id), &format!("workspace '{}'", workspace.name)).await
}

pub(crate) async fn project(call: Call) -> Result<Json<DeletionResponse>, Failure> {
    let id: ProjectId = call.id("id")?;
    let project = call.application.database.project(id).await?;
    mutable(project.immutable, "project", &project.name)?;
    carried_out(&call, vec![id], None, &format!("project '{}'", project.name)).await
}

fn mutable(immutable: bool, what: &str, name: &str) -> Result<(), Failure> {
    match immutable {
        true => Err(Failure::new(Code::FailedPrecondition, format!("{what} '{name}' cannot be changed"))),
        false => Ok(()),
    }
}

async fn carried_out(
    call: &Call,
    projects: Vec<ProjectId>,
    workspace: Option<WorkspaceId>,
    what: &str,
) -> Result<Json<DeletionResponse>, Failure> {
    let found = call.application.database.experiments_of_projects(projects.clone()).await?;
    let alive: Vec<String> = found
        .iter()
        .filter(|(_, state)| !state.is_terminal() && !state.is_stopping())
        .map(|(id, _)| id.to_string())
        .collect();
    if !alive.is_empty() {
        let named = alive[..alive.len().min(MOST_NAMED)].join(", ");
        let more = if alive.len() > MOST_NAMED { ", …" } else { "" };
        let what = format!("{what} holds experiments that have not ended: {named}{more}");
        return Err(Failure::new(Code::FailedPrecondition, format!("{what}\nhint: kill them, or wait for their end")));
    }
    let experiments: Vec<ExperimentId> = found.into_iter().map(|(id, _)| id).collect();
    let username = call.user()?.username.clone();
    for id in &projects {
        call.may_change(Subject::Project(*id)).await?;
    }
    may_change_all(call, &experiments).await?;
    let doomed = Doomed { experiments, projects, workspace, username };
    let application = Arc::clone(&call.application);
    let work = tokio::spawn(async move { delete(&application, doomed).await });
    match tokio::time::timeout(END_TIMEOUT, work).await {
        Ok(Ok(Ok(()))) => Ok(Json(DeletionResponse { completed: true })),
        Ok(Ok(Err(error))) => Err(undeleted(call, error).await),
        Ok(Err(error)) => Err(Failure::new(Code::Internal, error.to_string())),
        Err(_) => Ok(Json(DeletionResponse { completed: false })),
    }
}

/// Refuses what happens to several experiments at once, if the caller may not change one of them.
pub(super) async fn may_change_all(call: &Call, experiments: &[ExperimentId]) -> Result<(), Failure> {
    for id in experiments {
        call.may_change(Subject::Experiment(*id)).await?;
    }
    Ok(())
}

/// Deletes one by one. What was deleted stays so if a later one cannot be.
async fn delete(application: &Arc<Application>, doomed: Doomed) -> Result<(), Error> {
    let outcome = rows(application, doomed).await;
    if let Err(error) = &outcome {
        tracing::warn!(%error, "a workspace or project is not deleted whole");
    }
    for problem in carry_out(application).await? {
        tracing::warn!(checkpoint = problem.uuid, "a checkpoint's files stay for now: {}", problem.why);
    }
    application.forget_sessions();
    outcome
}

async fn rows(application: &Arc<Application>, doomed: Doomed) -> Result<(), Error> {
    end_tasks(application, &doomed).await?;
    let database = &application.database;
    for id in doomed.experiments {
        match database.delete_experiment(id, now()).await {
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for id in doomed.projects {
        database.delete_project(id).await?;
    }
    match doomed.workspace {
        Some(id) => database.delete_workspace(id).await,
        None => Ok(()),
    }
}

/// Kills the tasks of a workspace, and waits until nothing runs there any more. What does not end in time keeps the
/// workspace from being deleted.
async fn end_tasks(application: &Arc<Application>, doomed: &Doomed) -> Result<(), Error> {
    let database = &application.database;
    let deadline = tokio::time::Instant::now() + MOST_ENDING;
    let mut killed = BTreeSet::new();
    loop {
        let tasks = match doomed.workspace {
            Some(id) => database.live_commands_of(id).await?,
            None => Vec::new(),
        };
        let experiments = database.experiments_of_projects(doomed.projects.clone()).await?;
        let ending = experiments.iter().any(|(_, state)| state.is_stopping());
        if tasks.is_empty() && !ending || tokio::time::Instant::now() > deadline {
            return Ok(());
        }
        for task in tasks {
            if killed.insert(task.clone()) {
                let why = format!("user {} deletes its workspace", doomed.username);
                let killed = application.cluster.kill_command(task, why).await;
                killed.map_err(|_| Error::Precondition("the master is ending".to_owned()))?;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
