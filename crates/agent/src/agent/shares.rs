//! The shares of an agent: found in its folder, started, stopped, and told about.
//!
//! Everything is idempotent by share: an order that is heard twice, or after a restart of either side, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instep_api::link::{Ending, Exit, Report, Serves, Share, ShareState, Start};
use nix::unistd::geteuid;

use super::tenant::Tenant;
use crate::cgroup::groups::Groups;
use crate::cgroup::task_group::TaskGroup;
use crate::folder::{ShareFolder, StateFolder};
use crate::order::{Machine, StopOrder, TaskOrder};
use crate::task::tree;

/// How long the end of what a dead task left is waited for; a process may be stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long after the grace period of a stop a guardian may take, which by itself gives up after 90 s. Then a task of our own
/// user has removed the stop before the guardian saw it, or has stopped the guardian.
const OVERDUE: Duration = Duration::from_secs(100);

/// A share that the agent knows.
struct Known {
    share: Share,
    folder: ShareFolder,
    devices: Vec<u32>,
    /// What limits it, if something does.
    group: Option<TaskGroup>,
    /// The task, if this agent started it.
    child: Option<Child>,
    /// Since when nobody looks after it, and what it left is being ended.
    unattended: Option<Instant>,
    /// When a share that was told to end must have.
    overdue: Option<Instant>,
    exit: Option<Ending>,
    told_started: bool,
    told_exit: bool,
}

impl Known {
    fn new(share: Share, folder: ShareFolder, devices: Vec<u32>, group: Option<TaskGroup>) -> Known {
        Known {
            share,
            folder,
            devices,
            group,
            child: None,
            unattended: None,
            overdue: None,
            exit: None,
            told_started: false,
            told_exit: false,
        }
    }

    /// A stop is said; an earlier one that allows for less time holds.
    fn will_end_within(&mut self, grace_seconds: u32) {
        let end = Instant::now() + Duration::from_secs(grace_seconds.into()) + OVERDUE;
        self.overdue = Some(self.overdue.map_or(end, |known| known.min(end)));
    }

    /// Kills what should have ended long ago, with whoever looks after it.
    fn kill_if_overdue(&mut self, name: &str) {
        if self.overdue.is_none_or(|end| Instant::now() < end) {
            return;
        }
        tree::kill_marked(name);
        if let Some(group) = &self.group {
            group.kill();
        }
        if let Some(child) = &mut self.child {
            // One that has ended is what is wanted.
            let _ = child.kill();
        }
    }
}

/// All of them, by the identifier of their resources.
pub struct Shares {
    state: StateFolder,
    /// What tasks inherit.
    environment: Vec<(OsString, OsString)>,
    tenant: Tenant,
    groups: Groups,
    known: BTreeMap<String, Known>,
    /// Somebody else than the master ends everything here, tasks included: what fails from now on was not their fault.
    ended_from_outside: Option<String>,
    /// The exit code of the first that failed.
    failure: Option<u8>,
}

impl Shares {
    /// Finds what an earlier agent left.
    pub fn find(
        state: StateFolder,
        environment: Vec<(OsString, OsString)>,
        tenant: Tenant,
        groups: Groups,
    ) -> io::Result<Shares> {
        let mut known = BTreeMap::new();
        for entry in std::fs::read_dir(state.shares())?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".old-") || name.starts_with(".new-") {
                // Half made, or half removed: no share.
                let _ = ShareFolder::at(entry.path()).remove();
                continue;
            }
            let Some(folder) = state.share(&name) else { continue };
            // A folder that cannot be read is nobody's share any more; it is left for people to look at.
            let Ok(record) = folder.record() else { continue };
            let found = Known::new(record.share, folder, record.devices, record.cgroup);
            known.insert(name, found);
        }
        let mut shares = Shares { state, environment, tenant, groups, known, ended_from_outside: None, failure: None };
        shares.poll();
        let running = shares.known.iter().filter(|(_, known)| known.exit.is_none()).map(|(name, _)| name.clone());
        shares.groups.sweep(&shares.state, &running.collect::<BTreeSet<_>>());
        Ok(shares)
    }

    /// Removes what no task needs any more.
    pub fn close(&self) {
        self.groups.close();
    }

    /// How many have not ended.
    pub fn running(&self) -> usize {
        self.known.values().filter(|known| known.exit.is_none()).count()
    }

    /// The exit code of the first that failed since the agent was started; 0 if none did.
    pub fn failure(&self) -> u8 {
        self.failure.unwrap_or_default()
    }

    /// Whose tasks are taken.
    pub fn serves(&self) -> Serves {
        self.tenant.serves()
    }

    /// For the hello.
    pub fn states(&self) -> Vec<ShareState> {
        let state = |known: &Known| ShareState {
            share: known.share.clone(),
            devices: known.devices.clone(),
            exit: known.exit.clone(),
        };
        self.known.values().map(state).collect()
    }

    /// The hello has said everything that is known.
    pub fn all_told(&mut self) {
        for known in self.known.values_mut() {
            known.told_started = known.folder.pid().is_some();
            known.told_exit = known.exit.is_some();
        }
    }

    /// Looks what became of them; gives what the master has not heard yet.
    pub fn poll(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        for (name, known) in &mut self.known {
            if known.exit.is_none() {
                let outside = self.ended_from_outside.as_ref();
                known.exit = look_at(name, known).map(|ending| outside.map_or(ending.clone(), |why| lost(ending, why)));
                self.failure = self.failure.or(known.exit.as_ref().and_then(|ending| failure(&ending.exit)));
            }
            let share = || known.share.clone();
            match &known.exit {
                Some(exit) if !known.told_exit => {
                    reports.push(Report::Exited { share: share(), exit: exit.clone() });
                    known.told_exit = true;
                }
                None if !known.told_started && known.folder.pid().is_some() => {
                    reports.push(Report::Started { share: share() });
                    known.told_started = true;
                }
                _ => {}
            }
        }
        reports
    }

    /// Starts a share, unless it is known. Gives what is to be said about it at once.
    pub fn start(&mut self, start: Start, machine: &Machine) -> Option<Report> {
        let share = start.share.clone();
        if let Some(known) = self.known.get(&share.resources) {
            return known.exit.clone().map(|exit| Report::Exited { share, exit });
        }
        let refused = |why: String| Some(Report::Exited { share: share.clone(), exit: Exit::Failed { why }.into() });
        let Some(folder) = self.state.share(&share.resources) else {
            return refused(format!("`{}` cannot be the name of a share", share.resources));
        };
        let device = |id: &u32| machine.devices.iter().find(|device| device.id == *id).cloned();
        let Some(devices) = start.devices.iter().map(device).collect::<Option<Vec<_>>>() else {
            return refused(format!("agent {} does not have all of the slots {:?}", machine.agent, start.devices));
        };
        let owner = start.environment.get("DET_USER").map_or("", String::as_str);
        if let Err(why) = self.tenant.admit(&machine.agent, owner) {
            return refused(why);
        }
        let ids = start.devices.clone();
        let group = match self.groups.create(&share.resources, ids.len()) {
            Ok(group) => group,
            Err(error) => return refused(format!("the agent cannot limit the task: {error}")),
        };
        let order = TaskOrder { start, machine: Machine { devices, ..machine.clone() }, cgroup: group.clone() };
        if let Err(error) = folder.create(&order) {
            group.iter().for_each(TaskGroup::remove);
            return refused(format!("the agent cannot write to {}: {error}", folder.path().display()));
        }
        let started = self.spawn(&folder, machine);
        let mut known = Known::new(share.clone(), folder, ids, group);
        match started {
            Ok(child) => known.child = Some(child),
            Err(error) => {
                let why = format!("cannot start {}: {error}", machine.binary.display());
                let exit = Exit::Failed { why }.into();
                // What cannot be written down is at least remembered.
                let _ = known.folder.write_exit(&exit);
                known.exit = Some(exit);
            }
        }
        self.known.insert(share.resources, known);
        None
    }

    /// Starts the guardian of a share.
    fn spawn(&self, folder: &ShareFolder, machine: &Machine) -> io::Result<Child> {
        // It outlives the agent, so it must not hold what the agent writes to; what it complains of is kept beside it.
        let complaints = folder.complaints().map_or_else(|_| Stdio::null(), Stdio::from);
        Command::new(&machine.binary)
            .arg("task")
            .arg(folder.path())
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints)
            .spawn()
    }

    /// Asks a share to end. One that is not known is lost.
    pub fn stop(&mut self, share: &Share, grace_seconds: u32, why: &str) -> Option<Report> {
        let Some(known) = self.known.get_mut(&share.resources) else {
            let why = "the agent does not know it".to_owned();
            return Some(Report::Exited { share: share.clone(), exit: Exit::Lost { why }.into() });
        };
        if let Some(exit) = known.exit.clone() {
            return Some(Report::Exited { share: share.clone(), exit });
        }
        let grace_seconds = known.folder.stop().map_or(grace_seconds, |before| before.grace_seconds.min(grace_seconds));
        known.will_end_within(grace_seconds);
        // If it cannot be written, the share is ended without it in the end.
        let _ = known.folder.write_stop(&StopOrder { grace_seconds, why: why.to_owned(), lost: false });
        None
    }

    /// Somebody else ends everything here, and says so to tasks as to us.
    pub fn end_from_outside(&mut self, why: &str) {
        self.ended_from_outside.get_or_insert_with(|| why.to_owned());
    }

    /// Asks all to end, on our own account.
    pub fn stop_all(&mut self, grace_seconds: u32, why: &str) {
        for known in self.known.values_mut().filter(|known| known.exit.is_none() && known.folder.stop().is_none()) {
            known.will_end_within(grace_seconds);
            let _ = known.folder.write_stop(&StopOrder { grace_seconds, why: why.to_owned(), lost: true });
        }
    }

    /// Removes a share that has ended.
    pub fn forget(&mut self, share: &Share) {
        let ended = self.known.get(&share.resources).is_some_and(|known| known.exit.is_some());
        if ended && let Some(known) = self.known.remove(&share.resources) {
            // What is left is removed when the next agent starts.
            let _ = known.folder.remove();
            known.group.iter().for_each(TaskGroup::remove);
        }
    }
}

/// The exit code that stands for an end; `None` for one that is no failure, such as one on the master's word.
fn failure(exit: &Exit) -> Option<u8> {
    match exit {
        Exit::Code { code: 0, .. } | Exit::Killed => None,
        Exit::Code { code, .. } => Some(u8::try_from(*code).unwrap_or(1)),
        Exit::Failed { .. } | Exit::Lost { .. } => Some(1),
    }
}

/// A failure that has a reason outside of the task.
fn lost(ending: Ending, why: &str) -> Ending {
    match ending.exit {
        Exit::Code { code, .. } if code != 0 => Ending { exit: Exit::Lost { why: why.to_owned() }, ..ending },
        Exit::Code { .. } | Exit::Failed { .. } | Exit::Killed | Exit::Lost { .. } => ending,
    }
}

/// Whether a share has ended, and how. Its end is the end of the processes that look after it; a file, which the task may
/// have written, only says how.
fn look_at(name: &str, known: &mut Known) -> Option<Ending> {
    let child_runs = known.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
    if child_runs || known.folder.is_looked_after() {
        known.kill_if_overdue(name);
        return None;
    }
    let since = *known.unattended.get_or_insert_with(Instant::now);
    let exit = known.folder.exit();
    // A guardian of root has seen to the end of everything, and none but root can have written its word.
    let complete = exit.is_some() && geteuid().is_root();
    let left = if complete { 0 } else { tree::kill_marked(name) + known.group.as_ref().map_or(0, TaskGroup::kill) };
    if left > 0 && since.elapsed() < PATIENCE {
        return None;
    }
    known.group.iter().for_each(TaskGroup::remove);
    if exit.is_some() {
        return exit;
    }
    let why = match known.folder.claim() {
        Ok(true) => "the agent ended before the task was started",
        _ => "the task and its supervisor were killed",
    };
    let exit = known.folder.stop().map_or_else(|| Exit::Lost { why: why.to_owned() }, |stop| stop.exit()).into();
    let _ = known.folder.write_exit(&exit);
    Some(exit)
}
