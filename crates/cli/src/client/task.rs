//! `instep task list` and its like: what runs or waits now, and the logs of any task.

use clap::Subcommand;
use instep_api::jobs::TaskSummariesResponse;
use instep_client::Client;

use super::logs::{self, LogArguments};
use super::options::Common;
use super::requests::api;
use super::{session, shown, table};

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
}

/// Does what a verb says.
pub(crate) fn run(common: &Common, verb: &TaskVerb) -> anyhow::Result<()> {
    let client = session::connect(common)?;
    match verb {
        TaskVerb::List => list(&client, common),
        TaskVerb::Logs { task, logs } => logs::print(&client, &api(&["tasks", task, "logs"]), logs, common.json),
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
