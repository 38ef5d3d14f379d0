//! Trials: making, starting, their state.

use instep_api::goodput::TrialGoodputResponse;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::pages::Order;
use instep_api::states::State;
use instep_api::trials::{
    CreateTrialRequest, PatchTrialRequest, ProgressRequest, PutTrialRequest, RunMetadata, RunnerMetadataRequest,
    StartRunRequest, StartRunResponse, StartTrialRequest, StartTrialResponse, TrialResponse, TrialsResponse,
};
use instep_database::{NewTrial, Subject};
use serde_json::{Map, Value};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use crate::clock::now;
use crate::cluster::{self, TrialReport};
use crate::random;

async fn make(
    call: &Call,
    request: CreateTrialRequest,
    external_id: Option<String>,
) -> Result<Json<TrialResponse>, Failure> {
    if request.unmanaged != Some(true) {
        return Err(Failure::invalid("only unmanaged trials are supported"));
    }
    let experiment = request.experiment_id.ok_or_else(|| Failure::invalid("experimentId is missing"))?;
    call.may_change(Subject::Experiment(experiment)).await?;
    let hparams = request.hparams.unwrap_or_else(|| Value::Object(Map::new()));
    if !hparams.is_object() {
        return Err(Failure::invalid("hparams must be a map"));
    }
    let new = NewTrial { experiment, external_id, hparams, task_suffix: random::uuid() };
    let trial = call.application.database.create_trial(new, now()).await?;
    Ok(Json(TrialResponse { trial }))
}

pub(crate) async fn create(call: Call) -> Result<Json<TrialResponse>, Failure> {
    let request = call.json()?;
    make(&call, request, None).await
}

pub(crate) async fn put(call: Call) -> Result<Json<TrialResponse>, Failure> {
    let request: PutTrialRequest = call.json()?;
    let external = request.external_trial_id.filter(|id| !id.is_empty());
    let external = external.ok_or_else(|| Failure::invalid("externalTrialId is missing"))?;
    make(&call, request.create_trial_request.unwrap_or_default(), Some(external)).await
}

pub(crate) async fn get(call: Call) -> Result<Json<TrialResponse>, Failure> {
    let trial = call.application.database.trial(call.id("id")?, now()).await?;
    Ok(Json(TrialResponse { trial }))
}

pub(crate) async fn goodput(call: Call) -> Result<Json<TrialGoodputResponse>, Failure> {
    let allocations = call.application.database.trial_allocations(call.id("id")?).await?;
    Ok(Json(TrialGoodputResponse { goodput: cluster::of_trial(&allocations) }))
}

/// The two ids are joined by a slash, which they may hold themselves: every way to part them is tried.
pub(crate) async fn get_by_external_id(call: Call) -> Result<Json<TrialResponse>, Failure> {
    let ids = call.part("external");
    call.note_asked();
    let missing = || Failure::not_found(format!("trial '{ids}' not found"));
    for (at, _) in ids.match_indices('/') {
        let (experiment, trial) = (ids[..at].to_owned(), ids[at + 1..].to_owned());
        match call.application.database.trial_by_external_id(experiment, trial, now()).await {
            Ok(trial) if call.may_read(Subject::Trial(trial.id)).await.is_ok() => {
                return Ok(Json(TrialResponse { trial }));
            }
            Ok(_) => {}
            Err(instep_database::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(missing())
}

pub(crate) async fn list(call: Call) -> Result<Json<TrialsResponse>, Failure> {
    let experiment: ExperimentId = call.id("id")?;
    let states = call.query.values::<State>("states")?;
    let order = call.query.order()?.unwrap_or(Order::Ascending);
    let slice = call.query.slice(None)?;
    let (trials, pagination) = call.application.database.trials(experiment, states, order, slice, now()).await?;
    Ok(Json(TrialsResponse { trials, pagination }))
}

pub(crate) async fn start(call: Call) -> Result<Json<StartTrialResponse>, Failure> {
    let request: StartTrialRequest = call.json()?;
    let resume = request.resume.unwrap_or(false);
    Ok(Json(call.application.database.start_trial(call.id("id")?, resume, now()).await?))
}

pub(crate) async fn change(call: Call) -> Result<Json<TrialResponse>, Failure> {
    let request: PatchTrialRequest = call.json()?;
    let state = request.state.filter(|state| *state != State::Unspecified);
    let allowed = [State::Paused, State::Running, State::Completed, State::Canceled, State::Error];
    if let Some(state) = state.filter(|state| !allowed.contains(state)) {
        return Err(Failure::invalid(format!("a trial that runs elsewhere cannot be set to {}", state.as_str())));
    }
    let trial = call.application.database.set_trial_state(call.id("id")?, state, now()).await?;
    // Those who follow its logs end with it.
    call.application.logs_arrived();
    Ok(Json(TrialResponse { trial }))
}

pub(crate) async fn progress(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: ProgressRequest = call.json()?;
    let progress = request.progress.unwrap_or(0.0);
    if !(0.0..=1.0).contains(&progress) {
        return Err(Failure::invalid(format!("progress {progress} is not between 0 and 1")));
    }
    let trial: TrialId = call.id("id")?;
    // Of a trial that the master runs, the search makes the experiment's progress.
    if !call.application.cluster.trial_reported(trial, TrialReport::Progressed(progress)).await? {
        call.application.database.set_progress(trial, progress).await?;
    }
    Ok(Json(Nothing {}))
}

pub(crate) async fn runner_metadata(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: RunnerMetadataRequest = call.json()?;
    call.application.database.set_runner_state(call.id("id")?, request.state.unwrap_or_default()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn start_run(call: Call) -> Result<Json<StartRunResponse>, Failure> {
    let request: StartRunRequest = call.json()?;
    let trial: TrialId = request.run_id.ok_or_else(|| Failure::invalid("runId is missing"))?;
    call.may_change(Subject::Trial(trial)).await?;
    let storage_id = match request.checkpoint_storage {
        Some(config @ Value::Object(_)) => Some(call.application.database.storage_id(trial, config).await?),
        Some(_) => return Err(Failure::invalid("checkpointStorage must be a map")),
        None => {
            call.application.database.trial(trial, now()).await?;
            None
        }
    };
    Ok(Json(StartRunResponse { storage_id }))
}

pub(crate) async fn metadata(call: Call) -> Result<Json<RunMetadata>, Failure> {
    let trial = call.application.database.trial(call.id("id")?, now()).await?;
    Ok(Json(RunMetadata { metadata: trial.metadata }))
}

pub(crate) async fn set_metadata(call: Call) -> Result<Json<RunMetadata>, Failure> {
    let request: RunMetadata = call.json()?;
    let metadata = request.metadata.unwrap_or_else(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        return Err(Failure::invalid("metadata must be a map"));
    }
    call.application.database.set_trial_metadata(call.id("id")?, metadata.clone()).await?;
    Ok(Json(RunMetadata { metadata: Some(metadata) }))
}
