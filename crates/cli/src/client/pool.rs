//! `instep resource-pool`.

use clap::{Args, Subcommand};
use instep_api::agents::ResourcePoolsResponse;

use super::options::Common;
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
}

pub(crate) fn run(arguments: &PoolArguments) -> anyhow::Result<()> {
    let client = session::connect(&arguments.common)?;
    let Verb::List = arguments.verb;
    let found: ResourcePoolsResponse = client.get("/api/v1/resource-pools")?;
    if arguments.common.json {
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
