//! Secrets: set, listed by name, deleted. Their values are never answered.

use instep_api::config::Environment;
use instep_api::error::Code;
use instep_api::identifiers::{UserId, WorkspaceId};
use instep_api::secrets::{LARGEST, SecretRequest, SecretsResponse, objection};
use instep_database::{SecretScope, Subject};

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use crate::clock::now;
use crate::vault::{Vault, VaultError, WantedSecrets, missing};

/// Whose secrets are meant: the caller's own, or those of a workspace that is there.
async fn scope(call: &Call, workspace: Option<WorkspaceId>) -> Result<SecretScope, Failure> {
    call.note_asked();
    match workspace.filter(|id| id.0 != 0) {
        Some(id) => {
            call.may_read(Subject::Workspace(id)).await?;
            Ok(SecretScope::Workspace(call.application.database.workspace(id).await?.id))
        }
        None => Ok(SecretScope::User(call.user()?.id)),
    }
}

/// The same for who wants to change them.
async fn changed_scope(call: &Call, workspace: Option<WorkspaceId>) -> Result<SecretScope, Failure> {
    let scope = scope(call, workspace).await?;
    if let SecretScope::Workspace(id) = scope {
        call.may_change(Subject::Workspace(id)).await?;
    }
    call.noted.subject(format!("secret {}", call.part("name")));
    Ok(scope)
}

pub(crate) async fn list(call: Call) -> Result<Json<SecretsResponse>, Failure> {
    let scope = scope(&call, call.query.value("workspaceId")?).await?;
    Ok(Json(SecretsResponse { secrets: call.application.database.secrets(scope).await? }))
}

pub(crate) async fn set(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: SecretRequest = call.json()?;
    let name = call.part("name").to_owned();
    if let Some(objection) = objection(&name) {
        return Err(Failure::invalid(format!("the name of a secret {objection}")));
    }
    let value = request.value.unwrap_or_default();
    if value.is_empty() || value.len() > LARGEST || value.contains('\0') {
        return Err(Failure::invalid(format!(
            "the value of a secret must be 1 to {LARGEST} bytes of text without NUL"
        )));
    }
    let scope = changed_scope(&call, request.workspace_id).await?;
    let vault = Vault::of(&call.application.database);
    let is_first = !call.application.database.has_secrets().await?;
    let sealing = tokio::task::spawn_blocking({
        let name = name.clone();
        move || vault.seal(scope, &name, &value, is_first)
    });
    let sealed = sealing.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let sealed = sealed.map_err(|error| match error {
        VaultError::Missing(_) => Failure::new(Code::FailedPrecondition, error.to_string()),
        _ => Failure::new(Code::Internal, error.to_string()),
    })?;
    call.application.database.set_secret(scope, name, sealed, call.user()?.id, now()).await?;
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    let scope = changed_scope(&call, call.query.value("workspaceId")?).await?;
    call.application.database.delete_secret(scope, call.part("name").to_owned()).await?;
    Ok(Json(Nothing {}))
}

/// Refuses a configuration that names secrets which the caller and the workspace do not have.
pub(crate) async fn check(call: &Call, environment: &Environment, workspace: WorkspaceId) -> Result<(), Failure> {
    check_for(call, call.user()?.id, environment, workspace).await
}

/// The same for what belongs to somebody else.
pub(crate) async fn check_for(
    call: &Call,
    owner: UserId,
    environment: &Environment,
    workspace: WorkspaceId,
) -> Result<(), Failure> {
    let wanted = WantedSecrets::of(environment, owner, workspace);
    for name in wanted.variables.values().chain(wanted.files.values()) {
        let scopes = vec![SecretScope::User(owner), SecretScope::Workspace(workspace)];
        if call.application.database.secret_content(scopes, name.clone()).await?.is_none() {
            return Err(Failure::invalid(missing(name)));
        }
    }
    Ok(())
}
