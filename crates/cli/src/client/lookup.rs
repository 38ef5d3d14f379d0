//! Finds what is meant: by number or name, or the user's newest where nothing is named; people are told which that is.

use instep_api::agents::{Agent, AgentsResponse};
use instep_api::experiments::{Experiment, ExperimentsResponse, GetExperimentResponse};
use instep_api::identifiers::{ExperimentId, TrialId, WorkspaceId};
use instep_api::users::{User, UserResponse};
use instep_api::workspaces::{Project, ProjectsResponse, Workspace, WorkspacesResponse};
use instep_client::{Client, Query};

use super::dialog::say;
use super::requests::api;
use crate::report::Hinted;

/// Experiments that are looked through for one with a trial.
const LOOKED_AT: i64 = 20;

/// The experiment with this number, else the newest.
pub(super) fn experiment_or_newest(client: &Client, named: Option<ExperimentId>) -> anyhow::Result<ExperimentId> {
    if let Some(id) = named {
        return Ok(id);
    }
    let found = experiments(client)?.into_iter().next().ok_or_else(|| none("experiment"))?;
    say(&format!("experiment {} ({}), your newest", found.id, found.name));
    Ok(found.id)
}

/// The trial with this number, else the newest one of the newest experiment that has any.
pub(super) fn trial_or_newest(client: &Client, named: Option<TrialId>) -> anyhow::Result<TrialId> {
    if let Some(id) = named {
        return Ok(id);
    }
    let found = experiments(client)?.into_iter().find(|found| found.num_trials > 0).ok_or_else(|| none("trial"))?;
    let trial = get_experiment(client, found.id)?.trial_ids.into_iter().max().ok_or_else(|| none("trial"))?;
    say(&format!("trial {trial} of experiment {} ({}), your newest", found.id, found.name));
    Ok(trial)
}

/// The user's own, the newest first.
fn experiments(client: &Client) -> anyhow::Result<Vec<Experiment>> {
    let query = Query::new()
        .with("limit", LOOKED_AT)
        .with("orderBy", "ORDER_BY_DESC")
        .with("archived", false)
        .with("users", client.user()?.username);
    let found: ExperimentsResponse = client.get(&format!("/api/v1/experiments{query}"))?;
    Ok(found.experiments)
}

fn none(what: &str) -> Hinted {
    Hinted::new(format!("you have no {what}s yet"), "list other users' experiments with `instep experiment list -a`")
}

/// The experiment with this number.
pub(super) fn get_experiment(client: &Client, id: ExperimentId) -> anyhow::Result<Experiment> {
    Ok(client.get::<GetExperimentResponse>(&format!("/api/v1/experiments/{id}"))?.experiment)
}

/// What to do when something is not there, after the words with which the master's sentence about it begins; the longest
/// first.
const LISTED: [(&str, &str); 14] = [
    ("agent token", "list all with `instep agent token list`"),
    ("agent", "list all with `instep agent list`"),
    ("checkpoint", "list checkpoints with `instep checkpoint list EXPERIMENT`"),
    ("command", "list all with `instep command list -a`"),
    ("experiment", "list all with `instep experiment list -a`"),
    ("group", "list all with `instep group list`"),
    ("model", "list all with `instep model list`"),
    ("notebook", "list all with `instep notebook list -a`"),
    ("resource pool", "list all with `instep resource-pool list`"),
    ("shell", "list all with `instep shell list -a`"),
    ("template", "list all with `instep template list`"),
    ("trial", "list trials with `instep trial list EXPERIMENT`"),
    ("user", "list all with `instep user list -a`"),
    ("workspace", "list all with `instep workspace list`"),
];

/// Points to the list of what is not there under this number or name.
pub(super) fn hint_for_missing(sentence: &str) -> Option<&'static str> {
    let is_about =
        |noun: &str| sentence.strip_prefix(noun).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    LISTED.iter().find(|(noun, _)| is_about(noun)).map(|(_, hint)| *hint)
}

/// The trial whose metrics and logs are meant when an experiment is named: its first, as `det` has it.
pub(super) fn first_trial(client: &Client, id: ExperimentId) -> anyhow::Result<TrialId> {
    let first = get_experiment(client, id)?.trial_ids.first().copied();
    let none = || Hinted::new(format!("experiment {id} has no trials yet"), "its script creates them when it runs");
    Ok(first.ok_or_else(none)?)
}

/// Finds a workspace by its name.
pub(super) fn workspace(client: &Client, name: &str) -> anyhow::Result<Workspace> {
    let query = Query::new().with("nameCaseSensitive", name);
    let found: WorkspacesResponse = client.get(&format!("/api/v1/workspaces{query}"))?;
    let none = || Hinted::new(format!("workspace '{name}' not found"), "list all with `instep workspace list`");
    Ok(found.workspaces.into_iter().next().ok_or_else(none)?)
}

/// The workspace that an option names, if it was given.
pub(super) fn named_workspace(client: &Client, name: Option<&str>) -> anyhow::Result<Option<WorkspaceId>> {
    Ok(name.map(|name| workspace(client, name)).transpose()?.map(|found| found.id))
}

/// Finds a user by their name.
pub(super) fn user(client: &Client, name: &str) -> anyhow::Result<User> {
    Ok(client.get::<UserResponse>(&api(&["users", name, "by-username"]))?.user)
}

/// Finds a project by the names of its workspace and itself.
pub(super) fn project(client: &Client, workspace: &str, project: &str) -> anyhow::Result<Project> {
    let id = self::workspace(client, workspace)?.id;
    let found: ProjectsResponse = client.get(&format!("/api/v1/workspaces/{id}/projects"))?;
    let none = || {
        let hint = format!(
            "list its projects with `instep project list {workspace}`, create one with `instep project create {workspace} {project}`"
        );
        Hinted::new(format!("project '{project}' not found in workspace '{workspace}'"), hint)
    };
    Ok(found.projects.into_iter().find(|found| found.name == project).ok_or_else(none)?)
}

/// All agents of the master.
pub(super) fn agents(client: &Client) -> anyhow::Result<Vec<Agent>> {
    Ok(client.get::<AgentsResponse>("/api/v1/agents")?.agents)
}

#[cfg(test)]
mod tests {
    use super::hint_for_missing;

    #[test]
    fn what_is_missing_is_looked_for_in_its_own_list() {
        for (sentence, command) in [
            ("agent token 'nope' not found", Some("`instep agent token list`")),
            ("agent 'nope' not found", Some("`instep agent list`")),
            ("resource pool 'b' not found", Some("`instep resource-pool list`")),
            ("experiment 7 not found", Some("`instep experiment list -a`")),
            ("agentless things not found", None),
        ] {
            assert_eq!(
                hint_for_missing(sentence),
                command.map(|command| format!("list all with {command}")).as_deref()
            );
        }
    }
}
