//! The lock that keeps other masters out: an advisory lock of the server, held by a session for as long as that lasts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres::{Client, SimpleQueryMessage};

use super::super::error::{Error, Result};
use super::{Address, Connection, PAUSE};

/// How long the server may take to notice that an earlier master has ended.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to notice that an earlier session of this master has ended: longer than it takes a silent
/// network for a lost one.
const OWN_LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Our locks among all advisory locks of a database; the other half of the key is the schema's.
pub(super) const LOCKS: i32 = 0x696e_7374;
/// When a session of pg_stat_activity began, as a number that no setting of a session changes.
pub(super) const SESSION_START: &str = "(EXTRACT(EPOCH FROM backend_start) * 1000000)::BIGINT";
/// The sessions that have a lock of ours, by the key's halves.
pub(super) const HOLDERS: &str = "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted \
                       AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                       AND classid = $1::oid AND objid = hashtext($2)::oid";

impl Connection {
    /// Takes the lock that keeps other masters out, for as long as this connection lasts. One that has just ended may
    /// still have it; an earlier session of ours, which only the server takes for alive, is ended.
    pub(super) fn take_lock(&self, client: &mut Client) -> Result<()> {
        let (begin, mut timeout) = (Instant::now(), LOCK_TIMEOUT);
        loop {
            if let Some(session) = self.ask_for_lock(client)? {
                self.locked_by.set(Some(session));
                return Ok(());
            }
            if self.end_own_session(client)? {
                timeout = OWN_LOCK_TIMEOUT;
            }
            if begin.elapsed() >= timeout {
                return Err(Error::Locked { place: self.address.place().to_owned(), holder: self.holder(client) });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes the lock if it is free, and gives the session that has it then.
    pub(super) fn ask_for_lock(&self, client: &mut Client) -> Result<Option<(i32, i64)>> {
        let sql = format!(
            "SELECT pg_try_advisory_lock($1, hashtext($2)), pid, {SESSION_START} FROM pg_stat_activity \
             WHERE pid = pg_backend_pid()"
        );
        let taken = client.query_one(&sql, &[&LOCKS, &self.address.schema()]);
        let taken = taken.map_err(|error| self.meaning(&error, client.is_closed()))?;
        Ok(taken.get::<_, bool>(0).then(|| (taken.get(1), taken.get(2))))
    }

    /// Ends the session that has the lock, if it is an earlier one of this connection. Gives whether it is.
    fn end_own_session(&self, client: &mut Client) -> Result<bool> {
        let Some((process, start)) = self.locked_by.get() else { return Ok(false) };
        let sql = format!("SELECT pg_terminate_backend(pid) {HOLDERS} AND pid = $3 AND {SESSION_START} = $4");
        let found = client.query(&sql, &[&LOCKS.cast_unsigned(), &self.address.schema(), &process, &start]);
        Ok(!found.map_err(|error| self.meaning(&error, client.is_closed()))?.is_empty())
    }

    /// The session that has taken the lock, as the server calls it.
    pub(in crate::sql) fn session(&self) -> Option<(i32, i64)> {
        self.locked_by.get()
    }

    /// Whether a session holds the lock of this schema.
    pub(in crate::sql) fn is_locked_by(&self, (process, start): (i32, i64)) -> Result<bool> {
        let sql = format!("SELECT 1 {HOLDERS} AND pid = $3 AND {SESSION_START} = $4");
        let found =
            self.client.borrow_mut().query(&sql, &[&LOCKS.cast_unsigned(), &self.address.schema(), &process, &start]);
        Ok(!found.map_err(|error| self.failed(&error))?.is_empty())
    }

    /// Who has the lock, as far as the server knows.
    fn holder(&self, client: &mut Client) -> String {
        let sql = format!("SELECT COALESCE(host(client_addr), 'this machine') {HOLDERS} LIMIT 1");
        let found = client.query_opt(&sql, &[&LOCKS.cast_unsigned(), &self.address.schema()]);
        let host: Option<String> = found.ok().flatten().and_then(|row| row.try_get(0).ok());
        format!("connected from {}", host.as_deref().unwrap_or("an unknown machine"))
    }

    /// Refuses what hands every transaction to another connection of the server, as pgbouncer does in its transaction mode:
    /// there, neither the lock nor prepared statements stay with a connection.
    pub(super) fn refuse_shared_sessions(address: &Arc<Address>) -> Result<()> {
        let [one, other] = [Connection::visitor(address)?, Connection::visitor(address)?];
        let backend = |connection: &Connection| {
            let answer = connection.client.borrow_mut().simple_query("SELECT pg_backend_pid()");
            let answer = answer.map_err(|error| connection.failed(&error))?;
            Ok::<_, Error>(answer.into_iter().find_map(|answer| match answer {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            }))
        };
        let before = backend(&one)?;
        // While this transaction is open, nobody else has its connection.
        other.begin_changes()?;
        let meanwhile = backend(&other)?;
        let after = backend(&one)?;
        other.roll_back()?;
        if before == after && before != meanwhile {
            return Ok(());
        }
        Err(Error::Refused {
            place: address.place().to_owned(),
            why: "a pooler gives every transaction another connection of the server".to_owned(),
            hint: "name the server itself, or a pool with pgbouncer's `pool_mode = session`",
            lasting: true,
        })
    }
}
