//! What a drill found: a table for people, JSON for programs.

use std::path::Path;
use std::time::Duration;

use instep_launch::Outcome;
use instep_launch::drill::{Kill, KillKind, Place, Report, Resume};
use instep_launch::output::fold::describe_ranks;
use serde_json::{Value, json};

use crate::console::{self, paint};
use crate::report::Hinted;

/// How the job ended, for what is said of its kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Success,
    Failure,
    /// The launcher was told to stop, by Ctrl-C for example: that says nothing of the script.
    Interrupted,
}

impl End {
    fn of(outcome: &Outcome) -> End {
        match (outcome.success, outcome.signal) {
            (true, _) => End::Success,
            (false, Some(_)) => End::Interrupted,
            (false, None) => End::Failure,
        }
    }

    /// The line about it; none where the job has ended well. `lost` is the verdict on a job that failed.
    fn line(self, lost: &str, why: &str) -> String {
        match self {
            End::Success => String::new(),
            End::Failure => format!("{} {why}\n", paint("31;1", lost)),
            End::Interrupted => format!("{} the job was stopped before its end\n", paint("33;1", "interrupted:")),
        }
    }
}

/// Prints the table, and writes the file if one is wanted.
pub(super) fn show(outcome: &Outcome, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(report) = &outcome.drill else { return Ok(()) };
    console::print_error(&table(report, End::of(outcome)));
    match file {
        Some(path) => std::fs::write(path, format!("{:#}\n", as_json(report, outcome.success)))
            .map_err(|error| unwritable(path, &error)),
        None => Ok(()),
    }
}

/// Sees to it that a drill whose report cannot be written does not begin.
pub(super) fn prepare(file: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = file else { return Ok(()) };
    std::fs::OpenOptions::new().append(true).create(true).open(path).map(drop).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let what = format!("cannot write the drill's report to {}: {error}", path.display());
    Hinted::new(what, "choose a file in an existing, writable directory").into()
}

/// How many kills a table shows.
const MOST_ROWS: usize = 20;

fn table(report: &Report, end: End) -> String {
    let length = report.duration.as_secs_f64();
    let mut text = format!("\n{}", paint("1", &format!("drill, seed {}, {length:.1} s", report.seed)));
    if let Some(steps) = report.replayed {
        text.push_str(&replayed(steps, end));
        if report.kills.is_empty() {
            return text;
        }
    } else if report.kills.is_empty() {
        let (why, hint) = match report.unreached {
            Some((rank, place)) => unreached(rank, place),
            None if report.without_sessions => (
                "some rank never came to a step of an instep.elastic.Session".to_owned(),
                "the guide keep-the-step says how a script gets one; with --recover round none is needed".to_owned(),
            ),
            None => (
                "the job ended before the first kill".to_owned(),
                format!("make the job longer, or kill sooner: instep drill --every {:.0}ms", length * 250.0),
            ),
        };
        return text + &format!(": {why}\n{} {hint}\n", paint("36", "hint:"));
    }
    if report.kills.iter().any(|kill| kill.recovered.is_some()) {
        return text + &recoveries(report, end);
    }
    text.push_str("\n      at  killed             restarted  first line   resumed\n");
    for kill in &report.kills {
        text.push_str(&format!(
            "{:>6.1} s  {:<16} {:>11}  {:>10}   {}\n",
            kill.at.as_secs_f64(),
            describe_ranks(&kill.ranks),
            kill.restarted.map_or("never".to_owned(), after),
            kill.first_line.map_or("none".to_owned(), after),
            resumed(&kill.resume),
        ));
    }
    text.push_str(&verdict(report, end));
    text
}

/// What became of steps that were done twice.
fn replayed(steps: u64, end: End) -> String {
    let ended = if end == End::Interrupted { "was stopped" } else { "failed" };
    let (why, hint) = match (steps, end) {
        (0, End::Success) => ("no step was done twice", "only steps of an instep.elastic.Session can be"),
        (0, _) => return format!(": the job {ended} before a step was done twice with the same bits\n"),
        (_, End::Success) => return format!(": {steps} steps done twice, all with the same bits\n"),
        (_, _) => return format!(": {steps} steps done twice with the same bits, then the job {ended}\n"),
    };
    format!(": {why}\n{} {hint}\n", paint("36", "hint:"))
}

fn unreached(rank: usize, place: Place) -> (String, String) {
    let hint = match place {
        Place::Transfer => "no rank was lost that could be replaced",
        _ => "only an instep.elastic.Session knows where in a step it is",
    };
    (format!("rank {rank} never came to {}", place.name()), hint.to_owned())
}

/// For jobs whose ranks are replaced: what each kill has cost.
fn recoveries(report: &Report, end: End) -> String {
    let mut text = "\n      at  killed             where         recovered   next step\n".to_owned();
    for kill in report.kills.iter().take(MOST_ROWS) {
        let outcome = match (kill.recovered, kill.restarted) {
            (Some((time, step)), _) => format!("{:>10}  {step:>10}", after(time)),
            (None, Some(time)) => format!("all workers restarted after {}", after(time)),
            (None, None) => "never".to_owned(),
        };
        text.push_str(&format!(
            "{:>6.1} s  {:<18} {:<11} {outcome}\n",
            kill.at.as_secs_f64(),
            describe_ranks(&kill.ranks),
            kill.place.map_or("anywhere", Place::name),
        ));
    }
    if report.kills.len() > MOST_ROWS {
        text.push_str(&format!("and {} more; --json FILE has all\n", report.kills.len() - MOST_ROWS));
    }
    let times = report.recoveries();
    let shares = [("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)];
    let shown: Vec<String> = shares
        .iter()
        .filter_map(|(name, share)| Some(format!("{name} {}", after(percentile(&times, *share)?))))
        .collect();
    text.push_str(&format!(
        "recovered after {} of {} kills without a restart: {}; {:.1} % of the time at work\n",
        times.len(),
        report.kills.len(),
        shown.join(", "),
        100.0 * report.at_work(),
    ));
    if let Some((rank, place)) = report.unreached {
        let (why, _) = unreached(rank, place);
        text.push_str(&format!("{why} before the job ended\n"));
    }
    text.push_str(&end.line("not recovered:", "the job failed"));
    text
}

/// The time that this share of all, in percent, does not exceed; they are in order.
fn percentile(times: &[Duration], share: usize) -> Option<Duration> {
    times.get((times.len() * share).div_ceil(100).saturating_sub(1)).copied()
}

fn resumed(resume: &Resume) -> String {
    let before = resume.before.as_ref().map(|before| format!(", killed at {before}")).unwrap_or_default();
    match (resume.resumed, &resume.after) {
        (_, None) => "unknown: no step or epoch printed".to_owned(),
        (Some(true), Some(after)) => format!("yes: at {after}{before}"),
        (Some(false), Some(after)) => format!("no: at {after} again{before}"),
        (None, Some(after)) => format!("unknown: at {after}{before}"),
    }
}

/// What it means, in sentences.
fn verdict(report: &Report, end: End) -> String {
    let (kills, restarts) = (report.kills.len(), report.restarts());
    let unknown = report.kills.iter().filter(|kill| kill.resume.resumed.is_none()).count();
    let mut text = format!(
        "restarted after {restarts} of {kills} kills, resumed after {}{}; {}{:.1} % of the time at work\n",
        report.resumes(),
        if unknown > 0 { format!(" ({unknown} unknown)") } else { String::new() },
        report.median_lost().map(|lost| format!("median {} to the first line; ", after(lost))).unwrap_or_default(),
        100.0 * report.at_work(),
    );
    let why = if restarts < kills { "the job did not restart after the last kill" } else { "the job failed" };
    text.push_str(&end.line("not restartable:", why));
    let hint = if report.kills.iter().any(|kill| kill.resume.resumed == Some(false)) {
        "the job started over: does the script load its snapshot, and save one often enough?"
    } else if report.kills.iter().all(|kill| kill.resume.after.is_none()) {
        "print the step or the epoch (`step 17`) on rank 0, to see whether the job resumes"
    } else {
        return text;
    };
    text + &format!("{} {hint}\n", paint("36", "hint:"))
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
        "restarts": report.restarts(),
        "resumes": report.resumes(),
        "median_first_line_after_seconds": report.median_lost().map(|time| time.as_secs_f64()),
        "share_at_work": report.at_work(),
        "recoveries": recoveries_json(&report.recoveries()),
        "unreached": report.unreached.map(|(rank, place)| json!({"rank": rank, "at": place.name()})),
        "without_sessions": report.without_sessions,
        "steps_replayed": report.replayed,
        "kills": report.kills.iter().map(kill).collect::<Vec<_>>(),
    })
}

fn recoveries_json(times: &[Duration]) -> Value {
    let of = |share| percentile(times, share).map(|time| time.as_secs_f64());
    json!({"count": times.len(), "p50_seconds": of(50), "p90_seconds": of(90), "p99_seconds": of(99), "max_seconds": of(100)})
}

fn kill(kill: &Kill) -> Value {
    json!({
        "kind": match kill.kind {
            KillKind::Rank => "kill-rank",
            KillKind::Node => "kill-node",
        },
        "ranks": kill.ranks,
        "at_seconds": kill.at.as_secs_f64(),
        "place": kill.place.map(Place::name),
        "recovered_after_seconds": kill.recovered.map(|(time, _)| time.as_secs_f64()),
        "next_step": kill.recovered.map(|(_, step)| step),
        "restarted_after_seconds": kill.restarted.map(|time| time.as_secs_f64()),
        "first_line_after_seconds": kill.first_line.map(|time| time.as_secs_f64()),
        "resumed": kill.resume.resumed,
        "progress_before": kill.resume.before,
        "progress_after": kill.resume.after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stops_a_drill_is_not_told_that_the_job_cannot_be_restarted() {
        assert_eq!(End::Success.line("not restartable:", "the job failed"), "");
        assert!(End::Failure.line("not restartable:", "the job failed").contains("not restartable:"));
        let said = End::Interrupted.line("not restartable:", "the job failed");
        assert!(said.contains("interrupted:") && !said.contains("failed"), "{said}");
        assert!(replayed(3, End::Interrupted).contains("then the job was stopped"));
    }
}
