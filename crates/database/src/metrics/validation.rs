//! The best and the latest validation of a trial, by the searcher's metric.

use instep_api::identifiers::TrialId;
use instep_api::metrics::{Metrics, VALIDATION};
use instep_api::trials::MetricsWorkload;
use instep_api::values::finite_number;
use instep_api::wire::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::read;
use crate::error::Result;
use crate::rows::{optional_json, text_of};
use crate::sql::{Connection, params};

/// A validation that had the searcher's metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Validation {
    pub step: i64,
    pub time: i64,
    pub values: Map<String, Value>,
}

impl Validation {
    /// As a step of the trial's history.
    pub(crate) fn workload(self) -> MetricsWorkload {
        MetricsWorkload {
            metrics: Metrics { avg_metrics: self.values, batch_metrics: None },
            num_inputs: 0,
            total_batches: self.step,
            end_time: Some(Timestamp(self.time)),
        }
    }
}

/// The best and the latest so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ValidationSummary {
    best: Option<(f64, Validation)>,
    latest: Option<Validation>,
}

impl ValidationSummary {
    /// Takes one more validation in, or a fuller one of a step that it knows.
    fn add(&mut self, validation: &Validation, metric: &str, smaller_is_better: bool) {
        let Some(value) = validation.values.get(metric).and_then(finite_number) else { return };
        if self.latest.as_ref().is_none_or(|latest| validation.step >= latest.step) {
            self.latest = Some(validation.clone());
        }
        let better = match &self.best {
            None => true,
            Some((_, best)) if best.step == validation.step => true,
            Some((best, _)) => (value < *best) == smaller_is_better && value != *best,
        };
        if better {
            self.best = Some((value, validation.clone()));
        }
    }
}

/// Notes a validation of `trial` that was reported just now.
pub(crate) fn note(connection: &Connection, trial: TrialId, validation: &Validation) -> Result<()> {
    let (metric, smaller_is_better) = searcher(connection, trial)?;
    let sql = "SELECT best_validation, best_validation_value, latest_validation FROM trials WHERE id = ?";
    let mut summary = connection.prepare_cached(sql)?.query_row([trial.0], |row| {
        let best: Option<Validation> = optional_json(row, "best_validation")?;
        Ok(ValidationSummary {
            best: row.get::<_, Option<f64>>(1)?.zip(best),
            latest: optional_json(row, "latest_validation")?,
        })
    })?;
    let before = summary.clone();
    summary.add(validation, &metric, smaller_is_better);
    if summary == before { Ok(()) } else { store(connection, trial, &summary) }
}

/// Works the summary out anew, after validations were taken back.
pub(crate) fn recompute(connection: &Connection, trial: TrialId) -> Result<()> {
    let (metric, smaller_is_better) = searcher(connection, trial)?;
    let mut summary = ValidationSummary::default();
    for row in read::rows(connection, trial, VALIDATION, i64::MIN, i64::MAX)? {
        let validation = Validation { step: row.step, time: row.time, values: row.values };
        summary.add(&validation, &metric, smaller_is_better);
    }
    store(connection, trial, &summary)
}

fn searcher(connection: &Connection, trial: TrialId) -> Result<(String, bool)> {
    let sql = "SELECT searcher_metric, smaller_is_better FROM experiments \
               JOIN trials ON trials.experiment_id = experiments.id WHERE trials.id = ?";
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row([trial.0], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

fn store(connection: &Connection, trial: TrialId, summary: &ValidationSummary) -> Result<()> {
    let best = summary.best.as_ref().map(|(_, validation)| text_of(validation)).transpose()?;
    let value = summary.best.as_ref().map(|(value, _)| *value);
    let latest = summary.latest.as_ref().map(text_of).transpose()?;
    let step = summary.latest.as_ref().map(|validation| validation.step);
    connection
        .prepare_cached(
            "UPDATE trials SET best_validation = ?, best_validation_value = ?, latest_validation = ?, \
             latest_validation_step = ? WHERE id = ?",
        )?
        .execute(params![best, value, latest, step, trial.0])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn best_and_latest_are_kept_apart() {
        let values = [(1, json!(5)), (2, json!(3)), (3, json!("NaN")), (4, json!(4)), (2, json!(3.5))];
        for (smaller_is_better, best, latest) in [(true, 2, 4), (false, 1, 4)] {
            let mut summary = ValidationSummary::default();
            for (step, value) in &values {
                let values = json!({"loss": value}).as_object().unwrap().clone();
                summary.add(&Validation { step: *step, time: 0, values }, "loss", smaller_is_better);
            }
            assert_eq!(summary.best.unwrap().1.step, best);
            assert_eq!(summary.latest.unwrap().step, latest);
        }
    }
}
