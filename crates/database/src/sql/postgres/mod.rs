//! PostgreSQL as a database: connections that keep their prepared statements and come back when they are lost. One of them,
//! the writer, holds the lock that keeps other masters out (`lock`). `connect` is one try to connect.
//!
//! A transaction is lost with its connection, which is harmless until it is committed. When the connection is lost during
//! a commit, nobody can say whether the transaction took place ([`Error::UnknownOutcome`]).

mod address;
mod cache;
mod connect;
mod dialect;
mod lock;
mod standby;
mod tls;
mod values;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::types::ToSql as DriverToSql;
use postgres::{Client, SimpleQueryMessage};

pub use address::{Address, AddressError};
use cache::Cache;
use connect::{Attempt, Role, silent};
use dialect::quoted;
pub(in crate::sql) use values::Column;
use values::Parameter;

use super::ToSql;
use super::error::{Error, Result, reason};

/// How long a server that went away is waited for, from when that was noticed.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);
/// The least time for an answer, also where none is left.
const LEAST_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection, which is made anew when it is lost.
pub(super) struct Connection {
    client: RefCell<Client>,
    statements: RefCell<Cache>,
    address: Arc<Address>,
    role: Role,
    /// Whether a transaction is open.
    open: Cell<bool>,
    /// Jobs of the open transaction that are kept; see [`Connection::savepoint`].
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
        Connection::refuse_shared_sessions(address)?;
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
        let client = attempt.wait(address, address.timeout()).unwrap_or_else(|| Err(silent(address)))?;
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
                    if waited.is_some_and(|waited| waited > RECONNECT_TIMEOUT) && std::mem::replace(&mut tried, true) {
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

    /// Ends the open transaction. If the connection is lost meanwhile, the outcome is unknown.
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
    pub(super) fn savepoint(&self) -> Result<()> {
        match self.kept.get() {
            0 => Ok(()),
            1 => self.execute_batch("SAVEPOINT job"),
            _ => self.execute_batch("RELEASE SAVEPOINT job; SAVEPOINT job"),
        }
    }

    pub(super) fn release(&self) {
        self.kept.set(self.kept.get() + 1);
    }

    /// Takes back what the job has done. The first one's transaction is begun anew, if it is still ours to begin.
    pub(super) fn rollback_to(&self) -> Result<()> {
        if self.kept.get() > 0 {
            return self.execute_batch("ROLLBACK TO SAVEPOINT job");
        }
        let before = self.epoch.get();
        self.roll_back()?;
        if self.begin_deciding()? == before { Ok(()) } else { self.roll_back() }
    }

    /// Connects again, for as long as a server that restarts is waited for.
    fn reconnect(&self) -> Result<()> {
        let since = self.lost_since.get().unwrap_or_else(Instant::now);
        self.lost_since.set(Some(since));
        let deadline = since + RECONNECT_TIMEOUT;
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
        let timeout = deadline.saturating_duration_since(Instant::now()).max(LEAST_TIMEOUT);
        attempt.wait(&self.address, timeout).unwrap_or_else(|| {
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
