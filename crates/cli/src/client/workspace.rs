//! `instep workspace`.

use clap::{Args, Subcommand};
use instep_api::pools::AvailablePoolsResponse;
use instep_api::workspaces::{DeletionResponse, Workspace, WorkspaceResponse, WorkspacesResponse};
use instep_client::Client;
use serde_json::json;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::post_empty;
use super::sharing::{self, GivenRole, Target};
use super::{lookup, project, session, table};

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
    /// Show a workspace in detail
    Describe {
        /// Its name
        name: String,
    },
    /// List the projects of a workspace
    ListProjects {
        /// Its name
        name: String,
    },
    /// List the pools that work of a workspace may use
    ListPools {
        /// Its name
        name: String,
    },
    /// Create a workspace
    Create {
        /// Its name
        name: String,
    },
    /// Rename a workspace
    Edit {
        /// Its name
        name: String,
        /// New name
        #[arg(long = "name", value_name = "NAME")]
        new_name: String,
    },
    /// Archive a workspace, which hides it from lists
    Archive {
        /// Its name
        name: String,
    },
    /// Unarchive a workspace
    Unarchive {
        /// Its name
        name: String,
    },
    /// List who has which role in a workspace; needs a master with --roles
    Members {
        /// Its name
        name: String,
    },
    /// Give a user or a group a role in a workspace, in place of the one that they had
    #[command(override_usage = "instep workspace share [OPTIONS] --role <ROLE> <WORKSPACE> <USER|@GROUP>\n       \
        instep workspace share [OPTIONS] --role <ROLE> <WORKSPACE> --everyone\n       \
        instep workspace share [OPTIONS] --role <ROLE> --everywhere <USER|@GROUP>\n       \
        instep workspace share [OPTIONS] --role <ROLE> --everywhere --everyone")]
    Share {
        #[command(flatten)]
        target: Target,
        /// Role to give
        #[arg(long, value_enum)]
        role: GivenRole,
    },
    /// Take the roles of a user or a group in a workspace away
    #[command(override_usage = "instep workspace unshare [OPTIONS] <WORKSPACE> <USER|@GROUP>\n       \
        instep workspace unshare [OPTIONS] <WORKSPACE> --everyone\n       \
        instep workspace unshare [OPTIONS] --everywhere <USER|@GROUP>\n       \
        instep workspace unshare [OPTIONS] --everywhere --everyone")]
    Unshare {
        #[command(flatten)]
        target: Target,
    },
    /// Delete a workspace with its projects, experiments and tasks; kills tasks, experiments must have ended
    Delete {
        /// Its name
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
        Verb::Describe { name } => describe(&common, &lookup::workspace(&client, &name)?),
        Verb::ListProjects { name } => project::list(&client, &common, &lookup::workspace(&client, &name)?),
        Verb::ListPools { name } => list_pools(&client, &common, &lookup::workspace(&client, &name)?),
        Verb::Create { name } => {
            let made: WorkspaceResponse = client.post("/api/v1/workspaces", &json!({"name": name}))?;
            describe(&common, &made.workspace)
        }
        Verb::Edit { name, new_name } => {
            let workspace = lookup::workspace(&client, &name)?;
            let changed: WorkspaceResponse = client.patch(&path(&workspace), &json!({"name": new_name}))?;
            describe(&common, &changed.workspace)
        }
        Verb::Archive { name } => {
            post_empty(&client, &format!("{}/archive", path(&lookup::workspace(&client, &name)?)))
        }
        Verb::Unarchive { name } => {
            post_empty(&client, &format!("{}/unarchive", path(&lookup::workspace(&client, &name)?)))
        }
        Verb::Members { name } => sharing::members(&client, &common, &name),
        Verb::Share { target, role } => sharing::share(&client, &target, role),
        Verb::Unshare { target } => sharing::unshare(&client, &target),
        Verb::Delete { name, yes } => {
            let workspace = lookup::workspace(&client, &name)?;
            confirm(yes, &format!("deleting workspace {name}"))?;
            let deleted: DeletionResponse = client.delete(&path(&workspace))?;
            match deleted.completed {
                true => say(&format!("deleted workspace {name}")),
                false => say(&format!("workspace {name} is being deleted: what is in it takes a while")),
            }
            Ok(())
        }
    }
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
    table.print(
        "no workspaces that you may see",
        "create one with `instep workspace create NAME`, or let the owner of one share it with you",
    );
    Ok(())
}

fn list_pools(client: &Client, common: &Common, workspace: &Workspace) -> anyhow::Result<()> {
    let path = format!("/api/v1/workspaces/{}/available-resource-pools", workspace.id);
    let found: AvailablePoolsResponse = client.get(&path)?;
    if common.json {
        return table::json(&found.resource_pools);
    }
    let mut table = table::Table::new(&["POOL"]);
    for pool in found.resource_pools {
        table.row(vec![pool]);
    }
    table.print("no pools for this workspace", "administrators bind some with `instep resource-pool bindings add`");
    Ok(())
}

fn describe(common: &Common, workspace: &Workspace) -> anyhow::Result<()> {
    if common.json {
        return table::json(workspace);
    }
    table::fields(&[
        ("Workspace", workspace.id.to_string()),
        ("Name", workspace.name.clone()),
        ("Owner", workspace.username.clone()),
        ("Projects", workspace.num_projects.to_string()),
        ("Experiments", workspace.num_experiments.to_string()),
        ("Archived", if workspace.archived { "yes" } else { "no" }.to_owned()),
    ]);
    Ok(())
}
