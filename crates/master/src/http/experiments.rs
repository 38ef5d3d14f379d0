//! Experiments: making, listing, changing.

use instep_api::config::{Configuration, ExperimentConfig, Sources, merge, parse_text};
use instep_api::error::Code;
use instep_api::experiments::{
    BestMetricResponse, CreateExperimentRequest, CreateExperimentResponse, ExperimentResponse, ExperimentsResponse,
    GetExperimentResponse, LabelsResponse, MoveExperimentRequest, PatchExperimentRequest,
};
use instep_api::identifiers::{ExperimentId, ProjectId, TrialId, WorkspaceId};
use instep_api::states::State;
use instep_api::wire::Timestamp;
use instep_database::{ExperimentFilter, ExperimentSort, NewExperiment, NewManagedExperiment, Subject};
use instep_policy::permissions::Kind;
use serde_json::{Value, json};

use super::blocking::blocking;
use super::call::Call;
use super::failure::Failure;
use super::fitting::Wish;
use super::models::undeleted;
use super::ownership::Place;
use super::reply::{Json, Nothing};
use super::{config_policies, contexts, fitting, masks, pools, queue, retention, secrets};
use crate::clock::now;
use crate::cluster::{JobChange, JobOf};
use crate::{config, random};

/// Elements of a list of experiments if nobody says how many.
const DEFAULT_LIMIT: i64 = 100;

/// The time as a seed.
fn seconds(time: Timestamp) -> u32 {
    (time.0 / 1_000_000).rem_euclid(1 << 32) as u32
}

async fn make(call: &Call, external_id: Option<String>) -> Result<Json<CreateExperimentResponse>, Failure> {
    let request: CreateExperimentRequest = call.json()?;
    if request.unmanaged != Some(true) {
        if external_id.is_some() {
            return Err(Failure::invalid("only unmanaged experiments are supported"));
        }
        return make_managed(call, request).await;
    }
    let text = request.config.unwrap_or_default();
    let job_id = random::uuid();
    let sources =
        Sources { name: format!("Experiment ({})", &job_id[..8]), seed: seconds(now()), ..Sources::default() };
    let config = config::read(&text, &sources).map_err(Failure::invalid)?;
    let project = request.project_id;
    let new = NewExperiment { external_id, ..new_experiment(call, &config, (text, job_id), project)? };
    let known = match &new.external_id {
        Some(id) if call.grants.is_some() => {
            call.application.database.ownership(Subject::ExternalExperiment(id.clone())).await?.is_some()
        }
        _ => false,
    };
    // One that is there stays where it is, and was asked about.
    if !known {
        may_make_in(call, new.project_id, new.project_names.clone()).await?;
    }
    may_start_from(call, &config).await?;
    if request.validate_only == Some(true) {
        return Ok(validated(Vec::new()));
    }
    let experiment = call.application.database.create_experiment(new, now()).await?;
    call.noted.subject(Subject::Experiment(experiment.id));
    let config = experiment.config.clone();
    Ok(Json(CreateExperimentResponse { experiment, config, warnings: Vec::new() }))
}

/// Refuses to put an experiment into a project of a workspace where the caller may make none.
pub(super) async fn may_make_in(
    call: &Call,
    project: Option<ProjectId>,
    names: Option<(String, String)>,
) -> Result<(), Failure> {
    if call.grants.is_none() {
        return call.may_make(Kind::Experiment, &Place::workspace(None));
    }
    let named = match (project, &names) {
        (Some(id), _) => Some(format!("project '{id}'")),
        (None, Some((workspace, project))) => Some(format!("project '{workspace}/{project}'")),
        (None, None) => None,
    };
    let workspace = call.application.database.workspace_of_project(project, names).await?;
    call.may_make(Kind::Experiment, &Place { workspace, named })
}

/// Refuses to start from a checkpoint that the caller may not see, as from one that is not there.
pub(super) async fn may_start_from(call: &Call, config: &ExperimentConfig) -> Result<(), Failure> {
    if let Some(trial) = config.searcher.source_trial_id {
        call.must_see(Subject::Trial(TrialId(trial))).await?;
    }
    if let Some(uuid) = &config.searcher.source_checkpoint_uuid {
        call.must_see(Subject::Checkpoint(uuid.clone())).await?;
    }
    Ok(())
}

/// The configuration of a template that the caller may see.
pub(super) async fn template(call: &Call, name: Option<String>) -> Result<Option<Value>, Failure> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    call.may_read(Subject::Template(name.clone())).await?;
    Ok(Some(call.application.database.template(name).await?.0.config.into_value()))
}

/// An experiment of the caller's, as its configuration describes it.
fn new_experiment(
    call: &Call,
    config: &ExperimentConfig,
    (original_config, job_id): (String, String),
    project: Option<ProjectId>,
) -> Result<NewExperiment, Failure> {
    Ok(NewExperiment {
        external_id: None,
        name: config.name.clone(),
        description: config.description.clone().unwrap_or_default(),
        labels: config.labels.clone(),
        config: config.to_json(),
        original_config,
        job_id,
        project_id: project.filter(|id| id.0 != 0),
        project_names: config.project_names().map(|(workspace, project)| (workspace.to_owned(), project.to_owned())),
        owner: call.user()?.id,
        searcher_name: config.searcher.name().to_owned(),
        searcher_metric: config.searcher.metric.clone(),
        smaller_is_better: config.searcher.smaller_is_better,
    })
}

/// Makes an experiment that the master runs.
async fn make_managed(
    call: &Call,
    request: CreateExperimentRequest,
) -> Result<Json<CreateExperimentResponse>, Failure> {
    let database = &call.application.database;
    let text = request.config.unwrap_or_default();
    let template = template(call, request.template).await?;
    let job_id = random::uuid();
    let sources = Sources {
        managed: true,
        name: format!("Experiment ({})", &job_id[..8]),
        seed: seconds(now()),
        template,
        workspace_storage: None,
        defaults: Some(call.application.defaults.clone()),
    };
    let forked_from = request.parent_id.filter(|id| id.0 != 0);
    if let Some(parent) = forked_from {
        call.may_read(Subject::Experiment(parent)).await?;
        if database.experiment(parent, now()).await?.parent_archived {
            let what = format!("experiment {parent} lies in an archived workspace or project, and cannot be forked");
            return Err(Failure::new(Code::FailedPrecondition, what));
        }
    }
    let text = masks::submitted(call, text, forked_from, &sources).await?;
    let config = config::read(&text, &sources).map_err(Failure::invalid)?;
    let names = config.project_names().map(|(workspace, project)| (workspace.to_owned(), project.to_owned()));
    let project = request.project_id.filter(|id| id.0 != 0);
    may_make_in(call, project, names.clone()).await?;
    let workspace = database.workspace_of_project(project, names).await?;
    let (config, sources) = with_workspace_storage(call, config, (&text, sources), workspace).await?;
    let (text, config) = ruled(call, text, config, &sources, workspace).await?;
    may_start_from(call, &config).await?;
    let files = request.model_definition.unwrap_or_default();
    let model_definition = match forked_from {
        Some(parent) if files.is_empty() => database.model_definition(parent, now()).await?,
        _ => {
            let packed = blocking(move || crate::model_definition::pack(&files)).await?;
            packed.map_err(Failure::invalid)?
        }
    };
    contexts::check(call, model_definition.len()).await?;
    let new = new_experiment(call, &config, (text, job_id), request.project_id)?;
    secrets::check(call, &config.environment, workspace).await?;
    let warnings = launch_warnings(call, &config).await?;
    if request.validate_only == Some(true) {
        return Ok(validated(warnings));
    }
    let state = if request.activate == Some(false) { State::Paused } else { State::Active };
    let pool = pools::named_or_default(&config.resources.resource_pool).to_owned();
    let new = NewManagedExperiment { experiment: new, state, pool, forked_from, model_definition };
    let id = database.create_managed_experiment(new, now()).await?.id;
    call.noted.subject(Subject::Experiment(id));
    call.application.cluster.start_experiment(database.live_experiment(id, now()).await?).await?;
    let experiment = database.experiment(id, now()).await?;
    let config = experiment.config.clone();
    Ok(Json(CreateExperimentResponse { experiment, config, warnings }))
}

/// A configuration after the policies of its workspace, and that its pool is for the workspace.
pub(super) async fn ruled(
    call: &Call,
    text: String,
    config: ExperimentConfig,
    sources: &Sources,
    workspace: WorkspaceId,
) -> Result<(String, ExperimentConfig), Failure> {
    let policies = config_policies::of(call, config_policies::EXPERIMENT, workspace).await?;
    let submitted = parse_text(&text).unwrap_or_default();
    let (text, config) = match policies.laid_over(&submitted) {
        None => (text, config),
        Some(laid) => {
            let text = laid.to_string();
            let config = config::read(&text, sources).map_err(Failure::invalid)?;
            (text, config)
        }
    };
    let resources = &config.resources;
    policies.check_slots(i64::from(resources.slots_per_trial).max(resources.max_slots.map_or(0, i64::from)))?;
    policies.check_priority(resources.priority.map(i64::from))?;
    pools::check(call, &resources.resource_pool, workspace).await?;
    // Who names no limit gets the policy's.
    match policies.most_slots().filter(|_| config.resources.max_slots.is_none()) {
        None => Ok((text, config)),
        Some(most) => {
            let limited = merge(json!({"resources": {"max_slots": most}}), parse_text(&text).unwrap_or_default());
            let text = limited.to_string();
            let config = config::read(&text, sources).map_err(Failure::invalid)?;
            Ok((text, config))
        }
    }
}

/// The configuration with the storage of the experiment's workspace under it, and what it was read with.
async fn with_workspace_storage(
    call: &Call,
    config: ExperimentConfig,
    (text, sources): (&str, Sources),
    workspace: WorkspaceId,
) -> Result<(ExperimentConfig, Sources), Failure> {
    match call.application.database.workspace(workspace).await?.checkpoint_storage_config {
        None => Ok((config, sources)),
        Some(storage) => {
            let sources = Sources { workspace_storage: Some(storage.into_value()), ..sources };
            Ok((config::read(text, &sources).map_err(Failure::invalid)?, sources))
        }
    }
}

/// The answer to who only wants to know whether an experiment could be made.
fn validated(warnings: Vec<String>) -> Json<CreateExperimentResponse> {
    let (experiment, config) = (super::zero::experiment(), Configuration::default());
    Json(CreateExperimentResponse { experiment, config, warnings })
}

/// What the author of an experiment should know about where it is to run, if it can ever.
async fn launch_warnings(call: &Call, config: &ExperimentConfig) -> Result<Vec<String>, Failure> {
    let resources = &config.resources;
    let one_machine = resources.is_single_node == Some(true);
    let (pool, slots) = (resources.resource_pool.as_str(), resources.slots_per_trial);
    let slots_per_node = config.slurm.slots_per_node;
    fitting::check(call, Wish { pool, slots, one_machine, slots_per_node, environment: &config.environment }).await
}

pub(crate) async fn create(call: Call) -> Result<Json<CreateExperimentResponse>, Failure> {
    make(&call, None).await
}

pub(crate) async fn put(call: Call) -> Result<Json<CreateExperimentResponse>, Failure> {
    make(&call, Some(call.part("external").to_owned())).await
}

pub(crate) async fn get(call: Call) -> Result<Json<GetExperimentResponse>, Failure> {
    let id: ExperimentId = call.id("id")?;
    let experiment = call.application.database.experiment(id, now()).await?;
    let config = experiment.config.clone();
    let job_summary = match experiment.unmanaged {
        true => None,
        false => call.application.cluster.job_summary(id).await?,
    };
    Ok(Json(GetExperimentResponse { experiment, config, job_summary }))
}

pub(crate) async fn list(call: Call) -> Result<Json<ExperimentsResponse>, Failure> {
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
        workspaces: call.seen_workspaces(Kind::Experiment),
        ids: query.values("experimentIdFilter.incl")?,
        excluded: query.values("experimentIdFilter.notIn")?,
        between: id_range(&call)?,
    };
    let sort = sort_by(query.text("sortBy").unwrap_or_default())?;
    let order = query.order()?.unwrap_or_default();
    let slice = query.slice(Some(DEFAULT_LIMIT))?;
    let (experiments, pagination) = call.application.database.experiments(filter, sort, order, slice, now()).await?;
    Ok(Json(ExperimentsResponse { experiments, pagination }))
}

/// The smallest and the largest id that a query wants.
fn id_range(call: &Call) -> Result<(Option<i64>, Option<i64>), Failure> {
    let bound = |name: &str| call.query.value::<i64>(&format!("experimentIdFilter.{name}"));
    let from = [bound("gte")?, bound("gt")?.map(|id| id.saturating_add(1))].into_iter().flatten().max();
    let to = [bound("lte")?, bound("lt")?.map(|id| id.saturating_sub(1))].into_iter().flatten().min();
    Ok((from, to))
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
        "SORT_BY_FORKED_FROM" => ExperimentSort::ForkedFrom,
        "SORT_BY_RESOURCE_POOL" => ExperimentSort::ResourcePool,
        "SORT_BY_CHECKPOINT_SIZE" => ExperimentSort::CheckpointSize,
        "SORT_BY_CHECKPOINT_COUNT" => ExperimentSort::CheckpointCount,
        "SORT_BY_SEARCHER_METRIC_VAL" => ExperimentSort::BestMetric,
        other => return Err(Failure::invalid(format!("experiments cannot be sorted by `{other}`"))),
    })
}

pub(crate) async fn change(call: Call) -> Result<Json<ExperimentResponse>, Failure> {
    let request: PatchExperimentRequest = call.json()?;
    if request.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(Failure::invalid("an experiment needs a name"));
    }
    let id: ExperimentId = call.id("id")?;
    if let Some(resources) = &request.resources {
        let change = queue::Change {
            priority: resources.priority,
            weight: resources.weight,
            max_slots: resources.max_slots,
            pool: None,
        };
        queue::apply(&call, &JobOf::Experiment(id), change).await?;
    }
    if let Some(storage) = &request.checkpoint_storage {
        retention::keep(&call, id, storage).await?;
    }
    let name = request.name.clone();
    let experiment = call.application.database.change_experiment(id, request, now()).await?;
    if name.is_some() {
        let change = JobChange { name, ..JobChange::default() };
        call.application.cluster.change_job(JobOf::Experiment(id), change).await?;
    }
    Ok(Json(ExperimentResponse { experiment }))
}

async fn change_labels(
    call: &Call,
    change: impl Fn(&mut Vec<String>, String),
) -> Result<Json<LabelsResponse>, Failure> {
    let id: ExperimentId = call.id("id")?;
    let mut labels = call.application.database.experiment(id, now()).await?.labels;
    change(&mut labels, call.part("label").to_owned());
    labels.sort();
    labels.dedup();
    let request = PatchExperimentRequest { labels: Some(labels), ..PatchExperimentRequest::default() };
    let experiment = call.application.database.change_experiment(id, request, now()).await?;
    Ok(Json(LabelsResponse { labels: experiment.labels }))
}

pub(crate) async fn add_label(call: Call) -> Result<Json<LabelsResponse>, Failure> {
    change_labels(&call, |labels, label| labels.push(label)).await
}

pub(crate) async fn remove_label(call: Call) -> Result<Json<LabelsResponse>, Failure> {
    change_labels(&call, |labels, label| labels.retain(|known| *known != label)).await
}

pub(crate) async fn set_archived(call: Call) -> Result<Json<Nothing>, Failure> {
    call.application.database.archive_experiment(call.id("id")?, call.archives(), now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn relocate(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: MoveExperimentRequest = call.json()?;
    let project = request.destination_project_id.ok_or_else(|| Failure::invalid("destinationProjectId is missing"))?;
    may_make_in(&call, Some(project), None).await?;
    call.application.database.move_experiment(call.id("id")?, project, now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    delete_one(&call, call.id("id")?).await?;
    Ok(Json(Nothing {}))
}

/// Deletes an experiment that has ended, with its checkpoints' files.
pub(super) async fn delete_one(call: &Call, id: ExperimentId) -> Result<(), Failure> {
    let (checkpoints, _) = call.application.database.experiment_checkpoints(id, Vec::new(), now()).await?;
    if let Err(error) = call.application.database.delete_experiment(id, now()).await {
        return Err(undeleted(call, error).await);
    }
    // What it wrote for TensorBoard goes by the experiment's number.
    let uuids: Vec<String> =
        checkpoints.into_iter().map(|checkpoint| checkpoint.uuid).chain([id.to_string()]).collect();
    super::files::gone(call, &uuids).await.map(drop)
}

pub(crate) async fn delete_tensorboard_files(call: Call) -> Result<Json<Nothing>, Failure> {
    let id: ExperimentId = call.id("id")?;
    call.application.database.delete_tensorboard_files(id).await?;
    super::files::gone(&call, &[id.to_string()]).await
}

pub(crate) async fn best_validation(call: Call) -> Result<Json<BestMetricResponse>, Failure> {
    let id: ExperimentId = call.id("id")?;
    let best = call.application.database.best_validation(id, now()).await?;
    let none = || Failure::not_found(format!("experiment {id} has no validations with its searcher's metric"));
    Ok(Json(BestMetricResponse { metric: best.ok_or_else(none)? }))
}
