//! `instep master copy`: the database of a master in another place, of the same engine or of the other one.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use instep_master::{CopyProgress, CopyReport, KeyOfCopy, Options};

use super::arguments::{SettingsArguments, explained};
use crate::console;
use crate::progress::{Progress, grouped};
use crate::report::{Hinted, chain};

/// Letters of a hash that people are shown.
const SHOWN_HASH: usize = 16;

#[derive(Debug, Args)]
pub(super) struct CopyArguments {
    /// Database to copy: a file, or postgres://USER@HOST:PORT/NAME
    #[arg(value_name = "FROM")]
    from: String,
    /// Where to copy it: a file that does not exist, or an address whose schema does not
    #[arg(value_name = "TO")]
    to: String,
    /// File with the password for FROM [default: the variable PGPASSWORD]
    #[arg(long, value_name = "FILE")]
    from_password_file: Option<PathBuf>,
    /// File with the password for TO [default: the variable PGPASSWORD]
    #[arg(long, value_name = "FILE")]
    to_password_file: Option<PathBuf>,
    /// Print counts and hashes of all tables as JSON
    #[arg(long)]
    json: bool,
}

impl CopyProgress for Progress {
    fn begins_anew(&mut self) {
        self.note("an earlier copy was stopped; beginning anew");
    }

    fn progress(&mut self, table: &str, comparing: bool, rows: u64, total: u64) {
        self.rows(table, if comparing { "compared" } else { "copied" }, rows, total);
    }
}

/// Does what the command line says.
pub(super) fn copy(settings: &SettingsArguments, arguments: &CopyArguments) -> anyhow::Result<ExitCode> {
    if let Some(word) = settings.words().first() {
        let what = format!("`{word}` means nothing to `instep master copy`, which starts no master");
        return Err(Hinted::new(what, "name the two databases: instep master copy FROM TO").into());
    }
    let settings = settings.settings()?;
    let options = |database: &str, file: Option<&Path>| {
        let file = file.map(Path::to_string_lossy);
        settings.options_for(database, file.as_deref()).map_err(explained)
    };
    let from = options(&arguments.from, arguments.from_password_file.as_deref())?;
    let to = options(&arguments.to, arguments.to_password_file.as_deref())?;
    let mut progress = Progress::new();
    let began = Instant::now();
    let outcome = instep_master::copy(&from, &to, &mut progress);
    progress.end();
    let report = outcome.map_err(|error| Hinted::new(chain(&error), error.hint()))?;
    if arguments.json {
        let text = serde_json::json!({
            "from": from.shown_database(), "to": to.shown_database(), "was_whole": report.was_whole,
            "tables": report.tables,
        });
        console::print(format!("{text:#}\n").as_bytes());
    } else {
        console::print(described(&report, &from, &to, began.elapsed().as_secs_f64()).as_bytes());
    }
    console::print_error(&notes(&report, &from, &to));
    Ok(ExitCode::SUCCESS)
}

/// What was copied, for people.
fn described(report: &CopyReport, from: &Options, to: &Options, seconds: f64) -> String {
    let (from, to) = (from.shown_database(), to.shown_database());
    let rows = grouped(report.tables.iter().map(|table| table.rows).sum());
    let tables = report.tables.len();
    let mut text = if report.was_whole {
        format!("{to} is a copy of {from} already: {rows} rows in {tables} tables are the same\n")
    } else {
        format!("copied {from} to {to} in {seconds:.1} s: {rows} rows in {tables} tables are the same on both sides\n")
    };
    let width = report.tables.iter().map(|table| table.table.len()).max().unwrap_or(0);
    // Infallible: writing to a string.
    let _ = writeln!(text, "{:width$}  {:>12}  HASH", "TABLE", "ROWS");
    for table in report.tables.iter().filter(|table| table.rows > 0) {
        let (rows, hash) = (grouped(table.rows), &table.hash[..SHOWN_HASH]);
        let _ = writeln!(text, "{:width$}  {rows:>12}  {hash}", table.table);
    }
    text
}

/// What is not in the database.
fn notes(report: &CopyReport, from: &Options, to: &Options) -> String {
    let mut text = String::new();
    match &report.key {
        Some(KeyOfCopy::Copied(path)) => {
            let _ = writeln!(text, "note: the key of the secrets was copied too, to {}", path.display());
        }
        Some(KeyOfCopy::Missing(path)) => {
            let _ = writeln!(
                text,
                "warning: the database holds secrets, and their key {} is missing: nobody can read them\n\
                 hint: put the key beside the copy, or set the secrets again",
                path.display()
            );
        }
        None => {}
    }
    if from.checkpoints != to.checkpoints && from.checkpoints.exists() {
        let _ = writeln!(
            text,
            "note: checkpoints stay where they are\nhint: start the master of the copy with --checkpoints {}",
            from.checkpoints.display()
        );
    }
    text
}
