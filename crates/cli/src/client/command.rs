//! `instep command`: single programs on the cluster's slots.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use instep_api::commands::{CommandResponse, CommandsResponse, LaunchCommandResponse, LaunchRequest};
use instep_client::{Client, Query};
use serde_json::{Value, json};

use super::logs::{self, LogArguments};
use super::single::{self, Named, Priority, Set};
use super::{Common, api, configuration, context, say, session, table};
use crate::console;

#[derive(Debug, Args)]
pub(crate) struct CommandArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a program on one or more slots and follow its output
    Run(RunArguments),
    /// List commands
    #[command(visible_alias = "ls")]
    List {
        /// Include those of other users
        #[arg(short, long)]
        all: bool,
    },
    /// Show details
    Describe(Named),
    /// Print the configuration
    Config(Named),
    /// Print its logs
    Logs {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        logs: Box<LogArguments>,
    },
    /// Kill it
    Kill(Named),
    /// Set its priority
    SetPriority(Priority),
    #[command(subcommand, hide = true)]
    Set(Set),
}

#[derive(Debug, Args)]
struct RunArguments {
    /// Program and arguments; a single word is run by the shell
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Configuration file, YAML or JSON
    #[arg(long = "config-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Override one setting, such as resources.slots=0; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Folder to copy into the program's working directory
    #[arg(short, long, value_name = "FOLDER")]
    context: Option<PathBuf>,
    /// Apply the configuration on top of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Print its id and return without following its output
    #[arg(short, long)]
    detach: bool,
}

pub(crate) fn run(arguments: CommandArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Run(arguments) => start(&client, &common, arguments),
        Verb::List { all } => list(&client, &common, all),
        Verb::Describe(named) => {
            let found = get(&client, &named.task)?;
            if common.json { table::json(&found) } else { single::describe(&found.command) }
        }
        Verb::Config(named) => table::json(&get(&client, &named.task)?.config),
        Verb::Logs { named, logs } => logs::print(&client, &api(&["tasks", &named.task, "logs"]), &logs, common.json),
        Verb::Kill(named) => {
            let ended: CommandResponse = client.post(&api(&["commands", &named.task, "kill"]), &json!({}))?;
            single::say_ending("command", &ended.command);
            Ok(())
        }
        Verb::SetPriority(Priority { named, priority }) | Verb::Set(Set::Priority(Priority { named, priority })) => {
            let _: Value =
                client.post(&api(&["commands", &named.task, "set_priority"]), &json!({"priority": priority}))?;
            say(&format!("command {} has priority {priority}", named.task));
            Ok(())
        }
    }
}

fn get(client: &Client, task: &str) -> anyhow::Result<CommandResponse> {
    Ok(client.get(&api(&["commands", task]))?)
}

fn list(client: &Client, common: &Common, all: bool) -> anyhow::Result<()> {
    let user = if all { None } else { Some(client.user()?.username) };
    let found: CommandsResponse = client.get(&format!("/api/v1/commands{}", Query::new().with_some("users", user)))?;
    if common.json {
        return table::json(&found.commands);
    }
    single::print(&found.commands, "no commands", "run one with `instep command run COMMAND`");
    Ok(())
}

fn start(client: &Client, common: &Common, arguments: RunArguments) -> anyhow::Result<()> {
    let text = match &arguments.file {
        Some(file) => configuration::read(file, &arguments.config)?,
        None => configuration::with(json!({}), &arguments.config)?.to_string(),
    };
    let mut config = configuration::parse(&text)?;
    if !arguments.words.is_empty() {
        config["entrypoint"] = json!(arguments.words);
    }
    let packed = arguments.context.as_deref().map(context::pack).transpose()?.unwrap_or_default();
    let request = LaunchRequest {
        config: Some(config),
        template_name: arguments.template,
        files: Some(packed.files),
        ..LaunchRequest::default()
    };
    let made: LaunchCommandResponse = client.post("/api/v1/commands", &request)?;
    single::warn(&made.warnings);
    let task = made.command.id.clone();
    if arguments.detach {
        console::print(format!("{task}\n").as_bytes());
        return Ok(());
    }
    say(&format!("command {task}"));
    logs::print(client, &api(&["tasks", &task, "logs"]), &LogArguments::following(), common.json)?;
    single::outcome("command", &get(client, &task)?.command)
}
