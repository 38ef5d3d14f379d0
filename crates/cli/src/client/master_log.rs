//! `instep master logs`: what a master that runs has logged of late.

use clap::Args;
use instep_api::cluster::{LogEntry, MasterLogsElement};
use instep_client::Query;

use super::options::Common;
use super::{session, table};
use crate::console;

/// Which lines are wanted.
#[derive(Debug, Args)]
pub(crate) struct MasterLogsArguments {
    #[command(flatten)]
    common: Common,
    /// Follow the log until the master stops
    #[arg(short, long)]
    follow: bool,
    /// Show only the last N lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    tail: Option<i64>,
}

/// Prints lines as they come.
pub(super) fn print(arguments: &MasterLogsArguments) -> anyhow::Result<()> {
    let hint = "`instep login USER` as an administrator";
    let client = session::administrator(&arguments.common, "the log of a master needs", hint)?;
    let query = Query::new().with("follow", arguments.follow).with_some("offset", arguments.tail.map(|tail| -tail));
    // Without a limit to the silence: a person watches, and can end it.
    let mut lines = client.stream::<MasterLogsElement>(&format!("/api/v1/master/logs{query}"), None)?;
    lines.try_for_each(|line| show(&line?.log_entry, arguments.common.json))
}

fn show(entry: &LogEntry, json: bool) -> anyhow::Result<()> {
    if json {
        return table::json_line(entry);
    }
    console::print(format!("{} {:>7} {}\n", entry.timestamp, entry.level.word(), entry.message).as_bytes());
    Ok(())
}
