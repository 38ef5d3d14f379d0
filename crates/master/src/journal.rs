//! The last few thousand lines of the master's own log, in memory only.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use instep_api::cluster::LogEntry;
use instep_api::states::LogLevel;
use tokio::sync::watch;

use crate::clock::now;
use crate::sync::lock;

/// Lines that are kept.
const LINES: usize = 2000;
/// Bytes of a line that are kept, so that all of them together take a few megabytes at most.
const LONGEST: usize = 4096;

/// Shared between who logs and who reads.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Inner>);

/// Lets a logger know from which level on it is to log.
type Switch = Box<dyn Fn(LogLevel) + Send + Sync>;

#[derive(Default)]
struct Inner {
    level: Mutex<Option<LogLevel>>,
    switch: OnceLock<Switch>,
    lines: Mutex<Lines>,
    arrivals: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<LogEntry>,
    /// Lines ever logged, which is the number of the next one.
    logged: i64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Journal").field("level", &self.level).finish_non_exhaustive()
    }
}

impl Journal {
    /// Says from which level on is logged, and how to change that while the process runs.
    pub fn starts_at(&self, level: LogLevel, switch: impl Fn(LogLevel) + Send + Sync + 'static) {
        *lock(&self.0.level) = Some(level);
        // The first logger stays the only one.
        let _ = self.0.switch.set(Box::new(switch));
    }

    /// Logs from this level on.
    pub(crate) fn set_level(&self, level: LogLevel) {
        if let Some(switch) = self.0.switch.get() {
            switch(level);
            *lock(&self.0.level) = Some(level);
        }
    }

    /// From which level on is logged.
    pub(crate) fn level(&self) -> LogLevel {
        lock(&self.0.level).unwrap_or(LogLevel::Info)
    }

    /// Adds a line that is logged now; the oldest goes when there are too many.
    pub fn add(&self, level: LogLevel, mut message: String) {
        let timestamp = now();
        if message.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let mut lines = self.lines();
        if lines.kept.len() == LINES {
            lines.kept.pop_front();
        }
        let id = lines.logged;
        lines.logged += 1;
        lines.kept.push_back(LogEntry { id, level, message, timestamp });
        drop(lines);
        self.0.arrivals.send_modify(|()| {});
    }

    /// The number of the first line behind so many; a negative number counts from the end.
    pub(crate) fn number_behind(&self, skipped: i64) -> i64 {
        let lines = self.lines();
        let first = lines.logged - lines.kept.len() as i64;
        if skipped < 0 { lines.logged.saturating_add(skipped).max(first) } else { first.saturating_add(skipped) }
    }

    /// At most so many of the lines that are kept, from a number on.
    pub(crate) fn from(&self, number: i64, limit: usize) -> Vec<LogEntry> {
        let lines = self.lines();
        let begin = lines.kept.partition_point(|line| line.id < number);
        lines.kept.range(begin..).take(limit).cloned().collect()
    }

    /// To be woken when lines are added.
    pub(crate) fn follow(&self) -> watch::Receiver<()> {
        self.0.arrivals.subscribe()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.0.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_found_from_both_ends() {
        let journal = Journal::default();
        let numbers = |number: i64, limit: usize| -> Vec<i64> {
            journal.from(number, limit).into_iter().map(|line| line.id).collect()
        };
        assert_eq!((journal.number_behind(-5), numbers(0, 10)), (0, vec![]));
        let arrivals = journal.follow();
        for line in 0..LINES as i64 + 10 {
            journal.add(LogLevel::Info, format!("line {line}"));
        }
        assert!(arrivals.has_changed().unwrap());
        assert_eq!(numbers(0, 3), [10, 11, 12]);
        assert_eq!(numbers(journal.number_behind(2), 1), [12]);
        assert_eq!(numbers(journal.number_behind(-2), 10), [LINES as i64 + 8, LINES as i64 + 9]);
        assert_eq!(numbers(journal.number_behind(i64::MIN), 1), [10]);
        assert_eq!(numbers(journal.number_behind(i64::MAX), 1), Vec::<i64>::new());
    }

    #[test]
    fn a_long_line_is_cut_between_letters() {
        let journal = Journal::default();
        journal.add(LogLevel::Error, "ä".repeat(LONGEST));
        let kept = &journal.from(0, 1)[0].message;
        assert!(kept.len() <= LONGEST + 3 && kept.ends_with("ä…"), "{kept}");
    }
}
