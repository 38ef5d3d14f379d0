//! Roles: what there is, who has which where, giving and taking them.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::error::Code;
use instep_api::identifiers::{GroupId, UserId, WorkspaceId};
use instep_api::roles::{
    AssignmentsRequest, GroupRoleAssignment, Permission as ShownPermission, Role as ShownRole, RoleAssignment,
    RoleAssignmentSummary, RoleSummariesResponse, RoleWithAssignments, RolesByIdRequest, RolesResponse,
    RolesWithAssignmentsResponse, ScopeTypeMask, SearchRolesRequest, UserRoleAssignment, WorkspaceMembersResponse,
};
use instep_database::{HeldRole, Holder};
use instep_policy::permissions::{Assignment, Grants, Kind, Permission, ROLES, Role, Scope, objection};

use super::call::Call;
use super::failure::Failure;
use super::groups;
use super::reply::{Json, Nothing};

/// What the caller has been given; refuses without roles, as Determined's open-source master does.
pub(super) fn grants(call: &Call) -> Result<&Grants, Failure> {
    call.grants.as_deref().ok_or_else(|| {
        let what = "roles are off at this master: everybody reads, and owners change what is theirs\n\
                    hint: start the master with --roles";
        Failure::new(Code::Unimplemented, what)
    })
}

fn mask(global_only: bool) -> ScopeTypeMask {
    ScopeTypeMask { cluster: true, workspace: !global_only }
}

fn shown(role: Role) -> ShownRole {
    let permission = |permission: &Permission| ShownPermission {
        id: permission.type_name().to_owned(),
        name: permission.text().to_owned(),
        scope_type_mask: mask(permission.is_global_only()),
    };
    ShownRole {
        role_id: role.number(),
        name: role.name().to_owned(),
        permissions: role.permissions().iter().map(permission).collect(),
        scope_type_mask: mask(!role.fits_a_workspace()),
    }
}

/// Where roles are held, each role once.
fn summaries(held: impl IntoIterator<Item = (Role, Option<WorkspaceId>)>) -> RoleSummariesResponse {
    let mut by_role: BTreeMap<Role, RoleAssignmentSummary> = BTreeMap::new();
    for (role, workspace) in held {
        let summary = by_role.entry(role).or_insert_with(|| RoleAssignmentSummary {
            role_id: role.number(),
            scope_workspace_ids: Vec::new(),
            scope_cluster: false,
        });
        match workspace {
            Some(workspace) => summary.scope_workspace_ids.push(workspace),
            None => summary.scope_cluster = true,
        }
    }
    let roles = by_role.keys().map(|role| shown(*role)).collect();
    RoleSummariesResponse { roles, assignments: by_role.into_values().collect() }
}

/// Roles with those who hold them, each role once.
fn with_assignments(held: &[HeldRole]) -> Vec<RoleWithAssignments> {
    let of = |role: &Role| {
        let mut found = RoleWithAssignments {
            role: shown(*role),
            group_role_assignments: Vec::new(),
            user_role_assignments: Vec::new(),
        };
        for held in held.iter().filter(|held| held.role == role.number()) {
            let role_assignment = RoleAssignment {
                role: shown(*role),
                scope_workspace_id: held.workspace,
                scope_cluster: held.workspace.is_none(),
            };
            match held.holder {
                Holder::User(user_id) => {
                    found.user_role_assignments.push(UserRoleAssignment { user_id, role_assignment });
                }
                Holder::Group(group_id) => {
                    found.group_role_assignments.push(GroupRoleAssignment { group_id, role_assignment });
                }
            }
        }
        found
    };
    ROLES.iter().map(of).collect()
}

/// All roles that are held where the caller may know it: in workspaces that they see, and everywhere for those who give
/// roles there.
async fn seen(call: &Call) -> Result<Vec<HeldRole>, Failure> {
    let everywhere = grants(call)?.has(Permission::AssignRoles, Scope::Everywhere);
    let sight = call.sight(Kind::Workspace);
    let mut held = call.application.database.held_roles().await?;
    held.retain(|held| held.workspace.map_or(everywhere, |workspace| sight.covers(workspace)));
    Ok(held)
}

/// What the caller may do.
pub(crate) async fn summary(call: Call) -> Result<Json<RoleSummariesResponse>, Failure> {
    let held = grants(&call)?.assignments().iter().map(|assignment| match assignment.scope {
        Scope::Everywhere => (assignment.role, None),
        Scope::Workspace(workspace) => (assignment.role, Some(workspace)),
    });
    Ok(Json(summaries(held)))
}

fn listed(request: &SearchRolesRequest, roles: Vec<Role>) -> Result<Json<RolesResponse>, Failure> {
    let (range, pagination) = groups::slice(request.offset, request.limit)?.of(roles.len());
    Ok(Json(RolesResponse { roles: roles[range].iter().map(|role| shown(*role)).collect(), pagination }))
}

/// All roles: what they are is no secret.
pub(crate) async fn search(call: Call) -> Result<Json<RolesResponse>, Failure> {
    let request: SearchRolesRequest = call.json()?;
    grants(&call)?;
    listed(&request, ROLES.to_vec())
}

/// The roles that can be given in a workspace; without one, everywhere.
pub(crate) async fn assignable(call: Call) -> Result<Json<RolesResponse>, Failure> {
    let request: SearchRolesRequest = call.json()?;
    grants(&call)?;
    let local = request.workspace_id.is_some_and(|id| id.0 != 0);
    let roles = ROLES.iter().copied().filter(|role| !local || role.fits_a_workspace());
    listed(&request, roles.collect())
}

/// Roles by their numbers, with those who hold them.
pub(crate) async fn by_ids(call: Call) -> Result<Json<RolesWithAssignmentsResponse>, Failure> {
    let request: RolesByIdRequest = call.json()?;
    let ids: BTreeSet<i64> = request.role_ids.unwrap_or_default().into_iter().collect();
    if let Some(unknown) = ids.iter().find(|id| Role::of_number(**id).is_none()) {
        return Err(Failure::not_found(format!("role '{unknown}' not found")));
    }
    let mut roles = with_assignments(&seen(&call).await?);
    roles.retain(|role| ids.contains(&role.role.role_id));
    Ok(Json(RolesWithAssignmentsResponse { roles }))
}

/// The roles of a user, their own and their groups'. Users ask about themselves; those who give roles about others, in
/// the workspaces that they see.
pub(crate) async fn of_user(call: Call) -> Result<Json<RolesWithAssignmentsResponse>, Failure> {
    let user: UserId = call.id("user")?;
    let oneself = call.user()?.id == user;
    if !oneself && !grants(&call)?.has_anywhere(Permission::AssignRoles) {
        return Err(Failure::forbidden("only those who give roles may look at the roles of others"));
    }
    let mut held = if oneself { call.application.database.held_roles().await? } else { seen(&call).await? };
    call.note_asked();
    grants(&call)?;
    let groups = call.application.database.groups().await?;
    let groups: BTreeSet<GroupId> = groups
        .into_iter()
        .filter(|group| group.members.iter().any(|member| member.id == user))
        .map(|group| group.id)
        .collect();
    held.retain(|held| match held.holder {
        Holder::User(holder) => holder == user,
        Holder::Group(holder) => groups.contains(&holder),
    });
    let mut roles = with_assignments(&held);
    roles.retain(|role| !role.user_role_assignments.is_empty() || !role.group_role_assignments.is_empty());
    Ok(Json(RolesWithAssignmentsResponse { roles }))
}

/// The roles of a group that the caller sees.
pub(crate) async fn of_group(call: Call) -> Result<Json<RoleSummariesResponse>, Failure> {
    let group = groups::found(&call).await?;
    let caller = call.user()?.id;
    let is_member = group.members.iter().any(|member| member.id == caller);
    // Its members have these roles; others learn of those in workspaces that they see.
    let held = if is_member { call.application.database.held_roles().await? } else { seen(&call).await? };
    let mine = held.into_iter().filter(|held| held.holder == Holder::Group(group.id));
    Ok(Json(summaries(mine.filter_map(|held| Some((Role::of_number(held.role)?, held.workspace))))))
}

/// Whether a role that is held lets its holder into a workspace: one that was given there, or everywhere.
fn lets_in(held: &HeldRole, workspace: WorkspaceId) -> bool {
    let sees =
        || Role::of_number(held.role).is_some_and(|role| role.permissions().contains(&Permission::ViewWorkspace));
    held.workspace.map_or_else(sees, |given| given == workspace)
}

/// Who has a role in a workspace, be it because they have it everywhere.
pub(crate) async fn members(call: Call) -> Result<Json<WorkspaceMembersResponse>, Failure> {
    let workspace: WorkspaceId = call.id("id")?;
    grants(&call)?;
    let database = &call.application.database;
    database.workspace(workspace).await?;
    let part = call.query.text("name").unwrap_or_default().to_lowercase();
    let wanted = |name: &str| name.to_lowercase().contains(&part);
    let mut held = database.held_roles().await?;
    held.retain(|held| lets_in(held, workspace));
    let holders: BTreeSet<Holder> = held.iter().map(|held| held.holder).collect();
    let mut users = database.users().await?;
    users.retain(|user| {
        holders.contains(&Holder::User(user.id)) && (wanted(&user.username) || wanted(&user.display_name))
    });
    let mut groups = database.groups().await?;
    groups.retain(|group| holders.contains(&Holder::Group(group.id)) && wanted(&group.name));
    held.retain(|held| match held.holder {
        Holder::User(id) => users.iter().any(|user| user.id == id),
        Holder::Group(id) => groups.iter().any(|group| group.id == id),
    });
    let mut assignments = with_assignments(&held);
    assignments.retain(|role| !role.user_role_assignments.is_empty() || !role.group_role_assignments.is_empty());
    let groups = groups.into_iter().map(groups::shown).collect();
    Ok(Json(WorkspaceMembersResponse { groups, users_assigned_directly: users, assignments }))
}

/// The roles that a request names, all of which the caller may give and take.
fn named(call: &Call) -> Result<Vec<HeldRole>, Failure> {
    let request: AssignmentsRequest = call.json()?;
    let grants = grants(call)?;
    call.note_asked();
    let users = request.user_role_assignments.unwrap_or_default().into_iter();
    let users = users.map(|user| (Holder::User(user.user_id), user.role_assignment));
    let groups = request.group_role_assignments.unwrap_or_default().into_iter();
    let groups = groups.map(|group| (Holder::Group(group.group_id), group.role_assignment));
    let mut named = Vec::new();
    for (holder, wanted) in users.chain(groups) {
        let number = wanted.role.role_id;
        let role = Role::of_number(number).ok_or_else(|| Failure::not_found(format!("role '{number}' not found")))?;
        let scope = wanted.scope_workspace_id.map_or(Scope::Everywhere, Scope::Workspace);
        if let Scope::Workspace(workspace) = scope
            && !grants.sight(Kind::Workspace).covers(workspace)
        {
            return Err(Failure::not_found(format!("workspace '{workspace}' not found")));
        }
        if !grants.has(Permission::AssignRoles, scope) {
            let who = match scope {
                Scope::Everywhere => "administrators give roles everywhere".to_owned(),
                Scope::Workspace(id) => format!("the owners of workspace {id} and administrators give roles there"),
            };
            return Err(Failure::forbidden(format!("only {who}")));
        }
        if let Some(objection) = objection(Assignment { role, scope }) {
            let hint = "hint: give it everywhere, without a workspace";
            return Err(Failure::invalid(format!("{objection}\n{hint}")));
        }
        named.push(HeldRole { role: number, holder, workspace: wanted.scope_workspace_id });
    }
    if named.is_empty() {
        return Err(Failure::invalid("the request names no role of a user or a group"));
    }
    Ok(named)
}

/// Says in the audit log whose roles change, and where.
async fn note(call: &Call, named: &[HeldRole]) -> Result<(), Failure> {
    let (users, groups) = (call.application.database.users().await?, call.application.database.groups().await?);
    for held in named {
        let role = Role::of_number(held.role).map_or("role", Role::name);
        let holder = match held.holder {
            Holder::User(id) => users.iter().find(|user| user.id == id).map(|user| format!("user {}", user.username)),
            Holder::Group(id) => {
                groups.iter().find(|group| group.id == id).map(|group| format!("group {}", group.name))
            }
        };
        let scope = held.workspace.map_or_else(|| "everywhere".to_owned(), |id| format!("in workspace {id}"));
        call.noted.subject(format!("{role} of {} {scope}", holder.as_deref().unwrap_or("nobody")));
    }
    Ok(())
}

/// Refuses to leave a workspace without an owner. Administrators, who own all of them, may.
async fn keeps_an_owner(call: &Call, taken: &[HeldRole]) -> Result<(), Failure> {
    if grants(call)?.administrates() {
        return Ok(());
    }
    let left: Vec<HeldRole> =
        call.application.database.held_roles().await?.into_iter().filter(|held| !taken.contains(held)).collect();
    let owns = |held: &HeldRole| Role::of_number(held.role) == Some(Role::WorkspaceAdmin);
    for lost in taken.iter().filter(|held| owns(held)) {
        if !left.iter().any(|held| owns(held) && held.workspace == lost.workspace) {
            return Err(Failure::new(
                Code::FailedPrecondition,
                "the workspace would have no owner any more\nhint: make somebody else its owner first, or ask an administrator",
            ));
        }
    }
    Ok(())
}

pub(crate) async fn assign(call: Call) -> Result<Json<Nothing>, Failure> {
    let named = named(&call)?;
    note(&call, &named).await?;
    call.application.database.give_roles(named).await?;
    call.application.forget_sessions();
    Ok(Json(Nothing {}))
}

pub(crate) async fn remove(call: Call) -> Result<Json<Nothing>, Failure> {
    let named = named(&call)?;
    note(&call, &named).await?;
    keeps_an_owner(&call, &named).await?;
    call.application.database.take_roles(named).await?;
    call.application.forget_sessions();
    Ok(Json(Nothing {}))
}
