//! What commands and TensorBoards share: how they are named and shown.

use clap::{Args, Subcommand};
use instep_api::commands::SingleTask;
use instep_api::states::AllocationState;

use super::{say, shown, table};

/// Which one is meant.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Id
    #[arg(value_name = "ID")]
    pub task: String,
}

/// `set priority`, as `det` has it; the same as `set-priority`.
#[derive(Debug, Subcommand)]
pub(super) enum Set {
    /// Set its priority
    Priority(Priority),
}

/// Another place in the queue for one.
#[derive(Debug, Args)]
pub(super) struct Priority {
    #[command(flatten)]
    pub named: Named,
    /// Priority, 1 to 99; lower numbers go first
    #[arg(value_parser = clap::value_parser!(i64).range(1..=99))]
    pub priority: i64,
}

/// Prints one.
pub(super) fn describe(task: &SingleTask) -> anyhow::Result<()> {
    let mut facts = vec![
        ("Identifier", task.id.clone()),
        ("Description", task.description.clone()),
        ("State", shown::word(task.state.as_str())),
        ("Owner", task.username.clone()),
        ("Pool", task.resource_pool.clone()),
        ("Submitted", shown::time(task.start_time)),
        ("Job", task.job_id.clone()),
    ];
    if let Some(container) = &task.container {
        facts.push(("Agent", container.parent.clone()));
    }
    facts.push(("Why", task.reason.clone()));
    table::facts(&facts);
    Ok(())
}

/// Prints several as a table.
pub(super) fn print(tasks: &[SingleTask], none: &str, hint: &str) {
    let mut table = table::Table::new(&["ID", "DESCRIPTION", "STATE", "OWNER", "POOL", "SUBMITTED", "WHY"]);
    for task in tasks {
        table.row(vec![
            task.id.clone(),
            task.description.clone(),
            shown::word(task.state.as_str()),
            task.username.clone(),
            task.resource_pool.clone(),
            shown::time(task.start_time),
            task.reason.clone(),
        ]);
    }
    table.print(none, hint);
}

/// Says what somebody who started one should know.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        let text = match warning.as_str() {
            "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED" => {
                "it needs more slots than the pool has now, and waits until there are enough"
            }
            other => other,
        };
        say(&format!("warning: {text}"));
    }
}

/// Says that one is being ended, or that it had ended before.
pub(super) fn say_ending(what: &str, task: &SingleTask) {
    match task.state {
        AllocationState::Terminated => say(&format!("{what} {} has ended: {}", task.id, task.reason)),
        _ => say(&format!("{what} {} is stopping", task.id)),
    }
}

/// How one ended: an error, unless it succeeded.
pub(super) fn outcome(what: &str, task: &SingleTask) -> anyhow::Result<()> {
    let why = &task.reason;
    // The master's sentence for the only success there is.
    if task.state == AllocationState::Terminated && !why.ends_with("exit code 0") {
        anyhow::bail!("{what} {}: {why}", task.id);
    }
    Ok(())
}
