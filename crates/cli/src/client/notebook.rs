//! `instep notebook`: JupyterLab on the cluster's slots.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use instep_api::commands::{Command, LaunchNotebookResponse, LaunchRequest, NotebookResponse, NotebooksResponse};
use instep_client::Client;
use serde_json::Value;

use super::logs::LogArguments;
use super::options::Common;
use super::task_verbs::{self, Kind, Named, Priority, Set};
use super::{context, lookup, session, table};

/// The verbs of notebooks, for [`task_verbs`].
struct Notebooks;

impl Kind for Notebooks {
    const NOUN: &str = "notebook";
    const COLLECTION: &str = "notebooks";
    const VERBS: &str = "notebook";
    const HINT: &str = "start one with `instep notebook start`";
    type One = NotebookResponse;
    type Many = NotebooksResponse;

    fn task(answer: &NotebookResponse) -> &Command {
        &answer.notebook
    }

    fn config(answer: &NotebookResponse) -> &Value {
        &answer.config
    }

    fn tasks(answer: NotebooksResponse) -> Vec<Command> {
        answer.notebooks
    }
}

#[derive(Debug, Args)]
pub(crate) struct NotebookArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start JupyterLab, wait until it is ready, and print its address
    Start(StartArguments),
    /// List notebooks
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
    /// Print its address
    Open(Named),
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
struct StartArguments {
    /// Configuration file, YAML or JSON
    #[arg(long = "config-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Override one setting, such as idle_timeout=1h or resources.slots=0; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Folder to copy into the notebook's working directory
    #[arg(short, long, value_name = "FOLDER")]
    context: Option<PathBuf>,
    /// Apply the configuration on top of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Run it in this workspace [default: Uncategorized]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Print its id and return without waiting
    #[arg(short, long)]
    detach: bool,
    /// Print the configuration that it would have, and start nothing
    #[arg(long)]
    preview: bool,
}

pub(crate) fn run(arguments: NotebookArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Start(arguments) => start(&client, &common, arguments),
        Verb::List { all } => task_verbs::list::<Notebooks>(&client, &common, all),
        Verb::Describe(named) => task_verbs::describe::<Notebooks>(&client, &common, &named.task),
        Verb::Config(named) => task_verbs::config::<Notebooks>(&client, &named.task),
        Verb::Open(named) => task_verbs::open::<Notebooks>(&client, &named.task),
        Verb::Logs { named, logs } => task_verbs::logs::<Notebooks>(&client, &common, &named.task, &logs),
        Verb::Kill(named) => task_verbs::kill::<Notebooks>(&client, &named.task),
        Verb::SetPriority(wanted) | Verb::Set(Set::Priority(wanted)) => {
            task_verbs::set_priority::<Notebooks>(&client, &wanted)
        }
    }
}

fn start(client: &Client, common: &Common, arguments: StartArguments) -> anyhow::Result<()> {
    let packed = arguments.context.as_deref().map(context::pack).transpose()?.unwrap_or_default();
    let request = LaunchRequest {
        config: Some(task_verbs::read_config(arguments.file.as_deref(), &arguments.config)?),
        template_name: arguments.template,
        files: Some(packed.files),
        workspace_id: lookup::named_workspace(client, arguments.workspace.as_deref())?,
        preview: Some(arguments.preview),
        ..LaunchRequest::default()
    };
    let made: LaunchNotebookResponse = client.post("/api/v1/notebooks", &request)?;
    if arguments.preview {
        return table::json(&made.config);
    }
    task_verbs::warn(&made.warnings);
    let task = made.notebook.id;
    if arguments.detach {
        task_verbs::print_identifier(&task);
        return Ok(());
    }
    task_verbs::follow_start::<Notebooks>(client, common, &task)
}
