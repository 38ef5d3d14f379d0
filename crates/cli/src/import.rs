//! `instep import determined`: takes over the database of a Determined cluster, without a master.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args, Subcommand};
use instep_import::{Dump, Observer, Options, Server, Source, Summary};

use crate::console;
use crate::master::SettingsArguments;
use crate::progress::{Progress, grouped};
use crate::report::{Hinted, chain, without_controls};

/// How many renumbered ids of a kind are shown; all are in the JSON.
const RENUMBERED_SHOWN: usize = 5;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ImportArguments {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    /// Take over users, experiments, metrics, checkpoints' records, models and logs of Determined 0.38; no master may be
    /// running
    Determined(DeterminedArguments),
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").args(["db", "dump"]).required(true)))]
struct DeterminedArguments {
    /// Address of Determined's database: postgres://USER:PASSWORD@HOST:PORT/DATABASE; the password may be in PGPASSWORD
    /// instead
    #[arg(long, value_name = "ADDRESS")]
    db: Option<String>,
    /// Plain dump of Determined's database, as `pg_dump -f FILE` writes it
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Database file of the instep master [default: that of `instep master`: its settings, or instep/master.db in your
    /// data folder]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Take over experiments that have not ended too, as canceled
    #[arg(long)]
    unfinished: bool,
    /// Say what would be taken over, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Does what the command line says.
pub(crate) fn run(arguments: &ImportArguments) -> anyhow::Result<ExitCode> {
    let ImportCommand::Determined(arguments) = &arguments.command;
    let options = SettingsArguments::with_database(arguments.to.clone()).options()?;
    if options.postgres.is_some() {
        let what = format!("cannot import into {}", options.shown_database());
        return Err(Hinted::new(what, "name a database file with --to: imports are made in files").into());
    }
    let target = options.database;
    let mut source = open(arguments).map_err(explained)?;
    let options = Options { unfinished: arguments.unfinished, dry_run: arguments.dry_run };
    let opening = instep_master::opening_by("instep import determined");
    let mut shown = Progress::new();
    let began = Instant::now();
    let outcome = instep_import::run(&mut *source, &target, options, &opening, &mut shown);
    shown.end();
    let summary = outcome.map_err(explained)?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&summary)?;
        console::print(format!("{text}\n").as_bytes());
    } else {
        console::print(described(&summary, arguments.dry_run, began.elapsed()).as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}

fn open(arguments: &DeterminedArguments) -> instep_import::Result<Box<dyn Source>> {
    match (&arguments.db, &arguments.dump) {
        (Some(address), _) => {
            let password = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
            Ok(Box::new(Server::connect(address, password.as_deref())?))
        }
        (None, Some(path)) => Ok(Box::new(Dump::open(path)?)),
        // The command line is refused without one of them.
        (None, None) => Err(instep_import::Error::Address { why: "neither --db nor --dump is given".to_owned() }),
    }
}

fn explained(error: instep_import::Error) -> Hinted {
    let hint = error.hint();
    Hinted::new(chain(&error), hint)
}

impl Observer for Progress {
    fn progress(&mut self, table: &str, rows: u64, total: u64) {
        self.rows(table, "read", rows, total);
    }

    fn continued(&mut self) {
        self.note("continuing an import that was stopped");
    }
}

/// The summary for people.
fn described(summary: &Summary, dry_run: bool, took: Duration) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Infallible: writing to a string.
        let _ = writeln!(text, "{words}");
    };
    let (source, target) = (&summary.source, summary.target.display());
    match (dry_run, summary.changed) {
        (true, _) => line(format_args!("would take over from {source} into {target}; nothing was changed")),
        (false, true) => line(format_args!("took over from {source} into {target} in {:.1} s", took.as_secs_f64())),
        (false, false) => line(format_args!("nothing to take over from {source}: {target} has it already")),
    }
    let width = summary.tables.keys().map(String::len).max().unwrap_or(0);
    line(format_args!("{:width$}  {:>12}  {:>13}  {:>14}", "TABLE", "TAKEN OVER", "THERE ALREADY", "NOT TAKEN OVER"));
    for (table, tally) in &summary.tables {
        let lost: u64 = tally.not_taken_over.values().sum();
        if tally.taken_over + tally.there_already + lost > 0 {
            let (taken, there, lost) = (grouped(tally.taken_over), grouped(tally.there_already), grouped(lost));
            line(format_args!("{table:width$}  {taken:>12}  {there:>13}  {lost:>14}"));
        }
    }
    if !summary.below.is_empty() {
        line(format_args!("\nand the rows of these tables that belong to it, out of so many:"));
        for (table, rows) in &summary.below {
            line(format_args!("  {table}: {}", grouped(*rows)));
        }
    }
    if summary.tables.values().any(|tally| !tally.not_taken_over.is_empty()) {
        line(format_args!("\nnot taken over, and why:"));
        for (table, tally) in &summary.tables {
            for (why, rows) in &tally.not_taken_over {
                line(format_args!("  {table}: {}: {why}", grouped(*rows)));
            }
        }
    }
    if summary.unix_users_left > 0 {
        line(format_args!(
            "\ntasks of {} users and workspaces ran as root in containers, which would be root of the machine here: they \
             run as the agents' default user now\nhint: link a Unix user with `instep user link-with-agent-user`",
            grouped(summary.unix_users_left)
        ));
    }
    for (kind, ids) in &summary.renumbered {
        let some: Vec<String> =
            ids.iter().take(RENUMBERED_SHOWN).map(|(before, after)| format!("{before} is {after}")).collect();
        let more = if ids.len() > some.len() { ", …; --json lists all" } else { "" };
        let count = ids.len();
        line(format_args!("\n{count} {kind} ids were taken here and became others: {}{more}", some.join(", ")));
    }
    if let Some(kept) = &summary.kept {
        line(format_args!("\nThe database as it was before is {}; delete it when all is well.", kept.display()));
    }
    without_controls(&text)
}
