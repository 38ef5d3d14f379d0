//! Generic tasks: any program with its files, in a tree of tasks that start each other. One that is killed takes with it
//! what it started; one that is paused what it started and said may be paused.

use std::collections::BTreeSet;

use instep_api::commands::{GenericConfigResponse, GenericTaskRequest, GenericTaskResponse, KillGenericRequest};
use instep_api::config::{masked, merge, parse_text};
use instep_api::error::Code;
use instep_api::jobs::{GenericTaskState, Task, TaskResponse};
use instep_api::states::AllocationState;
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
        let given = given(&forked);
        config = merge(config, if own { given } else { masked(given) });
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
    let details = json!({"parent": parent, "forked_from": forked_from, "given": config, "no_pause": request.no_pause});
    let launch = Launch { kind: Kind::Generic, place, template: None, config, files, context, details };
    let launched = launch_task(&call, launch).await?;
    Ok(Json(GenericTaskResponse { task_id: launched.task.id, warnings: launched.warnings }))
}

pub(crate) async fn config(call: Call) -> Result<Json<GenericConfigResponse>, Failure> {
    let row = generic(&call, call.part("id")).await?;
    let shown: Value = masked(given(&row));
    Ok(Json(GenericConfigResponse { config: shown.to_string() }))
}

/// A task's configuration as it was given: without defaults, so that it can be given again anywhere.
fn given(row: &CommandRow) -> Value {
    row.details.get("given").cloned().unwrap_or_else(|| row.config.clone())
}

async fn all_of_them(call: &Call) -> Result<Vec<CommandRow>, Failure> {
    let filter = CommandFilter { kind: Kind::Generic.task_type().to_owned(), ..CommandFilter::default() };
    Ok(call.application.database.commands(filter).await?)
}

/// A task and all that it started.
fn tree_of(all: &[CommandRow], root: String) -> BTreeSet<String> {
    let mut meant = BTreeSet::from([root]);
    loop {
        let found = all.iter().filter(|row| parent_of(row).is_some_and(|parent| meant.contains(parent)));
        let more: Vec<String> = found.map(|row| row.task.clone()).filter(|task| !meant.contains(task)).collect();
        if more.is_empty() {
            return meant;
        }
        meant.extend(more);
    }
}

/// Where a task stands, as its row says.
fn state_of(row: &CommandRow) -> GenericTaskState {
    let allocation = row.allocation.as_ref();
    let state = allocation.map_or(AllocationState::Queued, |allocation| allocation.state);
    if row.ended_at.is_some() {
        let exit = allocation.and_then(|allocation| allocation.exit.as_ref());
        return match exit.and_then(|exit| exit["kind"].as_str()) {
            Some("killed") | None => GenericTaskState::Canceled,
            Some("exited") if exit.is_some_and(|exit| exit["code"] == 0) => GenericTaskState::Completed,
            Some(_) => GenericTaskState::Error,
        };
    }
    match (row.after_run.as_str(), state) {
        ("rest", AllocationState::Terminated) => GenericTaskState::Paused,
        ("rest", _) => GenericTaskState::StoppingPaused,
        ("end", AllocationState::Terminating) => GenericTaskState::StoppingCanceled,
        _ => GenericTaskState::Active,
    }
}

/// Any task with its attempts to run; of a generic one also where it stands and where it comes from.
pub(crate) async fn task(call: Call) -> Result<Json<TaskResponse>, Failure> {
    let database = &call.application.database;
    let mut task = database.task(call.part("id").to_owned()).await?;
    if task.task_type == Kind::Generic.task_type() {
        let row = database.command(task.task_id.clone()).await?;
        let text = |name: &str| row.details[name].as_str().map(str::to_owned);
        task = Task {
            task_state: Some(state_of(&row)),
            parent_id: text("parent"),
            forked_from: text("forked_from"),
            no_pause: row.details["no_pause"].as_bool(),
            config: Some(masked(row.config).to_string()),
            ..task
        };
    }
    Ok(Json(TaskResponse { task }))
}

/// Stops a task, and what it started and said may be paused; all of them are kept.
pub(crate) async fn pause(call: Call) -> Result<Json<Nothing>, Failure> {
    let named = generic(&call, call.part("id")).await?;
    let refused = |why: &str| {
        let what = format!("cannot pause task {}: {why}", named.task);
        Failure::new(Code::FailedPrecondition, what)
    };
    match state_of(&named) {
        GenericTaskState::Active => {}
        GenericTaskState::Paused | GenericTaskState::StoppingPaused => return Err(refused("it is paused already")),
        _ => return Err(refused("it has ended, or is about to")),
    }
    if named.details["no_pause"] == true {
        return Err(refused("it was made with `noPause`"));
    }
    let all = all_of_them(&call).await?;
    let tree = tree_of(&all, named.task.clone());
    let may_rest = |row: &&CommandRow| row.task == named.task || row.details["no_pause"] == false;
    let meant: Vec<&CommandRow> = all.iter().filter(|row| tree.contains(&row.task)).filter(may_rest).collect();
    for row in &meant {
        call.may_change(Subject::Task(row.task.clone())).await?;
    }
    for row in meant {
        let why = format!("user {} wants it to pause", call.user()?.username);
        let paused = call.application.cluster.pause_command(row.task.clone(), Some(why)).await?;
        if !paused && row.task == named.task {
            return Err(refused("it has ended, or is about to"));
        }
    }
    Ok(Json(Nothing {}))
}

/// Lets a task go on, and what it started and is paused too.
pub(crate) async fn unpause(call: Call) -> Result<Json<Nothing>, Failure> {
    let named = generic(&call, call.part("id")).await?;
    let is_paused =
        |row: &CommandRow| matches!(state_of(row), GenericTaskState::Paused | GenericTaskState::StoppingPaused);
    if !is_paused(&named) {
        let what = format!("cannot unpause task {}: it is not paused", named.task);
        return Err(Failure::new(Code::FailedPrecondition, what));
    }
    let all = all_of_them(&call).await?;
    let tree = tree_of(&all, named.task);
    let meant: Vec<&CommandRow> = all.iter().filter(|row| tree.contains(&row.task) && is_paused(row)).collect();
    for row in &meant {
        call.may_change(Subject::Task(row.task.clone())).await?;
    }
    for row in meant {
        call.application.cluster.pause_command(row.task.clone(), None).await?;
    }
    Ok(Json(Nothing {}))
}

/// Kills a task and all that it started; with `killFromRoot` everything that the first of them started.
pub(crate) async fn kill(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: KillGenericRequest = call.json()?;
    let named = generic(&call, call.part("id")).await?;
    if named.ended_at.is_some() {
        let what = format!("cannot cancel task {}: it has ended", named.task);
        return Err(Failure::new(Code::FailedPrecondition, what));
    }
    let all = all_of_them(&call).await?;
    let mut root = named.task.clone();
    // Each task names one that was there before it, so this comes to an end.
    while request.kill_from_root == Some(true) {
        let parent = all.iter().find(|row| row.task == root).and_then(parent_of);
        let Some(parent) = parent else { break };
        root = parent.to_owned();
    }
    let meant = tree_of(&all, root);
    for task in &meant {
        call.may_change(Subject::Task(task.clone())).await?;
    }
    for task in meant {
        call.application.cluster.kill_command(task, "user requested task kill".to_owned()).await?;
    }
    Ok(Json(Nothing {}))
}
