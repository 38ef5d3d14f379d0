//! What people want of experiments that the master runs.

use instep_api::error::Code;
use instep_api::experiments::ModelDefinitionResponse;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::wire::Base64;
use instep_policy::lifecycle::Event;
use tokio::sync::mpsc;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Download, Json, Nothing, Reply};
use crate::application::Application;
use crate::clock::now;
use crate::cluster::TrialReport;

/// What becomes of a wish for an experiment that has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfEnded {
    /// It is granted already.
    Accept,
    /// It comes too late.
    Refuse,
}

async fn control(call: Call, event: Event, if_ended: IfEnded) -> Result<Json<Nothing>, Failure> {
    send_event(&call.application, call.id("id")?, event, if_ended).await?;
    Ok(Json(Nothing {}))
}

/// Lets an experiment know what somebody wants of it.
pub(super) async fn send_event(
    application: &Application,
    id: ExperimentId,
    event: Event,
    if_ended: IfEnded,
) -> Result<(), Failure> {
    if application.cluster.control(id, event).await? {
        return Ok(());
    }
    let experiment = application.database.experiment(id, now()).await?;
    let refused = |what: String| Err(Failure::new(Code::FailedPrecondition, what));
    if experiment.unmanaged && !experiment.state.is_terminal() {
        return refused(format!(
            "experiment {id} runs elsewhere: the master cannot tell it what to do\nhint: end its script where it runs"
        ));
    }
    match if_ended {
        IfEnded::Accept => Ok(()),
        IfEnded::Refuse => {
            let state = experiment.state.as_str().trim_start_matches("STATE_").to_lowercase();
            let hint = match experiment.unmanaged {
                true => "start its script again".to_owned(),
                false => format!("`instep experiment continue {id}` resumes it"),
            };
            refused(format!("experiment {id} has ended ({state})\nhint: {hint}"))
        }
    }
}

pub(crate) async fn activate(call: Call) -> Result<Json<Nothing>, Failure> {
    control(call, Event::Activate, IfEnded::Refuse).await
}

pub(crate) async fn pause(call: Call) -> Result<Json<Nothing>, Failure> {
    control(call, Event::Pause, IfEnded::Refuse).await
}

pub(crate) async fn cancel(call: Call) -> Result<Json<Nothing>, Failure> {
    control(call, Event::Cancel, IfEnded::Accept).await
}

pub(crate) async fn kill(call: Call) -> Result<Json<Nothing>, Failure> {
    control(call, Event::Kill, IfEnded::Accept).await
}

pub(crate) async fn kill_trial(call: Call) -> Result<Json<Nothing>, Failure> {
    let trial: TrialId = call.id("id")?;
    if !call.application.cluster.trial_reported(trial, TrialReport::Kill).await? {
        // One that has ended needs no killing, but it must be there.
        let found = call.application.database.trial(trial, now()).await?;
        if !found.state.is_terminal() {
            let what = format!("trial {trial} runs elsewhere: the master cannot stop it");
            return Err(Failure::new(Code::FailedPrecondition, what));
        }
    }
    Ok(Json(Nothing {}))
}

pub(crate) async fn model_definition(call: Call) -> Result<Json<ModelDefinitionResponse>, Failure> {
    let content = call.application.database.model_definition(call.id("id")?, now()).await?;
    Ok(Json(ModelDefinitionResponse { b64_tgz: Base64(content) }))
}

/// The same, to be saved.
pub(crate) async fn model_definition_file(call: Call) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    let content = call.application.database.model_definition(id, now()).await?;
    let (sender, parts) = mpsc::channel(1);
    // One part fits into the queue, so this does not wait.
    let _ = sender.send(Ok(content)).await;
    Ok(Reply::Download(Download { media_type: "application/gzip", name: format!("experiment-{id}.tgz"), parts }))
}
