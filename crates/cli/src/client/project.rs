//! `instep project`.

use clap::{Args, Subcommand};
use instep_api::experiments::ExperimentsResponse;
use instep_api::workspaces::{Project, ProjectResponse, ProjectsResponse, Workspace};
use instep_client::{Client, Query};
use serde_json::json;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::{delete, post_empty};
use super::{experiment, lookup, session, shown, table};

#[derive(Debug, Args)]
pub(crate) struct ProjectArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

/// A project is named with its workspace.
#[derive(Debug, Args)]
struct Named {
    /// Name of the workspace
    workspace: String,
    /// Name of the project
    project: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the projects of a workspace
    #[command(visible_alias = "ls")]
    List {
        /// Name of the workspace
        workspace: String,
    },
    /// Show a project in detail
    Describe(Named),
    /// List the experiments of a project
    ListExperiments(Named),
    /// Create a project
    Create {
        #[command(flatten)]
        named: Named,
        /// Description
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
    },
    /// Change a project's name or description
    Edit {
        #[command(flatten)]
        named: Named,
        /// New name
        #[arg(long = "new-name", visible_alias = "name", value_name = "NAME")]
        new_name: Option<String>,
        /// New description
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// Archive a project, which hides it from lists
    Archive(Named),
    /// Unarchive a project
    Unarchive(Named),
    /// Delete a project with its experiments, which must have ended
    Delete {
        #[command(flatten)]
        named: Named,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: ProjectArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    let path = |named: &Named| -> anyhow::Result<String> {
        Ok(format!("/api/v1/projects/{}", lookup::project(&client, &named.workspace, &named.project)?.id))
    };
    match arguments.verb {
        Verb::List { workspace } => list(&client, &common, &lookup::workspace(&client, &workspace)?),
        Verb::Describe(named) => describe(&common, &lookup::project(&client, &named.workspace, &named.project)?),
        Verb::ListExperiments(named) => {
            let project = lookup::project(&client, &named.workspace, &named.project)?;
            let query = Query::new().with("projectId", project.id).with("limit", -1).with("orderBy", "ORDER_BY_DESC");
            let found: ExperimentsResponse = client.get(&format!("/api/v1/experiments{query}"))?;
            if common.json {
                return table::json(&found.experiments);
            }
            experiment::print_list(&found.experiments, "add one: `instep experiment move ID WORKSPACE PROJECT`");
            Ok(())
        }
        Verb::Create { named, description } => {
            let workspace = lookup::workspace(&client, &named.workspace)?;
            let request = json!({"name": named.project, "description": description});
            let made: ProjectResponse =
                client.post(&format!("/api/v1/workspaces/{}/projects", workspace.id), &request)?;
            describe(&common, &made.project)
        }
        Verb::Edit { named, new_name, description } => {
            let change = json!({"name": new_name, "description": description});
            let changed: ProjectResponse = client.patch(&path(&named)?, &change)?;
            describe(&common, &changed.project)
        }
        Verb::Archive(named) => post_empty(&client, &format!("{}/archive", path(&named)?)),
        Verb::Unarchive(named) => post_empty(&client, &format!("{}/unarchive", path(&named)?)),
        Verb::Delete { named, yes } => {
            let path = path(&named)?;
            confirm(yes, &format!("deleting project {}/{}", named.workspace, named.project))?;
            delete(&client, &path)?;
            say(&format!("deleted project {}/{}", named.workspace, named.project));
            Ok(())
        }
    }
}

/// Prints the projects of a workspace.
pub(super) fn list(client: &Client, common: &Common, workspace: &Workspace) -> anyhow::Result<()> {
    let found: ProjectsResponse = client.get(&format!("/api/v1/workspaces/{}/projects", workspace.id))?;
    if common.json {
        return table::json(&found.projects);
    }
    let mut table = table::Table::new(&["ID", "NAME", "DESCRIPTION", "EXPERIMENTS", "OWNER", "ARCHIVED"]);
    for project in found.projects {
        table.row(vec![
            project.id.to_string(),
            project.name,
            project.description,
            project.num_experiments.to_string(),
            project.username,
            if project.archived { "yes".to_owned() } else { String::new() },
        ]);
    }
    table.print("no projects yet", &format!("create one with `instep project create {} NAME`", workspace.name));
    Ok(())
}

fn describe(common: &Common, project: &Project) -> anyhow::Result<()> {
    if common.json {
        return table::json(project);
    }
    table::fields(&[
        ("Project", project.id.to_string()),
        ("Name", project.name.clone()),
        ("Workspace", project.workspace_name.clone()),
        ("Description", project.description.clone()),
        ("Owner", project.username.clone()),
        ("Experiments", project.num_experiments.to_string()),
        ("Running", project.num_active_experiments.to_string()),
        ("Last started", shown::optional_time(project.last_experiment_started_at)),
        ("Archived", if project.archived { "yes" } else { "no" }.to_owned()),
    ]);
    Ok(())
}
