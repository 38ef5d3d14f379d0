//! `instep task list` and its like: what runs or waits now, the logs of any task, and generic tasks.

use clap::Subcommand;
use instep_api::jobs::TaskSummariesResponse;
use instep_api::logs::CleanupLogsResponse;
use instep_client::Client;

use super::dialog::say;
use super::generic_task::{CreateArguments, Placed};
use super::logs::{self, LogArguments};
use super::options::Common;
use super::requests::api;
use super::{generic_task, session, shown, table};

#[derive(Debug, Subcommand)]
pub(crate) enum TaskVerb {
    /// List running and waiting tasks
    #[command(visible_alias = "ls")]
    List,
    /// Print the logs of a task
    Logs {
        /// Id of the task, as shown by `instep task list`
        task: String,
        #[command(flatten)]
        logs: Box<LogArguments>,
    },
    /// Create a generic task: any program with its files
    Create(Box<CreateArguments>),
    /// Create a generic task with the configuration and the files of another one
    Fork {
        /// Id of the other task
        task: String,
        #[command(flatten)]
        placed: Placed,
    },
    /// Print the configuration of a generic task, as it was given
    Config {
        /// Id of the task
        task: String,
    },
    /// Pause a generic task: it is stopped, and starts from its beginning when it is unpaused
    Pause {
        /// Id of the task
        task: String,
    },
    /// Queue a paused generic task again
    Unpause {
        /// Id of the task
        task: String,
    },
    /// Kill a generic task and what it started
    Kill {
        /// Id of the task
        task: String,
        /// Kill all that the first of its ancestors started
        #[arg(long)]
        root: bool,
    },
    /// Delete logs whose time is over now, instead of within the hour; for administrators
    CleanupLogs,
}

/// Does what a verb says.
pub(crate) fn run(common: &Common, verb: &TaskVerb) -> anyhow::Result<()> {
    let client = session::connect(common)?;
    match verb {
        TaskVerb::List => list(&client, common),
        TaskVerb::Logs { task, logs } => logs::print(&client, &api(&["tasks", task, "logs"]), logs, common.json),
        TaskVerb::Create(arguments) => generic_task::create(&client, common, arguments),
        TaskVerb::Fork { task, placed } => generic_task::fork(&client, common, task, placed),
        TaskVerb::Config { task } => generic_task::config(&client, task),
        TaskVerb::Pause { task } => generic_task::set_paused(&client, task, true),
        TaskVerb::Unpause { task } => generic_task::set_paused(&client, task, false),
        TaskVerb::Kill { task, root } => generic_task::kill(&client, task, *root),
        TaskVerb::CleanupLogs => cleanup_logs(common),
    }
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let found: TaskSummariesResponse = client.get("/api/v1/tasks")?;
    if common.json {
        return table::json(&found);
    }
    print_list(&found);
    Ok(())
}

fn cleanup_logs(common: &Common) -> anyhow::Result<()> {
    let client = session::administrator(common, "deleting logs needs", "`instep login USER` as an administrator")?;
    let deleted: CleanupLogsResponse = client.post("/api/v1/cleanup_logs", &serde_json::json!({}))?;
    say(&format!("deleted {}", shown::plural(deleted.removed_count.0, "line")));
    Ok(())
}

/// Prints tasks as a table.
pub(super) fn print_list(found: &TaskSummariesResponse) {
    let mut table = table::Table::new(&["TASK", "NAME", "SLOTS", "AGENTS", "PRIORITY", "POOL", "SINCE"]);
    for summary in found.allocation_id_to_summary.values() {
        let agents: Vec<String> =
            summary.resources.iter().flat_map(|resources| resources.agent_devices.keys().cloned()).collect();
        table.row(vec![
            summary.task_id.clone(),
            summary.name.clone(),
            summary.slots_needed.to_string(),
            if agents.is_empty() { "waits".to_owned() } else { shown::list(&agents) },
            summary.priority.map(|priority| priority.to_string()).unwrap_or_default(),
            summary.resource_pool.clone(),
            shown::optional_time(summary.registered_time),
        ]);
    }
    table.print("no tasks", "submit one with `instep experiment create CONFIG FOLDER`");
}
