//! `instep group`.

use clap::{Args, Subcommand};
use instep_api::roles::{
    CreateGroupRequest, GroupDetails, GroupResponse, GroupsResponse, SearchGroupsRequest, UpdateGroupRequest,
};
use instep_client::Client;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::delete;
use super::sharing::{group, require_roles, users};
use super::{session, table};

#[derive(Debug, Args)]
pub(crate) struct GroupArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List groups
    #[command(visible_alias = "ls")]
    List,
    /// Show the members of a group
    #[command(visible_alias = "describe")]
    Show {
        /// Its name
        name: String,
    },
    /// Create a group
    Create {
        /// Its name
        name: String,
        /// Members
        #[arg(value_name = "USER")]
        users: Vec<String>,
    },
    /// Add users to a group
    Add {
        /// Its name
        name: String,
        /// User names
        #[arg(value_name = "USER", required = true)]
        users: Vec<String>,
    },
    /// Remove users from a group; `delete` deletes the group itself
    Remove {
        /// Its name
        name: String,
        /// User names
        #[arg(value_name = "USER", required = true)]
        users: Vec<String>,
    },
    /// Delete a group, with its roles
    Delete {
        /// Its name
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: GroupArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    let client = session::connect(&common)?;
    require_roles(&client)?;
    match arguments.verb {
        Verb::List => list(&client, &common),
        Verb::Show { name } => {
            let found: GroupResponse = client.get(&format!("/api/v1/groups/{}", group(&client, &name)?))?;
            show(&common, &found.group)
        }
        Verb::Create { name, users: names } => {
            let request = CreateGroupRequest { name: Some(name), add_users: Some(users(&client, &names)?) };
            let made: GroupResponse = client.post("/api/v1/groups", &request)?;
            show(&common, &made.group)
        }
        Verb::Add { name, users: names } => {
            let add_users = Some(users(&client, &names)?);
            change(&client, &common, &name, &UpdateGroupRequest { add_users, ..UpdateGroupRequest::default() })
        }
        Verb::Remove { name, users: names } => {
            let remove_users = Some(users(&client, &names)?);
            change(&client, &common, &name, &UpdateGroupRequest { remove_users, ..UpdateGroupRequest::default() })
        }
        Verb::Delete { name, yes } => {
            let id = group(&client, &name)?;
            confirm(yes, &format!("deleting group {name} and its roles"))?;
            delete(&client, &format!("/api/v1/groups/{id}"))?;
            say(&format!("deleted group {name}"));
            Ok(())
        }
    }
}

fn change(client: &Client, common: &Common, name: &str, request: &UpdateGroupRequest) -> anyhow::Result<()> {
    let changed: GroupResponse = client.put(&format!("/api/v1/groups/{}", group(client, name)?), request)?;
    show(common, &changed.group)
}

fn show(common: &Common, group: &GroupDetails) -> anyhow::Result<()> {
    if common.json {
        return table::json(group);
    }
    let users: Vec<&str> = group.users.iter().map(|user| user.username.as_str()).collect();
    table::fields(&[("Group", group.name.clone()), ("Users", users.join(", "))]);
    Ok(())
}

fn list(client: &Client, common: &Common) -> anyhow::Result<()> {
    let request = SearchGroupsRequest { limit: Some(-1), ..SearchGroupsRequest::default() };
    let found: GroupsResponse = client.post("/api/v1/groups/search", &request)?;
    if common.json {
        return table::json(&found.groups);
    }
    let mut table = table::Table::new(&["ID", "GROUP", "USERS"]);
    for found in found.groups {
        table.row(vec![found.group.group_id.to_string(), found.group.name, found.num_members.to_string()]);
    }
    table.print("no groups that you may see", "administrators create one with `instep group create NAME USER...`");
    Ok(())
}
