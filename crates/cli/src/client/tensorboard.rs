//! `instep tensorboard`: what trials wrote for TensorBoard, shown in a browser.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use instep_api::commands::{
    Command, LaunchRequest, LaunchTensorboardResponse, TensorboardResponse, TensorboardsResponse,
};
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_client::Client;
use serde_json::Value;

use super::logs::LogArguments;
use super::options::Common;
use super::task_verbs::{self, Kind, Named, Priority, Set};
use super::{lookup, session};

/// The verbs of TensorBoards, for [`task_verbs`].
struct Tensorboards;

impl Kind for Tensorboards {
    const NOUN: &str = "TensorBoard";
    const COLLECTION: &str = "tensorboards";
    const VERBS: &str = "tensorboard";
    const HINT: &str = "start one with `instep tensorboard start EXPERIMENT`";
    type One = TensorboardResponse;
    type Many = TensorboardsResponse;

    fn task(answer: &TensorboardResponse) -> &Command {
        &answer.tensorboard
    }

    fn config(answer: &TensorboardResponse) -> &Value {
        &answer.config
    }

    fn tasks(answer: TensorboardsResponse) -> Vec<Command> {
        answer.tensorboards
    }
}

#[derive(Debug, Args)]
pub(crate) struct TensorboardArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a TensorBoard, wait until it is ready, and print its address
    Start(StartArguments),
    /// List TensorBoards
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
    /// Experiments to show
    #[arg(value_name = "EXPERIMENT", required_unless_present = "trials")]
    experiments: Vec<ExperimentId>,
    /// Trials to show
    #[arg(short, long = "trial-ids", value_name = "TRIAL", num_args = 1..)]
    trials: Vec<TrialId>,
    /// Configuration file, YAML or JSON
    #[arg(long = "config-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Override one setting, such as idle_timeout=1h; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Run it in this workspace [default: Uncategorized]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Print its id and return without waiting
    #[arg(short, long)]
    detach: bool,
}

pub(crate) fn run(arguments: TensorboardArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Start(arguments) => start(&client, &common, arguments),
        Verb::List { all } => task_verbs::list::<Tensorboards>(&client, &common, all),
        Verb::Describe(named) => task_verbs::describe::<Tensorboards>(&client, &common, &named.task),
        Verb::Config(named) => task_verbs::config::<Tensorboards>(&client, &named.task),
        Verb::Open(named) => task_verbs::open::<Tensorboards>(&client, &named.task),
        Verb::Logs { named, logs } => task_verbs::logs::<Tensorboards>(&client, &common, &named.task, &logs),
        Verb::Kill(named) => task_verbs::kill::<Tensorboards>(&client, &named.task),
        Verb::SetPriority(wanted) | Verb::Set(Set::Priority(wanted)) => {
            task_verbs::set_priority::<Tensorboards>(&client, &wanted)
        }
    }
}

fn start(client: &Client, common: &Common, arguments: StartArguments) -> anyhow::Result<()> {
    let request = LaunchRequest {
        config: Some(task_verbs::read_config(arguments.file.as_deref(), &arguments.config)?),
        experiment_ids: Some(arguments.experiments),
        trial_ids: Some(arguments.trials),
        workspace_id: lookup::named_workspace(client, arguments.workspace.as_deref())?,
        ..LaunchRequest::default()
    };
    let made: LaunchTensorboardResponse = client.post("/api/v1/tensorboards", &request)?;
    task_verbs::warn(&made.warnings);
    let task = made.tensorboard.id;
    if arguments.detach {
        task_verbs::print_identifier(&task);
        return Ok(());
    }
    task_verbs::follow_start::<Tensorboards>(client, common, &task)
}
