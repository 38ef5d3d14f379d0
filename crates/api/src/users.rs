//! Users, logging in, and what may be changed of a user.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::identifiers::UserId;
use crate::pages::Pagination;
use crate::wire::Timestamp;

/// Somebody who may log in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct User {
    pub id: UserId,
    pub username: String,
    pub admin: bool,
    pub active: bool,
    pub display_name: String,
    pub agent_user_group: Option<Value>,
    pub remote: bool,
    pub modified_at: Option<Timestamp>,
    pub last_auth_at: Option<Timestamp>,
}

/// `POST /auth/login`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LoginRequest {
    pub username: Option<String>,
    pub password: Option<String>,
    #[serde(alias = "is_hashed")]
    pub is_hashed: Option<bool>,
}

/// The answer to a login.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LoginResponse {
    pub token: String,
    pub user: User,
}

/// An answer that is one user.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UserResponse {
    pub user: User,
}

/// A list of users.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UsersResponse {
    pub users: Vec<User>,
    pub pagination: Pagination,
}

/// What a new user is to be.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct NewUser {
    pub username: Option<String>,
    pub admin: Option<bool>,
    pub active: Option<bool>,
    #[serde(alias = "display_name")]
    pub display_name: Option<String>,
    pub remote: Option<bool>,
    #[serde(alias = "agent_user_group")]
    pub agent_user_group: Option<Value>,
}

/// `POST /users`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PostUserRequest {
    pub user: Option<NewUser>,
    pub password: Option<String>,
    #[serde(alias = "is_hashed")]
    pub is_hashed: Option<bool>,
}

/// `PATCH /users/{id}`: what is not given stays.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchUserRequest {
    pub username: Option<String>,
    pub admin: Option<bool>,
    pub active: Option<bool>,
    #[serde(alias = "display_name")]
    pub display_name: Option<String>,
    pub remote: Option<bool>,
    pub password: Option<String>,
    #[serde(alias = "is_hashed")]
    pub is_hashed: Option<bool>,
    #[serde(alias = "agent_user_group")]
    pub agent_user_group: Option<Value>,
}

/// `PATCH /users`: those that are named, or all that the filters find.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchUsersRequest {
    #[serde(alias = "user_ids")]
    pub user_ids: Option<Vec<UserId>>,
    pub activate: Option<bool>,
    pub filters: Option<UserFilters>,
}

/// Which users are meant when none are named.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UserFilters {
    /// Part of the user's name or display name, in any case.
    pub name: Option<String>,
    pub admin: Option<bool>,
}

/// What became of each.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UsersChangedResponse {
    pub results: Vec<UserResult>,
}

/// What became of one; an empty error if all is well.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct UserResult {
    pub id: UserId,
    pub error: String,
}
