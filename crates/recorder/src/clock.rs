//! The time that all processes of a machine share.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock, the same for every process of the machine until it boots again.
pub fn monotonic() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| (time.tv_sec() as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec() as u64))
}

/// Nanoseconds since 1970.
pub fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
