//! Taking over what another cluster knew, without a master.
//!
//! An import writes into a *working copy* beside the database, `<database>.import`, and puts it into the database's place
//! when it is whole: whoever looks sees the database before the import or after it, whatever happens in between. The
//! working copy notes how far it has come, in the same transactions, so that an import that was killed continues there.
//! It is made anew when it belongs to another plan: another source, another target, or one of them has changed.
//!
//! Threads: none. The lock on the database is held throughout, so no master starts meanwhile.

mod known;
mod people;
mod work;

use std::path::{Path, PathBuf};

use instep_api::metrics::Report;

pub use known::{Known, KnownUser};
pub use people::{ImportedGroup, ImportedProject, ImportedRole, ImportedUser, ImportedWorkspace};
pub use work::{
    ImportedAllocation, ImportedCheckpoint, ImportedExperiment, ImportedLine, ImportedModel, ImportedModelVersion,
    ImportedTemplate, ImportedTrial,
};

use crate::Opening;
use crate::backup::{self, with_suffix};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::metrics::imported;
use crate::migrations;
use crate::sql::sqlite::{self, open_writer};
use crate::sql::{Connection, OptionalExtension, params};

/// Where an import stands: the working copy, and the lock on the database that it is for.
pub struct Import {
    target: PathBuf,
    working: PathBuf,
    known: Known,
    _lock: Lock,
}

/// How far a stage has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Where in the source to continue.
    pub marker: Option<i64>,
    /// Whether there is nothing left to do.
    pub done: bool,
    /// What the importer wants to remember of it.
    pub notes: String,
}

impl Import {
    /// Locks a database, which need not exist, and finds out what it holds. Changes nothing.
    pub fn begin(target: &Path, opening: &Opening, cluster: &str) -> Result<Import> {
        let lock = Lock::take(target, &opening.holder)?;
        let known = if target.exists() {
            let connection = backup::open_existing(target)?;
            migrations::check_version(&connection, target)?;
            Known::of(&connection, cluster)?
        } else {
            let mut connection = sqlite::open_in_memory()?;
            migrations::migrate(&mut connection, target, opening)?;
            Known::of(&connection, cluster)?
        };
        Ok(Import { target: target.to_owned(), working: with_suffix(target, ".import"), known, _lock: lock })
    }

    /// What the database holds.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Opens the working copy of a plan, or makes it; says whether an earlier import of the same plan is continued.
    pub fn open(&self, plan: &str, opening: &Opening) -> Result<(WorkingCopy, bool)> {
        let plan = format!("{plan} {}", self.known.version);
        if self.working.exists() {
            let connection = open_writer(&self.working)?;
            if plan_of(&connection).as_deref() == Some(plan.as_str()) {
                tune(&connection)?;
                return Ok((WorkingCopy { connection }, true));
            }
        }
        self.discard()?;
        if self.target.exists() {
            backup::copy(&backup::open_existing(&self.target)?, &self.working)?;
        }
        let mut connection = open_writer(&self.working)?;
        migrations::upgrade(&mut connection, &self.working, opening)?;
        tune(&connection)?;
        connection.execute_batch(
            "CREATE TABLE import_plan (plan TEXT NOT NULL);
             CREATE TABLE import_progress \
             (stage TEXT PRIMARY KEY, marker BIGINT, done BOOLEAN NOT NULL, notes TEXT NOT NULL);",
        )?;
        connection.execute("INSERT INTO import_plan (plan) VALUES (?)", [plan])?;
        Ok((WorkingCopy { connection }, false))
    }

    /// Puts a whole working copy into the database's place. A database that was there is kept under its name and
    /// `suffix`; gives its path.
    pub fn finish(self, copy: WorkingCopy, suffix: &str) -> Result<Option<PathBuf>> {
        let connection = copy.connection;
        connection.execute_batch(
            "DROP TABLE import_plan; DROP TABLE import_progress; PRAGMA synchronous = FULL; PRAGMA optimize;",
        )?;
        fold_journal(&connection)?;
        drop(connection);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source }
        };
        std::fs::File::open(&self.working).and_then(|file| file.sync_all()).map_err(failed(&self.working))?;
        let mut kept = None;
        if self.target.exists() {
            // What its journal holds must be in the file, because the journal would be taken for the new file's.
            fold_journal(&backup::open_existing(&self.target)?)?;
            let path = with_suffix(&self.target, suffix);
            std::fs::hard_link(&self.target, &path).map_err(failed(&path))?;
            kept = Some(path);
        }
        std::fs::rename(&self.working, &self.target).map_err(failed(&self.target))?;
        backup::sync_folder(&self.target)?;
        Ok(kept)
    }

    /// Removes the working copy, if there is one.
    pub fn discard(&self) -> Result<()> {
        for ending in ["-wal", "-shm", ""] {
            let path = with_suffix(&self.working, ending);
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::File { path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn plan_of(connection: &Connection) -> Option<String> {
    connection.query_row("SELECT plan FROM import_plan", [], |row| row.get(0)).ok()
}

/// Until it is whole, the working copy need not survive the machine: what was committed last may be lost, never its order.
fn tune(connection: &Connection) -> Result<()> {
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY;")?;
    Ok(())
}

/// Writes what a journal holds into its database, and empties it.
fn fold_journal(connection: &Connection) -> Result<()> {
    let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if busy == 0 { Ok(()) } else { Err(Error::Precondition("another process reads the database".to_owned())) }
}

/// A database on its way, open for writing.
pub struct WorkingCopy {
    connection: Connection,
}

impl WorkingCopy {
    /// How far a stage has come.
    pub fn progress(&self, stage: &str) -> Result<Progress> {
        let sql = "SELECT marker, done, notes FROM import_progress WHERE stage = ?";
        let found = self
            .connection
            .prepare_cached(sql)?
            .query_row([stage], |row| Ok(Progress { marker: row.get(0)?, done: row.get(1)?, notes: row.get(2)? }));
        Ok(found.optional()?.unwrap_or_default())
    }

    /// Writes in one transaction, together with how far the stage has come then.
    pub fn write<E: From<Error>>(
        &mut self,
        stage: &str,
        work: impl FnOnce(&Batch<'_>) -> std::result::Result<Progress, E>,
    ) -> std::result::Result<(), E> {
        let transaction = self.connection.transaction().map_err(Error::from)?;
        let progress = work(&Batch { connection: &transaction })?;
        let noted = || -> Result<()> {
            let sql = "INSERT INTO import_progress (stage, marker, done, notes) VALUES (?, ?, ?, ?) \
                       ON CONFLICT (stage) DO UPDATE SET marker = excluded.marker, done = excluded.done, \
                       notes = excluded.notes";
            let values = params![stage, progress.marker, progress.done, progress.notes];
            transaction.prepare_cached(sql)?.execute(values)?;
            transaction.commit()?;
            Ok(())
        };
        Ok(noted()?)
    }
}

/// What is written in one transaction.
pub struct Batch<'a> {
    connection: &'a Connection,
}

impl Batch<'_> {
    /// Adds reports that are sorted by trial, group and step; gives those that contradict others, and why.
    pub fn reports<'a>(&self, reports: &'a [Report]) -> Result<Vec<(&'a Report, String)>> {
        imported::store(self.connection, reports)
    }

    /// Packs so many tails of metrics into chunks; gives how many are left.
    pub fn pack(&self, tails: usize) -> Result<usize> {
        imported::pack(self.connection, tails)
    }

    /// Notes under which id something of another cluster stands here.
    pub fn note(&self, cluster: &str, kind: &str, source_id: &str, id: i64) -> Result<()> {
        let sql = "INSERT INTO imported (cluster, kind, source_id, id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
        self.connection.prepare_cached(sql)?.execute(params![cluster, kind, source_id, id])?;
        Ok(())
    }
}
