//! What a master does at the server that may lead, and does not: it looks at who leads, tries to take the lock, and ends
//! the session of one that has let its lease expire.

use std::sync::Arc;

use postgres::error::SqlState;

use super::connect::Role;
use super::lock::{HOLDERS, LOCKS, SESSION_START};
use super::{Address, Connection, Result};
use crate::leadership::{AdvertisedEndpoint, Holder, LeaderRow, Observation, Session};

/// How sessions of masters are called that may be ended when their lease has expired. Those of a master that is alone, or
/// of a copy, renew nothing, and are called otherwise.
pub(super) const OF_SEVERAL: &str = "instep master of several";
/// The server's clock, in the form in which all times are stored.
const CLOCK: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT";

impl Connection {
    /// Connects for writing, without the lock.
    pub(in crate::sql) fn candidate(address: &Arc<Address>) -> Result<Connection> {
        Connection::refuse_shared_sessions(address)?;
        Connection::open(address, Role::Writer)
    }

    /// Takes the lock if it is free.
    pub(in crate::sql) fn try_lock(&self) -> Result<bool> {
        let mut client = self.client.borrow_mut();
        let taken = self.ask_for_lock(&mut client)?;
        self.locked_by.set(taken);
        Ok(taken.is_some())
    }

    /// Looks at who has the lock, and at what the leader says of itself.
    pub(in crate::sql) fn observe(&self) -> Result<Observation> {
        let mut client = self.client.borrow_mut();
        let failed = |error: postgres::Error, closed| self.meaning(&error, closed);
        let sql = format!(
            "SELECT {CLOCK}, to_regclass('schema_steps') IS NOT NULL, to_regclass('leader') IS NOT NULL, holder.* \
             FROM (VALUES (1)) AS one LEFT JOIN \
             (SELECT pid, {SESSION_START}, application_name = $3 {HOLDERS} LIMIT 1) AS holder ON TRUE"
        );
        let parameters: [&(dyn postgres::types::ToSql + Sync); 3] =
            [&LOCKS.cast_unsigned(), &self.address.schema(), &OF_SEVERAL];
        let found = client.query_one(&sql, &parameters).map_err(|error| failed(error, false))?;
        let (has_steps, has_leader): (bool, bool) = (found.get(1), found.get(2));
        let holder = found
            .get::<_, Option<i32>>(3)
            .map(|process| Holder { session: Session { process, start: found.get(4) }, renews: found.get(5) });
        let schema = match has_steps {
            false => 0,
            true => {
                let sql = "SELECT COALESCE(MAX(number), 0) FROM schema_steps";
                client.query_one(sql, &[]).map_err(|error| failed(error, false))?.get(0)
            }
        };
        let leader = match has_leader {
            false => None,
            true => {
                let sql = "SELECT leader.epoch, address, tasks_address, certificate, peer_secret, settings, renewed_at, \
                           taken_at FROM leader JOIN lease USING (name, epoch) WHERE name = 'master'";
                client.query_opt(sql, &[]).map_err(|error| failed(error, false))?
            }
        };
        let leader = leader.map(|row| LeaderRow {
            epoch: row.get(0),
            endpoint: AdvertisedEndpoint {
                address: row.get(1),
                tasks_address: row.get(2),
                certificate: row.get(3),
                peer_secret: row.get(4),
                settings: row.get(5),
            },
            renewed_at: row.get(6),
            taken_at: row.get(7),
        });
        Ok(Observation { now: found.get(0), schema, holder, leader })
    }

    /// Ends a session if it still has the lock. Gives whether the server let us.
    pub(in crate::sql) fn end_session(&self, session: Session) -> Result<bool> {
        let mut client = self.client.borrow_mut();
        let sql = format!("SELECT pg_terminate_backend(pid) {HOLDERS} AND pid = $3 AND {SESSION_START} = $4");
        let parameters: [&(dyn postgres::types::ToSql + Sync); 4] =
            [&LOCKS.cast_unsigned(), &self.address.schema(), &session.process, &session.start];
        match client.query(&sql, &parameters) {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(false),
            Err(error) => Err(self.meaning(&error, client.is_closed())),
        }
    }

    /// Says that a term goes on. Gives whether it does.
    pub(in crate::sql) fn renew(&self, epoch: i64) -> Result<bool> {
        let mut client = self.client.borrow_mut();
        let sql = format!("UPDATE leader SET renewed_at = {CLOCK} WHERE name = 'master' AND epoch = $1");
        let renewed = client.execute(&sql, &[&epoch]);
        Ok(renewed.map_err(|error| self.meaning(&error, client.is_closed()))? > 0)
    }

    /// Lets commits of this session not wait for the disk: what would be lost is a moment of a lease.
    pub(in crate::sql) fn commit_at_once(&self) -> Result<()> {
        self.execute_batch("SET synchronous_commit = off")
    }
}
