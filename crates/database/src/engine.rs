//! One writer and a few readers on one SQLite file.
//!
//! Writes are closures that queue for one thread, which runs as many as are waiting inside one transaction and commits
//! them together: with `synchronous = FULL` the cost of a commit is the disk's, and it is shared. Each closure runs in a
//! savepoint, so that one that fails takes nothing of the others back. A write is answered after the commit, never
//! before. Reads run on threads of their own, each in a snapshot, and never wait for the writer.
//!
//! Queues are bounded: a caller waits for a place. Closing ends the queues, lets the threads finish what is queued, and
//! joins them.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::sync::lock;

/// Jobs that may wait for the writer, or for a reader, before callers have to wait for a place.
const QUEUE: usize = 1024;
/// Jobs of one transaction at most, so that the first does not wait for ever.
const JOBS_PER_COMMIT: usize = 256;
const READERS: usize = 3;
/// Prepared statements that each connection keeps.
const STATEMENTS: usize = 128;

/// Runs inside the transaction, or without one if none could be begun; what it returns runs after the commit, and is
/// told why that failed, if it did.
type WriteJob = Box<dyn FnOnce(Option<&Connection>) -> Completion + Send>;
type Completion = Box<dyn FnOnce(Option<&str>) + Send>;
type ReadJob = Box<dyn FnOnce(&mut Connection) + Send>;

/// How much a database has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Points of metrics stored since it was opened.
    pub points: u64,
    /// Writes that wait for the writer.
    pub waiting_writes: usize,
    /// Reads that wait for a reader.
    pub waiting_reads: usize,
}

/// The threads and the ways to them.
pub(crate) struct Engine {
    writes: Mutex<Option<mpsc::Sender<WriteJob>>>,
    reads: Mutex<Option<mpsc::Sender<ReadJob>>>,
    /// The writer, then the readers.
    threads: Mutex<Vec<JoinHandle<()>>>,
    points: AtomicU64,
    last_failure: Arc<Mutex<Option<String>>>,
}

impl Engine {
    /// Starts the threads on an open, migrated database whose lease is `epoch`.
    pub(crate) fn start(path: &Path, writer: Connection, epoch: i64) -> Result<Engine> {
        let (writes, write_jobs) = mpsc::channel(QUEUE);
        let (reads, read_jobs) = mpsc::channel::<ReadJob>(QUEUE);
        let read_jobs = Arc::new(Mutex::new(read_jobs));
        let last_failure = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&last_failure);
        let mut threads = vec![spawn("instep-db-write", path, move || write_loop(&writer, write_jobs, epoch, &noted))?];
        for _ in 0..READERS {
            let mut reader = open_reader(path)?;
            let jobs = Arc::clone(&read_jobs);
            let work = move || {
                // The lock is held while waiting: the others wait for the lock instead, which is the same.
                while let Some(job) = lock(&jobs).blocking_recv() {
                    job(&mut reader);
                }
            };
            threads.push(spawn("instep-db-read", path, work)?);
        }
        Ok(Engine {
            writes: Mutex::new(Some(writes)),
            reads: Mutex::new(Some(reads)),
            threads: Mutex::new(threads),
            points: AtomicU64::new(0),
            last_failure,
        })
    }

    /// Runs `work` in a transaction; the answer comes when its effects are on disk.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (job, answer) = write_job(work);
        let writes = sender(&self.writes)?;
        writes.send(job).await.map_err(|_| Error::Closed)?;
        drop(writes);
        answer.await.map_err(|_| Error::Closed)?
    }

    /// The same for threads that may block.
    pub(crate) fn write_blocking<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (job, answer) = write_job(work);
        let writes = sender(&self.writes)?;
        writes.blocking_send(job).map_err(|_| Error::Closed)?;
        drop(writes);
        answer.blocking_recv().map_err(|_| Error::Closed)?
    }

    /// Runs `work` on a snapshot.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: ReadJob = Box::new(move |connection| {
            // Nobody listens any more when the request was given up.
            let _ = reply.send(in_snapshot(connection, work));
        });
        let reads = sender(&self.reads)?;
        reads.send(job).await.map_err(|_| Error::Closed)?;
        drop(reads);
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Counts points of metrics that have been stored.
    pub(crate) fn count_points(&self, count: usize) {
        self.points.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// How much there is to do.
    pub(crate) fn load(&self) -> Load {
        Load {
            points: self.points.load(Ordering::Relaxed),
            waiting_writes: waiting(&self.writes),
            waiting_reads: waiting(&self.reads),
        }
    }

    /// Why the last transaction could not be stored, if it could not.
    pub(crate) fn last_failure(&self) -> Option<String> {
        lock(&self.last_failure).clone()
    }

    /// Lets the threads finish what is queued, and joins them; the writer at last. The last connection empties the journal
    /// into the file, which none does when several close at the same time.
    pub(crate) fn close(&self) {
        let mut threads = std::mem::take(&mut *lock(&self.threads)).into_iter();
        let writer = threads.next();
        drop(lock(&self.reads).take());
        // A panic of a thread was its own message; there is nothing left to do about it here.
        threads.for_each(|reader| drop(reader.join()));
        drop(lock(&self.writes).take());
        drop(writer.map(JoinHandle::join));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens a connection for reading.
pub(crate) fn open_reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA query_only = ON; PRAGMA cache_size = -8192;")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// Opens the connection for writing, and makes the file if there is none.
pub(crate) fn open_writer(path: &Path) -> rusqlite::Result<Connection> {
    // Made here so that only its owner can read the hashes in it; the journal takes its mode. If it cannot be made, the
    // next line says why.
    let _ = std::fs::File::options().create(true).append(true).mode(0o600).open(path);
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
         PRAGMA journal_size_limit = 67108864;",
    )?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// Runs `work` on a connection that shows one state of the database throughout.
pub(crate) fn in_snapshot<T>(connection: &mut Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let transaction = connection.transaction()?;
    let result = contained(|| work(&transaction));
    transaction.finish()?;
    result
}

/// Runs `work` so that a broken invariant in it fails its own caller, and not everybody whose work comes later. What it
/// changed is rolled back like after any other failure.
fn contained<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
        Err(Error::Damaged(format!("a broken invariant: {}", text.unwrap_or("of unknown kind"))))
    })
}

fn spawn(name: &str, path: &Path, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|source| Error::File { path: path.to_owned(), source })
}

fn sender<T>(queue: &Mutex<Option<mpsc::Sender<T>>>) -> Result<mpsc::Sender<T>> {
    lock(queue).clone().ok_or(Error::Closed)
}

fn waiting<T>(queue: &Mutex<Option<mpsc::Sender<T>>>) -> usize {
    sender(queue).map_or(0, |queue| queue.max_capacity() - queue.capacity())
}

fn write_job<T, F>(work: F) -> (WriteJob, oneshot::Receiver<Result<T>>)
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Result<T> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let job: WriteJob = Box::new(move |connection| {
        let outcome = connection.map_or(Err(Error::Closed), |connection| in_savepoint(connection, work));
        Box::new(move |failure| {
            let outcome = match failure {
                None => outcome,
                Some(why) => Err(Error::NotDurable(why.to_owned())),
            };
            // Nobody listens any more when the request was given up; what was written stays.
            let _ = reply.send(outcome);
        })
    });
    (job, answer)
}

fn in_savepoint<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    connection.prepare_cached("SAVEPOINT job")?.execute([])?;
    let outcome = contained(|| work(connection));
    // A full disk can end the whole transaction; then there is no savepoint left, and the loop below notices.
    if !connection.is_autocommit() {
        if outcome.is_err() {
            connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
        }
        connection.prepare_cached("RELEASE job")?.execute([])?;
    }
    outcome
}

/// The writer's life: gather, run, commit, answer.
fn write_loop(
    connection: &Connection,
    mut jobs: mpsc::Receiver<WriteJob>,
    epoch: i64,
    last_failure: &Mutex<Option<String>>,
) {
    while let Some(first) = jobs.blocking_recv() {
        let mut completions = Vec::new();
        let outcome = write_together(connection, first, &mut jobs, epoch, &mut completions);
        if outcome.is_err() && !connection.is_autocommit() {
            // Without this the next transaction could not begin; if it fails too, the next one says so.
            let _ = connection.execute_batch("ROLLBACK");
        }
        let failure = outcome.err().map(|error| describe(&error));
        lock(last_failure).clone_from(&failure);
        for completion in completions {
            completion(failure.as_deref());
        }
    }
}

fn write_together(
    connection: &Connection,
    first: WriteJob,
    jobs: &mut mpsc::Receiver<WriteJob>,
    epoch: i64,
    completions: &mut Vec<Completion>,
) -> Result<()> {
    let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(Error::from).and_then(|()| {
        let current: i64 = connection
            .prepare_cached("SELECT epoch FROM lease WHERE name = 'master'")?
            .query_row([], |row| row.get(0))?;
        if current == epoch { Ok(()) } else { Err(Error::Superseded) }
    });
    if let Err(error) = begun {
        completions.push(first(None));
        return Err(error);
    }
    let mut next = Some(first);
    while let Some(job) = next {
        completions.push(job(Some(connection)));
        if connection.is_autocommit() {
            return Err(Error::NotDurable("the transaction was rolled back; is the disk full?".to_owned()));
        }
        next = if completions.len() < JOBS_PER_COMMIT { jobs.try_recv().ok() } else { None };
    }
    connection.execute_batch("COMMIT")?;
    Ok(())
}

fn describe(error: &Error) -> String {
    match error {
        Error::Engine(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(folder: &tempfile::TempDir) -> Engine {
        let path = folder.path().join("a.db");
        let writer = open_writer(&path).unwrap();
        let schema = "CREATE TABLE lease (name TEXT, epoch BIGINT); INSERT INTO lease VALUES ('master', 1); \
                      CREATE TABLE things (name TEXT NOT NULL UNIQUE);";
        writer.execute_batch(schema).unwrap();
        Engine::start(&path, writer, 1).unwrap()
    }

    fn add(engine: &Engine, name: &'static str) -> Result<()> {
        engine.write_blocking(move |connection| {
            connection.execute("INSERT INTO things (name) VALUES (?)", [name])?;
            assert_ne!(name, "panic", "as the test wants it");
            Ok(())
        })
    }

    #[test]
    fn a_panic_fails_its_own_write_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder);
        add(&engine, "one").unwrap();
        let failed = add(&engine, "panic").unwrap_err().to_string();
        assert!(failed.contains("as the test wants it"), "{failed}");
        add(&engine, "two").unwrap();
        assert!(add(&engine, "two").is_err());
        let names = engine.write_blocking(|connection| {
            let mut statement = connection.prepare("SELECT name FROM things ORDER BY name")?;
            let names = statement.query_map([], |row| row.get::<_, String>(0))?;
            Ok(names.collect::<rusqlite::Result<Vec<_>>>()?)
        });
        assert_eq!(names.unwrap(), ["one", "two"]);
    }

    #[test]
    fn why_nothing_can_be_stored_is_remembered_until_something_is() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder);
        add(&engine, "one").unwrap();
        assert!(add(&engine, "one").is_err());
        assert_eq!(engine.last_failure(), None, "a mistake of the caller's is not the database's");
        let other = Connection::open(folder.path().join("a.db")).unwrap();
        other.execute("UPDATE lease SET epoch = 2", []).unwrap();
        assert!(add(&engine, "two").is_err());
        assert!(engine.last_failure().unwrap().contains("another master"));
        other.execute("UPDATE lease SET epoch = 1", []).unwrap();
        add(&engine, "two").unwrap();
        assert_eq!(engine.last_failure(), None);
    }

    #[test]
    fn a_closed_engine_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder);
        engine.close();
        assert!(matches!(add(&engine, "one"), Err(Error::Closed)));
    }
}
