//! Access tokens: everybody makes, sees and revokes their own; administrators those of all.

use instep_api::error::Code;
use instep_api::tokens::{
    PatchTokenRequest, PostTokenRequest, PostTokenResponse, TokenInfo, TokenResponse, TokensResponse,
};
use instep_api::wire::{Timestamp, span};
use instep_database::{NewAccessToken, TokenFilter};

use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use crate::clock::now;
use crate::passwords::token_hash;
use crate::{names, random};

/// How long a token lasts if nobody says how long: 30 days, as in Determined.
const LIFESPAN: u64 = 30 * 24 * 3600;

fn expiry(lifespan: Option<&str>, time: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let seconds = match lifespan.filter(|text| !text.is_empty()) {
        Some("-1") => return Ok(None),
        Some(text) => span(text).map(|span| span.as_secs()).filter(|seconds| *seconds > 0).ok_or_else(|| {
            Failure::invalid(format!("`{text}` cannot be a lifespan: it is a time such as 48h, or -1 for ever"))
        })?,
        None => LIFESPAN,
    };
    let micros = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    Ok(Some(Timestamp(time.0.saturating_add(micros))))
}

fn described(description: Option<String>) -> Result<Option<String>, Failure> {
    names::check_label("the description of a token", description.as_deref().unwrap_or_default())
        .map_err(Failure::invalid)?;
    Ok(description)
}

pub(crate) async fn create(call: Call) -> Result<Json<PostTokenResponse>, Failure> {
    let request: PostTokenRequest = call.json()?;
    let caller = call.user()?;
    // One that was stolen would otherwise outlive its end.
    if call.by_access_token {
        return Err(Failure::forbidden(format!(
            "an access token makes no other tokens\nhint: log in with `instep login {}`, and make it then",
            caller.username
        )));
    }
    let user = request.user_id.filter(|id| id.0 != 0).unwrap_or(caller.id);
    if user != caller.id && !caller.admin {
        return Err(Failure::forbidden("only administrators may make tokens for other users"));
    }
    let owner = call.application.database.user(user).await?;
    call.noted.subject(format!("user {}", owner.username));
    if !owner.active {
        let what = format!("user '{}' is not active", owner.username);
        return Err(Failure::new(Code::FailedPrecondition, what));
    }
    let time = now();
    let token = random::token();
    let new = NewAccessToken {
        token_hash: token_hash(&token),
        user,
        description: described(request.description)?.unwrap_or_default(),
        expires_at: expiry(request.lifespan.as_deref(), time)?,
    };
    let token_id = call.application.database.create_access_token(new, time).await?;
    Ok(Json(PostTokenResponse { token, token_id }))
}

pub(crate) async fn list(call: Call) -> Result<Json<TokensResponse>, Failure> {
    let query = &call.query;
    let caller = call.user()?;
    let user = match query.text("username") {
        Some(name) => {
            let account = call.application.database.account(name.to_owned()).await?;
            Some(account.ok_or_else(|| Failure::not_found(format!("user '{name}' not found")))?.user.id)
        }
        None if caller.admin => None,
        None => Some(caller.id),
    };
    if !caller.admin && user != Some(caller.id) {
        return Err(Failure::forbidden("only administrators may see the tokens of other users"));
    }
    let ids: Vec<i64> = query.values("tokenIds")?;
    // Whoever names one wants to know of it in any case.
    let inactive = query.value("showInactive")?.unwrap_or(false) || !ids.is_empty();
    let mut found = call.application.database.access_tokens(TokenFilter { ids, user, inactive }, now()).await?;
    match query.text("sortBy").unwrap_or_default() {
        "" | "SORT_BY_UNSPECIFIED" | "SORT_BY_TOKEN_TYPE" => {}
        "SORT_BY_USER_ID" => found.sort_by_key(|token| token.user_id),
        "SORT_BY_EXPIRY" => found.sort_by_key(|token| (token.expiry.is_none(), token.expiry)),
        "SORT_BY_CREATED_AT" => found.sort_by_key(|token| token.created_at),
        "SORT_BY_REVOKED" => found.sort_by_key(|token| token.revoked),
        "SORT_BY_DESCRIPTION" => found.sort_by(|one, other| one.description.cmp(&other.description)),
        other => return Err(Failure::invalid(format!("tokens cannot be sorted by `{other}`"))),
    }
    if query.order()? == Some(instep_api::pages::Order::Descending) {
        found.reverse();
    }
    let (range, pagination) = query.slice(None)?.of(found.len());
    Ok(Json(TokensResponse { token_info: found.drain(range).collect(), pagination }))
}

/// A token that the caller may change; one that is another's is not there.
async fn own(call: &Call) -> Result<TokenInfo, Failure> {
    let id: i64 = call.id("id")?;
    let caller = call.user()?;
    let found = call.application.database.access_token(id).await?;
    if found.user_id != caller.id && !caller.admin {
        return Err(Failure::not_found(format!("token '{id}' not found")));
    }
    Ok(found)
}

pub(crate) async fn change(call: Call) -> Result<Json<TokenResponse>, Failure> {
    let request: PatchTokenRequest = call.json()?;
    let token = own(&call).await?;
    call.noted.subject(format!("token {}", token.id));
    let revoke = request.set_revoked.unwrap_or(false);
    let description = described(request.description)?;
    let token_info = call.application.database.change_access_token(token.id, description, revoke).await?;
    call.application.forget_sessions();
    Ok(Json(TokenResponse { token_info }))
}
