//! The queue: jobs in their order, changes of it, and what runs or waits now.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::jobs::{
    AllocationSummary, FullJob, Job, JobStatsResponse, JobUpdate, JobsResponse, JobsResponseV2, PoolQueueStats,
    TaskSummariesResponse, UpdateJobsRequest,
};
use instep_api::pages::{Order, Pagination};
use instep_database::Subject;
use instep_policy::permissions::{Kind, Sight};
use instep_policy::schedule::Side;
use serde_json::{Map, Value, json};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing, Reply};
use super::{config_policies, pools};
use crate::clock::now;
use crate::cluster::{JobChange, JobOf};
use crate::collections;

async fn found(call: &Call) -> Result<(Vec<Job>, Pagination), Failure> {
    let pool = call.query.text("resourcePool").map(str::to_owned);
    let mut jobs = call.application.cluster.read(move |state| state.shown_jobs(pool.as_deref())).await?;
    hide(call, &mut jobs).await?;
    let states = call.query.texts("states");
    jobs.retain(|job| states.is_empty() || job.summary.as_ref().is_some_and(|each| states.contains(&each.state)));
    if call.query.order()? == Some(Order::Descending) {
        jobs.reverse();
    }
    let (range, pagination) = call.query.slice(None)?.of(jobs.len());
    Ok((jobs.drain(range).collect(), pagination))
}

/// Leaves of jobs that the caller may not see what the queue is about: how much they hold and want, and since when.
async fn hide(call: &Call, jobs: &mut [Job]) -> Result<(), Failure> {
    let (experiments, tasks) = (call.sight(Kind::Experiment), call.sight(Kind::Task));
    if experiments == Sight::Everything && tasks == Sight::Everything {
        return Ok(());
    }
    let ids = jobs.iter().map(|job| job.job_id.clone()).collect();
    let workspaces = call.application.database.workspaces_of_jobs(ids).await?;
    for job in jobs {
        let sight = if job.kind == "TYPE_EXPERIMENT" { &experiments } else { &tasks };
        match workspaces.get(&job.job_id) {
            Some(workspace) if sight.covers(*workspace) => job.workspace_id = *workspace,
            _ => {
                job.entity_id.clear();
                job.name.clear();
                job.username.clear();
                job.reason.clear();
                (job.user_id, job.workspace_id, job.progress) = (UserId(0), WorkspaceId(0), 0.0);
            }
        }
    }
    Ok(())
}

pub(crate) async fn jobs(call: Call) -> Result<Json<JobsResponse>, Failure> {
    let (jobs, pagination) = found(&call).await?;
    Ok(Json(JobsResponse { jobs, pagination }))
}

pub(crate) async fn jobs_v2(call: Call) -> Result<Json<JobsResponseV2>, Failure> {
    let (jobs, pagination) = found(&call).await?;
    Ok(Json(JobsResponseV2 { jobs: jobs.into_iter().map(|full| FullJob { full }).collect(), pagination }))
}

pub(crate) async fn stats(call: Call) -> Result<Json<JobStatsResponse>, Failure> {
    let wanted = call.query.texts("resourcePools");
    let pools = call.application.cluster.read(|state| state.shown_pools()).await?;
    let wanted = |name: &String| wanted.is_empty() || wanted.contains(name);
    let results = pools.into_iter().filter(|pool| wanted(&pool.name));
    let results = results.map(|pool| PoolQueueStats { resource_pool: pool.name, stats: pool.stats }).collect();
    Ok(Json(JobStatsResponse { results }))
}

pub(crate) async fn update(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: UpdateJobsRequest = call.json()?;
    for update in &request.updates {
        call.may_change(Subject::Job(update.job_id.clone())).await?;
    }
    for update in request.updates {
        change_job(&call, update).await?;
    }
    Ok(Json(Nothing {}))
}

async fn change_job(call: &Call, update: JobUpdate) -> Result<(), Failure> {
    let job = update.job_id.clone();
    let wanted = job.clone();
    let owner = call.application.cluster.read(move |state| state.job_of(&wanted)).await?;
    let owner = owner.ok_or_else(|| Failure::not_found(format!("job '{job}' not found, or it has ended")))?;
    let side = match (update.ahead_of.filter(|anchor| !anchor.is_empty()), update.behind_of) {
        (Some(anchor), _) => Some((Side::Ahead, anchor)),
        (None, Some(anchor)) if !anchor.is_empty() => Some((Side::Behind, anchor)),
        (None, _) => None,
    };
    let change = Change {
        priority: update.priority.filter(|priority| *priority != 0),
        weight: update.weight.filter(|weight| *weight != 0.0),
        max_slots: None,
        pool: update.resource_pool.filter(|pool| !pool.is_empty()),
    };
    apply(call, &owner, change).await?;
    if let Some((side, anchor)) = side {
        relocate(call, job, side, anchor).await?;
    }
    Ok(())
}

/// What somebody wants to be different about a job.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub priority: Option<i64>,
    pub weight: Option<f64>,
    /// `Some(None)`: as many as there are.
    pub max_slots: Option<Option<i64>>,
    pub pool: Option<String>,
}

/// Refuses what the policies of the job's workspace, or the pool's own workspaces, do not allow.
async fn check_rules(call: &Call, job: &JobOf, change: &Change) -> Result<(), Failure> {
    let (subject, workload) = match job {
        JobOf::Experiment(id) => (Subject::Experiment(*id), config_policies::EXPERIMENT),
        JobOf::Command(task) => (Subject::Task(task.clone()), config_policies::NTSC),
    };
    let found = call.application.database.ownership(subject).await?;
    let Some(workspace) = found.and_then(|found| found.workspace) else { return Ok(()) };
    let policies = config_policies::of(call, workload, workspace).await?;
    policies.check_priority(change.priority)?;
    match change.max_slots {
        Some(None) => policies.check_slots(i64::MAX)?,
        Some(Some(slots)) => policies.check_slots(slots)?,
        None => {}
    }
    match &change.pool {
        Some(pool) => pools::check(call, pool, workspace).await,
        None => Ok(()),
    }
}

/// Checks a change, stores it, and lets the queue know.
pub(crate) async fn apply(call: &Call, job: &JobOf, change: Change) -> Result<(), Failure> {
    check_rules(call, job, &change).await?;
    let mut stored: Vec<(&'static str, &'static str, Value)> = Vec::new();
    let mut live = JobChange::default();
    if let Some(priority) = change.priority {
        let valid = u32::try_from(priority).ok().filter(|priority| (1..=99).contains(priority));
        let valid = valid.ok_or_else(|| Failure::invalid(format!("priority {priority} is not between 1 and 99")))?;
        stored.push(("resources", "priority", json!(valid)));
        live.priority = Some(valid);
    }
    if let Some(weight) = change.weight {
        if !weight.is_finite() || weight <= 0.0 {
            return Err(Failure::invalid(format!("weight {weight} is not more than 0")));
        }
        stored.push(("resources", "weight", json!(weight)));
        live.weight = Some(weight);
    }
    if let Some(max_slots) = change.max_slots {
        let number = |slots: i64| {
            u32::try_from(slots).map_err(|_| Failure::invalid(format!("{slots} is not a number of slots")))
        };
        let max_slots = max_slots.map(number).transpose()?;
        stored.push(("resources", "max_slots", json!(max_slots)));
        live.max_slots = Some(max_slots);
    }
    if let Some(pool) = change.pool {
        let wanted = pool.clone();
        if call.application.cluster.room_in(wanted).await?.is_none() {
            return Err(Failure::invalid(format!(
                "resource pool '{pool}' not found\nhint: `instep resource-pool list` shows the pools"
            )));
        }
        stored.push(("resources", "resource_pool", json!(pool)));
        live.pool = Some(pool);
    }
    if stored.is_empty() {
        return Ok(());
    }
    match job {
        JobOf::Experiment(id) => drop(call.application.database.change_config(*id, stored, now()).await?),
        JobOf::Command(task) => {
            call.application.database.change_command(task.clone(), live.priority, live.pool.clone()).await?;
        }
    }
    call.application.cluster.change_job(job.clone(), live).await?;
    Ok(())
}

async fn relocate(call: &Call, job: String, side: Side, anchor: String) -> Result<(), Failure> {
    let moved = call.application.cluster.read(move |state| state.moved(&job, side, &anchor)).await??;
    let positions = moved.iter().map(|(_, moved)| (moved.job.clone(), moved.position)).collect();
    call.application.database.set_job_positions(positions).await?;
    for (owner, moved) in moved {
        match &owner {
            JobOf::Experiment(id) => {
                let stored = vec![("resources", "priority", json!(moved.priority))];
                call.application.database.change_config(*id, stored, now()).await?;
            }
            JobOf::Command(task) => {
                call.application.database.change_command(task.clone(), Some(moved.priority), None).await?;
            }
        }
        let change =
            JobChange { priority: Some(moved.priority), position: Some(moved.position), ..JobChange::default() };
        call.application.cluster.change_job(owner, change).await?;
    }
    Ok(())
}

async fn allocations(call: &Call) -> Result<BTreeMap<String, AllocationSummary>, Failure> {
    let mut found = call.application.cluster.read(|state| state.shown_allocations()).await?;
    let collections = call.application.database.collections(now()).await?.into_iter().map(collections::summary);
    found.extend(collections.map(|summary| (summary.allocation_id.clone(), summary)));
    if call.grants.is_none() {
        return Ok(found);
    }
    call.note_asked();
    let mut seen = BTreeMap::new();
    for task in found.values().map(|summary| summary.task_id.clone()).collect::<BTreeSet<_>>() {
        let may = call.may_read(Subject::Task(task.clone())).await.is_ok();
        seen.insert(task, may);
    }
    found.retain(|_, summary| seen.get(&summary.task_id) == Some(&true));
    Ok(found)
}

pub(crate) async fn tasks(call: Call) -> Result<Json<TaskSummariesResponse>, Failure> {
    Ok(Json(TaskSummariesResponse { allocation_id_to_summary: allocations(&call).await? }))
}

/// The same in the shape of older clients.
pub(crate) async fn plain_tasks(call: Call) -> Result<Reply, Failure> {
    let plain = |(id, summary): (String, AllocationSummary)| {
        let value = json!({
            "task_id": summary.task_id,
            "allocation_id": summary.allocation_id,
            "name": summary.name,
            "registered_time": summary.registered_time,
            "resources": summary.resources,
            "slots_needed": summary.slots_needed,
            "resource_pool": summary.resource_pool,
            "scheduler_type": summary.scheduler_type,
            "priority": summary.priority,
            "proxy_ports": summary.proxy_ports,
        });
        (id, value)
    };
    let found: Map<String, Value> = allocations(&call).await?.into_iter().map(plain).collect();
    Reply::json(&found)
}
