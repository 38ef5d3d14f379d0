//! The table of everything that is served, and who may ask for it.

use std::future::Future;
use std::pin::Pin;

use super::call::Call;
use super::failure::Failure;
use super::guard::Access::{self, Administrator, LocalOrUser, Open, User};
use super::reply::Reply;
use super::router::Method::{self, Delete, Get, Patch, Post, Put};
use super::{
    authentication, checkpoints, cluster, experiments, export, files, logs, metrics, models, pages, trials, users,
    workspaces,
};

/// Bytes of a request's body at most, unless a route says otherwise.
const BODY_LIMIT: usize = 8 << 20;
/// A thousand lines of output, which may be long ones.
const LOGS_LIMIT: usize = 64 << 20;
/// An experiment may come with its code: 96 MiB, a third more as base64.
const EXPERIMENT_LIMIT: usize = 160 << 20;

type Handler = Box<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>> + Send + Sync>;

/// One thing that can be asked.
pub(crate) struct Route {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    pub body_limit: usize,
    pub handler: Handler,
}

fn route<F, Answer>(method: Method, path: &'static str, access: Access, handler: F) -> Route
where
    F: Fn(Call) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<Reply, Failure>> + Send + 'static,
{
    Route { method, path, access, body_limit: BODY_LIMIT, handler: Box::new(move |call| Box::pin(handler(call))) }
}

impl Route {
    fn body_up_to(self, body_limit: usize) -> Route {
        Route { body_limit, ..self }
    }
}

/// Everything that is served.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![
        route(Get, "/health", Open, cluster::health),
        route(Get, "/info", Open, cluster::info),
        route(Get, "/api/v1/master", Open, cluster::master),
        route(Get, "/", Open, pages::experiments),
        route(Get, "/det/experiments/{id}", Open, pages::experiment),
        route(Get, "/assets/{name}", Open, pages::asset),
        route(Post, "/api/v1/auth/login", Open, authentication::login),
        route(Post, "/api/v1/auth/logout", User, authentication::logout),
        route(Get, "/api/v1/auth/user", User, authentication::me),
        route(Get, "/api/v1/me", User, authentication::me),
    ];
    routes.extend(user_routes());
    routes.extend(workspace_routes());
    routes.extend(experiment_routes());
    routes.extend(trial_routes());
    routes.extend(checkpoint_and_log_routes());
    routes.extend(model_routes());
    routes.extend(download_routes());
    routes
}

fn user_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/users", User, users::list),
        route(Post, "/api/v1/users", Administrator, users::create),
        route(Get, "/api/v1/users/{id}", User, users::get),
        route(Get, "/api/v1/users/{name}/by-username", User, users::get_by_name),
        route(Patch, "/api/v1/users/{id}", User, users::change),
    ]
}

fn workspace_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/workspaces", User, workspaces::list),
        route(Post, "/api/v1/workspaces", User, workspaces::create),
        route(Get, "/api/v1/workspaces/{id}", User, workspaces::get),
        route(Patch, "/api/v1/workspaces/{id}", User, workspaces::change),
        route(Delete, "/api/v1/workspaces/{id}", User, workspaces::delete),
        route(Post, "/api/v1/workspaces/{id}/archive", User, workspaces::archive),
        route(Post, "/api/v1/workspaces/{id}/unarchive", User, workspaces::unarchive),
        route(Get, "/api/v1/workspaces/{id}/projects", User, workspaces::list_projects),
        route(Post, "/api/v1/workspaces/{id}/projects", User, workspaces::create_project),
        route(Get, "/api/v1/projects/{id}", User, workspaces::get_project),
        route(Patch, "/api/v1/projects/{id}", User, workspaces::change_project),
        route(Delete, "/api/v1/projects/{id}", User, workspaces::delete_project),
        route(Post, "/api/v1/projects/{id}/archive", User, workspaces::archive_project),
        route(Post, "/api/v1/projects/{id}/unarchive", User, workspaces::unarchive_project),
    ]
}

fn experiment_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/experiments", User, experiments::list),
        route(Post, "/api/v1/experiments", User, experiments::create).body_up_to(EXPERIMENT_LIMIT),
        route(Put, "/api/v1/experiments/by-external-id/{*external}", User, experiments::put)
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/experiments/{id}", User, experiments::get),
        route(Patch, "/api/v1/experiments/{id}", User, experiments::change),
        route(Delete, "/api/v1/experiments/{id}", User, experiments::delete),
        route(Post, "/api/v1/experiments/{id}/archive", User, experiments::archive),
        route(Post, "/api/v1/experiments/{id}/unarchive", User, experiments::unarchive),
        route(Post, "/api/v1/experiments/{id}/move", User, experiments::relocate),
        route(Put, "/api/v1/experiments/{id}/labels/{label}", User, experiments::add_label),
        route(Delete, "/api/v1/experiments/{id}/labels/{label}", User, experiments::remove_label),
        route(Get, "/api/v1/experiments/{id}/trials", User, trials::list),
        route(Get, "/api/v1/experiments/{id}/checkpoints", User, checkpoints::of_experiment),
        route(
            Get,
            "/api/v1/experiments/{id}/searcher/best_searcher_validation_metric",
            User,
            experiments::best_validation,
        ),
    ]
}

fn trial_routes() -> Vec<Route> {
    vec![
        route(Post, "/api/v1/trials", User, trials::create),
        route(Put, "/api/v1/trials", User, trials::put),
        route(Get, "/api/v1/trials/by-external-id/{*external}", User, trials::get_by_external_id),
        route(Get, "/api/v1/trials/time-series", User, metrics::compare),
        route(Get, "/api/v1/trials/metrics/{kind}", User, metrics::stream),
        route(Get, "/api/v1/trials/{id}", User, trials::get),
        route(Patch, "/api/v1/trials/{id}", User, trials::change),
        route(Post, "/api/v1/trials/{id}/start", User, trials::start),
        route(Post, "/api/v1/trials/{id}/metrics", User, metrics::report),
        route(Post, "/api/v1/trials/{id}/reports", User, metrics::report_batch).body_up_to(LOGS_LIMIT),
        route(Post, "/api/v1/trials/{id}/progress", User, trials::progress),
        route(Post, "/api/v1/trials/{id}/runner/metadata", User, trials::runner_metadata),
        route(Get, "/api/v1/trials/{id}/workloads", User, metrics::workloads),
        route(Get, "/api/v1/trials/{id}/checkpoints", User, checkpoints::of_trial),
        route(Get, "/api/v1/trials/{id}/logs", User, logs::of_trial),
        route(Get, "/api/v1/trials/{id}/logs/fields", User, logs::fields_of_trial),
        route(Post, "/api/v1/runs/start", User, trials::start_run),
        route(Get, "/api/v1/runs/{id}/metadata", User, trials::metadata),
        route(Post, "/api/v1/runs/{id}/metadata", User, trials::set_metadata),
    ]
}

fn checkpoint_and_log_routes() -> Vec<Route> {
    vec![
        route(Post, "/api/v1/checkpoints", User, checkpoints::report),
        route(Patch, "/api/v1/checkpoints", User, checkpoints::shrink),
        route(Delete, "/api/v1/checkpoints", User, files::delete),
        route(Post, "/api/v1/checkpoints/rm", User, files::remove),
        route(Get, "/api/v1/checkpoints/{uuid}", User, checkpoints::get),
        route(Post, "/api/v1/checkpoints/{uuid}/metadata", User, checkpoints::set_metadata),
        route(Post, "/task-logs", LocalOrUser, logs::append).body_up_to(LOGS_LIMIT),
        route(Post, "/api/v1/task/logs", User, logs::append_wrapped).body_up_to(LOGS_LIMIT),
        route(Get, "/api/v1/tasks/{id}/logs", User, logs::of_task),
        route(Get, "/api/v1/tasks/{id}/logs/fields", User, logs::fields_of_task),
    ]
}

fn model_routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/models", User, models::list),
        route(Post, "/api/v1/models", User, models::create),
        route(Get, "/api/v1/model/labels", User, models::labels),
        route(Get, "/api/v1/models/{name}", User, models::get),
        route(Patch, "/api/v1/models/{name}", User, models::change),
        route(Delete, "/api/v1/models/{name}", User, models::delete),
        route(Post, "/api/v1/models/{name}/archive", User, models::archive),
        route(Post, "/api/v1/models/{name}/unarchive", User, models::unarchive),
        route(Post, "/api/v1/models/{name}/move", User, models::relocate),
        route(Get, "/api/v1/models/{name}/versions", User, models::versions),
        route(Post, "/api/v1/models/{name}/versions", User, models::register),
        route(Get, "/api/v1/models/{name}/versions/{version}", User, models::version),
        route(Patch, "/api/v1/models/{name}/versions/{version}", User, models::change_version),
        route(Delete, "/api/v1/models/{name}/versions/{version}", User, models::delete_version),
    ]
}

/// Files to be saved, for people with a browser or curl, and for the command line.
fn download_routes() -> Vec<Route> {
    vec![
        route(Get, "/checkpoints/{uuid}", User, files::download),
        route(Get, "/trials/{id}/logs.txt", User, logs::text_of_trial),
        route(Get, "/tasks/{id}/logs.txt", User, logs::text_of_task),
        route(Get, "/trials/{id}/metrics.csv", User, export::trial_csv),
        route(Get, "/trials/{id}/metrics.jsonl", User, export::trial_lines),
        route(Get, "/experiments/{id}/metrics.csv", User, export::experiment_csv),
        route(Get, "/experiments/{id}/metrics.jsonl", User, export::experiment_lines),
    ]
}
