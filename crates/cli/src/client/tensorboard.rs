//! `instep tensorboard`: what trials wrote for TensorBoard, shown in a browser.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use instep_api::commands::{LaunchRequest, LaunchTensorboardResponse, TensorboardResponse, TensorboardsResponse};
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::jobs::TaskResponse;
use instep_client::{Client, Query};
use serde_json::{Value, json};

use super::logs::{self, LogArguments};
use super::single::{self, Named, Priority, Set};
use super::{Common, api, configuration, say, session, table};
use crate::console;
use crate::report::Hinted;

/// Between two looks at one that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long one may take to be ready, slots and all.
const PATIENCE: Duration = Duration::from_secs(1800);

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
    /// Print its id and return without waiting
    #[arg(short, long)]
    detach: bool,
}

pub(crate) fn run(arguments: TensorboardArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Start(arguments) => start(&client, &common, arguments),
        Verb::List { all } => list(&client, &common, all),
        Verb::Describe(named) => {
            let found = get(&client, &named.task)?;
            if common.json { table::json(&found) } else { single::describe(&found.tensorboard) }
        }
        Verb::Config(named) => table::json(&get(&client, &named.task)?.config),
        Verb::Open(named) => {
            let found = get(&client, &named.task)?;
            single::outcome("TensorBoard", &found.tensorboard)?;
            say_address(&client, &named.task);
            Ok(())
        }
        Verb::Logs { named, logs } => logs::print(&client, &api(&["tasks", &named.task, "logs"]), &logs, common.json),
        Verb::Kill(named) => {
            let ended: TensorboardResponse = client.post(&api(&["tensorboards", &named.task, "kill"]), &json!({}))?;
            single::say_ending("TensorBoard", &ended.tensorboard);
            Ok(())
        }
        Verb::SetPriority(Priority { named, priority }) | Verb::Set(Set::Priority(Priority { named, priority })) => {
            let path = api(&["tensorboards", &named.task, "set_priority"]);
            let _: Value = client.post(&path, &json!({"priority": priority}))?;
            say(&format!("TensorBoard {} has priority {priority}", named.task));
            Ok(())
        }
    }
}

fn get(client: &Client, task: &str) -> anyhow::Result<TensorboardResponse> {
    Ok(client.get(&api(&["tensorboards", task]))?)
}

fn list(client: &Client, common: &Common, all: bool) -> anyhow::Result<()> {
    let user = if all { None } else { Some(client.user()?.username) };
    let path = format!("/api/v1/tensorboards{}", Query::new().with_some("users", user));
    let found: TensorboardsResponse = client.get(&path)?;
    if common.json {
        return table::json(&found.tensorboards);
    }
    single::print(&found.tensorboards, "no TensorBoards", "start one with `instep tensorboard start EXPERIMENT`");
    Ok(())
}

fn start(client: &Client, common: &Common, arguments: StartArguments) -> anyhow::Result<()> {
    let text = match &arguments.file {
        Some(file) => configuration::read(file, &arguments.config)?,
        None => configuration::with(json!({}), &arguments.config)?.to_string(),
    };
    let request = LaunchRequest {
        config: Some(configuration::parse(&text)?),
        experiment_ids: Some(arguments.experiments),
        trial_ids: Some(arguments.trials),
        ..LaunchRequest::default()
    };
    let made: LaunchTensorboardResponse = client.post("/api/v1/tensorboards", &request)?;
    single::warn(&made.warnings);
    let task = made.tensorboard.id;
    if arguments.detach {
        console::print(format!("{task}\n").as_bytes());
        return Ok(());
    }
    say(&format!("TensorBoard {task} is starting"));
    wait(client, &task)?;
    if common.json {
        return table::json(&get(client, &task)?.tensorboard);
    }
    say_address(client, &task);
    Ok(())
}

fn wait(client: &Client, task: &str) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found: TaskResponse = client.get(&api(&["tasks", task]))?;
        if found.task.end_time.is_some() {
            let why = get(client, task)?.tensorboard.reason;
            let hint = format!("see its logs with `instep tensorboard logs {task}`");
            return Err(Hinted::new(format!("TensorBoard {task} has ended: {why}"), &hint).into());
        }
        if found.task.allocations.first().is_some_and(|allocation| allocation.is_ready) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < until, "TensorBoard {task} is not ready after {} s", PATIENCE.as_secs());
        thread::sleep(LOOK_AGAIN);
    }
}

fn say_address(client: &Client, task: &str) {
    console::print(format!("{}/det/interactive/{task}/tensorboard\n", client.address()).as_bytes());
}
