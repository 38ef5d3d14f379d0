//! `instep resource-pool`: pools of agents, and which workspaces they are for.

use clap::{Args, Subcommand};
use instep_api::agents::ResourcePoolsResponse;
use instep_api::pools::{PoolBindingRequest, PoolBindingsResponse};
use instep_api::workspaces::WorkspacesResponse;
use instep_client::{Client, Repeat};

use super::options::Common;
use super::requests::api;
use super::{session, shown, table};

#[derive(Debug, Args)]
pub(crate) struct PoolArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List pools
    #[command(visible_alias = "ls")]
    List,
    /// Say which workspaces a pool is for; for administrators
    #[command(subcommand)]
    Bindings(Bindings),
}

#[derive(Debug, Subcommand)]
enum Bindings {
    /// Let these workspaces use a pool, and no others but those that may already
    Add(Bound),
    /// Let exactly these workspaces use a pool
    Replace(Bound),
    /// Take a pool away from workspaces; one that is bound to none is for all
    Remove(Bound),
    /// List the workspaces that a pool is bound to
    ListWorkspaces {
        /// Name of the resource pool
        pool: String,
    },
}

#[derive(Debug, Args)]
struct Bound {
    /// Name of the resource pool
    pool: String,
    /// Names of workspaces
    #[arg(required = true, value_name = "WORKSPACE")]
    workspaces: Vec<String>,
}

pub(crate) fn run(arguments: &PoolArguments) -> anyhow::Result<()> {
    match &arguments.verb {
        Verb::List => list(&session::connect(&arguments.common)?, &arguments.common),
        Verb::Bindings(Bindings::ListWorkspaces { pool }) => {
            list_workspaces(&session::connect(&arguments.common)?, &arguments.common, pool)
        }
        Verb::Bindings(Bindings::Add(bound)) => bind(&arguments.common, "POST", bound),
        Verb::Bindings(Bindings::Replace(bound)) => bind(&arguments.common, "PUT", bound),
        Verb::Bindings(Bindings::Remove(bound)) => bind(&arguments.common, "DELETE", bound),
    }
}

fn bind(common: &Common, method: &str, bound: &Bound) -> anyhow::Result<()> {
    let hint = "`instep login USER` as an administrator";
    let client = session::administrator(common, "changing pools needs", hint)?;
    let request =
        PoolBindingRequest { workspace_names: Some(bound.workspaces.clone()), ..PoolBindingRequest::default() };
    let body = serde_json::to_string(&request)?;
    client.call_text(method, &path(&bound.pool), Some(&body), Repeat::Safely)?;
    list_workspaces(&client, common, &bound.pool)
}

fn path(pool: &str) -> String {
    api(&["resource-pools", pool, "workspace-bindings"])
}

fn list_workspaces(client: &Client, common: &Common, pool: &str) -> anyhow::Result<()> {
    let bound: PoolBindingsResponse = client.get(&path(pool))?;
    let mut workspaces = client.get::<WorkspacesResponse>("/api/v1/workspaces")?.workspaces;
    workspaces.retain(|workspace| bound.workspace_ids.contains(&workspace.id));
    if common.json {
        return table::json(&workspaces);
    }
    let mut table = table::Table::new(&["ID", "WORKSPACE"]);
    for workspace in workspaces {
        table.row(vec![workspace.id.to_string(), workspace.name]);
    }
    table.print(&format!("pool {pool} is bound to no workspace: it is for all"), "");
    Ok(())
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let found: ResourcePoolsResponse = client.get("/api/v1/resource-pools")?;
    if common.json {
        return table::json(&found.resource_pools);
    }
    let mut table =
        table::Table::new(&["POOL", "AGENTS", "SLOTS", "USED", "SCHEDULER", "DEFAULT", "QUEUED", "RUNNING"]);
    for pool in found.resource_pools {
        table.row(vec![
            pool.name.clone(),
            pool.num_agents.to_string(),
            pool.slots_available.to_string(),
            pool.slots_used.to_string(),
            shown::word(pool.scheduler_type.trim_start_matches("SCHEDULER_TYPE_")),
            if pool.default_compute_pool { "yes".to_owned() } else { String::new() },
            pool.stats.queued_count.to_string(),
            pool.stats.scheduled_count.to_string(),
        ]);
    }
    table.print("no pools", "");
    Ok(())
}
