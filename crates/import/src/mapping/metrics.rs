//! Reports of metrics.

use instep_api::identifiers::{RunId, TrialId};
use instep_api::metrics::Report;
use instep_api::values::Values;
use instep_api::wire::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::error::Result;
use crate::text::Row;

/// What stands in the column: validations have a name of their own for the same thing.
#[derive(Deserialize)]
struct Body {
    #[serde(alias = "validation_metrics")]
    avg_metrics: Option<Values>,
    batch_metrics: Option<Value>,
}

/// A report of a trial, which is `trial` here; `None` for one that has no values at all.
pub fn report(row: &Row<'_>, trial: i64, group: &str) -> Result<Option<Report>> {
    let Some(text) = row.optional_text("metrics")? else { return Ok(None) };
    let body: Body =
        serde_json::from_str(&text).map_err(|error| row.wrong("metrics", format!("it is not JSON: {error}")))?;
    let batches = body.batch_metrics.filter(|batches| batches.as_array().is_some_and(|list| !list.is_empty()));
    let values = body.avg_metrics.unwrap_or_default();
    if values.is_empty() && batches.is_none() {
        return Ok(None);
    }
    Ok(Some(Report {
        trial: TrialId(trial),
        run: RunId(row.integer("trial_run_id")?),
        group: row.optional_text("metric_group")?.filter(|name| !name.is_empty()).unwrap_or_else(|| group.to_owned()),
        step: row.optional_integer("total_batches")?.unwrap_or(0),
        time: row.optional_time("end_time")?.unwrap_or(Timestamp(0)),
        values,
        batches,
    }))
}
