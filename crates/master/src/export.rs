//! Metrics as text for other programs: a line for every value, or for every report.

use instep_api::metrics::MetricsReport;
use serde_json::{Map, Value, json};

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// A header, then one row for every value.
    Csv,
    /// One JSON object for every report.
    JsonLines,
}

impl Table {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Table::Csv => "text/csv; charset=utf-8",
            Table::JsonLines => "application/jsonl; charset=utf-8",
        }
    }

    pub(crate) fn extension(self) -> &'static str {
        match self {
            Table::Csv => "csv",
            Table::JsonLines => "jsonl",
        }
    }

    /// What stands above everything.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Table::Csv => "trial,run,group,step,time,metric,value\n",
            Table::JsonLines => "",
        }
    }

    /// The lines of a report.
    pub(crate) fn write(self, report: &MetricsReport, out: &mut String) {
        let empty = Map::new();
        let values = ["avg_metrics", "validation_metrics"].iter().find_map(|key| report.metrics[*key].as_object());
        let values = values.unwrap_or(&empty);
        match self {
            Table::Csv => {
                for (name, value) in values {
                    out.push_str(&format!("{},{},", report.trial_id, report.trial_run_id));
                    push_field(out, &report.group);
                    out.push_str(&format!(",{},{},", report.total_batches, report.end_time));
                    push_field(out, name);
                    out.push(',');
                    match value {
                        Value::Null => {}
                        Value::String(text) => push_field(out, text),
                        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                            push_field(out, &value.to_string());
                        }
                    }
                    out.push('\n');
                }
            }
            Table::JsonLines => {
                let line = json!({
                    "trial": report.trial_id, "run": report.trial_run_id, "group": report.group,
                    "step": report.total_batches, "time": report.end_time, "metrics": values,
                });
                out.push_str(&line.to_string());
                out.push('\n');
            }
        }
    }
}

/// Adds a field, in quotes if it needs them (RFC 4180).
pub(crate) fn push_field(out: &mut String, text: &str) {
    if text.contains(['"', ',', '\n', '\r']) {
        out.push('"');
        out.push_str(&text.replace('"', "\"\""));
        out.push('"');
    } else {
        out.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use instep_api::identifiers::{RunId, TrialId};
    use instep_api::wire::Timestamp;

    use super::*;

    #[test]
    fn reports_become_rows_or_objects() {
        let report = MetricsReport {
            id: 1,
            trial_id: TrialId(2),
            trial_run_id: RunId(1),
            total_batches: 7,
            end_time: Timestamp(0),
            archived: false,
            group: "my, group".into(),
            metrics: json!({"avg_metrics": {"a \"b\"": 0.5, "list": [1, 2], "nan": "NaN", "none": null}}),
        };
        let written = |table: Table| {
            let mut text = String::new();
            table.write(&report, &mut text);
            text
        };
        let start = "2,1,\"my, group\",7,1970-01-01T00:00:00.000000Z,";
        let rows = ["\"a \"\"b\"\"\",0.5", "list,\"[1,2]\"", "nan,NaN", "none,"].map(|row| format!("{start}{row}\n"));
        assert_eq!(written(Table::Csv), rows.concat());
        let line: Value = serde_json::from_str(&written(Table::JsonLines)).unwrap();
        assert_eq!((&line["step"], &line["metrics"]["nan"]), (&json!(7), &json!("NaN")));
    }
}
