//! Lines of output of tasks: what is sent, what is kept, what is shown.

use serde::{Deserialize, Serialize};

use crate::identifiers::TrialId;
use crate::states::LogLevel;
use crate::wire::{Long, Timestamp, Whole};

/// A line as it is sent, by either route.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogRecord {
    #[serde(alias = "taskId")]
    pub task_id: Option<String>,
    #[serde(alias = "allocationId")]
    pub allocation_id: Option<String>,
    #[serde(alias = "agentId")]
    pub agent_id: Option<String>,
    #[serde(alias = "containerId")]
    pub container_id: Option<String>,
    /// Scripts in detached mode call it `rank`.
    #[serde(alias = "rankId", alias = "rank")]
    pub rank_id: Option<Whole>,
    pub timestamp: Option<Timestamp>,
    pub level: Option<LogLevel>,
    pub source: Option<String>,
    pub stdtype: Option<String>,
    pub log: Option<String>,
}

/// `POST /api/v1/task/logs`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct PostTaskLogsRequest {
    pub logs: Option<Vec<LogRecord>>,
}

/// A line as it is kept.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogLine {
    pub id: i64,
    pub task_id: String,
    pub allocation_id: Option<String>,
    pub agent_id: Option<String>,
    pub container_id: Option<String>,
    pub rank_id: Option<i64>,
    pub timestamp: Timestamp,
    pub level: LogLevel,
    pub source: Option<String>,
    pub stdtype: Option<String>,
    pub log: String,
}

/// Which lines are wanted; an empty list wants all.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogFilter {
    pub agent_ids: Vec<String>,
    pub allocation_ids: Vec<String>,
    pub container_ids: Vec<String>,
    /// -1 stands for lines without a rank.
    pub rank_ids: Vec<i64>,
    pub levels: Vec<LogLevel>,
    pub sources: Vec<String>,
    pub stdtypes: Vec<String>,
    pub before: Option<Timestamp>,
    pub after: Option<Timestamp>,
}

/// A line as it is shown, of a trial or of a task: `message` is the line with its time, container, rank and level.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct ShownLine {
    pub id: String,
    pub timestamp: Timestamp,
    pub level: LogLevel,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial_id: Option<TrialId>,
    pub task_id: String,
    pub allocation_id: Option<String>,
    pub agent_id: Option<String>,
    pub container_id: Option<String>,
    pub rank_id: Option<i64>,
    pub log: String,
    pub source: Option<String>,
    pub stdtype: Option<String>,
}

impl ShownLine {
    /// Shows a line, as one of `trial`'s if it is asked for that way.
    pub fn of(line: LogLine, trial: Option<TrialId>) -> ShownLine {
        let message = message(&line);
        ShownLine {
            id: line.id.to_string(),
            timestamp: line.timestamp,
            level: line.level,
            message,
            trial_id: trial,
            task_id: line.task_id,
            allocation_id: line.allocation_id,
            agent_id: line.agent_id,
            container_id: line.container_id,
            rank_id: line.rank_id,
            log: line.log,
            source: line.source,
            stdtype: line.stdtype,
        }
    }
}

/// `[time] container [rank=N] || LEVEL: text`, parts that are unknown left out.
fn message(line: &LogLine) -> String {
    let container: String = line.container_id.as_deref().unwrap_or_default().chars().take(8).collect();
    let rank = line.rank_id.map(|rank| format!(" [rank={rank}]")).unwrap_or_default();
    let level = match line.level {
        LogLevel::Unspecified => String::new(),
        level => format!(" {}:", level.word()),
    };
    format!("[{}] {container:8}{rank} ||{level} {}", line.timestamp, line.log)
}

/// What occurs in a task's lines, to choose filters from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct LogFields {
    pub agent_ids: Vec<String>,
    pub allocation_ids: Vec<String>,
    pub container_ids: Vec<String>,
    pub rank_ids: Vec<i64>,
    pub stdtypes: Vec<String>,
    pub sources: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_as_determined_shows_them() {
        let line = LogLine {
            id: 1,
            task_id: "1.2".into(),
            allocation_id: None,
            agent_id: None,
            container_id: Some("f6114bb3-0000".into()),
            rank_id: Some(0),
            timestamp: Timestamp::parse("2026-01-02T03:04:05Z").unwrap(),
            level: LogLevel::Info,
            source: None,
            stdtype: None,
            log: "[1167] root: x is now 576\n".into(),
        };
        let shown = "[2026-01-02T03:04:05.000000Z] f6114bb3 [rank=0] || INFO: [1167] root: x is now 576\n";
        assert_eq!(message(&line), shown);
        let bare = LogLine { container_id: None, rank_id: None, level: LogLevel::Unspecified, ..line };
        assert_eq!(message(&bare), "[2026-01-02T03:04:05.000000Z]          || [1167] root: x is now 576\n");
    }
}

/// `PUT /trials/{id}/retain_logs` and `PUT /experiments/{id}/retain_logs`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetainLogsRequest {
    /// -1 for ever.
    #[serde(alias = "num_days")]
    pub num_days: Option<Whole>,
}

/// `GET /trials/{id}/remaining_log_retention_days`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemainingDaysResponse {
    /// -1 for ever.
    pub remaining_days: i64,
}

/// `POST /cleanup_logs`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct CleanupLogsResponse {
    pub removed_count: Long,
}
