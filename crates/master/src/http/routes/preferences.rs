//! Access tokens, and what users arrange for themselves.

use instep_api::preferences::{ActivityRequest, ClusterMessageRequest, MoveProjectRequest, Note, Notes, UserSettings};
use instep_api::tokens::{PatchTokenRequest, PostTokenRequest};
use instep_api::users::PatchUsersRequest;

use super::super::access::Access::{Administrator, Change, Login, Read};
use super::super::access::Thing::{Common, Project, Several, User};
use super::super::route::Method::{Delete, Get, Patch, Post, Put};
use super::super::route::{Route, route};
use super::super::{preferences, tokens, users};

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Get, "/api/v1/tokens", Login, tokens::list).query(&[
            "tokenIds",
            "username",
            "showInactive",
            "sortBy",
            "orderBy",
            "limit",
            "offset",
        ]),
        route(Post, "/api/v1/tokens", Login, tokens::create).request::<PostTokenRequest>(),
        route(Patch, "/api/v1/tokens/{id}", Login, tokens::change).request::<PatchTokenRequest>(),
        route(Get, "/api/v1/users/setting", Read(Common), preferences::settings),
        route(Post, "/api/v1/users/setting", Login, preferences::set_settings).request::<UserSettings>(),
        route(Post, "/api/v1/users/setting/reset", Login, preferences::reset_settings),
        route(Post, "/api/v1/users/activity", Login, preferences::visit).request::<ActivityRequest>(),
        route(Get, "/api/v1/user/projects/activity", Read(Several), preferences::visited).query(&["limit"]),
        route(Patch, "/api/v1/users", Administrator, users::change_several).request::<PatchUsersRequest>(),
        route(Post, "/api/v1/users/{id}/password", Change(User), users::set_password).request::<String>(),
        route(Post, "/api/v1/workspaces/{id}/pin", Login, preferences::pin),
        route(Post, "/api/v1/workspaces/{id}/unpin", Login, preferences::pin),
        route(Get, "/api/v1/projects/key/{key}", Read(Several), preferences::project_by_key),
        route(Post, "/api/v1/projects/{id}/notes", Change(Project), preferences::add_note).request::<Note>(),
        route(Put, "/api/v1/projects/{id}/notes", Change(Project), preferences::set_notes).request::<Notes>(),
        route(Post, "/api/v1/projects/{id}/move", Change(Project), preferences::move_project)
            .request::<MoveProjectRequest>(),
        route(Get, "/api/v1/master/cluster_message", Administrator, preferences::message),
        route(Put, "/api/v1/master/cluster_message", Administrator, preferences::set_message)
            .request::<ClusterMessageRequest>(),
        route(Delete, "/api/v1/master/cluster_message", Administrator, preferences::delete_message),
    ]
}
