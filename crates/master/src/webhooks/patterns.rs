//! Looks for the patterns of webhooks in lines of output, beside the requests that bring them.
//!
//! Patterns and lines are users', and a pattern can be made to take long. So lines wait in a queue ([`LogQueue`]) and one
//! after the other is looked at: only for the webhooks of its own workspace, and for those of all. The patterns of one
//! workspace keep no more than a tenth of a core busy ([`Allowance`]). Lines beyond that, and those for which the queue has
//! no room, are passed over, which the master's log says. Lines that wait when the master ends are not looked at.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use instep_api::identifiers::WorkspaceId;
use instep_api::logs::LogLine;
use instep_api::webhooks::{Trigger, Webhook};
use instep_database::{Database, Subject, is_for};
use regex::Regex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::TASK_LOG;
use crate::application::Application;
use crate::clock::now;
use crate::cluster::{Allowance, beginning, compiled};
use crate::sync::lock;

/// Lines that may wait, of which each is kept up to 4 KiB.
const MOST_LINES: usize = 10_000;
/// Lines that are looked at together.
const AT_ONCE: usize = 500;

/// A pattern that a webhook wants to be told of.
pub(crate) struct LogPattern {
    webhook: Webhook,
    trigger: Trigger,
    pattern: Regex,
}

/// The patterns of all webhooks, read again when one has changed.
#[derive(Default)]
pub(crate) struct LogPatterns(Mutex<KnownPatterns>);

#[derive(Default)]
struct KnownPatterns {
    changes: u64,
    all: Option<Arc<Vec<LogPattern>>>,
}

impl LogPatterns {
    async fn all(&self, database: &Database) -> instep_database::Result<Arc<Vec<LogPattern>>> {
        let changes = {
            let known = lock(&self.0);
            if let Some(all) = &known.all {
                return Ok(Arc::clone(all));
            }
            known.changes
        };
        let mut all = Vec::new();
        for webhook in database.webhooks().await? {
            for trigger in webhook.triggers.iter().filter(|trigger| trigger.trigger_type == TASK_LOG) {
                if let Ok(pattern) = compiled(trigger.condition["regex"].as_str().unwrap_or_default()) {
                    all.push(LogPattern { webhook: webhook.clone(), trigger: trigger.clone(), pattern });
                }
            }
        }
        let all = Arc::new(all);
        let mut known = lock(&self.0);
        // What was read before a change is not remembered.
        if known.changes == changes {
            known.all = Some(Arc::clone(&all));
        }
        Ok(all)
    }

    /// Whether it is known that there are none.
    fn are_none(&self) -> bool {
        lock(&self.0).all.as_ref().is_some_and(|all| all.is_empty())
    }

    /// Reads them again, because a webhook has changed.
    pub(crate) fn forget(&self) {
        let mut known = lock(&self.0);
        known.changes += 1;
        known.all = None;
    }
}

/// Lines that are yet to be looked at.
#[derive(Default)]
pub(crate) struct LogQueue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<LogLine>,
    passed_over: u64,
}

impl LogQueue {
    /// Lets lines wait, as far as there is room for them.
    fn push(&self, lines: Vec<LogLine>) {
        let mut waiting = lock(&self.waiting);
        let room = MOST_LINES - waiting.lines.len();
        waiting.passed_over += lines.len().saturating_sub(room) as u64;
        let short = |mut line: LogLine| {
            line.log.truncate(beginning(&line.log).len());
            line
        };
        waiting.lines.extend(lines.into_iter().take(room).map(short));
        drop(waiting);
        self.arrived.notify_one();
    }

    /// The next lines, and how many were passed over since the last time.
    fn take(&self) -> (Vec<LogLine>, u64) {
        let mut waiting = lock(&self.waiting);
        let count = waiting.lines.len().min(AT_ONCE);
        (waiting.lines.drain(..count).collect(), std::mem::take(&mut waiting.passed_over))
    }
}

/// Lets lines that have been stored be looked at.
pub(crate) fn lines_arrived(application: &Application, lines: Vec<LogLine>) {
    if !application.log_patterns.are_none() {
        application.log_queue.push(lines);
    }
}

/// How long the patterns of a workspace were looked for lately, and of whom the log has said that it is too long.
#[derive(Default)]
struct Allowances {
    spent: BTreeMap<Option<WorkspaceId>, Allowance>,
    said: BTreeSet<Option<WorkspaceId>>,
}

/// What was found: whose pattern, and the line.
type Found = (Webhook, Trigger, LogLine);

/// Tries patterns on lines of one task for as long as is allowed; of each pattern the first line that matches counts.
fn tried(patterns: &[LogPattern], wanted: &[usize], lines: &[LogLine], allowances: &mut Allowances) -> Vec<Found> {
    let mut found = Vec::new();
    for LogPattern { webhook, trigger, pattern } in wanted.iter().filter_map(|number| patterns.get(*number)) {
        let place = webhook.workspace_id;
        for line in lines {
            let begun = Instant::now();
            let allowance = allowances.spent.entry(place).or_default();
            if allowance.is_used_up(begun) {
                if allowances.said.insert(place) {
                    let webhook = webhook.id;
                    tracing::warn!(webhook, "patterns of webhooks take too long: not every line is looked at");
                }
                break;
            }
            let matches = pattern.is_match(&line.log);
            allowance.spend(begun.elapsed());
            if matches {
                found.push((webhook.clone(), trigger.clone(), line.clone()));
                break;
            }
        }
    }
    found
}

/// The patterns of those webhooks that are told of a task, by number.
async fn wanted_of(database: &Database, patterns: &[LogPattern], task: &str) -> instep_database::Result<Vec<usize>> {
    let Some(owner) = database.ownership(Subject::Task(task.to_owned())).await? else { return Ok(Vec::new()) };
    let Some(workspace) = owner.workspace else { return Ok(Vec::new()) };
    let config: Option<Value> = match owner.experiment {
        Some(id) => Some(database.experiment(id, now()).await?.config.into_value()),
        None => None,
    };
    let is_wanted = |pattern: &LogPattern| is_for(&pattern.webhook, config.as_ref(), workspace);
    Ok((0..patterns.len()).filter(|number| is_wanted(&patterns[*number])).collect())
}

async fn look(
    application: &Application,
    lines: Vec<LogLine>,
    mut allowances: Allowances,
) -> (Allowances, instep_database::Result<()>) {
    let database = &application.database;
    let patterns = match application.log_patterns.all(database).await {
        Ok(patterns) => patterns,
        Err(error) => return (allowances, Err(error)),
    };
    let mut by_task: BTreeMap<String, Vec<LogLine>> = BTreeMap::new();
    for line in lines {
        by_task.entry(line.task_id.clone()).or_default().push(line);
    }
    for (task, lines) in by_task {
        let wanted = match wanted_of(database, &patterns, &task).await {
            Ok(wanted) if wanted.is_empty() => continue,
            Ok(wanted) => wanted,
            Err(error) => return (allowances, Err(error)),
        };
        let patterns = Arc::clone(&patterns);
        let trying = tokio::task::spawn_blocking(move || {
            let found = tried(&patterns, &wanted, &lines, &mut allowances);
            (found, allowances)
        });
        let found;
        // A panic is in the log.
        (found, allowances) = trying.await.unwrap_or_default();
        for (webhook, trigger, line) in found {
            let payload = json!({
                "event_type": "TASK_LOG",
                "condition": {"regex": trigger.condition["regex"]},
                "event_data": {"task_log": {
                    "task_id": line.task_id,
                    "node_name": line.agent_id,
                    "triggering_log": line.log,
                }},
            });
            if let Err(error) = database.log_matched(webhook.id, trigger.id, line.task_id, payload, now()).await {
                return (allowances, Err(error));
            }
        }
    }
    (allowances, Ok(()))
}

/// Looks at every line that arrives, for as long as the master runs.
pub(crate) async fn watch(application: Arc<Application>) {
    let mut allowances = Allowances::default();
    loop {
        let (lines, passed_over) = application.log_queue.take();
        if passed_over > 0 {
            tracing::warn!(lines = passed_over, "webhooks are not told of lines that arrived too fast to be looked at");
        }
        if lines.is_empty() {
            application.log_queue.arrived.notified().await;
            continue;
        }
        let outcome;
        (allowances, outcome) = look(&application, lines, allowances).await;
        if let Err(error) = outcome {
            tracing::error!(%error, "cannot look for the patterns of webhooks");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::LOOKED_AT;
    use instep_api::states::LogLevel;

    fn line(text: &str) -> LogLine {
        LogLine {
            id: 0,
            task_id: "task".to_owned(),
            allocation_id: None,
            agent_id: None,
            container_id: None,
            rank_id: None,
            timestamp: now(),
            level: LogLevel::Info,
            source: None,
            stdtype: None,
            log: text.to_owned(),
        }
    }

    fn pattern(webhook: i64, workspace: i64, text: &str) -> LogPattern {
        let trigger = Trigger {
            id: 1,
            webhook_id: webhook,
            trigger_type: TASK_LOG.to_owned(),
            condition: json!({"regex": text}),
        };
        let webhook = Webhook {
            id: webhook,
            name: "hook".to_owned(),
            url: "http://example.org".to_owned(),
            webhook_type: "WEBHOOK_TYPE_DEFAULT".to_owned(),
            mode: "WEBHOOK_MODE_WORKSPACE".to_owned(),
            workspace_id: Some(WorkspaceId(workspace)),
            triggers: vec![trigger.clone()],
        };
        LogPattern { webhook, trigger, pattern: compiled(text).unwrap() }
    }

    #[test]
    fn a_queue_that_is_full_passes_lines_over_and_counts_them() {
        let queue = LogQueue::default();
        queue.push(vec![line(&"a".repeat(3 * LOOKED_AT)); MOST_LINES - 1]);
        queue.push(vec![line("b"); 3]);
        let (lines, passed_over) = queue.take();
        assert_eq!((lines.len(), lines[0].log.len(), passed_over), (AT_ONCE, LOOKED_AT, 2));
        assert_eq!(queue.take().1, 0, "it is said once");
    }

    #[test]
    fn patterns_that_take_long_are_given_up_and_others_are_not() {
        let slow: Vec<String> = (380..400).map(|length| format!("(?:[ab]*a[ab]{{{length}}}c)")).collect();
        let mut patterns: Vec<LogPattern> = slow.iter().map(|text| pattern(1, 1, text)).collect();
        patterns.push(pattern(2, 2, "a+"));
        let wanted: Vec<usize> = (0..patterns.len()).collect();
        let lines = vec![line(&"a".repeat(LOOKED_AT)); 100];
        let mut allowances = Allowances::default();
        // Almost used up: the rest is for the first of them.
        allowances.spent.entry(Some(WorkspaceId(1))).or_default().spend(std::time::Duration::from_millis(1990));
        let found = tried(&patterns, &wanted, &lines, &mut allowances);
        assert_eq!(found.iter().map(|(webhook, ..)| webhook.id).collect::<Vec<_>>(), [2], "once for the pattern");
        assert_eq!(allowances.said, BTreeSet::from([Some(WorkspaceId(1))]));
    }
}
