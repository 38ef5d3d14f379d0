//! The agent's side: a group for all its tasks, and in it one for each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hierarchy::Hierarchy;
use super::limits::{Budget, Limits, settings};
use super::task_group::TaskGroup;
use super::{Controller, Version};
use crate::folder::{StateFolder, read_bounded};

/// Groups that begin so are an agent's.
const PREFIX: &str = "instep-";
/// The group of the agent itself, in version 2.
const AGENT: &str = "instep-agent";
/// Enables a controller for the groups in a group.
const SUBTREE: &str = "cgroup.subtree_control";
/// The file of an agent's state that names its groups.
const RECORD: &str = "cgroups";
/// Bytes of the file that names the groups of the agent before.
const LONGEST_RECORD: u64 = 64 << 10;
const HINT: &str = "run the agent as root where they are mounted, or as a systemd service with Delegate=yes and DelegateSubgroup=instep-agent; \
                    `--task-memory none --task-processes none` turns limits off";

/// What is known of the machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// `/proc/self/mountinfo`
    pub mountinfo: String,
    /// `/proc/self/cgroup`
    pub membership: String,
    /// Bytes of memory.
    pub memory: u64,
}

impl Machine {
    /// This one.
    pub fn this() -> io::Result<Machine> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
        let kibibytes: u64 = total.and_then(|text| text.parse().ok()).unwrap_or(0);
        let read = |name: &str| fs::read_to_string(Path::new("/proc/self").join(name));
        Ok(Machine { mountinfo: read("mountinfo")?, membership: read("cgroup")?, memory: kibibytes * 1024 })
    }
}

/// The groups of an agent, or none.
#[derive(Debug, Default)]
pub struct Groups(Option<Base>);

/// What the group of all tasks is made from.
#[derive(Debug)]
struct Base {
    common: Common,
    budget: Budget,
    /// Bytes that the agent's own group may use.
    memory: u64,
    offered: usize,
}

/// The folders of the group of all tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Common {
    version: Version,
    folders: BTreeMap<Controller, PathBuf>,
}

impl Groups {
    /// Finds out whether tasks can have groups here; says in words what cannot be limited.
    pub fn prepare(
        machine: io::Result<Machine>,
        state: &StateFolder,
        name: &str,
        budget: Budget,
        offered: usize,
    ) -> (Groups, Option<String>) {
        if budget.is_unlimited() {
            return (Groups(None), None);
        }
        match machine.and_then(|machine| Base::make(&machine, state, name, budget, offered)) {
            Ok(base) => {
                let has = |controller: &Controller| base.common.folders.contains_key(controller);
                let missing: Vec<Controller> = Controller::ALL.into_iter().filter(|one| !has(one)).collect();
                let said =
                    (!missing.is_empty()).then(|| without(&missing, "this system offers no control groups for it"));
                (Groups(Some(base)), said)
            }
            Err(error) => (Groups(None), Some(without(&Controller::ALL, &error.to_string()))),
        }
    }

    /// Makes the group of a task; `None` where there are none.
    pub fn create(&self, share: &str, slots: usize) -> io::Result<Option<TaskGroup>> {
        self.0.as_ref().map(|base| base.create(share, slots)).transpose()
    }

    /// Ends and removes the groups of all tasks but these, also those that an earlier agent made elsewhere.
    pub fn sweep(&self, state: &StateFolder, running: &BTreeSet<String>) {
        let path = state.path().join(RECORD);
        let before = read_bounded(&path, LONGEST_RECORD).ok();
        let before: Option<Common> = before.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let now = self.0.as_ref().map(|base| &base.common);
        if let Some(before) = before.filter(|before| Some(before) != now && before.is_ours()) {
            before.sweep(running);
            // One in which a task still runs stays.
            before.remove();
        }
        if let Some(common) = now {
            common.sweep(running);
            // Without it a later agent in another group would not find what this one left.
            let _ = serde_json::to_vec(common).map(|record| fs::write(&path, record));
        }
    }

    /// Removes the common group, unless tasks are in it.
    pub fn close(&self) {
        self.0.iter().for_each(|base| base.common.remove());
    }
}

fn without(controllers: &[Controller], why: &str) -> String {
    let limited: Vec<&str> = controllers.iter().map(|controller| controller.limits()).collect();
    format!("tasks run here without limits of {}: {why}\nhint: {HINT}", limited.join(", "))
}

impl Common {
    /// Whether an agent can have made it: the record of an agent without root can be written by its tasks.
    fn is_ours(&self) -> bool {
        let ours = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
        };
        self.folders.values().all(ours)
    }

    fn of_share(&self, share: &str) -> BTreeMap<Controller, PathBuf> {
        self.folders.iter().map(|(controller, folder)| (*controller, folder.join(share))).collect()
    }

    /// Ends the groups in it, but for some.
    fn sweep(&self, running: &BTreeSet<String>) {
        let entries = self.folders.values().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names: BTreeSet<String> = folders
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| !running.contains(name))
            .collect();
        for name in names {
            let group =
                TaskGroup { version: self.version, folders: self.of_share(&name), memory: None, memory_of_slot: None };
            group.end();
        }
    }

    fn remove(&self) {
        for folder in self.folders.values() {
            let _ = fs::remove_dir(folder);
        }
    }
}

impl Base {
    fn make(machine: &Machine, state: &StateFolder, name: &str, budget: Budget, offered: usize) -> io::Result<Base> {
        let hierarchy = Hierarchy::locate(&machine.mountinfo, &machine.membership)
            .ok_or_else(|| io::Error::other("no control groups are mounted here, at /sys/fs/cgroup"))?;
        let parents = parents(&hierarchy)?;
        let memory = memory_limits(&hierarchy, &parents).into_iter().fold(machine.memory, u64::min);
        let own_name = format!("{PREFIX}{name}-{:08x}", hash(&state.path().to_string_lossy()));
        let folders = parents.into_iter().map(|(controller, parent)| (controller, parent.join(&own_name))).collect();
        let base = Base { common: Common { version: hierarchy.version, folders }, budget, memory, offered };
        // What cannot be made for a task is better known now than when the first one comes.
        let probe = base.establish().and_then(|()| base.create(&format!(".probe-{}", std::process::id()), 0));
        probe.inspect_err(|_| base.common.remove())?.remove();
        Ok(base)
    }

    /// Makes the common group, or gives it the limits of today.
    fn establish(&self) -> io::Result<()> {
        let Common { version, folders } = &self.common;
        make_group(*version, folders, &self.budget.of_all(self.memory, self.offered))?;
        match (version, folders.values().next()) {
            (Version::V2, Some(folder)) => enable(folder, folders.keys()),
            (Version::V1, _) | (_, None) => Ok(()),
        }
    }

    fn create(&self, share: &str, slots: usize) -> io::Result<TaskGroup> {
        let Common { version, folders } = &self.common;
        if folders.values().any(|folder| !folder.is_dir()) {
            self.establish()?;
        }
        let limits = self.budget.of_task(self.memory, self.offered, slots);
        let memory = limits.memory.filter(|_| folders.contains_key(&Controller::Memory));
        let memory_of_slot = self.budget.of_task(self.memory, self.offered, 1).memory;
        let group = TaskGroup { version: *version, folders: self.common.of_share(share), memory, memory_of_slot };
        make_group(*version, &group.folders, &limits).inspect_err(|_| group.remove())?;
        Ok(group)
    }
}

/// Makes folders, and writes the limits into them.
fn make_group(version: Version, folders: &BTreeMap<Controller, PathBuf>, limits: &Limits) -> io::Result<()> {
    for folder in folders.values() {
        match fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|error| named("cannot make the control group", folder, &error))?,
        }
    }
    for setting in settings(version, limits) {
        let Some(folder) = folders.get(&setting.controller) else { continue };
        let file = folder.join(setting.file);
        if setting.optional && !file.exists() {
            continue;
        }
        write(&file, &setting.value)?;
    }
    Ok(())
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value).map_err(|error| named(&format!("cannot write {value} to"), file, &error))
}

fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// In which groups the agent makes its own.
fn parents(hierarchy: &Hierarchy) -> io::Result<BTreeMap<Controller, PathBuf>> {
    match (hierarchy.version, hierarchy.own.values().next()) {
        (Version::V1, _) | (_, None) => Ok(hierarchy.own.clone()),
        (Version::V2, Some(own)) => {
            let parent = match own.parent() {
                Some(parent) if own.ends_with(AGENT) => parent,
                _ => own,
            };
            let offered = fs::read_to_string(parent.join("cgroup.controllers"))
                .map_err(|error| named("cannot read", &parent.join("cgroup.controllers"), &error))?;
            let has = |controller: &Controller| offered.split_whitespace().any(|name| name == controller.name());
            let found: BTreeMap<Controller, PathBuf> =
                Controller::ALL.into_iter().filter(has).map(|controller| (controller, parent.to_owned())).collect();
            if found.is_empty() {
                return Err(io::Error::other(format!("{} has no controllers to give on", parent.display())));
            }
            if enable(parent, found.keys()).is_err() {
                step_aside(parent, own, &found)?;
            }
            Ok(found)
        }
    }
}

/// Lets the groups in a group be limited.
fn enable<'a>(folder: &Path, controllers: impl Iterator<Item = &'a Controller>) -> io::Result<()> {
    let file = folder.join(SUBTREE);
    let enabled = fs::read_to_string(&file).unwrap_or_default();
    let missing: Vec<String> = controllers
        .filter(|controller| !enabled.split_whitespace().any(|name| name == controller.name()))
        .map(|controller| format!("+{}", controller.name()))
        .collect();
    if missing.is_empty() { Ok(()) } else { write(&file, &missing.join(" ")) }
}

/// Moves the agent into a group of its own, since a group that holds processes cannot limit the groups in it. Where others
/// are in the way, it comes back.
fn step_aside(parent: &Path, own: &Path, controllers: &BTreeMap<Controller, PathBuf>) -> io::Result<()> {
    let aside = parent.join(AGENT);
    let moved =
        own != aside && fs::create_dir_all(&aside).and_then(|()| fs::write(aside.join("cgroup.procs"), "0")).is_ok();
    enable(parent, controllers.keys()).map_err(|error| {
        if moved {
            let _ = fs::write(own.join("cgroup.procs"), "0");
            let _ = fs::remove_dir(&aside);
        }
        io::Error::new(error.kind(), format!("{error} (other processes than the agent are in this group)"))
    })
}

/// The limits of memory that hold for the agent itself.
fn memory_limits(hierarchy: &Hierarchy, parents: &BTreeMap<Controller, PathBuf>) -> Vec<u64> {
    let Some(folder) = parents.get(&Controller::Memory) else { return Vec::new() };
    let number = |text: String| text.trim().parse().ok();
    match (hierarchy.version, &hierarchy.top) {
        (Version::V1, _) | (_, None) => {
            let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let limit = stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "));
            limit.and_then(|text| text.parse().ok()).into_iter().collect()
        }
        (Version::V2, Some(top)) => folder
            .ancestors()
            .take_while(|folder| folder.starts_with(top))
            .filter_map(|folder| fs::read_to_string(folder.join("memory.max")).ok().and_then(number))
            .collect(),
    }
}

/// FNV-1a: tells the state folders of agents with one name apart.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A tree of version 1 or 2 in a folder, as if the system had made it, with this process in the group `own`.
    fn machine(version: Version, folder: &Path) -> Machine {
        let at = folder.display();
        let (mountinfo, membership) = match version {
            Version::V1 => {
                let mount = |name: &str| format!("1 0 0:1 / {at}/{name} rw - cgroup cgroup rw,{name}\n");
                let names = ["memory", "pids", "cpu"];
                names.iter().for_each(|name| fs::create_dir_all(folder.join(name).join("own")).unwrap());
                (names.map(mount).concat(), names.map(|name| format!("3:{name}:/own\n")).concat())
            }
            Version::V2 => {
                fs::create_dir_all(folder.join("own")).unwrap();
                fs::write(folder.join("own/cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
                fs::write(folder.join("own").join(SUBTREE), "cpu\n").unwrap();
                (format!("1 0 0:1 / {at} rw - cgroup2 cgroup2 rw\n"), "0::/own\n".to_owned())
            }
        };
        Machine { mountinfo, membership, memory: 64 * GIB }
    }

    fn budget() -> Budget {
        Budget { memory: "50%".parse().unwrap(), processes: "64".parse().unwrap() }
    }

    /// The group of a task with 2 of 8 slots, and what was said about it.
    fn made(version: Version, folder: &Path) -> (Groups, TaskGroup) {
        let state = StateFolder::at(folder.join("state"));
        state.prepare().unwrap();
        let machine = machine(version, folder);
        let (groups, said) = Groups::prepare(Ok(machine), &state, "one", budget(), 8);
        assert_eq!(said, None);
        let group = groups.create("share", 2).unwrap().unwrap();
        (groups, group)
    }

    fn content(group: &TaskGroup, controller: Controller, file: &str) -> String {
        fs::read_to_string(group.folders[&controller].join(file)).unwrap()
    }

    #[test]
    fn a_task_gets_its_part_in_version_1() {
        let folder = tempfile::tempdir().unwrap();
        let (_, group) = made(Version::V1, folder.path());
        assert_eq!(content(&group, Controller::Memory, "memory.limit_in_bytes"), (8 * GIB).to_string());
        assert_eq!(content(&group, Controller::Pids, "pids.max"), "128");
        assert_eq!(content(&group, Controller::Cpu, "cpu.shares"), "2048");
        let all = group.folders[&Controller::Memory].parent().unwrap();
        assert_eq!(fs::read_to_string(all.join("memory.limit_in_bytes")).unwrap(), (32 * GIB).to_string());
        assert!(all.starts_with(folder.path().join("memory/own")), "below the agent's own group");
    }

    #[test]
    fn a_task_gets_its_part_in_version_2() {
        let folder = tempfile::tempdir().unwrap();
        let (_, group) = made(Version::V2, folder.path());
        assert_eq!(content(&group, Controller::Memory, "memory.max"), (8 * GIB).to_string());
        assert_eq!(content(&group, Controller::Pids, "pids.max"), "128");
        assert_eq!(content(&group, Controller::Cpu, "cpu.weight"), "200");
        let own = folder.path().join("own");
        assert_eq!(
            fs::read_to_string(own.join(SUBTREE)).unwrap(),
            "+memory +pids",
            "what was enabled already is not named"
        );
        let all = group.folders[&Controller::Memory].parent().unwrap();
        assert_eq!(fs::read_to_string(all.join(SUBTREE)).unwrap(), "+memory +pids +cpu");
    }

    #[test]
    fn a_limit_of_the_agents_own_group_is_what_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = machine(Version::V2, folder.path());
        fs::write(folder.path().join("own/memory.max"), (16 * GIB).to_string()).unwrap();
        machine.membership = "0::/own/instep-agent\n".to_owned();
        let state = StateFolder::at(folder.path().join("state"));
        let (groups, said) = Groups::prepare(Ok(machine), &state, "one", budget(), 2);
        assert_eq!(said, None);
        assert_eq!(groups.create("share", 1).unwrap().unwrap().memory, Some(4 * GIB));
    }

    #[test]
    fn what_cannot_be_limited_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::at(folder.path().join("state"));
        let prepare = |machine| Groups::prepare(machine, &state, "one", budget(), 2);
        let nothing = Machine { mountinfo: String::new(), membership: String::new(), memory: GIB };
        let (groups, said) = prepare(Ok(nothing));
        assert_eq!(groups.create("share", 1).unwrap(), None);
        let said = said.unwrap();
        assert!(
            said.starts_with("tasks run here without limits of memory, processes, CPU: ") && said.contains("hint: ")
        );
        let mut machine = machine(Version::V1, folder.path());
        machine.membership = "3:memory:/own\n".to_owned();
        let (groups, said) = prepare(Ok(machine.clone()));
        assert!(said.unwrap().starts_with("tasks run here without limits of processes, CPU: "));
        assert!(groups.create("share", 1).unwrap().is_some());
        machine.membership = "3:memory:/gone\n".to_owned();
        assert!(prepare(Ok(machine)).1.unwrap().contains("cannot make the control group"));
    }

    #[test]
    fn what_a_killed_agent_left_is_swept_but_not_what_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (groups, group) = made(Version::V1, folder.path());
        let state = StateFolder::at(folder.path().join("state"));
        let running = BTreeSet::from(["other".to_owned()]);
        let other = groups.create("other", 1).unwrap().unwrap();
        for one in [&group, &other] {
            // The real thing has files that go with their folder.
            for folder in one.folders.values() {
                fs::read_dir(folder).unwrap().flatten().for_each(|file| fs::remove_file(file.path()).unwrap());
            }
        }
        fs::write(state.path().join(RECORD), "[\"/etc\"]").unwrap();
        groups.sweep(&state, &running);
        assert!(!group.folders[&Controller::Memory].exists());
        assert!(other.folders[&Controller::Memory].exists());
        let record: Common = serde_json::from_slice(&fs::read(state.path().join(RECORD)).unwrap()).unwrap();
        assert_eq!(record, groups.0.unwrap().common, "for the next agent");
    }
}
