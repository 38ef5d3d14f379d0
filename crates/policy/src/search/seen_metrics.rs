//! Whether trials report the metric that `searcher.metric` names, and what people read when they do not.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Names of other metrics that are remembered, for the sentences below.
const MOST_NAMES: usize = 8;

/// What the validations of a search have had so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct SeenMetrics {
    /// The searcher's metric was among them.
    pub metric: bool,
    /// The names of others.
    others: BTreeSet<String>,
}

impl SeenMetrics {
    /// A search that was stored before this was remembered gets the benefit of the doubt.
    pub(super) fn of_an_earlier_version() -> SeenMetrics {
        SeenMetrics { metric: true, others: BTreeSet::new() }
    }

    /// A validation.
    pub(super) fn note(&mut self, metric: &str, metrics: &Map<String, Value>) {
        if metrics.contains_key(metric) {
            self.metric = true;
            self.others.clear();
        }
        if !self.metric {
            let more = MOST_NAMES.saturating_sub(self.others.len());
            self.others.extend(metrics.keys().take(more).cloned());
        }
    }

    /// Why a search that is over has failed.
    pub(super) fn failure_reason(&self, metric: &str) -> String {
        let names = list(self.others.iter());
        format!("no trial reported `{metric}`, the searcher's metric: the trials {names}\n{}", hint(metric))
    }
}

/// For the log of a trial that does not report the metric: not in this validation, or never.
pub(super) fn warning(metric: &str, validation: Option<&Map<String, Value>>) -> String {
    let names = list(validation.into_iter().flat_map(Map::keys).take(MOST_NAMES));
    format!("this trial has not reported `{metric}`, the searcher's metric: it {names}\n{}", hint(metric))
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.is_empty() {
        true => "reported no validation metrics".to_owned(),
        false => format!("reported {}", names.join(", ")),
    }
}

fn hint(metric: &str) -> String {
    format!(
        "hint: report it with report_validation_metrics(..., {{\"{metric}\": value}}), or set searcher.metric to a \
         metric that is reported"
    )
}
