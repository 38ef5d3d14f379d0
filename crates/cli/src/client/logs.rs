//! Logs of a trial or another task: which lines, and how.

use clap::Args;
use instep_api::logs::ShownLine;
use instep_client::{Client, Query};

use crate::console;

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
    each(client, path, arguments, |line| {
        console::print(text(line, json)?.as_bytes());
        Ok(())
    })
}

/// Hands over lines as they come.
pub(super) fn each(
    client: &Client,
    path: &str,
    arguments: &LogArguments,
    mut take: impl FnMut(&ShownLine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = format!("{path}{}", arguments.query());
    // Without a limit to the silence: a person watches, and can end it.
    let mut lines = client.stream::<ShownLine>(&path, None)?;
    if arguments.tail.is_some() {
        let mut last: Vec<ShownLine> = lines.collect::<Result<_, _>>()?;
        last.reverse();
        return last.iter().try_for_each(take);
    }
    lines.try_for_each(|line| take(&line?))
}

/// A line as it is printed.
pub(super) fn text(line: &ShownLine, json: bool) -> anyhow::Result<String> {
    let mut text = if json { serde_json::to_string(line)? } else { line.message.clone() };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
