//! Generic tasks: any program with its files, in a tree of tasks that start each other. One that is killed takes with it
//! what it started.

use std::collections::BTreeSet;

use instep_api::commands::{GenericConfigResponse, GenericTaskRequest, GenericTaskResponse, KillGenericRequest};
use instep_api::config::{masked, merge, parse_text};
use instep_api::error::Code;
use instep_database::{CommandFilter, CommandRow, Subject};
use instep_policy::permissions;
use serde_json::{Value, json};

use super::call::Call;
use super::commands::{Launch, launch_task};
use super::failure::Failure;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use crate::cluster::Kind;

/// The generic task that the path, or a request, names; one that is of another kind is not there.
async fn generic(call: &Call, task: &str) -> Result<CommandRow, Failure> {
    let missing = || Failure::not_found(format!("task '{task}' not found (make sure task is of type GENERIC)"));
    let row = call.application.database.command(task.to_owned()).await.map_err(|_| missing())?;
    if row.kind == Kind::Generic.task_type() { Ok(row) } else { Err(missing()) }
}

/// The task that another one was started by.
fn parent_of(row: &CommandRow) -> Option<&str> {
    row.details["parent"].as_str()
}

pub(crate) async fn create(call: Call) -> Result<Json<GenericTaskResponse>, Failure> {
    let request: GenericTaskRequest = call.json()?;
    let database = &call.application.database;
    let workspace = database.workspace_of_project(request.project_id.filter(|id| id.0 != 0), None).await?;
    let named = request.project_id.filter(|id| id.0 != 0).map(|id| format!("project '{id}'"));
    let place = Place { workspace, named };
    call.may_make(permissions::Kind::Task, &place)?;
    let text = request.config.unwrap_or_default();
    let mut config = parse_text(&text)
        .map_err(|mistakes| Failure::invalid(mistakes.first().map(ToString::to_string).unwrap_or_default()))?;
    if config.is_null() {
        config = json!({});
    }
    let files = request.context_directory.unwrap_or_default();
    let mut context = None;
    let forked_from = request.forked_from.filter(|task| !task.is_empty());
    if let Some(task) = &forked_from {
        call.must_see(Subject::Task(task.clone())).await?;
        let forked = generic(&call, task).await?;
        // Its secrets are its owner's: masks of others are refused below.
        let own = forked.owner == call.user()?.id;
        config = merge(config, if own { forked.config } else { masked(forked.config) });
        if files.is_empty() {
            context = Some(database.task_context(task.clone()).await?);
        }
    } else if text.trim().is_empty() {
        return Err(Failure::invalid("No config file nor forked task provided"));
    }
    let parent = request.parent_id.filter(|task| !task.is_empty());
    if let Some(task) = &parent {
        call.may_change(Subject::Task(task.clone())).await?;
        generic(&call, task).await?;
    }
    if request.inherit_context == Some(true) {
        let task = parent
            .clone()
            .ok_or_else(|| Failure::invalid("could not inherit config directory since no parent task id provided"))?;
        context = Some(database.task_context(task).await?);
    }
    let details = json!({"parent": parent, "forked_from": forked_from, "given": config});
    let launch = Launch { kind: Kind::Generic, place, template: None, config, files, context, details };
    let launched = launch_task(&call, launch).await?;
    Ok(Json(GenericTaskResponse { task_id: launched.task.id, warnings: launched.warnings }))
}

pub(crate) async fn config(call: Call) -> Result<Json<GenericConfigResponse>, Failure> {
    let row = generic(&call, call.part("id")).await?;
    // As it was given: without defaults, so that it can be given again anywhere.
    let given = row.details.get("given").cloned().unwrap_or(row.config);
    let shown: Value = masked(given);
    Ok(Json(GenericConfigResponse { config: shown.to_string() }))
}

/// Kills a task and all that it started; with `killFromRoot` everything that the first of them started.
pub(crate) async fn kill(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: KillGenericRequest = call.json()?;
    let named = generic(&call, call.part("id")).await?;
    if named.ended_at.is_some() {
        let what = format!("cannot cancel task {}: it has ended", named.task);
        return Err(Failure::new(Code::FailedPrecondition, what));
    }
    let filter = CommandFilter { kind: Kind::Generic.task_type().to_owned(), ..CommandFilter::default() };
    let all = call.application.database.commands(filter).await?;
    let mut root = named.task.clone();
    // Each task names one that was there before it, so this comes to an end.
    while request.kill_from_root == Some(true) {
        let parent = all.iter().find(|row| row.task == root).and_then(parent_of);
        let Some(parent) = parent else { break };
        root = parent.to_owned();
    }
    let mut meant = BTreeSet::from([root]);
    loop {
        let found = all.iter().filter(|row| parent_of(row).is_some_and(|parent| meant.contains(parent)));
        let more: Vec<String> = found.map(|row| row.task.clone()).filter(|task| !meant.contains(task)).collect();
        if more.is_empty() {
            break;
        }
        meant.extend(more);
    }
    for task in &meant {
        call.may_change(Subject::Task(task.clone())).await?;
    }
    for task in meant {
        call.application.cluster.kill_command(task, "user requested task kill".to_owned()).await?;
    }
    Ok(Json(Nothing {}))
}
