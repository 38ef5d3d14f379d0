//! PostgreSQL as a database: connections that keep their prepared statements and come back when they are lost. One of them,
//! the writer, holds the lock that keeps other masters out.
//!
//! A transaction is lost with its connection, which is harmless until it is committed. When the connection is lost during
//! a commit, nobody can say whether the transaction took place ([`Error::UnknownOutcome`]).

mod address;
mod dialect;
mod standby;
mod tls;
mod values;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::types::ToSql as DriverToSql;
use postgres::{Client, SimpleQueryMessage};

pub use address::{Address, AddressError};
pub(in crate::sql) use values::Column;
use values::Parameter;

use super::error::{Error, Result};
use super::{STATEMENTS, ToSql};

/// The oldest version that this works with, as the server writes it.
const OLDEST: u32 = 130_000;
/// How long a server that went away is waited for, from when that was noticed.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long the server may take to notice that an earlier master has ended.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to notice that an earlier session of this master has ended: longer than it takes a silent
/// network for a lost one.
const OWN_LOCK_PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);
/// The least time for an answer, also where no patience is left.
const LEAST_WAIT: Duration = Duration::from_secs(1);
/// Our locks among all advisory locks of a database; the other half of the key is the schema's.
const LOCKS: i32 = 0x696e_7374;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Writer,
    Reader,
    /// Looks at what is there, and changes nothing of it.
    Visitor,
}

/// A connection, which is made anew when it is lost.
pub(super) struct Connection {
    client: RefCell<Client>,
    statements: RefCell<Cache>,
    address: Arc<Address>,
    role: Role,
    /// Whether a transaction is open.
    open: Cell<bool>,
    /// Jobs of the open transaction that are kept; see [`Connection::begin_job`].
    kept: Cell<usize>,
    /// The lease's epoch, as it was when the last deciding transaction began.
    epoch: Cell<i64>,
    lost_since: Cell<Option<Instant>>,
    /// A try to connect again that has not been answered yet.
    attempt: Cell<Option<Attempt>>,
    /// The session in which the lock was taken last, as the server calls it: its process, and when that began.
    locked_by: Cell<Option<(i32, i64)>>,
}

impl Connection {
    /// Connects for writing, and takes the lock. Makes the schema if there is none.
    pub(super) fn writer(address: &Arc<Address>) -> Result<Connection> {
        let connection = Connection::locked(address)?;
        connection.make_schema()?;
        Ok(connection)
    }

    /// Connects for writing, and takes the lock, of a schema that need not be there.
    pub(super) fn locked(address: &Arc<Address>) -> Result<Connection> {
        refuse_shared_sessions(address)?;
        let connection = Connection::open(address, Role::Writer)?;
        connection.take_lock(&mut connection.client.borrow_mut())?;
        Ok(connection)
    }

    /// Makes the schema if there is none.
    pub(super) fn make_schema(&self) -> Result<()> {
        let schema = self.address.schema();
        let there = self.client.borrow_mut().query("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&schema]);
        if !there.map_err(|error| self.failed(&error))?.is_empty() {
            return Ok(());
        }
        let made = self.execute_batch(&format!("CREATE SCHEMA {}", quoted(schema)));
        made.map_err(|error| match error {
            Error::Server { why, code } if code.as_deref() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code()) => {
                let hint = "have the schema made by who may, with `CREATE SCHEMA name AUTHORIZATION user`";
                Error::Refused { place: self.address.place().to_owned(), why, hint, lasting: true }
            }
            other => other,
        })
    }

    /// Connects for reading.
    pub(super) fn reader(address: &Arc<Address>) -> Result<Connection> {
        Connection::open(address, Role::Reader)
    }

    /// Connects to look at something.
    pub(super) fn visitor(address: &Arc<Address>) -> Result<Connection> {
        Connection::open(address, Role::Visitor)
    }

    fn open(address: &Arc<Address>, role: Role) -> Result<Connection> {
        let attempt = Attempt::begin(address, role)?;
        let client = attempt.wait(address, address.patience()).unwrap_or_else(|| Err(silent(address)))?;
        Ok(Connection {
            client: RefCell::new(client),
            statements: RefCell::default(),
            address: Arc::clone(address),
            role,
            open: Cell::new(false),
            kept: Cell::new(0),
            epoch: Cell::new(0),
            lost_since: Cell::new(None),
            attempt: Cell::new(None),
            locked_by: Cell::new(None),
        })
    }

    /// Prepares a statement, or takes it from among those that were prepared before.
    pub(super) fn prepare(&self, sql: &str) -> Result<Statement<'_>> {
        let known = self.statements.borrow_mut().get(sql);
        let statement = match known {
            Some(statement) => statement,
            None => {
                let prepared = self.client.borrow_mut().prepare(&dialect::numbered(sql));
                let prepared = prepared.map_err(|error| self.failed(&error))?;
                self.statements.borrow_mut().put(sql, prepared.clone());
                prepared
            }
        };
        Ok(Statement { connection: self, statement })
    }

    pub(super) fn execute_batch(&self, sql: &str) -> Result<()> {
        let done = self.client.borrow_mut().batch_execute(sql);
        done.map_err(|error| self.failed(&error))
    }

    pub(super) fn is_autocommit(&self) -> bool {
        !self.open.get()
    }

    /// Begins a transaction that shows one state of the database throughout, on a new connection if this one is lost.
    pub(super) fn begin_snapshot(&self) -> Result<()> {
        self.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").map(drop)
    }

    /// Begins a transaction for changes.
    pub(super) fn begin_changes(&self) -> Result<()> {
        self.begin("BEGIN").map(drop)
    }

    /// Begins a transaction that decides something, and gives the epoch of the lease, which nobody raises meanwhile.
    pub(super) fn begin_deciding(&self) -> Result<i64> {
        let answers = self.begin("BEGIN; SELECT epoch FROM lease WHERE name = 'master' FOR SHARE")?;
        let epoch = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        });
        let epoch = epoch.ok_or(Error::NoRow)?;
        self.epoch.set(epoch);
        Ok(epoch)
    }

    fn begin(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>> {
        let mut tried = false;
        loop {
            // What was open is gone with its connection, or the server says why it is not.
            let begun = self.client.borrow_mut().simple_query(sql);
            match begun.map_err(|error| self.failed(&error)) {
                Ok(answers) => {
                    self.lost_since.set(None);
                    self.open.set(true);
                    self.kept.set(0);
                    return Ok(answers);
                }
                Err(error @ Error::Lost { .. }) => {
                    let waited = self.lost_since.get().map(|since| since.elapsed());
                    if waited.is_some_and(|waited| waited > PATIENCE) && std::mem::replace(&mut tried, true) {
                        return Err(error);
                    }
                    self.reconnect()?;
                }
                Err(error) => {
                    // The first of two statements may have begun it.
                    let _ = self.client.borrow_mut().batch_execute("ROLLBACK");
                    return Err(error);
                }
            }
        }
    }

    /// Ends the open transaction. A connection that is lost meanwhile leaves nobody any the wiser.
    pub(super) fn commit(&self) -> Result<()> {
        // Of a transaction in which something failed, COMMIT would make a rollback without a word; VALUES does not. A
        // COMMIT that a deadline ends would not have waited for the standbys for which the server is told to wait.
        let outcome = self.execute_batch("VALUES (1); SET LOCAL statement_timeout = 0; COMMIT");
        match outcome {
            Ok(()) => {
                self.open.set(false);
                Ok(())
            }
            Err(Error::Lost { place, why }) => Err(Error::UnknownOutcome { place, why }),
            Err(Error::Server { why, code }) if code.as_deref() == Some(SqlState::QUERY_CANCELED.code()) => {
                let _ = self.roll_back();
                Err(Error::UnknownOutcome { place: self.address.place().to_owned(), why })
            }
            Err(error) => {
                self.roll_back()?;
                Err(error)
            }
        }
    }

    pub(super) fn roll_back(&self) -> Result<()> {
        let outcome = self.execute_batch("ROLLBACK");
        self.open.set(false);
        outcome
    }

    /// Begins one of several jobs of a transaction. Only what came before it needs a savepoint, so the first has none:
    /// a savepoint is one more way to the server and back.
    pub(super) fn begin_job(&self) -> Result<()> {
        match self.kept.get() {
            0 => Ok(()),
            1 => self.execute_batch("SAVEPOINT job"),
            _ => self.execute_batch("RELEASE SAVEPOINT job; SAVEPOINT job"),
        }
    }

    pub(super) fn keep_job(&self) {
        self.kept.set(self.kept.get() + 1);
    }

    /// Takes back what the job has done. The first one's transaction is begun anew, if it is still ours to begin.
    pub(super) fn undo_job(&self) -> Result<()> {
        if self.kept.get() > 0 {
            return self.execute_batch("ROLLBACK TO SAVEPOINT job");
        }
        let before = self.epoch.get();
        self.roll_back()?;
        if self.begin_deciding()? == before { Ok(()) } else { self.roll_back() }
    }

    /// Takes the lock that keeps other masters out, for as long as this connection lasts. One that has just ended may
    /// still have it; an earlier session of ours, which only the server takes for alive, is ended.
    fn take_lock(&self, client: &mut Client) -> Result<()> {
        let (begin, mut patience) = (Instant::now(), LOCK_PATIENCE);
        loop {
            if let Some(session) = self.ask_for_lock(client)? {
                self.locked_by.set(Some(session));
                return Ok(());
            }
            if self.end_own_session(client)? {
                patience = OWN_LOCK_PATIENCE;
            }
            if begin.elapsed() >= patience {
                return Err(Error::Locked { place: self.address.place().to_owned(), holder: self.holder(client) });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes the lock if it is free, and gives the session that has it then.
    fn ask_for_lock(&self, client: &mut Client) -> Result<Option<(i32, i64)>> {
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
    pub(super) fn session(&self) -> Option<(i32, i64)> {
        self.locked_by.get()
    }

    /// Whether a session holds the lock of this schema.
    pub(super) fn is_locked_by(&self, (process, start): (i32, i64)) -> Result<bool> {
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

    /// Connects again, for as long as a server that restarts is waited for.
    fn reconnect(&self) -> Result<()> {
        let since = self.lost_since.get().unwrap_or_else(Instant::now);
        self.lost_since.set(Some(since));
        let deadline = since + PATIENCE;
        loop {
            let outcome = self.connect_again(deadline).and_then(|mut client| {
                // Before it is ours to write with.
                if self.role == Role::Writer {
                    self.take_lock(&mut client)?;
                }
                self.statements.borrow_mut().clear();
                self.client.replace(client);
                Ok(())
            });
            match outcome {
                Err(Error::Refused { .. } | Error::Lost { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(PAUSE);
                }
                Err(Error::Refused { place, why, .. }) => return Err(Error::Lost { place, why }),
                other => return other,
            }
        }
    }

    /// Connects until a deadline, but not on several connections at the same time.
    fn connect_again(&self, deadline: Instant) -> Result<Client> {
        let attempt = self.attempt.take().map_or_else(|| Attempt::begin(&self.address, self.role), Ok)?;
        let patience = deadline.saturating_duration_since(Instant::now()).max(LEAST_WAIT);
        attempt.wait(&self.address, patience).unwrap_or_else(|| {
            self.attempt.set(Some(attempt));
            Err(silent(&self.address))
        })
    }

    /// Says that the connection was lost, with whatever was not committed.
    pub(super) fn lost(&self) -> Error {
        let why = "nothing of the transaction was stored".to_owned();
        Error::Lost { place: self.address.place().to_owned(), why }
    }

    /// What an error of the driver means here.
    fn failed(&self, error: &postgres::Error) -> Error {
        self.meaning(error, self.client.borrow().is_closed())
    }

    fn meaning(&self, error: &postgres::Error, closed: bool) -> Error {
        let code = error.code();
        let ended = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
        let broken =
            code.is_none() && std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>());
        let lost = broken || error.is_closed() || code.is_some_and(|code| ended.contains(code));
        if lost || closed {
            self.open.set(false);
            return Error::Lost { place: self.address.place().to_owned(), why: reason(error) };
        }
        if code == Some(&SqlState::PROGRAM_LIMIT_EXCEEDED) {
            return Error::Text("is too long for an index");
        }
        Error::Server { why: reason(error), code: code.map(|code| code.code().to_owned()) }
    }
}

/// When a session of pg_stat_activity began, as a number that no setting of a session changes.
const SESSION_START: &str = "(EXTRACT(EPOCH FROM backend_start) * 1000000)::BIGINT";
/// The sessions that have a lock of ours, by the key's halves.
const HOLDERS: &str = "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted \
                       AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                       AND classid = $1::oid AND objid = hashtext($2)::oid";

/// A try to connect, on a thread of its own: the driver has a deadline for the network alone, and would wait for ever
/// for a server that takes a connection and says nothing. The thread ends when the server answers or is gone; until
/// then its connection makes no other.
struct Attempt(mpsc::Receiver<Result<Client>>);

impl Attempt {
    fn begin(address: &Arc<Address>, role: Role) -> Result<Attempt> {
        let (answer, attempt) = mpsc::sync_channel(1);
        let place = address.place().to_owned();
        let address = Arc::clone(address);
        let work = move || {
            // Whoever began it may have given up.
            let _ = answer.send(connect(&address, role));
        };
        let begun = std::thread::Builder::new().name("instep-db-conn".to_owned()).spawn(work);
        begun.map(|_| Attempt(attempt)).map_err(|error| Error::Refused {
            place,
            why: error.to_string(),
            hint: "the system's limits may be too low for this user",
            lasting: false,
        })
    }

    /// The connection; nothing if there is no answer in time.
    fn wait(&self, address: &Address, patience: Duration) -> Option<Result<Client>> {
        match self.0.recv_timeout(patience) {
            Ok(outcome) => Some(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            // A panic of the driver was its own message.
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(silent(address))),
        }
    }
}

/// Says that there was no answer.
fn silent(address: &Address) -> Error {
    Error::Refused {
        place: address.place().to_owned(),
        why: "the server does not answer".to_owned(),
        hint: "check that it is PostgreSQL that serves there, and that it is neither stopped nor overloaded",
        lasting: false,
    }
}

/// A prepared statement.
pub(super) struct Statement<'c> {
    connection: &'c Connection,
    statement: postgres::Statement,
}

impl Statement<'_> {
    pub(super) fn execute(&self, values: &[&dyn ToSql]) -> Result<usize> {
        let changed = self.run(values, |client, values| client.execute(&self.statement, values))?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    pub(super) fn query(&self, values: &[&dyn ToSql]) -> Result<Vec<postgres::Row>> {
        self.run(values, |client, values| client.query(&self.statement, values))
    }

    fn run<T>(
        &self,
        values: &[&dyn ToSql],
        run: impl FnOnce(&mut Client, &[&(dyn DriverToSql + Sync)]) -> std::result::Result<T, postgres::Error>,
    ) -> Result<T> {
        let values = values.iter().map(|value| Parameter::of(*value)).collect::<Result<Vec<_>>>()?;
        let values: Vec<&(dyn DriverToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let outcome = run(&mut self.connection.client.borrow_mut(), &values);
        outcome.map_err(|error| self.connection.failed(&error))
    }
}

/// Statements that were prepared on a connection, of which those that were not used for longest give way.
#[derive(Default)]
struct Cache {
    known: HashMap<String, (postgres::Statement, u64)>,
    uses: u64,
}

impl Cache {
    fn get(&mut self, sql: &str) -> Option<postgres::Statement> {
        self.uses += 1;
        let (statement, used) = self.known.get_mut(sql)?;
        *used = self.uses;
        Some(statement.clone())
    }

    fn put(&mut self, sql: &str, statement: postgres::Statement) {
        if self.known.len() >= STATEMENTS {
            let oldest = self.known.iter().min_by_key(|(_, (_, used))| *used).map(|(sql, _)| sql.clone());
            oldest.and_then(|sql| self.known.remove(&sql));
        }
        self.known.insert(sql.to_owned(), (statement, self.uses));
    }

    fn clear(&mut self) {
        self.known.clear();
    }
}

/// Connects, and makes the session one of ours.
fn connect(address: &Address, role: Role) -> Result<Client> {
    let mut client = address.connect()?;
    let refused = |why: String, hint| Error::Refused { place: address.place().to_owned(), why, hint, lasting: false };
    // A master whose machine is gone loses its lock when the server notices: soon. What is acknowledged is on the
    // server's disk, unless somebody asked for more than that.
    let mut script = format!(
        "SET search_path TO {}; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
         SET tcp_keepalives_count = 3; SET lock_timeout = '10s'; SET statement_timeout = '60s'; \
         SET idle_in_transaction_session_timeout = 0; \
         SET standard_conforming_strings = on; SELECT set_config('synchronous_commit', 'on', FALSE) \
         WHERE current_setting('synchronous_commit') IN ('off', 'local'); \
         SELECT set_config('tcp_user_timeout', '25000', FALSE) \
         WHERE current_setting('server_version_num')::INTEGER >= {OLDEST}; ",
        quoted(address.schema())
    );
    if role == Role::Reader {
        script += "SET default_transaction_read_only = on; ";
    }
    script += "SELECT current_setting('server_version_num'), current_setting('server_encoding'), \
               pg_is_in_recovery()::text, current_setting('server_version')";
    let hint = "see what the server says, and its log";
    let answers = client.simple_query(&script).map_err(|error| refused(reason(&error), hint))?;
    let rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) if row.len() == 4 => {
            Some([0, 1, 2, 3].map(|column| row.get(column).unwrap_or("")))
        }
        _ => None,
    });
    let [number, encoding, standby, version] = rows.last().unwrap_or_default();
    match unfit(number, encoding, standby, version) {
        Some((why, hint)) => Err(refused(why, hint)),
        None => Ok(client),
    }
}

/// Why a server cannot be used, and what to do: by its version, encoding, and whether it only follows another.
fn unfit(number: &str, encoding: &str, standby: &str, version: &str) -> Option<(String, &'static str)> {
    if number.parse::<u32>().is_ok_and(|number| number < OLDEST) {
        return Some((format!("its version is {version}"), "use PostgreSQL 13 or later"));
    }
    if encoding != "UTF8" {
        let hint = "make a database with `CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0`, and name that";
        return Some((format!("its encoding is {encoding}, and not UTF8"), hint));
    }
    (standby == "true").then(|| {
        let hint = "name the primary; or several hosts with `?target_session_attrs=read-write`, which finds it";
        ("it is a standby, which takes no changes".to_owned(), hint)
    })
}

/// Refuses what hands every transaction to another connection of the server, as pgbouncer does in its transaction mode:
/// there, neither the lock nor prepared statements stay with a connection.
fn refuse_shared_sessions(address: &Arc<Address>) -> Result<()> {
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

/// What went wrong, in the server's words or the system's.
fn reason(error: &postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = next.to_string();
        cause = next.source();
    }
    text
}

/// A name in a statement.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_be_used_is_refused_with_the_reason() {
        assert_eq!(unfit("130000", "UTF8", "false", "13.0"), None);
        for (number, encoding, standby, word) in [
            ("120017", "UTF8", "false", "version is 12.17"),
            ("150002", "SQL_ASCII", "false", "SQL_ASCII"),
            ("150002", "UTF8", "true", "standby"),
        ] {
            let (why, _) = unfit(number, encoding, standby, "12.17").unwrap();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
