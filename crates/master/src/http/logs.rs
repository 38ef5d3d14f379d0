//! Logs: taking lines in, and giving them out, if wanted as they come.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instep_api::error::Code;
use instep_api::identifiers::TrialId;
use instep_api::logs::{LogFilter, LogLine, LogRecord, PostTaskLogsRequest, ShownLine};
use instep_api::pages::Order;
use instep_api::states::LogLevel;
use instep_database::{LogQuery, Subject};
use regex::{Regex, RegexBuilder};
use tokio::sync::{Semaphore, mpsc};

use super::call::Call;
use super::export::pass_on;
use super::failure::Failure;
use super::reply::{Download, Gone, Json, LineSender, Nothing, Reply, Stop, lines};
use crate::clock::now;
use crate::cluster::beginning;
use crate::webhooks::lines_arrived;

/// Lines that are read at a time.
const LINES_PER_READ: usize = 1000;
/// How long a follower waits for a wake-up before it looks anyway.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Memory that a pattern may take when it is compiled.
const PATTERN_SIZE: usize = 1 << 20;
/// How long all of a request's lines may be looked through for an expression.
const LONGEST_SEARCH: Duration = Duration::from_secs(10);
/// Searches for expressions at the same time; the next one waits.
static SEARCHES: Semaphore = Semaphore::const_new(2);
/// Parts of a downloaded log that may wait for a slow reader.
const PARTS_AHEAD: usize = 8;

fn line_of(mut record: LogRecord) -> Result<LogLine, Failure> {
    let task_id = record
        .task_id
        .take()
        .filter(|id| !id.is_empty())
        .ok_or_else(|| Failure::invalid("a log line has no task_id"))?;
    Ok(LogLine { task_id, ..line_without_task(record) })
}

/// A line whose task is known from elsewhere.
pub(super) fn line_without_task(record: LogRecord) -> LogLine {
    LogLine {
        id: 0,
        task_id: String::new(),
        allocation_id: record.allocation_id,
        agent_id: record.agent_id,
        container_id: record.container_id,
        rank_id: record.rank_id.map(|rank| rank.0),
        timestamp: record.timestamp.unwrap_or_else(now),
        level: record.level.unwrap_or(LogLevel::Unspecified),
        source: record.source,
        stdtype: record.stdtype,
        log: record.log.unwrap_or_default(),
    }
}

async fn keep(call: &Call, records: Vec<LogRecord>) -> Result<Json<Nothing>, Failure> {
    let lines: Vec<LogLine> = records.into_iter().map(line_of).collect::<Result<_, _>>()?;
    let tasks: BTreeSet<&str> = lines.iter().map(|line| line.task_id.as_str()).collect();
    for task in tasks {
        call.may_change(Subject::Task(task.to_owned())).await?;
    }
    if !lines.is_empty() {
        let looked_at = lines.clone();
        call.application.database.append_logs(lines).await?;
        call.application.logs_arrived();
        call.application.cluster.lines_arrived(looked_at.clone()).await?;
        lines_arrived(&call.application, looked_at);
    }
    Ok(Json(Nothing {}))
}

/// A bare list of lines, as detached scripts send them.
pub(crate) async fn append(call: Call) -> Result<Json<Nothing>, Failure> {
    let records = call.json_list()?;
    keep(&call, records).await
}

/// Lines in an object, as tasks send them: all of one task.
pub(crate) async fn append_wrapped(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: PostTaskLogsRequest = call.json()?;
    let records = request.logs.unwrap_or_default();
    if records.is_empty() {
        return Err(Failure::invalid("there are no log lines in the request"));
    }
    if records.iter().any(|record| record.task_id != records[0].task_id) {
        return Err(Failure::invalid("all log lines of a request must belong to one task"));
    }
    keep(&call, records).await
}

pub(crate) async fn fields_of_trial(call: Call) -> Result<Reply, Failure> {
    let tasks = call.application.database.trial_tasks(call.id("id")?).await?;
    fields(call, tasks).await
}

pub(crate) async fn fields_of_task(call: Call) -> Result<Reply, Failure> {
    let task = call.part("id").to_owned();
    call.application.database.task_end(task.clone()).await?;
    fields(call, vec![task]).await
}

async fn fields(call: Call, tasks: Vec<String>) -> Result<Reply, Failure> {
    let fields = call.application.database.log_fields(tasks).await?;
    let (sender, lines) = lines();
    // One line fits into the queue, so this does not wait.
    let _ = sender.send(&fields).await;
    Ok(Reply::Lines(lines))
}

pub(crate) async fn of_trial(call: Call) -> Result<Reply, Failure> {
    let trial: TrialId = call.id("id")?;
    let tasks = call.application.database.trial_tasks(trial).await?;
    stream(call, tasks, Some(trial))
}

pub(crate) async fn of_task(call: Call) -> Result<Reply, Failure> {
    let task = call.part("id").to_owned();
    call.application.database.task_end(task.clone()).await?;
    stream(call, vec![task], None)
}

/// What is asked for.
struct Request {
    /// The first is the one whose end ends the log.
    tasks: Vec<String>,
    trial: Option<TrialId>,
    filter: LogFilter,
    search: Option<Arc<Search>>,
    order: Order,
    follow: bool,
    /// The line behind which to begin, in the order asked for.
    from: Option<i64>,
    /// Lines that may still be sent.
    left: usize,
}

/// What is looked for in lines.
struct Search {
    pattern: Regex,
    /// It is the reader's own expression, not a plain text.
    is_expression: bool,
}

impl Search {
    fn of(text: &str, is_expression: bool) -> Result<Search, Failure> {
        let pattern = if is_expression { text.to_owned() } else { regex::escape(text) };
        let built = RegexBuilder::new(&pattern).case_insensitive(!is_expression).size_limit(PATTERN_SIZE).build();
        let pattern = built.map_err(|error| {
            Failure::invalid(format!(
                "the text to search for is not a regular expression: {error}\n\
                 hint: without --regex (in the pages: Regular expression), it is looked for as it stands"
            ))
        })?;
        Ok(Search { pattern, is_expression })
    }

    /// The lines that match; gives up when that takes longer than is left.
    fn matching(&self, mut lines: Vec<LogLine>, left: &mut Duration) -> Result<Vec<LogLine>, Failure> {
        if !self.is_expression {
            lines.retain(|line| self.pattern.is_match(&line.log));
            return Ok(lines);
        }
        let mut found = Vec::new();
        for line in lines {
            let begun = Instant::now();
            if left.is_zero() {
                return Err(Failure::invalid(format!(
                    "this regular expression takes longer than {} s to look for\n\
                     hint: use a simpler one, or choose lines by time, rank or level",
                    LONGEST_SEARCH.as_secs()
                )));
            }
            if self.pattern.is_match(beginning(&line.log)) {
                found.push(line);
            }
            *left = left.saturating_sub(begun.elapsed());
        }
        Ok(found)
    }

    /// The same, on a thread where nobody waits for it.
    async fn among(self: &Arc<Self>, lines: Vec<LogLine>, left: Duration) -> Result<(Vec<LogLine>, Duration), Failure> {
        let broken = |error: String| Failure::new(Code::Internal, error);
        let _turn = match self.is_expression {
            true => Some(SEARCHES.acquire().await.map_err(|error| broken(error.to_string()))?),
            false => None,
        };
        let search = Arc::clone(self);
        let looking = tokio::task::spawn_blocking(move || {
            let mut left = left;
            search.matching(lines, &mut left).map(|found| (found, left))
        });
        looking.await.map_err(|error| broken(error.to_string()))?
    }
}

fn request_of(call: &Call, tasks: Vec<String>, trial: Option<TrialId>) -> Result<Request, Failure> {
    let query = &call.query;
    let search = match query.text("searchText") {
        None => None,
        Some(text) => Some(Arc::new(Search::of(text, query.value("enableRegex")?.unwrap_or(false))?)),
    };
    let limit: i64 = query.value("limit")?.unwrap_or(0);
    Ok(Request {
        tasks,
        trial,
        filter: LogFilter {
            agent_ids: query.texts("agentIds"),
            allocation_ids: query.texts("allocationIds"),
            container_ids: query.texts("containerIds"),
            rank_ids: query.values("rankIds")?,
            levels: query.values("levels")?,
            sources: query.texts("sources"),
            stdtypes: query.texts("stdtypes"),
            before: query.time("timestampBefore")?,
            after: query.time("timestampAfter")?,
        },
        search,
        order: query.order()?.unwrap_or_default(),
        follow: query.value("follow")?.unwrap_or(false),
        from: query.value("afterId")?,
        left: if limit > 0 { limit as usize } else { usize::MAX },
    })
}

fn stream(call: Call, tasks: Vec<String>, trial: Option<TrialId>) -> Result<Reply, Failure> {
    let request = request_of(&call, tasks, trial)?;
    let (sender, lines) = lines();
    // The task ends with its stream: when everything is sent, or when the reader goes away.
    tokio::spawn(async move {
        let sink = Sink::Json(sender);
        if let (Err(Stop::Failed(failure)), Sink::Json(sender)) = (send_lines(&call, request, &sink).await, &sink) {
            sender.fail(&failure).await;
        }
    });
    Ok(Reply::Lines(lines))
}

/// The same lines as text, to be saved.
pub(crate) async fn text_of_trial(call: Call) -> Result<Reply, Failure> {
    let trial: TrialId = call.id("id")?;
    let tasks = call.application.database.trial_tasks(trial).await?;
    text(call, tasks, format!("trial-{trial}-logs.txt"))
}

/// The same lines as text, to be saved.
pub(crate) async fn text_of_task(call: Call) -> Result<Reply, Failure> {
    let task = call.part("id").to_owned();
    call.application.database.task_end(task.clone()).await?;
    text(call, vec![task], "task-logs.txt".to_owned())
}

fn text(call: Call, tasks: Vec<String>, name: String) -> Result<Reply, Failure> {
    let request = request_of(&call, tasks, None)?;
    let (sender, parts) = mpsc::channel(PARTS_AHEAD);
    // The task ends with the download: when everything is sent, or when the reader goes away or stands still.
    tokio::spawn(async move {
        let sink = Sink::Text(sender);
        if let (Err(Stop::Failed(failure)), Sink::Text(sender)) = (send_lines(&call, request, &sink).await, &sink) {
            // In place of the end, so that the reader does not take a part for the whole.
            let _ = sender.send(Err(std::io::Error::other(failure.message))).await;
        }
    });
    Ok(Reply::Download(Download { media_type: "text/plain; charset=utf-8", name, parts }))
}

/// Where lines go: as JSON for programs, or as people read them.
enum Sink {
    Json(LineSender),
    Text(mpsc::Sender<std::io::Result<Vec<u8>>>),
}

impl Sink {
    async fn send(&self, lines: Vec<ShownLine>) -> Result<(), Gone> {
        match self {
            Sink::Json(sender) => {
                for line in lines {
                    sender.send(&line).await?;
                }
                Ok(())
            }
            Sink::Text(sender) => {
                let mut text = String::new();
                for line in lines {
                    text.push_str(&line.message);
                    if !line.message.ends_with('\n') {
                        text.push('\n');
                    }
                }
                if text.is_empty() { Ok(()) } else { pass_on(text, sender).await.map_err(|_| Gone) }
            }
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Sink::Json(sender) => sender.is_closed(),
            Sink::Text(sender) => sender.is_closed(),
        }
    }
}

/// Whether the caller of a stream may still read a task, by what they have been given meanwhile.
async fn still_may_read(call: &Call, task: Option<&String>) -> Result<(), Failure> {
    let token = call.token.as_deref().unwrap_or_default();
    let known = call.application.session_of_token(token).await?.ok_or_else(Failure::unauthenticated)?;
    match task {
        Some(task) => call.may_read_with(known.grants.as_deref(), Subject::Task(task.clone())).await,
        None => Ok(()),
    }
}

async fn send_lines(call: &Call, mut request: Request, sink: &Sink) -> Result<(), Stop> {
    let database = &call.application.database;
    let mut arrivals = call.application.follow_logs();
    let mut checked = Instant::now();
    let (mut from, mut left) = (request.from, LONGEST_SEARCH);
    loop {
        // Looked at before the lines are read: what is logged before the end is then among them.
        arrivals.mark_unchanged();
        let present = request.tasks.first().cloned().unwrap_or_default();
        let over = !request.follow || database.task_end(present).await?.is_some();
        loop {
            let query = LogQuery {
                tasks: request.tasks.clone(),
                filter: request.filter.clone(),
                from,
                order: request.order,
                limit: LINES_PER_READ,
            };
            let mut found = database.logs(query).await?;
            let last_part = found.len() < LINES_PER_READ;
            from = found.last().map(|line| line.id).or(from);
            if let Some(search) = &request.search {
                (found, left) = search.among(found, left).await.map_err(Stop::Failed)?;
            }
            let shown: Vec<ShownLine> =
                found.into_iter().take(request.left).map(|line| ShownLine::of(line, request.trial)).collect();
            request.left -= shown.len();
            sink.send(shown).await?;
            if sink.is_closed() {
                return Err(Stop::Gone);
            }
            if last_part || request.left == 0 {
                break;
            }
        }
        if over || request.left == 0 || request.order == Order::Descending {
            return Ok(());
        }
        // Either way there is another look.
        let waiting = Instant::now();
        let _ = tokio::time::timeout(LOOK_AGAIN, arrivals.changed()).await;
        // Whoever follows a log for days may look through more lines, a tenth of the time.
        left = LONGEST_SEARCH.min(left + waiting.elapsed() / 10);
        if sink.is_closed() {
            return Err(Stop::Gone);
        }
        // Whoever has lost their role, or their session, reads no further.
        if call.application.roles && checked.elapsed() >= LOOK_AGAIN {
            checked = Instant::now();
            still_may_read(call, request.tasks.first()).await.map_err(Stop::Failed)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::LOOKED_AT;

    fn lines(texts: &[String]) -> Vec<LogLine> {
        let line = |text: &String| line_without_task(LogRecord { log: Some(text.clone()), ..LogRecord::default() });
        texts.iter().map(line).collect()
    }

    #[test]
    fn a_text_is_found_anywhere_and_an_expression_where_a_line_begins() {
        let late = format!("{}Needle.", "x".repeat(LOOKED_AT));
        let texts = ["a needle".to_owned(), late, "needles".to_owned()];
        let found = |text: &str, is_expression| {
            let mut left = LONGEST_SEARCH;
            Search::of(text, is_expression).unwrap().matching(lines(&texts), &mut left).unwrap().len()
        };
        assert_eq!((found("needle", false), found("needle.", false), found("needle.", true)), (3, 1, 1));
        assert!(Search::of("(", true).is_err());
        assert!(Search::of("(", false).is_ok());
    }

    #[test]
    fn a_search_that_takes_too_long_ends_with_a_hint() {
        let search = Search::of("[ab]*a[ab]{500}[^ab]a", true).unwrap();
        let texts = vec!["ab".repeat(LOOKED_AT); 1000];
        let failure = search.matching(lines(&texts), &mut Duration::from_millis(1)).unwrap_err();
        assert!(failure.message.contains("hint: "), "{}", failure.message);
    }
}
