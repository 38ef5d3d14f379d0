//! Users, groups, roles, workspaces and projects of another cluster.

use instep_api::wire::Timestamp;
use serde_json::Value;

use super::Batch;
use crate::error::Result;
use crate::rows::text_of;
use crate::sql::params;

/// A user.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in User")]
pub struct ImportedUser {
    pub id: i64,
    pub username: String,
    pub display_name: String,
    pub admin: bool,
    pub active: bool,
    pub remote: bool,
    pub password_hash: Option<String>,
    pub agent_user_group: Option<Value>,
    pub modified_at: Timestamp,
    pub last_auth_at: Option<Timestamp>,
}

/// A group of users.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ImportedGroup {
    pub id: i64,
    pub name: String,
    pub created_at: Timestamp,
}

/// A role that a user or a group has, in a workspace or everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ImportedRole {
    pub role: i64,
    pub user: Option<i64>,
    pub group: Option<i64>,
    pub workspace: Option<i64>,
}

/// A workspace.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Workspace")]
pub struct ImportedWorkspace {
    pub id: i64,
    pub name: String,
    pub archived: bool,
    pub immutable: bool,
    pub owner: i64,
    pub created_at: Timestamp,
    pub checkpoint_storage: Option<Value>,
    pub agent_user_group: Option<Value>,
}

/// A project.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Project")]
pub struct ImportedProject {
    pub id: i64,
    pub workspace: i64,
    pub name: String,
    pub description: String,
    pub key: String,
    pub archived: bool,
    pub immutable: bool,
    pub owner: i64,
    pub created_at: Timestamp,
    /// A list of objects with `name` and `contents`.
    pub notes: Value,
}

fn optional_text(value: Option<&Value>) -> Result<Option<String>> {
    value.map(text_of).transpose()
}

impl Batch<'_> {
    /// Adds a user, or replaces one that nobody has ever used.
    pub fn user(&self, user: &ImportedUser) -> Result<()> {
        let sql = "INSERT INTO users (id, username, display_name, admin, active, remote, password_hash, agent_user_group, \
                   modified_at, last_auth_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
                   ON CONFLICT (id) DO UPDATE SET display_name = excluded.display_name, admin = excluded.admin, \
                   active = excluded.active, remote = excluded.remote, password_hash = excluded.password_hash, \
                   agent_user_group = excluded.agent_user_group, modified_at = excluded.modified_at, \
                   last_auth_at = excluded.last_auth_at";
        self.connection.prepare_cached(sql)?.execute(params![
            user.id,
            user.username,
            user.display_name,
            user.admin,
            user.active,
            user.remote,
            user.password_hash,
            optional_text(user.agent_user_group.as_ref())?,
            user.modified_at.0,
            user.last_auth_at.map(|time| time.0)
        ])?;
        Ok(())
    }

    /// Adds a group.
    pub fn group(&self, group: &ImportedGroup) -> Result<()> {
        let sql = "INSERT INTO user_groups (id, name, created_at) VALUES (?, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![group.id, group.name, group.created_at.0])?;
        Ok(())
    }

    /// Makes a user a member of a group.
    pub fn member(&self, group: i64, user: i64) -> Result<bool> {
        let sql = "INSERT INTO group_members (group_id, user_id) VALUES (?, ?) ON CONFLICT DO NOTHING";
        Ok(self.connection.prepare_cached(sql)?.execute([group, user])? == 1)
    }

    /// Gives a role; says whether it is new.
    pub fn role(&self, role: &ImportedRole) -> Result<bool> {
        let sql = "INSERT INTO role_assignments (role, user_id, group_id, workspace_id) VALUES (?, ?, ?, ?) \
                   ON CONFLICT DO NOTHING";
        let values = params![role.role, role.user, role.group, role.workspace];
        Ok(self.connection.prepare_cached(sql)?.execute(values)? == 1)
    }

    /// Adds a workspace.
    pub fn workspace(&self, workspace: &ImportedWorkspace) -> Result<()> {
        let sql = "INSERT INTO workspaces (id, name, archived, immutable, user_id, created_at, checkpoint_storage, \
                   agent_user_group) VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![
            workspace.id,
            workspace.name,
            workspace.archived,
            workspace.immutable,
            workspace.owner,
            workspace.created_at.0,
            optional_text(workspace.checkpoint_storage.as_ref())?,
            optional_text(workspace.agent_user_group.as_ref())?
        ])?;
        Ok(())
    }

    /// Adds a project.
    pub fn project(&self, project: &ImportedProject) -> Result<()> {
        let sql = "INSERT INTO projects (id, workspace_id, name, description, key, archived, immutable, user_id, \
                   created_at, notes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.connection.prepare_cached(sql)?.execute(params![
            project.id,
            project.workspace,
            project.name,
            project.description,
            project.key,
            project.archived,
            project.immutable,
            project.owner,
            project.created_at.0,
            text_of(&project.notes)?
        ])?;
        Ok(())
    }
}
