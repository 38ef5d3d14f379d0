//! The table of everything that is served, and who may ask for it.

mod actions;
mod commands;
mod pools;
mod preferences;
mod reports;
mod roles;
mod searches;
mod tasks_pages;
mod trial_sources;
mod webhooks;

pub(crate) use tasks_pages::task_routes;

use std::any::TypeId;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use instep_api::agents::DisableRequest;
use instep_api::bulk::BulkRequest;
use instep_api::checkpoints::{
    DeleteCheckpointsRequest, PatchCheckpointsRequest, PostCheckpointMetadataRequest, RemoveFilesRequest,
    ReportCheckpointRequest,
};
use instep_api::experiments::{CreateExperimentRequest, MoveExperimentRequest, PatchExperimentRequest};
use instep_api::jobs::UpdateJobsRequest;
use instep_api::link::{self, AgentTokenRequest};
use instep_api::logs::{LogRecord, PostTaskLogsRequest};
use instep_api::metrics::{ReportBatchRequest, ReportMetricsRequest};
use instep_api::models::{ModelRequest, ModelVersionRequest, MoveModelRequest};
use instep_api::secrets::SecretRequest;
use instep_api::tasks::AllGatherRequest;
use instep_api::templates::{RenameTemplateRequest, TemplateRequest};
use instep_api::trials::{
    CreateTrialRequest, EarlyExitRequest, PatchTrialRequest, ProgressRequest, PutTrialRequest, RunMetadata,
    RunnerMetadataRequest, StartRunRequest, StartTrialRequest,
};
use instep_api::users::{LoginRequest, PatchUserRequest, PostUserRequest};
use instep_api::workspaces::{ProjectRequest, WorkspaceRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use actions::{Action, action_names};

use super::call::Call;
use super::continuing::ContinueRequest;
use super::failure::Failure;
use super::guard::Access::{self, Administrator, Agent, Change, LocalOrUser, Login, Make, Open, Read};
use super::guard::Thing::{
    Allocation, Checkpoint, Common, Experiment, ExternalExperiment, InBody, Log, Model, ModelVersion, Project, Several,
    Task, Template, Trial, User, Workspace,
};
use super::preview::PreviewRequest;
use super::reply::{Answer, Reply};
use super::router::Method::{self, Delete, Get, Patch, Post, Put};
use super::shape::schema_of;
use super::{
    agents, agents_link, audit, authentication, bulk, checkpoints, cluster, continuing, control, deleting, experiments,
    export, files, generic_tasks, logs, metrics, models, openapi, pages, preview, queue, retention, secrets, tasks,
    templates, trials, users, workspaces,
};

/// How long a request may take, unless a route says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long shares of an allocation wait for each other. They all start at once, but each has its context to fetch.
const MEETING: Duration = Duration::from_secs(3600);
/// How long a task may take to begin its answer, with all that it is sent before. Nobody else waits for it.
const PASSING: Duration = Duration::from_secs(3600);
/// Beyond what the caller itself asks for.
const LONG_POLL: Duration = Duration::from_secs(tasks::LONGEST_POLL + 10);
/// Bytes of a request's body at most, unless a route says otherwise.
const BODY_LIMIT: usize = 8 << 20;
/// Bytes of a login: it is read of everybody.
const LOGIN_LIMIT: usize = 64 << 10;
/// A thousand lines of output, which may be long ones.
const LOGS_LIMIT: usize = 64 << 20;
/// An experiment may come with its code: 96 MiB, a third more as base64.
const EXPERIMENT_LIMIT: usize = 160 << 20;

/// What workspaces and projects are listed by.
const OWNED: &[&str] =
    &["users", "userIds", "name", "nameCaseSensitive", "archived", "sortBy", "orderBy", "limit", "offset"];
const WORKSPACES: &[&str] =
    &["users", "userIds", "name", "nameCaseSensitive", "archived", "pinned", "sortBy", "orderBy", "limit", "offset"];
/// What checkpoints are listed by.
const CHECKPOINTS: &[&str] = &["states", "sortByAttr", "sortByMetric", "orderBy", "limit", "offset"];
/// What models are listed by.
const MODELS: &[&str] = &[
    "users",
    "userIds",
    "workspaceIds",
    "workspaceNames",
    "archived",
    "id",
    "name",
    "description",
    "labels",
    "sortBy",
    "orderBy",
    "limit",
    "offset",
];
/// What lines of output are chosen by.
const LOGS: &[&str] = &[
    "agentIds",
    "allocationIds",
    "containerIds",
    "rankIds",
    "levels",
    "sources",
    "stdtypes",
    "timestampBefore",
    "timestampAfter",
    "searchText",
    "enableRegex",
    "orderBy",
    "limit",
    "follow",
    "afterId",
];
/// The text format of OpenMetrics.
pub(crate) const MEASURES: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Handler = Box<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>> + Send + Sync>;

/// One thing that can be asked.
pub(crate) struct Route {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    pub body_limit: usize,
    pub handler: Handler,
    /// What its body is read as.
    pub takes: Option<fn() -> Value>,
    takes_type: Option<TypeId>,
    /// Which fields of its body are names that people give.
    pub names: &'static [&'static str],
    /// What it answers with, as its handler says.
    pub gives: Option<fn() -> Value>,
    /// Which parameters it looks at.
    pub query: &'static [&'static str],
    pub kind: Kind,
    /// What the audit log calls its requests.
    pub action: Action,
    /// How long a request may take to be read and done; streams may take longer to be sent.
    pub patience: Duration,
}

/// What a success brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    /// Lines of JSON, as they come.
    Lines,
    /// Something else, of this type.
    Other(&'static str),
    /// A websocket.
    Socket,
}

fn route<F, Work, Given>(method: Method, path: &'static str, access: Access, handler: F) -> Route
where
    F: Fn(Call) -> Work + Send + Sync + 'static,
    Work: Future<Output = Result<Given, Failure>> + Send + 'static,
    Given: Answer,
{
    Route {
        method,
        path,
        access,
        body_limit: BODY_LIMIT,
        handler: Box::new(move |call| {
            let work = handler(call);
            Box::pin(async move { work.await?.reply() })
        }),
        takes: None,
        takes_type: None,
        names: &[],
        gives: Given::SCHEMA,
        query: &[],
        kind: Kind::Json,
        action: Action::Read,
        patience: PATIENCE,
    }
}

impl Route {
    fn body_up_to(self, body_limit: usize) -> Route {
        Route { body_limit, ..self }
    }

    fn takes<T: DeserializeOwned + 'static>(self) -> Route {
        Route { takes: Some(schema_of::<T>), takes_type: Some(TypeId::of::<T>()), ..self }
    }

    /// Which fields of the body are names: they have no control characters.
    fn names(self, names: &'static [&'static str]) -> Route {
        Route { names, ..self }
    }

    fn asks(self, query: &'static [&'static str]) -> Route {
        Route { query, ..self }
    }

    fn answers(self, kind: Kind) -> Route {
        Route { kind, ..self }
    }

    fn waits_up_to(self, patience: Duration) -> Route {
        Route { patience, ..self }
    }

    /// Whether the table says that bodies are read as this. What it says is what the OpenAPI document shows.
    pub(crate) fn is_said_to_take<T: 'static>(&self) -> bool {
        self.takes_type == Some(TypeId::of::<T>())
    }
}

/// Everything that is served.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![
        route(Get, "/health", Open, cluster::health),
        route(Get, "/metrics", LocalOrUser, cluster::measures).answers(Kind::Other(MEASURES)),
        route(Get, "/api/openapi.json", Open, openapi::document),
        route(Get, "/info", Open, cluster::info),
        route(Get, "/api/v1/master", Open, cluster::master),
        route(Get, "/", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/cluster", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/queue", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/experiments/{id}", Open, pages::experiment).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/assets/{name}", Open, pages::asset).answers(Kind::Other("*/*")),
        route(Post, "/api/v1/auth/login", Open, authentication::login)
            .takes::<LoginRequest>()
            .asks(&["cookie"])
            .body_up_to(LOGIN_LIMIT),
        route(Post, "/api/v1/auth/logout", Login, authentication::logout),
        route(Get, "/api/v1/auth/user", Read(Common), authentication::me),
        route(Get, "/api/v1/me", Read(Common), authentication::me),
    ];
    routes.extend(user_routes());
    routes.extend(workspace_routes());
    routes.extend(experiment_routes());
    routes.extend(trial_routes());
    routes.extend(checkpoint_and_log_routes());
    routes.extend(model_routes());
    routes.extend(download_routes());
    routes.extend(managed_routes());
    routes.extend(cluster_routes());
    routes.extend(bulk_routes());
    routes.extend(commands::routes());
    routes.extend(secret_routes());
    routes.extend(roles::routes());
    routes.extend(searches::routes());
    routes.extend(preferences::routes());
    routes.extend(reports::routes());
    routes.extend(pools::routes());
    routes.extend(webhooks::routes());
    routes.extend(trial_sources::routes());
    actions::named(routes)
}

/// What agents and tasks ask, and what people want of experiments that the master runs.
fn managed_routes() -> Vec<Route> {
    vec![
        route(Get, link::PATH, Agent, agents_link::connect).answers(Kind::Socket),
        route(Get, "/api/v1/agents/tokens", Administrator, agents_link::tokens),
        route(Post, "/api/v1/agents/tokens", Administrator, agents_link::create_token)
            .takes::<AgentTokenRequest>()
            .names(&["name"]),
        route(Delete, "/api/v1/agents/tokens/{name}", Administrator, agents_link::delete_token),
        route(Post, "/api/v1/experiments/{id}/activate", Change(Experiment), control::activate),
        route(Post, "/api/v1/experiments/{id}/pause", Change(Experiment), control::pause),
        route(Post, "/api/v1/experiments/{id}/cancel", Change(Experiment), control::cancel),
        route(Post, "/api/v1/experiments/{id}/kill", Change(Experiment), control::kill),
        route(Get, "/api/v1/experiments/{id}/model_def", Read(Experiment), control::model_definition),
        route(Get, "/experiments/{id}/model_def", Read(Experiment), control::model_definition_file)
            .answers(Kind::Other("application/gzip")),
        route(Post, "/api/v1/trials/{id}/kill", Change(Trial), control::kill_trial),
        route(Post, "/api/v1/trials/{id}/early_exit", Change(Trial), tasks::early_exit).takes::<EarlyExitRequest>(),
        route(Get, "/api/v1/tasks/{id}/context_directory", Read(Task), tasks::context),
        route(Get, "/api/v1/allocations/{id}/resources/{resources}/rendezvous", Change(Allocation), tasks::rendezvous)
            .waits_up_to(MEETING),
        route(Post, "/api/v1/allocations/{id}/resources/{resources}/daemon", Change(Allocation), tasks::daemon),
        route(Get, "/api/v1/allocations/{id}/signals/preemption", Read(Allocation), tasks::preemption)
            .asks(&["timeoutSeconds"])
            .waits_up_to(LONG_POLL),
        route(Post, "/api/v1/allocations/{id}/signals/ack_preemption", Change(Allocation), tasks::acknowledge),
        route(Post, "/api/v1/allocations/{id}/signals/pending_preemption", Change(Allocation), tasks::pending),
        route(Post, "/api/v1/allocations/{id}/acceleratorData", Change(Allocation), tasks::noted),
        route(Post, "/api/v1/allocations/{id}/proxy_address", Change(Allocation), tasks::noted),
        route(Post, "/api/v1/allocations/{id}/notify_container_running", Change(Allocation), tasks::container_running),
        route(Post, "/api/v1/allocations/{id}/ready", Change(Allocation), tasks::ready),
        route(Post, "/api/v1/allocations/{id}/waiting", Change(Allocation), tasks::waiting),
        route(Post, "/api/v1/allocations/{id}/all_gather", Change(Allocation), tasks::all_gather)
            .takes::<AllGatherRequest>()
            .waits_up_to(MEETING),
    ]
}

/// Agents, the queue, templates: what people see and change of the cluster.
fn cluster_routes() -> Vec<Route> {
    const LISTED: &[&str] = &["limit", "offset"];
    const JOBS: &[&str] = &["resourcePool", "states", "orderBy", "limit", "offset"];
    vec![
        route(Get, "/api/v1/agents", Read(Common), agents::list).asks(LISTED),
        route(Get, "/api/v1/agents/{agent}", Read(Common), agents::get),
        route(Post, "/api/v1/agents/{agent}/enable", Administrator, agents::enable),
        route(Post, "/api/v1/agents/{agent}/disable", Administrator, agents::disable).takes::<DisableRequest>(),
        route(Get, "/api/v1/agents/{agent}/slots", Read(Common), agents::slots),
        route(Get, "/api/v1/agents/{agent}/slots/{slot}", Read(Common), agents::slot),
        route(Post, "/api/v1/agents/{agent}/slots/{slot}/enable", Administrator, agents::enable_slot),
        route(Post, "/api/v1/agents/{agent}/slots/{slot}/disable", Administrator, agents::disable_slot)
            .takes::<DisableRequest>(),
        route(Get, "/api/v1/master/config", Administrator, cluster::config),
        route(Get, "/api/v1/master/audit", Administrator, audit::list)
            .asks(&["since", "user", "action", "afterId", "beforeId", "limit"]),
        route(Get, "/api/v1/master/logs", Read(Log), cluster::logs)
            .asks(&["offset", "limit", "follow"])
            .answers(Kind::Lines),
        route(Get, "/api/v1/resource-pools", Read(Common), agents::pools).asks(&["unbound", "limit", "offset"]),
        route(Get, "/api/v1/job-queues", Read(Several), queue::jobs).asks(JOBS),
        route(Get, "/api/v1/job-queues-v2", Read(Several), queue::jobs_v2).asks(JOBS),
        route(Get, "/api/v1/job-queues/stats", Read(Common), queue::stats).asks(&["resourcePools"]),
        route(Post, "/api/v1/job-queues", Change(InBody), queue::update).takes::<UpdateJobsRequest>(),
        route(Get, "/api/v1/tasks", Read(Several), queue::tasks),
        route(Get, "/api/v1/tasks/{id}", Read(Task), generic_tasks::task),
        route(Get, "/tasks", Read(Several), queue::plain_tasks),
        route(Post, "/api/v1/preview-hp-search", Read(Common), preview::preview).takes::<PreviewRequest>(),
        route(Get, "/api/v1/templates", Read(Several), templates::list).asks(&[
            "name",
            "workspaceIds",
            "limit",
            "offset",
        ]),
        route(Get, "/api/v1/templates/{name}", Read(Template), templates::get),
        route(Post, "/api/v1/templates/{name}", Change(Template), templates::create).takes::<TemplateRequest>(),
        route(Put, "/api/v1/templates/{name}", Change(Template), templates::put).takes::<TemplateRequest>(),
        route(Patch, "/api/v1/templates/{name}", Change(Template), templates::change_config).takes::<Value>(),
        route(Patch, "/api/v1/template/rename", Change(InBody), templates::rename).takes::<RenameTemplateRequest>(),
        route(Delete, "/api/v1/templates/{name}", Change(Template), templates::delete),
        route(Post, "/api/v1/experiments/continue", Change(InBody), continuing::carry_on).takes::<ContinueRequest>(),
        route(Get, "/experiments/{id}/preview_gc", Read(Experiment), retention::preview).asks(&[
            "saveExperimentBest",
            "saveTrialBest",
            "saveTrialLatest",
        ]),
    ]
}

/// One wish for many experiments.
fn bulk_routes() -> Vec<Route> {
    vec![
        route(Post, "/api/v1/projects/{id}/experiments/activate", Change(InBody), bulk::activate)
            .takes::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/pause", Change(InBody), bulk::pause).takes::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/cancel", Change(InBody), bulk::cancel).takes::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/kill", Change(InBody), bulk::kill).takes::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/archive", Change(InBody), bulk::set_archived)
            .takes::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/unarchive", Change(InBody), bulk::set_archived)
            .takes::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/move", Change(InBody), bulk::relocate).takes::<BulkRequest>(),
    ]
}

/// Values that tasks are given and no route shows.
fn secret_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/secrets", Read(Several), secrets::list).asks(&["workspaceId"]),
        route(Put, "/api/v1/secrets/{name}", Login, secrets::set).takes::<SecretRequest>(),
        route(Delete, "/api/v1/secrets/{name}", Login, secrets::delete).asks(&["workspaceId"]),
    ]
}

fn user_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/users", Read(Common), users::list).asks(&["active", "admin", "name", "limit", "offset"]),
        route(Post, "/api/v1/users", Administrator, users::create).takes::<PostUserRequest>().names(&[
            "user/username",
            "user/displayName",
            "user/display_name",
        ]),
        route(Get, "/api/v1/users/{id}", Read(Common), users::get),
        route(Get, "/api/v1/users/{name}/by-username", Read(Common), users::get_by_name),
        route(Patch, "/api/v1/users/{id}", Change(User), users::change).takes::<PatchUserRequest>().names(&[
            "username",
            "displayName",
            "display_name",
        ]),
    ]
}

fn workspace_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/workspaces", Read(Several), workspaces::list).asks(WORKSPACES),
        route(Post, "/api/v1/workspaces", Make, workspaces::create).takes::<WorkspaceRequest>().names(&["name"]),
        route(Get, "/api/v1/workspaces/{id}", Read(Workspace), workspaces::get),
        route(Patch, "/api/v1/workspaces/{id}", Change(Workspace), workspaces::change)
            .takes::<WorkspaceRequest>()
            .names(&["name"]),
        route(Delete, "/api/v1/workspaces/{id}", Change(Workspace), deleting::workspace),
        route(Post, "/api/v1/workspaces/{id}/archive", Change(Workspace), workspaces::set_archived),
        route(Post, "/api/v1/workspaces/{id}/unarchive", Change(Workspace), workspaces::set_archived),
        route(Get, "/api/v1/workspaces/{id}/projects", Read(Workspace), workspaces::list_projects).asks(OWNED),
        route(Post, "/api/v1/workspaces/{id}/projects", Make, workspaces::create_project)
            .takes::<ProjectRequest>()
            .names(&["name", "key"]),
        route(Get, "/api/v1/projects/{id}", Read(Project), workspaces::get_project),
        route(Patch, "/api/v1/projects/{id}", Change(Project), workspaces::change_project)
            .takes::<ProjectRequest>()
            .names(&["name", "key"]),
        route(Delete, "/api/v1/projects/{id}", Change(Project), deleting::project),
        route(Post, "/api/v1/projects/{id}/archive", Change(Project), workspaces::set_project_archived),
        route(Post, "/api/v1/projects/{id}/unarchive", Change(Project), workspaces::set_project_archived),
    ]
}

fn experiment_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/experiments", Read(Several), experiments::list).asks(&[
            "archived",
            "users",
            "userIds",
            "states",
            "projectId",
            "name",
            "description",
            "labels",
            "experimentIdFilter.incl",
            "experimentIdFilter.notIn",
            "experimentIdFilter.gt",
            "experimentIdFilter.gte",
            "experimentIdFilter.lt",
            "experimentIdFilter.lte",
            "sortBy",
            "orderBy",
            "limit",
            "offset",
        ]),
        route(Post, "/api/v1/experiments", Make, experiments::create)
            .takes::<CreateExperimentRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Put, "/api/v1/experiments/by-external-id/{*external}", Change(ExternalExperiment), experiments::put)
            .takes::<CreateExperimentRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/experiments/{id}", Read(Experiment), experiments::get),
        route(Patch, "/api/v1/experiments/{id}", Change(Experiment), experiments::change)
            .takes::<PatchExperimentRequest>()
            .names(&["name", "labels"]),
        route(Delete, "/api/v1/experiments/{id}", Change(Experiment), experiments::delete),
        route(
            Delete,
            "/api/v1/experiments/{id}/tensorboard-files",
            Change(Experiment),
            experiments::delete_tensorboard_files,
        ),
        route(Post, "/api/v1/experiments/{id}/archive", Change(Experiment), experiments::set_archived),
        route(Post, "/api/v1/experiments/{id}/unarchive", Change(Experiment), experiments::set_archived),
        route(Post, "/api/v1/experiments/{id}/move", Change(Experiment), experiments::relocate)
            .takes::<MoveExperimentRequest>(),
        route(Put, "/api/v1/experiments/{id}/labels/{label}", Change(Experiment), experiments::add_label),
        route(Delete, "/api/v1/experiments/{id}/labels/{label}", Change(Experiment), experiments::remove_label),
        route(Get, "/api/v1/experiments/{id}/trials", Read(Experiment), trials::list)
            .asks(&["states", "orderBy", "limit", "offset"]),
        route(Get, "/api/v1/experiments/{id}/checkpoints", Read(Experiment), checkpoints::of_experiment)
            .asks(CHECKPOINTS),
        route(
            Get,
            "/api/v1/experiments/{id}/searcher/best_searcher_validation_metric",
            Read(Experiment),
            experiments::best_validation,
        ),
    ]
}

fn trial_routes() -> Vec<Route> {
    vec![
        route(Post, "/api/v1/trials", Change(InBody), trials::create).takes::<CreateTrialRequest>(),
        route(Put, "/api/v1/trials", Change(InBody), trials::put)
            .takes::<PutTrialRequest>()
            .names(&["externalTrialId", "external_trial_id"]),
        route(Get, "/api/v1/trials/by-external-id/{*external}", Read(Several), trials::get_by_external_id),
        route(Get, "/api/v1/trials/time-series", Read(Several), metrics::compare).asks(&[
            "trialIds",
            "metricIds",
            "metricNames",
            "metricType",
            "group",
            "startBatches",
            "endBatches",
            "maxDatapoints",
        ]),
        route(Get, "/api/v1/trials/metrics/{kind}", Read(Several), metrics::stream)
            .asks(&["group", "trialIds"])
            .answers(Kind::Lines),
        route(Get, "/api/v1/trials/{id}", Read(Trial), trials::get),
        route(Get, "/api/v1/trials/{id}/goodput", Read(Trial), trials::goodput),
        route(Patch, "/api/v1/trials/{id}", Change(Trial), trials::change).takes::<PatchTrialRequest>(),
        route(Post, "/api/v1/trials/{id}/start", Change(Trial), trials::start).takes::<StartTrialRequest>(),
        route(Post, "/api/v1/trials/{id}/metrics", Change(Trial), metrics::report).takes::<ReportMetricsRequest>(),
        route(Post, "/api/v1/trials/{id}/reports", Change(Trial), metrics::report_batch)
            .takes::<ReportBatchRequest>()
            .body_up_to(LOGS_LIMIT),
        route(Post, "/api/v1/trials/{id}/progress", Change(Trial), trials::progress).takes::<ProgressRequest>(),
        route(Post, "/api/v1/trials/{id}/runner/metadata", Change(Trial), trials::runner_metadata)
            .takes::<RunnerMetadataRequest>(),
        route(Get, "/api/v1/trials/{id}/workloads", Read(Trial), metrics::workloads).asks(&[
            "includeBatchMetrics",
            "orderBy",
            "limit",
            "offset",
        ]),
        route(Get, "/api/v1/trials/{id}/checkpoints", Read(Trial), checkpoints::of_trial).asks(CHECKPOINTS),
        route(Get, "/api/v1/trials/{id}/logs", Read(Trial), logs::of_trial).asks(LOGS).answers(Kind::Lines),
        route(Get, "/api/v1/trials/{id}/logs/fields", Read(Trial), logs::fields_of_trial).answers(Kind::Lines),
        route(Post, "/api/v1/runs/start", Change(InBody), trials::start_run).takes::<StartRunRequest>(),
        route(Get, "/api/v1/runs/{id}/metadata", Read(Trial), trials::metadata),
        route(Post, "/api/v1/runs/{id}/metadata", Change(Trial), trials::set_metadata).takes::<RunMetadata>(),
    ]
}

fn checkpoint_and_log_routes() -> Vec<Route> {
    vec![
        route(Post, "/api/v1/checkpoints", Change(InBody), checkpoints::report).takes::<ReportCheckpointRequest>(),
        route(Patch, "/api/v1/checkpoints", Change(InBody), checkpoints::shrink).takes::<PatchCheckpointsRequest>(),
        route(Delete, "/api/v1/checkpoints", Change(InBody), files::delete).takes::<DeleteCheckpointsRequest>(),
        route(Post, "/api/v1/checkpoints/rm", Change(InBody), files::remove).takes::<RemoveFilesRequest>(),
        route(Get, "/api/v1/checkpoints/{uuid}", Read(Checkpoint), checkpoints::get),
        route(Post, "/api/v1/checkpoints/{uuid}/metadata", Change(Checkpoint), checkpoints::set_metadata)
            .takes::<PostCheckpointMetadataRequest>(),
        route(Post, "/task-logs", Change(InBody), logs::append).takes::<Vec<LogRecord>>().body_up_to(LOGS_LIMIT),
        route(Post, "/api/v1/task/logs", Change(InBody), logs::append_wrapped)
            .takes::<PostTaskLogsRequest>()
            .body_up_to(LOGS_LIMIT),
        route(Get, "/api/v1/tasks/{id}/logs", Read(Task), logs::of_task).asks(LOGS).answers(Kind::Lines),
        route(Get, "/api/v1/tasks/{id}/logs/fields", Read(Task), logs::fields_of_task).answers(Kind::Lines),
    ]
}

fn model_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/models", Read(Several), models::list).asks(MODELS),
        route(Post, "/api/v1/models", Make, models::create).takes::<ModelRequest>().names(&["name", "labels"]),
        route(Get, "/api/v1/model/labels", Read(Several), models::labels).asks(&["workspaceId"]),
        route(Get, "/api/v1/models/{name}", Read(Model), models::get),
        route(Patch, "/api/v1/models/{name}", Change(Model), models::change)
            .takes::<ModelRequest>()
            .names(&["name", "labels"]),
        route(Delete, "/api/v1/models/{name}", Change(Model), models::delete),
        route(Post, "/api/v1/models/{name}/archive", Change(Model), models::set_archived),
        route(Post, "/api/v1/models/{name}/unarchive", Change(Model), models::set_archived),
        route(Post, "/api/v1/models/{name}/move", Change(Model), models::relocate).takes::<MoveModelRequest>(),
        route(Get, "/api/v1/models/{name}/versions", Read(Model), models::versions)
            .asks(&["sortBy", "orderBy", "limit", "offset"]),
        route(Post, "/api/v1/models/{name}/versions", Make, models::register)
            .takes::<ModelVersionRequest>()
            .names(&["name", "labels"]),
        route(Get, "/api/v1/models/{name}/versions/{version}", Read(ModelVersion), models::version),
        route(Patch, "/api/v1/models/{name}/versions/{version}", Change(ModelVersion), models::change_version)
            .takes::<ModelVersionRequest>()
            .names(&["name", "labels"]),
        route(Delete, "/api/v1/models/{name}/versions/{version}", Change(ModelVersion), models::delete_version),
    ]
}

/// Files to be saved, for people with a browser or curl, and for the command line.
fn download_routes() -> Vec<Route> {
    vec![
        route(Get, "/checkpoints/{uuid}", Read(Checkpoint), files::download).answers(Kind::Other("application/x-tar")),
        route(Get, "/trials/{id}/logs.txt", Read(Trial), logs::text_of_trial)
            .asks(LOGS)
            .answers(Kind::Other("text/plain; charset=utf-8")),
        route(Get, "/tasks/{id}/logs.txt", Read(Task), logs::text_of_task)
            .asks(LOGS)
            .answers(Kind::Other("text/plain; charset=utf-8")),
        route(Get, "/trials/{id}/metrics.csv", Read(Trial), export::trial_csv)
            .asks(&["group"])
            .answers(Kind::Other("text/csv")),
        route(Get, "/trials/{id}/metrics.jsonl", Read(Trial), export::trial_lines)
            .asks(&["group"])
            .answers(Kind::Other("application/jsonl")),
        route(Get, "/experiments/{id}/metrics.csv", Read(Experiment), export::experiment_csv)
            .asks(&["group"])
            .answers(Kind::Other("text/csv")),
        route(Get, "/experiments/{id}/metrics.jsonl", Read(Experiment), export::experiment_lines)
            .asks(&["group"])
            .answers(Kind::Other("application/jsonl")),
    ]
}
