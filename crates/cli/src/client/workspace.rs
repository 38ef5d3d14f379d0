//! `instep workspace`.

use clap::{Args, Subcommand};
use instep_api::workspaces::{Workspace, WorkspaceResponse, WorkspacesResponse};
use instep_client::{Client, Query};
use serde_json::json;

use super::{Common, confirm, delete, project, say, session, table, tell};
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct WorkspaceArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List workspaces
    #[command(visible_alias = "ls")]
    List,
    /// Show details of a workspace
    Describe { name: String },
    /// List the projects of a workspace
    ListProjects { name: String },
    /// Create a workspace
    Create { name: String },
    /// Rename a workspace
    Edit {
        name: String,
        /// New name
        #[arg(long = "name", value_name = "NAME")]
        new_name: String,
    },
    /// Archive a workspace, which hides it from lists
    Archive { name: String },
    /// Unarchive a workspace
    Unarchive { name: String },
    /// Delete a workspace without projects
    Delete {
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: WorkspaceArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    let path = |workspace: &Workspace| format!("/api/v1/workspaces/{}", workspace.id);
    match arguments.verb {
        Verb::List => list(&client, &common),
        Verb::Describe { name } => describe(&common, &by_name(&client, &name)?),
        Verb::ListProjects { name } => project::list(&client, &common, &by_name(&client, &name)?),
        Verb::Create { name } => {
            let made: WorkspaceResponse = client.post("/api/v1/workspaces", &json!({"name": name}))?;
            describe(&common, &made.workspace)
        }
        Verb::Edit { name, new_name } => {
            let workspace = by_name(&client, &name)?;
            let changed: WorkspaceResponse = client.patch(&path(&workspace), &json!({"name": new_name}))?;
            describe(&common, &changed.workspace)
        }
        Verb::Archive { name } => tell(&client, &format!("{}/archive", path(&by_name(&client, &name)?))),
        Verb::Unarchive { name } => tell(&client, &format!("{}/unarchive", path(&by_name(&client, &name)?))),
        Verb::Delete { name, yes } => {
            let workspace = by_name(&client, &name)?;
            confirm(yes, &format!("deleting workspace {name}"))?;
            delete(&client, &path(&workspace))?;
            say(&format!("deleted workspace {name}"));
            Ok(())
        }
    }
}

/// Finds a workspace by its name.
pub(super) fn by_name(client: &Client, name: &str) -> anyhow::Result<Workspace> {
    let query = Query::new().with("nameCaseSensitive", name);
    let found: WorkspacesResponse = client.get(&format!("/api/v1/workspaces{query}"))?;
    let none = || Hinted::new(format!("workspace '{name}' not found"), "list all with `instep workspace list`");
    Ok(found.workspaces.into_iter().next().ok_or_else(none)?)
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let found: WorkspacesResponse = client.get("/api/v1/workspaces")?;
    if common.json {
        return table::json(&found.workspaces);
    }
    let mut table = table::Table::new(&["ID", "NAME", "PROJECTS", "EXPERIMENTS", "OWNER", "ARCHIVED"]);
    for workspace in found.workspaces {
        table.row(vec![
            workspace.id.to_string(),
            workspace.name,
            workspace.num_projects.to_string(),
            workspace.num_experiments.to_string(),
            workspace.username,
            if workspace.archived { "yes".to_owned() } else { String::new() },
        ]);
    }
    table.print("no workspaces", "create one with `instep workspace create NAME`");
    Ok(())
}

fn describe(common: &Common, workspace: &Workspace) -> anyhow::Result<()> {
    if common.json {
        return table::json(workspace);
    }
    table::facts(&[
        ("Workspace", workspace.id.to_string()),
        ("Name", workspace.name.clone()),
        ("Owner", workspace.username.clone()),
        ("Projects", workspace.num_projects.to_string()),
        ("Experiments", workspace.num_experiments.to_string()),
        ("Archived", if workspace.archived { "yes" } else { "no" }.to_owned()),
    ]);
    Ok(())
}
