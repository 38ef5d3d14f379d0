//! Commands, TensorBoards, and what they serve.

use instep_api::commands::{LaunchRequest, PriorityRequest};

use super::super::guard::Access::{Open, User};
use super::super::router::Method::{Get, Post};
use super::super::{commands, pages, proxy};
use super::{EXPERIMENT_LIMIT, Kind, Route, route};

pub(super) fn routes() -> Vec<Route> {
    const LISTED: &[&str] = &["users", "userIds", "workspaceId", "sortBy", "orderBy", "limit", "offset"];
    const ANYTHING: Kind = Kind::Other("*/*");
    vec![
        route(Post, "/api/v1/commands", User, commands::launch_command)
            .takes::<LaunchRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/commands", User, commands::list_commands).asks(LISTED),
        route(Get, "/api/v1/commands/{id}", User, commands::command),
        route(Post, "/api/v1/commands/{id}/kill", User, commands::kill_command),
        route(Post, "/api/v1/commands/{id}/set_priority", User, commands::set_command_priority)
            .takes::<PriorityRequest>(),
        route(Post, "/api/v1/tensorboards", User, commands::launch_tensorboard)
            .takes::<LaunchRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/tensorboards", User, commands::list_tensorboards).asks(LISTED),
        route(Get, "/api/v1/tensorboards/{id}", User, commands::tensorboard),
        route(Post, "/api/v1/tensorboards/{id}/kill", User, commands::kill_tensorboard),
        route(Post, "/api/v1/tensorboards/{id}/set_priority", User, commands::set_tensorboard_priority)
            .takes::<PriorityRequest>(),
        route(Get, "/proxy/{id}/", User, proxy::pass).answers(ANYTHING),
        route(Get, "/proxy/{id}/{*rest}", User, proxy::pass).answers(ANYTHING),
        route(Post, "/proxy/{id}/{*rest}", User, proxy::pass).answers(ANYTHING),
        route(Get, "/det/interactive/{id}/{*rest}", Open, pages::page).answers(Kind::Other("text/html; charset=utf-8")),
    ]
}
