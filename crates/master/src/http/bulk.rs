//! One wish for many experiments: those that are named, or all that a filter finds.

use instep_api::bulk::{BulkRequest, BulkResponse, BulkResult, RetainLogsOfSeveralRequest};
use instep_api::identifiers::{ExperimentId, ProjectId};
use instep_api::pages::{Order, Slice};
use instep_database::{ExperimentFilter, ExperimentSort, Subject};
use instep_policy::lifecycle::Event;
use instep_policy::permissions::Kind;

use super::call::Call;
use super::control::{IfEnded, send_event};
use super::experiments::may_make_in;
use super::failure::Failure;
use super::reply::Json;
use crate::clock::now;

/// What is wanted of each.
enum BulkAction {
    Control(Event, IfEnded),
    Archive(bool),
    Move(ProjectId),
    Delete,
    RetainLogs(i64),
}

impl BulkAction {
    async fn grant(&self, call: &Call, id: ExperimentId) -> Result<(), Failure> {
        call.may_change(Subject::Experiment(id)).await?;
        let application = &call.application;
        match self {
            BulkAction::Control(event, if_ended) => send_event(application, id, event.clone(), *if_ended).await,
            BulkAction::Archive(archived) => Ok(application.database.archive_experiment(id, *archived, now()).await?),
            BulkAction::Move(project) => {
                Ok(application.database.move_experiment(id, *project, now()).await.map(drop)?)
            }
            BulkAction::Delete => super::experiments::delete_one(call, id).await,
            BulkAction::RetainLogs(days) => Ok(application.database.retain_experiment_logs(id, *days, now()).await?),
        }
    }
}

async fn each(call: &Call, request: BulkRequest, wish: BulkAction) -> Result<Json<BulkResponse>, Failure> {
    let mut results = Vec::new();
    for id in meant(call, request).await? {
        let error = wish.grant(call, id).await.err().map(|failure| failure.message).unwrap_or_default();
        if !error.is_empty() {
            call.noted.not_done(Subject::Experiment(id));
        }
        results.push(BulkResult { id, error });
    }
    Ok(Json(BulkResponse { results }))
}

/// Those that are named, or all that the filter finds.
async fn meant(call: &Call, request: BulkRequest) -> Result<Vec<ExperimentId>, Failure> {
    let named = request.experiment_ids.unwrap_or_default();
    let Some(filters) = request.filters.filter(|_| named.is_empty()) else { return Ok(named) };
    let here: i64 = call.id("id")?;
    // -1 and 0 mean all projects.
    let project = filters.project_id.map_or(here, |project| project.0);
    let filter = ExperimentFilter {
        archived: filters.archived,
        user_ids: filters.user_ids.unwrap_or_default(),
        states: filters.states.unwrap_or_default(),
        project: (project > 0).then_some(ProjectId(project)),
        name: filters.name.filter(|name| !name.is_empty()),
        description: filters.description.filter(|text| !text.is_empty()),
        labels: filters.labels.unwrap_or_default(),
        workspaces: call.seen_workspaces(Kind::Experiment),
        excluded: filters.excluded_experiment_ids.unwrap_or_default(),
        ..ExperimentFilter::default()
    };
    let database = &call.application.database;
    let found = database.experiments(filter, ExperimentSort::Id, Order::Ascending, Slice::ALL, now()).await?.0;
    Ok(found.into_iter().map(|experiment| experiment.id).collect())
}

pub(crate) async fn activate(call: Call) -> Result<Json<BulkResponse>, Failure> {
    each(&call, call.json()?, BulkAction::Control(Event::Activate, IfEnded::Refuse)).await
}

pub(crate) async fn pause(call: Call) -> Result<Json<BulkResponse>, Failure> {
    each(&call, call.json()?, BulkAction::Control(Event::Pause, IfEnded::Refuse)).await
}

pub(crate) async fn cancel(call: Call) -> Result<Json<BulkResponse>, Failure> {
    each(&call, call.json()?, BulkAction::Control(Event::Cancel, IfEnded::Accept)).await
}

pub(crate) async fn kill(call: Call) -> Result<Json<BulkResponse>, Failure> {
    each(&call, call.json()?, BulkAction::Control(Event::Kill, IfEnded::Accept)).await
}

pub(crate) async fn set_archived(call: Call) -> Result<Json<BulkResponse>, Failure> {
    each(&call, call.json()?, BulkAction::Archive(call.archives())).await
}

pub(crate) async fn relocate(call: Call) -> Result<Json<BulkResponse>, Failure> {
    let request: BulkRequest = call.json()?;
    let project = request.destination_project_id.ok_or_else(|| Failure::invalid("destinationProjectId is missing"))?;
    may_make_in(&call, Some(project), None).await?;
    each(&call, request, BulkAction::Move(project)).await
}

pub(crate) async fn delete(call: Call) -> Result<Json<BulkResponse>, Failure> {
    each(&call, call.json()?, BulkAction::Delete).await
}

pub(crate) async fn retain_logs(call: Call) -> Result<Json<BulkResponse>, Failure> {
    let request: RetainLogsOfSeveralRequest = call.json()?;
    let days = super::log_retention::days(request.num_days.map(|days| days.0))?;
    let meant =
        BulkRequest { experiment_ids: request.experiment_ids, filters: request.filters, ..BulkRequest::default() };
    each(&call, meant, BulkAction::RetainLogs(days)).await
}
