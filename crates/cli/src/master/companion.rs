//! The agent beside a master that `instep up` started: it lends this machine to it, and `instep down` ends both.
//!
//! It is a process of its own, `instep agent`, with its state beside the database, where it is found again.

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instep_agent::agent::HAND_OVER;
use instep_agent::agent::lock::{self, Lent, Running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::console;
use crate::report::Hinted;

/// How long an agent may take to start.
const START_DEADLINE: Duration = Duration::from_secs(15);
/// How long it may take to end its tasks.
const END_DEADLINE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

fn state_folder(database: &Path) -> PathBuf {
    database.with_extension("agent")
}

fn log_path(database: &Path) -> PathBuf {
    database.with_extension("agent.log")
}

/// The agent beside a master.
#[derive(Debug)]
pub(super) struct Beside {
    agent: Running,
    log: PathBuf,
    /// What people should hear of it, if anything is new.
    pub news: Option<String>,
}

impl Beside {
    fn new(agent: Running, log: PathBuf, replaced: Option<Lent>, is_new: bool) -> Beside {
        let lent = agent.lends.map(|lent| lent.to_string()).unwrap_or_default();
        let instead = replaced.map(|lent| format!(" instead of {lent}")).unwrap_or_default();
        let news = if !agent.registered {
            Some(format!("started, but not connected to the master yet (log: {})", log.display()))
        } else {
            is_new.then(|| format!("offers {lent} of this machine{instead} (log: {})", log.display()))
        };
        Beside { agent, log, news }
    }

    /// For programs.
    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "pid": self.agent.pid,
            "connected": self.agent.registered,
            "slots": self.agent.lends.map(|lent| lent.slots),
            "gpus": self.agent.lends.map(|lent| lent.gpus),
            "log": self.log,
        })
    }
}

/// Sees to it that an agent lends what is wanted to a master at an address: `slots` of the processors, or whatever there
/// is. One that runs is replaced if it lends something else; its tasks go on. Gives the agent, if there is one. `again` is
/// the command that starts everything again.
pub(super) fn start(
    database: &Path,
    address: Option<&str>,
    slots: Option<u32>,
    again: &str,
) -> anyhow::Result<Option<Beside>> {
    let (state, log) = (state_folder(database), log_path(database));
    let mut replaced = None;
    if let Some(running) = lock::running(&state) {
        match slots.map(|slots| Lent { slots: slots as usize, gpus: false }) {
            Some(wanted) if running.lends != Some(wanted) => replace(database, &running, wanted, again)?,
            Some(_) | None => return Ok(Some(Beside::new(running, log, None, false))),
        }
        replaced = running.lends;
    }
    if slots == Some(0) {
        if let Some(lent) = replaced {
            console::print_error(&format!("stopped the agent, which offered {lent} of this machine\n"));
        }
        return Ok(None);
    }
    let Some(address) = address else { return Ok(None) };
    let output = File::options().create(true).append(true).open(&log)?;
    let before = output.metadata()?.len();
    let mut child = command(database, address, slots)?
        .arg("--background")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let deadline = Instant::now() + START_DEADLINE;
    let started = loop {
        let started = lock::running(&state);
        if let Some(started) = started.filter(|started| started.registered || Instant::now() > deadline) {
            break started;
        }
        if child.try_wait()?.is_some() || Instant::now() > deadline {
            // The master serves all the same; who only tracks needs no agent.
            let said = super::log_file::read_from(&log, before);
            console::print_error(&format!("warning: no agent offers this machine's slots:\n{said}"));
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    };
    note(address).into_iter().for_each(console::print_error);
    Ok(Some(Beside::new(started, log, replaced, true)))
}

/// Ends an agent that lends something else than is wanted, and leaves its tasks to the next one. Slots that tasks may be
/// using are not taken away.
fn replace(database: &Path, running: &Running, wanted: Lent, again: &str) -> anyhow::Result<()> {
    let grows = running.lends.is_some_and(|lent| lent.gpus == wanted.gpus && wanted.slots > lent.slots);
    let tasks = if grows { 0 } else { lock::tasks_at_work(&state_folder(database))? };
    if tasks > 0 {
        let now = running.lends.map(|lent| format!(" {lent}")).unwrap_or_default();
        let tasks = if tasks == 1 { "1 task is".to_owned() } else { format!("{tasks} tasks are") };
        let what = format!("{tasks} running, maybe on slots that --slots {} removes", wanted.slots);
        let hint = format!("wait for them, or stop them and let trials resume from their checkpoints: {again}");
        return Err(Hinted::new(format!("the agent offers{now}, and {what}"), hint).into());
    }
    end(database, running, HAND_OVER)
}

fn command(database: &Path, address: &str, slots: Option<u32>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["agent", "--stop-tasks", "--master", &reachable(address), "--state-folder"]);
    command.arg(state_folder(database));
    command.args(slots.map(|slots| format!("--slots={slots}")));
    command.args(rights(address, nix::unistd::geteuid().is_root()).unwrap_or_default());
    // An agent passes its environment on to tasks, which have no business with the master's database.
    command.env_remove("INSTEP_MASTER_DB").env_remove("PGPASSWORD");
    if let Some(certificate) = own_certificate(database, address) {
        command.env("INSTEP_MASTER_CERT_FILE", certificate);
    }
    Ok(command)
}

/// What an agent beside a master that serves this machine alone may do: the cluster is one person's, so all its users are
/// that person; tasks get that person's environment and need no limits. `None` for a master that others reach.
fn rights(address: &str, root: bool) -> Option<Vec<&'static str>> {
    if !is_loopback(address) {
        return None;
    }
    let mut words = vec!["--pass-environment=*", "--task-memory=none", "--task-processes=none"];
    words.push(if root { "--default-user=root" } else { "--shared-uid" });
    Some(words)
}

fn is_loopback(address: &str) -> bool {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What people should know of an agent beside a master that others reach.
fn note(address: &str) -> Option<&'static str> {
    if is_loopback(address) {
        return None;
    }
    Some(if nix::unistd::geteuid().is_root() {
        "note: other machines reach this master, so tasks of accounts without a Unix user run as nobody\n\
         hint: link accounts to Unix users, or start the agent yourself: `instep up --slots 0`, then `instep agent`\n"
    } else {
        "note: other machines reach this master, so the agent runs tasks of one account only, the first that has some\n\
         hint: to choose it, start the agent yourself: `instep up --slots 0`, then `instep agent --serve-user NAME`\n"
    })
}

/// The certificate that a master made for itself, and that nobody else vouches for; unless somebody said what to trust.
pub(super) fn own_certificate(database: &Path, address: &str) -> Option<PathBuf> {
    let said =
        ["INSTEP_MASTER_CERT_FILE", "DET_MASTER_CERT_FILE"].into_iter().any(|name| std::env::var_os(name).is_some());
    let certificate = std::path::absolute(database.with_extension("cert.pem")).ok()?;
    (address.starts_with("https://") && !said && certificate.exists()).then_some(certificate)
}

/// A master that serves on every address is reached at this machine's own.
pub(super) fn reachable(address: &str) -> String {
    address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
}

/// Ends the agent of a database and its tasks. Says whether there was one.
pub(super) fn stop(database: &Path) -> anyhow::Result<bool> {
    let Some(running) = lock::running(&state_folder(database)) else { return Ok(false) };
    end(database, &running, Signal::SIGTERM)?;
    Ok(true)
}

/// Sends a signal that ends an agent, and waits for the end.
fn end(database: &Path, running: &Running, signal: Signal) -> anyhow::Result<()> {
    let (state, process) = (state_folder(database), running.pid);
    if let Err(errno) = kill(Pid::from_raw(process), signal) {
        let what = format!("cannot stop the agent, pid {process}: {}", errno.desc());
        return Err(Hinted::new(what, "it may belong to another user").into());
    }
    let deadline = Instant::now() + END_DEADLINE;
    while lock::running(&state).is_some_and(|found| found.pid == process) {
        if Instant::now() > deadline {
            let what = format!("the agent, pid {process}, has not stopped after {} s", END_DEADLINE.as_secs());
            return Err(Hinted::new(what, format!("see its log: {}", log_path(database).display())).into());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// An agent in the foreground, ended when dropped.
pub(super) struct CompanionAgent(Child);

impl CompanionAgent {
    /// Starts one whose output is ours.
    pub(super) fn start(database: &Path, address: &str, slots: Option<u32>) -> anyhow::Result<Option<CompanionAgent>> {
        if slots == Some(0) {
            return Ok(None);
        }
        note(address).into_iter().for_each(console::print_error);
        // Ctrl-C is for the master, which then ends this one.
        let child = command(database, address, slots)?.stdin(Stdio::null()).process_group(0).spawn()?;
        Ok(Some(CompanionAgent(child)))
    }
}

impl CompanionAgent {
    /// Ends it, and leaves its tasks to the next one.
    pub(super) fn hand_over(mut self) {
        self.end(HAND_OVER);
    }

    fn end(&mut self, signal: Signal) {
        // One that has ended already is as good.
        if let Ok(None) = self.0.try_wait() {
            let _ = kill(Pid::from_raw(self.0.id().cast_signed()), signal);
            let _ = self.0.wait();
        }
    }
}

impl Drop for CompanionAgent {
    fn drop(&mut self) {
        self.end(Signal::SIGTERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_offered_by_an_agent_that_the_master_has_accepted() {
        let lends = Some(Lent { slots: 2, gpus: false });
        let beside = |registered, is_new| {
            let agent = Running { pid: 7, lends, registered };
            Beside::new(agent, "a.log".into(), Some(Lent { slots: 1, gpus: false }), is_new)
        };
        assert_eq!(beside(true, true).news.unwrap(), "offers 2 slots of this machine instead of 1 slot (log: a.log)");
        assert_eq!(beside(true, false).news, None);
        for is_new in [true, false] {
            let waiting = beside(false, is_new);
            assert!(waiting.news.as_ref().unwrap().contains("not connected to the master yet"), "{waiting:?}");
            let expected = serde_json::json!({"pid": 7, "connected": false, "slots": 2, "gpus": false, "log": "a.log"});
            assert_eq!(waiting.to_json(), expected);
        }
    }

    #[test]
    fn an_agent_gets_nothing_of_the_database_from_the_environment() {
        let command = command(Path::new("/data/a.db"), "http://127.0.0.1:8080", None).unwrap();
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert_eq!(removed, ["INSTEP_MASTER_DB", "PGPASSWORD"]);
    }

    #[test]
    fn a_master_on_every_address_is_reached_at_our_own() {
        assert_eq!(reachable("http://0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(reachable("https://[::]:1"), "https://[::1]:1");
        assert_eq!(reachable("http://10.0.0.1:8080"), "http://10.0.0.1:8080");
    }

    #[test]
    fn only_a_cluster_of_one_person_runs_tasks_with_that_persons_rights() {
        for address in ["http://127.0.0.1:8080", "https://[::1]:1", "http://localhost:80/x", "http://127.9.0.1:1"] {
            for (root, user) in [(true, "--default-user=root"), (false, "--shared-uid")] {
                let words = ["--pass-environment=*", "--task-memory=none", "--task-processes=none", user];
                assert_eq!(rights(address, root), Some(words.to_vec()), "{address}");
            }
        }
        for address in ["http://0.0.0.0:8080", "http://[::]:8080", "http://10.0.0.1:1", "http://127.0.0.1.evil:1", ""] {
            assert_eq!(rights(address, true), None, "{address}");
        }
    }
}
