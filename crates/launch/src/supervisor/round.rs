//! What this launcher knows of the rounds so far: how many there were, who has ended in this one, and why it stopped.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::control::Start;
use crate::events::EventLog;
use crate::failure::cause::{Cause, Round};
use crate::failure::{self, Failure};
use crate::output::fold::describe_ranks;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Rounds started.
    pub(super) count: u64,
    /// Restarts spent.
    pub(super) restarts: u32,
    /// What the newest round was started with.
    pub(super) last_start: Option<Start>,
    /// Workers of the newest round that have ended, well or not.
    pub(super) ends: Vec<Failure>,
    /// When this node's workers began to end, and what was said of it.
    stopped: Option<(Instant, String)>,
    began: Instant,
}

impl Rounds {
    pub(super) fn new(now: Instant) -> Rounds {
        Rounds { count: 0, restarts: 0, last_start: None, ends: Vec::new(), stopped: None, began: now }
    }

    pub(super) fn world_size(&self) -> usize {
        self.last_start.as_ref().map_or(0, |start| start.world_size)
    }

    /// How long the newest round has run.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// A round starts. Returns the line that tells people which part of it this node has, and what it cost to get there.
    pub(super) fn start(&mut self, start: &Start, workers: usize, events: &EventLog) -> String {
        self.count += 1;
        self.restarts = start.restarts;
        self.ends.clear();
        self.began = Instant::now();
        let before = self.last_start.replace(start.clone());
        let stopped = self.stopped.take();
        let cost = stopped.as_ref().map(|(since, _)| since.elapsed().as_secs_f64());
        events.note(
            "round_started",
            json!({
                "round": start.round,
                "restarts": start.restarts,
                "changes": start.changes,
                "reason": start.reason,
                "nodes": start.group_world_size,
                "world_size": start.world_size,
                "group_rank": start.group_rank,
                "first_rank": start.first_rank,
                "workers": workers,
                "seconds_without_workers": cost,
            }),
        );
        let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let ranks = |first: usize| describe_ranks(&(first..first + workers).collect::<Vec<_>>());
        let mut text = format!(
            "round {}: {}, {}; this is node {} with {}",
            start.round,
            counted(start.group_world_size, "node"),
            counted(start.world_size, "worker"),
            start.group_rank,
            ranks(start.first_rank)
        );
        if let Some(before) = before.filter(|before| before.first_rank != start.first_rank) {
            text.push_str(&format!(" ({} before)", ranks(before.first_rank)));
        }
        let is_news = |reason: &&String| stopped.as_ref().is_none_or(|(_, told)| told != *reason);
        if let Some(reason) = start.reason.as_ref().filter(is_news) {
            text.push_str(&format!("; {reason}"));
        }
        if let Some(cost) = cost {
            text.push_str(&format!("; {cost:.1} s without workers"));
        }
        text
    }

    /// The workers are about to end, for this reason; `running` if there are any.
    pub(super) fn stop(&mut self, reason: &str, running: bool, events: &EventLog) {
        if running && self.stopped.is_none() {
            let ran = self.elapsed().as_secs_f64();
            let round = self.last_start.as_ref().map(|start| start.round);
            events.note("round_stopped", json!({"round": round, "reason": reason, "ran_seconds": ran}));
        }
        let since = self.stopped.take().map_or_else(Instant::now, |(since, _)| since);
        self.stopped = Some((since, reason.to_owned()));
    }

    /// Adds failures that the coordinator knows of, before those of this node, whose host is `own_host`. What is said of
    /// one that ended here with 0 is news.
    pub(super) fn add_remote_failures(&mut self, failures: Vec<Failure>, own_host: &str) {
        let mut news = Vec::new();
        for failure in failures {
            let same = |ours: &&mut Failure| ours.pid == failure.pid && ours.rank == failure.rank;
            match self.ends.iter_mut().filter(|_| failure.host == own_host).find(same) {
                Some(ours) if ours.exit.success() => ours.sentence = failure.sentence,
                Some(_) => {}
                None => news.push(failure),
            }
        }
        self.ends.splice(0..0, news);
    }

    /// The first worker that failed, cause or not.
    pub(super) fn first_failure(&self) -> Option<&Failure> {
        self.ends.iter().find(|end| !end.exit.success())
    }

    /// Who caused the end of the round; `is_final` where nothing more is waited for.
    pub(super) fn root_cause(&self, is_final: bool) -> Option<Cause> {
        failure::root_cause(&self.ends, Round { world_size: self.world_size(), is_final })
    }
}
