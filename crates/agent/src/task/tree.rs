//! Everything that a process has started, and its end.
//!
//! A task takes in the orphans among its descendants (it is a *subreaper*), so all that it ever started stays below it,
//! whatever sessions and groups they make. A process whose ancestors were all killed at once is found by the mark in its
//! environment, or by what it sees at `/run/determined`: OpenSSH's server, for one, writes over its environment.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::environment::MARK;
use super::view;

/// How long the end of killed processes is waited for; one may be stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// Kills all descendants of this process, and reaps them. Gives those that do not end.
pub fn end_descendants() -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let deadline = Instant::now() + PATIENCE;
    loop {
        reap();
        let found = descendants(own);
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        kill_all(&found);
        std::thread::sleep(PAUSE);
    }
}

/// Kills every process that carries the mark of a share or sees its folder, and does not wait. Gives how many there were.
pub fn kill_marked(resources: &str) -> usize {
    let found = marked(resources);
    kill_all(&found);
    found.len()
}

fn kill_all(processes: &[i32]) {
    for process in processes {
        // One that has ended meanwhile is what is wanted.
        let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
    }
}

/// Takes notice of children that have ended, ours and those we took in.
fn reap() {
    while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
}

/// The living descendants of a process.
fn descendants(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<(i32, bool)>> = BTreeMap::new();
    for process in processes() {
        if let Some((parent, alive)) = parent(process) {
            children.entry(parent).or_default().push((process, alive));
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(process) = next.pop() {
        for (child, alive) in children.remove(&process).unwrap_or_default() {
            next.push(child);
            found.extend(alive.then_some(child));
        }
    }
    found
}

fn marked(resources: &str) -> Vec<i32> {
    let mark = format!("{MARK}={resources}");
    let sees = |process: i32| {
        fs::read_to_string(format!("/proc/{process}/mountinfo")).is_ok_and(|table| has_folder_of(&table, resources))
    };
    let carries = |process: &i32| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()) || sees(*process)
    };
    processes().into_iter().filter(carries).filter(|process| parent(*process).is_some_and(|(_, alive)| alive)).collect()
}

/// Whether a table of mounts has the folder of a share at the path that is fixed in Determined's package.
fn has_folder_of(table: &str, resources: &str) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split(' ').skip(3);
        let (Some(source), Some(place)) = (fields.next(), fields.next()) else { return false };
        place == view::RUN && source.split('/').any(|part| part == resources)
    })
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The parent of a process, and whether it still runs.
fn parent(process: i32) -> Option<(i32, bool)> {
    read_parent(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Reads `pid (name) state ppid …`; the name may hold anything.
fn read_parent(stat: &str) -> Option<(i32, bool)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, !matches!(state, "Z" | "X")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    #[test]
    fn names_with_brackets_do_not_confuse() {
        assert_eq!(read_parent("12 (a b) S 7 12 12"), Some((7, true)));
        assert_eq!(read_parent("12 (a) Z 1 (x) Z 9 12"), Some((9, false)));
        assert_eq!(read_parent("nonsense"), None);
    }

    #[test]
    fn a_share_is_known_by_its_folder() {
        let table = "22 1 0:21 / /data rw shared:1 - ext4 /dev/a rw\n\
                     23 22 0:22 /state/shares/r-1/task/run /run/determined rw - ext4 /dev/a rw\nnonsense\n";
        assert!(has_folder_of(table, "r-1"));
        assert!(!has_folder_of(table, "r-") && !has_folder_of(table, "r-2"));
        assert!(!has_folder_of(&table.replace("/run/determined", "/mnt"), "r-1"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            let _ = (read_parent(&text), has_folder_of(&text, "r"));
        }
    }
}
