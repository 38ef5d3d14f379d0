//! `instep job`: the queue.

use clap::{ArgGroup, Args, Subcommand};
use instep_api::jobs::{JobUpdate, JobsResponseV2, UpdateJobsRequest};
use instep_client::{Client, Query};

use super::dialog::say;
use super::options::Common;
use super::{session, shown, table};

#[derive(Debug, Args)]
pub(crate) struct JobArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List jobs in queue order, with the reason why each waits
    #[command(visible_alias = "ls")]
    List {
        /// Show only this pool
        #[arg(long = "resource-pool", visible_alias = "rp", value_name = "POOL")]
        pool: Option<String>,
    },
    /// Change a job's priority, weight, pool or position in the queue
    #[command(visible_alias = "u")]
    Update(UpdateArguments),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
struct UpdateArguments {
    /// Id of the job
    job: String,
    /// Set the priority, 1 to 99; lower numbers go first
    #[arg(short, long, value_name = "N", group = "change", value_parser = clap::value_parser!(i64).range(1..=99))]
    priority: Option<i64>,
    /// Set the weight for fair-share scheduling
    #[arg(short, long, value_name = "WEIGHT", group = "change")]
    weight: Option<f64>,
    /// Move the job to this pool
    #[arg(long = "resource-pool", value_name = "POOL", group = "change")]
    pool: Option<String>,
    /// Move the job ahead of this one, which has the same priority
    #[arg(long, value_name = "JOB", group = "change", conflicts_with = "behind_of")]
    ahead_of: Option<String>,
    /// Move the job behind this one, which has the same priority
    #[arg(long, value_name = "JOB", group = "change")]
    behind_of: Option<String>,
}

pub(crate) fn run(arguments: JobArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::List { pool } => list(&client, &common, pool.as_deref()),
        Verb::Update(arguments) => {
            let update = JobUpdate {
                job_id: arguments.job.clone(),
                priority: arguments.priority,
                weight: arguments.weight,
                resource_pool: arguments.pool,
                behind_of: arguments.behind_of,
                ahead_of: arguments.ahead_of,
            };
            let request = UpdateJobsRequest { updates: vec![update] };
            let _: serde_json::Value = client.post("/api/v1/job-queues", &request)?;
            say(&format!("changed job {}", arguments.job));
            Ok(())
        }
    }
}

fn list(client: &Client, common: &Common, pool: Option<&str>) -> anyhow::Result<()> {
    let query = Query::new().with_some("resourcePool", pool);
    let found: JobsResponseV2 = client.get(&format!("/api/v1/job-queues-v2{query}"))?;
    let jobs: Vec<_> = found.jobs.into_iter().map(|job| job.full).collect();
    if common.json {
        return table::json(&jobs);
    }
    let headings = ["JOB", "NAME", "TYPE", "PRIORITY", "SLOTS", "STATE", "OWNER", "POOL", "SUBMITTED", "WHY"];
    let mut table = table::Table::new(&headings);
    for job in jobs {
        let kind = shown::word(job.kind.trim_start_matches("TYPE_"));
        table.row(vec![
            job.job_id.clone(),
            if kind == "experiment" { format!("{} ({})", job.name, job.entity_id) } else { job.name.clone() },
            kind,
            job.priority.map(|priority| priority.to_string()).unwrap_or_default(),
            format!("{} of {}", job.allocated_slots, job.requested_slots),
            job.summary.map(|summary| shown::word(&summary.state)).unwrap_or_default(),
            job.username.clone(),
            job.resource_pool.clone(),
            shown::time(job.submission_time),
            job.reason.clone(),
        ]);
    }
    table.print("no jobs", "submit one with `instep experiment create CONFIG FOLDER`");
    Ok(())
}
