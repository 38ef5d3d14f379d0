//! Workspaces and projects.

use instep_api::identifiers::{ProjectId, UserId, WorkspaceId};
use instep_api::workspaces::{
    DeletionResponse, ProjectRequest, ProjectResponse, ProjectsResponse, WorkspaceRequest, WorkspaceResponse,
    WorkspacesResponse,
};
use instep_policy::permissions::Kind;

use super::call::{Call, Query};
use super::failure::Failure;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use crate::clock::now;
use instep_database::Subject;

/// Whether a workspace or project is wanted by a query that filters by name, owner and archive.
fn wanted(query: &Query, name: &str, owner: &str, owner_id: UserId, archived: bool) -> Result<bool, Failure> {
    let users = query.texts("users");
    let user_ids: Vec<UserId> = query.values("userIds")?;
    let same = |part: &str| match query.text("nameCaseSensitive") {
        Some(exact) => name == exact,
        None => name.to_lowercase().contains(&part.to_lowercase()),
    };
    Ok(query.value::<bool>("archived")?.is_none_or(|wanted| wanted == archived)
        && (users.is_empty() || users.iter().any(|user| user == owner))
        && (user_ids.is_empty() || user_ids.contains(&owner_id))
        && same(query.text("name").unwrap_or_default()))
}

fn named(name: Option<String>, what: &str) -> Result<String, Failure> {
    let name = name.unwrap_or_default();
    if name.trim().is_empty() || name.len() > 255 {
        return Err(Failure::invalid(format!("a {what} needs a name of 1 to 255 letters")));
    }
    Ok(name)
}

pub(crate) async fn list(call: Call) -> Result<Json<WorkspacesResponse>, Failure> {
    let mut workspaces = Vec::new();
    let sight = call.sight(Kind::Workspace);
    let pins = call.application.database.pinned_workspaces(call.user()?.id).await?;
    let pinned_only = call.query.value::<bool>("pinned")?;
    for mut workspace in call.application.database.workspaces().await? {
        workspace.pinned_at = pins.get(&workspace.id).copied();
        workspace.pinned = workspace.pinned_at.is_some();
        if pinned_only.is_some_and(|wanted| wanted != workspace.pinned) {
            continue;
        }
        let (name, owner) = (&workspace.name, &workspace.username);
        if sight.covers(workspace.id) && wanted(&call.query, name, owner, workspace.user_id, workspace.archived)? {
            workspaces.push(workspace);
        }
    }
    let (range, pagination) = call.query.slice(None)?.of(workspaces.len());
    Ok(Json(WorkspacesResponse { workspaces: workspaces.drain(range).collect(), pagination }))
}

pub(crate) async fn create(call: Call) -> Result<Json<WorkspaceResponse>, Failure> {
    let request: WorkspaceRequest = call.json()?;
    let name = named(request.name, "workspace")?;
    call.may_make_workspace()?;
    let owner = call.user()?.id;
    let workspace = call.application.database.create_workspace(name, owner, now()).await?;
    call.noted.subject(Subject::Workspace(workspace.id));
    // Whoever made it administrates it.
    call.application.forget_sessions();
    Ok(Json(WorkspaceResponse { workspace, namespace_bindings: Default::default() }))
}

pub(crate) async fn get(call: Call) -> Result<Json<WorkspaceResponse>, Failure> {
    let mut workspace = call.application.database.workspace(call.id("id")?).await?;
    let pins = call.application.database.pinned_workspaces(call.user()?.id).await?;
    workspace.pinned_at = pins.get(&workspace.id).copied();
    workspace.pinned = workspace.pinned_at.is_some();
    Ok(Json(WorkspaceResponse { workspace, namespace_bindings: Default::default() }))
}

async fn change_owned(call: &Call, name: Option<String>, archived: Option<bool>) -> Result<WorkspaceResponse, Failure> {
    let id: WorkspaceId = call.id("id")?;
    let workspace = call.application.database.change_workspace(id, name, archived).await?;
    Ok(WorkspaceResponse { workspace, namespace_bindings: Default::default() })
}

pub(crate) async fn change(call: Call) -> Result<Json<WorkspaceResponse>, Failure> {
    let request: WorkspaceRequest = call.json()?;
    let name = request.name.map(|name| named(Some(name), "workspace")).transpose()?;
    Ok(Json(change_owned(&call, name, None).await?))
}

pub(crate) async fn set_archived(call: Call) -> Result<Json<Nothing>, Failure> {
    change_owned(&call, None, Some(call.archives())).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete(call: Call) -> Result<Json<DeletionResponse>, Failure> {
    let id: WorkspaceId = call.id("id")?;
    call.application.database.delete_workspace(id).await?;
    call.application.forget_sessions();
    Ok(Json(DeletionResponse { completed: true }))
}

pub(crate) async fn list_projects(call: Call) -> Result<Json<ProjectsResponse>, Failure> {
    let mut projects = Vec::new();
    let sight = call.sight(Kind::Project);
    for project in call.application.database.projects(call.id("id")?).await? {
        if sight.covers(project.workspace_id)
            && wanted(&call.query, &project.name, &project.username, project.user_id, project.archived)?
        {
            projects.push(project);
        }
    }
    let (range, pagination) = call.query.slice(None)?.of(projects.len());
    Ok(Json(ProjectsResponse { projects: projects.drain(range).collect(), pagination }))
}

pub(crate) async fn create_project(call: Call) -> Result<Json<ProjectResponse>, Failure> {
    let request: ProjectRequest = call.json()?;
    let name = named(request.name, "project")?;
    let description = request.description.unwrap_or_default();
    let owner = call.user()?.id;
    let workspace: WorkspaceId = call.id("id")?;
    call.may_make(Kind::Project, &Place { workspace, named: Some(format!("workspace '{workspace}'")) })?;
    let project = call.application.database.create_project(workspace, name, description, owner, now()).await?;
    call.noted.subject(Subject::Project(project.id));
    Ok(Json(ProjectResponse { project }))
}

pub(crate) async fn get_project(call: Call) -> Result<Json<ProjectResponse>, Failure> {
    let project = call.application.database.project(call.id("id")?).await?;
    Ok(Json(ProjectResponse { project }))
}

async fn change_owned_project(
    call: &Call,
    request: ProjectRequest,
    archived: Option<bool>,
) -> Result<ProjectResponse, Failure> {
    let id: ProjectId = call.id("id")?;
    let name = request.name.map(|name| named(Some(name), "project")).transpose()?;
    let project = call.application.database.change_project(id, name, request.description, archived).await?;
    Ok(ProjectResponse { project })
}

pub(crate) async fn change_project(call: Call) -> Result<Json<ProjectResponse>, Failure> {
    let request: ProjectRequest = call.json()?;
    Ok(Json(change_owned_project(&call, request, None).await?))
}

pub(crate) async fn set_project_archived(call: Call) -> Result<Json<Nothing>, Failure> {
    change_owned_project(&call, ProjectRequest::default(), Some(call.archives())).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete_project(call: Call) -> Result<Json<DeletionResponse>, Failure> {
    let id: ProjectId = call.id("id")?;
    call.application.database.delete_project(id).await?;
    Ok(Json(DeletionResponse { completed: true }))
}
