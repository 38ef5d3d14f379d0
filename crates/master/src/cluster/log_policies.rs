//! Log policies: patterns in the output of trials, and what is done about trials whose output matches.
//!
//! Patterns and lines are users', and a pattern can be made to take long. So the task that owns the cluster does not look
//! for them; whoever brought the lines does, on another thread ([`look`]). An experiment's patterns keep no more than a
//! tenth of a core busy ([`Allowance`]): what is beyond that is not looked at, and the trial's log says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use instep_api::config::{ExperimentConfig, LogAction, LogPolicy};
use instep_api::logs::LogLine;
use instep_api::states::LogLevel;
use instep_policy::lifecycle::{Event, PolicyAction};
use regex::{Regex, RegexBuilder};
use tokio::sync::Mutex;

use super::allocation::{Allocation, Purpose};
use super::allocations::Allocations;
use super::experiments::Experiments;
use super::outbox::Outbox;

/// Bytes that a pattern may take when it is compiled.
const PATTERN_SIZE: usize = 1 << 20;
/// Bytes that a pattern may take while it is looked for.
const CACHE_SIZE: usize = 1 << 18;
/// Policies of an experiment.
pub(crate) const MOST_POLICIES: usize = 100;
/// Bytes of a line that are looked at.
pub(crate) const LOOKED_AT: usize = 4 << 10;
/// How long an experiment's patterns may be looked for at once, if they were not for a while.
const BURST: Duration = Duration::from_secs(2);
/// Which part of a core they may keep busy in the long run: one of so many.
const PART_OF_A_CORE: u32 = 10;

/// A pattern that can be looked for.
pub(crate) fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(PATTERN_SIZE).dfa_size_limit(CACHE_SIZE).build()
}

/// The patterns of an experiment.
#[derive(Debug)]
pub(super) struct Patterns {
    all: Vec<Pattern>,
    allowance: Arc<Mutex<Allowance>>,
    /// The trial's log says that not every line is looked at.
    is_said: AtomicBool,
}

#[derive(Debug)]
struct Pattern {
    name: String,
    regex: Regex,
    action: Option<LogAction>,
}

impl Patterns {
    pub(super) fn of(config: &ExperimentConfig) -> Result<Patterns, String> {
        let one = |policy: &LogPolicy| {
            let pattern = policy.pattern.as_deref()?;
            let wrong = |error| format!("log_policies: `{pattern}` cannot be used: {error}");
            let name = policy.name.clone().unwrap_or_default();
            Some(compiled(pattern).map_err(wrong).map(|regex| Pattern { name, regex, action: policy.action }))
        };
        let all = config.log_policies.iter().filter_map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(Patterns { all, allowance: Arc::default(), is_said: AtomicBool::new(false) })
    }

    /// Looks for all of them in lines of one allocation, for as long as is allowed. Of several lines that match a pattern on
    /// one machine, the first counts.
    fn look(&self, lines: &[LogLine], allowance: &mut Allowance) -> Looked {
        let mut looked = Looked::default();
        let mut seen = BTreeSet::new();
        for line in lines {
            let text = beginning(&line.log);
            for (number, pattern) in self.all.iter().enumerate() {
                if seen.contains(&(number, &line.agent_id)) {
                    continue;
                }
                let begun = Instant::now();
                if allowance.is_used_up(begun) {
                    looked.is_cut_short = true;
                    return looked;
                }
                if pattern.regex.is_match(text) {
                    seen.insert((number, &line.agent_id));
                    looked.matches.push(Match { pattern: number, agent: line.agent_id.clone(), line: text.to_owned() });
                }
                allowance.spend(begun.elapsed());
            }
        }
        looked
    }
}

/// The part of a line that patterns of users are looked for in: one can take long, the longer the line is.
pub(crate) fn beginning(line: &str) -> &str {
    let mut end = line.len().min(LOOKED_AT);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

/// How long patterns were looked for lately: the time spent, less what has been allowed since.
#[derive(Debug)]
pub(crate) struct Allowance {
    spent: Duration,
    counted_at: Instant,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { spent: Duration::ZERO, counted_at: Instant::now() }
    }
}

impl Allowance {
    pub(crate) fn is_used_up(&mut self, now: Instant) -> bool {
        let allowed = now.saturating_duration_since(self.counted_at) / PART_OF_A_CORE;
        (self.spent, self.counted_at) = (self.spent.saturating_sub(allowed), now);
        self.spent >= BURST
    }

    pub(crate) fn spend(&mut self, time: Duration) {
        self.spent += time;
    }
}

/// What was found in lines of an allocation.
#[derive(Debug, Default)]
pub(super) struct Looked {
    matches: Vec<Match>,
    /// Not all lines were looked at.
    is_cut_short: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Match {
    /// Its number among the experiment's patterns.
    pattern: usize,
    agent: Option<String>,
    line: String,
}

/// What is to be looked for in the output of an allocation.
pub(super) struct Wanted {
    allocation: String,
    task: String,
    patterns: Arc<Patterns>,
}

/// Looks for what is wanted in lines of output. A line counts for its own task alone: whoever sent it was asked about that.
pub(super) async fn look(lines: &[LogLine], wanted: Vec<Wanted>) -> Vec<(String, Looked)> {
    let mut found = Vec::new();
    for Wanted { allocation, task, patterns } in wanted {
        let is_its = |line: &&LogLine| line.allocation_id.as_ref() == Some(&allocation) && line.task_id == task;
        let own: Vec<LogLine> = lines.iter().filter(is_its).cloned().collect();
        // One at a time: more would only wait on more threads.
        let mut allowance = Arc::clone(&patterns.allowance).lock_owned().await;
        let looking = tokio::task::spawn_blocking(move || patterns.look(&own, &mut allowance));
        found.push((allocation, looking.await.unwrap_or_default()));
    }
    found.retain(|(_, looked)| looked.is_cut_short || !looked.matches.is_empty());
    found
}

impl Experiments {
    /// What is to be looked for in lines of these allocations.
    pub(super) fn wanted_patterns(&self, allocations: &Allocations, names: &BTreeSet<String>) -> Vec<Wanted> {
        let wanted = |name: &String| {
            let allocation = allocations.get(name)?;
            let Purpose::Trial { experiment, .. } = &allocation.purpose else { return None };
            let patterns = Arc::clone(&self.get(*experiment)?.patterns);
            let (allocation, task) = (name.clone(), allocation.task.clone());
            (!patterns.all.is_empty()).then_some(Wanted { allocation, task, patterns })
        };
        names.iter().filter_map(wanted).collect()
    }

    /// Does what the log policies say about what was found.
    pub(super) fn apply_log_policies(
        &mut self,
        found: Vec<(String, Looked)>,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) {
        for (name, looked) in found {
            let Some(allocation) = allocations.get(&name) else { continue };
            let Purpose::Trial { experiment, .. } = &allocation.purpose else { continue };
            let Some(live) = self.get(*experiment) else { continue };
            let (experiment, patterns) = (*experiment, Arc::clone(&live.patterns));
            if looked.is_cut_short && !patterns.is_said.swap(true, Ordering::Relaxed) {
                let what = "log_policies: not every line is looked at, because the patterns take too long\n\
                            hint: use fewer or simpler patterns, or write fewer lines";
                outbox.log(&allocation.task, Some(&name), LogLevel::Warning, what);
            }
            let events: Vec<Event> =
                looked.matches.into_iter().filter_map(|found| event(allocation, &patterns, found)).collect();
            for event in events {
                self.on(experiment, event, allocations, outbox);
            }
        }
    }
}

fn event(allocation: &Allocation, patterns: &Patterns, found: Match) -> Option<Event> {
    let Purpose::Trial { run, .. } = &allocation.purpose else { return None };
    let pattern = patterns.all.get(found.pattern)?;
    let action = match pattern.action {
        Some(LogAction::CancelRetries) => PolicyAction::CancelRetries,
        // A line may name any machine; only those are left out that the trial runs on.
        Some(LogAction::ExcludeNode) => {
            let agent = found.agent?;
            let placed = allocation.placed.as_ref()?;
            placed.shares.iter().any(|share| share.agent == agent).then_some(PolicyAction::ExcludeNode { agent })?
        }
        None => PolicyAction::Mark,
    };
    Some(Event::LogMatched {
        run: run.clone(),
        policy: pattern.name.clone(),
        pattern: pattern.regex.as_str().to_owned(),
        line: found.line,
        action,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(all: &[&str]) -> Patterns {
        let pattern = |text: &&str| Pattern { name: (*text).to_owned(), regex: compiled(text).unwrap(), action: None };
        Patterns { all: all.iter().map(pattern).collect(), allowance: Arc::default(), is_said: AtomicBool::new(false) }
    }

    fn line(task: &str, allocation: &str, text: &str) -> LogLine {
        LogLine {
            id: 0,
            task_id: task.to_owned(),
            allocation_id: Some(allocation.to_owned()),
            agent_id: None,
            container_id: None,
            rank_id: None,
            timestamp: crate::clock::now(),
            level: LogLevel::Info,
            source: None,
            stdtype: None,
            log: text.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_line_counts_for_its_own_task_alone() {
        let wanted = || {
            let patterns = Arc::new(patterns(&["bad"]));
            vec![Wanted { allocation: "mine.1".to_owned(), task: "mine".to_owned(), patterns }]
        };
        let found = look(&[line("mine", "mine.1", "bad"), line("mine", "mine.1", "bad again")], wanted()).await;
        assert_eq!(found[0].1.matches.len(), 1, "the first counts");
        assert_eq!(found[0].1.matches[0].line, "bad");
        assert!(look(&[line("another", "mine.1", "bad")], wanted()).await.is_empty());
        assert!(look(&[line("mine", "mine.0", "bad")], wanted()).await.is_empty());
    }

    #[test]
    fn patterns_that_take_long_are_given_up() {
        let slow: Vec<String> = (0..3).map(|number| format!("[ab]*a[ab]{{{}}}[^ab]a", 500 + number)).collect();
        let patterns = patterns(&slow.iter().map(String::as_str).collect::<Vec<_>>());
        let lines = vec![line("t", "t.1", &"ab".repeat(LOOKED_AT)); 1000];
        let mut allowance = Allowance { spent: BURST - Duration::from_millis(1), counted_at: Instant::now() };
        assert!(patterns.look(&lines, &mut allowance).is_cut_short);
    }

    #[test]
    fn an_allowance_comes_back_with_time() {
        let now = Instant::now();
        let mut allowance = Allowance { spent: Duration::ZERO, counted_at: now };
        assert!(!allowance.is_used_up(now));
        allowance.spend(3 * BURST);
        assert!(allowance.is_used_up(now));
        // What was used in excess is paid back first.
        assert!(allowance.is_used_up(now + BURST * PART_OF_A_CORE));
        assert!(!allowance.is_used_up(now + 3 * BURST * PART_OF_A_CORE));
    }

    #[test]
    fn only_the_beginning_of_a_line_is_looked_at() {
        let text = format!("{}é", "a".repeat(LOOKED_AT - 1));
        assert_eq!(beginning(&text).len(), LOOKED_AT - 1, "whole characters");
        assert_eq!(beginning("short"), "short");
    }
}
