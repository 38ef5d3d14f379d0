//! Messages for Slack, in the blocks that Determined's have: channels and the programs that read them stay as they are.

use serde_json::{Value, json};

/// Colours of the bar beside an experiment, as in Determined.
const GREEN: &str = "#13B670";
const RED: &str = "#DD5040";
const BLUE: &str = "#009bde";

/// What is said of an event.
pub(super) fn message(payload: &Value) -> Value {
    let data = &payload["event_data"];
    if data["task_log"].is_object() {
        return json!({"blocks": [section(&marked(&log_line(payload)))]});
    }
    let experiment = &data["experiment"];
    if !experiment.is_object() {
        return json!({"blocks": [section(&plain("test"))]});
    }
    let state = text(&experiment["state"]);
    let (said, sign, status, colour) = match state.as_str() {
        "COMPLETED" => ("Your experiment completed successfully 🎉".to_owned(), "✅ ", "Completed", GREEN),
        "ERROR" => ("Your experiment has stopped with errors".to_owned(), "❌ ", "Errored", RED),
        other => (format!("The status of your experiment is {other}"), "", other, BLUE),
    };
    let minutes = experiment["duration"].as_i64().unwrap_or(0) / 60;
    let mut fields = vec![
        marked(&format!("*Status*: {status}")),
        marked(&format!("*Duration*: {}h {}min", minutes / 60, minutes % 60)),
    ];
    for (name, key) in [("Workspace", "workspace"), ("Project", "project"), ("Trial ID", "trial_id")] {
        let value = &experiment[key];
        fields.extend((!value.is_null()).then(|| marked(&format!("*{name}*: {}", text(value)))));
    }
    let title = marked(&format!("{sign}{} (#{})", text(&experiment["name"]), experiment["id"]));
    let mut first = section(&plain(&said));
    let custom = &data["custom_data"];
    if custom.is_object() {
        let shown = [("Level", "level"), ("Title", "title"), ("Description", "description")];
        first["fields"] = shown.map(|(name, key)| marked(&format!("*{name}*: {}", text(&custom[key])))).to_vec().into();
    }
    let mut about = section(&title);
    about["fields"] = fields.into();
    json!({"blocks": [first], "attachments": [{"color": colour, "blocks": [about]}]})
}

fn log_line(payload: &Value) -> String {
    let log = &payload["event_data"]["task_log"];
    format!(
        "Task `{}`, running on node `{}`, reported a log\n```{}```\nThis log matched the regex\n```{}```",
        text(&log["task_id"]),
        text(&log["node_name"]),
        text(&log["triggering_log"]),
        text(&payload["condition"]["regex"])
    )
}

fn section(text: &Value) -> Value {
    json!({"type": "section", "text": text})
}

fn marked(text: &str) -> Value {
    json!({"type": "mrkdwn", "text": text})
}

fn plain(text: &str) -> Value {
    json!({"type": "plain_text", "text": text})
}

/// A value as people read it.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_is_shown_by_its_state() {
        for (state, said, title, colour) in [
            ("COMPLETED", "Your experiment completed successfully 🎉", "✅ net (#7)", GREEN),
            ("ERROR", "Your experiment has stopped with errors", "❌ net (#7)", RED),
            ("CANCELED", "The status of your experiment is CANCELED", "net (#7)", BLUE),
        ] {
            let experiment =
                json!({"id": 7, "name": "net", "state": state, "duration": 3_900, "workspace": "lab", "project": "p"});
            let shown = message(&json!({"event_data": {"experiment": experiment}}));
            assert_eq!(shown["blocks"][0]["text"]["text"], said);
            let attachment = &shown["attachments"][0];
            assert_eq!(attachment["color"], colour);
            assert_eq!(attachment["blocks"][0]["text"]["text"], title);
            assert_eq!(attachment["blocks"][0]["fields"][1]["text"], "*Duration*: 1h 5min");
        }
    }
}
