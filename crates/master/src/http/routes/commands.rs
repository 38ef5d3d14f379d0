//! Commands, TensorBoards, notebooks, shells, and what they serve.

use instep_api::commands::{
    GenericTaskRequest, IdleNotebookRequest, KillGenericRequest, LaunchRequest, PriorityRequest,
};

use super::super::access::Access::{Change, Make, Open, Proxy, Read};
use super::super::access::Thing::{Command, Several};
use super::super::route::Method::{Delete, Get, Patch, Post, Put};
use super::super::route::{EXPERIMENT_LIMIT, Kind, PROXY_TIMEOUT, Route, route};
use super::super::{commands, generic_tasks, task_pages};

pub(super) fn routes() -> Vec<Route> {
    const LISTED: &[&str] = &["users", "userIds", "workspaceId", "sortBy", "orderBy", "limit", "offset"];
    const ANYTHING: Kind = Kind::Other("*/*");
    let mut routes = vec![
        route(Post, "/api/v1/commands", Make, commands::launch_command)
            .request::<LaunchRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/commands", Read(Several), commands::list_commands).query(LISTED),
        route(Get, "/api/v1/commands/{id}", Read(Command), commands::command),
        route(Post, "/api/v1/commands/{id}/kill", Change(Command), commands::kill_command),
        route(Post, "/api/v1/commands/{id}/set_priority", Change(Command), commands::set_command_priority)
            .request::<PriorityRequest>(),
        route(Post, "/api/v1/tensorboards", Make, commands::launch_tensorboard)
            .request::<LaunchRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/tensorboards", Read(Several), commands::list_tensorboards).query(LISTED),
        route(Get, "/api/v1/tensorboards/{id}", Read(Command), commands::tensorboard),
        route(Post, "/api/v1/tensorboards/{id}/kill", Change(Command), commands::kill_tensorboard),
        route(Post, "/api/v1/tensorboards/{id}/set_priority", Change(Command), commands::set_tensorboard_priority)
            .request::<PriorityRequest>(),
        route(Post, "/api/v1/notebooks", Make, commands::launch_notebook)
            .request::<LaunchRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/notebooks", Read(Several), commands::list_notebooks).query(LISTED),
        route(Get, "/api/v1/notebooks/{id}", Read(Command), commands::notebook),
        route(Post, "/api/v1/notebooks/{id}/kill", Change(Command), commands::kill_notebook),
        route(Post, "/api/v1/notebooks/{id}/set_priority", Change(Command), commands::set_notebook_priority)
            .request::<PriorityRequest>(),
        route(Put, "/api/v1/notebooks/{id}/report_idle", Change(Command), commands::report_idle)
            .request::<IdleNotebookRequest>(),
        route(Post, "/api/v1/shells", Make, commands::launch_shell)
            .request::<LaunchRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/shells", Read(Several), commands::list_shells).query(LISTED),
        // With the key that opens it: the handler asks whose it is.
        route(Get, "/api/v1/shells/{id}", Read(Command), commands::shell),
        route(Post, "/api/v1/shells/{id}/kill", Change(Command), commands::kill_shell),
        route(Post, "/api/v1/shells/{id}/set_priority", Change(Command), commands::set_shell_priority)
            .request::<PriorityRequest>(),
        route(Post, "/api/v1/generic-tasks", Make, generic_tasks::create)
            .request::<GenericTaskRequest>()
            .body_up_to(EXPERIMENT_LIMIT),
        route(Get, "/api/v1/tasks/{id}/config", Read(Command), generic_tasks::config),
        route(Post, "/api/v1/tasks/{id}/kill", Change(Command), generic_tasks::kill).request::<KillGenericRequest>(),
        route(Post, "/api/v1/tasks/{id}/pause", Change(Command), generic_tasks::pause),
        route(Post, "/api/v1/tasks/{id}/unpause", Change(Command), generic_tasks::unpause),
        route(Get, "/det/interactive/{id}/{*rest}", Open, task_pages::waiting_page)
            .query(&["ask"])
            .answers(Kind::Other("text/html; charset=utf-8")),
    ];
    for path in ["/proxy/{id}/", "/proxy/{id}/{*rest}"] {
        for method in [Get, Post, Put, Patch, Delete] {
            let row = route(method, path, Proxy, task_pages::at_master);
            routes.push(row.answers(ANYTHING).timeout(PROXY_TIMEOUT));
        }
    }
    routes
}
