//! The agent beside a master that `instep up` started: it lends this machine to it, and `instep down` ends both.
//!
//! It is a process of its own, `instep agent`, with its state beside the database, where it is found again.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instep_agent::agent;
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

/// Starts an agent for a master at an address, unless one runs or none is wanted. Says what it did.
pub(super) fn start(database: &Path, address: Option<&str>, slots: Option<u32>) -> anyhow::Result<()> {
    let state = state_folder(database);
    if slots == Some(0) || agent::running(&state).is_some() {
        return Ok(());
    }
    let Some(address) = address else { return Ok(()) };
    let log = log_path(database);
    let output = File::options().create(true).append(true).open(&log)?;
    let before = output.metadata()?.len();
    let mut child = command(database, address, slots)?
        .arg("--background")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let deadline = Instant::now() + START_DEADLINE;
    while agent::running(&state).is_none() {
        if child.try_wait()?.is_some() || Instant::now() > deadline {
            // The master serves all the same; who only tracks needs no agent.
            let said = super::background::read_from(&log, before);
            console::print_error(&format!("warning: no agent lends this machine's slots:\n{said}"));
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    console::print(format!("agent: lends this machine's slots (log: {})\n", log.display()).as_bytes());
    Ok(())
}

fn command(database: &Path, address: &str, slots: Option<u32>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["agent", "--stop-tasks", "--master", &reachable(address), "--state-folder"]);
    command.arg(state_folder(database));
    command.args(slots.map(|slots| format!("--slots={slots}")));
    if let Some(certificate) = own_certificate(database, address) {
        command.env("INSTEP_MASTER_CERT_FILE", certificate);
    }
    Ok(command)
}

/// The certificate that a master made for itself, and that nobody else vouches for; unless somebody said what to trust.
fn own_certificate(database: &Path, address: &str) -> Option<PathBuf> {
    let said =
        ["INSTEP_MASTER_CERT_FILE", "DET_MASTER_CERT_FILE"].into_iter().any(|name| std::env::var_os(name).is_some());
    let certificate = std::path::absolute(database.with_extension("cert.pem")).ok()?;
    (address.starts_with("https://") && !said && certificate.exists()).then_some(certificate)
}

/// A master that serves on every address is reached at this machine's own.
fn reachable(address: &str) -> String {
    address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
}

/// Ends the agent of a database and its tasks. Says whether there was one.
pub(super) fn stop(database: &Path) -> anyhow::Result<bool> {
    let state = state_folder(database);
    let Some(process) = agent::running(&state) else { return Ok(false) };
    if let Err(errno) = kill(Pid::from_raw(process), Signal::SIGTERM) {
        let what = format!("cannot stop the agent, pid {process}: {}", errno.desc());
        return Err(Hinted::new(what, "it may belong to another user").into());
    }
    let deadline = Instant::now() + END_DEADLINE;
    while agent::running(&state) == Some(process) {
        if Instant::now() > deadline {
            let what = format!("the agent, pid {process}, has not ended in {} s", END_DEADLINE.as_secs());
            return Err(Hinted::new(what, format!("see its log: {}", log_path(database).display())).into());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(true)
}

/// An agent in the foreground, ended when dropped.
pub(super) struct Beside(Child);

impl Beside {
    /// Starts one whose output is ours.
    pub(super) fn start(database: &Path, address: &str, slots: Option<u32>) -> anyhow::Result<Option<Beside>> {
        if slots == Some(0) {
            return Ok(None);
        }
        // Ctrl-C is for the master, which then ends this one.
        let child = command(database, address, slots)?.stdin(Stdio::null()).process_group(0).spawn()?;
        Ok(Some(Beside(child)))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // One that has ended already is as good.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_on_every_address_is_reached_at_our_own() {
        assert_eq!(reachable("http://0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(reachable("https://[::]:1"), "https://[::1]:1");
        assert_eq!(reachable("http://10.0.0.1:8080"), "http://10.0.0.1:8080");
    }
}
