//! Users, workspaces and projects.

use instep_api::wire::Timestamp;
use instep_database::import::{ImportedProject, ImportedUser, ImportedWorkspace};
use serde_json::{Value, json};

use crate::error::Result;
use crate::text::Row;

/// A user, who is `id` here.
pub fn user(row: &Row<'_>, id: i64, agent_user_group: Option<Value>, now: Timestamp) -> Result<ImportedUser> {
    Ok(ImportedUser {
        id,
        username: row.text("username")?,
        display_name: row.text_or_empty("display_name")?,
        admin: row.truth("admin")?,
        active: row.truth("active")?,
        remote: row.truth("remote")?,
        password_hash: row.optional_text("password_hash")?.filter(|hash| !hash.is_empty()),
        agent_user_group,
        modified_at: row.optional_time("modified_at")?.unwrap_or(now),
        last_auth_at: row.optional_time("last_auth_at")?,
    })
}

/// As whom tasks run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnixUser {
    /// It is not said.
    Unsaid,
    /// As the master keeps it.
    Known(Value),
    /// Root in a container, which would be root of the machine here, or what no machine can have.
    Refused,
}

/// From columns that tables of users and of workspaces have.
pub fn unix_user(row: &Row<'_>) -> Result<UnixUser> {
    let (uid, gid) = (row.optional_integer("uid")?, row.optional_integer("gid")?);
    let (user, group) = (row.optional_text("user_")?, row.optional_text("group_")?);
    if uid.is_none() && gid.is_none() && user.is_none() && group.is_none() {
        return Ok(UnixUser::Unsaid);
    }
    let numbers = [uid, gid].into_iter().flatten().all(|number| (1..=i64::from(i32::MAX)).contains(&number));
    let names = [&user, &group].into_iter().flatten().all(|name| is_unix_name(name));
    Ok(match numbers && names {
        true => UnixUser::Known(json!({"agentUid": uid, "agentGid": gid, "agentUser": user, "agentGroup": group})),
        false => UnixUser::Refused,
    })
}

/// Whether `/etc/passwd` can hold it; nobody is called root but root.
fn is_unix_name(name: &str) -> bool {
    let plain = |letter: char| !letter.is_whitespace() && !letter.is_control() && !":/\\".contains(letter);
    !name.is_empty() && name != "root" && name.chars().all(plain)
}

/// A workspace, which is `id` here.
pub fn workspace(row: &Row<'_>, id: i64, owner: i64, agent_user_group: Option<Value>) -> Result<ImportedWorkspace> {
    Ok(ImportedWorkspace {
        id,
        name: row.text("name")?,
        archived: row.truth("archived")?,
        immutable: row.truth("immutable")?,
        owner,
        created_at: row.time("created_at")?,
        checkpoint_storage: row.optional_json("checkpoint_storage_config")?.filter(Value::is_object),
        agent_user_group,
    })
}

/// A project, which is `id` here.
pub fn project(row: &Row<'_>, id: i64, workspace: i64, owner: i64, key: String) -> Result<ImportedProject> {
    let notes = row.optional_json("notes")?.filter(Value::is_array).unwrap_or_else(|| json!([]));
    Ok(ImportedProject {
        id,
        workspace,
        name: row.text("name")?,
        description: row.text_or_empty("description")?,
        key,
        archived: row.truth("archived")?,
        immutable: row.truth("immutable")?,
        owner,
        created_at: row.time("created_at")?,
        notes,
    })
}
