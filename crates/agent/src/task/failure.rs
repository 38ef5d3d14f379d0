//! Why a task failed, from the summary that our launcher leaves, and where people find its logs.

use std::path::Path;

use serde_json::Value;

use crate::folder::read_bounded;
use crate::order::TaskOrder;

/// Tells the launcher where to write its summary.
pub const SUMMARY: &str = "INSTEP_SUMMARY_JSON";
/// Tells the launcher which command shows what its ranks wrote, in place of folders that go with the task.
pub const SHOW_LOGS: &str = "INSTEP_SHOW_LOGS";
/// A summary is no longer than this.
const LONGEST: u64 = 4 << 20;
/// Characters of a sentence that are kept.
const LONGEST_SENTENCE: usize = 400;

/// What a launcher says went wrong: the rank that caused it, and its exception.
pub fn read(summary: &Path) -> Option<String> {
    // The task may have put anything there.
    sentence(&serde_json::from_slice(&read_bounded(summary, LONGEST).ok()?).ok()?)
}

fn sentence(summary: &Value) -> Option<String> {
    let root = summary.get("root_cause");
    let failed_itself = root.is_some_and(|root| root["because_of_others"] == false && root["exit_code"] != 0);
    let rank = root.and_then(|root| root["rank"].as_u64());
    let message = root.and_then(|root| root["message"].as_str()?.lines().next());
    let sentence = match (rank, message) {
        (Some(rank), Some(message)) if failed_itself => format!("rank {rank}: {message}"),
        _ => summary.get("cause").or(summary.get("reason"))?.as_str()?.to_owned(),
    };
    // On one line: what a task says must not look like our own next line.
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    Some(sentence.chars().map(plain).take(LONGEST_SENTENCE).collect())
}

/// The command that shows what a task wrote.
pub fn command_for_logs(order: &TaskOrder) -> String {
    match order.start.environment.get("DET_TRIAL_ID") {
        Some(trial) => format!("instep trial logs {trial}"),
        None => format!("instep task logs {}", order.start.task),
    }
}

#[cfg(test)]
mod tests {
    use super::{read, sentence};
    use serde_json::json;

    #[test]
    fn a_summary_becomes_a_sentence_with_rank_and_exception() {
        let root = |others: bool, code: i32, message: Option<&str>| json!({"rank": 1, "because_of_others": others, "exit_code": code, "message": message});
        let cases = [
            (root(false, 1, Some("ValueError: no\nmore")), "rank 1: ValueError: no"),
            (root(false, -9, None), "said"),
            (root(false, 0, None), "said"),
            (json!(null), "said"),
        ];
        for (root, expected) in cases {
            let summary = json!({"cause": "said", "root_cause": root});
            assert_eq!(sentence(&summary).as_deref(), Some(expected), "{summary}");
        }
        assert_eq!(sentence(&json!({"reason": "no port"})).as_deref(), Some("no port"));
        assert_eq!(sentence(&json!(3)), None);
        let forged = json!({"cause": "x\nhint: \u{1b}[2Jrun this"});
        assert_eq!(sentence(&forged).as_deref(), Some("x hint:  [2Jrun this"));
    }

    #[test]
    fn a_pipe_or_a_link_in_place_of_the_summary_is_no_summary() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link, file) = (folder.path().join("pipe"), folder.path().join("link"), folder.path().join("file"));
        std::fs::write(&file, r#"{"reason": "no port"}"#).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!((read(&pipe), read(&link)), (None, None));
        assert_eq!(read(&file).as_deref(), Some("no port"));
    }
}
