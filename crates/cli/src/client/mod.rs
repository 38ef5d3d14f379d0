//! The verbs that talk to a master: `instep experiment list` and its like.
//!
//! Names and short forms are those of Determined's `det`, so that fingers need not learn anything. Data goes to stdout, as
//! aligned tables or as the master's JSON (`--json`); everything else that is said goes to stderr.
//!
//! - [`session`] knows which master is meant, who speaks, and where tokens are kept; [`password`] asks for passwords.
//! - [`table`] and [`shown`] decide how things look; [`dialog`] is what is said to people beside.
//! - [`lookup`] finds what a name, a number or nothing at all means; [`requests`] are those that many verbs make.
//! - [`interrupt`] is what Ctrl-C says while something is followed.
//! - [`task_verbs`] is what commands, TensorBoards, notebooks and shells share.
//! - The other modules are the verbs, one for each kind of thing.

mod account;
pub(crate) mod agent;
mod audit;
mod checkpoint;
mod command;
mod config_policies;
mod configuration;
mod context;
mod control;
mod dialog;
mod experiment;
mod export;
mod follow;
mod generic_task;
mod goodput;
mod group;
mod interrupt;
mod job;
mod logs;
mod lookup;
mod master_log;
mod master_message;
mod master_status;
mod metrics;
mod model;
mod notebook;
mod options;
mod outcome;
mod password;
mod pool;
mod preview;
mod project;
mod requests;
mod resources;
mod secret;
mod session;
mod sharing;
mod shell;
mod shown;
mod slot;
mod submit;
mod table;
pub(crate) mod task;
mod task_verbs;
mod template;
mod tensorboard;
mod token;
mod trial;
mod trial_logs;
mod unpack;
mod user;
mod workspace;

use std::process::ExitCode;

use clap::Subcommand;
use instep_agent::agent::NoToken;
use instep_client::Error;

pub(crate) use audit::MasterAuditArguments;
pub(crate) use master_log::MasterLogsArguments;
pub(crate) use master_message::{ClusterMessageArguments, MasterInfoArguments};
pub(crate) use master_status::MasterStatusArguments;
pub(crate) use options::Common;

use crate::report::{Hinted, chain};

/// The verbs; flattened into the commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Log in to a master
    Login(account::LoginArguments),
    /// Log out
    Logout(account::SessionArguments),
    /// Show which user is logged in to which master
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
    /// Manage access tokens, which programs use in place of a login
    #[command(visible_alias = "tkn", arg_required_else_help = true)]
    Token(token::TokenArguments),
    /// Manage secrets: values that tasks are given and nothing shows
    #[command(arg_required_else_help = true)]
    Secret(secret::SecretArguments),
    /// Manage groups of users, which share workspaces; needs a master with --roles
    #[command(arg_required_else_help = true)]
    Group(group::GroupArguments),
    /// Manage slots: list, enable, disable
    #[command(visible_alias = "s", arg_required_else_help = true)]
    Slot(slot::SlotArguments),
    /// Manage the job queue: list, update
    #[command(visible_alias = "j", arg_required_else_help = true)]
    Job(job::JobArguments),
    /// Manage pools of agents: list, bindings
    #[command(visible_alias = "rp", arg_required_else_help = true)]
    ResourcePool(pool::PoolArguments),
    /// Report who had which slots, and for how long
    #[command(visible_alias = "res", arg_required_else_help = true)]
    Resources(resources::ResourcesArguments),
    /// Manage policies: what configurations must be
    #[command(visible_alias = "cp", arg_required_else_help = true)]
    ConfigPolicies(config_policies::ConfigPoliciesArguments),
    /// Commands: programs on the cluster's slots
    #[command(visible_alias = "cmd", arg_required_else_help = true)]
    Command(command::CommandArguments),
    /// Start and manage TensorBoards of experiments
    #[command(visible_alias = "tb", arg_required_else_help = true)]
    Tensorboard(tensorboard::TensorboardArguments),
    /// Start and manage notebooks: JupyterLab on the cluster's slots
    #[command(visible_alias = "nb", arg_required_else_help = true)]
    Notebook(notebook::NotebookArguments),
    /// Start and open shells: SSH on the cluster's slots
    #[command(arg_required_else_help = true)]
    Shell(shell::ShellArguments),
    /// Show which trials a configuration would create
    PreviewSearch(preview::PreviewArguments),
    /// Manage templates: configuration shared by experiments
    #[command(visible_alias = "tpl", arg_required_else_help = true)]
    Template(template::TemplateArguments),
}

/// The master that is meant, and the certificates to trust instead of the public ones.
pub(crate) fn master(common: &Common) -> anyhow::Result<(instep_client::Addresses, Option<std::path::PathBuf>)> {
    session::master(common).map_err(explained)
}

/// The token of an administrator's session at a master.
pub(crate) fn administrator_token(common: &Common) -> Result<String, NoToken> {
    session::administrator_token(common).map_err(|error| {
        let later = error.downcast_ref::<Error>().is_some_and(Error::is_temporary);
        let why = chain(explained(error).as_ref());
        if later { NoToken::Later(why) } else { NoToken::NotLoggedIn(why) }
    })
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
        Verb::Token(arguments) => token::run(arguments),
        Verb::Secret(arguments) => secret::run(arguments),
        Verb::Group(arguments) => group::run(arguments),
        Verb::Slot(arguments) => slot::run(arguments),
        Verb::Job(arguments) => job::run(arguments),
        Verb::ResourcePool(arguments) => pool::run(&arguments),
        Verb::Resources(arguments) => resources::run(arguments),
        Verb::ConfigPolicies(arguments) => config_policies::run(arguments),
        Verb::Command(arguments) => command::run(arguments),
        Verb::Tensorboard(arguments) => tensorboard::run(arguments),
        Verb::Notebook(arguments) => notebook::run(arguments),
        Verb::Shell(arguments) => return shell::run(arguments).map_err(explained),
        Verb::PreviewSearch(arguments) => preview::run(&arguments),
        Verb::Template(arguments) => template::run(arguments),
    };
    outcome.map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Prints what a master has logged.
pub(crate) fn master_logs(arguments: &MasterLogsArguments) -> anyhow::Result<ExitCode> {
    master_log::print(arguments).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Prints what a master says of itself.
pub(crate) fn master_info(arguments: &MasterInfoArguments) -> anyhow::Result<ExitCode> {
    master_message::info(arguments).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Prints which of several masters leads.
pub(crate) fn master_status(arguments: &MasterStatusArguments) -> anyhow::Result<ExitCode> {
    master_status::run(arguments).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Sets, shows or deletes what administrators say to everybody.
pub(crate) fn cluster_message(arguments: ClusterMessageArguments) -> anyhow::Result<ExitCode> {
    master_message::run(arguments).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Prints who did what at a master.
pub(crate) fn master_audit(arguments: &MasterAuditArguments) -> anyhow::Result<ExitCode> {
    audit::print(arguments).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Does what a verb says about agents.
pub(crate) fn agents(common: &Common, verb: &agent::AgentVerb) -> anyhow::Result<ExitCode> {
    agent::run(common, verb).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// Does what a verb says about tasks.
pub(crate) fn tasks(common: &Common, verb: &task::TaskVerb) -> anyhow::Result<ExitCode> {
    task::run(common, verb).map(|()| ExitCode::SUCCESS).map_err(explained)
}

/// The option with which a master listens where nobody answers, if it is another port than the default one.
fn port_option(address: &str) -> String {
    let port = address.rsplit(':').next().filter(|port| *port != "8080" && port.parse::<u16>().is_ok());
    port.map(|port| format!(" --port {port}")).unwrap_or_default()
}

/// Says what to do next where the client's own words do not.
fn explained(error: anyhow::Error) -> anyhow::Error {
    if error.downcast_ref::<Error>().is_some_and(|error| error.to_string().contains("\nhint: ")) {
        return error;
    }
    if let Some(hint) = error.downcast_ref::<Error>().and_then(Error::hint) {
        return Hinted::new(chain(error.as_ref()), hint).into();
    }
    let hint = match error.downcast_ref::<Error>() {
        Some(error) if error.is_unknown_host() => {
            "check the name in --master or INSTEP_MASTER: `getent hosts NAME` shows what this machine knows of it"
        }
        Some(Error::Unreachable { address, .. }) => &format!(
            "start one with `instep up{}`, or name another with --master or INSTEP_MASTER",
            port_option(address.as_str())
        ),
        Some(error) if error.is_unauthenticated() => "log in with `instep login USER`",
        Some(Error::Refused { status: 403, .. }) => "`instep whoami` shows your user, `instep login USER` changes it",
        Some(Error::Address { .. }) => "use an address such as http://127.0.0.1:8080, or a host name",
        Some(missing) if missing.is_not_found() => match lookup::hint_for_missing(&missing.to_string()) {
            Some(hint) => hint,
            None => return error,
        },
        Some(_) | None => return error,
    };
    Hinted::new(chain(error.as_ref()), hint).into()
}
