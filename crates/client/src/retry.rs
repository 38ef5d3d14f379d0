//! When a call is tried again: a decision about time that reads no clock.

use std::time::Duration;

/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The pause before the next try, or `None` when patience is used up.
///
/// `tries` were made so far, the first one `elapsed` ago. Pauses double, and the last one is cut so that one more try
/// happens just before the end.
pub(crate) fn pause(tries: u32, elapsed: Duration, patience: Duration) -> Option<Duration> {
    let left = patience.checked_sub(elapsed).filter(|left| !left.is_zero())?;
    let doubled = FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(10));
    Some(doubled.min(LONGEST_PAUSE).min(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_end_with_patience() {
        let milliseconds = Duration::from_millis;
        let patient = Duration::from_secs(3600);
        let pauses: Vec<_> = (1..=9).map(|tries| pause(tries, Duration::ZERO, patient).unwrap()).collect();
        let expected = [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000].map(milliseconds);
        assert_eq!(pauses, expected);
        assert_eq!(pause(5, milliseconds(900), milliseconds(1000)), Some(milliseconds(100)));
        assert_eq!(pause(6, milliseconds(1000), milliseconds(1000)), None);
        assert_eq!(pause(1, Duration::ZERO, Duration::ZERO), None);
        assert_eq!(pause(u32::MAX, Duration::ZERO, patient), Some(LONGEST_PAUSE));
    }
}
