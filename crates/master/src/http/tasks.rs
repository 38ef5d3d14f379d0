//! What running tasks ask.

use std::sync::Arc;
use std::time::Duration;

use instep_api::experiments::ModelDefinitionResponse;
use instep_api::identifiers::TrialId;
use instep_api::tasks::{AllGatherRequest, AllGatherResponse, PreemptionResponse, RendezvousResponse};
use instep_api::trials::EarlyExitRequest;
use instep_api::wire::Base64;
use serde_json::Value;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use crate::clock::now;
use crate::cluster::{Brought, Refusal, Signal, TaskReport, TrialReport};

/// Seconds for which a task may wait to be told something.
pub(super) const LONGEST_POLL: u64 = 600;

/// The files of a task.
pub(crate) async fn context(call: Call) -> Result<Json<ModelDefinitionResponse>, Failure> {
    let content = call.application.database.task_context(call.part("id").to_owned()).await?;
    Ok(Json(ModelDefinitionResponse { b64_tgz: Base64(content) }))
}

pub(crate) async fn rendezvous(call: Call) -> Result<Json<RendezvousResponse>, Failure> {
    let (allocation, resources) = (call.part("id").to_owned(), call.part("resources").to_owned());
    let rendezvous_info = call.application.cluster.rendezvous(allocation, resources).await?;
    Ok(Json(RendezvousResponse { rendezvous_info }))
}

/// Whether to stop: at once if that is known, else when it is, else when the caller's timeout is over.
pub(crate) async fn preemption(call: Call) -> Result<Json<PreemptionResponse>, Failure> {
    let allocation = call.part("id").to_owned();
    let seconds: u64 = call.query.value("timeoutSeconds")?.unwrap_or(60).min(LONGEST_POLL);
    let Some(mut signal) = call.application.cluster.signal(allocation.clone()).await? else {
        let found = call.application.database.allocation(allocation).await?;
        // A leader that was replaced and has not noticed does not know what the next one has begun.
        if found.ended_at.is_none() {
            return Err(Refusal::Closed.into());
        }
        // One that has ended is only asked about by what should have ended with it.
        return Ok(Json(PreemptionResponse { preempt: true }));
    };
    let waiting = signal.wait_for(|signal| *signal != Signal::Continue);
    match tokio::time::timeout(Duration::from_secs(seconds), waiting).await {
        Ok(Ok(_)) => Ok(Json(PreemptionResponse { preempt: true })),
        // An allocation says that it ends. One that goes without a word goes with this master, and the task goes on.
        Ok(Err(_)) => Err(Refusal::Closed.into()),
        Err(_) => Ok(Json(PreemptionResponse { preempt: false })),
    }
}

async fn report(call: Call, report: TaskReport) -> Result<Json<Nothing>, Failure> {
    call.application.cluster.task_reported(call.part("id").to_owned(), report).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn acknowledge(call: Call) -> Result<Json<Nothing>, Failure> {
    report(call, TaskReport::Acknowledged).await
}

pub(crate) async fn pending(call: Call) -> Result<Json<Nothing>, Failure> {
    report(call, TaskReport::Pending).await
}

pub(crate) async fn ready(call: Call) -> Result<Json<Nothing>, Failure> {
    report(call, TaskReport::Ready).await
}

pub(crate) async fn waiting(call: Call) -> Result<Json<Nothing>, Failure> {
    report(call, TaskReport::Waiting).await
}

/// What a task says about its machine: agents have said it before.
pub(crate) async fn noted(call: Call) -> Result<Json<Nothing>, Failure> {
    report(call, TaskReport::Noted).await
}

/// What a task says of its container; what it is answered was gathered where one exchange serves for both, which is not
/// here.
pub(crate) async fn container_running(call: Call) -> Result<Json<AllGatherResponse>, Failure> {
    report(call, TaskReport::Noted).await?;
    Ok(Json(AllGatherResponse { data: Vec::new() }))
}

pub(crate) async fn daemon(call: Call) -> Result<Json<Nothing>, Failure> {
    let resources = call.part("resources").to_owned();
    report(call, TaskReport::Daemon(resources)).await
}

pub(crate) async fn all_gather(call: Call) -> Result<Json<AllGatherResponse>, Failure> {
    let request: AllGatherRequest = call.json()?;
    let caller = request.request_uuid.filter(|caller| !caller.is_empty());
    let caller = caller.ok_or_else(|| Failure::invalid("requestUuid is missing"))?;
    let peers = usize::try_from(request.num_peers.unwrap_or_default().0).unwrap_or(0);
    let brought = Brought { data: request.data.unwrap_or(Value::Null), size: call.body.len() };
    let data = call.application.cluster.gather(call.part("id").to_owned(), caller, peers, brought).await?;
    Ok(Json(AllGatherResponse { data: Arc::unwrap_or_clone(data) }))
}

pub(crate) async fn early_exit(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: EarlyExitRequest = call.json()?;
    let trial: TrialId = call.id("id")?;
    call.application.database.trial(trial, now()).await?;
    match request.reason.as_deref().unwrap_or_default() {
        "EXITED_REASON_INVALID_HP" | "EXITED_REASON_INIT_INVALID_HP" => {
            call.application.cluster.trial_reported(trial, TrialReport::InvalidHyperparameters).await?;
            Ok(Json(Nothing {}))
        }
        // It ends by itself, and how it does says the rest.
        "" | "EXITED_REASON_UNSPECIFIED" | "EXITED_REASON_USER_REQUESTED_STOP" => Ok(Json(Nothing {})),
        other => Err(Failure::invalid(format!("`{other}` is not a reason to exit early"))),
    }
}
