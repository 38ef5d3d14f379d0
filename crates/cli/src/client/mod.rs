//! The verbs that talk to a master: `instep experiment list` and its like.
//!
//! Names and short forms are those of Determined's `det`, so that fingers need not learn anything. Data goes to stdout, as
//! aligned tables or as the master's JSON (`--json`); everything else that is said goes to stderr.
//!
//! - [`session`] knows which master is meant, who speaks, and where tokens are kept; [`password`] asks for passwords.
//! - [`table`] and [`shown`] decide how things look.
//! - The other modules are the verbs, one for each kind of thing.

mod account;
pub(crate) mod agent;
mod checkpoint;
mod command;
mod configuration;
mod context;
mod control;
mod experiment;
mod export;
mod follow;
mod job;
mod logs;
mod master_log;
mod metrics;
mod model;
mod newest;
mod outcome;
mod password;
mod pool;
mod preview;
mod project;
mod session;
mod shown;
mod single;
mod slot;
mod submit;
mod table;
pub(crate) mod task;
mod template;
mod tensorboard;
mod trial;
mod trial_logs;
mod unpack;
mod user;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use instep_client::{Client, Error};

pub(crate) use master_log::MasterLogsArguments;

use crate::console;
use crate::report::{Hinted, chain};

/// The verbs; flattened into the commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Log in to a master
    Login(account::LoginArguments),
    /// Log out
    Logout(account::SessionArguments),
    /// Show the current user and master
    Whoami(account::SessionArguments),
    /// Manage experiments: create, pause, cancel, list, logs, metrics, export, delete
    #[command(visible_alias = "e", arg_required_else_help = true)]
    Experiment(experiment::ExperimentArguments),
    /// Manage trials: list, describe, metrics, logs, export, kill
    #[command(visible_alias = "t", arg_required_else_help = true)]
    Trial(trial::TrialArguments),
    /// Manage checkpoints: list, describe, download, delete
    #[command(visible_alias = "c", arg_required_else_help = true)]
    Checkpoint(checkpoint::CheckpointArguments),
    /// Manage the model registry: named, versioned checkpoints
    #[command(visible_alias = "m", arg_required_else_help = true)]
    Model(model::ModelArguments),
    /// Manage workspaces, which group projects
    #[command(visible_alias = "w", arg_required_else_help = true)]
    Workspace(workspace::WorkspaceArguments),
    /// Manage projects, which group experiments
    #[command(visible_alias = "p", arg_required_else_help = true)]
    Project(project::ProjectArguments),
    /// Manage users
    #[command(visible_alias = "u", arg_required_else_help = true)]
    User(user::UserArguments),
    /// Manage slots: list, enable, disable
    #[command(visible_alias = "s", arg_required_else_help = true)]
    Slot(slot::SlotArguments),
    /// Manage the job queue: list, update
    #[command(visible_alias = "j", arg_required_else_help = true)]
    Job(job::JobArguments),
    /// List pools of agents
    #[command(visible_alias = "rp", arg_required_else_help = true)]
    ResourcePool(pool::PoolArguments),
    /// Run and manage single programs on the cluster
    #[command(visible_alias = "cmd", arg_required_else_help = true)]
    Command(command::CommandArguments),
    /// Start and manage TensorBoards of experiments
    #[command(visible_alias = "tb", arg_required_else_help = true)]
    Tensorboard(tensorboard::TensorboardArguments),
    /// Show which trials a configuration would run
    PreviewSearch(preview::PreviewArguments),
    /// Manage templates: configuration shared by experiments
    #[command(visible_alias = "tpl", arg_required_else_help = true)]
    Template(template::TemplateArguments),
}

/// What all verbs take.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Common {
    /// Address of the master [default: $INSTEP_MASTER, else $DET_MASTER, else http://127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDRESS", global = true)]
    master: Option<String>,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    json: bool,
}

/// The master that is meant, and the certificates to trust instead of the public ones.
pub(crate) fn master(common: &Common) -> anyhow::Result<(instep_client::Address, Option<std::path::PathBuf>)> {
    session::master(common).map_err(explained)
}

/// The token of an administrator's session at a master.
pub(crate) fn administrator_token(common: &Common) -> anyhow::Result<String> {
    session::administrator_token(common).map_err(explained)
}

/// Does what a verb says.
pub(crate) fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    let outcome = match verb {
        Verb::Login(arguments) => account::login(&arguments.common, &arguments.user),
        Verb::Logout(arguments) => account::logout(&arguments.common),
        Verb::Whoami(arguments) => account::whoami(&arguments.common),
        Verb::Experiment(arguments) => experiment::run(arguments),
        Verb::Trial(arguments) => trial::run(arguments),
        Verb::Checkpoint(arguments) => checkpoint::run(arguments),
        Verb::Model(arguments) => model::run(arguments),
        Verb::Workspace(arguments) => workspace::run(arguments),
        Verb::Project(arguments) => project::run(arguments),
        Verb::User(arguments) => user::run(arguments),
        Verb::Slot(arguments) => slot::run(arguments),
        Verb::Job(arguments) => job::run(arguments),
        Verb::ResourcePool(arguments) => pool::run(&arguments),
        Verb::Command(arguments) => command::run(arguments),
        Verb::Tensorboard(arguments) => tensorboard::run(arguments),
        Verb::PreviewSearch(arguments) => preview::run(&arguments),
        Verb::Template(arguments) => template::run(arguments),
    };
    outcome.map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Prints what a master has logged.
pub(crate) fn master_logs(arguments: &MasterLogsArguments) -> anyhow::Result<ExitCode> {
    master_log::print(arguments).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Does what a verb says about agents.
pub(crate) fn agents(common: &Common, verb: &agent::AgentVerb) -> anyhow::Result<ExitCode> {
    agent::run(common, verb).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Does what a verb says about tasks.
pub(crate) fn tasks(common: &Common, verb: &task::TaskVerb) -> anyhow::Result<ExitCode> {
    task::run(common, verb).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Says what to do next where the client's own words do not.
fn explained(error: anyhow::Error) -> anyhow::Error {
    let hint = match error.downcast_ref::<Error>() {
        Some(Error::Unreachable { .. }) => "start one with `instep up`, or name another with --master",
        Some(error) if error.is_unauthenticated() => "log in with `instep login USER`",
        Some(Error::Refused { status: 403, .. }) => "`instep whoami` shows your user, `instep login USER` changes it",
        Some(Error::Address { .. }) => "use an address such as http://127.0.0.1:8080, or a host name",
        Some(_) | None => return error,
    };
    Hinted::new(chain(error.as_ref()), hint).into()
}

/// Says that something was done.
fn say(what: &str) {
    console::print_error(&format!("{what}\n"));
}

/// Asks before something that cannot be taken back, unless `yes`.
fn confirm(yes: bool, what: &str) -> anyhow::Result<()> {
    use std::io::{BufRead, IsTerminal};
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Hinted::new(format!("{what} cannot be undone"), "add --yes to confirm").into());
    }
    console::print_error(&format!("{what} cannot be undone. Type yes to confirm: "));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("yes") { Ok(()) } else { Err(anyhow::anyhow!("nothing was changed")) }
}

/// A path of the API with a name in it.
fn api(parts: &[&str]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| instep_client::segment(part)).collect();
    format!("/api/v1/{}", parts.join("/"))
}

/// Sends something without content whose answer does not matter.
fn tell(client: &Client, path: &str) -> anyhow::Result<()> {
    let _: serde_json::Value = client.post(path, &serde_json::json!({}))?;
    Ok(())
}

/// Deletes.
fn delete(client: &Client, path: &str) -> anyhow::Result<()> {
    let _: serde_json::Value = client.delete(path)?;
    Ok(())
}
