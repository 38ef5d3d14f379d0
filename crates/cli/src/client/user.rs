//! `instep user`.

use clap::{Args, Subcommand};
use instep_api::passwords::salted;
use instep_api::users::{NewUser, PatchUserRequest, PostUserRequest, User, UserResponse, UsersResponse};
use instep_client::Client;
use serde_json::json;

use super::dialog::say;
use super::options::Common;
use super::{account, lookup, password, session, shown, table};

#[derive(Debug, Args)]
pub(crate) struct UserArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List users
    #[command(visible_alias = "ls")]
    List {
        /// Include users that may not log in
        #[arg(short, long)]
        all: bool,
    },
    /// Create a user; asks for the password
    Create {
        /// User name
        name: String,
        /// Make the user an administrator
        #[arg(long)]
        admin: bool,
        /// Display name
        #[arg(long, value_name = "NAME", default_value = "")]
        display_name: String,
    },
    /// Change a password [default: your own]
    ChangePassword {
        /// User name
        name: Option<String>,
    },
    /// Rename a user
    Rename {
        /// User name
        name: String,
        /// The new user name
        new_name: String,
    },
    /// Change the display name or administrator rights
    Edit {
        /// User name
        name: String,
        /// Display name
        #[arg(long, value_name = "NAME")]
        display_name: Option<String>,
        /// Whether the user is an administrator
        #[arg(long, value_name = "BOOL")]
        admin: Option<bool>,
    },
    /// Allow a user to log in again
    Activate {
        /// User name
        name: String,
    },
    /// Prevent a user from logging in
    Deactivate {
        /// User name
        name: String,
    },
    /// Say as which Unix user and group a user's tasks run; for administrators
    LinkWithAgentUser {
        /// User name
        name: String,
        /// Unix user
        #[arg(long, value_name = "NAME")]
        agent_user: String,
        /// Its number
        #[arg(long, value_name = "UID")]
        agent_uid: u32,
        /// Unix group
        #[arg(long, value_name = "NAME")]
        agent_group: String,
        /// Its number
        #[arg(long, value_name = "GID")]
        agent_gid: u32,
    },
    /// Same as `instep login`
    Login {
        /// User name
        #[arg(default_value = "determined")]
        name: String,
    },
    /// Same as `instep logout`
    Logout,
    /// Same as `instep whoami`
    Whoami,
}

pub(crate) fn run(arguments: UserArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    match &arguments.verb {
        Verb::Login { name } => return account::login(&common, name),
        Verb::Logout => return account::logout(&common),
        _ => {}
    }
    let client = session::connect(&common)?;
    match arguments.verb {
        Verb::Login { .. } | Verb::Logout => Ok(()),
        Verb::Whoami => account::whoami(&common),
        Verb::List { all } => list(&client, &common, all),
        Verb::Create { name, admin, display_name } => {
            let password = salted(&password::ask_new(&name)?);
            let user = NewUser {
                username: Some(name),
                admin: Some(admin),
                active: Some(true),
                display_name: Some(display_name),
                ..NewUser::default()
            };
            let request = PostUserRequest { user: Some(user), password: Some(password), is_hashed: Some(true) };
            let made: UserResponse = client.post("/api/v1/users", &request)?;
            say(&format!("created user {}", made.user.username));
            Ok(())
        }
        Verb::ChangePassword { name } => {
            let user = match name {
                Some(name) => lookup::user(&client, &name)?,
                None => client.user()?,
            };
            let password = salted(&password::ask_new(&user.username)?);
            let change =
                PatchUserRequest { password: Some(password), is_hashed: Some(true), ..PatchUserRequest::default() };
            change_user(&client, &user, &change)?;
            say(&format!("changed the password of {}; its sessions have ended", user.username));
            Ok(())
        }
        Verb::Rename { name, new_name } => {
            let change = PatchUserRequest { username: Some(new_name), ..PatchUserRequest::default() };
            change_user(&client, &lookup::user(&client, &name)?, &change)
        }
        Verb::Edit { name, display_name, admin } => {
            let change = PatchUserRequest { display_name, admin, ..PatchUserRequest::default() };
            change_user(&client, &lookup::user(&client, &name)?, &change)
        }
        Verb::LinkWithAgentUser { name, agent_user, agent_uid, agent_group, agent_gid } => {
            let agent_user_group = json!({
                "agentUser": agent_user, "agentUid": agent_uid, "agentGroup": agent_group, "agentGid": agent_gid
            });
            let change = PatchUserRequest { agent_user_group: Some(agent_user_group), ..PatchUserRequest::default() };
            change_user(&client, &lookup::user(&client, &name)?, &change)?;
            say(&format!("tasks of {name} run as {agent_user} ({agent_uid}), group {agent_group} ({agent_gid})"));
            Ok(())
        }
        Verb::Activate { name } => set_active(&client, &name, true),
        Verb::Deactivate { name } => set_active(&client, &name, false),
    }
}

fn set_active(client: &Client, name: &str, active: bool) -> anyhow::Result<()> {
    let change = PatchUserRequest { active: Some(active), ..PatchUserRequest::default() };
    change_user(client, &lookup::user(client, name)?, &change)
}

fn change_user(client: &Client, user: &User, change: &PatchUserRequest) -> anyhow::Result<()> {
    let _: UserResponse = client.patch(&format!("/api/v1/users/{}", user.id), change)?;
    Ok(())
}

fn list(client: &Client, common: &Common, all: bool) -> anyhow::Result<()> {
    let found: UsersResponse = client.get(if all { "/api/v1/users" } else { "/api/v1/users?active=true" })?;
    if common.json {
        return table::json(&found.users);
    }
    let mut table = table::Table::new(&["ID", "NAME", "DISPLAY NAME", "ROLE", "ACTIVE", "LAST LOGIN"]);
    for user in found.users {
        table.row(vec![
            user.id.to_string(),
            user.username,
            user.display_name,
            if user.admin { "administrator" } else { "user" }.to_owned(),
            if user.active { "yes" } else { "no" }.to_owned(),
            shown::optional_time(user.last_auth_at),
        ]);
    }
    table.print("no users", "");
    Ok(())
}
