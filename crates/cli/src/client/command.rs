//! `instep command`: programs on the cluster's slots.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use instep_api::commands::{Command, CommandResponse, CommandsResponse, LaunchCommandResponse, LaunchRequest};
use instep_client::Client;
use serde_json::{Value, json};

use super::dialog::say;
use super::interrupt::SayOnInterrupt;
use super::logs::{self, LogArguments};
use super::options::Common;
use super::requests::api;
use super::task_verbs::{self, Kind, Named, Priority, Set};
use super::{context, lookup, session};
use crate::report::Hinted;

/// The verbs of commands, for [`task_verbs`].
struct Commands;

impl Kind for Commands {
    const NOUN: &str = "command";
    const COLLECTION: &str = "commands";
    const VERBS: &str = "command";
    const HINT: &str = "run one with `instep command run COMMAND`";
    type One = CommandResponse;
    type Many = CommandsResponse;

    fn task(answer: &CommandResponse) -> &Command {
        &answer.command
    }

    fn config(answer: &CommandResponse) -> &Value {
        &answer.config
    }

    fn tasks(answer: CommandsResponse) -> Vec<Command> {
        answer.commands
    }
}

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
    /// Program and arguments; a single argument is run by the shell
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
    /// Run it in this workspace [default: Uncategorized]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Print its id and return without following its output
    #[arg(short, long)]
    detach: bool,
}

pub(crate) fn run(arguments: CommandArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Run(arguments) => start(&client, &common, arguments),
        Verb::List { all } => task_verbs::list::<Commands>(&client, &common, all),
        Verb::Describe(named) => task_verbs::describe::<Commands>(&client, &common, &named.task),
        Verb::Config(named) => task_verbs::config::<Commands>(&client, &named.task),
        Verb::Logs { named, logs } => task_verbs::logs::<Commands>(&client, &common, &named.task, &logs),
        Verb::Kill(named) => task_verbs::kill::<Commands>(&client, &named.task),
        Verb::SetPriority(wanted) | Verb::Set(Set::Priority(wanted)) => {
            task_verbs::set_priority::<Commands>(&client, &wanted)
        }
    }
}

fn start(client: &Client, common: &Common, arguments: RunArguments) -> anyhow::Result<()> {
    if let Some(option) = arguments.words.first().filter(|word| word.starts_with('-')) {
        let hint = "options come before the program: `instep command run --context . python3 work.py`";
        return Err(Hinted::new(format!("`instep command run` has no option `{option}`"), hint).into());
    }
    let mut config = task_verbs::read_config(arguments.file.as_deref(), &arguments.config)?;
    if !arguments.words.is_empty() {
        config["entrypoint"] = json!(arguments.words);
    }
    if config.get("entrypoint").is_none() && arguments.template.is_none() {
        return Err(Hinted::new("no program given", "such as `instep command run python3 work.py`").into());
    }
    let packed = arguments.context.as_deref().map(context::pack).transpose()?.unwrap_or_default();
    let request = LaunchRequest {
        config: Some(config),
        template_name: arguments.template,
        files: Some(packed.files),
        workspace_id: lookup::named_workspace(client, arguments.workspace.as_deref())?,
        ..LaunchRequest::default()
    };
    let made: LaunchCommandResponse = client.post("/api/v1/commands", &request)?;
    task_verbs::warn(&made.warnings);
    let task = made.command.id.clone();
    if arguments.detach {
        task_verbs::print_identifier(&task);
        return Ok(());
    }
    say(&format!("command {task}"));
    let again = format!("command {task} keeps running\nhint: follow it again with `instep command logs -f {task}`");
    let _interrupt = SayOnInterrupt::new(format!("{again}, stop it with `instep command kill {task}`"));
    logs::print(client, &api(&["tasks", &task, "logs"]), &LogArguments::following(), common.json)?;
    task_verbs::outcome::<Commands>(&task_verbs::get::<Commands>(client, &task)?.command)
}
