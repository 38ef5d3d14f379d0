//! One writer and a few readers on one database.
//!
//! Writes are closures that queue for one thread, which runs as many as are waiting inside one transaction and commits
//! them together: with `synchronous = FULL` the cost of a commit is the disk's, and it is shared. Each closure can be
//! taken back alone, so that one that fails takes nothing of the others back. A write is answered after the commit, never
//! before. Reads run on threads of their own, each in a snapshot, and never wait for the writer.
//!
//! Two things end the writer for good: another master that has taken over, and a server that went away during a commit,
//! of which nobody knows whether it took place. Then the process has to begin anew, with what the database says.
//!
//! Queues are bounded: a caller waits for a place. Closing ends the queues, lets the threads finish what is queued, and
//! joins them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::error::{Error, Result};
use crate::sql::{self, Connection, Place};
use crate::sync::{join_until, lock};

/// Jobs that may wait for the writer, or for a reader, before callers have to wait for a place.
const QUEUE: usize = 1024;
const READERS: usize = 3;

/// Runs inside the transaction, or without one if none could be begun; what it returns runs after the commit, and is
/// told why that failed, if it did.
type WriteJob = Box<dyn FnOnce(Option<&Connection>) -> Completion + Send>;
type Completion = Box<dyn FnOnce(Option<&Failure>) + Send>;
type ReadJob = Box<dyn FnOnce(&mut Connection) + Send>;

/// Why what was asked for is not stored.
enum Failure {
    /// The next attempt may succeed.
    NotDurable(String),
    /// The same, once the server is back.
    Lost { place: String, why: String },
    /// None will.
    Ended(String),
}

impl Failure {
    fn why(&self) -> String {
        match self {
            Failure::NotDurable(why) | Failure::Ended(why) => why.clone(),
            Failure::Lost { place, why } => lost(place, why).to_string(),
        }
    }
}

fn lost(place: &str, why: &str) -> sql::Error {
    sql::Error::Lost { place: place.to_owned(), why: why.to_owned() }
}

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
pub(crate) struct Executor {
    writes: Mutex<Option<mpsc::Sender<WriteJob>>>,
    reads: Mutex<Option<mpsc::Sender<ReadJob>>>,
    /// The writer, then the readers.
    threads: Mutex<Vec<JoinHandle<()>>>,
    points: AtomicU64,
    health: Arc<Health>,
    /// How long the threads are waited for at the end, unless for ever.
    patience: Option<Duration>,
}

/// How the writer is.
struct Health {
    last_failure: Mutex<Option<String>>,
    /// Why nothing is written any more, once that is so.
    ended: watch::Sender<Option<String>>,
    /// Told after every commit.
    written: Notify,
}

impl Executor {
    /// Starts the threads on an open, migrated database whose lease is `epoch`.
    pub(crate) fn start(place: &Place, writer: Connection, epoch: i64) -> Result<Executor> {
        let (writes, write_jobs) = mpsc::channel(QUEUE);
        let (reads, read_jobs) = mpsc::channel::<ReadJob>(QUEUE);
        let read_jobs = Arc::new(Mutex::new(read_jobs));
        let health = Arc::new(Health {
            last_failure: Mutex::default(),
            ended: watch::Sender::new(None),
            written: Notify::new(),
        });
        let noted = Arc::clone(&health);
        let path = &place.shown();
        let mut threads = vec![spawn("instep-db-write", path, move || write_loop(&writer, write_jobs, epoch, &noted))?];
        for _ in 0..READERS {
            let mut reader = place.open_reader()?;
            let jobs = Arc::clone(&read_jobs);
            let work = move || {
                // The lock is held while waiting: the others wait for the lock instead, which is the same.
                while let Some(job) = lock(&jobs).blocking_recv() {
                    job(&mut reader);
                }
            };
            threads.push(spawn("instep-db-read", path, work)?);
        }
        Ok(Executor {
            writes: Mutex::new(Some(writes)),
            reads: Mutex::new(Some(reads)),
            threads: Mutex::new(threads),
            points: AtomicU64::new(0),
            health,
            patience: place.closing_patience(),
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
        lock(&self.health.last_failure).clone()
    }

    /// Waits until nothing can be written any more, and says why.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.health.ended.subscribe();
        // The sender lives as long as this.
        ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// Waits until something was written since the last call; for one caller.
    pub(crate) async fn written(&self) {
        self.health.written.notified().await;
    }

    /// Writes nothing any more, and says why to whoever waits for that.
    pub(crate) fn end(&self, why: &str) {
        self.health.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    /// Lets the threads finish what is queued, and joins them; the writer at last. The last connection empties the journal
    /// into the file, which none does when several close at the same time. Threads that a server keeps waiting are left
    /// behind.
    pub(crate) fn close(&self) {
        let deadline = self.patience.map(|patience| Instant::now() + patience);
        let mut threads = std::mem::take(&mut *lock(&self.threads)).into_iter();
        let writer = threads.next();
        drop(lock(&self.reads).take());
        threads.for_each(|reader| join_until(reader, deadline));
        drop(lock(&self.writes).take());
        if let Some(writer) = writer {
            join_until(writer, deadline);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs `work` on a connection that shows one state of the database throughout.
pub(crate) fn in_snapshot<T>(connection: &mut Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let transaction = connection.snapshot()?;
    let result = contained(|| work(&transaction));
    // What was read is right, however the transaction ends; what could not be is the better reason.
    let ended = transaction.roll_back();
    let found = result?;
    ended?;
    Ok(found)
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
        let outcome = connection.map_or(Err(Error::Closed), |connection| as_job(connection, work));
        Box::new(move |failure| {
            let outcome = match failure {
                None => outcome,
                Some(Failure::NotDurable(why)) => Err(Error::NotDurable(why.clone())),
                Some(Failure::Lost { place, why }) => Err(Error::Engine(lost(place, why))),
                Some(Failure::Ended(why)) => Err(Error::SteppedDown(why.clone())),
            };
            // Nobody listens any more when the request was given up; what was written stays.
            let _ = reply.send(outcome);
        })
    });
    (job, answer)
}

fn as_job<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    connection.savepoint()?;
    let outcome = contained(|| work(connection));
    // A full disk can end the whole transaction; then there is nothing to take back, and the loop below notices.
    if !connection.is_autocommit() {
        if outcome.is_err() { connection.rollback_to()? } else { connection.release()? }
    }
    outcome
}

/// The writer's life: gather, run, commit, answer.
fn write_loop(connection: &Connection, mut jobs: mpsc::Receiver<WriteJob>, epoch: i64, health: &Health) {
    while let Some(first) = jobs.blocking_recv() {
        let mut completions = Vec::new();
        let ended = health.ended.borrow().clone();
        let failure = if let Some(why) = ended {
            completions.push(first(None));
            Some(Failure::Ended(why))
        } else {
            let outcome = write_together(connection, first, &mut jobs, epoch, &mut completions);
            if outcome.is_err() && !connection.is_autocommit() {
                // Without this the next transaction could not begin; if it fails too, the next one says so.
                let _ = connection.roll_back();
            }
            outcome.err().map(|error| failure_of(&error))
        };
        let why = failure.as_ref().map(Failure::why);
        if let Some(Failure::Ended(why)) = &failure {
            health.ended.send_replace(Some(why.clone()));
        }
        *lock(&health.last_failure) = why;
        for completion in completions {
            completion(failure.as_ref());
        }
        health.written.notify_one();
    }
}

fn write_together(
    connection: &Connection,
    first: WriteJob,
    jobs: &mut mpsc::Receiver<WriteJob>,
    epoch: i64,
    completions: &mut Vec<Completion>,
) -> Result<()> {
    let begun = connection.begin_deciding().map_err(Error::from);
    let begun = begun.and_then(|current| if current == epoch { Ok(()) } else { Err(Error::Superseded) });
    if let Err(error) = begun {
        completions.push(first(None));
        return Err(error);
    }
    let mut next = Some(first);
    while let Some(job) = next {
        completions.push(job(Some(connection)));
        if connection.is_autocommit() {
            return Err(connection.rolled_back());
        }
        next = if completions.len() < connection.most_jobs() { jobs.try_recv().ok() } else { None };
    }
    connection.commit()?;
    Ok(())
}

fn failure_of(error: &Error) -> Failure {
    match error {
        Error::Superseded => Failure::Ended(error.to_string()),
        Error::InUseElsewhere { .. } => Failure::Ended(Error::Superseded.to_string()),
        Error::Engine(cause @ sql::Error::UnknownOutcome { .. }) => Failure::Ended(cause.to_string()),
        Error::Engine(sql::Error::Lost { place, why }) => Failure::Lost { place: place.clone(), why: why.clone() },
        Error::Engine(cause) => Failure::NotDurable(cause.to_string()),
        Error::NotDurable(why) => Failure::NotDurable(why.clone()),
        other => Failure::NotDurable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::sqlite;

    fn executor(folder: &tempfile::TempDir) -> Executor {
        let path = folder.path().join("a.db");
        let writer = sqlite::open_writer(&path).unwrap();
        let schema = "CREATE TABLE lease (name TEXT, epoch BIGINT); INSERT INTO lease VALUES ('master', 1); \
                      CREATE TABLE things (name TEXT NOT NULL UNIQUE);";
        writer.execute_batch(schema).unwrap();
        Executor::start(&Place::Sqlite(path), writer, 1).unwrap()
    }

    fn add(executor: &Executor, name: &'static str) -> Result<()> {
        executor.write_blocking(move |connection| {
            connection.execute("INSERT INTO things (name) VALUES (?)", [name])?;
            assert_ne!(name, "panic", "as the test wants it");
            Ok(())
        })
    }

    #[test]
    fn a_panic_fails_its_own_write_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let executor = executor(&folder);
        add(&executor, "one").unwrap();
        let failed = add(&executor, "panic").unwrap_err().to_string();
        assert!(failed.contains("as the test wants it"), "{failed}");
        add(&executor, "two").unwrap();
        assert!(add(&executor, "two").is_err());
        let names = executor.write_blocking(|connection| {
            let mut statement = connection.prepare("SELECT name FROM things ORDER BY name")?;
            let names = statement.query_map([], |row| row.get::<_, String>(0))?;
            Ok(names.collect::<sql::Result<Vec<_>>>()?)
        });
        assert_eq!(names.unwrap(), ["one", "two"]);
    }

    #[test]
    fn why_nothing_can_be_stored_is_remembered_until_something_is() {
        let folder = tempfile::tempdir().unwrap();
        let executor = executor(&folder);
        add(&executor, "one").unwrap();
        assert!(add(&executor, "one").is_err());
        assert_eq!(executor.last_failure(), None, "a mistake of the caller's is not the database's");
        let other = sqlite::open_existing(&folder.path().join("a.db")).unwrap();
        other.execute("ALTER TABLE lease RENAME TO elsewhere", []).unwrap();
        assert!(add(&executor, "two").is_err());
        assert!(executor.last_failure().unwrap().contains("lease"));
        other.execute("ALTER TABLE elsewhere RENAME TO lease", []).unwrap();
        add(&executor, "two").unwrap();
        assert_eq!(executor.last_failure(), None);
    }

    #[test]
    fn one_that_was_replaced_writes_nothing_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let executor = executor(&folder);
        let other = sqlite::open_existing(&folder.path().join("a.db")).unwrap();
        other.execute("UPDATE lease SET epoch = 2", []).unwrap();
        assert!(matches!(add(&executor, "one"), Err(Error::SteppedDown(_))));
        other.execute("UPDATE lease SET epoch = 1", []).unwrap();
        assert!(matches!(add(&executor, "one"), Err(Error::SteppedDown(_))), "what it knows is out of date");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(executor.ended()).contains("another master"));
    }

    #[test]
    fn one_that_was_told_to_end_writes_nothing_any_more_and_keeps_the_first_reason() {
        let folder = tempfile::tempdir().unwrap();
        let executor = executor(&folder);
        executor.end("first");
        executor.end("second");
        assert!(matches!(add(&executor, "one"), Err(Error::SteppedDown(why)) if why == "first"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(executor.ended()), "first");
    }

    #[test]
    fn a_lost_connection_is_told_as_one() {
        let failure = failure_of(&Error::Engine(lost("db", "gone")));
        assert!(failure.why().contains("connection to the database db was lost: gone"), "{}", failure.why());
        let (job, answer) = write_job(|_| Ok(()));
        job(None)(Some(&failure));
        assert!(answer.blocking_recv().unwrap().unwrap_err().is_lost());
    }

    #[test]
    fn a_closed_engine_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let executor = executor(&folder);
        executor.close();
        assert!(matches!(add(&executor, "one"), Err(Error::Closed)));
    }
}
