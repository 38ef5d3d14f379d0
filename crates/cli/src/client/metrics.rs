//! Metrics of a trial: a summary, or every point as it comes.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use clap::Args;
use instep_api::identifiers::TrialId;
use instep_api::metrics::CompareTrialsResponse;
use instep_api::trials::{Trial, TrialResponse};
use instep_client::{Client, Query};
use serde_json::Value;

use super::dialog::say;
use super::requests::api;
use super::{shown, table};
use crate::console;

/// How often a follower looks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Ranks report in any order: steps that are this far behind the newest may still come.
const LATE_STEPS: i64 = 1000;

#[derive(Debug, Args)]
pub(super) struct MetricArguments {
    /// Print metrics as they are reported, until the trial ends
    #[arg(short, long)]
    follow: bool,
    /// Show only this group, such as training or validation
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

/// Prints the metrics of a trial.
pub(super) fn print(client: &Client, trial: TrialId, arguments: &MetricArguments, json: bool) -> anyhow::Result<()> {
    if arguments.follow {
        return follow(client, trial, arguments.group.as_deref(), json);
    }
    let found: TrialResponse = client.get(&api(&["trials", &trial.to_string()]))?;
    let groups = summary(&found.trial, arguments.group.as_deref());
    if json {
        return table::json(&groups);
    }
    let mut others = Vec::new();
    let mut table = table::Table::new(&["GROUP", "METRIC", "LAST", "MIN", "MAX", "MEAN", "COUNT"]);
    for (group, metrics) in &groups {
        for (name, metric) in metrics.as_object().into_iter().flatten() {
            let cell = |key: &str| metric.get(key).map(shown::value).unwrap_or_default();
            let mut cells = vec![group.clone(), name.clone()];
            cells.extend(["last", "min", "max", "mean", "count"].map(cell));
            table.row(cells);
            if metric.get("count").is_none() {
                others.push(name.as_str());
            }
        }
    }
    table.print(&format!("trial {trial} has reported no metrics yet"), "wait for them with `-f`");
    if !others.is_empty() {
        let (names, follow) = (others.join(", "), format!("`instep trial metrics {trial} -f`"));
        say(&format!("not all values of {names} are numbers, so there are only their last ones; {follow} prints all"));
    }
    Ok(())
}

/// The summary of a trial by group; Determined calls the group of training differently there.
fn summary(trial: &Trial, only: Option<&str>) -> BTreeMap<String, Value> {
    let mut groups = BTreeMap::new();
    for (key, metrics) in trial.summary_metrics.as_object().into_iter().flatten() {
        let group = match key.as_str() {
            "avg_metrics" => "training",
            "validation_metrics" => "validation",
            other => other,
        };
        if only.is_none_or(|only| only == group) {
            groups.insert(group.to_owned(), metrics.clone());
        }
    }
    groups
}

/// What was printed already, by group and step; steps that can no longer change are forgotten.
#[derive(Default)]
struct Seen {
    last_step: BTreeMap<String, i64>,
    values: BTreeMap<(String, i64, String), Value>,
}

impl Seen {
    /// Gives what is new of a step.
    fn news(&mut self, group: &str, step: i64, values: &serde_json::Map<String, Value>) -> Vec<(String, Value)> {
        let mut news = Vec::new();
        for (name, value) in values {
            let key = (group.to_owned(), step, name.clone());
            if self.values.get(&key) != Some(value) {
                self.values.insert(key, value.clone());
                news.push((name.clone(), value.clone()));
            }
        }
        let last = self.last_step.entry(group.to_owned()).or_insert(step);
        *last = step.max(*last);
        news
    }

    fn first_step(&self) -> i64 {
        self.last_step.values().min().map_or(0, |step| (step - LATE_STEPS).max(0))
    }

    fn forget(&mut self) {
        let first = self.first_step();
        self.values.retain(|(_, step, _), _| *step >= first);
    }
}

fn follow(client: &Client, trial: TrialId, group: Option<&str>, json: bool) -> anyhow::Result<()> {
    let mut seen = Seen::default();
    loop {
        // Looked at before the points are read: what is reported before the end is then among them.
        let found: TrialResponse = client.get(&api(&["trials", &trial.to_string()]))?;
        let query = Query::new()
            .with("trialIds", trial)
            .with_some("group", group)
            .with("startBatches", seen.first_step())
            .with("maxDatapoints", 100_000)
            .with("allValues", true);
        let answer: CompareTrialsResponse = client.get(&format!("/api/v1/trials/time-series{query}"))?;
        for metrics in answer.trials.iter().flat_map(|trial| &trial.metrics) {
            for point in &metrics.data {
                let news = seen.news(&metrics.group, point.batches, &point.values.object());
                if !news.is_empty() {
                    show(&metrics.group, point.batches, &news, json)?;
                }
            }
        }
        seen.forget();
        if found.trial.state.is_terminal() {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn show(group: &str, step: i64, values: &[(String, Value)], json: bool) -> anyhow::Result<()> {
    if json {
        let values: serde_json::Map<String, Value> = values.iter().cloned().collect();
        return table::json_line(&serde_json::json!({"group": group, "step": step, "metrics": values}));
    }
    let values: Vec<String> = values.iter().map(|(name, value)| format!("{name}={}", shown::value(value))).collect();
    let line = table::on_one_line(&format!("step {step:>8}  {group:10}  {}", values.join("  ")));
    console::print(format!("{line}\n").as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_point_is_printed_once_and_late_ones_are_not_missed() {
        let mut seen = Seen::default();
        let values = |value: Value| value.as_object().cloned().unwrap();
        assert_eq!(seen.news("training", 10, &values(json!({"loss": 1.0}))).len(), 1);
        assert_eq!(seen.news("training", 10, &values(json!({"loss": 1.0, "rate": 2}))), [("rate".into(), json!(2))]);
        assert_eq!(seen.news("training", 4, &values(json!({"loss": 1.0}))).len(), 1);
        assert_eq!(seen.first_step(), 0);
        assert_eq!(seen.news("training", 5000, &values(json!({"loss": 0.5}))).len(), 1);
        assert_eq!(seen.first_step(), 4000);
        seen.forget();
        assert_eq!(seen.values.len(), 1);
    }
}
