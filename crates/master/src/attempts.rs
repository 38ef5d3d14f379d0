//! Wrong passwords: how many there were lately for whom and from where, and how long the next attempt has to wait.
//!
//! The first few are free, because people mistype; then each doubles the wait, up to a minute. Who waits is known by name and
//! address together: somebody who guesses elsewhere does not keep a user out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Wrong passwords without a wait.
const FREE: u32 = 5;
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// After which wrong passwords are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(15 * 60);
/// Names with addresses that are remembered at most; beyond it the oldest half is forgotten.
const REMEMBERED: usize = 10_000;
/// Bytes of a name that are remembered.
const LONGEST_NAME: usize = 256;

/// Who tries, and from where.
type Key = (String, IpAddr);

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

/// The wrong passwords of the last minutes.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failures: Mutex<HashMap<Key, Failures>>,
}

fn key(username: &str, address: IpAddr) -> Key {
    (username.chars().take(LONGEST_NAME).collect(), address.to_canonical())
}

fn wait_after(count: u32) -> Duration {
    match count.checked_sub(FREE) {
        None => Duration::ZERO,
        Some(more) => Duration::from_secs(1_u64 << more.min(6)).min(LONGEST),
    }
}

impl Attempts {
    /// How long somebody has to wait before another password is looked at.
    pub(crate) fn wait(&self, username: &str, address: IpAddr, now: Instant) -> Option<Duration> {
        let failures = *lock(&self.failures).get(&key(username, address))?;
        let wait = wait_after(failures.count).saturating_sub(now.saturating_duration_since(failures.last));
        (!wait.is_zero()).then_some(wait)
    }

    /// A password was wrong.
    pub(crate) fn failed(&self, username: &str, address: IpAddr, now: Instant) {
        let mut all = lock(&self.failures);
        if all.len() >= REMEMBERED {
            all.retain(|_, failures| now.saturating_duration_since(failures.last) < FORGOTTEN);
            let mut times: Vec<Instant> = all.values().map(|failures| failures.last).collect();
            if times.len() >= REMEMBERED {
                times.sort();
                let middle = times[times.len() / 2];
                all.retain(|_, failures| failures.last > middle);
            }
        }
        let found = all.entry(key(username, address)).or_insert(Failures { count: 0, last: now });
        if now.saturating_duration_since(found.last) >= FORGOTTEN {
            found.count = 0;
        }
        *found = Failures { count: found.count.saturating_add(1), last: now };
    }

    /// A password was right: what was wrong before is forgotten.
    pub(crate) fn succeeded(&self, username: &str, address: IpAddr) {
        lock(&self.failures).remove(&key(username, address));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_first_are_free_then_each_doubles_the_wait() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..13 {
            attempts.failed("eve", HERE, start);
            waits.push(attempts.wait("eve", HERE, start).unwrap_or_default().as_secs());
        }
        assert_eq!(waits, [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(attempts.wait("eve", HERE, start + LONGEST), None);
        assert_eq!(attempts.wait("bob", HERE, start), None);
        assert_eq!(attempts.wait("eve", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), start), None);
        attempts.succeeded("eve", HERE);
        assert_eq!(attempts.wait("eve", HERE, start), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for number in 0..3 * REMEMBERED as u64 {
            let name = format!("{number}{}", "x".repeat(1000));
            attempts.failed(&name, HERE, start + Duration::from_millis(number));
        }
        let all = lock(&attempts.failures);
        assert!(all.len() <= REMEMBERED && all.keys().all(|(name, _)| name.len() <= LONGEST_NAME));
    }
}
