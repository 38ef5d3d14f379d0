//! Templates: parts of configurations that many experiments share.

use instep_api::config::{ConfigError, ExperimentConfig, Sources, TaskConfig, TaskSources};
use instep_api::identifiers::WorkspaceId;
use instep_api::templates::{RenameTemplateRequest, Template, TemplateRequest, TemplateResponse, TemplatesResponse};
use instep_database::Subject;
use instep_policy::permissions::Kind;
use serde_json::Value;

use super::call::Call;
use super::failure::Failure;
use super::masks::unmasked;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use crate::clock::now;

pub(crate) async fn list(call: Call) -> Result<Json<TemplatesResponse>, Failure> {
    let part = call.query.text("name").unwrap_or_default().to_lowercase();
    let workspaces: Vec<WorkspaceId> = call.query.values("workspaceIds")?;
    let mut templates = call.application.database.templates().await?;
    let sight = call.sight(Kind::Template);
    templates.retain(|template| {
        sight.covers(template.workspace_id)
            && template.name.to_lowercase().contains(&part)
            && (workspaces.is_empty() || workspaces.contains(&template.workspace_id))
    });
    let (range, pagination) = call.query.slice(None)?.of(templates.len());
    Ok(Json(TemplatesResponse { templates: templates.drain(range).collect(), pagination }))
}

pub(crate) async fn get(call: Call) -> Result<Json<TemplateResponse>, Failure> {
    let (template, _) = call.application.database.template(call.part("name").to_owned()).await?;
    Ok(Json(TemplateResponse { template }))
}

pub(crate) async fn create(call: Call) -> Result<Json<TemplateResponse>, Failure> {
    let request: TemplateRequest = call.json()?;
    Ok(Json(TemplateResponse { template: make(&call, request).await? }))
}

fn usable(name: &str) -> Result<String, Failure> {
    if name.trim().is_empty() || name.len() > 255 {
        return Err(Failure::invalid("a template needs a name of 1 to 255 letters"));
    }
    Ok(name.to_owned())
}

async fn make(call: &Call, request: TemplateRequest) -> Result<Template, Failure> {
    let name = usable(call.part("name"))?;
    let config = unmasked(request.config.unwrap_or_else(|| Value::Object(Default::default())), [])?;
    let config = checked(config)?;
    let place = Place::workspace(request.workspace_id);
    call.may_make(Kind::Template, &place)?;
    let workspace_id = place.workspace;
    let database = &call.application.database;
    database.workspace(workspace_id).await?;
    let new = Template { name, config: config.into(), workspace_id };
    Ok(database.create_template(new, call.user()?.id, now()).await?)
}

/// Makes it or changes it.
pub(crate) async fn put(call: Call) -> Result<Json<TemplateResponse>, Failure> {
    let request: TemplateRequest = call.json()?;
    let database = &call.application.database;
    let name = call.part("name").to_owned();
    match database.template(name.clone()).await {
        Err(instep_database::Error::NotFound { .. }) => {
            Ok(Json(TemplateResponse { template: make(&call, request).await? }))
        }
        found => {
            let config = unmasked(request.config.unwrap_or(Value::Null), [&*found?.0.config])?;
            let config = checked(config)?;
            Ok(Json(TemplateResponse { template: database.change_template(name, config).await? }))
        }
    }
}

/// The body is the configuration itself.
pub(crate) async fn change_config(call: Call) -> Result<Json<TemplateResponse>, Failure> {
    let config: Value = call.json()?;
    let database = &call.application.database;
    let name = call.part("name").to_owned();
    let config = unmasked(config, [&*database.template(name.clone()).await?.0.config])?;
    Ok(Json(TemplateResponse { template: database.change_template(name, checked(config)?).await? }))
}

pub(crate) async fn rename(call: Call) -> Result<Json<TemplateResponse>, Failure> {
    let request: RenameTemplateRequest = call.json()?;
    let old = request.old_name.unwrap_or_default();
    let new = usable(&request.new_name.unwrap_or_default())?;
    call.may_change(Subject::Template(old.clone())).await?;
    Ok(Json(TemplateResponse { template: call.application.database.rename_template(old, new).await? }))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    let database = &call.application.database;
    let name = call.part("name").to_owned();
    database.delete_template(name).await?;
    Ok(Json(Nothing {}))
}

/// A template must be a part of a configuration: laid under one that has nothing but what every one must have. What it
/// lacks may come from what it is laid under.
fn checked(config: Value) -> Result<Value, Failure> {
    if !config.is_object() {
        return Err(Failure::invalid("the configuration of a template is an object"));
    }
    let mistakes = mistakes_of_experiments(&config).into_iter().chain(mistakes_of_tasks(&config));
    let mut wrong: Vec<String> = mistakes.map(|mistake| mistake.to_string()).collect();
    wrong.dedup();
    if wrong.is_empty() { Ok(config) } else { Err(Failure::invalid(wrong.join("\n"))) }
}

/// What is wrong with a part of an experiment's configuration. A searcher may be incomplete.
pub(super) fn mistakes_of_experiments(config: &Value) -> Vec<ConfigError> {
    let whole = serde_json::json!({"searcher": {"name": "single", "metric": "x"}});
    let least = if config["searcher"].is_object() { serde_json::json!({}) } else { whole };
    let sources = Sources { template: Some(config.clone()), ..Sources::default() };
    let mut mistakes = ExperimentConfig::from_value(least, &sources).err().unwrap_or_default();
    mistakes.retain(|mistake| !mistake.path.starts_with("searcher") && !mistake.what.starts_with("is needed"));
    if !matches!(config["searcher"], Value::Object(_) | Value::Null) {
        mistakes.push(ConfigError { path: "searcher".to_owned(), what: "must be a map".to_owned() });
    }
    mistakes
}

/// What is wrong with a part of a task's configuration.
pub(super) fn mistakes_of_tasks(config: &Value) -> Vec<ConfigError> {
    let sources = TaskSources { template: Some(config.clone()), ..TaskSources::default() };
    let mut mistakes = TaskConfig::from_value(serde_json::json!({}), &sources).err().unwrap_or_default();
    mistakes.retain(|mistake| !mistake.what.starts_with("is needed"));
    mistakes
}
