//! Experiments, trials, and what they left: allocations, checkpoints, models, lines of output.

use instep_api::states::{CheckpointState, LogLevel};
use instep_api::wire::Timestamp;
use instep_database::import::{
    ImportedAllocation, ImportedCheckpoint, ImportedExperiment, ImportedLine, ImportedModel, ImportedModelVersion,
    ImportedTemplate, ImportedTrial,
};
use serde_json::Value;

use super::ended;
use crate::error::Result;
use crate::text::Row;

/// An experiment; the arguments are what its ids became here.
pub fn experiment(
    row: &Row<'_>,
    id: i64,
    project: i64,
    owner: i64,
    forked_from: Option<i64>,
) -> Result<ImportedExperiment> {
    let text = row.text("config")?;
    let config: Value =
        serde_json::from_str(&text).map_err(|error| row.wrong("config", format!("it is not JSON: {error}")))?;
    let of = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let searcher = &config["searcher"];
    let started_at = row.time("start_time")?;
    Ok(ImportedExperiment {
        id,
        external_id: row.optional_text("external_experiment_id")?,
        name: of(&config, "name"),
        description: of(&config, "description"),
        labels: labels(&config["labels"]),
        notes: row.text_or_empty("notes")?,
        original_config: row.optional_text("original_config")?.unwrap_or_else(|| text.clone()),
        archived: row.truth("archived")?,
        job_id: row.text("job_id")?,
        project,
        owner,
        searcher_name: of(searcher, "name"),
        searcher_metric: of(searcher, "metric"),
        smaller_is_better: searcher["smaller_is_better"].as_bool().unwrap_or(true),
        state: ended(&row.text("state")?),
        progress: row.optional_number("progress")?,
        unmanaged: row.truth("unmanaged")?,
        started_at,
        ended_at: row.optional_time("end_time")?.unwrap_or(started_at),
        forked_from,
        resource_pool: of(&config["resources"], "resource_pool"),
        model_definition: row.content("model_definition")?,
        config: text,
    })
}

/// Labels are a list, or, in configurations of early versions, an object with a key for each.
fn labels(value: &Value) -> Vec<String> {
    match value {
        Value::Array(labels) => labels.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::Object(labels) => labels.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// What other tables say of a trial.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TrialDetails {
    pub request_id: Option<String>,
    pub seed: i64,
    pub metadata: Option<String>,
}

/// A trial; `task` is that of its first run.
pub fn trial(row: &Row<'_>, id: i64, experiment: i64, task: String, details: TrialDetails) -> Result<ImportedTrial> {
    let started_at = row.time("start_time")?;
    let last_activity = row.optional_time("last_activity")?;
    let ended_at = row.optional_time("end_time")?.or(last_activity).unwrap_or(started_at);
    Ok(ImportedTrial {
        id,
        experiment,
        external_id: row.optional_text("external_run_id")?,
        request_id: details.request_id,
        seed: details.seed,
        task,
        state: ended(&row.text("state")?),
        hparams: row.text("hparams")?,
        run: row.integer("restart_id")?,
        restarts: row.integer("restarts")?,
        runner_state: row.text_or_empty("runner_state")?,
        total_batches: row.integer("total_batches")?,
        metadata: details.metadata,
        started_at,
        ended_at,
        last_activity_at: last_activity.unwrap_or(ended_at),
        archived: row.truth("archived")?,
        log_retention_days: row.optional_integer("log_retention_days")?,
        log_policy_matched: row.optional_text("log_policy_matched")?,
    })
}

/// An allocation of a trial. One that never got slots has no times, and none is made of it.
pub fn allocation(row: &Row<'_>, trial: i64, experiment: i64) -> Result<Option<ImportedAllocation>> {
    let id = row.text("allocation_id")?;
    let Some(started_at) = row.optional_time("start_time")? else { return Ok(None) };
    let run = id.rsplit_once('.').and_then(|(_, run)| run.parse().ok()).unwrap_or(1);
    let why = row.optional_text("exit_error")?.or(row.optional_text("exit_reason")?);
    Ok(Some(ImportedAllocation {
        id,
        task: row.text("task_id")?,
        trial,
        experiment,
        run,
        pool: row.text_or_empty("resource_pool")?,
        slots: row.optional_integer("slots")?.unwrap_or(0),
        reason: why.unwrap_or_else(|| "ran in Determined".to_owned()),
        started_at,
        ended_at: row.optional_time("end_time")?.unwrap_or(started_at),
    }))
}

/// A checkpoint. Its files stay where `storage`, or its experiment's configuration, says.
pub fn checkpoint(row: &Row<'_>, trial: i64, task: String, storage: Option<Value>) -> Result<ImportedCheckpoint> {
    let metadata = row.optional_json("metadata")?.filter(Value::is_object).unwrap_or_else(|| serde_json::json!({}));
    let state = row.text("state")?;
    let state = match state.as_str() {
        "COMPLETED" => CheckpointState::Completed,
        "ERROR" => CheckpointState::Error,
        "DELETED" => CheckpointState::Deleted,
        "PARTIALLY_DELETED" => CheckpointState::PartiallyDeleted,
        // It was being written, and nobody finishes it.
        "ACTIVE" => CheckpointState::Error,
        other => return Err(row.wrong("state", format!("`{other}` is not a state of checkpoints"))),
    };
    Ok(ImportedCheckpoint {
        uuid: row.text("uuid")?,
        task,
        trial,
        allocation: row.optional_text("allocation_id")?,
        storage,
        state,
        steps_completed: metadata["steps_completed"].as_i64().unwrap_or(0),
        reported_at: row.time("report_time")?,
        metadata: metadata.to_string(),
        resources: row.optional_text("resources")?.filter(|text| text != "null").unwrap_or_else(|| "{}".to_owned()),
        size: row.integer("size")?,
    })
}

/// A model of the registry.
pub fn model(row: &Row<'_>, id: i64, workspace: i64, owner: i64) -> Result<ImportedModel> {
    let created_at = row.time("creation_time")?;
    Ok(ImportedModel {
        id,
        name: row.text("name")?,
        description: row.text_or_empty("description")?,
        metadata: object(row, "metadata")?,
        labels: row.texts("labels")?,
        notes: row.text_or_empty("notes")?,
        archived: row.truth("archived")?,
        owner,
        workspace,
        created_at,
        updated_at: row.optional_time("last_updated_time")?.unwrap_or(created_at),
    })
}

/// A version of a model.
pub fn model_version(row: &Row<'_>, id: i64, model: i64, owner: i64) -> Result<ImportedModelVersion> {
    let created_at = row.time("creation_time")?;
    Ok(ImportedModelVersion {
        id,
        model,
        version: row.integer("version")?,
        checkpoint: row.text("checkpoint_uuid")?,
        name: row.text_or_empty("name")?,
        comment: row.text_or_empty("comment")?,
        notes: row.text_or_empty("notes")?,
        metadata: object(row, "metadata")?,
        labels: row.texts("labels")?,
        owner,
        created_at,
        updated_at: row.optional_time("last_updated_time")?.unwrap_or(created_at),
    })
}

/// A template.
pub fn template(row: &Row<'_>, workspace: i64, owner: i64, now: Timestamp) -> Result<ImportedTemplate> {
    let (name, config) = (row.text("name")?, row.text("config")?);
    Ok(ImportedTemplate { name, config, workspace, owner, created_at: now })
}

fn object(row: &Row<'_>, name: &'static str) -> Result<String> {
    let value = row.optional_json(name)?.filter(Value::is_object);
    Ok(value.map_or_else(|| "{}".to_owned(), |value| value.to_string()))
}

/// A line of output. Those of early versions are rows of trials, with the text in another column.
pub fn line(row: &Row<'_>, task: String, of_trial: bool) -> Result<ImportedLine> {
    let mut line = row.content("log")?;
    if of_trial && line.is_empty() {
        line = row.content("message")?;
    }
    let level = row.optional_text("level")?;
    let level = level.and_then(|level| format!("LOG_LEVEL_{level}").parse().ok()).unwrap_or(LogLevel::Unspecified);
    Ok(ImportedLine {
        task,
        allocation: if of_trial { None } else { row.optional_text("allocation_id")? },
        agent: row.optional_text("agent_id")?,
        container: row.optional_text("container_id")?,
        rank: row.optional_integer("rank_id")?,
        logged_at: row.optional_time("timestamp")?.unwrap_or(Timestamp(0)),
        level,
        source: row.optional_text("source")?,
        stdtype: row.optional_text("stdtype")?,
        line,
    })
}
