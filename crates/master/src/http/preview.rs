//! Which trials a configuration would lead to.

use instep_api::config::{ExperimentConfig, Sources};
use instep_policy::search::{self, Ends};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;

/// `POST /preview-hp-search`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PreviewRequest {
    config: Option<Value>,
}

pub(crate) async fn preview(call: Call) -> Result<Reply, Failure> {
    let request: PreviewRequest = call.json()?;
    let config = request.config.ok_or_else(|| Failure::invalid("there is no config"))?;
    let config = ExperimentConfig::from_value(config, &Sources::default()).map_err(|mistakes| {
        Failure::invalid(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })?;
    let planned = search::preview(&config.searcher, &config.hyperparameters)
        .map_err(|error| Failure::invalid(error.to_string()))?;
    // Without a metric of time, the steps of reports are counted.
    let unit = config.searcher.span().and_then(|span| span.metric).unwrap_or_else(|| "batches".to_owned());
    let trials: Vec<Value> = planned
        .iter()
        .map(|planned| match planned.ends {
            Ends::At(value) => {
                json!({"count": planned.trials, "unit": {"name": unit, "value": value, "maxLength": false}})
            }
            Ends::ByItself => {
                json!({"count": planned.trials, "unit": {"name": null, "value": null, "maxLength": true}})
            }
        })
        .collect();
    let searcher = config.to_json()["searcher"].clone();
    Reply::json(&json!({"summary": {"config": searcher, "trials": trials}}))
}
