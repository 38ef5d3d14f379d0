//! What commands, TensorBoards and notebooks share: the verbs for one that exists, and how they are shown.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use instep_api::commands::Command;
use instep_api::jobs::TaskResponse;
use instep_api::states::AllocationState;
use instep_client::{Client, Query};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::dialog::say;
use super::interrupt::SayOnInterrupt;
use super::logs::LogArguments;
use super::options::Common;
use super::requests::api;
use super::{configuration, logs, shown, table};
use crate::console;
use crate::report::Hinted;

/// Between two looks at one that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// After how long people are told that it waits for slots.
const WORTH_SAYING: Duration = Duration::from_secs(2);
/// How long one may take to be ready, slots and all.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Characters of an id, which is a UUID.
const ID_LENGTH: usize = 36;
/// Lines of output that tell why one did not start.
const LAST_LINES: usize = 5;

/// Which one is meant.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Id, or as much of its beginning as no other has
    #[arg(value_name = "ID")]
    pub task: String,
}

/// `set priority`, as `det` has it; the same as `set-priority`.
#[derive(Debug, Subcommand)]
pub(super) enum Set {
    /// Change its place in the queue
    Priority(Priority),
}

/// Another place in the queue for one.
#[derive(Debug, Args)]
pub(super) struct Priority {
    #[command(flatten)]
    pub named: Named,
    /// Priority, 1 to 99; lower numbers go first
    #[arg(value_parser = clap::value_parser!(i64).range(1..=99))]
    pub priority: i64,
}

/// Commands, TensorBoards or notebooks: how the API and people name them, and what the API answers about them.
pub(super) trait Kind {
    const NOUN: &str;
    /// The part of the API's paths.
    const COLLECTION: &str;
    /// What stands behind `instep` for them; the last part of their pages' addresses too.
    const VERBS: &str;
    /// How to make one, for somebody who has none.
    const HINT: &str;
    type One: DeserializeOwned + Serialize;
    type Many: DeserializeOwned;

    fn task(answer: &Self::One) -> &Command;
    fn config(answer: &Self::One) -> &Value;
    fn tasks(answer: Self::Many) -> Vec<Command>;
}

/// The whole id of the one that is meant by its beginning, which is all that tables and logs show.
fn identified<K: Kind>(client: &Client, given: &str) -> anyhow::Result<String> {
    if given.is_empty() || given.len() >= ID_LENGTH {
        return Ok(given.to_owned());
    }
    let all = K::tasks(client.get(&format!("/api/v1/{}", K::COLLECTION))?);
    let mut meant = all.into_iter().map(|task| task.id).filter(|id| id.starts_with(given));
    match (meant.next(), meant.next()) {
        (Some(_), Some(_)) => {
            let hint = format!("give more of it; `instep {} list -a` shows them all", K::VERBS);
            Err(Hinted::new(format!("the ids of several {}s begin with `{given}`", K::NOUN), &hint).into())
        }
        // Where there is none, the master says so.
        (found, _) => Ok(found.unwrap_or_else(|| given.to_owned())),
    }
}

/// One with its configuration.
pub(super) fn get<K: Kind>(client: &Client, task: &str) -> anyhow::Result<K::One> {
    Ok(client.get(&api(&[K::COLLECTION, &identified::<K>(client, task)?]))?)
}

/// Prints those of the user, or of all users.
pub(super) fn list<K: Kind>(client: &Client, common: &Common, all: bool) -> anyhow::Result<()> {
    let user = if all { None } else { Some(client.user()?.username) };
    let path = format!("/api/v1/{}{}", K::COLLECTION, Query::new().with_some("users", user));
    let tasks = K::tasks(client.get(&path)?);
    if common.json {
        return table::json(&tasks);
    }
    print_list(&tasks, &format!("no {}s", K::NOUN), K::HINT);
    Ok(())
}

/// Prints one.
pub(super) fn describe<K: Kind>(client: &Client, common: &Common, task: &str) -> anyhow::Result<()> {
    let found = get::<K>(client, task)?;
    if common.json {
        return table::json(&found);
    }
    print(K::task(&found));
    Ok(())
}

/// Prints the configuration of one.
pub(super) fn config<K: Kind>(client: &Client, task: &str) -> anyhow::Result<()> {
    table::json(K::config(&get::<K>(client, task)?))
}

/// Prints what one has written.
pub(super) fn logs<K: Kind>(
    client: &Client,
    common: &Common,
    task: &str,
    arguments: &LogArguments,
) -> anyhow::Result<()> {
    logs::print(client, &api(&["tasks", &identified::<K>(client, task)?, "logs"]), arguments, common.json)
}

/// Ends one.
pub(super) fn kill<K: Kind>(client: &Client, task: &str) -> anyhow::Result<()> {
    let ended: K::One = client.post(&api(&[K::COLLECTION, &identified::<K>(client, task)?, "kill"]), &json!({}))?;
    let task = K::task(&ended);
    match task.state {
        AllocationState::Terminated => say(&format!("{} {} has ended: {}", K::NOUN, task.id, task.reason)),
        _ => say(&format!("{} {} is being ended", K::NOUN, task.id)),
    }
    Ok(())
}

/// Changes the place of one in the queue.
pub(super) fn set_priority<K: Kind>(client: &Client, wanted: &Priority) -> anyhow::Result<()> {
    let (task, priority) = (&identified::<K>(client, &wanted.named.task)?, wanted.priority);
    let _: Value = client.post(&api(&[K::COLLECTION, task, "set_priority"]), &json!({"priority": priority}))?;
    say(&format!("{} {task} has priority {priority}", K::NOUN));
    Ok(())
}

/// A configuration from a file, if there is one, with settings laid over it.
pub(super) fn read_config(file: Option<&Path>, settings: &[String]) -> anyhow::Result<Value> {
    match file {
        Some(file) => configuration::read_parsed(file, settings),
        None => configuration::with(json!({}), settings),
    }
}

/// Waits until one serves.
pub(super) fn wait_until_ready<K: Kind>(client: &Client, task: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let found: TaskResponse = client.get(&api(&["tasks", task]))?;
        if found.task.end_time.is_some() {
            let why = K::task(&get::<K>(client, task)?).reason.clone();
            logs::each(client, &api(&["tasks", task, "logs"]), &LogArguments::last(LAST_LINES), |line| {
                say(line.message.trim_end());
                Ok(())
            })?;
            let hint = format!("see its logs with `instep {} logs {task}`", K::VERBS);
            return Err(Hinted::new(format!("{} {task} has ended: {why}", K::NOUN), &hint).into());
        }
        if found.task.allocations.first().is_some_and(|allocation| allocation.is_ready) {
            return Ok(());
        }
        let queued = found.task.allocations.first().is_none_or(|it| it.state == AllocationState::Queued.as_str());
        if queued && !told && began.elapsed() > WORTH_SAYING {
            say(&format!("{} {task} waits in the queue\nhint: see who is before it with `instep job list`", K::NOUN));
            told = true;
        }
        anyhow::ensure!(began.elapsed() < PATIENCE, "{} {task} is not ready after {} s", K::NOUN, PATIENCE.as_secs());
        thread::sleep(POLL_INTERVAL);
    }
}

/// Follows one that was started until it serves, and prints where a browser finds it.
pub(super) fn follow_start<K: Kind>(client: &Client, common: &Common, task: &str) -> anyhow::Result<()> {
    let (noun, verbs) = (K::NOUN, K::VERBS);
    say(&format!("{noun} {task} is starting"));
    let again = format!("{noun} {task} goes on starting\nhint: see where it is with `instep {verbs} open {task}`");
    let _interrupt = SayOnInterrupt::new(format!("{again}, stop it with `instep {verbs} kill {task}`"));
    wait_until_ready::<K>(client, task)?;
    if common.json {
        return table::json(K::task(&get::<K>(client, task)?));
    }
    say_address::<K>(client, task);
    Ok(())
}

/// Prints where a browser finds one that has not failed.
pub(super) fn open<K: Kind>(client: &Client, task: &str) -> anyhow::Result<()> {
    let found = get::<K>(client, task)?;
    outcome::<K>(K::task(&found))?;
    say_address::<K>(client, &K::task(&found).id);
    Ok(())
}

fn say_address<K: Kind>(client: &Client, task: &str) {
    console::print(format!("{}/det/interactive/{task}/{}\n", client.address(), K::VERBS).as_bytes());
}

/// Prints the identifier of one that is not followed.
pub(super) fn print_identifier(task: &str) {
    console::print(format!("{task}\n").as_bytes());
}

fn print(task: &Command) {
    let mut fields = vec![
        ("Identifier", task.id.clone()),
        ("Description", task.description.clone()),
        ("State", shown::word(task.state.as_str())),
        ("Owner", task.username.clone()),
        ("Pool", task.resource_pool.clone()),
        ("Submitted", shown::time(task.start_time)),
        ("Job", task.job_id.clone()),
    ];
    if let Some(container) = &task.container {
        fields.push(("Agent", container.parent.clone()));
    }
    fields.push(("Why", task.reason.clone()));
    table::fields(&fields);
}

fn print_list(tasks: &[Command], none: &str, hint: &str) {
    let mut table = table::Table::new(&["ID", "DESCRIPTION", "STATE", "OWNER", "POOL", "SUBMITTED", "WHY"]);
    for task in tasks {
        table.row(vec![
            task.id.clone(),
            task.description.clone(),
            shown::word(task.state.as_str()),
            task.username.clone(),
            task.resource_pool.clone(),
            shown::time(task.start_time),
            task.reason.clone(),
        ]);
    }
    table.print(none, hint);
}

/// Says what somebody who started one should know.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        let text = match warning.as_str() {
            "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED" => {
                "it asks for more slots than the pool has now, and waits until there are enough"
            }
            other => other,
        };
        say(&format!("warning: {text}"));
    }
}

/// How one ended: an error, unless it succeeded.
pub(super) fn outcome<K: Kind>(task: &Command) -> anyhow::Result<()> {
    let why = &task.reason;
    // The master's sentence for the only success there is.
    if task.state == AllocationState::Terminated && !why.ends_with("exit code 0") {
        anyhow::bail!("{} {}: {why}", K::NOUN, task.id);
    }
    Ok(())
}
