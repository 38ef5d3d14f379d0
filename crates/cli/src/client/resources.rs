//! `instep resources`: who had which slots, and for how long.

use std::io;

use anyhow::Context;
use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use instep_api::usage::{AggregatedUsageResponse, RawUsageResponse};
use instep_client::{Client, Query};

use super::options::Common;
use super::{session, shown, table};
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct ResourcesArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List each time that a task had slots: who, what, how many, how long
    Raw(Span),
    /// Add up slot hours by day or month, in all and by user, label and pool
    Aggregated {
        /// First day, such as 2026-11-01
        #[arg(value_name = "FROM")]
        from: NaiveDate,
        /// Last day [default: today]
        #[arg(value_name = "TO")]
        to: Option<NaiveDate>,
        /// Add up by month
        #[arg(long)]
        monthly: bool,
        /// Print CSV instead of a table
        #[arg(long)]
        csv: bool,
    },
    /// Print the allocations of all tasks as CSV, with workspaces and pools
    Allocations {
        #[arg(value_name = "FROM", value_parser = moment)]
        /// From when: a day, or a time such as 2026-11-01T08:00:00Z
        from: DateTime<Utc>,
        #[arg(value_name = "TO", value_parser = moment)]
        /// Until when [default: now]
        to: Option<DateTime<Utc>>,
    },
}

#[derive(Debug, Args)]
struct Span {
    /// From when: a day, or a time such as 2026-11-01T08:00:00Z
    #[arg(value_name = "FROM", value_parser = moment)]
    from: DateTime<Utc>,
    /// Until when [default: now]
    #[arg(value_name = "TO", value_parser = moment)]
    to: Option<DateTime<Utc>>,
    /// Print CSV instead of a table
    #[arg(long)]
    csv: bool,
}

/// A day, which begins at midnight UTC, or a moment as RFC 3339 writes it.
fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    let day = text.parse::<NaiveDate>().ok().and_then(|day| day.and_hms_opt(0, 0, 0)).map(|time| time.and_utc());
    let moment = DateTime::parse_from_rfc3339(text).ok().map(|moment| moment.with_timezone(&Utc));
    day.or(moment).ok_or_else(|| "it is a day such as 2026-11-01, or a time such as 2026-11-01T08:00:00Z".to_owned())
}

/// The query for a span of time.
fn span(from: DateTime<Utc>, to: Option<DateTime<Utc>>) -> anyhow::Result<Query> {
    let to = to.unwrap_or_else(Utc::now);
    if from > to {
        let what = format!("the report would begin at {} and end before it, at {}", written(from), written(to));
        return Err(Hinted::new(what, "the earlier time comes first: `instep resources raw FROM TO`").into());
    }
    Ok(Query::new().with("timestampAfter", written(from)).with("timestampBefore", written(to)))
}

fn written(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

pub(crate) fn run(arguments: ResourcesArguments) -> anyhow::Result<()> {
    let common = arguments.common;
    match arguments.verb {
        Verb::Raw(Span { from, to, csv }) => {
            let query = span(from, to)?;
            let client = session::connect(&common)?;
            if csv {
                copy(&client, &format!("/resources/allocation/raw{query}"))
            } else {
                raw(&client, &common, &query)
            }
        }
        Verb::Aggregated { from, to, monthly, csv } => {
            let to = to.unwrap_or_else(|| Utc::now().date_naive());
            if from > to {
                let what = format!("the report would begin on {from} and end before it, on {to}");
                return Err(Hinted::new(what, "the earlier day comes first").into());
            }
            let period = if monthly { "MONTHLY" } else { "DAILY" };
            let query = Query::new()
                .with("startDate", from)
                .with("endDate", to)
                .with("period", format!("RESOURCE_ALLOCATION_AGGREGATION_PERIOD_{period}"));
            let client = session::connect(&common)?;
            if csv {
                return copy(&client, &format!("/resources/allocation/aggregated{query}"));
            }
            aggregated(&client, &common, &query)
        }
        Verb::Allocations { from, to } => {
            if common.json {
                let what = "this report is CSV: the master has no other form of it";
                return Err(Hinted::new(what, "leave --json out, or use `instep resources raw --json`").into());
            }
            let query = span(from, to)?;
            copy(&session::connect(&common)?, &format!("/resources/allocation/allocations-csv{query}"))
        }
    }
}

/// Prints a report as the master writes it.
fn copy(client: &Client, path: &str) -> anyhow::Result<()> {
    let mut report = client.download(path, "*/*")?;
    match io::copy(&mut report, &mut io::stdout().lock()) {
        // A reader that has gone away is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        copied => copied.map(drop).context("cannot print the report"),
    }
}

fn raw(client: &Client, common: &Common, query: &Query) -> anyhow::Result<()> {
    let found: RawUsageResponse = client.get(&format!("/api/v1/resources/allocation/raw{query}"))?;
    if common.json {
        return table::json(&found.resource_entries);
    }
    let mut table = table::Table::new(&["USER", "KIND", "EXPERIMENT", "SLOTS", "FROM", "TO", "TIME", "LABELS"]);
    for entry in found.resource_entries {
        table.row(vec![
            entry.username,
            entry.kind,
            entry.experiment_id.map(|id| id.to_string()).unwrap_or_default(),
            entry.slots.to_string(),
            shown::time(entry.start_time),
            entry.end_time.map_or_else(|| "runs".to_owned(), shown::time),
            shown::seconds(entry.seconds),
            shown::list(&entry.labels),
        ]);
    }
    table.print(NONE, NONE_HINT);
    Ok(())
}

const NONE: &str = "nothing ran in this time";
const NONE_HINT: &str = "choose an earlier beginning, such as `instep resources raw 2026-01-01`";

fn aggregated(client: &Client, common: &Common, query: &Query) -> anyhow::Result<()> {
    let found: AggregatedUsageResponse = client.get(&format!("/api/v1/resources/allocation/aggregated{query}"))?;
    if common.json {
        return table::json(&found.resource_entries);
    }
    let hours = |seconds: f64| format!("{:.2}", seconds / 3600.0);
    let mut table = table::Table::new(&["FROM", "BY", "NAME", "SLOT HOURS"]);
    for entry in found.resource_entries.into_iter().filter(|entry| entry.seconds > 0.0) {
        table.row(vec![entry.period_start.clone(), "all".to_owned(), String::new(), hours(entry.seconds)]);
        let parts =
            [("user", entry.by_username), ("label", entry.by_experiment_label), ("pool", entry.by_resource_pool)];
        for (what, by_name) in parts {
            for (name, seconds) in by_name {
                table.row(vec![entry.period_start.clone(), what.to_owned(), name, hours(seconds)]);
            }
        }
    }
    table.print(NONE, NONE_HINT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_begins_at_midnight_and_a_report_ends_after_it_began() {
        assert_eq!(written(moment("2026-11-01").unwrap()), "2026-11-01T00:00:00Z");
        assert_eq!(written(moment("2026-11-01T10:00:00+02:00").unwrap()), "2026-11-01T08:00:00Z");
        assert!(moment("yesterday").unwrap_err().contains("a day such as"));
        let (day, next) = (moment("2026-11-01").unwrap(), moment("2026-11-02").unwrap());
        assert!(span(day, Some(next)).is_ok());
        assert!(span(next, Some(day)).unwrap_err().to_string().contains("hint: the earlier time comes first"));
    }
}
