//! Roles and groups of users.

use instep_api::roles::{
    AssignGroupsRequest, AssignmentsRequest, CreateGroupRequest, RolesByIdRequest, SearchGroupsRequest,
    SearchRolesRequest, UpdateGroupRequest,
};

use super::super::access::Access::{Administrator, Read, Share};
use super::super::access::Thing::{Common, Several, Workspace};
use super::super::route::Method::{Delete, Get, Patch, Post, Put};
use super::super::route::{Route, route};
use super::super::{groups, roles};

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/permissions/summary", Read(Common), roles::summary),
        route(Post, "/api/v1/roles/search", Read(Common), roles::search).request::<SearchRolesRequest>(),
        route(Post, "/api/v1/roles/search/by-assignability", Read(Common), roles::assignable)
            .request::<SearchRolesRequest>(),
        route(Post, "/api/v1/roles/search/by-ids", Read(Several), roles::by_ids).request::<RolesByIdRequest>(),
        route(Get, "/api/v1/roles/search/by-user/{user}", Read(Several), roles::of_user),
        route(Get, "/api/v1/roles/search/by-group/{group}", Read(Several), roles::of_group),
        route(Get, "/api/v1/roles/workspace/{id}", Read(Workspace), roles::members).query(&["name"]),
        route(Post, "/api/v1/roles/add-assignments", Share, roles::assign).request::<AssignmentsRequest>(),
        route(Post, "/api/v1/roles/remove-assignments", Share, roles::remove).request::<AssignmentsRequest>(),
        route(Post, "/api/v1/groups/search", Read(Several), groups::search).request::<SearchGroupsRequest>(),
        route(Post, "/api/v1/groups", Administrator, groups::create).request::<CreateGroupRequest>().names(&["name"]),
        route(Get, "/api/v1/groups/{group}", Read(Several), groups::get),
        route(Put, "/api/v1/groups/{group}", Administrator, groups::change)
            .request::<UpdateGroupRequest>()
            .names(&["name"]),
        route(Delete, "/api/v1/groups/{group}", Administrator, groups::delete),
        route(Patch, "/api/v1/users/assignments", Administrator, groups::assign_users).request::<AssignGroupsRequest>(),
    ]
}
