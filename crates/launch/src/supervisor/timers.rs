//! The supervisor's own deadlines: the status line, the wait for a root cause, and the kill of workers that do not end.

use std::time::{Duration, Instant};

/// How often the status line is renewed, and the longest the loop sleeps.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
/// How long workers that failed because of another rank are not taken for the cause: that rank's own end may still come.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a worker that SIGKILL did not end is waited for: it may hang in the kernel.
const ABANDON_AFTER: Duration = Duration::from_secs(30);

/// What is to be done with workers that are still alive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Escalation {
    Kill,
    /// SIGKILL did not end them either.
    Abandon,
}

/// When workers that were told to end are killed, and then abandoned.
#[derive(Debug)]
struct StopTimer {
    due: Instant,
    killed: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Timers {
    status_due: Instant,
    /// Set while workers have failed because of others, and the cause is waited for.
    root_cause_due: Option<Instant>,
    /// Set while workers are told to end.
    stop: Option<StopTimer>,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Timers {
        Timers { status_due: now, root_cause_due: None, stop: None }
    }

    /// The next deadline, of these and the others given.
    pub(super) fn next_due(&self, others: impl IntoIterator<Item = Option<Instant>>) -> Instant {
        let stop = self.stop.as_ref().map(|stop| stop.due);
        [self.root_cause_due, stop].into_iter().chain(others).flatten().fold(self.status_due, Instant::min)
    }

    /// Whether the status line is to be renewed now.
    pub(super) fn status_is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.status_due;
        if due {
            self.status_due = now + STATUS_INTERVAL;
        }
        due
    }

    /// Starts to wait for the root cause unless that has begun; true if it was waited for long enough.
    pub(super) fn await_root_cause(&mut self, now: Instant) -> bool {
        now >= *self.root_cause_due.get_or_insert(now + ROOT_CAUSE_TIMEOUT)
    }

    pub(super) fn awaits_root_cause(&self) -> bool {
        self.root_cause_due.is_some()
    }

    /// Nothing of an earlier round is waited for any more.
    pub(super) fn round_started(&mut self) {
        self.root_cause_due = None;
        self.stop = None;
    }

    /// Workers were told to end, and have this long.
    pub(super) fn start_stop(&mut self, now: Instant, grace_period: Duration) {
        self.root_cause_due = None;
        self.stop = Some(StopTimer { due: now + grace_period, killed: false });
    }

    /// Workers were killed, without being told before.
    pub(super) fn start_kill(&mut self, now: Instant) {
        self.root_cause_due = None;
        self.stop = Some(StopTimer { due: now + ABANDON_AFTER, killed: true });
    }

    /// Workers that were told to end are killed now.
    pub(super) fn kill_now(&mut self, now: Instant) {
        if let Some(stop) = self.stop.as_mut().filter(|stop| !stop.killed) {
            stop.due = stop.due.min(now);
        }
    }

    /// What comes next, whether killing or abandoning, comes now.
    pub(super) fn escalate_now(&mut self, now: Instant) {
        if let Some(stop) = &mut self.stop {
            stop.due = now;
        }
    }

    /// What is due now for workers that are still alive.
    pub(super) fn escalation(&mut self, now: Instant) -> Option<Escalation> {
        let stop = self.stop.as_mut().filter(|stop| now >= stop.due)?;
        if stop.killed {
            return Some(Escalation::Abandon);
        }
        *stop = StopTimer { due: now + ABANDON_AFTER, killed: true };
        Some(Escalation::Kill)
    }

    /// No worker is left.
    pub(super) fn stop_ended(&mut self) {
        self.stop = None;
    }
}

#[cfg(test)]
mod tests {
    use super::{ABANDON_AFTER, Escalation, STATUS_INTERVAL, Timers};
    use std::time::{Duration, Instant};

    #[test]
    fn workers_that_ignore_the_signal_are_killed_and_then_abandoned() {
        let now = Instant::now();
        let mut timers = Timers::new(now);
        timers.start_stop(now, Duration::from_secs(30));
        assert_eq!(timers.escalation(now), None);
        timers.kill_now(now);
        assert_eq!(timers.escalation(now), Some(Escalation::Kill));
        timers.kill_now(now);
        assert_eq!(timers.escalation(now), None, "they have been killed already");
        assert_eq!(timers.escalation(now + ABANDON_AFTER), Some(Escalation::Abandon));
    }

    #[test]
    fn the_earliest_deadline_wakes_the_loop() {
        let now = Instant::now();
        let mut timers = Timers::new(now);
        assert!(timers.status_is_due(now) && !timers.status_is_due(now));
        assert_eq!(timers.next_due([None]), now + STATUS_INTERVAL);
        let sooner = now + Duration::from_millis(1);
        assert_eq!(timers.next_due([None, Some(sooner)]), sooner);
        timers.start_stop(now, Duration::ZERO);
        assert_eq!(timers.next_due([Some(sooner)]), now);
    }
}
