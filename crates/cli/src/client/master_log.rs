//! `instep master logs`: what a master that runs has logged of late.

use std::time::{Duration, Instant};

use clap::Args;
use instep_api::cluster::{LogEntry, MasterLogsElement};
use instep_api::wire::Timestamp;
use instep_client::{Client, Error, Query};

use super::dialog::say;
use super::options::Common;
use super::{session, table};
use crate::console;

/// How long another master may take to lead.
const TAKEOVER: Duration = Duration::from_secs(60);
/// Before it is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Which lines are wanted.
#[derive(Debug, Args)]
pub(crate) struct MasterLogsArguments {
    #[command(flatten)]
    common: Common,
    /// Follow the log until the master stops; of several, until none leads
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
    let several = arguments.follow && client.addresses().count() > 1;
    let (mut query, mut shown, mut since) = (query, None, Instant::now());
    loop {
        let before = shown;
        let ended = follow(&client, &query, &mut shown, arguments.common.json);
        let lasting = ended
            .as_ref()
            .err()
            .is_some_and(|error| error.downcast_ref::<Error>().is_none_or(|error| !error.is_temporary()));
        if !several || lasting {
            return ended;
        }
        if shown != before {
            since = Instant::now();
            say("note: the master that leads has stopped or stepped down; following the log of the next one");
        }
        if since.elapsed() > TAKEOVER {
            return ended;
        }
        // The next one has a log of its own, which began before it led.
        query = Query::new().with("follow", true);
        std::thread::sleep(PAUSE);
    }
}

/// Prints the lines of a master's log that are later than what was shown, until it ends.
fn follow(client: &Client, query: &Query, shown: &mut Option<Timestamp>, json: bool) -> anyhow::Result<()> {
    // Without a limit to the silence: a person watches, and can end it.
    let lines = client.stream::<MasterLogsElement>(&format!("/api/v1/master/logs{query}"), None)?;
    let before = *shown;
    for line in lines {
        let entry = line?.log_entry;
        if before.is_none_or(|before| entry.timestamp > before) {
            show(&entry, json)?;
            *shown = Some(entry.timestamp);
        }
    }
    Ok(())
}

fn show(entry: &LogEntry, json: bool) -> anyhow::Result<()> {
    if json {
        return table::json_line(entry);
    }
    console::print(format!("{} {:>7} {}\n", entry.timestamp, entry.level.word(), entry.message).as_bytes());
    Ok(())
}
