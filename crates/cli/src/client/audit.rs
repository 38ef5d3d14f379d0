//! `instep master audit`: who did what at a master.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use instep_api::audit::{AuditRecord, AuditResponse};
use instep_api::wire::Timestamp;
use instep_client::{Client, Query};

use super::options::Common;
use super::{session, shown, table};
use crate::console;

/// Records that are asked for at a time.
const AT_A_TIME: usize = 1000;
/// How often a follower asks for more.
const AGAIN: Duration = Duration::from_secs(1);

/// Which records are wanted.
#[derive(Debug, Args)]
pub(crate) struct MasterAuditArguments {
    #[command(flatten)]
    common: Common,
    /// Show records since this time: 90s, 30m, 2h, 7d, or a time such as 2026-01-02T03:04:05Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Since>,
    /// Show only what this user did
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Show only this action, such as experiment.kill, or all of a kind, such as experiment
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Show only the last N records [default: 100, or all with --since]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tail: Option<u32>,
    /// Follow the audit log until interrupted
    #[arg(short, long)]
    follow: bool,
}

/// A moment, or how long ago it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    Ago(Duration),
    At(Timestamp),
}

fn since(text: &str) -> Result<Since, String> {
    if let Some(time) = Timestamp::parse(text) {
        return Ok(Since::At(time));
    }
    let seconds = |unit: char| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        _ => None,
    };
    let ago = || {
        let unit = text.chars().last()?;
        let number: u64 = text[..text.len() - unit.len_utf8()].parse().ok()?;
        number.checked_mul(seconds(unit)?).map(Duration::from_secs)
    };
    ago().map(Since::Ago).ok_or_else(|| "use 90s, 30m, 2h, 7d, or a time such as 2026-01-02T03:04:05Z".to_owned())
}

impl Since {
    fn moment(self) -> Timestamp {
        let ago = match self {
            Since::At(time) => return time,
            Since::Ago(ago) => i64::try_from(ago.as_micros()).unwrap_or(i64::MAX),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(now.as_micros()).unwrap_or(i64::MAX).saturating_sub(ago).max(0))
    }
}

/// Prints records, the oldest first.
pub(super) fn print(arguments: &MasterAuditArguments) -> anyhow::Result<()> {
    let hint = "`instep login USER` as an administrator";
    let client = session::administrator(&arguments.common, "the audit log needs", hint)?;
    let json = arguments.common.json;
    let found = first(&client, arguments)?;
    let mut last = found.last().map_or(0, |record| record.id);
    if json {
        found.iter().try_for_each(table::json_line)?;
    } else {
        let mut table = table::Table::new(&["TIME", "USER", "ACTION", "SUBJECT", "RESULT", "FROM", "TOKEN", "REQUEST"]);
        found.iter().for_each(|record| table.row(cells(record)));
        table.print("no records", "leave out --since, --user or --action to see more");
    }
    if !arguments.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(AGAIN);
        for record in ask(&client, arguments, Some(last), None, AT_A_TIME)? {
            last = record.id;
            if json {
                table::json_line(&record)?;
            } else {
                console::print(format!("{}\n", line(&record)).as_bytes());
            }
        }
    }
}

/// The records that there are: the newest ones, or all since a time.
fn first(client: &Client, arguments: &MasterAuditArguments) -> anyhow::Result<Vec<AuditRecord>> {
    let default = if arguments.since.is_some() { usize::MAX } else { 100 };
    let wanted = arguments.tail.map_or(default, |tail| tail as usize);
    let (mut found, mut before) = (Vec::new(), None);
    while found.len() < wanted {
        let mut more = ask(client, arguments, None, before, AT_A_TIME.min(wanted - found.len()))?;
        let Some(oldest) = more.first() else { break };
        before = Some(oldest.id);
        more.append(&mut found);
        found = more;
    }
    Ok(found)
}

fn ask(
    client: &Client,
    arguments: &MasterAuditArguments,
    after: Option<i64>,
    before: Option<i64>,
    limit: usize,
) -> anyhow::Result<Vec<AuditRecord>> {
    let query = Query::new()
        .with("limit", limit)
        .with_some("since", arguments.since.map(Since::moment))
        .with_some("user", arguments.user.as_deref())
        .with_some("action", arguments.action.as_deref())
        .with_some("afterId", after)
        .with_some("beforeId", before);
    Ok(client.get::<AuditResponse>(&format!("/api/v1/master/audit{query}"))?.records)
}

fn cells(record: &AuditRecord) -> Vec<String> {
    let token = match &record.task_id {
        Some(task) => format!("task {task}"),
        None => record.token.word().to_owned(),
    };
    let times = if record.count > 1 { format!(" ×{}", record.count) } else { String::new() };
    vec![
        shown::time(record.time),
        escaped(record.username.as_deref().unwrap_or("-")),
        escaped(&record.action),
        escaped(&record.subject),
        format!("{} ({}){times}", record.outcome(), record.status),
        escaped(&record.address),
        escaped(&token),
        escaped(&record.request_id),
    ]
}

fn line(record: &AuditRecord) -> String {
    let cells: Vec<String> =
        cells(record).into_iter().map(|cell| if cell.is_empty() { "-".into() } else { cell }).collect();
    cells.join("  ")
}

/// Letters that are blank although they count as printed.
const BLANK: [char; 5] = ['\u{115f}', '\u{1160}', '\u{2800}', '\u{3164}', '\u{ffa0}'];

/// What cannot be seen, or turns text around, as Rust writes it: subjects are anybody's.
fn escaped(text: &str) -> String {
    let letter = |letter: char| match letter {
        ' ' | '"' | '\'' | '\\' => letter.to_string(),
        letter if BLANK.contains(&letter) => letter.escape_unicode().to_string(),
        // Behind another letter, where accents stay as they are.
        letter => format!("a{letter}").escape_debug().skip(1).collect(),
    };
    text.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_both_ways() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("2h", 7200), ("7d", 604_800)] {
            assert_eq!(since(text), Ok(Since::Ago(Duration::from_secs(seconds))));
        }
        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(Since::At(Timestamp(1_000_000))));
        for wrong in ["", "2", "h", "-2h", "2 h", "99999999999999999999d", "yesterday", "2é"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
        assert!(Since::Ago(Duration::from_secs(u64::MAX)).moment() <= Since::Ago(Duration::ZERO).moment());
    }

    #[test]
    fn what_somebody_sent_moves_no_cursor() {
        assert_eq!(escaped("a\x1b[2J\nb\u{202e}ü"), "a\\u{1b}[2J\\nb\\u{202e}ü");
    }

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        for (text, seen) in [
            ("ad\u{200b}a", "ad\\u{200b}a"),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}"),
            ("\u{feff}\u{ad}\u{e0041}\u{2060}", "\\u{feff}\\u{ad}\\u{e0041}\\u{2060}"),
            ("a\u{a0}b\u{3000}\u{3164}", "a\\u{a0}b\\u{3000}\\u{3164}"),
            ("größer 实验 'a' \"b\" c\\d e\u{301}", "größer 实验 'a' \"b\" c\\d e\u{301}"),
        ] {
            assert_eq!(escaped(text), seen);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_can_be_seen(text in any::<String>()) {
            let seen = escaped(&text);
            let hidden = |letter: char| letter.is_control() || (letter.is_whitespace() && letter != ' ');
            prop_assert!(!seen.contains(hidden), "{:?}", seen);
            prop_assert_eq!(escaped(&seen), seen);
        }

        #[test]
        fn any_time_is_read_or_refused(text in "\\PC{0,12}") {
            if let Ok(found) = since(&text) {
                let _ = found.moment();
            }
        }
    }
}
