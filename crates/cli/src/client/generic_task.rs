//! `instep task create` and its like: generic tasks, any program with its files, in a tree of tasks that start each other.

use std::path::PathBuf;

use clap::Args;
use instep_api::commands::{GenericConfigResponse, GenericTaskRequest, GenericTaskResponse, KillGenericRequest};
use instep_api::identifiers::ProjectId;
use instep_client::Client;
use serde_json::Value;

use super::dialog::say;
use super::interrupt::SayOnInterrupt;
use super::logs::{self, LogArguments};
use super::options::Common;
use super::requests::{api, post_empty};
use super::{configuration, context, lookup, table, task_verbs};
use crate::report::Hinted;

/// What a task is made of, and where.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// Configuration file, YAML or JSON; may be left out with --fork
    #[arg(value_name = "CONFIG", required_unless_present = "fork")]
    file: Option<PathBuf>,
    /// Folder to copy into the task's working directory
    #[arg(short, long, value_name = "FOLDER", conflicts_with = "inherit_context")]
    context: Option<PathBuf>,
    /// Override one setting, such as resources.slots=0; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Take the configuration, and the files if there are no others, of this task
    #[arg(long, value_name = "ID")]
    fork: Option<String>,
    /// Start it as a child of this task
    #[arg(short, long, value_name = "ID")]
    parent: Option<String>,
    /// Take the files of the parent
    #[arg(long, requires = "parent")]
    inherit_context: bool,
    /// Do not let it be paused
    #[arg(long)]
    no_pause: bool,
    #[command(flatten)]
    placed: Placed,
}

/// Where a new task lies, and whether it is followed.
#[derive(Debug, Args)]
pub(crate) struct Placed {
    /// Put it into this project, such as lab/thesis [default: Uncategorized]
    #[arg(long, value_name = "WORKSPACE/PROJECT")]
    project: Option<String>,
    /// Follow its output until it ends
    #[arg(short, long)]
    follow: bool,
}

impl Placed {
    fn project(&self, client: &Client) -> anyhow::Result<Option<ProjectId>> {
        let Some(named) = &self.project else { return Ok(None) };
        let none = || Hinted::new(format!("--project {named}: missing `/`"), "--project WORKSPACE/PROJECT");
        let (workspace, project) = named.split_once('/').ok_or_else(none)?;
        Ok(Some(lookup::project(client, workspace, project)?.id))
    }
}

/// Makes a task.
pub(super) fn create(client: &Client, common: &Common, arguments: &CreateArguments) -> anyhow::Result<()> {
    let config = match &arguments.file {
        Some(file) => Some(configuration::read(file, &arguments.config)?),
        None if arguments.config.is_empty() => None,
        None => Some(task_verbs::read_config(None, &arguments.config)?.to_string()),
    };
    let packed = arguments.context.as_deref().map(context::pack).transpose()?.unwrap_or_default();
    let request = GenericTaskRequest {
        config,
        context_directory: Some(packed.files),
        project_id: arguments.placed.project(client)?,
        forked_from: arguments.fork.clone(),
        parent_id: arguments.parent.clone(),
        inherit_context: Some(arguments.inherit_context),
        // Left open: what another task started runs on when that one is paused.
        no_pause: arguments.no_pause.then_some(true),
    };
    make(client, common, &request, arguments.placed.follow)
}

/// Makes a task like another one.
pub(super) fn fork(client: &Client, common: &Common, task: &str, placed: &Placed) -> anyhow::Result<()> {
    let request = GenericTaskRequest {
        forked_from: Some(task.to_owned()),
        project_id: placed.project(client)?,
        ..GenericTaskRequest::default()
    };
    make(client, common, &request, placed.follow)
}

fn make(client: &Client, common: &Common, request: &GenericTaskRequest, follow: bool) -> anyhow::Result<()> {
    let made: GenericTaskResponse = client.post("/api/v1/generic-tasks", request).map_err(unknown)?;
    task_verbs::warn(&made.warnings);
    let task = &made.task_id;
    if !follow {
        if common.json {
            return table::json(&made);
        }
        task_verbs::print_identifier(task);
        return Ok(());
    }
    say(&format!("task {task}"));
    let again = format!("task {task} keeps running\nhint: follow it again with `instep task logs -f {task}`");
    let _interrupt = SayOnInterrupt::new(format!("{again}, stop it with `instep task kill {task}`"));
    logs::print(client, &api(&["tasks", task, "logs"]), &LogArguments::following(), common.json)
}

/// Prints what was given as the configuration of a task.
pub(super) fn config(client: &Client, task: &str) -> anyhow::Result<()> {
    let found: GenericConfigResponse = client.get(&api(&["tasks", task, "config"])).map_err(unknown)?;
    table::json(&configuration::parse(&found.config)?)
}

/// Ends a task and all that it started.
pub(super) fn kill(client: &Client, task: &str, from_root: bool) -> anyhow::Result<()> {
    let request = KillGenericRequest { kill_from_root: Some(from_root) };
    let _: Value = client.post(&api(&["tasks", task, "kill"]), &request).map_err(unknown)?;
    let what = if from_root { "all tasks of its tree are" } else { "it and what it started is" };
    say(&format!("task {task}: {what} being ended"));
    Ok(())
}

/// Stops a task for a while, or lets it go on.
pub(super) fn set_paused(client: &Client, task: &str, paused: bool) -> anyhow::Result<()> {
    let (verb, what) = if paused { ("pause", "is being paused") } else { ("unpause", "is queued again") };
    post_empty(client, &api(&["tasks", task, verb]))?;
    say(&format!("task {task} {what}"));
    Ok(())
}

/// Points to the verbs of other kinds when a task is not generic.
fn unknown(error: instep_client::Error) -> anyhow::Error {
    if error.is_not_found() {
        let hint = "`instep task list` shows what runs; commands, notebooks and the others have verbs of their own";
        return Hinted::new(error.to_string(), hint).into();
    }
    error.into()
}
