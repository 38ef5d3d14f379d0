//! The settings that all masters of a database must have alike: who may do what, and what becomes of tasks and data, must
//! not change without a word when another one leads.
//!
//! The leader writes its own beside its address; whoever stands by compares, and does not take over with others. What only
//! one of the two versions knows is not compared: masters are upgraded one after the other.

use std::collections::BTreeMap;

use crate::passwords::token_hash;

/// What is compared, as files spell it. Where a master listens, what it shows to browsers and what it logs is its own.
pub(crate) const SHARED: [&str; 15] = [
    "agent_reconnect_wait",
    "audit_retention_days",
    "checkpoints",
    "log_retention_days",
    "resource_pools",
    "roles",
    "scheduler.fitting_policy",
    "scheduler.preemption",
    "scheduler.type",
    "session_hours",
    "storage_roots",
    "task_log_limit",
    "user_context_limit",
    "webhooks.private_addresses",
    "webhooks.signing_key",
];
/// Of these a hash is compared, and shown: they may hold what is secret, or long.
const HASHED: [&str; 2] = ["resource_pools", "webhooks.signing_key"];
/// Letters of such a hash.
const HASH: usize = 12;

/// The settings of one master that all must have, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agreed(BTreeMap<String, String>);

/// Why a master must not take over: in words for everybody, and with the values for who reads its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub said: String,
    pub why: String,
}

impl Agreed {
    /// Notes what a setting is; `encrypted` is one of them, which no single key says.
    pub(crate) fn note(&mut self, name: &str, value: &str) {
        let hidden = HASHED.contains(&name) && !value.is_empty();
        let value = if hidden { token_hash(value).chars().take(HASH).collect() } else { value.to_owned() };
        self.0.insert(name.to_owned(), value);
    }

    /// As the leader writes it down.
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Why a master with these settings must not take over from a leader with others.
    pub(crate) fn objection(&self, leaders: &str) -> Option<Unfit> {
        let leaders: BTreeMap<String, String> = serde_json::from_str(leaders).unwrap_or_default();
        let differs = |(name, own): (&String, &String)| {
            let theirs = leaders.get(name).filter(|theirs| *theirs != own)?;
            Some((name.clone(), format!("{name} is {}, and the leader's {}", shown(own), shown(theirs))))
        };
        let (names, values): (Vec<_>, Vec<_>) = self.0.iter().filter_map(differs).unzip();
        (!names.is_empty()).then(|| Unfit {
            said: format!("its settings differ from the leader's: {}", names.join(", ")),
            why: format!(
                "its settings differ from the leader's: {}. Give all masters the same settings, and start this one again; to \
                 change them, stop all masters",
                values.join("; ")
            ),
        })
    }
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "not set" } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(pairs: &[(&str, &str)]) -> Agreed {
        let mut agreed = Agreed::default();
        pairs.iter().for_each(|(name, value)| agreed.note(name, value));
        agreed
    }

    #[test]
    fn a_master_with_other_settings_says_which_they_are() {
        let own = agreed(&[("roles", "false"), ("scheduler.type", "priority"), ("log_retention_days", "")]);
        assert_eq!(own.objection(&own.to_text()), None);
        let leaders = agreed(&[("roles", "true"), ("scheduler.type", "priority"), ("log_retention_days", "7")]);
        let unfit = own.objection(&leaders.to_text()).unwrap();
        assert_eq!(unfit.said, "its settings differ from the leader's: log_retention_days, roles");
        for expected in ["log_retention_days is not set, and the leader's 7", "roles is false, and the leader's true"] {
            assert!(unfit.why.contains(expected), "{}", unfit.why);
        }
    }

    #[test]
    fn what_one_of_two_versions_does_not_know_is_not_compared() {
        let own = agreed(&[("roles", "true"), ("new", "1")]);
        assert_eq!(own.objection(&agreed(&[("roles", "true"), ("old", "2")]).to_text()), None);
        assert_eq!(own.objection("what an earlier version wrote"), None);
    }

    #[test]
    fn secrets_are_compared_and_not_told() {
        let own = agreed(&[("webhooks.signing_key", "s3cret")]);
        let unfit = own.objection(&agreed(&[("webhooks.signing_key", "other")]).to_text()).unwrap();
        assert!(!own.to_text().contains("s3cret") && !unfit.why.contains("s3cret"), "{}", unfit.why);
        assert_eq!(own.objection(&agreed(&[("webhooks.signing_key", "s3cret")]).to_text()), None);
    }
}
