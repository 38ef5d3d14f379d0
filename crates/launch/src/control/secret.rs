//! A secret for the workers of a round: whoever has not been started by one of its launchers does not know it.
//!
//! The coordinator makes one for every round and sends it to the launchers that take part, as it sends all else: in the
//! clear. It keeps out those who can reach the workers' ports or read the store, not those who read the network or may
//! join the job as a node. It is given to workers and never shown.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::random;

const BYTES: usize = 16;

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobSecret(String);

impl JobSecret {
    /// One that nobody can guess.
    pub fn random() -> io::Result<JobSecret> {
        Ok(JobSecret(random::bytes::<BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// For the environment of a worker.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JobSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::JobSecret;

    #[test]
    fn a_job_secret_is_random_and_never_printed() {
        let [one, other] = [JobSecret::random(), JobSecret::random()].map(|secret| secret.expect("random bytes"));
        assert_eq!(one.reveal().len(), 32);
        assert_ne!(one, other);
        assert_eq!(format!("{one:?}"), "JobSecret");
    }
}
