//! Takes over what a Determined cluster knew: reads its PostgreSQL database, or a dump of it, and writes a master's.
//!
//! [`run`] is the whole contract. A [`Source`] gives rows as text: [`Server`] from PostgreSQL, [`Dump`] from a file.
//! [`plan`] decides, from the names and ids on both sides, what is taken over and under which id; [`mapping`] turns rows
//! into records; both are pure. `stages` goes through the tables in the order in which they refer to each other, and
//! hands records to [`instep_database::import`], which has all the SQL of our side.
//!
//! Invariants, cited by the tests:
//!
//! 1. The master's database is as before or holds the whole import; an import that was killed continues.
//! 2. The same source imported again changes nothing.
//! 3. Every row of the source is counted: taken over, there already, or not taken over, and then why.
//! 4. Nothing is written to the source.

pub mod dump;
mod error;
pub mod mapping;
pub mod plan;
pub mod server;
pub mod source;
mod stages;
pub mod summary;
pub mod survey;
mod tables;
pub mod text;

pub use dump::Dump;
pub use error::{Error, Result};
use instep_database::Opening;
use instep_database::import::Import;
pub use server::Server;
pub use source::Source;
pub use summary::{Summary, Tally};

use std::path::Path;

/// What is asked of an import.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Take over experiments that have not ended as well, as ended.
    pub unfinished: bool,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
}

/// Hears how far an import has come.
pub trait Observer {
    /// `rows` of `total` rows of a table have been read.
    fn progress(&mut self, table: &str, rows: u64, total: u64);
    /// An import that was stopped earlier is continued.
    fn continued(&mut self);
}

/// Takes over what a source holds into a master's database, which no master may have open.
pub fn run(
    source: &mut dyn Source,
    target: &Path,
    options: Options,
    opening: &Opening,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    let cluster = source::check(source)?;
    let counts = source.counts()?;
    let import = Import::begin(target, opening, &cluster)?;
    let survey = survey::survey(source)?;
    let plan = plan::plan(&survey, import.known(), options.unfinished);
    let mut summary = Summary::new(source.place(), &cluster, target, &plan);
    if options.dry_run || !plan.is_anything_new() {
        summary.expect(&plan, &survey, &counts);
        if !options.dry_run {
            // What an import that was stopped has left behind.
            import.discard()?;
        }
        return Ok(summary);
    }
    let (copy, continued) = import.open(&plan.fingerprint(&cluster), opening)?;
    if continued {
        observer.continued();
    }
    let copy = stages::carry_out(source, copy, &plan, &cluster, opening.now, &counts, observer, &mut summary)?;
    if summary.taken_over() == 0 {
        // What is new cannot be taken over, and was not the last time either.
        drop(copy);
        import.discard()?;
        return Ok(summary);
    }
    summary.kept = import.finish(copy, &format!(".before-import-{}", opening.now.0))?;
    summary.changed = true;
    Ok(summary)
}
