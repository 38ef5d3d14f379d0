//! `instep master info` and `instep master cluster-message`: what a master says of itself, and what administrators say to
//! everybody.

use clap::{Args, Subcommand};
use instep_api::cluster::MasterResponse;
use instep_api::preferences::{ClusterMessage, ClusterMessageRequest, ClusterMessageResponse};
use serde_json::Value;

use super::dialog::say;
use super::options::Common;
use super::{session, shown, table};

const PATH: &str = "/api/v1/master/cluster_message";

#[derive(Debug, Args)]
pub(crate) struct MasterInfoArguments {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterMessageArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show a message to everybody, in place of the one that is there
    Set {
        /// At most 250 letters
        #[arg(short, long, value_name = "TEXT")]
        message: String,
        /// How long it is shown, such as 1h30m [default: until it is cleared]
        #[arg(short, long, value_name = "TIME")]
        duration: Option<String>,
    },
    /// Show the message
    Get,
    /// Delete the message
    Clear,
}

/// Prints what a master says of itself.
pub(super) fn info(arguments: &MasterInfoArguments) -> anyhow::Result<()> {
    let client = session::connect(&arguments.common)?;
    let found: MasterResponse = client.get("/api/v1/master")?;
    if arguments.common.json {
        return table::json(&found);
    }
    table::fields(&[
        ("Master", client.address().to_string()),
        ("Cluster", found.cluster_name),
        ("Cluster id", found.cluster_id),
        ("API", format!("Determined {}", found.version)),
        ("Roles", if found.rbac_enabled { "on" } else { "off" }.to_owned()),
        ("Message", found.cluster_message.map(|message| message.message).unwrap_or_default()),
    ]);
    Ok(())
}

/// Sets, shows or deletes what administrators say to everybody.
pub(super) fn run(arguments: ClusterMessageArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let hint = "`instep login USER` as an administrator; `instep master info` shows the message to everybody";
    let client = session::administrator(&common, "the message to everybody needs", hint)?;
    match arguments.verb {
        Verb::Set { message, duration } => {
            let request = ClusterMessageRequest { message: Some(message), duration, ..Default::default() };
            let _: Value = client.put(PATH, &request)?;
            say("everybody sees the message");
            Ok(())
        }
        Verb::Get => {
            let found: ClusterMessageResponse = client.get(PATH)?;
            match found.cluster_message {
                message if common.json => table::json(&message),
                None => {
                    say("no message");
                    Ok(())
                }
                Some(ClusterMessage { message, start_time, end_time, .. }) => {
                    let until = end_time.map_or_else(|| "it is cleared".to_owned(), shown::time);
                    table::fields(&[("Message", message), ("From", shown::time(start_time)), ("Until", until)]);
                    Ok(())
                }
            }
        }
        Verb::Clear => {
            let _: Value = client.delete(PATH)?;
            say("no message is shown any more");
            Ok(())
        }
    }
}
