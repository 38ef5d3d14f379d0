//! Logs of a trial or another task: which lines, and how.

use std::thread;
use std::time::Duration;

use clap::Args;
use instep_api::logs::ShownLine;
use instep_client::{Client, Error, Lines, Query};

use super::dialog::say;
use crate::console;

/// After so much silence one of several masters is asked again, or another that answers.
const SILENCE: Duration = Duration::from_secs(30);
/// Before a stream that broke is asked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// Which lines are wanted.
#[derive(Debug, Default, Args)]
pub(crate) struct LogArguments {
    /// Follow the logs until the end
    #[arg(short, long)]
    follow: bool,
    /// Show only the first N lines
    #[arg(long, value_name = "N", conflicts_with_all = ["tail", "follow"])]
    head: Option<usize>,
    /// Show only the last N lines
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    tail: Option<usize>,
    /// Show only this rank; -1 means lines without a rank; may be repeated
    #[arg(long = "rank-id", visible_alias = "rank", value_name = "RANK", allow_negative_numbers = true)]
    ranks: Vec<i64>,
    /// Show only this level or above: trace, debug, info, warning, error, critical
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    level: Option<usize>,
    /// Show only this source; may be repeated
    #[arg(long = "source", value_name = "SOURCE")]
    sources: Vec<String>,
    /// Show only stdout or stderr
    #[arg(long = "stdtype", value_name = "STREAM", value_parser = ["stdout", "stderr"])]
    stdtypes: Vec<String>,
    /// Show only lines that contain this text
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Treat the --search text as a regular expression
    #[arg(long, requires = "search")]
    regex: bool,
    /// Show only lines before this time, such as 2026-01-02T03:04:05Z
    #[arg(long, value_name = "TIME")]
    timestamp_before: Option<String>,
    /// Show only lines after this time
    #[arg(long, value_name = "TIME")]
    timestamp_after: Option<String>,
}

const LEVELS: [&str; 6] = ["trace", "debug", "info", "warning", "error", "critical"];

fn level(text: &str) -> Result<usize, String> {
    let found = LEVELS.iter().position(|level| level.eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("use one of {}", LEVELS.join(", ")))
}

impl LogArguments {
    /// All lines, as they come.
    pub(super) fn following() -> LogArguments {
        LogArguments { follow: true, ..LogArguments::default() }
    }

    /// The last lines that the task itself wrote.
    pub(super) fn last(count: usize) -> LogArguments {
        LogArguments { tail: Some(count), ..LogArguments::default() }
    }

    pub(super) fn follows(&self) -> bool {
        self.follow
    }

    fn query(&self) -> Query {
        let levels = self.level.map(|lowest| &LEVELS[lowest..]).unwrap_or_default();
        let mut query = Query::new()
            .with_some("limit", self.head.or(self.tail))
            .with_all("rankIds", &self.ranks)
            .with_all("levels", levels.iter().map(|level| format!("LOG_LEVEL_{}", level.to_uppercase())))
            .with_all("sources", &self.sources)
            .with_all("stdtypes", &self.stdtypes)
            .with_some("searchText", self.search.as_ref())
            .with_some("timestampBefore", self.timestamp_before.as_ref())
            .with_some("timestampAfter", self.timestamp_after.as_ref());
        for (name, wanted) in [("follow", self.follow), ("enableRegex", self.regex)] {
            if wanted {
                query = query.with(name, true);
            }
        }
        if self.tail.is_some() {
            query = query.with("orderBy", "ORDER_BY_DESC");
        }
        query
    }
}

/// Prints lines as they come, those of a trial or of a task.
pub(super) fn print(client: &Client, path: &str, arguments: &LogArguments, json: bool) -> anyhow::Result<()> {
    let mut any = false;
    each(client, path, arguments, |line| {
        any = true;
        console::print(text(line, json)?.as_bytes());
        Ok(())
    })?;
    if !any {
        say("no log lines");
    }
    Ok(())
}

/// Hands over lines as they come.
pub(super) fn each(
    client: &Client,
    path: &str,
    arguments: &LogArguments,
    mut take: impl FnMut(&ShownLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if arguments.tail.is_some() {
        let lines = client.stream::<ShownLine>(&format!("{path}{}", arguments.query()), None)?;
        let mut last: Vec<ShownLine> = lines.collect::<Result<_, _>>()?;
        last.reverse();
        return last.iter().try_for_each(take);
    }
    // Without a limit to the silence of the only master: a person watches, and can end it.
    let silence = (arguments.follow && client.addresses().count() > 1).then_some(SILENCE);
    let mut last: Option<String> = None;
    loop {
        let query = arguments.query().with_some("afterId", last.as_ref());
        let lines = client.stream::<ShownLine>(&format!("{path}{query}"), silence)?;
        match each_of(lines, &mut take, &mut last)? {
            None => return Ok(()),
            // Whoever follows goes on after the last line, with whichever master answers.
            Some(error) if arguments.follow && error.is_temporary() => thread::sleep(PAUSE),
            Some(error) => return Err(error.into()),
        }
    }
}

/// Hands over the lines of one stream and notes the last one's number; gives why the stream broke, if it did.
fn each_of(
    lines: Lines<ShownLine>,
    take: &mut impl FnMut(&ShownLine) -> anyhow::Result<()>,
    last: &mut Option<String>,
) -> anyhow::Result<Option<Error>> {
    for line in lines {
        match line {
            Ok(line) => {
                take(&line)?;
                *last = Some(line.id);
            }
            Err(error) => return Ok(Some(error)),
        }
    }
    Ok(None)
}

/// A line as it is printed.
pub(super) fn text(line: &ShownLine, json: bool) -> anyhow::Result<String> {
    let mut text = if json { serde_json::to_string(line)? } else { line.message.clone() };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use instep_client::Settings;

    use super::*;

    /// Answers one request with a line of a log, and says what was asked.
    fn answer(mut connection: &TcpStream, id: i64, end: &str) -> String {
        let heard = BufReader::new(connection.try_clone().unwrap()).lines().map_while(Result::ok);
        let heard: Vec<String> = heard.take_while(|line| !line.is_empty()).collect();
        let line = format!(
            r#"{{"result":{{"id":"{id}","timestamp":"2026-01-01T00:00:00Z","level":"LOG_LEVEL_INFO","message":"{id}","taskId":"t","log":""}}}}"#
        );
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        write!(connection, "{head}{:x}\r\n{line}\n\r\n{end}", line.len() + 1).unwrap();
        heard[0].clone()
    }

    #[test]
    fn whoever_follows_goes_on_after_the_last_line_with_the_next_master() {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (lost, other) = (listen(), listen());
        let addresses = format!("{},{}", lost.local_addr().unwrap(), other.local_addr().unwrap());
        let masters = thread::spawn(move || {
            // Its health, then a line, and it is gone in the middle of its answer.
            answer(&lost.accept().unwrap().0, 0, "0\r\n\r\n");
            let first = answer(&lost.accept().unwrap().0, 7, "");
            drop(lost);
            let mut asked = vec![first];
            while asked.len() < 2 {
                let said = answer(&other.accept().unwrap().0, 8, "0\r\n\r\n");
                asked.extend(Some(said).filter(|said| !said.contains("/health")));
            }
            asked
        });
        let client = Client::new(Settings::of(addresses.parse().unwrap())).unwrap();
        let mut found = Vec::new();
        let taken = each(&client, "/logs", &LogArguments::following(), |line| {
            found.push(line.message.clone());
            Ok(())
        });
        taken.unwrap();
        assert_eq!(found, ["7", "8"]);
        let asked = masters.join().unwrap();
        assert_eq!(asked, ["GET /logs?follow=true HTTP/1.1", "GET /logs?follow=true&afterId=7 HTTP/1.1"]);
    }
}
