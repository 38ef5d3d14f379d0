//! Users, groups, workspaces, projects and roles.

use std::collections::{HashMap, HashSet};

use instep_database::import::{ImportedGroup, ImportedRole};
use serde_json::Value;

use super::{Importer, decline, note_there, owner};
use crate::error::Result;
use crate::mapping::people::{self, UnixUser};
use crate::plan::Fate;
use crate::tables;

/// Determined's numbers of the roles that are here too.
const KNOWN_ROLES: [i64; 9] = [1, 2, 3, 4, 5, 6, 7, 9, 10];
/// The role of whoever made a workspace.
const WORKSPACE_ADMIN: i64 = 2;

impl Importer<'_> {
    pub(super) fn users(&mut self) -> Result<()> {
        let mut agent_users: HashMap<i64, Value> = HashMap::new();
        let mut refused: HashSet<i64> = HashSet::new();
        self.each(&tables::AGENT_USER_GROUPS, |row| {
            match people::unix_user(row)? {
                UnixUser::Unsaid => {}
                UnixUser::Known(group) => {
                    agent_users.insert(row.integer("user_id")?, group);
                }
                UnixUser::Refused => {
                    refused.insert(row.integer("user_id")?);
                }
            }
            Ok(())
        })?;
        let (plan, cluster, now) = (self.plan, self.cluster, self.now);
        self.stage(
            &tables::USERS,
            |row, notes| {
                let source = row.integer("id")?;
                let (Some(Fate::New(id)) | Some(Fate::Replaces(id))) = plan.users.of(source) else {
                    decline(&plan.users, source, &mut notes.tally);
                    return Ok(None);
                };
                let user = people::user(row, *id, agent_users.get(&source).cloned(), now)?;
                notes.passwords += u64::from(user.password_hash.is_some());
                notes.unix_users_left += u64::from(refused.contains(&source));
                Ok(Some((source, user)))
            },
            |batch, users, tally| {
                for (source, user) in users {
                    batch.user(&user)?;
                    batch.note(cluster, "user", &source.to_string(), user.id)?;
                    tally.taken_over += 1;
                }
                note_there(batch, cluster, "user", &plan.users)
            },
        )
    }

    pub(super) fn groups(&mut self) -> Result<()> {
        let (plan, cluster, now) = (self.plan, self.cluster, self.now);
        self.stage(
            &tables::GROUPS,
            |row, notes| {
                let source = row.integer("id")?;
                if plan.own_groups.contains_key(&source) {
                    // A user's own group is no group here: its roles are the user's.
                    return Ok(None);
                }
                let Some(id) = plan.groups.new_id(source) else {
                    decline(&plan.groups, source, &mut notes.tally);
                    return Ok(None);
                };
                Ok(Some((source, ImportedGroup { id, name: row.text("group_name")?, created_at: now })))
            },
            |batch, groups, tally| {
                for (source, group) in groups {
                    batch.group(&group)?;
                    batch.note(cluster, "group", &source.to_string(), group.id)?;
                    tally.taken_over += 1;
                }
                note_there(batch, cluster, "group", &plan.groups)
            },
        )?;
        self.stage(
            &tables::MEMBERS,
            |row, notes| {
                let group = row.integer("group_id")?;
                if plan.own_groups.contains_key(&group) {
                    return Ok(None);
                }
                let member = plan.groups.id(group).zip(plan.users.id(row.integer("user_id")?));
                if member.is_none() {
                    notes.tally.lose("its group or user is not here");
                }
                Ok(member)
            },
            |batch, members, tally| {
                for (group, user) in members {
                    match batch.member(group, user)? {
                        true => tally.taken_over += 1,
                        false => tally.there_already += 1,
                    }
                }
                Ok(())
            },
        )
    }

    pub(super) fn workspaces(&mut self) -> Result<()> {
        let (plan, cluster) = (self.plan, self.cluster);
        self.stage(
            &tables::WORKSPACES,
            |row, notes| {
                let source = row.integer("id")?;
                let Some(id) = plan.workspaces.new_id(source) else {
                    decline(&plan.workspaces, source, &mut notes.tally);
                    return Ok(None);
                };
                let agent_user_group = match people::unix_user(row)? {
                    UnixUser::Unsaid => None,
                    UnixUser::Known(group) => Some(group),
                    UnixUser::Refused => {
                        notes.unix_users_left += 1;
                        None
                    }
                };
                Ok(Some((source, people::workspace(row, id, owner(plan, row, "user_id")?, agent_user_group)?)))
            },
            |batch, workspaces, tally| {
                for (source, workspace) in workspaces {
                    batch.workspace(&workspace)?;
                    if !workspace.immutable {
                        let (user, place) = (Some(workspace.owner), Some(workspace.id));
                        batch.role(&ImportedRole { role: WORKSPACE_ADMIN, user, group: None, workspace: place })?;
                    }
                    batch.note(cluster, "workspace", &source.to_string(), workspace.id)?;
                    tally.taken_over += 1;
                }
                note_there(batch, cluster, "workspace", &plan.workspaces)
            },
        )
    }

    pub(super) fn projects(&mut self) -> Result<()> {
        let (plan, cluster) = (self.plan, self.cluster);
        self.stage(
            &tables::PROJECTS,
            |row, notes| {
                let source = row.integer("id")?;
                let place = row.optional_integer("workspace_id")?.and_then(|id| plan.workspaces.id(id));
                let (Some(id), Some(place)) = (plan.projects.new_id(source), place) else {
                    decline(&plan.projects, source, &mut notes.tally);
                    return Ok(None);
                };
                let key = plan.project_keys.get(&source).cloned().unwrap_or_default();
                Ok(Some((source, people::project(row, id, place, owner(plan, row, "user_id")?, key)?)))
            },
            |batch, projects, tally| {
                for (source, project) in projects {
                    batch.project(&project)?;
                    batch.note(cluster, "project", &source.to_string(), project.id)?;
                    tally.taken_over += 1;
                }
                note_there(batch, cluster, "project", &plan.projects)
            },
        )
    }

    pub(super) fn roles(&mut self) -> Result<()> {
        let mut scopes: HashMap<i64, Option<i64>> = HashMap::new();
        self.each(&tables::SCOPES, |row| {
            scopes.insert(row.integer("id")?, row.optional_integer("scope_workspace_id")?);
            Ok(())
        })?;
        let plan = self.plan;
        self.stage(
            &tables::ROLES,
            |row, notes| {
                let (group, role) = (row.optional_integer("group_id")?, row.optional_integer("role_id")?);
                let scope = row.optional_integer("scope_id")?.and_then(|id| scopes.get(&id).copied());
                let user = group.and_then(|id| plan.own_groups.get(&id)).and_then(|user| plan.users.id(*user));
                let group = group.and_then(|id| plan.groups.id(id));
                let place = match scope {
                    Some(Some(workspace)) => plan.workspaces.id(workspace).map(Some),
                    Some(None) => Some(None),
                    None => None,
                };
                if role.is_some_and(|role| !KNOWN_ROLES.contains(&role)) {
                    notes.tally.lose("there is no such role here");
                    return Ok(None);
                }
                match (role, user.is_some() || group.is_some(), place) {
                    (Some(role), true, Some(workspace)) => Ok(Some(ImportedRole { role, user, group, workspace })),
                    _ => {
                        notes.tally.lose("its group, user or workspace is not here");
                        Ok(None)
                    }
                }
            },
            |batch, roles, tally| {
                for role in roles {
                    match batch.role(&role)? {
                        true => tally.taken_over += 1,
                        false => tally.there_already += 1,
                    }
                }
                Ok(())
            },
        )
    }
}
