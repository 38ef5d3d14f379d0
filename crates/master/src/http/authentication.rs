//! Logging in and out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header;
use instep_api::error::Code;
use instep_api::users::{LoginRequest, LoginResponse, UserResponse};
use instep_api::wire::Timestamp;

use super::call::Call;
use super::failure::Failure;
use super::hashing::work;
use super::reply::{Json, Nothing, WithCookie};
use crate::clock::now;
use crate::passwords::{is_of_determined, matches, to_store, token_hash};
use crate::random;
use crate::sync::lock;

/// Opens a session. Programs are given its token; a browser, which asks with `cookie=true`, keeps it in a cookie that no
/// page can read, and is not told it.
pub(crate) async fn login(call: Call) -> Result<WithCookie<LoginResponse>, Failure> {
    let for_browser = call.query.value("cookie")?.unwrap_or(false);
    let request: LoginRequest = call.json()?;
    let username = request.username.unwrap_or_default();
    if username.is_empty() {
        return Err(Failure::invalid("the request has no username"));
    }
    call.noted.subject(format!("user {username}"));
    let password = request.password.unwrap_or_default();
    let is_hashed = request.is_hashed.unwrap_or(false);
    let account = call.application.database.account(username.clone()).await?;
    match account.as_ref().and_then(|account| account.password_hash.clone()) {
        None if account.is_some() => check_without_password(&call, &username, &password).await?,
        // What programs try before anybody has said who they are: no guess, and not counted as one.
        _ if password.is_empty() => return Err(Failure::unauthenticated()),
        stored => {
            // Somebody who does not exist takes as long as a wrong password.
            let stored = stored.unwrap_or_else(|| call.application.decoy_hash.clone());
            let address = call.peer.remote.ip();
            if let Some(wait) = call.application.attempts.wait(&username, address, Instant::now()) {
                return Err(too_many(&username, wait));
            }
            let before = stored.clone();
            let (application, guessed) = (Arc::clone(&call.application), username.clone());
            // Asked and counted again where only as many are at once as there are processors: those that came together
            // have waited for each other by then.
            let check = move || {
                if let Some(wait) = application.attempts.wait(&guessed, address, Instant::now()) {
                    return Err(too_many(&guessed, wait));
                }
                if !matches(&password, is_hashed, &stored) {
                    application.attempts.failed(&guessed, address, Instant::now());
                    return Err(Failure::unauthenticated());
                }
                application.attempts.succeeded(&guessed, address);
                Ok(if is_of_determined(&stored) { to_store(&password, is_hashed) } else { None })
            };
            let renewed = work(check).await??;
            if let (Some(renewed), Some(account)) = (renewed, &account) {
                call.application.database.renew_password_hash(account.user.id, before, renewed).await?;
            }
        }
    }
    let user = account.map(|account| account.user).ok_or_else(Failure::unauthenticated)?;
    if !user.active {
        let name = &user.username;
        let what = format!(
            "user '{name}' is not active\nhint: an administrator can activate it again: instep user activate {name}"
        );
        return Err(Failure::forbidden(what));
    }
    call.noted.user(&user);
    let token = random::token();
    let time = now();
    let lasting = i64::try_from(call.application.session.as_micros()).unwrap_or(i64::MAX);
    let expiry = Timestamp(time.0.saturating_add(lasting));
    call.application.database.open_session(token_hash(&token), user.id, time, expiry).await?;
    if !for_browser {
        return Ok(WithCookie(Json(LoginResponse { token, user }), None));
    }
    // Whose place the new one takes.
    if let (Some(before), true) = (&call.token, call.by_cookie) {
        close(&call, before).await?;
    }
    let origin = call.headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let secure = origin.is_some_and(|origin| origin.starts_with("https://"));
    let cookie = call.application.cookies.set_session(&token, call.application.session, secure);
    Ok(WithCookie(Json(LoginResponse { token: String::new(), user }), Some(cookie)))
}

/// Ends a session, and with it what it gave keys for.
async fn close(call: &Call, token: &str) -> Result<(), Failure> {
    let session = token_hash(token);
    call.application.database.close_session(session.clone()).await?;
    call.application.forget_sessions();
    lock(&call.application.task_access).end_session(&session);
    Ok(())
}

fn too_many(username: &str, wait: Duration) -> Failure {
    let seconds = wait.as_secs() + 1;
    let what = format!(
        "too many wrong passwords for user '{username}' from this address\nhint: try again in {seconds} s, or let an \
         administrator set a new password"
    );
    Failure::new(Code::ResourceExhausted, what)
}

/// Users without a password exist from the start; they may log in with none, from a process of the master's own user on
/// this machine.
async fn check_without_password(call: &Call, username: &str, password: &str) -> Result<(), Failure> {
    if !password.is_empty() {
        return Err(Failure::unauthenticated());
    }
    let peer = call.peer;
    let looking = tokio::task::spawn_blocking(move || peer.is_own_user());
    if looking.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))? {
        return Ok(());
    }
    let leader = call.application.term.as_ref().filter(|_| peer.forwarded).map(|term| &term.endpoint.address);
    Err(Failure::forbidden(match leader {
        None => format!(
            "user '{username}' has no password, and may log in only on the master's own machine, as the user who runs it\n\
             hint: give '{username}' a password there: instep user change-password {username}"
        ),
        Some(leader) => format!(
            "user '{username}' has no password, and may log in only at the master that leads, {leader}, on its own machine, as \
             the user who runs it; this one passes requests on to it\n\
             hint: give '{username}' a password there: instep user change-password {username} --master {leader}"
        ),
    }))
}

pub(crate) async fn logout(call: Call) -> Result<WithCookie<Nothing>, Failure> {
    if let Some(token) = &call.token {
        close(&call, token).await?;
    }
    let cookie = call.by_cookie.then(|| call.application.cookies.clear_session());
    Ok(WithCookie(Json(Nothing {}), cookie))
}

pub(crate) async fn me(call: Call) -> Result<Json<UserResponse>, Failure> {
    Ok(Json(UserResponse { user: call.user()?.clone() }))
}
