//! Roles, permissions and groups of users.

use serde::{Deserialize, Serialize};

use crate::identifiers::{GroupId, UserId, WorkspaceId};
use crate::pages::Pagination;
use crate::users::User;

/// Where a role or permission can be given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ScopeTypeMask {
    pub cluster: bool,
    pub workspace: bool,
}

/// Something that a role lets its holders do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Permission {
    pub id: String,
    pub name: String,
    pub scope_type_mask: ScopeTypeMask,
}

/// A role. Requests name it by its number alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Role {
    #[serde(alias = "role_id")]
    pub role_id: i64,
    pub name: String,
    pub permissions: Vec<Permission>,
    #[serde(alias = "scope_type_mask")]
    pub scope_type_mask: ScopeTypeMask,
}

/// A role in a workspace, or without one everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RoleAssignment {
    pub role: Role,
    #[serde(alias = "scope_workspace_id")]
    pub scope_workspace_id: Option<WorkspaceId>,
    #[serde(alias = "scope_cluster")]
    pub scope_cluster: bool,
}

/// A group's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GroupRoleAssignment {
    #[serde(alias = "group_id")]
    pub group_id: GroupId,
    #[serde(alias = "role_assignment")]
    pub role_assignment: RoleAssignment,
}

/// A user's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UserRoleAssignment {
    #[serde(alias = "user_id")]
    pub user_id: UserId,
    #[serde(alias = "role_assignment")]
    pub role_assignment: RoleAssignment,
}

/// A role and who has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RoleWithAssignments {
    pub role: Role,
    pub group_role_assignments: Vec<GroupRoleAssignment>,
    pub user_role_assignments: Vec<UserRoleAssignment>,
}

/// Where somebody has a role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RoleAssignmentSummary {
    pub role_id: i64,
    pub scope_workspace_ids: Vec<WorkspaceId>,
    pub scope_cluster: bool,
}

/// `POST /roles/add-assignments` and `/roles/remove-assignments`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AssignmentsRequest {
    #[serde(alias = "group_role_assignments")]
    pub group_role_assignments: Option<Vec<GroupRoleAssignment>>,
    #[serde(alias = "user_role_assignments")]
    pub user_role_assignments: Option<Vec<UserRoleAssignment>>,
}

/// `POST /roles/search/by-ids`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RolesByIdRequest {
    #[serde(alias = "role_ids")]
    pub role_ids: Option<Vec<i64>>,
}

/// `POST /roles/search` and `/roles/search/by-assignability`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SearchRolesRequest {
    pub limit: Option<i64>,
    pub offset: Option<i64>,
    #[serde(alias = "workspace_id")]
    pub workspace_id: Option<WorkspaceId>,
}

/// A list of roles.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RolesResponse {
    pub roles: Vec<Role>,
    pub pagination: Pagination,
}

/// Roles and who has them.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RolesWithAssignmentsResponse {
    pub roles: Vec<RoleWithAssignments>,
}

/// The roles that somebody has, and where.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct RoleSummariesResponse {
    pub roles: Vec<Role>,
    pub assignments: Vec<RoleAssignmentSummary>,
}

/// `GET /roles/workspace/{id}`: who has a role in a workspace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct WorkspaceMembersResponse {
    pub groups: Vec<GroupDetails>,
    pub users_assigned_directly: Vec<User>,
    pub assignments: Vec<RoleWithAssignments>,
}

/// A group without its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Group {
    pub group_id: GroupId,
    pub name: String,
}

/// A group with its members.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GroupDetails {
    pub group_id: GroupId,
    pub name: String,
    pub users: Vec<User>,
}

/// One group.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GroupResponse {
    pub group: GroupDetails,
}

/// `POST /groups`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CreateGroupRequest {
    pub name: Option<String>,
    #[serde(alias = "add_users")]
    pub add_users: Option<Vec<UserId>>,
}

/// `PUT /groups/{id}`: what is not given stays.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UpdateGroupRequest {
    pub name: Option<String>,
    #[serde(alias = "add_users")]
    pub add_users: Option<Vec<UserId>>,
    #[serde(alias = "remove_users")]
    pub remove_users: Option<Vec<UserId>>,
}

/// `POST /groups/search`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SearchGroupsRequest {
    /// The whole name.
    pub name: Option<String>,
    #[serde(alias = "user_id")]
    pub user_id: Option<UserId>,
    pub limit: Option<i64>,
    pub offset: Option<i64>,
}

/// A group that was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GroupSearchResult {
    pub group: Group,
    pub num_members: i64,
}

/// A list of groups.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct GroupsResponse {
    pub groups: Vec<GroupSearchResult>,
    pub pagination: Pagination,
}

/// `PATCH /users/assignments`: puts users into groups and takes them out.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct AssignGroupsRequest {
    #[serde(alias = "user_ids")]
    pub user_ids: Option<Vec<UserId>>,
    #[serde(alias = "add_groups")]
    pub add_groups: Option<Vec<GroupId>>,
    #[serde(alias = "remove_groups")]
    pub remove_groups: Option<Vec<GroupId>>,
}
