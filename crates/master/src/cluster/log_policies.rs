//! Log policies: patterns in the output of trials, and what is done about trials whose output matches.

use instep_api::config::{ExperimentConfig, LogAction};
use instep_api::identifiers::ExperimentId;
use instep_api::logs::LogLine;
use instep_policy::lifecycle::{Event, PolicyAction};
use regex::{Regex, RegexBuilder};

use super::allocation::Purpose;
use super::allocations::Allocations;
use super::experiments::Experiments;
use super::outbox::Outbox;

/// Memory that a pattern may take when it is compiled.
const PATTERN_SIZE: usize = 1 << 20;

/// The patterns of an experiment.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    all: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    name: String,
    regex: Regex,
    action: Option<LogAction>,
}

impl Patterns {
    pub(super) fn of(config: &ExperimentConfig) -> Result<Patterns, String> {
        let mut all = Vec::new();
        for policy in &config.log_policies {
            let Some(pattern) = &policy.pattern else { continue };
            let regex = RegexBuilder::new(pattern)
                .size_limit(PATTERN_SIZE)
                .build()
                .map_err(|error| format!("log_policies: `{pattern}` cannot be used: {error}"))?;
            all.push(Pattern { name: policy.name.clone().unwrap_or_default(), regex, action: policy.action });
        }
        Ok(Patterns { all })
    }

    fn matches<'a>(&'a self, line: &'a str) -> impl Iterator<Item = &'a Pattern> {
        self.all.iter().filter(move |pattern| pattern.regex.is_match(line))
    }
}

/// Whether the patterns of a configuration can be used.
pub(crate) fn check_log_policies(config: &ExperimentConfig) -> Result<(), String> {
    Patterns::of(config).map(drop)
}

impl Experiments {
    /// The events of lines of output that match a policy.
    fn matches(&self, allocations: &Allocations, lines: &[LogLine]) -> Vec<(ExperimentId, Event)> {
        let mut found = Vec::new();
        for line in lines {
            let Some(name) = &line.allocation_id else { continue };
            let Some(allocation) = allocations.get(name) else { continue };
            let Purpose::Trial { experiment, run, .. } = &allocation.purpose else { continue };
            let Some(live) = self.get(*experiment) else { continue };
            for pattern in live.patterns.matches(&line.log) {
                let action = match pattern.action {
                    Some(LogAction::CancelRetries) => PolicyAction::CancelRetries,
                    Some(LogAction::ExcludeNode) => match &line.agent_id {
                        Some(agent) => PolicyAction::ExcludeNode { agent: agent.clone() },
                        None => continue,
                    },
                    None => PolicyAction::Mark,
                };
                let event = Event::LogMatched {
                    run: run.clone(),
                    policy: pattern.name.clone(),
                    pattern: pattern.regex.as_str().to_owned(),
                    line: line.log.clone(),
                    action,
                };
                found.push((*experiment, event));
            }
        }
        found
    }

    /// Does what the log policies say about lines of output.
    pub(super) fn apply_log_policies(&mut self, lines: &[LogLine], allocations: &mut Allocations, outbox: &mut Outbox) {
        for (experiment, event) in self.matches(allocations, lines) {
            self.on(experiment, event, allocations, outbox);
        }
    }
}
