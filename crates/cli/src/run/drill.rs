//! What a drill found: a table for people, JSON for programs.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use instep_launch::Outcome;
use instep_launch::drill::{Beginning, Blow, BlowKind, Report};
use instep_launch::fold::describe_ranks;
use serde_json::{Value, json};

use crate::console::{self, paint};

/// Prints the table, and writes the file if one is wanted.
pub(super) fn show(outcome: &Outcome, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(report) = &outcome.drill else { return Ok(()) };
    console::print_error(&table(report, outcome.success));
    match file {
        Some(path) => std::fs::write(path, format!("{:#}\n", as_json(report, outcome.success)))
            .with_context(|| format!("write the drill's report to {}", path.display())),
        None => Ok(()),
    }
}

fn table(report: &Report, success: bool) -> String {
    let length = report.duration.as_secs_f64();
    let mut text = format!("\n{}", paint("1", &format!("drill, seed {}, {length:.1} s", report.seed)));
    if report.blows.is_empty() {
        return text + ": the job ended before the first blow\nhint: give a shorter time, such as kill-rank=5s\n";
    }
    text.push_str("\n      at  killed            started again  first line   where it began\n");
    for blow in &report.blows {
        text.push_str(&format!(
            "{:>6.1} s  {:<16} {:>14}  {:>10}   {}\n",
            blow.at.as_secs_f64(),
            describe_ranks(&blow.ranks),
            blow.restarted.map_or("never".to_owned(), after),
            blow.first_line.map_or("none".to_owned(), after),
            match blow.beginning {
                Beginning::Elsewhere => "not where the first round did",
                Beginning::TheStart => "at the beginning again",
                Beginning::Unknown => "cannot be told",
            },
        ));
    }
    text.push_str(&verdict(report, success));
    text
}

/// What it means, in sentences.
fn verdict(report: &Report, success: bool) -> String {
    let (struck, back) = (report.blows.len(), report.came_back());
    let mut text = format!(
        "came back {back} of {struck} times{}; {:.1} % of the time at work\n",
        median(report).map(|lost| format!(", {} on average (median)", after(lost))).unwrap_or_default(),
        100.0 * report.at_work(),
    );
    if !success {
        let why = if back < struck { "the job never came back from the last blow" } else { "the job did not succeed" };
        text.push_str(&format!("{} {why}\n", paint("31;1", "not restartable:")));
    }
    if report.blows.iter().any(|blow| blow.beginning == Beginning::TheStart) {
        let hint = "the first lines after a restart were those of the first start: does the script load its snapshot?";
        text.push_str(&format!("{} {hint}\n", paint("36", "hint:")));
    }
    text
}

fn median(report: &Report) -> Option<Duration> {
    let mut lost: Vec<Duration> = report.blows.iter().filter_map(Blow::lost).collect();
    lost.sort();
    lost.get(lost.len() / 2).copied()
}

fn after(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        seconds => format!("{seconds:.1} s"),
    }
}

fn as_json(report: &Report, success: bool) -> Value {
    json!({
        "seed": report.seed,
        "duration_seconds": report.duration.as_secs_f64(),
        "succeeded": success,
        "came_back": report.came_back(),
        "share_at_work": report.at_work(),
        "blows": report.blows.iter().map(blow).collect::<Vec<_>>(),
    })
}

fn blow(blow: &Blow) -> Value {
    json!({
        "kind": match blow.kind {
            BlowKind::Rank => "kill-rank",
            BlowKind::Node => "kill-node",
        },
        "ranks": blow.ranks,
        "at_seconds": blow.at.as_secs_f64(),
        "restarted_after_seconds": blow.restarted.map(|time| time.as_secs_f64()),
        "first_line_after_seconds": blow.first_line.map(|time| time.as_secs_f64()),
        "began": match blow.beginning {
            Beginning::Elsewhere => Some("elsewhere"),
            Beginning::TheStart => Some("at the start"),
            Beginning::Unknown => None,
        },
    })
}
