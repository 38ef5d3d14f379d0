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
use serde_json::Value;

pub(crate) use actions::action_names;

use super::access::Access::{Administrator, Agent, Change, LocalOrUser, Login, Make, Open, Read};
use super::access::Thing::{
    Allocation, Checkpoint, Common, Experiment, ExternalExperiment, InBody, Log, Model, ModelVersion, Project, Several,
    Task, Template, Trial, User, Workspace,
};
use super::continuing::ContinueRequest;
use super::preview::PreviewRequest;
use super::reply::METRICS;
use super::route::Method::{Delete, Get, Patch, Post, Put};
use super::route::{EXPERIMENT_LIMIT, Kind, LOGIN_LIMIT, LOGS_LIMIT, RENDEZVOUS_TIMEOUT, Route, route};
use super::{
    agents, agents_link, audit, authentication, bulk, checkpoints, cluster, continuing, control, deleting, experiments,
    export, files, generic_tasks, logs, metrics, models, openapi, pages, preview, queue, retention, secrets, tasks,
    templates, trials, users, workspaces,
};

/// Beyond what the caller itself asks for.
const LONG_POLL: Duration = Duration::from_secs(tasks::LONGEST_POLL + 10);

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

/// Everything that is served.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![
        route(Get, "/health", Open, cluster::health),
        route(Get, "/metrics", LocalOrUser, cluster::metrics).answers(Kind::Other(METRICS)),
        route(Get, "/api/openapi.json", Open, openapi::document),
        route(Get, "/info", Open, cluster::info),
        route(Get, "/api/v1/master", Open, cluster::master),
        route(Get, "/", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/cluster", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/queue", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/experiments", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/det/experiments/{id}", Open, pages::experiment).answers(Kind::Other("text/html; charset=utf-8")),
        route(Get, "/assets/{name}", Open, pages::asset).answers(Kind::Other("*/*")),
        route(Post, "/api/v1/auth/login", Open, authentication::login)
            .request::<LoginRequest>()
            .query(&["cookie"])
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
            .request::<AgentTokenRequest>()
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
        route(Post, "/api/v1/trials/{id}/early_exit", Change(Trial), tasks::early_exit).request::<EarlyExitRequest>(),
        route(Get, "/api/v1/tasks/{id}/context_directory", Read(Task), tasks::context),
        route(Get, "/api/v1/allocations/{id}/resources/{resources}/rendezvous", Change(Allocation), tasks::rendezvous)
            .timeout(RENDEZVOUS_TIMEOUT),
        route(Post, "/api/v1/allocations/{id}/resources/{resources}/daemon", Change(Allocation), tasks::daemon),
        route(Get, "/api/v1/allocations/{id}/signals/preemption", Read(Allocation), tasks::preemption)
            .query(&["timeoutSeconds"])
            .timeout(LONG_POLL),
        route(Post, "/api/v1/allocations/{id}/signals/ack_preemption", Change(Allocation), tasks::acknowledge),
        route(Post, "/api/v1/allocations/{id}/signals/pending_preemption", Change(Allocation), tasks::pending),
        route(Post, "/api/v1/allocations/{id}/acceleratorData", Change(Allocation), tasks::noted),
        route(Post, "/api/v1/allocations/{id}/proxy_address", Change(Allocation), tasks::noted),
        route(Post, "/api/v1/allocations/{id}/notify_container_running", Change(Allocation), tasks::container_running),
        route(Post, "/api/v1/allocations/{id}/ready", Change(Allocation), tasks::ready),
        route(Post, "/api/v1/allocations/{id}/waiting", Change(Allocation), tasks::waiting),
        route(Post, "/api/v1/allocations/{id}/all_gather", Change(Allocation), tasks::all_gather)
            .request::<AllGatherRequest>()
            .timeout(RENDEZVOUS_TIMEOUT),
    ]
}

/// Agents, the queue, templates: what people see and change of the cluster.
fn cluster_routes() -> Vec<Route> {
    const LISTED: &[&str] = &["limit", "offset"];
    const JOBS: &[&str] = &["resourcePool", "states", "orderBy", "limit", "offset"];
    vec![
        route(Get, "/api/v1/agents", Read(Common), agents::list).query(LISTED),
        route(Get, "/api/v1/agents/{agent}", Read(Common), agents::get),
        route(Post, "/api/v1/agents/{agent}/enable", Administrator, agents::enable),
        route(Post, "/api/v1/agents/{agent}/disable", Administrator, agents::disable).request::<DisableRequest>(),
        route(Get, "/api/v1/agents/{agent}/slots", Read(Common), agents::slots),
        route(Get, "/api/v1/agents/{agent}/slots/{slot}", Read(Common), agents::slot),
        route(Post, "/api/v1/agents/{agent}/slots/{slot}/enable", Administrator, agents::enable_slot),
        route(Post, "/api/v1/agents/{agent}/slots/{slot}/disable", Administrator, agents::disable_slot)
            .request::<DisableRequest>(),
        route(Get, "/api/v1/master/config", Administrator, cluster::config),
        route(Get, "/api/v1/master/audit", Administrator, audit::list)
            .query(&["since", "user", "action", "afterId", "beforeId", "limit"]),
        route(Get, "/api/v1/master/logs", Read(Log), cluster::logs)
            .query(&["offset", "limit", "follow"])
            .answers(Kind::Lines),
        route(Get, "/api/v1/resource-pools", Read(Common), agents::pools).query(&["unbound", "limit", "offset"]),
        route(Get, "/api/v1/job-queues", Read(Several), queue::jobs).query(JOBS),
        route(Get, "/api/v1/job-queues-v2", Read(Several), queue::jobs_v2).query(JOBS),
        route(Get, "/api/v1/job-queues/stats", Read(Common), queue::stats).query(&["resourcePools"]),
        route(Post, "/api/v1/job-queues", Change(InBody), queue::update).request::<UpdateJobsRequest>(),
        route(Get, "/api/v1/tasks", Read(Several), queue::tasks),
        route(Get, "/api/v1/tasks/{id}", Read(Task), generic_tasks::task),
        route(Get, "/tasks", Read(Several), queue::plain_tasks),
        route(Post, "/api/v1/preview-hp-search", Read(Common), preview::preview).request::<PreviewRequest>(),
        route(Get, "/api/v1/templates", Read(Several), templates::list).query(&[
            "name",
            "workspaceIds",
            "limit",
            "offset",
        ]),
        route(Get, "/api/v1/templates/{name}", Read(Template), templates::get),
        route(Post, "/api/v1/templates/{name}", Change(Template), templates::create).request::<TemplateRequest>(),
        route(Put, "/api/v1/templates/{name}", Change(Template), templates::put).request::<TemplateRequest>(),
        route(Patch, "/api/v1/templates/{name}", Change(Template), templates::change_config).request::<Value>(),
        route(Patch, "/api/v1/template/rename", Change(InBody), templates::rename).request::<RenameTemplateRequest>(),
        route(Delete, "/api/v1/templates/{name}", Change(Template), templates::delete),
        route(Post, "/api/v1/experiments/continue", Change(InBody), continuing::carry_on).request::<ContinueRequest>(),
        route(Get, "/experiments/{id}/preview_gc", Read(Experiment), retention::preview).query(&[
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
            .request::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/pause", Change(InBody), bulk::pause).request::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/cancel", Change(InBody), bulk::cancel).request::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/kill", Change(InBody), bulk::kill).request::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/archive", Change(InBody), bulk::set_archived)
            .request::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/unarchive", Change(InBody), bulk::set_archived)
            .request::<BulkRequest>(),
        route(Post, "/api/v1/projects/{id}/experiments/move", Change(InBody), bulk::relocate).request::<BulkRequest>(),
    ]
}

/// Values that tasks are given and no route shows.
fn secret_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/secrets", Read(Several), secrets::list).query(&["workspaceId"]),
        route(Put, "/api/v1/secrets/{name}", Login, secrets::set).request::<SecretRequest>(),
        route(Delete, "/api/v1/secrets/{name}", Login, secrets::delete).query(&["workspaceId"]),
    ]
}

fn user_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/users", Read(Common), users::list).query(&["active", "admin", "name", "limit", "offset"]),
        route(Post, "/api/v1/users", Administrator, users::create).request::<PostUserRequest>().names(&[
            "user/username",
            "user/displayName",
            "user/display_name",
        ]),
        route(Get, "/api/v1/users/{id}", Read(Common), users::get),
        route(Get, "/api/v1/users/{name}/by-username", Read(Common), users::get_by_name),
        route(Patch, "/api/v1/users/{id}", Change(User), users::change).request::<PatchUserRequest>().names(&[
            "username",
            "displayName",
            "display_name",
        ]),
    ]
}

fn workspace_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/workspaces", Read(Several), workspaces::list).query(WORKSPACES),
        route(Post, "/api/v1/workspaces", Make, workspaces::create).request::<WorkspaceRequest>().names(&["name"]),
        route(Get, "/api/v1/workspaces/{id}", Read(Workspace), workspaces::get),
        route(Patch, "/api/v1/workspaces/{id}", Change(Workspace), workspaces::change)
            .request::<WorkspaceRequest>()
            .names(&["name"]),
        route(Delete, "/api/v1/workspaces/{id}", Change(Workspace), deleting::workspace),
        route(Post, "/api/v1/workspaces/{id}/archive", Change(Workspace), workspaces::set_archived),
        route(Post, "/api/v1/workspaces/{id}/unarchive", Change(Workspace), workspaces::set_archived),
        route(Get, "/api/v1/workspaces/{id}/projects", Read(Workspace), workspaces::list_projects).query(OWNED),
        route(Post, "/api/v1/workspaces/{id}/projects", Make, workspaces::create_project)
            .request::<ProjectRequest>()
            .names(&["name", "key"]),
        route(Get, "/api/v1/projects/{id}", Read(Project), workspaces::get_project),
        route(Patch, "/api/v1/projects/{id}", Change(Project), workspaces::change_project)
            .request::<ProjectRequest>()
            .names(&["name", "key"]),
        route(Delete, "/api/v1/projects/{id}", Change(Project), deleting::project),
        route(Post, "/api/v1/projects/{id}/archive", Change(Project), workspaces::set_project_archived),
        route(Post, "/api/v1/projects/{id}/unarchive", Change(Project), workspaces::set_project_archived),
    ]
}

fn experiment_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/experiments", Read(Several), experiments::list).query(&[
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
            .request::<CreateExperimentRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Put, "/api/v1/experiments/by-external-id/{*external}", Change(ExternalExperiment), experiments::put)
            .request::<CreateExperimentRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/experiments/{id}", Read(Experiment), experiments::get),
        route(Patch, "/api/v1/experiments/{id}", Change(Experiment), experiments::change)
            .request::<PatchExperimentRequest>()
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
            .request::<MoveExperimentRequest>(),
        route(Put, "/api/v1/experiments/{id}/labels/{label}", Change(Experiment), experiments::add_label),
        route(Delete, "/api/v1/experiments/{id}/labels/{label}", Change(Experiment), experiments::remove_label),
        route(Get, "/api/v1/experiments/{id}/trials", Read(Experiment), trials::list)
            .query(&["states", "orderBy", "limit", "offset"]),
        route(Get, "/api/v1/experiments/{id}/checkpoints", Read(Experiment), checkpoints::of_experiment)
            .query(CHECKPOINTS),
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
        route(Post, "/api/v1/trials", Change(InBody), trials::create).request::<CreateTrialRequest>(),
        route(Put, "/api/v1/trials", Change(InBody), trials::put)
            .request::<PutTrialRequest>()
            .names(&["externalTrialId", "external_trial_id"]),
        route(Get, "/api/v1/trials/by-external-id/{*external}", Read(Several), trials::get_by_external_id),
        route(Get, "/api/v1/trials/time-series", Read(Several), metrics::compare).query(&[
            "trialIds",
            "metricIds",
            "metricNames",
            "metricType",
            "group",
            "startBatches",
            "endBatches",
            "maxDatapoints",
            "allValues",
        ]),
        route(Get, "/api/v1/trials/metrics/{kind}", Read(Several), metrics::stream)
            .query(&["group", "trialIds"])
            .answers(Kind::Lines),
        route(Get, "/api/v1/trials/{id}", Read(Trial), trials::get),
        route(Get, "/api/v1/trials/{id}/goodput", Read(Trial), trials::goodput),
        route(Patch, "/api/v1/trials/{id}", Change(Trial), trials::change).request::<PatchTrialRequest>(),
        route(Post, "/api/v1/trials/{id}/start", Change(Trial), trials::start).request::<StartTrialRequest>(),
        route(Post, "/api/v1/trials/{id}/metrics", Change(Trial), metrics::report).request::<ReportMetricsRequest>(),
        route(Post, "/api/v1/trials/{id}/reports", Change(Trial), metrics::report_batch)
            .request::<ReportBatchRequest>()
            .body_up_to(LOGS_LIMIT),
        route(Post, "/api/v1/trials/{id}/progress", Change(Trial), trials::progress).request::<ProgressRequest>(),
        route(Post, "/api/v1/trials/{id}/runner/metadata", Change(Trial), trials::runner_metadata)
            .request::<RunnerMetadataRequest>(),
        route(Get, "/api/v1/trials/{id}/workloads", Read(Trial), metrics::workloads).query(&[
            "includeBatchMetrics",
            "orderBy",
            "limit",
            "offset",
        ]),
        route(Get, "/api/v1/trials/{id}/checkpoints", Read(Trial), checkpoints::of_trial).query(CHECKPOINTS),
        route(Get, "/api/v1/trials/{id}/logs", Read(Trial), logs::of_trial).query(LOGS).answers(Kind::Lines),
        route(Get, "/api/v1/trials/{id}/logs/fields", Read(Trial), logs::fields_of_trial).answers(Kind::Lines),
        route(Post, "/api/v1/runs/start", Change(InBody), trials::start_run).request::<StartRunRequest>(),
        route(Get, "/api/v1/runs/{id}/metadata", Read(Trial), trials::metadata),
        route(Post, "/api/v1/runs/{id}/metadata", Change(Trial), trials::set_metadata).request::<RunMetadata>(),
    ]
}

fn checkpoint_and_log_routes() -> Vec<Route> {
    vec![
        route(Post, "/api/v1/checkpoints", Change(InBody), checkpoints::report).request::<ReportCheckpointRequest>(),
        route(Patch, "/api/v1/checkpoints", Change(InBody), checkpoints::shrink).request::<PatchCheckpointsRequest>(),
        route(Delete, "/api/v1/checkpoints", Change(InBody), files::delete).request::<DeleteCheckpointsRequest>(),
        route(Post, "/api/v1/checkpoints/rm", Change(InBody), files::remove).request::<RemoveFilesRequest>(),
        route(Get, "/api/v1/checkpoints/{uuid}", Read(Checkpoint), checkpoints::get),
        route(Post, "/api/v1/checkpoints/{uuid}/metadata", Change(Checkpoint), checkpoints::set_metadata)
            .request::<PostCheckpointMetadataRequest>(),
        route(Post, "/task-logs", Change(InBody), logs::append).request::<Vec<LogRecord>>().body_up_to(LOGS_LIMIT),
        route(Post, "/api/v1/task/logs", Change(InBody), logs::append_wrapped)
            .request::<PostTaskLogsRequest>()
            .body_up_to(LOGS_LIMIT),
        route(Get, "/api/v1/tasks/{id}/logs", Read(Task), logs::of_task).query(LOGS).answers(Kind::Lines),
        route(Get, "/api/v1/tasks/{id}/logs/fields", Read(Task), logs::fields_of_task).answers(Kind::Lines),
    ]
}

fn model_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/models", Read(Several), models::list).query(MODELS),
        route(Post, "/api/v1/models", Make, models::create).request::<ModelRequest>().names(&["name", "labels"]),
        route(Get, "/api/v1/model/labels", Read(Several), models::labels).query(&["workspaceId"]),
        route(Get, "/api/v1/models/{name}", Read(Model), models::get),
        route(Patch, "/api/v1/models/{name}", Change(Model), models::change)
            .request::<ModelRequest>()
            .names(&["name", "labels"]),
        route(Delete, "/api/v1/models/{name}", Change(Model), models::delete),
        route(Post, "/api/v1/models/{name}/archive", Change(Model), models::set_archived),
        route(Post, "/api/v1/models/{name}/unarchive", Change(Model), models::set_archived),
        route(Post, "/api/v1/models/{name}/move", Change(Model), models::relocate).request::<MoveModelRequest>(),
        route(Get, "/api/v1/models/{name}/versions", Read(Model), models::versions)
            .query(&["sortBy", "orderBy", "limit", "offset"]),
        route(Post, "/api/v1/models/{name}/versions", Make, models::register)
            .request::<ModelVersionRequest>()
            .names(&["name", "labels"]),
        route(Get, "/api/v1/models/{name}/versions/{version}", Read(ModelVersion), models::version),
        route(Patch, "/api/v1/models/{name}/versions/{version}", Change(ModelVersion), models::change_version)
            .request::<ModelVersionRequest>()
            .names(&["name", "labels"]),
        route(Delete, "/api/v1/models/{name}/versions/{version}", Change(ModelVersion), models::delete_version),
    ]
}

/// Files to be saved, for people with a browser or curl, and for the command line.
fn download_routes() -> Vec<Route> {
    vec![
        route(Get, "/checkpoints/{uuid}", Read(Checkpoint), files::download).answers(Kind::Other("application/x-tar")),
        route(Get, "/trials/{id}/logs.txt", Read(Trial), logs::text_of_trial)
            .query(LOGS)
            .answers(Kind::Other("text/plain; charset=utf-8")),
        route(Get, "/tasks/{id}/logs.txt", Read(Task), logs::text_of_task)
            .query(LOGS)
            .answers(Kind::Other("text/plain; charset=utf-8")),
        route(Get, "/trials/{id}/metrics.csv", Read(Trial), export::trial_csv)
            .query(&["group"])
            .answers(Kind::Other("text/csv")),
        route(Get, "/trials/{id}/metrics.jsonl", Read(Trial), export::trial_lines)
            .query(&["group"])
            .answers(Kind::Other("application/jsonl")),
        route(Get, "/experiments/{id}/metrics.csv", Read(Experiment), export::experiment_csv)
            .query(&["group"])
            .answers(Kind::Other("text/csv")),
        route(Get, "/experiments/{id}/metrics.jsonl", Read(Experiment), export::experiment_lines)
            .query(&["group"])
            .answers(Kind::Other("application/jsonl")),
    ]
}
