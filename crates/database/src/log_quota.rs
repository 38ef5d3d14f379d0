//! How much the lines of one task may take: what comes beyond the limit is dropped, and the log says so.
//!
//! The beginning of a log is kept, since it cannot be had again once a task writes without end; why a task ended is known
//! without its log. What is used is counted in memory, on the thread that writes, and looked up for a task that is not known.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use instep_api::logs::LogLine;
use instep_api::states::LogLevel;

use crate::error::Result;
use crate::sql::Connection;

/// What a line takes besides its text: so that empty lines count too.
const OVERHEAD: u64 = 100;
/// Tasks that are remembered; then all are forgotten, and looked up again.
const MOST_TASKS: usize = 4096;
/// Dropped lines are counted in the log at this many, and then at every tenfold.
const FIRST_COUNT: u64 = 1000;

/// What one task's lines have used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Used {
    bytes: u64,
    /// Lines that were dropped since the task is known.
    dropped: u64,
}

impl Used {
    /// Takes in a line of so many bytes. `false`: it is dropped.
    fn admit(&mut self, bytes: u64, limit: u64) -> bool {
        let cost = bytes.saturating_add(OVERHEAD);
        // Nothing is let in once the end was said, however short.
        let fits = self.dropped == 0 && self.bytes.saturating_add(cost) <= limit;
        if fits {
            self.bytes += cost;
        } else {
            self.dropped += 1;
        }
        fits
    }

    /// What the log says about the line that was dropped just now.
    fn note(self, limit: u64) -> Option<String> {
        let mebibytes = limit.div_ceil(1 << 20);
        let count = self.dropped;
        match count {
            1 => Some(format!(
                "instep: the log ends here: it has reached the limit of {mebibytes} MiB for one task, and further lines are \
                 dropped (hint: write less, or ask the administrator for another --task-log-limit of the master)\n"
            )),
            FIRST_COUNT.. if is_power_of_ten(count) => {
                Some(format!("instep: {count} lines dropped since the log reached its limit of {mebibytes} MiB\n"))
            }
            _ => None,
        }
    }
}

fn is_power_of_ten(number: u64) -> bool {
    number.checked_ilog10().is_some_and(|digits| 10_u64.pow(digits) == number)
}

/// The limit, and what tasks have used of it.
#[derive(Debug)]
pub(crate) struct LogQuota {
    /// Bytes for one task.
    limit: AtomicU64,
    used: Mutex<HashMap<String, Used>>,
}

impl Default for LogQuota {
    fn default() -> LogQuota {
        LogQuota { limit: AtomicU64::new(u64::MAX), used: Mutex::default() }
    }
}

impl LogQuota {
    pub fn set(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The lines that are kept, with what is said in place of the others.
    pub fn admit(&self, connection: &Connection, lines: Vec<LogLine>) -> Result<Vec<LogLine>> {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == u64::MAX {
            return Ok(lines);
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Vec::with_capacity(lines.len());
        for line in lines {
            if !used.contains_key(&line.task_id) {
                if used.len() >= MOST_TASKS {
                    used.clear();
                }
                let bytes = stored(connection, &line.task_id)?;
                used.insert(line.task_id.clone(), Used { bytes, dropped: 0 });
            }
            let of_task = used.entry(line.task_id.clone()).or_default();
            if of_task.admit(line.log.len() as u64, limit) {
                kept.push(line);
            } else if let Some(log) = of_task.note(limit) {
                kept.push(LogLine { log, level: LogLevel::Warning, rank_id: None, ..line });
            }
        }
        Ok(kept)
    }
}

/// What the lines of a task take.
fn stored(connection: &Connection, task: &str) -> Result<u64> {
    let sql = "SELECT COUNT(*), COALESCE(SUM(LENGTH(line)), 0) FROM task_logs WHERE task_id = ?";
    let (lines, bytes): (i64, i64) =
        connection.prepare_cached(sql)?.query_row([task], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(bytes.unsigned_abs().saturating_add(lines.unsigned_abs().saturating_mul(OVERHEAD)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_at_its_limit_and_stays_ended() {
        let mut used = Used::default();
        let limit = 3 * (OVERHEAD + 10);
        let fates: Vec<bool> = [10, 10, 10, 10, 0].iter().map(|bytes| used.admit(*bytes, limit)).collect();
        assert_eq!(fates, [true, true, true, false, false]);
        assert_eq!(used, Used { bytes: limit, dropped: 2 });
    }

    #[test]
    fn dropped_lines_are_counted_now_and_then() {
        let said = |dropped| Used { bytes: 0, dropped }.note(1 << 20);
        assert!(said(1).unwrap().contains("the log ends here") && said(1).unwrap().contains("limit of 1 MiB"));
        let counted: Vec<u64> = (2..=100_000).filter(|dropped| said(*dropped).is_some()).collect();
        assert_eq!(counted, [1000, 10_000, 100_000]);
        assert_eq!(said(1000).unwrap(), "instep: 1000 lines dropped since the log reached its limit of 1 MiB\n");
    }
}
