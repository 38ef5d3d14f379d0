//! Experiments: making, listing, changing.

use instep_api::config::Sources;
use instep_api::experiments::{
    BestMetricResponse, CreateExperimentRequest, CreateExperimentResponse, ExperimentResponse, ExperimentsResponse,
    GetExperimentResponse, LabelsResponse, MoveExperimentRequest, PatchExperimentRequest,
};
use instep_api::identifiers::{ExperimentId, ProjectId};
use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_database::{ExperimentFilter, ExperimentSort, NewExperiment};

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;
use crate::clock::now;
use crate::{config, random};

/// Elements of a list of experiments if nobody says how many.
const DEFAULT_LIMIT: i64 = 100;

/// The time as a seed.
fn seconds(time: Timestamp) -> u32 {
    (time.0 / 1_000_000).rem_euclid(1 << 32) as u32
}

async fn make(call: &Call, external_id: Option<String>) -> Result<Reply, Failure> {
    let request: CreateExperimentRequest = call.json()?;
    if request.unmanaged != Some(true) {
        return Err(Failure::invalid("only unmanaged experiments are supported"));
    }
    let text = request.config.unwrap_or_default();
    let job_id = random::uuid();
    let sources =
        Sources { name: format!("Experiment ({})", &job_id[..8]), seed: seconds(now()), ..Sources::default() };
    let config = config::read(&text, &sources).map_err(Failure::invalid)?;
    let new = NewExperiment {
        external_id,
        config: config.to_json(),
        original_config: text,
        job_id,
        project_id: request.project_id.filter(|id| id.0 != 0),
        project_names: config.project_names().map(|(workspace, project)| (workspace.to_owned(), project.to_owned())),
        owner: call.user()?.id,
        searcher_name: config.searcher.name().to_owned(),
        searcher_metric: config.searcher.metric,
        smaller_is_better: config.searcher.smaller_is_better,
        name: config.name,
        description: config.description.unwrap_or_default(),
        labels: config.labels,
    };
    let experiment = call.application.database.create_experiment(new, now()).await?;
    let config = experiment.config.clone();
    Reply::json(&CreateExperimentResponse { experiment, config, warnings: Vec::new() })
}

pub(crate) async fn create(call: Call) -> Result<Reply, Failure> {
    make(&call, None).await
}

pub(crate) async fn put(call: Call) -> Result<Reply, Failure> {
    make(&call, Some(call.part("external").to_owned())).await
}

pub(crate) async fn get(call: Call) -> Result<Reply, Failure> {
    let experiment = call.application.database.experiment(call.id("id")?, now()).await?;
    let config = experiment.config.clone();
    Reply::json(&GetExperimentResponse { experiment, config, job_summary: None })
}

pub(crate) async fn list(call: Call) -> Result<Reply, Failure> {
    let query = &call.query;
    let filter = ExperimentFilter {
        archived: query.value("archived")?,
        users: query.texts("users"),
        user_ids: query.values("userIds")?,
        states: query.values::<State>("states")?,
        project: query.value::<ProjectId>("projectId")?.filter(|id| id.0 != 0),
        name: query.text("name").map(str::to_owned),
        description: query.text("description").map(str::to_owned),
        labels: query.texts("labels"),
    };
    let sort = sort_by(query.text("sortBy").unwrap_or_default())?;
    let order = query.order()?.unwrap_or_default();
    let slice = query.slice(Some(DEFAULT_LIMIT))?;
    let (experiments, pagination) = call.application.database.experiments(filter, sort, order, slice, now()).await?;
    Reply::json(&ExperimentsResponse { experiments, pagination })
}

fn sort_by(name: &str) -> Result<ExperimentSort, Failure> {
    Ok(match name {
        "" | "SORT_BY_UNSPECIFIED" | "SORT_BY_ID" => ExperimentSort::Id,
        "SORT_BY_NAME" => ExperimentSort::Name,
        "SORT_BY_DESCRIPTION" => ExperimentSort::Description,
        "SORT_BY_START_TIME" => ExperimentSort::StartTime,
        "SORT_BY_END_TIME" => ExperimentSort::EndTime,
        "SORT_BY_STATE" => ExperimentSort::State,
        "SORT_BY_NUM_TRIALS" => ExperimentSort::TrialCount,
        "SORT_BY_PROGRESS" => ExperimentSort::Progress,
        "SORT_BY_USER" => ExperimentSort::User,
        "SORT_BY_PROJECT_ID" => ExperimentSort::Project,
        "SORT_BY_CHECKPOINT_SIZE" => ExperimentSort::CheckpointSize,
        "SORT_BY_CHECKPOINT_COUNT" => ExperimentSort::CheckpointCount,
        "SORT_BY_SEARCHER_METRIC_VAL" => ExperimentSort::BestMetric,
        other => return Err(Failure::invalid(format!("experiments cannot be sorted by `{other}`"))),
    })
}

pub(crate) async fn change(call: Call) -> Result<Reply, Failure> {
    let request: PatchExperimentRequest = call.json()?;
    if request.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(Failure::invalid("an experiment needs a name"));
    }
    let experiment = call.application.database.change_experiment(call.id("id")?, request, now()).await?;
    Reply::json(&ExperimentResponse { experiment })
}

async fn change_labels(call: &Call, change: impl Fn(&mut Vec<String>, String)) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    let mut labels = call.application.database.experiment(id, now()).await?.labels;
    change(&mut labels, call.part("label").to_owned());
    labels.sort();
    labels.dedup();
    let request = PatchExperimentRequest { labels: Some(labels), ..PatchExperimentRequest::default() };
    let experiment = call.application.database.change_experiment(id, request, now()).await?;
    Reply::json(&LabelsResponse { labels: experiment.labels })
}

pub(crate) async fn add_label(call: Call) -> Result<Reply, Failure> {
    change_labels(&call, |labels, label| labels.push(label)).await
}

pub(crate) async fn remove_label(call: Call) -> Result<Reply, Failure> {
    change_labels(&call, |labels, label| labels.retain(|known| *known != label)).await
}

pub(crate) async fn archive(call: Call) -> Result<Reply, Failure> {
    call.application.database.archive_experiment(call.id("id")?, true, now()).await?;
    Reply::nothing()
}

pub(crate) async fn unarchive(call: Call) -> Result<Reply, Failure> {
    call.application.database.archive_experiment(call.id("id")?, false, now()).await?;
    Reply::nothing()
}

pub(crate) async fn relocate(call: Call) -> Result<Reply, Failure> {
    let request: MoveExperimentRequest = call.json()?;
    let project = request.destination_project_id.ok_or_else(|| Failure::invalid("destinationProjectId is missing"))?;
    call.application.database.move_experiment(call.id("id")?, project, now()).await?;
    Reply::nothing()
}

pub(crate) async fn delete(call: Call) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    let caller = call.user()?;
    let owner = call.application.database.experiment(id, now()).await?.user_id;
    if !caller.admin && caller.id != owner {
        return Err(Failure::forbidden("only its owner and administrators may delete an experiment"));
    }
    let (checkpoints, _) = call.application.database.experiment_checkpoints(id, Vec::new(), now()).await?;
    call.application.database.delete_experiment(id, now()).await?;
    let uuids: Vec<String> = checkpoints.into_iter().map(|checkpoint| checkpoint.uuid).collect();
    super::files::gone(&call, &uuids).await
}

pub(crate) async fn best_validation(call: Call) -> Result<Reply, Failure> {
    let id: ExperimentId = call.id("id")?;
    let best = call.application.database.best_validation(id, now()).await?;
    let none = || Failure::not_found(format!("experiment {id} has no validations with its searcher's metric"));
    Reply::json(&BestMetricResponse { metric: best.ok_or_else(none)? })
}
