//! Webhooks: who is told what, and what is yet to be told.
//!
//! An event is written in the transaction of what happened, so that it is told also if the master ends in between. The
//! payload is what a receiver gets, but for the parts that are worked out when it is sent.

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, WorkspaceId};
use instep_api::states::State;
use instep_api::webhooks::{Trigger, Webhook};
use instep_api::wire::Timestamp;
use serde_json::{Value, json};

use crate::Database;
use crate::error::{Error, Result};
use crate::experiments::experiment_by_id;
use crate::rows::{column, json as json_column, text_of};
use crate::sql::{self, Connection, OptionalExtension, Row, params};

/// Webhooks that there may be.
const MOST: usize = 1000;
/// Of one workspace, or of all of them.
const MOST_OF_WORKSPACE: usize = 100;
/// Events that wait to be told, of one webhook: what comes beyond that is dropped.
const MOST_EVENTS: i64 = 1000;

/// A webhook to be made; its triggers have type and condition.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Webhook")]
pub struct NewWebhook {
    pub name: String,
    pub url: String,
    pub kind: String,
    pub mode: String,
    pub workspace: Option<WorkspaceId>,
    pub triggers: Vec<(String, Value)>,
}

/// Something that is to be told now, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueEvent {
    /// Identifies it.
    pub id: i64,
    /// To whom.
    pub webhook: i64,
}

/// Something that is to be told.
#[derive(Debug, Clone)]
pub struct WebhookEvent {
    /// Identifies it.
    pub id: i64,
    /// To whom.
    pub webhook: Webhook,
    /// What.
    pub payload: Value,
    /// How often it was tried.
    pub attempts: i64,
}

fn webhook_of(row: &Row<'_>) -> sql::Result<Webhook> {
    Ok(Webhook {
        id: column(row, "id")?,
        name: column(row, "name")?,
        url: column(row, "url")?,
        webhook_type: column(row, "kind")?,
        mode: column(row, "mode")?,
        workspace_id: column::<Option<i64>>(row, "workspace_id")?.map(WorkspaceId),
        triggers: json_column(row, "triggers")?,
    })
}

fn all(connection: &Connection) -> Result<Vec<Webhook>> {
    let mut statement = connection.prepare_cached("SELECT * FROM webhooks ORDER BY id")?;
    Ok(statement.query_map([], webhook_of)?.collect::<sql::Result<_>>()?)
}

fn by_id(connection: &Connection, id: i64) -> Result<Webhook> {
    let mut statement = connection.prepare_cached("SELECT * FROM webhooks WHERE id = ?")?;
    statement.query_row([id], webhook_of).optional()?.ok_or_else(|| Error::not_found("webhook", id))
}

/// Whether a webhook is told of an experiment (its configuration's `integrations.webhooks`), or of a task of no experiment.
pub fn is_for(webhook: &Webhook, config: Option<&Value>, workspace: WorkspaceId) -> bool {
    let said = config.map(|config| &config["integrations"]["webhooks"]);
    if said.is_some_and(|said| said["exclude"].as_bool() == Some(true)) {
        return false;
    }
    if webhook.workspace_id.is_some_and(|own| own != workspace) {
        return false;
    }
    if webhook.mode != "WEBHOOK_MODE_SPECIFIC" {
        return true;
    }
    let named = |field: &str, wanted: &Value| {
        let list = said.and_then(|said| said[field].as_array());
        list.is_some_and(|list| list.contains(wanted))
    };
    let by_name = !webhook.name.is_empty() && named("webhook_name", &json!(webhook.name));
    by_name || named("webhook_id", &json!(webhook.id))
}

fn add_event(connection: &Connection, webhook: &Webhook, payload: &Value, now: Timestamp) -> Result<()> {
    let sql = "SELECT COUNT(*) FROM webhook_events WHERE webhook_id = ?";
    let waiting: i64 = connection.prepare_cached(sql)?.query_row([webhook.id], |row| row.get(0))?;
    if waiting >= MOST_EVENTS {
        return Ok(());
    }
    let sql = "INSERT INTO webhook_events (webhook_id, payload, attempts, next_attempt_at) VALUES (?, ?, 0, ?)";
    connection.prepare_cached(sql)?.execute(params![webhook.id, text_of(payload)?, now.0])?;
    Ok(())
}

/// What receivers are told of an experiment.
fn shown(experiment: &Experiment) -> Value {
    json!({
        "id": experiment.id,
        "state": word(experiment.state),
        "name": experiment.name,
        "duration": experiment.duration,
        "resource_pool": experiment.resource_pool,
        "slots_per_trial": experiment.config.clone().into_value()["resources"]["slots_per_trial"].as_i64().unwrap_or(0),
        "workspace": experiment.workspace_name,
        "project": experiment.project_name,
    })
}

/// A state as receivers and conditions spell it.
fn word(state: State) -> &'static str {
    let word = state.as_str();
    word.strip_prefix("STATE_").unwrap_or(word)
}

/// Notes for those who want to know that an experiment has come to a state. Nothing if it was there before.
pub(crate) fn state_changed(
    connection: &Connection,
    id: ExperimentId,
    before: State,
    after: State,
    now: Timestamp,
) -> Result<()> {
    if before == after {
        return Ok(());
    }
    let webhooks = all(connection)?;
    if webhooks.is_empty() {
        return Ok(());
    }
    let wanted = json!({"state": word(after)});
    let mut experiment = experiment_by_id(connection, id, now)?;
    experiment.state = after;
    let config = experiment.config.clone().into_value();
    for webhook in webhooks {
        let is_wanted = |trigger: &Trigger| {
            trigger.trigger_type == "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE" && trigger.condition["state"] == word(after)
        };
        if webhook.triggers.iter().any(is_wanted) && is_for(&webhook, Some(&config), experiment.workspace_id) {
            let payload = json!({
                "event_type": "EXPERIMENT_STATE_CHANGE",
                "condition": wanted,
                "event_data": {"experiment": shown(&experiment)},
            });
            add_event(connection, &webhook, &payload, now)?;
        }
    }
    Ok(())
}

impl Database {
    /// All webhooks, by number.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>> {
        self.executor.read(all).await
    }

    /// One webhook.
    pub async fn webhook(&self, id: i64) -> Result<Webhook> {
        self.executor.read(move |connection| by_id(connection, id)).await
    }

    /// Makes a webhook.
    pub async fn create_webhook(&self, new: NewWebhook, now: Timestamp) -> Result<Webhook> {
        self.executor
            .write(move |connection| {
                let known = all(connection)?;
                if known.len() >= MOST {
                    return Err(Error::Precondition(format!("there are {MOST} webhooks already")));
                }
                if known.iter().filter(|other| other.workspace_id == new.workspace).count() >= MOST_OF_WORKSPACE {
                    let what = format!("there are {MOST_OF_WORKSPACE} webhooks of the workspace already");
                    return Err(Error::Precondition(format!("{what}\nhint: delete one of them first")));
                }
                if let Some(workspace) = new.workspace {
                    crate::workspaces::workspace_by_id(connection, workspace)?;
                }
                let is_named = !new.name.is_empty();
                if is_named && known.iter().any(|other| other.name == new.name && other.workspace_id == new.workspace) {
                    return Err(Error::AlreadyExists(format!("webhook '{}' already exists", new.name)));
                }
                let id: i64 = connection.query_row(
                    "INSERT INTO webhooks (name, workspace_id, url, kind, mode, triggers, created_at) \
                     VALUES (?, ?, ?, ?, ?, '[]', ?) RETURNING id",
                    params![new.name, new.workspace.map(|id| id.0), new.url, new.kind, new.mode, now.0],
                    |row| row.get(0),
                )?;
                let numbered = new.triggers.into_iter().zip(1..);
                let triggers: Vec<Trigger> = numbered
                    .map(|((trigger_type, condition), number)| Trigger {
                        id: number,
                        webhook_id: id,
                        trigger_type,
                        condition,
                    })
                    .collect();
                connection
                    .execute("UPDATE webhooks SET triggers = ? WHERE id = ?", params![text_of(&triggers)?, id])?;
                by_id(connection, id)
            })
            .await
    }

    /// Tells a webhook elsewhere from now on.
    pub async fn change_webhook(&self, id: i64, url: String) -> Result<()> {
        self.executor
            .write(move |connection| {
                by_id(connection, id)?;
                connection.execute("UPDATE webhooks SET url = ? WHERE id = ?", params![url, id])?;
                Ok(())
            })
            .await
    }

    /// Forgets a webhook, and what it was yet to be told.
    pub async fn delete_webhook(&self, id: i64) -> Result<()> {
        self.executor
            .write(move |connection| {
                by_id(connection, id)?;
                connection.execute("DELETE FROM webhooks WHERE id = ?", [id])?;
                Ok(())
            })
            .await
    }

    /// Notes that a task's line matched a pattern, once for each; and that it is to be told.
    pub async fn log_matched(
        &self,
        webhook: i64,
        trigger: i64,
        task: String,
        payload: Value,
        now: Timestamp,
    ) -> Result<()> {
        self.executor
            .write(move |connection| {
                let Ok(found) = by_id(connection, webhook) else { return Ok(()) };
                let sql = "INSERT INTO webhook_log_matches (webhook_id, trigger_id, task_id) VALUES (?, ?, ?) \
                           ON CONFLICT (webhook_id, trigger_id, task_id) DO NOTHING";
                if connection.prepare_cached(sql)?.execute(params![webhook, trigger, task])? == 0 {
                    return Ok(());
                }
                add_event(connection, &found, &payload, now)
            })
            .await
    }

    /// Tells what a script wants to be told, to the webhooks that its experiment names.
    pub async fn custom_event(&self, id: ExperimentId, trial: Option<i64>, data: Value, now: Timestamp) -> Result<()> {
        self.executor
            .write(move |connection| {
                let experiment = experiment_by_id(connection, id, now)?;
                let config = experiment.config.clone().into_value();
                for webhook in all(connection)? {
                    let is_custom = |trigger: &Trigger| trigger.trigger_type == "TRIGGER_TYPE_CUSTOM";
                    if !webhook.triggers.iter().any(is_custom)
                        || !is_for(&webhook, Some(&config), experiment.workspace_id)
                    {
                        continue;
                    }
                    let mut about = shown(&experiment);
                    if let Some(trial) = trial {
                        about["trial_id"] = trial.into();
                    }
                    let payload = json!({
                        "event_type": "CUSTOM",
                        "condition": {"state": word(experiment.state)},
                        "event_data": {"experiment": about, "custom_data": data},
                    });
                    add_event(connection, &webhook, &payload, now)?;
                }
                Ok(())
            })
            .await
    }

    /// Waits until something was written since the last call, which may be an event; for the one who tells them.
    pub async fn may_have_webhook_events(&self) {
        self.executor.written().await;
    }

    /// What is to be told by now, the oldest first: of each webhook at most so many.
    pub async fn due_webhook_events(&self, each: usize, now: Timestamp) -> Result<Vec<DueEvent>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT id, webhook_id FROM (SELECT id, webhook_id, next_attempt_at, \
                           ROW_NUMBER() OVER (PARTITION BY webhook_id ORDER BY next_attempt_at, id) AS place \
                           FROM webhook_events WHERE next_attempt_at <= ?) AS due WHERE place <= ? \
                           ORDER BY next_attempt_at, id";
                let mut statement = connection.prepare_cached(sql)?;
                let due = statement.query_map(params![now.0, each as i64], |row| {
                    Ok(DueEvent { id: row.get(0)?, webhook: row.get(1)? })
                })?;
                Ok(due.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// An event with what is told; `None` if it is gone.
    pub async fn webhook_event(&self, id: i64) -> Result<Option<WebhookEvent>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT webhook_id, payload, attempts FROM webhook_events WHERE id = ?";
                let found = connection
                    .prepare_cached(sql)?
                    .query_row([id], |row| Ok((row.get::<_, i64>(0)?, json_column(row, "payload")?, row.get(2)?)));
                let Some((webhook, payload, attempts)) = found.optional()? else { return Ok(None) };
                Ok(Some(WebhookEvent { id, webhook: by_id(connection, webhook)?, payload, attempts }))
            })
            .await
    }

    /// Forgets an event that was told or given up, or tries it again later.
    pub async fn settle_webhook_event(&self, id: i64, next_attempt_at: Option<Timestamp>) -> Result<()> {
        self.executor
            .write(move |connection| {
                match next_attempt_at {
                    None => connection.execute("DELETE FROM webhook_events WHERE id = ?", [id])?,
                    Some(time) => connection.execute(
                        "UPDATE webhook_events SET attempts = attempts + 1, next_attempt_at = ? WHERE id = ?",
                        [time.0, id],
                    )?,
                };
                Ok(())
            })
            .await
    }
}
