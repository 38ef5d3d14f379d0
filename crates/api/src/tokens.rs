//! Access tokens: what users make for programs, to be used in place of a login.

use serde::{Deserialize, Serialize};

use crate::identifiers::UserId;
use crate::pages::Pagination;
use crate::wire::Timestamp;

/// What is known of a token; never the token itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TokenInfo {
    pub id: i64,
    pub user_id: UserId,
    pub description: String,
    pub created_at: Timestamp,
    /// Never, if it is missing.
    pub expiry: Option<Timestamp>,
    pub revoked: bool,
    pub token_type: String,
}

/// `POST /tokens`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PostTokenRequest {
    #[serde(alias = "user_id")]
    pub user_id: Option<UserId>,
    /// As Go writes durations, such as `48h`; `-1` for ever.
    pub lifespan: Option<String>,
    pub description: Option<String>,
}

/// The only answer that has the token itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PostTokenResponse {
    pub token: String,
    pub token_id: i64,
}

/// `PATCH /tokens/{id}`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PatchTokenRequest {
    pub description: Option<String>,
    #[serde(alias = "set_revoked")]
    pub set_revoked: Option<bool>,
}

/// One token.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TokenResponse {
    pub token_info: TokenInfo,
}

/// `GET /tokens`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct TokensResponse {
    pub token_info: Vec<TokenInfo>,
    pub pagination: Pagination,
}
