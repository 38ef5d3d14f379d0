//! The audit log: records are added and read, and deleted when they are old.

use instep_api::audit::{AuditRecord, TokenKind};
use instep_api::identifiers::UserId;
use instep_api::wire::Timestamp;

use crate::Database;
use crate::error::Result;
use crate::rows::{column, time};
use crate::sql::{self, Row, Value as SqlValue, params, params_from_iter};

/// Which records are wanted; what is not given wants all.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Not older than this.
    pub since: Option<Timestamp>,
    /// Of the user who was called so.
    pub user: Option<String>,
    /// This action, or everything that begins with it and a dot.
    pub action: Option<String>,
    /// Behind this one: the oldest of them first. Without it: the newest.
    pub after: Option<i64>,
    /// Before this one.
    pub before: Option<i64>,
    /// So many at most.
    pub limit: usize,
}

impl Database {
    /// Adds records; their ids are given here.
    pub async fn add_audit(&self, records: Vec<AuditRecord>) -> Result<()> {
        self.executor
            .write(move |connection| {
                let mut statement = connection.prepare_cached(
                    "INSERT INTO audit (time, user_id, username, token, task_id, address, request_id, action, subject, \
                     status, count) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                )?;
                for record in records {
                    statement.execute(params![
                        record.time.0,
                        record.user_id.map(|id| id.0),
                        record.username,
                        record.token.word(),
                        record.task_id,
                        record.address,
                        record.request_id,
                        record.action,
                        record.subject,
                        record.status,
                        record.count,
                    ])?;
                }
                Ok(())
            })
            .await
    }

    /// Records in the order in which they were added.
    pub async fn audit(&self, filter: AuditFilter) -> Result<Vec<AuditRecord>> {
        self.executor
            .read(move |connection| {
                let mut conditions = vec!["TRUE"];
                let mut values: Vec<SqlValue> = Vec::new();
                let mut add = |condition, found: Vec<SqlValue>| {
                    if !found.is_empty() {
                        conditions.push(condition);
                        values.extend(found);
                    }
                };
                let number = |value: Option<i64>| value.map(SqlValue::from).into_iter().collect();
                add("time >= ?", number(filter.since.map(|time| time.0)));
                add("id > ?", number(filter.after));
                add("id < ?", number(filter.before));
                add("username = ?", filter.user.map(SqlValue::from).into_iter().collect());
                let action = filter.action.map(|action| {
                    let inside = format!("{action}.");
                    vec![SqlValue::from(action), SqlValue::from(inside.clone()), SqlValue::from(inside)]
                });
                add("(action = ? OR SUBSTR(action, 1, LENGTH(?)) = ?)", action.unwrap_or_default());
                let order = if filter.after.is_some() { "ASC" } else { "DESC" };
                values.push(SqlValue::from(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
                let conditions = conditions.join(" AND ");
                let sql = format!("SELECT * FROM audit WHERE {conditions} ORDER BY id {order} LIMIT ?");
                let mut statement = connection.prepare_cached(&sql)?;
                let found = statement.query_map(params_from_iter(values), record_of)?;
                let mut found = found.collect::<sql::Result<Vec<_>>>()?;
                if filter.after.is_none() {
                    found.reverse();
                }
                Ok(found)
            })
            .await
    }

    /// Deletes records that are older than this, and of those that are nobody's all but the newest.
    pub async fn prune_audit(&self, before: Timestamp, of_strangers: usize) -> Result<usize> {
        self.executor
            .write(move |connection| {
                let old = connection.execute("DELETE FROM audit WHERE time < ?", [before.0])?;
                let kept = i64::try_from(of_strangers).unwrap_or(i64::MAX);
                let sql = "DELETE FROM audit WHERE user_id IS NULL AND id <= (SELECT id FROM audit \
                           WHERE user_id IS NULL ORDER BY id DESC LIMIT 1 OFFSET ?)";
                Ok(old + connection.execute(sql, [kept])?)
            })
            .await
    }
}

fn record_of(row: &Row<'_>) -> sql::Result<AuditRecord> {
    let word: String = column(row, "token")?;
    Ok(AuditRecord {
        id: column(row, "id")?,
        time: time(row, "time")?,
        user_id: column::<Option<i64>>(row, "user_id")?.map(UserId),
        username: column(row, "username")?,
        token: TokenKind::ALL.into_iter().find(|kind| kind.word() == word).unwrap_or(TokenKind::None),
        task_id: column(row, "task_id")?,
        address: column(row, "address")?,
        request_id: column(row, "request_id")?,
        action: column(row, "action")?,
        subject: column(row, "subject")?,
        status: column(row, "status")?,
        count: column(row, "count")?,
    })
}
