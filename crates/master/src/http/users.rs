//! Users: listing, making, changing.

use instep_api::identifiers::UserId;
use instep_api::users::{PatchUserRequest, PostUserRequest, UserResponse, UsersResponse};
use instep_database::{NewAccount, UserChange};

use super::agent_users;
use super::call::Call;
use super::failure::Failure;
use super::hashing::work;
use super::reply::Json;
use crate::clock::now;
use crate::names;
use crate::passwords::to_store;
use instep_api::users::{PatchUsersRequest, UserResult, UsersChangedResponse};

/// How long after a login its user may change the password without giving the old one again: an hour.
const RECENT_LOGIN_MICROS: i64 = 3_600_000_000;

pub(crate) async fn list(call: Call) -> Result<Json<UsersResponse>, Failure> {
    let active: Option<bool> = call.query.value("active")?;
    let admin: Option<bool> = call.query.value("admin")?;
    let name = call.query.text("name").map(str::to_lowercase);
    let mut users = call.application.database.users().await?;
    users.retain(|user| {
        active.is_none_or(|active| user.active == active)
            && admin.is_none_or(|admin| user.admin == admin)
            && name.as_ref().is_none_or(|name| user.username.to_lowercase().contains(name))
    });
    let (range, pagination) = call.query.slice(None)?.of(users.len());
    Ok(Json(UsersResponse { users: users.drain(range).collect(), pagination }))
}

pub(crate) async fn get(call: Call) -> Result<Json<UserResponse>, Failure> {
    let user = call.application.database.user(call.id("id")?).await?;
    Ok(Json(UserResponse { user }))
}

pub(crate) async fn get_by_name(call: Call) -> Result<Json<UserResponse>, Failure> {
    let name = call.part("name").to_owned();
    let account = call.application.database.account(name.clone()).await?;
    let user = account.ok_or_else(|| Failure::not_found(format!("user '{name}' not found")))?.user;
    Ok(Json(UserResponse { user }))
}

pub(crate) async fn create(call: Call) -> Result<Json<UserResponse>, Failure> {
    let request: PostUserRequest = call.json()?;
    let user = request.user.unwrap_or_default();
    let username = checked_name(user.username.as_deref().unwrap_or_default())?;
    let remote = user.remote.unwrap_or(false);
    let admin = user.admin.unwrap_or(false);
    let display_name = user.display_name.unwrap_or_default();
    for name in [&username, &display_name] {
        may_be_called(name, &username, admin)?;
    }
    let password_hash = stored(request.password.unwrap_or_default(), request.is_hashed.unwrap_or(false)).await?;
    let new = NewAccount {
        username,
        display_name,
        admin,
        active: user.active.unwrap_or(true),
        remote,
        password_hash,
        agent_user_group: agent_users::checked(user.agent_user_group)?,
    };
    let user = call.application.database.create_user(new, now()).await?;
    call.noted.subject(format!("user {}", user.username));
    Ok(Json(UserResponse { user }))
}

pub(crate) async fn change(call: Call) -> Result<Json<UserResponse>, Failure> {
    let id: UserId = call.id("id")?;
    let request: PatchUserRequest = call.json()?;
    let caller = call.user()?;
    if !caller.admin {
        let reserved = request.admin.is_some()
            || request.active.is_some()
            || request.remote.is_some()
            || request.username.is_some()
            || request.agent_user_group.is_some();
        if reserved {
            return Err(Failure::forbidden("only administrators may change more than display name and password"));
        }
    }
    if request.password.is_some() {
        check_password_change(&call).await?;
    }
    let username = request.username.as_deref().map(checked_name).transpose()?;
    if let Some(name) = &request.display_name {
        is_nobody_elses(&call, id, name).await?;
    }
    let password_hash = match request.password {
        Some(password) => Some(stored(password, request.is_hashed.unwrap_or(false)).await?),
        None => None,
    };
    let change = UserChange {
        username,
        display_name: request.display_name,
        admin: request.admin,
        active: request.active,
        remote: request.remote,
        password_hash,
        agent_user_group: agent_users::checked(request.agent_user_group)?,
    };
    let user = call.application.database.change_user(id, change, now()).await?;
    call.application.forget_sessions();
    Ok(Json(UserResponse { user }))
}

/// Lets several users in, or keeps them out: those that are named, or all that a filter finds.
pub(crate) async fn change_several(call: Call) -> Result<Json<UsersChangedResponse>, Failure> {
    let request: PatchUsersRequest = call.json()?;
    let active = request.activate.unwrap_or(false);
    let named = request.user_ids.unwrap_or_default();
    let database = &call.application.database;
    let meant: Vec<UserId> = match request.filters.filter(|_| named.is_empty()) {
        None => named,
        Some(filters) => {
            let name = filters.name.unwrap_or_default().to_lowercase();
            let wanted = database.users().await?.into_iter().filter(|user| {
                filters.admin.is_none_or(|admin| user.admin == admin)
                    && [&user.username, &user.display_name].iter().any(|shown| shown.to_lowercase().contains(&name))
            });
            wanted.map(|user| user.id).collect()
        }
    };
    let own = call.user()?.id;
    let mut results = Vec::new();
    for id in meant {
        let error = if id == own && !active {
            "you cannot deactivate yourself".to_owned()
        } else {
            let change = UserChange { active: Some(active), ..UserChange::default() };
            let changed = database.change_user(id, change, now()).await;
            changed.err().map(|error| Failure::from(error).message).unwrap_or_default()
        };
        results.push(UserResult { id, error });
    }
    call.application.forget_sessions();
    Ok(Json(UsersChangedResponse { results }))
}

/// Sets a password; the body is the password itself, as a JSON text.
pub(crate) async fn set_password(call: Call) -> Result<Json<UserResponse>, Failure> {
    let id: UserId = call.id("id")?;
    let password: String = serde_json::from_slice(&call.body)
        .map_err(|error| Failure::invalid(format!("the body must be the password as a JSON text: {error}")))?;
    check_password_change(&call).await?;
    let change = UserChange { password_hash: Some(stored(password, false).await?), ..UserChange::default() };
    let user = call.application.database.change_user(id, change, now()).await?;
    call.application.forget_sessions();
    Ok(Json(UserResponse { user }))
}

/// A new password needs the old one. Determined's client sends only the new one, so a login counts, in which the old one
/// was given a while ago; a token that was stolen later does not, and an access token never.
async fn check_password_change(call: &Call) -> Result<(), Failure> {
    let caller = call.user()?;
    if call.by_access_token {
        return Err(Failure::forbidden(format!(
            "an access token changes no passwords\nhint: log in with `instep login {}`, and change it then",
            caller.username
        )));
    }
    let has_password = call.application.database.account(caller.username.clone()).await?;
    let has_password = has_password.is_some_and(|account| account.password_hash.is_some());
    let opened_at = call.opened_at.map_or(0, |time| time.0);
    if caller.admin || !has_password || now().0.saturating_sub(opened_at) <= RECENT_LOGIN_MICROS {
        return Ok(());
    }
    Err(Failure::forbidden(format!(
        "user '{0}' logged in more than an hour ago: changing a password needs the old one\n\
         hint: log in once more with `instep login {0}`, and change it then",
        caller.username
    )))
}

fn checked_name(name: &str) -> Result<String, Failure> {
    let name = name.trim();
    if let Some(objection) = names::objection(name) {
        return Err(Failure::invalid(format!("`username` {objection}")));
    }
    if name.is_empty() || name.contains(['/', '\\']) {
        return Err(Failure::invalid(format!("`{name}` cannot be a username: it is empty, or has a slash")));
    }
    Ok(name.to_owned())
}

/// Refuses names that would pass for the built-in users'.
fn may_be_called(name: &str, username: &str, admin: bool) -> Result<(), Failure> {
    let reserved = match name.trim().to_lowercase().as_str() {
        "admin" => !admin,
        "determined" => username != "determined",
        _ => false,
    };
    if reserved { Err(Failure::invalid(format!("`{name}` is reserved: choose another name"))) } else { Ok(()) }
}

/// Refuses a display name that would pass for another user's.
async fn is_nobody_elses(call: &Call, id: UserId, name: &str) -> Result<(), Failure> {
    let database = &call.application.database;
    let user = database.user(id).await?;
    may_be_called(name, &user.username, user.admin)?;
    let same = |other: &str| !name.trim().is_empty() && other.to_lowercase() == name.trim().to_lowercase();
    let mut others = database.users().await?.into_iter().filter(|other| other.id != id);
    match others.find(|other| same(&other.username) || same(&other.display_name)) {
        Some(other) => Err(Failure::invalid(format!("`{name}` is what user '{}' is called", other.username))),
        None => Ok(()),
    }
}

async fn stored(password: String, is_hashed: bool) -> Result<Option<String>, Failure> {
    work(move || to_store(&password, is_hashed)).await
}
