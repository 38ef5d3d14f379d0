//! The group of one task: joined by its supervisor, ended and removed by its guardian or the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::limits::Bytes;
use super::{Controller, Version};

/// How long the end of killed processes is waited for; one may be stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);
/// A group whose use came so close to its limit has met it: what was left was too little for what was asked.
const CLOSE: u64 = 8 << 20;
const PROCESSES: &str = "cgroup.procs";

/// A task's group, by its folders: it is known to agent, guardian and supervisor, which share nothing but files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TaskGroup {
    pub version: Version,
    /// One for each controller; in version 2 all the same.
    pub folders: BTreeMap<Controller, PathBuf>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of memory for each slot of the agent, for the hint.
    pub memory_of_slot: Option<u64>,
}

impl TaskGroup {
    fn distinct(&self) -> BTreeSet<&Path> {
        self.folders.values().map(PathBuf::as_path).collect()
    }

    /// Puts this process into the group, and everything that it starts from now on.
    pub fn join(&self) -> io::Result<()> {
        self.distinct().into_iter().try_for_each(|folder| fs::write(folder.join(PROCESSES), "0"))
    }

    /// The processes in it.
    fn processes(&self) -> BTreeSet<i32> {
        let texts = self.distinct().into_iter().filter_map(|folder| fs::read_to_string(folder.join(PROCESSES)).ok());
        texts.flat_map(|text| read_processes(&text)).collect()
    }

    /// Kills everything in it, and does not wait. Gives how many processes there were.
    pub fn kill(&self) -> usize {
        if let Some(folder) = self.folders.get(&Controller::Pids) {
            // Nothing new is started from here on; without this a program that only starts others could outrun us.
            write_existing(&folder.join("pids.max"), "0");
        }
        let found = self.processes();
        // Linux before 5.14 has no such file.
        let at_once = self.version == Version::V2
            && self.distinct().into_iter().all(|folder| write_existing(&folder.join("cgroup.kill"), "1"));
        for process in found.iter().filter(|_| !at_once) {
            // One that has ended meanwhile is what is wanted.
            let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
        }
        found.len()
    }

    /// Kills everything in it, waits for that, and removes it. What does not end is left to whoever looks next.
    pub fn end(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.kill() > 0 && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        self.remove();
        while self.distinct().into_iter().any(Path::exists) && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            self.remove();
        }
    }

    /// Removes the group, unless something is in it.
    pub fn remove(&self) {
        for folder in self.distinct() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// Whether the system has killed processes of it for want of memory.
    pub fn out_of_memory(&self) -> Option<OutOfMemory> {
        let folder = self.folders.get(&Controller::Memory)?;
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let (killed, met) = match self.version {
            Version::V1 => {
                let most = read("memory.max_usage_in_bytes").trim().parse().unwrap_or(0);
                let met = self.memory.is_some_and(|limit| limit.saturating_sub(CLOSE) <= most);
                (counter(&read("memory.oom_control"), "oom_kill"), met)
            }
            Version::V2 => {
                let events = read("memory.events");
                (counter(&events, "oom_kill"), counter(&events, "oom") > 0)
            }
        };
        let limit = self.memory.filter(|_| met);
        (killed > 0).then_some(OutOfMemory { killed, limit, of_slot: self.memory_of_slot })
    }
}

/// Writes to a file that is there; `true` if that worked.
fn write_existing(file: &Path, value: &str) -> bool {
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(file)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .is_ok()
}

/// The number behind a word, in lines of words and numbers.
fn counter(text: &str, word: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

/// Numbers of processes, one to a line; those outside of our process namespace are shown as 0.
fn read_processes(text: &str) -> Vec<i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|process| *process > 1).collect()
}

/// That processes of a task were killed for want of memory. Displays as a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// How many.
    pub killed: u64,
    /// The task's limit, if that was met; else the machine had no more.
    pub limit: Option<u64>,
    /// What each slot has.
    pub of_slot: Option<u64>,
}

impl OutOfMemory {
    /// What to do next.
    pub fn hint(&self) -> String {
        match (self.limit, self.of_slot) {
            (Some(_), Some(each)) => format!(
                "use less memory (smaller batches, fewer data loader workers), ask for more slots ({} for each), or ask \
                 the administrator for another --task-memory of the agent",
                Bytes(each)
            ),
            _ => "all tasks of this machine together use more memory than it has; use less, or another machine".into(),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes = if self.killed == 1 { "1 process".to_owned() } else { format!("{} processes", self.killed) };
        match self.limit {
            Some(limit) => write!(formatter, "out of memory: {processes} killed at the task's {} limit", Bytes(limit)),
            None => write!(formatter, "out of memory: {processes} killed, the machine has no more memory for tasks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: Version, folder: &Path) -> TaskGroup {
        let folders = Controller::ALL.map(|controller| match version {
            Version::V1 => (controller, folder.join(controller.name())),
            Version::V2 => (controller, folder.join("one")),
        });
        folders.iter().for_each(|(_, folder)| fs::create_dir_all(folder).unwrap());
        TaskGroup { version, folders: folders.into(), memory: Some(1 << 30), memory_of_slot: Some(1 << 30) }
    }

    #[test]
    fn a_lack_of_memory_is_read_from_both_versions() {
        let cases = [
            (Version::V1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", true),
            (Version::V1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", false),
            (Version::V2, "memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\noom_group_kill 0\n", true),
            (Version::V2, "memory.events", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", false),
        ];
        for (version, file, text, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let group = group(version, folder.path());
            fs::write(group.folders[&Controller::Memory].join(file), text).unwrap();
            fs::write(group.folders[&Controller::Memory].join("memory.max_usage_in_bytes"), "1073741824\n").unwrap();
            let found = group.out_of_memory().map(|found| found.to_string());
            let sentence = "out of memory: 2 processes killed at the task's 1 GiB limit";
            assert_eq!(found.as_deref(), expected.then_some(sentence), "{text}");
        }
    }

    #[test]
    fn a_machine_without_memory_is_not_the_tasks_limit() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(Version::V2, folder.path());
        fs::write(folder.path().join("one/memory.events"), "oom 0\noom_kill 1\n").unwrap();
        let found = group.out_of_memory().unwrap();
        assert_eq!(found.limit, None);
        assert!(found.to_string().contains("the machine has no more") && found.hint().contains("all tasks"));
    }

    #[test]
    fn processes_are_read_and_never_everything_is_killed() {
        assert_eq!(read_processes("12\n0\n-1\n1\n\nx\n7\n"), [12, 7]);
    }

    #[test]
    fn an_end_stops_new_processes_first_and_is_done_at_once_where_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(Version::V2, folder.path());
        let one = folder.path().join("one");
        for file in ["cgroup.kill", "pids.max"] {
            fs::write(one.join(file), "").unwrap();
        }
        assert_eq!(group.kill(), 0);
        assert_eq!(fs::read_to_string(one.join("pids.max")).unwrap(), "0");
        assert_eq!(fs::read_to_string(one.join("cgroup.kill")).unwrap(), "1");
    }

    #[test]
    fn what_is_in_a_group_ends_and_the_group_goes() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(Version::V1, folder.path());
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let listed = group.folders[&Controller::Memory].join(PROCESSES);
        fs::write(&listed, format!("{}\n", child.id())).unwrap();
        assert_eq!(group.kill(), 1);
        assert!(!child.wait().unwrap().success());
        group.remove();
        assert!(listed.exists(), "a folder with something in it stays");
        // The real thing has files that go with their folder.
        fs::remove_file(&listed).unwrap();
        group.remove();
        assert!(group.distinct().into_iter().all(|folder| !folder.exists()));
    }
}
