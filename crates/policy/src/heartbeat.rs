//! When a trial that runs elsewhere has been silent for too long.
//!
//! A detached trial is known by what its script says. The script speaks at least once a minute; one that has not done
//! so for five has lost its machine or its network, and counts as failed as of when it was last heard. If it was only
//! the network, starting it again revives it.

use std::time::Duration;

/// How long a trial may be silent.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Why a trial that has been silent for so long is given up; `None` while there is hope.
pub fn overdue(silence: Duration) -> Option<String> {
    (silence > SILENCE_LIMIT).then(|| format!("no heartbeat for {} s", silence.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::{SILENCE_LIMIT, overdue};
    use std::time::Duration;

    #[test]
    fn a_trial_is_given_up_after_five_silent_minutes() {
        assert_eq!(overdue(SILENCE_LIMIT), None);
        let reason = overdue(SILENCE_LIMIT + Duration::from_secs(1));
        assert_eq!(reason.as_deref(), Some("no heartbeat for 301 s"));
    }
}
