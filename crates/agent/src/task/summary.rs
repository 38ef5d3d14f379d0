//! The summary that our launcher leaves: why a task failed, what became of its ranks' time; and where people find its logs.

use std::path::Path;

use instep_api::goodput::{ClassSeconds, NodeGoodput, StepCount};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::folder::read_bounded;
use crate::order::TaskOrder;

/// Tells the launcher where to write its summary.
pub const WRITTEN_TO: &str = "INSTEP_SUMMARY_JSON";
/// Tells the launcher which command shows what its ranks wrote, in place of folders that go with the task.
pub const SHOW_LOGS: &str = "INSTEP_SHOW_LOGS";
/// A summary is no longer than this.
const LONGEST: u64 = 4 << 20;
/// Characters of a sentence that are kept.
const LONGEST_SENTENCE: usize = 400;

/// A summary, in which the task may have put anything.
pub struct Summary(Value);

impl Summary {
    /// Reads a file, if it is one.
    pub fn read(path: &Path) -> Option<Summary> {
        serde_json::from_slice(&read_bounded(path, LONGEST).ok()?).ok().map(Summary)
    }

    /// What a launcher says went wrong: the rank that caused it, and its exception.
    pub fn failure(&self) -> Option<String> {
        sentence(&self.0)
    }

    /// What became of the ranks' time. Without ranks the launcher says nothing, and no time was spent on anything.
    pub fn goodput(&self) -> Option<NodeGoodput> {
        match self.0.as_object()?.get("goodput") {
            None | Some(Value::Null) => Some(NodeGoodput::default()),
            Some(said) => Said::deserialize(said).ok().map(NodeGoodput::from),
        }
    }
}

/// Goodput as a summary has it.
#[derive(Deserialize)]
struct Said {
    wall_seconds: f64,
    seconds: ClassSeconds,
    ranks: Vec<IgnoredAny>,
    first_step: Option<u64>,
    steps: Option<u64>,
    redone_steps: Option<u64>,
    taken_back_steps: Option<u64>,
}

impl From<Said> for NodeGoodput {
    fn from(said: Said) -> NodeGoodput {
        let steps = said.steps.map(|done| StepCount {
            first: said.first_step.unwrap_or(0),
            done,
            redone: said.redone_steps.unwrap_or(0),
            taken_back: said.taken_back_steps.unwrap_or(0),
        });
        let ranks = u32::try_from(said.ranks.len()).unwrap_or(u32::MAX);
        NodeGoodput { ranks, wall_seconds: said.wall_seconds, seconds: said.seconds, steps }
    }
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
    use super::{Summary, sentence};
    use instep_api::goodput::{ClassSeconds, NodeGoodput, StepCount};
    use serde_json::{Value, json};

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
        assert!(Summary::read(&pipe).is_none() && Summary::read(&link).is_none());
        assert_eq!(Summary::read(&file).unwrap().failure().as_deref(), Some("no port"));
    }

    #[test]
    fn goodput_is_read_where_it_has_the_launchers_form() {
        let seconds = json!({"start": 1, "compute": 2.5, "communication": 0, "data": 0, "checkpoint": 0, "restart": 0,
                             "lost": 0, "idle": 0.5, "unobserved": 0});
        let said = json!({"wall_seconds": 2.0, "ettr": 0.6, "seconds": seconds, "first_step": 3, "steps": 9,
                          "redone_steps": 0, "taken_back_steps": 1, "ranks": [{"rank": 0}, {"rank": 1}]});
        let of = |goodput: Value| Summary(json!({"goodput": goodput})).goodput();
        let seconds = ClassSeconds { start: 1.0, compute: 2.5, idle: 0.5, ..ClassSeconds::default() };
        let steps = Some(StepCount { first: 3, done: 9, redone: 0, taken_back: 1 });
        assert_eq!(of(said.clone()), Some(NodeGoodput { ranks: 2, wall_seconds: 2.0, seconds, steps }));
        assert_eq!(of(Value::Null), Some(NodeGoodput::default()), "no rank was started");
        for (name, value) in
            [("seconds", json!([])), ("wall_seconds", json!("long")), ("ranks", json!(7)), ("steps", json!(-1))]
        {
            let mut changed = said.clone();
            changed[name] = value;
            assert_eq!(of(changed), None, "{name}");
        }
        assert_eq!(Summary(json!("nonsense")).goodput(), None);
    }
}
