//! Webhooks: who is told what. Administrators change and see all of them, whoever may change a workspace those of the
//! workspace. Others see that there are webhooks of all workspaces; their addresses often hold keys, so only the host.

use instep_api::error::Code;
use instep_api::webhooks::{
    CustomEventRequest, PatchWebhookRequest, TestWebhookResponse, TriggerRequest, Webhook, WebhookRequest,
    WebhookResponse, WebhooksResponse,
};
use instep_database::{NewWebhook, Subject};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use ureq::http::Uri;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use crate::clock::now;
use crate::cluster::compiled;
use crate::names;
use crate::webhooks::{TASK_LOG, objection, tell_now};

const MOST_TRIGGERS: usize = 20;
/// Bytes of a trigger's condition: those of all webhooks are read at each change of an experiment's state.
const LONGEST_CONDITION: usize = 1 << 10;
/// Tests of webhooks at the same time: each waits for a receiver for up to 10 s.
static TESTS: Semaphore = Semaphore::const_new(4);
/// Bytes of what a script says.
const LARGEST_EVENT: usize = 64 << 10;
const STATE_CHANGE: &str = "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE";
const CUSTOM: &str = "TRIGGER_TYPE_CUSTOM";

/// Refuses who may not change the webhooks of a workspace, or of all.
async fn may_edit(call: &Call, workspace: Option<instep_api::identifiers::WorkspaceId>) -> Result<(), Failure> {
    call.note_asked();
    match workspace {
        _ if call.user()?.admin && call.task.is_none() => Ok(()),
        Some(workspace) => call.may_change(Subject::Workspace(workspace)).await,
        None => Err(Failure::forbidden("only administrators may change webhooks of all workspaces")),
    }
}

/// A webhook that the caller may change; others are not there.
async fn own(call: &Call) -> Result<Webhook, Failure> {
    let id: i64 = call.id("id")?;
    let webhook = call.application.database.webhook(id).await?;
    let missing = |_| Failure::not_found(format!("webhook '{id}' not found"));
    may_edit(call, webhook.workspace_id).await.map_err(missing)?;
    call.noted.subject(format!("webhook {id}"));
    Ok(webhook)
}

pub(crate) async fn list(call: Call) -> Result<Json<WebhooksResponse>, Failure> {
    let mut webhooks = Vec::new();
    for mut webhook in call.application.database.webhooks().await? {
        let is_own = may_edit(&call, webhook.workspace_id).await.is_ok();
        if !is_own {
            webhook.url = without_key(&webhook.url);
        }
        if is_own || webhook.workspace_id.is_none() {
            webhooks.push(webhook);
        }
    }
    call.note_asked();
    Ok(Json(WebhooksResponse { webhooks }))
}

/// An address as those may see it who may not change the webhook: where it leads, without what may be a key.
fn without_key(url: &str) -> String {
    let uri: Option<Uri> = url.parse().ok();
    let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.host()?)));
    parts.map_or_else(String::new, |(scheme, host)| format!("{scheme}://{host}/"))
}

/// A trigger's type and condition.
fn checked(request: TriggerRequest, mode: &str) -> Result<(String, Value), Failure> {
    let kind = request.trigger_type.unwrap_or_default();
    let condition = request.condition.unwrap_or_else(|| json!({}));
    let bytes = condition.to_string().len();
    if bytes > LONGEST_CONDITION {
        return Err(Failure::invalid(format!(
            "the condition of a trigger has {bytes} bytes, the limit is {LONGEST_CONDITION}"
        )));
    }
    match kind.as_str() {
        STATE_CHANGE => match condition["state"].as_str() {
            Some(state) => {
                let word = state.strip_prefix("STATE_").unwrap_or(state);
                let known: Result<instep_api::states::State, String> = format!("STATE_{word}").parse();
                known.map_err(|_| Failure::invalid(format!("there is no state `{state}`")))?;
                Ok((kind, json!({"state": word})))
            }
            None => Err(Failure::invalid("the condition of a change of state needs a `state`, such as COMPLETED")),
        },
        TASK_LOG => {
            let pattern = condition["regex"].as_str().filter(|pattern| !pattern.is_empty());
            let pattern = pattern
                .ok_or_else(|| Failure::invalid("webhook task log condition must have key 'regex' as string"))?;
            compiled(pattern)
                .map_err(|error| Failure::invalid(format!("`{pattern}` is not a regular expression: {error}")))?;
            Ok((kind, json!({"regex": pattern})))
        }
        CUSTOM if mode == "WEBHOOK_MODE_SPECIFIC" => Ok((kind, condition)),
        CUSTOM => Err(Failure::invalid("custom trigger only works on webhook with mode 'SPECIFIC'")),
        other => {
            Err(Failure::invalid(format!("`{other}` does not trigger webhooks: {STATE_CHANGE}, {TASK_LOG}, {CUSTOM}")))
        }
    }
}

pub(crate) async fn create(call: Call) -> Result<Json<WebhookResponse>, Failure> {
    let request: WebhookRequest = call.json()?;
    let one_of = |given: Option<String>, known: [&str; 2], what: &str| match given.unwrap_or_default().as_str() {
        given if known.contains(&given) => Ok(given.to_owned()),
        given => Err(Failure::invalid(format!("`{given}` is no {what} of a webhook: {}", known.join(" or ")))),
    };
    let kind = one_of(request.webhook_type, ["WEBHOOK_TYPE_DEFAULT", "WEBHOOK_TYPE_SLACK"], "type")?;
    let mode = one_of(request.mode, ["WEBHOOK_MODE_WORKSPACE", "WEBHOOK_MODE_SPECIFIC"], "mode")?;
    let name = request.name.unwrap_or_default();
    names::check_label("the name of a webhook", &name).map_err(Failure::invalid)?;
    let url = request.url.unwrap_or_default();
    if let Some(objection) = objection(&url) {
        return Err(Failure::invalid(objection));
    }
    let asked = request.triggers.unwrap_or_default();
    if asked.is_empty() || asked.len() > MOST_TRIGGERS {
        return Err(Failure::invalid(format!("at least one trigger required, and at most {MOST_TRIGGERS}")));
    }
    let triggers = asked.into_iter().map(|trigger| checked(trigger, &mode)).collect::<Result<Vec<_>, _>>()?;
    let workspace = request.workspace_id.filter(|id| id.0 != 0);
    if let Some(workspace) = workspace {
        call.must_see(Subject::Workspace(workspace)).await?;
    }
    may_edit(&call, workspace).await?;
    let new = NewWebhook { name, url, kind, mode, workspace, triggers };
    let webhook = call.application.database.create_webhook(new, now()).await?;
    call.noted.subject(format!("webhook {}", webhook.id));
    call.application.log_patterns.forget();
    Ok(Json(WebhookResponse { webhook }))
}

pub(crate) async fn change(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: PatchWebhookRequest = call.json()?;
    let webhook = own(&call).await?;
    let url = request.url.unwrap_or_default();
    if let Some(objection) = objection(&url) {
        return Err(Failure::invalid(objection));
    }
    call.application.database.change_webhook(webhook.id, url).await?;
    call.application.log_patterns.forget();
    Ok(Json(Nothing {}))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    let webhook = own(&call).await?;
    call.application.database.delete_webhook(webhook.id).await?;
    call.application.log_patterns.forget();
    Ok(Json(Nothing {}))
}

pub(crate) async fn test(call: Call) -> Result<Json<TestWebhookResponse>, Failure> {
    let webhook = own(&call).await?;
    let payload = json!({
        "event_type": "EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}, "event_data": {"data": "test"},
    });
    let Ok(_place) = TESTS.try_acquire() else {
        let what = "several webhooks are being tested already\nhint: try again in 10 s";
        return Err(Failure::new(Code::ResourceExhausted, what));
    };
    let told = tell_now(&call.application, webhook, payload).await;
    told.map_err(|untold| Failure::invalid(format!("error sending webhook request: {}", untold.why)))?;
    Ok(Json(TestWebhookResponse { completed: true }))
}

/// What a script wants to be told to the webhooks that its experiment names.
pub(crate) async fn custom(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: CustomEventRequest = call.json()?;
    let id = request.experiment_id.ok_or_else(|| Failure::invalid("experimentId is missing"))?;
    call.may_change(Subject::Experiment(id)).await?;
    let trial = request.trial_id.map(|trial| trial.0).filter(|trial| *trial > 0);
    let data = request.data.unwrap_or_default();
    let level = data.level.strip_prefix("LOG_LEVEL_").unwrap_or(&data.level);
    let data = json!({"title": data.title, "description": data.description, "level": level});
    let bytes = data.to_string().len();
    if bytes > LARGEST_EVENT {
        return Err(Failure::invalid(format!(
            "the event has {bytes} bytes, the limit is {LARGEST_EVENT}\nhint: store it, and say where it is"
        )));
    }
    call.application.database.custom_event(id, trial, data, now()).await?;
    Ok(Json(Nothing {}))
}
