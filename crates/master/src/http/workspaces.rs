//! Workspaces and projects.

use instep_api::config::{ExperimentConfig, Sources, StorageConfiguration};
use instep_api::identifiers::{ProjectId, UserId, WorkspaceId};
use instep_api::pages::Order;
use instep_api::workspaces::{
    ProjectRequest, ProjectResponse, ProjectsResponse, WorkspaceRequest, WorkspaceResponse, WorkspacesResponse,
};
use instep_database::{Subject, WorkspaceChange};
use instep_policy::permissions::Kind;
use serde_json::{Value, json};

use super::agent_users;
use super::call::{Call, Query};
use super::failure::Failure;
use super::masks::unmasked;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use crate::clock::now;

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

/// Puts what is by id into the order that a query asks for.
fn sort<T>(query: &Query, found: &mut [T], name: impl Fn(&T) -> &str) -> Result<(), Failure> {
    match query.text("sortBy").unwrap_or_default() {
        "" | "SORT_BY_UNSPECIFIED" | "SORT_BY_ID" => {}
        // As people sort: capitals and signs count only between names that are otherwise the same.
        "SORT_BY_NAME" => found.sort_by_cached_key(|each| {
            let letters: String = name(each).chars().filter(|letter| letter.is_alphanumeric()).collect();
            (letters.to_lowercase(), name(each).to_owned())
        }),
        other => return Err(Failure::invalid(format!("`sortBy` cannot be `{other}`: SORT_BY_ID or SORT_BY_NAME"))),
    }
    if query.order()? == Some(Order::Descending) {
        found.reverse();
    }
    Ok(())
}

fn named(name: Option<String>, what: &str) -> Result<String, Failure> {
    let name = name.unwrap_or_default();
    if name.trim().is_empty() || name.len() > 255 {
        return Err(Failure::invalid(format!("a {what} needs a name of 1 to 255 letters")));
    }
    Ok(name)
}

/// A project's short name, in capitals.
fn key_of(key: Option<String>) -> Result<Option<String>, Failure> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.len() > 5 || !key.chars().all(|letter| letter.is_ascii_alphanumeric()) {
        return Err(Failure::invalid(format!("project key `{key}` is not one to five letters or digits")));
    }
    Ok(Some(key.to_ascii_uppercase()))
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
    sort(&call.query, &mut workspaces, |workspace| &workspace.name)?;
    let (range, pagination) = call.query.slice(None)?.of(workspaces.len());
    Ok(Json(WorkspacesResponse { workspaces: workspaces.drain(range).collect(), pagination }))
}

pub(crate) async fn create(call: Call) -> Result<Json<WorkspaceResponse>, Failure> {
    let mut request: WorkspaceRequest = call.json()?;
    let name = named(request.name.take(), "workspace")?;
    call.may_make_workspace()?;
    let owner = call.user()?.id;
    let settings = settings(&call, request, None)?;
    let workspace = call.application.database.create_workspace(name, settings, owner, now()).await?;
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

async fn change_owned(call: &Call, change: WorkspaceChange) -> Result<WorkspaceResponse, Failure> {
    let id: WorkspaceId = call.id("id")?;
    let workspace = call.application.database.change_workspace(id, change).await?;
    Ok(WorkspaceResponse { workspace, namespace_bindings: Default::default() })
}

pub(crate) async fn change(call: Call) -> Result<Json<WorkspaceResponse>, Failure> {
    let mut request: WorkspaceRequest = call.json()?;
    let name = request.name.take().map(|name| named(Some(name), "workspace")).transpose()?;
    let current = call.application.database.workspace(call.id("id")?).await?.checkpoint_storage_config;
    let current = current.map(StorageConfiguration::into_value);
    let change = WorkspaceChange { name, ..settings(&call, request, current)? };
    Ok(Json(change_owned(&call, change).await?))
}

/// What a request sets for all that is in a workspace; `current` is its storage, which masks stand for.
fn settings(call: &Call, request: WorkspaceRequest, current: Option<Value>) -> Result<WorkspaceChange, Failure> {
    let pools = [request.default_compute_pool, request.default_aux_pool];
    if pools.into_iter().flatten().any(|pool| !pool.is_empty()) {
        return Err(Failure::invalid(
            "a workspace cannot have default pools here\nhint: name the pool in resources.resource_pool",
        ));
    }
    let is_administrator = call.task.is_none() && call.user()?.admin;
    if request.agent_user_group.is_some() && !is_administrator {
        return Err(Failure::forbidden("only administrators may say as whom the tasks of a workspace run"));
    }
    let agent_user_group = request.agent_user_group.map(|group| agent_users::checked_pairs(Some(group))).transpose()?;
    let checkpoint_storage = request.checkpoint_storage_config.map(|storage| checked_storage(storage, current));
    Ok(WorkspaceChange { checkpoint_storage: checkpoint_storage.transpose()?, agent_user_group, ..Default::default() })
}

/// A storage that experiments can use as it is; an empty one is none.
fn checked_storage(given: Value, current: Option<Value>) -> Result<Option<Value>, Failure> {
    if given.as_object().is_some_and(|fields| fields.is_empty()) {
        return Ok(None);
    }
    let section = |storage: Value| json!({"checkpoint_storage": storage});
    let mut config = unmasked(section(given), current.map(section).iter())?;
    let storage = config["checkpoint_storage"].take();
    let least = json!({"searcher": {"name": "single", "metric": "x"}, "checkpoint_storage": storage});
    match ExperimentConfig::from_value(least, &Sources::default()) {
        Ok(_) => Ok(Some(storage)),
        Err(mistakes) => {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            Err(Failure::invalid(mistakes.join("\n")))
        }
    }
}

pub(crate) async fn set_archived(call: Call) -> Result<Json<Nothing>, Failure> {
    change_owned(&call, WorkspaceChange { archived: Some(call.archives()), ..Default::default() }).await?;
    Ok(Json(Nothing {}))
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
    sort(&call.query, &mut projects, |project| &project.name)?;
    let (range, pagination) = call.query.slice(None)?.of(projects.len());
    Ok(Json(ProjectsResponse { projects: projects.drain(range).collect(), pagination }))
}

pub(crate) async fn create_project(call: Call) -> Result<Json<ProjectResponse>, Failure> {
    let request: ProjectRequest = call.json()?;
    let name = named(request.name, "project")?;
    let description = request.description.unwrap_or_default();
    let key = key_of(request.key.filter(|key| !key.is_empty()))?;
    let owner = call.user()?.id;
    let workspace: WorkspaceId = call.id("id")?;
    call.may_make(Kind::Project, &Place { workspace, named: Some(format!("workspace '{workspace}'")) })?;
    let project = call.application.database.create_project(workspace, name, description, key, owner, now()).await?;
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
    let (description, key) = (request.description, key_of(request.key)?);
    let project = call.application.database.change_project(id, name, description, key, archived).await?;
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
