//! What the audit log calls the requests of each route: a stable name, or that they are not recorded.
//!
//! Every route that changes something is here; a test says which one is missing. Refusals are recorded for all routes.

use super::super::route::Action::{self, Recorded, Report};
use super::super::route::Method::{self, Delete, Get, Patch, Post, Put};
use super::super::route::Route;

/// The paths are those of the table of routes, without `/api/v1`.
const ACTIONS: &[(Method, &str, Action)] = &[
    (Post, "/auth/login", Recorded("auth.login")),
    (Post, "/auth/logout", Recorded("auth.logout")),
    (Post, "/users", Recorded("user.create")),
    (Patch, "/users/{id}", Recorded("user.change")),
    (Get, "/agents/link", Recorded("agent.connect")),
    (Get, "/shells/{id}", Recorded("shell.key")),
    (Post, "/agents/tokens", Recorded("agent_token.create")),
    (Delete, "/agents/tokens/{name}", Recorded("agent_token.delete")),
    (Post, "/agents/{agent}/enable", Recorded("agent.enable")),
    (Post, "/agents/{agent}/disable", Recorded("agent.disable")),
    (Post, "/agents/{agent}/slots/{slot}/enable", Recorded("slot.enable")),
    (Post, "/agents/{agent}/slots/{slot}/disable", Recorded("slot.disable")),
    (Post, "/workspaces", Recorded("workspace.create")),
    (Patch, "/workspaces/{id}", Recorded("workspace.change")),
    (Delete, "/workspaces/{id}", Recorded("workspace.delete")),
    (Post, "/workspaces/{id}/archive", Recorded("workspace.archive")),
    (Post, "/workspaces/{id}/unarchive", Recorded("workspace.unarchive")),
    (Post, "/workspaces/{id}/projects", Recorded("project.create")),
    (Patch, "/projects/{id}", Recorded("project.change")),
    (Delete, "/projects/{id}", Recorded("project.delete")),
    (Post, "/projects/{id}/archive", Recorded("project.archive")),
    (Post, "/projects/{id}/unarchive", Recorded("project.unarchive")),
    (Post, "/projects/{id}/experiments/activate", Recorded("experiment.activate")),
    (Post, "/projects/{id}/experiments/pause", Recorded("experiment.pause")),
    (Post, "/projects/{id}/experiments/cancel", Recorded("experiment.cancel")),
    (Post, "/projects/{id}/experiments/kill", Recorded("experiment.kill")),
    (Post, "/projects/{id}/experiments/archive", Recorded("experiment.archive")),
    (Post, "/projects/{id}/experiments/unarchive", Recorded("experiment.unarchive")),
    (Post, "/projects/{id}/experiments/move", Recorded("experiment.move")),
    (Post, "/experiments", Recorded("experiment.create")),
    (Put, "/experiments/by-external-id/{*external}", Recorded("experiment.create")),
    (Post, "/experiments/continue", Recorded("experiment.continue")),
    (Patch, "/experiments/{id}", Recorded("experiment.change")),
    (Delete, "/experiments/{id}", Recorded("experiment.delete")),
    (Delete, "/experiments/{id}/tensorboard-files", Recorded("experiment.delete_tensorboard_files")),
    (Post, "/experiments/{id}/activate", Recorded("experiment.activate")),
    (Post, "/experiments/{id}/pause", Recorded("experiment.pause")),
    (Post, "/experiments/{id}/cancel", Recorded("experiment.cancel")),
    (Post, "/experiments/{id}/kill", Recorded("experiment.kill")),
    (Post, "/experiments/{id}/archive", Recorded("experiment.archive")),
    (Post, "/experiments/{id}/unarchive", Recorded("experiment.unarchive")),
    (Post, "/experiments/{id}/move", Recorded("experiment.move")),
    (Put, "/experiments/{id}/labels/{label}", Recorded("experiment.label")),
    (Delete, "/experiments/{id}/labels/{label}", Recorded("experiment.unlabel")),
    (Post, "/trials", Recorded("trial.create")),
    (Put, "/trials", Recorded("trial.create")),
    (Patch, "/trials/{id}", Recorded("trial.change")),
    (Post, "/trials/{id}/kill", Recorded("trial.kill")),
    (Post, "/trials/{id}/start", Recorded("trial.start")),
    (Post, "/runs/{id}/metadata", Recorded("trial.set_metadata")),
    (Patch, "/checkpoints", Recorded("checkpoint.change")),
    (Delete, "/checkpoints", Recorded("checkpoint.delete")),
    (Post, "/checkpoints/rm", Recorded("checkpoint.remove_files")),
    (Post, "/checkpoints/{uuid}/metadata", Recorded("checkpoint.change")),
    (Post, "/models", Recorded("model.create")),
    (Patch, "/models/{name}", Recorded("model.change")),
    (Delete, "/models/{name}", Recorded("model.delete")),
    (Post, "/models/{name}/archive", Recorded("model.archive")),
    (Post, "/models/{name}/unarchive", Recorded("model.unarchive")),
    (Post, "/models/{name}/move", Recorded("model.move")),
    (Post, "/models/{name}/versions", Recorded("model_version.create")),
    (Patch, "/models/{name}/versions/{version}", Recorded("model_version.change")),
    (Delete, "/models/{name}/versions/{version}", Recorded("model_version.delete")),
    (Post, "/templates/{name}", Recorded("template.create")),
    (Put, "/templates/{name}", Recorded("template.change")),
    (Patch, "/templates/{name}", Recorded("template.change")),
    (Patch, "/template/rename", Recorded("template.rename")),
    (Delete, "/templates/{name}", Recorded("template.delete")),
    (Post, "/roles/add-assignments", Recorded("role.assign")),
    (Post, "/roles/remove-assignments", Recorded("role.remove")),
    (Post, "/groups", Recorded("group.create")),
    (Put, "/groups/{group}", Recorded("group.change")),
    (Delete, "/groups/{group}", Recorded("group.delete")),
    (Patch, "/users/assignments", Recorded("group.assign_users")),
    (Put, "/secrets/{name}", Recorded("secret.set")),
    (Delete, "/secrets/{name}", Recorded("secret.delete")),
    (Post, "/job-queues", Recorded("job.change")),
    (Post, "/commands", Recorded("command.create")),
    (Post, "/commands/{id}/kill", Recorded("command.kill")),
    (Post, "/commands/{id}/set_priority", Recorded("command.set_priority")),
    (Post, "/tensorboards", Recorded("tensorboard.create")),
    (Post, "/tensorboards/{id}/kill", Recorded("tensorboard.kill")),
    (Post, "/tensorboards/{id}/set_priority", Recorded("tensorboard.set_priority")),
    (Post, "/notebooks", Recorded("notebook.create")),
    (Post, "/notebooks/{id}/kill", Recorded("notebook.kill")),
    (Post, "/notebooks/{id}/set_priority", Recorded("notebook.set_priority")),
    (Post, "/shells", Recorded("shell.create")),
    (Post, "/shells/{id}/kill", Recorded("shell.kill")),
    (Post, "/shells/{id}/set_priority", Recorded("shell.set_priority")),
    (Post, "/runs/kill", Recorded("trial.kill")),
    (Post, "/runs/pause", Recorded("trial.pause")),
    (Post, "/runs/resume", Recorded("trial.resume")),
    (Post, "/runs/archive", Recorded("trial.archive")),
    (Post, "/runs/unarchive", Recorded("trial.unarchive")),
    (Post, "/runs/delete", Recorded("trial.delete")),
    (Post, "/runs/move", Recorded("trial.move")),
    (Post, "/tokens", Recorded("token.create")),
    (Patch, "/tokens/{id}", Recorded("token.change")),
    (Post, "/users/setting", Recorded("user.set_settings")),
    (Post, "/users/setting/reset", Recorded("user.reset_settings")),
    (Patch, "/users", Recorded("user.change")),
    (Post, "/users/{id}/password", Recorded("user.change")),
    (Post, "/workspaces/{id}/pin", Recorded("workspace.pin")),
    (Post, "/workspaces/{id}/unpin", Recorded("workspace.unpin")),
    (Post, "/projects/{id}/notes", Recorded("project.note")),
    (Put, "/projects/{id}/notes", Recorded("project.note")),
    (Post, "/projects/{id}/move", Recorded("project.move")),
    (Put, "/master/cluster_message", Recorded("master.set_message")),
    (Delete, "/master/cluster_message", Recorded("master.delete_message")),
    (Put, "/trials/{id}/retain_logs", Recorded("trial.retain_logs")),
    (Put, "/experiments/{id}/retain_logs", Recorded("experiment.retain_logs")),
    (Put, "/projects/{id}/experiments/retain_logs", Recorded("experiment.retain_logs")),
    (Delete, "/projects/{id}/experiments/delete", Recorded("experiment.delete")),
    (Post, "/cleanup_logs", Recorded("master.clean_logs")),
    (Post, "/resource-pools/{pool}/workspace-bindings", Recorded("pool.bind")),
    (Put, "/resource-pools/{pool}/workspace-bindings", Recorded("pool.bind")),
    (Delete, "/resource-pools/{pool}/workspace-bindings", Recorded("pool.unbind")),
    (Put, "/config-policies/global/{workload}", Recorded("config_policies.set")),
    (Delete, "/config-policies/global/{workload}", Recorded("config_policies.delete")),
    (Put, "/config-policies/workspaces/{id}/{workload}", Recorded("config_policies.set")),
    (Delete, "/config-policies/workspaces/{id}/{workload}", Recorded("config_policies.delete")),
    (Post, "/webhooks", Recorded("webhook.create")),
    (Patch, "/webhooks/{id}", Recorded("webhook.change")),
    (Delete, "/webhooks/{id}", Recorded("webhook.delete")),
    (Post, "/webhooks/{id}/test", Recorded("webhook.test")),
    (Post, "/webhooks/custom", Report("webhook.event")),
    (Post, "/generic-tasks", Recorded("task.create")),
    (Post, "/tasks/{id}/kill", Recorded("task.kill")),
    (Post, "/tasks/{id}/pause", Recorded("task.pause")),
    (Post, "/tasks/{id}/unpause", Recorded("task.unpause")),
    (Patch, "/master/config", Recorded("master.change_config")),
    (Post, "/workspaces/{id}/set-resource-quota", Recorded("workspace.set_quota")),
    (Post, "/workspaces/{id}/namespace-bindings", Recorded("workspace.bind_namespace")),
    (Delete, "/workspaces/{id}/namespace-bindings", Recorded("workspace.unbind_namespace")),
    (Post, "/namespace-bindings/bulk-auto-create", Recorded("workspace.bind_namespace")),
    (Post, "/trials/{id}/training_metrics", Report("trial.metrics")),
    (Post, "/trials/{id}/validation_metrics", Report("trial.metrics")),
    (Post, "/trials/{id}/early_exit", Report("trial.early_exit")),
    (Post, "/trials/{id}/metrics", Report("trial.metrics")),
    (Post, "/trials/{id}/reports", Report("trial.metrics")),
    (Post, "/trials/{id}/progress", Report("trial.progress")),
    (Post, "/trials/{id}/runner/metadata", Report("trial.runner_metadata")),
    (Post, "/trial-source-info", Report("trial.source")),
    (Post, "/runs/start", Report("trial.start_run")),
    (Post, "/checkpoints", Report("checkpoint.report")),
    (Post, "/task-logs", Report("task.logs")),
    (Post, "/task/logs", Report("task.logs")),
    (Post, "/allocations/{id}/resources/{resources}/daemon", Report("allocation.report")),
    (Post, "/allocations/{id}/signals/ack_preemption", Report("allocation.report")),
    (Post, "/allocations/{id}/signals/pending_preemption", Report("allocation.report")),
    (Post, "/allocations/{id}/acceleratorData", Report("allocation.report")),
    (Post, "/allocations/{id}/proxy_address", Report("allocation.report")),
    (Post, "/allocations/{id}/notify_container_running", Report("allocation.report")),
    (Post, "/allocations/{id}/ready", Report("allocation.report")),
    (Put, "/notebooks/{id}/report_idle", Report("notebook.report")),
    (Post, "/allocations/{id}/waiting", Report("allocation.report")),
    (Post, "/allocations/{id}/all_gather", Report("allocation.report")),
    (Post, "/preview-hp-search", Action::Read),
    (Post, "/experiments-search", Action::Read),
    (Post, "/runs", Action::Read),
    (Post, "/experiments/{id}/file", Action::Read),
    (Post, "/users/activity", Action::Read),
    (Post, "/roles/search", Action::Read),
    (Post, "/roles/search/by-assignability", Action::Read),
    (Post, "/roles/search/by-ids", Action::Read),
    (Post, "/groups/search", Action::Read),
    (Post, "/proxy/{id}/", Action::Read),
    (Put, "/proxy/{id}/", Action::Read),
    (Patch, "/proxy/{id}/", Action::Read),
    (Delete, "/proxy/{id}/", Action::Read),
    (Post, "/proxy/{id}/{*rest}", Action::Read),
    (Put, "/proxy/{id}/{*rest}", Action::Read),
    (Patch, "/proxy/{id}/{*rest}", Action::Read),
    (Delete, "/proxy/{id}/{*rest}", Action::Read),
];

/// What the audit log knows of a route's requests; `None` if nobody has said it.
fn find(method: Method, path: &str) -> Option<Action> {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    ACTIONS.iter().find(|(known, name, _)| (*known, *name) == (method, path)).map(|(_, _, action)| *action)
}

/// All names that records have.
pub(crate) fn action_names() -> impl Iterator<Item = &'static str> {
    ACTIONS.iter().map(|(_, _, action)| action.name())
}

/// Gives every route of a table its action.
pub(super) fn named(mut routes: Vec<Route>) -> Vec<Route> {
    for route in &mut routes {
        route.action = find(route.method, route.path).unwrap_or(Action::Read);
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_a_name_in_the_audit_log() {
        let routes = super::super::routes();
        for route in &routes {
            let named = find(route.method, route.path).is_some();
            assert!(named || route.method == Get, "{} {}: what is it called?", route.method.name(), route.path);
        }
        for (method, path, action) in ACTIONS {
            let whole = format!("/api/v1{path}");
            let is_served = |route: &&Route| route.method == *method && [*path, whole.as_str()].contains(&route.path);
            assert!(routes.iter().any(|route| is_served(&route)), "{} {path} is not served", method.name());
            let plain = |letter: char| letter.is_ascii_lowercase() || "._".contains(letter);
            assert!(action.name().chars().all(plain), "{}", action.name());
        }
    }
}
