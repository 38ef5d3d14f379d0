//! `instep agent list` and its like: what an administrator does with agents. The agent itself is another program.

use clap::{Args, Subcommand};
use instep_api::agents::AgentResponse;
use instep_api::jobs::TaskSummariesResponse;
use instep_api::link::{AgentTokenRequest, AgentTokenResponse, AgentTokensResponse};
use instep_client::Client;
use serde_json::json;

use super::dialog::say;
use super::options::Common;
use super::requests::{api, delete};
use super::{lookup, session, shown, table, task};
use crate::console;

#[derive(Debug, Subcommand)]
pub(crate) enum AgentVerb {
    /// List agents
    #[command(visible_alias = "ls")]
    List,
    /// Resume scheduling on agents
    Enable(Which),
    /// Stop scheduling on agents and reschedule their work elsewhere
    Disable {
        #[command(flatten)]
        which: Which,
        /// Let running work finish
        #[arg(long)]
        drain: bool,
    },
    /// Manage tokens for agents on machines without an administrator's login
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenVerb),
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Create a token and print it; it cannot be shown again
    Create {
        /// Name of the token
        name: String,
        /// Let only the agent of this name connect with it
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Let agents lend their slots only to this pool
        #[arg(long)]
        pool: Option<String>,
    },
    /// List tokens, without their values
    #[command(visible_alias = "ls")]
    List,
    /// Revoke a token and disconnect the agents that use it
    Revoke {
        /// Name of the token
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the agent
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    agent: Option<String>,
    /// All agents
    #[arg(long)]
    all: bool,
}

impl Which {
    fn names(&self, client: &Client) -> anyhow::Result<Vec<String>> {
        match &self.agent {
            Some(agent) => Ok(vec![agent.clone()]),
            None => Ok(lookup::agents(client)?.into_iter().map(|agent| agent.id).collect()),
        }
    }
}

fn tokens(client: &Client, common: &Common, verb: &TokenVerb) -> anyhow::Result<()> {
    const PATH: &str = "/api/v1/agents/tokens";
    match verb {
        TokenVerb::Create { name, agent, pool } => {
            let wanted = AgentTokenRequest { name: Some(name.clone()), agent: agent.clone(), pool: pool.clone() };
            let made: AgentTokenResponse = client.post(PATH, &wanted)?;
            if common.json {
                return table::json(&made);
            }
            say("use it with `INSTEP_AGENT_TOKEN=TOKEN instep agent --master ADDRESS`");
            console::print(format!("{}\n", made.token).as_bytes());
        }
        TokenVerb::List => {
            let found: AgentTokensResponse = client.get(PATH)?;
            if common.json {
                return table::json(&found.tokens);
            }
            let mut table = table::Table::new(&["NAME", "AGENT", "POOL", "CREATED"]);
            for token in found.tokens {
                let any = || "any".to_owned();
                let (agent, pool) = (token.agent.unwrap_or_else(any), token.pool.unwrap_or_else(any));
                table.row(vec![token.name, agent, pool, shown::time(token.created_at)]);
            }
            table.print("no tokens", "create one with `instep agent token create NAME`");
        }
        TokenVerb::Revoke { name } => {
            delete(client, &api(&["agents", "tokens", name]))?;
            say(&format!("the token {name} is revoked"));
        }
    }
    Ok(())
}

/// Does what a verb says.
pub(crate) fn run(common: &Common, verb: &AgentVerb) -> anyhow::Result<()> {
    let client = match verb {
        AgentVerb::List => session::connect(common)?,
        AgentVerb::Enable(_) | AgentVerb::Disable { .. } | AgentVerb::Token(_) => session::changing_machines(common)?,
    };
    match verb {
        AgentVerb::List => list(&client, common),
        AgentVerb::Token(verb) => tokens(&client, common, verb),
        AgentVerb::Enable(which) => {
            for agent in which.names(&client)? {
                let _: AgentResponse = client.post(&api(&["agents", &agent, "enable"]), &json!({}))?;
                say(&format!("enabled agent {agent}"));
            }
            Ok(())
        }
        AgentVerb::Disable { which, drain } => {
            let names = which.names(&client)?;
            for agent in &names {
                let request = json!({"drain": drain});
                let _: AgentResponse = client.post(&api(&["agents", agent, "disable"]), &request)?;
                say(&format!("disabled agent {agent}"));
            }
            if *drain { still_running(&client, &names) } else { Ok(()) }
        }
    }
}

/// Says what must still end on agents that are drained.
fn still_running(client: &Client, agents: &[String]) -> anyhow::Result<()> {
    let mut found: TaskSummariesResponse = client.get("/api/v1/tasks")?;
    found.allocation_id_to_summary.retain(|_, summary| {
        let mut used = summary.resources.iter().flat_map(|resources| resources.agent_devices.keys());
        used.any(|agent| agents.contains(agent))
    });
    if found.allocation_id_to_summary.is_empty() {
        return Ok(());
    }
    say("still running there:");
    task::print_list(&found);
    Ok(())
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let agents = lookup::agents(client)?;
    if common.json {
        return table::json(&agents);
    }
    let mut table = table::Table::new(&["AGENT", "POOL", "SLOTS", "USED", "STATE", "ADDRESSES", "VERSION", "SINCE"]);
    for agent in agents {
        let state = shown::availability(agent.connected, agent.enabled, agent.draining);
        table.row(vec![
            agent.id.clone(),
            agent.resource_pools.join(", "),
            agent.slots.len().to_string(),
            agent.slots.values().filter(|slot| slot.container.is_some()).count().to_string(),
            state.to_owned(),
            agent.addresses.join(", "),
            agent.instep_version.clone(),
            shown::optional_time(agent.registered_time),
        ]);
    }
    table.print("no agents", "offer a machine's slots with `instep agent --master ADDRESS`");
    Ok(())
}
