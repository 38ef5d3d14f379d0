//! Groups of users, and the roles that users and groups have.
//!
//! What a role means is decided elsewhere: here it is a number.

use instep_api::identifiers::{GroupId, UserId, WorkspaceId};
use instep_api::users::User;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::{Error, Result};
use crate::sql::{self, Connection, OptionalExtension, Row, params};
use crate::users::user_of;

/// The role that whoever makes a workspace gets there: Determined's number of WorkspaceAdmin.
pub(crate) const WORKSPACE_ADMIN: i64 = 2;

/// Who has a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// One user.
    User(UserId),
    /// Everybody in a group.
    Group(GroupId),
}

/// A role that somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeldRole {
    /// Determined's number of it.
    pub role: i64,
    /// Whose it is.
    pub holder: Holder,
    /// Where; `None` for everywhere.
    pub workspace: Option<WorkspaceId>,
}

/// A group of users.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Group {
    pub id: GroupId,
    pub name: String,
    /// By id.
    pub members: Vec<User>,
}

/// What is to change of a group; the rest stays.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct GroupChange {
    pub name: Option<String>,
    pub add: Vec<UserId>,
    pub remove: Vec<UserId>,
}

fn held(row: &Row<'_>) -> sql::Result<HeldRole> {
    let (user, group): (Option<i64>, Option<i64>) = (row.get("user_id")?, row.get("group_id")?);
    let holder = match (user, group) {
        (Some(user), _) => Holder::User(UserId(user)),
        (None, group) => Holder::Group(GroupId(group.unwrap_or_default())),
    };
    let workspace: Option<i64> = row.get("workspace_id")?;
    Ok(HeldRole { role: row.get("role")?, holder, workspace: workspace.map(WorkspaceId) })
}

fn must_be_there(connection: &Connection, table: &'static str, what: &'static str, id: i64) -> Result<()> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE id = ?)");
    let there: bool = connection.prepare_cached(&sql)?.query_row([id], |row| row.get(0))?;
    if there { Ok(()) } else { Err(Error::not_found(what, id)) }
}

/// User, group and workspace of a role, as columns.
fn columns(held: &HeldRole) -> (Option<i64>, Option<i64>, Option<i64>) {
    let (user, group) = match held.holder {
        Holder::User(user) => (Some(user.0), None),
        Holder::Group(group) => (None, Some(group.0)),
    };
    (user, group, held.workspace.map(|workspace| workspace.0))
}

/// Gives a role; says whether it is new.
pub(crate) fn give(connection: &Connection, held: &HeldRole) -> Result<bool> {
    let (user, group, workspace) = columns(held);
    for (id, table, what) in
        [(user, "users", "user"), (group, "user_groups", "group"), (workspace, "workspaces", "workspace")]
    {
        id.map_or(Ok(()), |id| must_be_there(connection, table, what, id))?;
    }
    let sql = "INSERT INTO role_assignments (role, user_id, group_id, workspace_id) VALUES (?, ?, ?, ?) \
               ON CONFLICT DO NOTHING";
    Ok(connection.prepare_cached(sql)?.execute(params![held.role, user, group, workspace])? == 1)
}

fn take(connection: &Connection, held: &HeldRole) -> Result<bool> {
    let (user, group, workspace) = columns(held);
    let sql = "DELETE FROM role_assignments WHERE role = ? AND COALESCE(user_id, 0) = ? AND COALESCE(group_id, 0) = ? \
               AND COALESCE(workspace_id, 0) = ?";
    let [user, group, workspace] = [user, group, workspace].map(Option::unwrap_or_default);
    Ok(connection.prepare_cached(sql)?.execute(params![held.role, user, group, workspace])? == 1)
}

/// Forgets the roles of a workspace that is to be deleted.
pub(crate) fn forget_workspace(connection: &Connection, id: WorkspaceId) -> Result<()> {
    connection.execute("DELETE FROM role_assignments WHERE workspace_id = ?", [id.0])?;
    Ok(())
}

fn group_by_id(connection: &Connection, id: GroupId) -> Result<Group> {
    let sql = "SELECT name FROM user_groups WHERE id = ?";
    let name: Option<String> = connection.prepare_cached(sql)?.query_row([id.0], |row| row.get(0)).optional()?;
    let name = name.ok_or_else(|| Error::not_found("group", id))?;
    let sql = "SELECT users.* FROM users JOIN group_members ON group_members.user_id = users.id \
               WHERE group_members.group_id = ? ORDER BY users.id";
    let mut statement = connection.prepare_cached(sql)?;
    let members = statement.query_map([id.0], user_of)?.collect::<sql::Result<_>>()?;
    Ok(Group { id, name, members })
}

fn must_be_free(connection: &Connection, name: &str) -> Result<()> {
    let sql = "SELECT EXISTS (SELECT 1 FROM user_groups WHERE name = ?)";
    let taken: bool = connection.prepare_cached(sql)?.query_row([name], |row| row.get(0))?;
    if taken { Err(Error::AlreadyExists(format!("group '{name}' already exists"))) } else { Ok(()) }
}

fn add_members(connection: &Connection, group: GroupId, users: &[UserId]) -> Result<()> {
    for user in users {
        must_be_there(connection, "users", "user", user.0)?;
        let sql = "INSERT INTO group_members (group_id, user_id) VALUES (?, ?) ON CONFLICT DO NOTHING";
        connection.prepare_cached(sql)?.execute([group.0, user.0])?;
    }
    Ok(())
}

fn change(connection: &Connection, id: GroupId, change: &GroupChange) -> Result<()> {
    let current = group_by_id(connection, id)?;
    if let Some(name) = change.name.as_ref().filter(|name| **name != current.name) {
        must_be_free(connection, name)?;
        connection.execute("UPDATE user_groups SET name = ? WHERE id = ?", params![name, id.0])?;
    }
    add_members(connection, id, &change.add)?;
    for user in &change.remove {
        let sql = "DELETE FROM group_members WHERE group_id = ? AND user_id = ?";
        if connection.prepare_cached(sql)?.execute([id.0, user.0])? == 0 {
            let name: Option<String> = connection
                .query_row("SELECT username FROM users WHERE id = ?", [user.0], |row| row.get(0))
                .optional()?;
            let name = name.unwrap_or_else(|| user.to_string());
            // Clients look for "not found".
            return Err(Error::Precondition(format!("user '{name}' not found in group '{}'", current.name)));
        }
    }
    Ok(())
}

impl Database {
    /// The roles of a user, their own and their groups': which, and where.
    pub async fn roles_of(&self, user: UserId) -> Result<Vec<(i64, Option<WorkspaceId>)>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT role, workspace_id FROM role_assignments WHERE user_id = ?1 \
                           UNION SELECT role, workspace_id FROM role_assignments \
                           JOIN group_members ON group_members.group_id = role_assignments.group_id \
                           WHERE group_members.user_id = ?1";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement
                    .query_map([user.0], |row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?.map(WorkspaceId))))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// All roles that anybody has.
    pub async fn held_roles(&self) -> Result<Vec<HeldRole>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT role, user_id, group_id, workspace_id FROM role_assignments \
                           ORDER BY role, workspace_id NULLS FIRST, group_id NULLS FIRST, user_id NULLS FIRST";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], held)?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Gives roles: all of them or, if one is there already or names what is not there, none.
    pub async fn give_roles(&self, roles: Vec<HeldRole>) -> Result<()> {
        self.executor
            .write(move |connection| {
                for role in &roles {
                    if !give(connection, role)? {
                        // Clients look for the first words.
                        return Err(Error::AlreadyExists("row already exists: they have this role there".to_owned()));
                    }
                }
                Ok(())
            })
            .await
    }

    /// Takes roles away: all of them or, if one is not there, none.
    pub async fn take_roles(&self, roles: Vec<HeldRole>) -> Result<()> {
        self.executor
            .write(move |connection| {
                for role in &roles {
                    if !take(connection, role)? {
                        return Err(Error::not_found("role assignment", role.role));
                    }
                }
                Ok(())
            })
            .await
    }

    /// The names of active users who are no administrators and have no role at all.
    pub async fn users_without_role(&self) -> Result<Vec<String>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT username FROM users WHERE active AND NOT admin \
                           AND NOT EXISTS (SELECT 1 FROM role_assignments WHERE role_assignments.user_id = users.id) \
                           AND NOT EXISTS (SELECT 1 FROM group_members JOIN role_assignments \
                           ON role_assignments.group_id = group_members.group_id \
                           WHERE group_members.user_id = users.id) ORDER BY id";
                let mut statement = connection.prepare(sql)?;
                let names = statement.query_map([], |row| row.get(0))?;
                Ok(names.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// All groups, by name.
    pub async fn groups(&self) -> Result<Vec<Group>> {
        self.executor
            .read(|connection| {
                let mut statement = connection.prepare_cached("SELECT id FROM user_groups ORDER BY name")?;
                let ids = statement.query_map([], |row| row.get(0))?.collect::<sql::Result<Vec<i64>>>()?;
                ids.into_iter().map(|id| group_by_id(connection, GroupId(id))).collect()
            })
            .await
    }

    /// One group.
    pub async fn group(&self, id: GroupId) -> Result<Group> {
        self.executor.read(move |connection| group_by_id(connection, id)).await
    }

    /// Makes a group.
    pub async fn create_group(&self, name: String, members: Vec<UserId>, now: Timestamp) -> Result<Group> {
        self.executor
            .write(move |connection| {
                must_be_free(connection, &name)?;
                let id = connection.query_row(
                    "INSERT INTO user_groups (name, created_at) VALUES (?, ?) RETURNING id",
                    params![name, now.0],
                    |row| row.get(0).map(GroupId),
                )?;
                add_members(connection, id, &members)?;
                group_by_id(connection, id)
            })
            .await
    }

    /// Changes groups: all of them, or none.
    pub async fn change_groups(&self, changes: Vec<(GroupId, GroupChange)>) -> Result<Vec<Group>> {
        self.executor
            .write(move |connection| {
                for (id, wanted) in &changes {
                    change(connection, *id, wanted)?;
                }
                changes.iter().map(|(id, _)| group_by_id(connection, *id)).collect()
            })
            .await
    }

    /// Deletes a group, with its roles.
    pub async fn delete_group(&self, id: GroupId) -> Result<()> {
        self.executor
            .write(move |connection| {
                group_by_id(connection, id)?;
                for sql in [
                    "DELETE FROM role_assignments WHERE group_id = ?",
                    "DELETE FROM group_members WHERE group_id = ?",
                    "DELETE FROM user_groups WHERE id = ?",
                ] {
                    connection.execute(sql, [id.0])?;
                }
                Ok(())
            })
            .await
    }
}
