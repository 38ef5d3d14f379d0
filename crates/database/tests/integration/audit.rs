//! The audit log: what is old goes, and nobody's records never drive out somebody's.

use instep_api::audit::{AuditRecord, TokenKind};
use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;
use instep_database::AuditFilter;

use crate::made::{block, open};

fn record(time: i64, user: Option<i64>) -> AuditRecord {
    AuditRecord {
        id: 0,
        time: Timestamp(time),
        user_id: user.map(UserId),
        username: user.map(|id| format!("user{id}")),
        token: if user.is_some() { TokenKind::Login } else { TokenKind::None },
        task_id: None,
        address: "::1".into(),
        request_id: "r".into(),
        action: "experiment.kill".into(),
        subject: "experiment 1".into(),
        status: 200,
        count: 1,
    }
}

#[test]
fn old_records_and_too_many_of_strangers_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder.path().join("a.db"));
    block(async {
        let users = (1..=5).map(|time| record(time, Some(2)));
        database.add_audit(users.chain((1..=9).map(|time| record(time, None))).collect()).await.unwrap();
        let all = || database.audit(AuditFilter { limit: 100, ..AuditFilter::default() });
        assert_eq!(all().await.unwrap()[0], AuditRecord { id: 1, ..record(1, Some(2)) });
        assert_eq!(database.prune_audit(Timestamp(3), 4).await.unwrap(), 2 + 2 + 3);
        let left = all().await.unwrap();
        let times = |user: Option<UserId>| -> Vec<i64> {
            left.iter().filter(|record| record.user_id == user).map(|record| record.time.0).collect()
        };
        assert_eq!((times(Some(UserId(2))), times(None)), (vec![3, 4, 5], vec![6, 7, 8, 9]));
    });
}
