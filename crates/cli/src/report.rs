//! What people read when something went wrong: errors with hints, and the report of a failed run.

use std::error::Error;
use std::fmt::{self, Write};

use instep_launch::Outcome;
use instep_launch::Plan;
use instep_launch::RESTARTS_OFF;
use instep_launch::failure::Failure;
use instep_launch::failure::cause::Cause;
use instep_launch::output::fold::describe_ranks;

use crate::console::{self, paint};

const RULE_WIDTH: usize = 72;
const TIMEOUTS: &str = "--rdzv-conf join_timeout=SECONDS (c10d) or timeout=SECONDS (static)";

/// An error that says what to do next.
#[derive(Debug)]
pub(crate) struct Hinted {
    message: String,
    hint: String,
}

impl Hinted {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Hinted {
        Hinted { message: message.into(), hint: hint.into() }
    }

    /// The error without its hint.
    pub(crate) fn what(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\nhint: {}", self.message, self.hint)
    }
}

impl Error for Hinted {}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Infallible: writing to a string.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    without_error_numbers(&text)
}

/// The system's error numbers help nobody who has its words.
fn without_error_numbers(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        result.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    result + rest
}

/// Prints an error the way all errors look: `error: what: why`, then `hint: what next`.
pub(crate) fn error(error: &anyhow::Error) {
    complain(&chain(error.as_ref()));
}

/// Names in a text may be anybody's: they must not move the cursor.
pub(crate) fn without_controls(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { ' ' } else { letter }).collect()
}

/// Prints `what`, with its `hint:` line if it has one.
pub(crate) fn complain(text: &str) {
    let text = without_controls(text);
    let (what, hint) = text.split_once("\nhint: ").map_or((&*text, None), |(what, hint)| (what, Some(hint)));
    let mut lines = format!("{} {what}\n", paint("31;1", "error:"));
    if let Some(hint) = hint {
        lines.push_str(&format!("{} {hint}\n", paint("36", "hint:")));
    }
    console::print_error(&lines);
}

/// Prints the report of a run that failed, the root cause first.
pub(crate) fn failure(plan: &Plan, outcome: &Outcome) {
    match &outcome.reason {
        // Nothing was ever started: that is no failure of the program.
        Some(reason) if outcome.rounds == 0 && outcome.signal.is_none() => {
            complain(&format!("{reason}\nhint: start the same command on the other nodes, or wait longer: {TIMEOUTS}"));
        }
        Some(reason) if std::env::var_os("DET_ALLOCATION_ID").is_some() => {
            // In a task of a cluster, restarts are the master's.
            let reason = reason.strip_suffix(RESTARTS_OFF).map_or(&**reason, |reason| reason.trim_end_matches("; "));
            let outcome = Outcome { reason: Some(reason.to_owned()), ..outcome.clone() };
            console::print_error(&render(&plan.program_name, &outcome));
        }
        _ => console::print_error(&render(&plan.program_name, outcome)),
    }
}

fn render(program: &str, outcome: &Outcome) -> String {
    let rule = |letter: &str| letter.repeat(RULE_WIDTH);
    let (end, reason) = match outcome.signal {
        Some(signal) if outcome.rounds == 0 => {
            ("STOPPED", Some(format!("the launcher received {signal} before it had started a worker")))
        }
        Some(signal) => ("STOPPED", Some(format!("the launcher received {signal} and stopped its workers"))),
        None => ("FAILED", outcome.reason.clone()),
    };
    let mut text = format!("{}\n{}\n", rule("="), paint("31;1", &format!("{program} {end}")));
    text.extend(reason.map(|reason| format!("{reason}\n")));
    text.extend(replacements(outcome));
    let root = outcome.root_cause().filter(|failure| outcome.signal.is_none() || !failure.stopped);
    // One that ended with 0 has not failed as such: what is wrong with that needs a sentence.
    let left = root.filter(|root| root.exit.success()).and_then(|root| root.sentence.clone());
    match (&outcome.cause, root) {
        (Some(Cause::Failed { .. }), Some(root)) if left.is_none() => {
            text.push_str(&format!("{}\n{}\n", rule("-"), paint("1", "Root cause (first failure):")));
            text.push_str(&details(root));
        }
        (Some(Cause::Failed { .. }) | None, _) if left.is_none() => {}
        _ => {
            let sentence = left.or_else(|| outcome.explanation()).unwrap_or_default();
            text.push_str(&format!("{}\n{}\n  {sentence}\n", rule("-"), paint("1", "Root cause:")));
            text.push_str(&root.map(details).unwrap_or_default());
        }
    }
    // Where the cause itself is not to be seen, what was seen first comes with all that is known of it.
    let first = outcome.first_failure().filter(|first| root.is_none() && outcome.signal.is_none() && !first.stopped);
    if let Some(first) = first {
        text.push_str(&format!("{}\n{}\n{}", rule("-"), paint("1", "First failure seen:"), details(first)));
    }
    let shown = root.or(first);
    let others: Vec<&Failure> = outcome.failures.iter().filter(|failure| Some(*failure) != shown).collect();
    if !others.is_empty() {
        let title = if shown.is_some() { "Then:" } else { "Workers:" };
        text.push_str(&format!("{}\n{}\n", rule("-"), paint("1", title)));
        text.push_str(&grouped(&others));
    }
    let folder = outcome.log_directory.as_ref().map(|directory| directory.display().to_string());
    let logs = instep_launch::workers::environment::command_for_logs().or(folder).map(|logs| format!("logs: {logs}\n"));
    let hint = shown.and_then(hint).map(|hint| format!("{} {hint}\n", paint("36", "hint:")));
    if logs.is_some() || hint.is_some() {
        text.push_str(&format!("{}\n{}{}", rule("-"), logs.unwrap_or_default(), hint.unwrap_or_default()));
    }
    text.push_str(&format!("{}\n", rule("=")));
    text
}

/// How often ranks were replaced before the end, if any were.
fn replacements(outcome: &Outcome) -> Option<String> {
    let times = |number: u64| if number == 1 { "once".to_owned() } else { format!("{number} times") };
    let Outcome { replacements, recoveries, .. } = outcome;
    let ranks = if *replacements == 1 { "1 rank was".to_owned() } else { format!("{replacements} ranks were") };
    (*replacements > 0)
        .then(|| format!("before that {ranks} replaced, and steps were recovered {}\n", times(*recoveries)))
}

fn details(failure: &Failure) -> String {
    let signal = failure.exit.signal().map(|signal| format!(" ({signal})")).unwrap_or_default();
    let time = chrono::DateTime::from_timestamp_millis((failure.time * 1000.0) as i64).unwrap_or_default();
    let process = if failure.pid == 0 { "never started".to_owned() } else { format!("pid: {}", failure.pid) };
    let mut rows = vec![
        ("rank", format!("{} (local_rank: {})", failure.rank, failure.local_rank)),
        ("host", failure.host.clone()),
        ("exitcode", format!("{} ({process}){signal}", failure.exit.0)),
        ("time", time.with_timezone(&chrono::Local).format("%Y-%m-%d_%H:%M:%S").to_string()),
    ];
    let error_file =
        failure.error_file.clone().filter(|_| instep_launch::workers::environment::command_for_logs().is_none());
    rows.extend(error_file.map(|path| ("error_file", path)));
    rows.extend(failure.message.clone().map(|message| ("error", message.replace('\n', "\n    "))));
    let mut text: String = rows.iter().map(|(name, value)| format!("  {name:<10}: {value}\n")).collect();
    let (title, lines): (&str, Vec<&str>) = match &failure.traceback {
        Some(traceback) => ("traceback", traceback.lines().collect()),
        None => ("last lines", failure.last_lines.iter().map(String::as_str).collect()),
    };
    if !lines.is_empty() {
        text.push_str(&format!("  {title:<10}:\n"));
        text.extend(lines.iter().map(|line| format!("    | {line}\n")));
    }
    text
}

/// The failures that followed, those that ended alike in one line.
fn grouped(failures: &[&Failure]) -> String {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for failure in failures {
        let because = failure.message.as_ref().and_then(|message| message.lines().next());
        let end = match (failure.stopped, because) {
            (true, _) => format!("stopped by instep ({})", failure.exit.signal().unwrap_or_default()),
            (false, Some(because)) => format!("{}: {because}", failure.exit.describe()),
            (false, None) => failure.exit.describe(),
        };
        match groups.iter_mut().find(|(known, _)| *known == end) {
            Some((_, ranks)) => ranks.push(failure.rank),
            None => groups.push((end, vec![failure.rank])),
        }
    }
    groups.iter_mut().for_each(|(_, ranks)| ranks.sort_unstable());
    groups.iter().map(|(end, ranks)| format!("  {} {end}\n", describe_ranks(ranks))).collect()
}

fn hint(failure: &Failure) -> Option<&'static str> {
    match (failure.exit.signal().as_deref(), failure.exit.0) {
        (Some("SIGKILL"), _) => {
            Some("if you did not kill it, the machine may have run out of memory: dmesg | grep -i oom")
        }
        (Some("SIGSEGV" | "SIGBUS" | "SIGILL" | "SIGFPE"), _) => {
            Some("native code crashed: set PYTHONFAULTHANDLER=1 to see the Python stack")
        }
        (Some("SIGABRT"), _) => Some("the process aborted itself; the last lines above usually say why"),
        (_, 127) => Some("check the program's name and PATH"),
        (_, 126) => Some("make the program executable: chmod +x"),
        (None, code) if code != 0 && failure.message.is_none() && failure.last_lines.is_empty() => Some(
            "the worker printed nothing; a Python script whose main function has torch's elastic `record` shows its exception here",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::render;
    use instep_launch::Outcome;
    use instep_launch::failure::blame::{Blame, BlameKind};
    use instep_launch::failure::cause::Round;
    use instep_launch::failure::{ExitStatus, Failure, root_cause};
    use std::time::{Duration, SystemTime};

    fn failure(rank: usize, exit: i32, stopped: bool) -> Failure {
        Failure {
            rank,
            local_rank: rank,
            host: "node-a".to_owned(),
            pid: 100 + rank as i32,
            exit: ExitStatus(exit),
            time: 1_700_000_000.0 + rank as f64,
            stopped,
            after_stop: stopped,
            blame: None,
            sentence: None,
            error_file: None,
            message: None,
            traceback: None,
            last_lines: Vec::new(),
        }
    }

    fn outcome(failures: Vec<Failure>) -> Outcome {
        Outcome {
            cause: root_cause(&failures, Round { world_size: 4, is_final: true }),
            success: false,
            reason: Some("rank 1 on node-a exited with code 3; restarts are off (--max-restarts 0)".to_owned()),
            signal: None,
            failures,
            rounds: 1,
            restarts: 0,
            replacements: 0,
            recoveries: 0,
            world_size: 4,
            group_rank: Some(0),
            started: SystemTime::UNIX_EPOCH,
            duration: Duration::from_secs(1),
            goodput: None,
            log_directory: None,
            drill: None,
        }
    }

    #[test]
    fn ranks_that_were_replaced_before_the_end_are_counted() {
        let told = |replacements: u64, recoveries: u64| {
            let outcome = Outcome { replacements, recoveries, ..outcome(vec![failure(2, -9, false)]) };
            render("train.py", &outcome).lines().find(|line| line.contains("replaced")).map(str::to_owned)
        };
        assert_eq!(told(0, 0), None);
        let one = "before that 1 rank was replaced, and steps were recovered once";
        assert_eq!(told(1, 1).as_deref(), Some(one));
        let many = "before that 3 ranks were replaced, and steps were recovered 2 times";
        assert_eq!(told(3, 2).as_deref(), Some(many));
    }

    #[test]
    fn the_root_cause_comes_first_and_the_rest_is_folded() {
        let mut first = failure(1, 3, false);
        first.message = Some("ValueError: bad shape".to_owned());
        first.last_lines = vec!["loading".to_owned(), "ValueError: bad shape".to_owned()];
        let failures = vec![first, failure(0, -15, true), failure(2, -15, true), failure(3, -15, true)];
        let text = render("train.py", &outcome(failures));
        let order = [
            "train.py FAILED",
            "Root cause",
            "rank      : 1",
            "exitcode  : 3 (pid: 101)",
            "ValueError: bad shape",
            "    | loading",
            "Then:",
            "ranks 0,2-3 stopped by instep (SIGTERM)",
        ];
        let mut rest = text.as_str();
        for part in order {
            let at = rest.find(part).unwrap_or_else(|| panic!("{part} is missing or out of order in\n{text}"));
            rest = &rest[at + part.len()..];
        }
    }

    #[test]
    fn a_rank_that_left_is_named_before_those_that_waited_for_it() {
        let blame = Blame { kind: BlameKind::Lost, ranks: vec![2], operation: Some("all_reduce".to_owned()) };
        let lost = |rank: usize| Failure { blame: Some(blame.clone()), ..failure(rank, 1, false) };
        let text = render("train.py", &outcome(vec![lost(0), lost(1), failure(2, 0, false), lost(3)]));
        let expected =
            "Root cause:\n  rank 2 on node-a ended with exit code 0 while rank 0 waited in all_reduce\n  rank      : 2";
        assert!(text.contains(expected) && text.contains("ranks 0-1,3 exited with code 1"), "{text}");
    }

    #[test]
    fn without_a_known_cause_the_first_failure_is_shown_with_all_that_is_known() {
        let blame = Blame { kind: BlameKind::Lost, ranks: Vec::new(), operation: None };
        let mut lost = Failure { blame: Some(blame), ..failure(0, 1, false) };
        lost.last_lines = vec!["RuntimeError: Connection closed by peer".to_owned()];
        let text = render("train.py", &outcome(vec![lost, failure(1, -15, true)]));
        let (cause, seen) = text.split_once("First failure seen:").expect("both");
        assert!(cause.contains("Root cause:\n  not known: rank 0 lost"), "{text}");
        assert!(seen.contains("rank      : 0") && seen.contains("    | RuntimeError: Connection closed"), "{text}");
        assert!(seen.contains("rank 1 stopped by instep"), "{text}");
    }

    #[test]
    fn a_killed_worker_brings_a_hint() {
        let text = render("train.py", &outcome(vec![failure(2, -9, false)]));
        assert!(text.contains("exitcode  : -9 (pid: 102) (SIGKILL)") && text.contains("hint:"), "{text}");
    }
}
