//! Roles and groups of users.

use instep_api::roles::{
    AssignGroupsRequest, AssignmentsRequest, CreateGroupRequest, RolesByIdRequest, SearchGroupsRequest,
    SearchRolesRequest, UpdateGroupRequest,
};

use super::super::guard::Access::{Administrator, Read, Share};
use super::super::guard::Thing::{Common, Several, Workspace};
use super::super::router::Method::{Delete, Get, Patch, Post, Put};
use super::super::{groups, roles};
use super::{Route, route};

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/permissions/summary", Read(Common), roles::summary),
        route(Post, "/api/v1/roles/search", Read(Common), roles::search).takes::<SearchRolesRequest>(),
        route(Post, "/api/v1/roles/search/by-assignability", Read(Common), roles::assignable)
            .takes::<SearchRolesRequest>(),
        route(Post, "/api/v1/roles/search/by-ids", Read(Several), roles::by_ids).takes::<RolesByIdRequest>(),
        route(Get, "/api/v1/roles/search/by-user/{user}", Read(Several), roles::of_user),
        route(Get, "/api/v1/roles/search/by-group/{group}", Read(Several), roles::of_group),
        route(Get, "/api/v1/roles/workspace/{id}", Read(Workspace), roles::members).asks(&["name"]),
        route(Post, "/api/v1/roles/add-assignments", Share, roles::assign).takes::<AssignmentsRequest>(),
        route(Post, "/api/v1/roles/remove-assignments", Share, roles::remove).takes::<AssignmentsRequest>(),
        route(Post, "/api/v1/groups/search", Read(Several), groups::search).takes::<SearchGroupsRequest>(),
        route(Post, "/api/v1/groups", Administrator, groups::create).takes::<CreateGroupRequest>().names(&["name"]),
        route(Get, "/api/v1/groups/{group}", Read(Several), groups::get),
        route(Put, "/api/v1/groups/{group}", Administrator, groups::change)
            .takes::<UpdateGroupRequest>()
            .names(&["name"]),
        route(Delete, "/api/v1/groups/{group}", Administrator, groups::delete),
        route(Patch, "/api/v1/users/assignments", Administrator, groups::assign_users).takes::<AssignGroupsRequest>(),
    ]
}
