//! What users arrange for themselves, and the message that administrators show to everybody.

use instep_api::identifiers::{ExperimentId, ProjectId, WorkspaceId};
use instep_api::preferences::{
    ActivityRequest, ClusterMessage, ClusterMessageRequest, ClusterMessageResponse, MoveProjectRequest, Note, Notes,
    UserSettings, VisitedProjectsResponse,
};
use instep_api::wire::{Timestamp, span};
use instep_api::workspaces::ProjectResponse;
use instep_database::Subject;
use instep_policy::permissions::Kind;

use super::call::Call;
use super::deleting::may_change_all;
use super::failure::Failure;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use crate::clock::now;
use crate::names;

/// Letters of the message to everybody, as in Determined.
const LONGEST_MESSAGE: usize = 250;
/// Projects that are listed if nobody says how many.
const VISITED: usize = 5;

pub(crate) async fn settings(call: Call) -> Result<Json<UserSettings>, Failure> {
    Ok(Json(UserSettings { settings: call.application.database.user_settings(call.user()?.id).await? }))
}

pub(crate) async fn set_settings(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: UserSettings = call.json()?;
    if request.settings.iter().any(|setting| setting.key.is_empty()) {
        return Err(Failure::invalid("a setting needs a key"));
    }
    call.application.database.set_user_settings(call.user()?.id, request.settings).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn reset_settings(call: Call) -> Result<Json<Nothing>, Failure> {
    call.application.database.reset_user_settings(call.user()?.id).await?;
    Ok(Json(Nothing {}))
}

/// For a pair of routes that end in `pin` and `unpin`.
pub(crate) async fn pin(call: Call) -> Result<Json<Nothing>, Failure> {
    let workspace: WorkspaceId = call.id("id")?;
    let pinned = call.route.path.ends_with("/pin");
    call.must_see(Subject::Workspace(workspace)).await?;
    call.application.database.pin_workspace(call.user()?.id, workspace, pinned, now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn visit(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: ActivityRequest = call.json()?;
    call.note_asked();
    let known = request.entity_type.as_deref() == Some("ENTITY_TYPE_PROJECT")
        && request.activity_type.as_deref() == Some("ACTIVITY_TYPE_GET");
    if !known {
        return Err(Failure::invalid("only looking at a project is noted: ACTIVITY_TYPE_GET of ENTITY_TYPE_PROJECT"));
    }
    let project = ProjectId(request.entity_id.unwrap_or_default().0);
    call.must_see(Subject::Project(project)).await?;
    call.application.database.visit_project(call.user()?.id, project, now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn visited(call: Call) -> Result<Json<VisitedProjectsResponse>, Failure> {
    let limit = call.query.value("limit")?.filter(|limit| *limit > 0).unwrap_or(VISITED);
    let sight = call.sight(Kind::Project);
    let mut projects = Vec::new();
    for id in call.application.database.visited_projects(call.user()?.id).await? {
        let project = call.application.database.project(id).await?;
        if projects.len() < limit && sight.covers(project.workspace_id) {
            projects.push(project);
        }
    }
    Ok(Json(VisitedProjectsResponse { projects }))
}

pub(crate) async fn project_by_key(call: Call) -> Result<Json<ProjectResponse>, Failure> {
    let key = call.part("key").to_owned();
    let missing = || Failure::not_found(format!("project with key '{key}' not found"));
    call.note_asked();
    let id = call.application.database.project_by_key(key.clone()).await?.ok_or_else(missing)?;
    call.may_read(Subject::Project(id)).await.map_err(|_| missing())?;
    Ok(Json(ProjectResponse { project: call.application.database.project(id).await? }))
}

fn check_notes(notes: &[Note]) -> Result<(), Failure> {
    notes.iter().try_for_each(|note| names::check_label("the name of a note", &note.name)).map_err(Failure::invalid)
}

pub(crate) async fn add_note(call: Call) -> Result<Json<Notes>, Failure> {
    let note: Note = call.json()?;
    check_notes(std::slice::from_ref(&note))?;
    let add = move |mut notes: Vec<Note>| {
        notes.push(note);
        notes
    };
    Ok(Json(Notes { notes: call.application.database.change_notes(call.id("id")?, add).await? }))
}

pub(crate) async fn set_notes(call: Call) -> Result<Json<Notes>, Failure> {
    let request: Notes = call.json()?;
    check_notes(&request.notes)?;
    Ok(Json(Notes { notes: call.application.database.change_notes(call.id("id")?, |_| request.notes).await? }))
}

/// Whoever moves a project may change it and every experiment in it, and make both where it goes.
pub(crate) async fn move_project(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: MoveProjectRequest = call.json()?;
    let workspace =
        request.destination_workspace_id.ok_or_else(|| Failure::invalid("destinationWorkspaceId is missing"))?;
    let id: ProjectId = call.id("id")?;
    let place = Place { workspace, named: Some(format!("workspace '{workspace}'")) };
    call.may_make(Kind::Project, &place)?;
    let database = &call.application.database;
    let experiments: Vec<ExperimentId> =
        database.experiments_of_projects(vec![id]).await?.into_iter().map(|(id, _)| id).collect();
    if !experiments.is_empty() {
        call.may_make(Kind::Experiment, &place)?;
        may_change_all(&call, &experiments).await?;
    }
    database.move_project(id, workspace).await?;
    Ok(Json(Nothing {}))
}

/// The message that is to be shown now.
pub(super) async fn shown_message(call: &Call) -> Result<Option<ClusterMessage>, Failure> {
    let time = now();
    let message = call.application.database.cluster_message().await?;
    Ok(message.filter(|message| message.start_time <= time && message.end_time.is_none_or(|end| time < end)))
}

pub(crate) async fn message(call: Call) -> Result<Json<ClusterMessageResponse>, Failure> {
    let cluster_message = call.application.database.cluster_message().await?;
    let is_over = |message: &ClusterMessage| message.end_time.is_some_and(|end| end <= now());
    Ok(Json(ClusterMessageResponse { cluster_message: cluster_message.filter(|message| !is_over(message)) }))
}

pub(crate) async fn set_message(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: ClusterMessageRequest = call.json()?;
    let message = request.message.unwrap_or_default();
    let letters = message.chars().count();
    if letters == 0 || letters > LONGEST_MESSAGE {
        return Err(Failure::invalid(format!(
            "message must be between 1 and {LONGEST_MESSAGE} letters, not {letters}"
        )));
    }
    let created_time = now();
    let start_time = request.start_time.unwrap_or(created_time);
    let duration = request.duration.filter(|text| !text.is_empty());
    let end_time = match (request.end_time, duration) {
        (Some(_), Some(_)) => return Err(Failure::invalid("endTime and duration are mutually exclusive")),
        (end, None) => end,
        (None, Some(text)) => {
            let span = span(&text)
                .ok_or_else(|| Failure::invalid(format!("`{text}` is not a duration such as 24h, 5d or 2w")))?;
            let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            Some(Timestamp(start_time.0.saturating_add(micros)))
        }
    };
    if end_time.is_some_and(|end| end <= start_time || end <= created_time) {
        return Err(Failure::invalid("end time must be after start time, and in the future"));
    }
    let message = ClusterMessage { message, start_time, end_time, created_time };
    call.application.database.set_cluster_message(Some(message)).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete_message(call: Call) -> Result<Json<Nothing>, Failure> {
    call.application.database.set_cluster_message(None).await?;
    Ok(Json(Nothing {}))
}
