//! `instep up` and `instep down`: a master in the background, started and stopped by one word.
//!
//! There is no process-id file that could be stale: the master holds a lock beside its database and says there who it is
//! and where it serves ([`Presence`]). Whoever serves the database is what `down` stops.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use instep_client::{Client, Settings};
use instep_master::settings::Origin;
use instep_master::{Options, Presence};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::arguments::SettingsArguments;
use super::companion;
use super::log_file::read_from;
use super::running::Difference;
use super::serve::{End, serve};
use crate::console;
use crate::report::{Hinted, chain};

/// How long a master may take to start: a large database may have to be migrated first.
const START_DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
/// How long one of several masters may take to see or become a leader.
const LEADER_DEADLINE: Duration = Duration::from_secs(10);
const LEADER_PAUSE: Duration = Duration::from_millis(100);
/// A log that is larger is put aside when a master starts; one earlier log is kept.
const LOG_LIMIT: u64 = 16 << 20;

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    #[command(flatten)]
    settings: SettingsArguments,
    /// Stay in the foreground and log to the terminal
    #[arg(long, short = 'F')]
    foreground: bool,
    /// Print JSON instead of text
    #[arg(long, conflicts_with = "foreground")]
    json: bool,
    /// Offer this many CPU slots of this machine; 0 offers none [default: GPUs, else one slot per core]
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
}

impl UpArguments {
    /// The command line that means this.
    fn command(&self) -> String {
        let mut words = vec!["instep up".to_owned()];
        words.extend(self.settings.words().iter().map(|word| quoted(word)));
        words.extend(self.slots.map(|slots| format!("--slots {slots}")));
        words.extend(self.foreground.then(|| "--foreground".to_owned()));
        words.join(" ")
    }
}

#[derive(Debug, Args)]
pub(crate) struct DownArguments {
    #[command(flatten)]
    settings: SettingsArguments,
    /// Seconds to wait for the master to stop
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    timeout: u64,
}

/// Starts a master, unless one serves this database already.
pub(crate) fn up(arguments: &UpArguments) -> anyhow::Result<ExitCode> {
    let settings = arguments.settings.settings()?;
    let options = arguments.settings.options()?;
    let again = format!("{} && {}", down_command(&settings), arguments.command());
    if let Some(found) = find(&options.database)? {
        let presence = wait_for_address(&options.database, found)?;
        let what = format!("a master already serves this database, at {}", shown(&presence));
        let Difference { changed, unsaid } = Difference::of(&settings, &options.database, &presence);
        let again = match &unsaid[..] {
            [] => again,
            unsaid => format!("{again} (it also has {}: repeat what you want to keep)", unsaid.join(" ")),
        };
        if !changed.is_empty() {
            let what = format!("{what}, with other settings: {}", changed.join(", "));
            let second = match options.advertise {
                Some(_) => "; a second master on this machine needs another XDG_DATA_HOME, for its files",
                None => "",
            };
            return Err(Hinted::new(what, format!("to restart it with your settings: {again}{second}")).into());
        }
        if arguments.foreground {
            return Err(Hinted::new(what, format!("to restart it in the foreground: {again}")).into());
        }
        let told = Told { json: arguments.json, presence: &presence, options: &options };
        told.say(&told.served("already up"));
        let agent = companion::start(&options.database, agent_address(&options, &presence), arguments.slots, &again)?;
        told.end(true, agent.as_ref());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.foreground {
        return in_foreground(arguments, &options);
    }
    let log = log_path(&options.database);
    let (child, log_start) = start(&arguments.settings, &log)?;
    match wait_for_start(child, &options.database)? {
        Ok(presence) => {
            if let Some(why) = without_leader(&options, &presence) {
                let what = format!("a master runs at {}, and none leads: {why}", shown(&presence));
                let hint = format!(
                    "it tries again until one does, and `instep up` then starts the agent; its log is {}, and `{}` stops it",
                    log.display(),
                    down_command(&settings)
                );
                return Err(Hinted::new(what, hint).into());
            }
            let told = Told { json: arguments.json, presence: &presence, options: &options };
            told.say(&told.served("up"));
            told.say(&format!("log: {}\n", log.display()));
            let agent =
                companion::start(&options.database, agent_address(&options, &presence), arguments.slots, &again)?;
            told.end(false, agent.as_ref());
            told.say(&format!("stop it with: {}\n", down_command(&settings)));
            Ok(ExitCode::SUCCESS)
        }
        Err(code) => {
            // What it said is an error with a hint, like any of ours.
            console::print_error(&read_from(&log, log_start));
            Ok(ExitCode::from(code))
        }
    }
}

/// Serves in this process, with an agent beside it.
fn in_foreground(arguments: &UpArguments, options: &Options) -> anyhow::Result<ExitCode> {
    let mut beside = None;
    let end = serve(&arguments.settings, options, |address| {
        let address = options.advertise.as_deref().unwrap_or(address);
        match companion::CompanionAgent::start(&options.database, address, arguments.slots) {
            Ok(started) => beside = started,
            Err(error) => console::print_error(&format!("warning: no agent: {}\n", chain(error.as_ref()))),
        }
    })?;
    match (end, beside) {
        // The tasks are the next leader's.
        (End::SteppedDown, Some(beside)) => beside.hand_over(),
        (End::SteppedDown | End::InOrder, beside) => drop(beside),
    }
    end.follow()
}

/// Stops the master of this database with its agent, and waits for their end.
pub(crate) fn down(arguments: &DownArguments) -> anyhow::Result<ExitCode> {
    let (settings, options) = (arguments.settings.settings()?, arguments.settings.options()?);
    let named = matches!(settings.origin("db"), Some(Origin::Flag(_)));
    if named && options.postgres.is_none() && !options.database.exists() {
        let what = format!("there is no database {}", options.database.display());
        return Err(Hinted::new(what, "`instep down` without --db stops the master of the default database").into());
    }
    // First the agent, so that the master hears how its tasks end.
    if companion::stop(&options.database)? {
        console::print(b"stopped the agent and its tasks\n");
    }
    let Some(presence) = find(&options.database)? else {
        console::print(format!("no master serves {}\n", options.shown_database()).as_bytes());
        return Ok(ExitCode::SUCCESS);
    };
    if let Err(errno) = kill(Pid::from_raw(presence.pid), Signal::SIGTERM) {
        let what = format!("cannot stop the master, pid {}: {}", presence.pid, errno.desc());
        return Err(Hinted::new(what, "it may belong to another user").into());
    }
    let deadline = Instant::now() + Duration::from_secs(arguments.timeout);
    while find(&options.database)?.is_some_and(|found| found.pid == presence.pid) {
        if Instant::now() > deadline {
            let what = format!("the master, pid {}, has not stopped after {} s", presence.pid, arguments.timeout);
            return Err(
                Hinted::new(what, "wait longer with --timeout; `kill -9` loses nothing that was acknowledged").into()
            );
        }
        std::thread::sleep(PAUSE);
    }
    console::print(format!("stopped the master at {}\n", shown(&presence)).as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Where the agent beside a master finds it: of several, under the address at which other machines would look for the agent.
fn agent_address<'a>(options: &'a Options, presence: &'a Presence) -> Option<&'a str> {
    options.advertise.as_deref().or(presence.address.as_deref())
}

fn find(database: &Path) -> anyhow::Result<Option<Presence>> {
    Presence::find(database).map_err(|error| Hinted::new(chain(&error), instep_master::NO_FILES).into())
}

fn start(arguments: &SettingsArguments, log: &Path) -> anyhow::Result<(Child, u64)> {
    let failed = |error: std::io::Error| {
        Hinted::new(format!("cannot write the log {}: {error}", log.display()), instep_master::NO_FILES)
    };
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    if std::fs::metadata(log).is_ok_and(|found| found.len() > LOG_LIMIT) {
        std::fs::rename(log, log.with_extension("log.1")).map_err(failed)?;
    }
    let output = File::options().create(true).append(true).open(log).map_err(failed)?;
    let log_start = output.metadata().map_err(failed)?.len();
    let child = Command::new(std::env::current_exe()?)
        .args(["master", "--background"])
        .args(arguments.words())
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(failed)?)
        .stderr(output)
        .spawn()?;
    Ok((child, log_start))
}

/// Waits until the child serves, or has ended with some code.
fn wait_for_start(mut child: Child, database: &Path) -> anyhow::Result<Result<Presence, u8>> {
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        let ours = |found: &Presence| u32::try_from(found.pid) == Ok(child.id()) && found.address.is_some();
        if let Some(presence) = find(database)?.filter(ours) {
            return Ok(Ok(presence));
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Err(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
        }
        if Instant::now() > deadline {
            let what = format!("the master, pid {}, is not ready after {} s", child.id(), START_DEADLINE.as_secs());
            return Err(Hinted::new(what, format!("its log: {}", log_path(database).display())).into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until one of several masters answers requests, which it does when somebody leads; gives why nobody does, if so.
fn without_leader(options: &Options, presence: &Presence) -> Option<String> {
    options.advertise.as_ref()?;
    let address = companion::reachable(presence.address.as_deref()?);
    let named = ["INSTEP_MASTER_CERT_FILE", "DET_MASTER_CERT_FILE"].into_iter().find_map(std::env::var_os);
    let certificates = companion::own_certificate(&options.database, &address).or(named.map(PathBuf::from));
    let settings = Settings { certificates, timeout: Duration::ZERO, ..Settings::at(address.parse().ok()?) };
    let client = Client::new(settings).ok()?;
    let deadline = Instant::now() + LEADER_DEADLINE;
    loop {
        // One whose certificate is not trusted here is not judged.
        let (status, body) = client.health().ok()?;
        if status == 200 {
            return None;
        }
        if Instant::now() > deadline {
            let said = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
            return Some(said["message"].as_str().unwrap_or("see its log").to_owned());
        }
        std::thread::sleep(LEADER_PAUSE);
    }
}

/// One that was found may still be starting.
fn wait_for_address(database: &Path, mut presence: Presence) -> anyhow::Result<Presence> {
    let deadline = Instant::now() + START_DEADLINE;
    while presence.address.is_none() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
        match find(database)? {
            Some(found) => presence = found,
            None => {
                return Err(
                    Hinted::new("a master was starting, but stopped", "check its log and start it again").into()
                );
            }
        }
    }
    Ok(presence)
}

fn shown(presence: &Presence) -> String {
    let address = presence.address.as_deref().unwrap_or("an unknown address");
    format!("{address} (pid {})", presence.pid)
}

/// What `instep up` says of a master: line by line to people, at once to programs.
struct Told<'a> {
    json: bool,
    presence: &'a Presence,
    options: &'a Options,
}

impl Told<'_> {
    /// Where it serves.
    fn served(&self, how: &str) -> String {
        let line =
            format!("instep is {how} at {}\ndatabase: {}\n", shown(self.presence), self.options.shown_database());
        let tasks = self.presence.tasks.as_ref().map(|tasks| format!("pages of tasks: {tasks}\n"));
        line + &tasks.unwrap_or_default() + &self.trusting().unwrap_or_default()
    }

    /// What a shell needs to trust a master that nobody vouches for.
    fn trusting(&self) -> Option<String> {
        let address = self.presence.address.as_deref()?;
        let certificate = companion::own_certificate(&self.options.database, address)?;
        Some(format!(
            "connect with: export INSTEP_MASTER={address} INSTEP_MASTER_CERT_FILE={}\n",
            certificate.display()
        ))
    }

    /// Says something to people.
    fn say(&self, text: &str) {
        if !self.json {
            console::print(text.as_bytes());
        }
    }

    /// Says what became of the agent; to programs, everything.
    fn end(&self, already_up: bool, agent: Option<&companion::Beside>) {
        let news = agent.and_then(|agent| agent.news.as_ref());
        self.say(&news.map(|news| format!("agent: {news}\n")).unwrap_or_default());
        if self.json {
            let value = serde_json::json!({
                "address": self.presence.address,
                "tasks_address": self.presence.tasks,
                "pid": self.presence.pid,
                "already_up": already_up,
                "database": self.options.shown_database(),
                "log": log_path(&self.options.database),
                "agent": agent.map(companion::Beside::to_json),
            });
            console::print(format!("{value:#}\n").as_bytes());
        }
    }
}

/// What stops this master again: the same choice of a database.
fn down_command(settings: &instep_master::settings::Settings) -> String {
    match settings.origin("db") {
        Some(Origin::Flag(_)) => {
            let path = settings.rows().into_iter().find(|row| row.0 == "db").map(|row| row.1).unwrap_or_default();
            format!("instep down --db {}", quoted(&path))
        }
        _ => "instep down".to_owned(),
    }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_=:/.,@%+".contains(letter);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn log_path(database: &Path) -> PathBuf {
    database.with_extension("log")
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_command_line_that_is_proposed_can_be_pasted() {
        for (word, expected) in [
            ("--port=8085", "--port=8085"),
            ("--db=postgres://ann@db/x?schema=y", "'--db=postgres://ann@db/x?schema=y'"),
            ("--checkpoints=/my data", "'--checkpoints=/my data'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
