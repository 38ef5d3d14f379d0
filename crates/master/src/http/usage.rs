//! Usage reports: who had which slots and for how long, as JSON and as CSV. With roles, of the workspaces that the caller
//! sees.

use std::collections::BTreeMap;

use instep_api::usage::{AggregatedUsage, AggregatedUsageResponse, RawUsage, RawUsageResponse};
use instep_api::wire::Timestamp;
use instep_database::Usage;
use instep_policy::permissions::Kind;
use tokio::sync::mpsc;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Download, Json, Reply};
use crate::clock::now;
use crate::export::push_field;

const DAY: i64 = 24 * 3600 * 1_000_000;
/// Days of one report: ten years.
const MOST_DAYS: i64 = 3660;
const DAILY: &str = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY";
const MONTHLY: &str = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY";

/// The moments between which a report is wanted.
type Span = (Timestamp, Timestamp);

fn asked_span(call: &Call) -> Result<Span, Failure> {
    let missing = |name: &str| Failure::invalid(format!("`{name}` is missing: a time such as 2026-01-02T03:04:05Z"));
    let from = call.query.time("timestampAfter")?.ok_or_else(|| missing("timestampAfter"))?;
    let to = call.query.time("timestampBefore")?.ok_or_else(|| missing("timestampBefore"))?;
    if from > to {
        return Err(Failure::invalid("start time cannot be after end time"));
    }
    Ok((from, to))
}

/// What was used in a span of time, as far as the caller may see it.
async fn used(call: &Call, span: Span) -> Result<Vec<Usage>, Failure> {
    let sight = call.sight(Kind::Experiment);
    let mut found = call.application.database.usage(span.0, span.1).await?;
    found.retain(|usage| sight.covers(usage.workspace));
    Ok(found)
}

/// The seconds of a use that lie in a span of time.
fn seconds_in(usage: &Usage, (from, to): Span) -> f64 {
    let end = usage.ended_at.unwrap_or_else(now).min(to);
    end.seconds_since(usage.started_at.max(from)).max(0.0)
}

/// What kind of work a task was, as reports say it.
fn kind_of(usage: &Usage) -> String {
    match usage.task_kind.strip_prefix("TASK_TYPE_").unwrap_or(&usage.task_kind) {
        "TRIAL" => "training".to_owned(),
        other => other.to_lowercase(),
    }
}

async fn raw_entries(call: &Call) -> Result<Vec<RawUsage>, Failure> {
    let span = asked_span(call)?;
    let entry = |usage: Usage| RawUsage {
        kind: kind_of(&usage),
        start_time: usage.started_at,
        end_time: usage.ended_at,
        experiment_id: usage.experiment,
        user_id: usage.user,
        seconds: seconds_in(&usage, span),
        slots: usage.slots,
        username: usage.username,
        labels: usage.labels,
    };
    Ok(used(call, span).await?.into_iter().map(entry).collect())
}

pub(crate) async fn raw(call: Call) -> Result<Json<RawUsageResponse>, Failure> {
    Ok(Json(RawUsageResponse { resource_entries: raw_entries(&call).await? }))
}

pub(crate) async fn raw_csv(call: Call) -> Result<Reply, Failure> {
    let header = ["experiment_id", "kind", "username", "labels", "slots", "start_time", "end_time", "seconds"];
    let rows = raw_entries(&call).await?.into_iter().map(|entry| {
        let labels: Vec<String> =
            entry.labels.iter().map(|label| label.replace('\\', "\\\\").replace(',', "\\,")).collect();
        vec![
            shown(entry.experiment_id),
            entry.kind,
            entry.username,
            labels.join(","),
            entry.slots.to_string(),
            entry.start_time.to_string(),
            shown(entry.end_time),
            format!("{:.6}", entry.seconds),
        ]
    });
    Ok(csv("raw", &header, rows).await)
}

/// One row for each time that a task had slots.
pub(crate) async fn allocations_csv(call: Call) -> Result<Reply, Failure> {
    let span = asked_span(&call)?;
    let header = [
        "allocation_id",
        "task_type",
        "username",
        "workspace_name",
        "experiment_id",
        "slots",
        "start_time",
        "end_time",
        "imagepulling_time",
        "slot_hours",
        "resource_pool",
    ];
    let rows = used(&call, span).await?.into_iter().map(|usage| {
        let slot_hours = seconds_in(&usage, span) * usage.slots as f64 / 3600.0;
        vec![
            usage.allocation.clone(),
            usage.task_kind.strip_prefix("TASK_TYPE_").unwrap_or(&usage.task_kind).to_owned(),
            usage.username.clone(),
            usage.workspace_name.clone(),
            shown(usage.experiment),
            usage.slots.to_string(),
            usage.started_at.to_string(),
            shown(usage.ended_at),
            // There are no images.
            "0.0".to_owned(),
            format!("{slot_hours:.6}"),
            usage.pool,
        ]
    });
    Ok(csv("allocations", &header, rows).await)
}

/// The days of a report: the first, and the one behind the last.
fn asked_days(call: &Call) -> Result<Span, Failure> {
    let day = |name: &str| {
        let text = call.query.text(name).unwrap_or_default();
        let whole = if text.len() == "2026-01".len() { format!("{text}-01") } else { text.to_owned() };
        Timestamp::parse(&format!("{whole}T00:00:00Z"))
            .ok_or_else(|| Failure::invalid(format!("`{text}` is not a date such as 2026-01-02, as `{name}` must be")))
    };
    let (first, last) = (day("startDate")?, day("endDate")?);
    if first > last {
        return Err(Failure::invalid("start date cannot be after end date"));
    }
    if (last.0 - first.0) / DAY > MOST_DAYS {
        return Err(Failure::invalid(format!("a report has at most {MOST_DAYS} days")));
    }
    Ok((first, last))
}

async fn aggregated_entries(call: &Call) -> Result<Vec<AggregatedUsage>, Failure> {
    let monthly = match call.query.text("period") {
        Some(MONTHLY) => true,
        None | Some(DAILY) => false,
        Some(other) => return Err(Failure::invalid(format!("no aggregation period specified: `{other}`"))),
    };
    let (first, last) = asked_days(call)?;
    // The last one counts: a day, or with months all of its month.
    let end = if monthly { Timestamp(last.0 + 31 * DAY) } else { Timestamp(last.0 + DAY) };
    let period_of = |day: Timestamp| day.to_string()[..if monthly { 7 } else { 10 }].to_owned();
    let last_period = period_of(last);
    let used = used(call, (first, end)).await?;
    let mut entries: BTreeMap<String, AggregatedUsage> = BTreeMap::new();
    let mut start = first;
    while start < end && period_of(start) <= last_period {
        let day = (start, Timestamp(start.0 + DAY));
        for usage in &used {
            let seconds = seconds_in(usage, day) * usage.slots as f64;
            if seconds == 0.0 {
                continue;
            }
            let period = period_of(start);
            let entry = entries.entry(period.clone()).or_insert_with(|| AggregatedUsage {
                period_start: period,
                period: if monthly { MONTHLY } else { DAILY }.to_owned(),
                seconds: 0.0,
                by_username: BTreeMap::new(),
                by_experiment_label: BTreeMap::new(),
                by_resource_pool: BTreeMap::new(),
            });
            entry.seconds += seconds;
            *entry.by_username.entry(usage.username.clone()).or_default() += seconds;
            *entry.by_resource_pool.entry(usage.pool.clone()).or_default() += seconds;
            for label in &usage.labels {
                *entry.by_experiment_label.entry(label.clone()).or_default() += seconds;
            }
        }
        start = day.1;
    }
    Ok(entries.into_values().collect())
}

pub(crate) async fn aggregated(call: Call) -> Result<Json<AggregatedUsageResponse>, Failure> {
    Ok(Json(AggregatedUsageResponse { resource_entries: aggregated_entries(&call).await? }))
}

pub(crate) async fn aggregated_csv(call: Call) -> Result<Reply, Failure> {
    let mut rows = Vec::new();
    for entry in aggregated_entries(&call).await? {
        let total = BTreeMap::from([("total".to_owned(), entry.seconds)]);
        for (kind, values) in [
            ("experiment_label", &entry.by_experiment_label),
            ("username", &entry.by_username),
            ("resource_pool", &entry.by_resource_pool),
            ("total", &total),
        ] {
            rows.extend(values.iter().map(|(key, seconds)| {
                vec![kind.to_owned(), key.clone(), entry.period_start.clone(), format!("{seconds:.6}")]
            }));
        }
    }
    Ok(csv("aggregated", &["aggregation_type", "aggregation_key", "date", "seconds"], rows.into_iter()).await)
}

fn shown(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Rows as a file of values with commas between them.
async fn csv(name: &str, header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Reply {
    let mut text = header.join(",") + "\n";
    for row in rows {
        for (index, field) in row.iter().enumerate() {
            text.push_str(if index == 0 { "" } else { "," });
            push_field(&mut text, field);
        }
        text.push('\n');
    }
    let (sender, parts) = mpsc::channel(1);
    // One part fits into the queue, so this does not wait.
    let _ = sender.send(Ok(text.into_bytes())).await;
    Reply::Download(Download { media_type: "text/csv", name: format!("{name}.csv"), parts })
}
