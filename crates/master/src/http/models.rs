//! The model registry.

use std::cmp::Ordering;
use std::collections::HashMap;

use instep_api::checkpoints::Training;
use instep_api::error::Code;
use instep_api::experiments::LabelsResponse;
use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::models::{
    Model, ModelRequest, ModelResponse, ModelVersion, ModelVersionRequest, ModelVersionResponse, ModelVersionsResponse,
    ModelsResponse, MoveModelRequest,
};
use instep_api::pages::Order;
use instep_database::{Error, Subject};
use instep_policy::permissions::Kind;
use serde_json::{Map, Value};

use super::call::{Call, Query};
use super::failure::Failure;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use crate::clock::now;

/// A model's name is a part of addresses, where numbers stand for themselves.
fn checked_name(name: &str) -> Result<(), Failure> {
    let wrong = |why: &str| Err(Failure::invalid(format!("`{name}` cannot be a model's name: {why}")));
    match name {
        "" => Err(Failure::invalid("a model needs a name")),
        _ if name.len() > 255 => wrong("it is longer than 255 bytes"),
        _ if name.trim() != name || name.contains("  ") => wrong("it has leading, trailing or repeated spaces"),
        _ if name.contains(['/', '\\']) || name.chars().any(char::is_control) => {
            wrong("it has a slash or a character that cannot be shown")
        }
        "." | ".." => wrong("it is reserved in addresses"),
        _ if name.parse::<i64>().is_ok() => wrong("it is a number"),
        _ => Ok(()),
    }
}

fn named(call: &Call) -> String {
    call.part("name").to_owned()
}

/// The model of a request.
async fn meant(call: &Call) -> Result<Model, Failure> {
    Ok(call.application.database.model(named(call)).await?)
}

/// The workspace that a request names, by its name or its number, if it names one.
async fn place(call: &Call, request: &ModelRequest) -> Result<Option<Place>, Failure> {
    let Some(name) = &request.workspace_name else {
        return Ok(request.workspace_id.map(|id| Place::workspace(Some(id))));
    };
    let named = Some(format!("workspace '{name}'"));
    let found = call.application.database.workspaces().await?.into_iter().find(|workspace| workspace.name == *name);
    let missing = || Failure::not_found(format!("workspace '{name}' not found"));
    Ok(Some(Place { workspace: found.ok_or_else(missing)?.id, named }))
}

/// A version as the caller may see it: of a checkpoint of an experiment that they may not see, only its name.
async fn visible(call: &Call, mut version: ModelVersion) -> Result<ModelVersion, Failure> {
    let checkpoint = &mut version.checkpoint;
    match call.may_read(Subject::Checkpoint(checkpoint.uuid.clone())).await {
        Ok(()) => Ok(version),
        Err(failure) if failure.code == Code::NotFound => {
            checkpoint.task_id.clear();
            checkpoint.allocation_id = None;
            checkpoint.storage_id = None;
            checkpoint.resources.clear();
            checkpoint.metadata = Value::Object(Map::new());
            checkpoint.training = Training::default();
            Ok(version)
        }
        Err(failure) => Err(failure),
    }
}

/// Why a deletion failed, without the name of a model that the caller may not see.
pub(super) async fn undeleted(call: &Call, error: Error) -> Failure {
    let Error::Registered { uuid, model, .. } = &error else { return error.into() };
    match call.may_read(Subject::Model(model.clone())).await {
        Ok(()) => error.into(),
        Err(_) => {
            let what = format!("checkpoint '{uuid}' is a version of a model in the registry, and cannot be deleted");
            Failure::new(Code::FailedPrecondition, what)
        }
    }
}

/// What a list of models is sorted by.
fn compare(sort_by: &str) -> Result<fn(&Model, &Model) -> Ordering, Failure> {
    Ok(match sort_by {
        "" | "SORT_BY_UNSPECIFIED" => |one, other| one.id.cmp(&other.id),
        "SORT_BY_NAME" => |one, other| one.name.cmp(&other.name),
        "SORT_BY_DESCRIPTION" => |one, other| one.description.cmp(&other.description),
        "SORT_BY_CREATION_TIME" => |one, other| one.creation_time.cmp(&other.creation_time),
        "SORT_BY_LAST_UPDATED_TIME" => |one, other| one.last_updated_time.cmp(&other.last_updated_time),
        "SORT_BY_NUM_VERSIONS" => |one, other| one.num_versions.cmp(&other.num_versions),
        "SORT_BY_WORKSPACE" => |one, other| one.workspace_id.cmp(&other.workspace_id),
        other => return Err(Failure::invalid(format!("models cannot be sorted by `{other}`"))),
    })
}

/// Whether a query that filters wants a model; `workspaces` are the names of all.
fn wanted(query: &Query, model: &Model, workspaces: &HashMap<WorkspaceId, String>) -> Result<bool, Failure> {
    let part_of =
        |text: &str, part: Option<&str>| part.is_none_or(|part| text.to_lowercase().contains(&part.to_lowercase()));
    let users = query.texts("users");
    let user_ids: Vec<UserId> = query.values("userIds")?;
    let workspace_ids: Vec<WorkspaceId> = query.values("workspaceIds")?;
    let names = query.texts("workspaceNames");
    let workspace = workspaces.get(&model.workspace_id);
    Ok(query.value::<bool>("archived")?.is_none_or(|wanted| wanted == model.archived)
        && query.value::<i64>("id")?.is_none_or(|id| id == 0 || id == model.id.0)
        && part_of(&model.name, query.text("name"))
        && part_of(&model.description, query.text("description"))
        && query.texts("labels").iter().all(|label| model.labels.contains(label))
        && (users.is_empty() || users.contains(&model.username))
        && (user_ids.is_empty() || user_ids.contains(&model.user_id))
        && (workspace_ids.is_empty() || workspace_ids.contains(&model.workspace_id))
        && (names.is_empty() || workspace.is_some_and(|name| names.contains(name))))
}

pub(crate) async fn list(call: Call) -> Result<Json<ModelsResponse>, Failure> {
    let database = &call.application.database;
    let workspaces: HashMap<WorkspaceId, String> =
        database.workspaces().await?.into_iter().map(|workspace| (workspace.id, workspace.name)).collect();
    let mut models = Vec::new();
    let sight = call.sight(Kind::Model);
    for model in database.models().await? {
        if sight.covers(model.workspace_id) && wanted(&call.query, &model, &workspaces)? {
            models.push(model);
        }
    }
    let compare = compare(call.query.text("sortBy").unwrap_or_default())?;
    models.sort_by(compare);
    if call.query.order()? == Some(Order::Descending) {
        models.reverse();
    }
    let (range, pagination) = call.query.slice(None)?.of(models.len());
    Ok(Json(ModelsResponse { models: models.drain(range).collect(), pagination }))
}

/// All labels of models, those of most models first.
pub(crate) async fn labels(call: Call) -> Result<Json<LabelsResponse>, Failure> {
    let workspace: Option<WorkspaceId> = call.query.value("workspaceId")?.filter(|id: &WorkspaceId| id.0 != 0);
    let mut counts: HashMap<String, usize> = HashMap::new();
    let sight = call.sight(Kind::Model);
    for model in call.application.database.models().await? {
        if sight.covers(model.workspace_id) && workspace.is_none_or(|id| id == model.workspace_id) {
            for label in model.labels {
                *counts.entry(label).or_default() += 1;
            }
        }
    }
    let mut labels: Vec<(String, usize)> = counts.into_iter().collect();
    labels.sort_by(|(one, count), (other, others)| others.cmp(count).then_with(|| one.cmp(other)));
    let labels = labels.into_iter().map(|(label, _)| label).collect();
    Ok(Json(LabelsResponse { labels }))
}

pub(crate) async fn create(call: Call) -> Result<Json<ModelResponse>, Failure> {
    let request: ModelRequest = call.json()?;
    checked_name(request.name.as_deref().unwrap_or_default())?;
    call.may_make(Kind::Model, &place(&call, &request).await?.unwrap_or_else(|| Place::workspace(None)))?;
    let owner = call.user()?.id;
    let model = call.application.database.create_model(request, owner, now()).await?;
    call.noted.subject(Subject::Model(model.name.clone()));
    Ok(Json(ModelResponse { model }))
}

pub(crate) async fn get(call: Call) -> Result<Json<ModelResponse>, Failure> {
    let model = call.application.database.model(named(&call)).await?;
    Ok(Json(ModelResponse { model }))
}

pub(crate) async fn change(call: Call) -> Result<Json<ModelResponse>, Failure> {
    let request: ModelRequest = call.json()?;
    if let Some(name) = &request.name {
        checked_name(name)?;
    }
    if let Some(place) = place(&call, &request).await? {
        call.may_make(Kind::Model, &place)?;
    }
    let id = meant(&call).await?.id;
    let model = call.application.database.change_model(id.to_string(), request, now()).await?;
    Ok(Json(ModelResponse { model }))
}

pub(crate) async fn relocate(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: MoveModelRequest = call.json()?;
    let workspace_id = request.destination_workspace_id;
    let workspace_id = workspace_id.ok_or_else(|| Failure::invalid("destinationWorkspaceId is missing"))?;
    call.may_make(Kind::Model, &Place::workspace(Some(workspace_id)))?;
    let id = meant(&call).await?.id;
    let change = ModelRequest { workspace_id: Some(workspace_id), ..ModelRequest::default() };
    call.application.database.change_model(id.to_string(), change, now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn set_archived(call: Call) -> Result<Json<Nothing>, Failure> {
    let id = meant(&call).await?.id;
    call.application.database.archive_model(id.to_string(), call.archives(), now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    let id = meant(&call).await?.id;
    call.application.database.delete_model(id.to_string()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn versions(call: Call) -> Result<Json<ModelVersionsResponse>, Failure> {
    let (model, mut versions) = call.application.database.model_versions(named(&call)).await?;
    match call.query.text("sortBy").unwrap_or_default() {
        "" | "SORT_BY_UNSPECIFIED" | "SORT_BY_VERSION" => {}
        "SORT_BY_CREATION_TIME" => versions.sort_by_key(|version| version.creation_time),
        other => return Err(Failure::invalid(format!("versions cannot be sorted by `{other}`"))),
    }
    if call.query.order()? == Some(Order::Descending) {
        versions.reverse();
    }
    let (range, pagination) = call.query.slice(None)?.of(versions.len());
    let mut shown = Vec::with_capacity(range.len());
    for version in versions.drain(range) {
        shown.push(visible(&call, version).await?);
    }
    Ok(Json(ModelVersionsResponse { model, model_versions: shown, pagination }))
}

pub(crate) async fn register(call: Call) -> Result<Json<ModelVersionResponse>, Failure> {
    let request: ModelVersionRequest = call.json()?;
    call.may_add_to(Subject::Model(named(&call))).await?;
    if let Some(uuid) = &request.checkpoint_uuid {
        call.may_read(Subject::Checkpoint(uuid.clone())).await?;
    }
    let owner = call.user()?.id;
    let version = call.application.database.register_version(named(&call), request, owner, now()).await?;
    Ok(Json(ModelVersionResponse { model_version: version }))
}

pub(crate) async fn version(call: Call) -> Result<Json<ModelVersionResponse>, Failure> {
    let version = call.application.database.model_version(named(&call), call.id("version")?).await?;
    let version = visible(&call, version).await?;
    Ok(Json(ModelVersionResponse { model_version: version }))
}

pub(crate) async fn change_version(call: Call) -> Result<Json<ModelVersionResponse>, Failure> {
    let request: ModelVersionRequest = call.json()?;
    let number: i64 = call.id("version")?;
    let version = call.application.database.change_version(named(&call), number, request, now()).await?;
    let version = visible(&call, version).await?;
    Ok(Json(ModelVersionResponse { model_version: version }))
}

pub(crate) async fn delete_version(call: Call) -> Result<Json<Nothing>, Failure> {
    let number: i64 = call.id("version")?;
    call.application.database.delete_version(named(&call), number, now()).await?;
    Ok(Json(Nothing {}))
}

#[cfg(test)]
mod tests {
    use super::checked_name;

    #[test]
    fn names_can_stand_in_addresses() {
        for name in ["mnist", "a b", "GPT-2 (small)", "modèle", "12a"] {
            assert!(checked_name(name).is_ok(), "{name}");
        }
        for name in ["", " ", "a  b", "a/b", "..", "12", "-3", "a\nb", &"x".repeat(256)] {
            assert!(checked_name(name).is_err(), "{name}");
        }
    }
}
