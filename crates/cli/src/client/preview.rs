//! `instep preview-search`: which trials a configuration would lead to.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::options::Common;
use super::{configuration, session, table};

#[derive(Debug, Args)]
pub(crate) struct PreviewArguments {
    #[command(flatten)]
    common: Common,
    /// Configuration file, YAML or JSON
    #[arg(value_name = "CONFIG")]
    file: PathBuf,
    /// Override one setting, such as searcher.max_trials=20; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
}

pub(crate) fn run(arguments: &PreviewArguments) -> anyhow::Result<()> {
    let client = session::connect(&arguments.common)?;
    let config = configuration::read_parsed(&arguments.file, &arguments.config)?;
    let found: Value = client.post("/api/v1/preview-hp-search", &json!({"config": config}))?;
    let summary = &found["summary"];
    if arguments.common.json {
        return table::json(summary);
    }
    let mut table = table::Table::new(&["TRIALS", "TRAIN FOR"]);
    for each in summary["trials"].as_array().into_iter().flatten() {
        table.row(vec![each["count"].to_string(), length(&each["unit"])]);
    }
    table.print("this configuration creates no trials", "");
    Ok(())
}

fn length(unit: &Value) -> String {
    if unit["maxLength"].as_bool() == Some(true) {
        return "to their end".to_owned();
    }
    format!("{} {}", unit["value"], unit["name"].as_str().unwrap_or_default())
}
