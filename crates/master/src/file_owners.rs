//! Whose files of checkpoints are. Anybody who can list a shared folder knows the UUIDs in it, and could report another's
//! checkpoint as their own, to have the master read or delete it with its rights. What keeps users apart on the machines
//! is the Unix user of their accounts: files of a Unix user who is another account's are not served, nor deleted.

use std::collections::BTreeSet;

use instep_api::identifiers::UserId;
use instep_api::link::{RunAs, RunGroup};
use instep_database::Database;
use serde_json::Value;

/// The Unix user that an account says its tasks run as, if it does.
pub(crate) fn unix_user(agent_user_group: Option<&Value>) -> Option<RunAs> {
    let group = unix_group(agent_user_group)?;
    let fields = agent_user_group?;
    let uid = number(fields, "agentUid")?;
    Some(RunAs { uid, gid: group.gid, user: name(fields, "agentUser"), group: group.name })
}

/// The Unix group that a workspace says its tasks run as, if it does.
pub(crate) fn unix_group(agent_user_group: Option<&Value>) -> Option<RunGroup> {
    let fields = agent_user_group?;
    Some(RunGroup { gid: number(fields, "agentGid")?, name: name(fields, "agentGroup") })
}

fn number(fields: &Value, name: &str) -> Option<u32> {
    let value = fields.get(name)?;
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
    u32::try_from(number).ok()
}

fn name(fields: &Value, name: &str) -> String {
    fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Which files may be an account's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileOwners {
    account: String,
    own: Option<u32>,
    others: BTreeSet<u32>,
}

/// A file that is another's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its files belong to the Unix user {uid}, who is another account's, not {account}'s\nhint: if {account}'s tasks run as \
     that Unix user, let an administrator link the account to it: `agentUserGroup` of the user"
)]
pub(crate) struct Foreign {
    uid: u32,
    account: String,
}

impl FileOwners {
    /// For what belongs to a user.
    pub(crate) async fn of(database: &Database, owner: UserId) -> instep_database::Result<FileOwners> {
        let mut found = FileOwners::default();
        for user in database.users().await? {
            let unix = unix_user(user.agent_user_group.as_ref()).map(|unix| unix.uid);
            if user.id == owner {
                (found.account, found.own) = (user.username, unix);
            } else {
                found.others.extend(unix);
            }
        }
        Ok(found)
    }

    /// Refuses a file of a Unix user who is another account's alone.
    pub(crate) fn check(&self, uid: u32) -> Result<(), Foreign> {
        if self.own == Some(uid) || !self.others.contains(&uid) {
            return Ok(());
        }
        Err(Foreign { uid, account: self.account.clone() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// For tests of what asks: an account with one Unix user, beside accounts with others.
    pub(crate) fn owners(own: Option<u32>, others: &[u32]) -> FileOwners {
        FileOwners { account: "ada".to_owned(), own, others: others.iter().copied().collect() }
    }

    #[test]
    fn files_of_another_account_s_unix_user_are_refused() {
        for (own, others, uid, allowed) in [
            (Some(1001), [1002].as_slice(), 1001, true),
            (Some(1001), &[1002], 1002, false),
            // Two accounts of one person.
            (Some(1001), &[1001], 1001, true),
            // Nobody's: an agent's own user, or that of a job beside the cluster.
            (Some(1001), &[1002], 65_534, true),
            (None, &[1002], 65_534, true),
            (None, &[1002], 1002, false),
            (None, &[], 0, true),
        ] {
            assert_eq!(owners(own, others).check(uid).is_ok(), allowed, "{own:?} {others:?} {uid}");
        }
        let sentence = owners(None, &[7]).check(7).unwrap_err().to_string();
        assert!(
            sentence.contains("Unix user 7") && sentence.contains("ada") && sentence.contains("hint: "),
            "{sentence}"
        );
    }

    #[test]
    fn an_account_names_its_unix_user_in_numbers_or_text() {
        for (said, uid) in [
            (json!({"agentUid": 7, "agentGid": 8}), Some(7)),
            (json!({"agentUid": "7", "agentGid": "8"}), Some(7)),
            (json!({"agentUid": 7}), None),
            (json!({"agentUid": -1, "agentGid": 8}), None),
            (json!(null), None),
        ] {
            assert_eq!(unix_user(Some(&said)).map(|user| user.uid), uid, "{said}");
        }
        assert_eq!(unix_user(None), None);
    }

    #[test]
    fn a_workspace_may_name_a_group_alone() {
        let crew = json!({"agentGid": 8, "agentGroup": "crew"});
        assert_eq!(unix_user(Some(&crew)), None);
        assert_eq!(unix_group(Some(&crew)), Some(RunGroup { gid: 8, name: "crew".to_owned() }));
        for none in [json!({"agentUid": 7, "agentUser": "ann"}), json!({"agentGid": -8}), json!(null), json!("crew")] {
            assert_eq!(unix_group(Some(&none)), None, "{none}");
        }
    }
}
