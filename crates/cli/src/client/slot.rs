//! `instep slot`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use instep_api::agents::SlotResponse;
use instep_api::jobs::TaskSummariesResponse;
use instep_client::Client;
use serde_json::{Value, json};

use super::dialog::say;
use super::options::Common;
use super::requests::api;
use super::{lookup, session, shown, table};

#[derive(Debug, Args)]
pub(crate) struct SlotArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the slots of all agents and what they run
    #[command(visible_alias = "ls")]
    List,
    /// Resume scheduling on a slot
    Enable {
        /// Id of the agent
        agent: String,
        /// Number of the slot on this agent
        slot: String,
    },
    /// Stop scheduling on a slot and stop its work
    Disable {
        /// Id of the agent
        agent: String,
        /// Number of the slot on this agent
        slot: String,
    },
}

pub(crate) fn run(arguments: SlotArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = match &arguments.verb {
        Verb::List => session::connect(&common)?,
        Verb::Enable { .. } | Verb::Disable { .. } => session::changing_machines(&common)?,
    };
    match arguments.verb {
        Verb::List => list(&client, &common),
        Verb::Enable { agent, slot } => change(&client, &agent, &slot, "enable", "enabled"),
        Verb::Disable { agent, slot } => change(&client, &agent, &slot, "disable", "disabled"),
    }
}

fn change(client: &Client, agent: &str, slot: &str, verb: &str, said: &str) -> anyhow::Result<()> {
    let path = api(&["agents", agent, "slots", slot, verb]);
    let _: SlotResponse = client.post(&path, &json!({}))?;
    say(&format!("{said} slot {slot} of agent {agent}"));
    Ok(())
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let agents = lookup::agents(client)?;
    if common.json {
        let slots: Vec<Value> = agents
            .iter()
            .flat_map(|agent| agent.slots.values().map(|slot| json!({"agent": agent.id, "slot": slot})))
            .collect();
        return table::json(&slots);
    }
    let tasks: TaskSummariesResponse = client.get("/api/v1/tasks")?;
    let names: BTreeMap<&str, &str> = tasks
        .allocation_id_to_summary
        .values()
        .flat_map(|summary| summary.resources.iter().map(move |each| (each.container_id.as_deref(), summary)))
        .filter_map(|(container, summary)| Some((container?, summary.name.as_str())))
        .collect();
    let mut table = table::Table::new(&["AGENT", "POOL", "SLOT", "TYPE", "DEVICE", "STATE", "RUNS"]);
    for agent in &agents {
        for slot in agent.slots.values() {
            let runs = slot.container.as_ref().map(|container| {
                names.get(container.id.as_str()).map_or_else(|| container.id.clone(), |name| (*name).to_owned())
            });
            table.row(vec![
                agent.id.clone(),
                agent.resource_pools.join(", "),
                slot.id.clone(),
                shown::word(slot.device.kind.trim_start_matches("TYPE_")),
                slot.device.brand.clone(),
                shown::availability(agent.connected, slot.enabled, slot.draining).to_owned(),
                runs.unwrap_or_default(),
            ]);
        }
    }
    table.print("no slots", "offer a machine's slots with `instep agent --master ADDRESS`");
    Ok(())
}
