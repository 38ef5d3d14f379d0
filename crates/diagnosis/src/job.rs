//! What the launcher leaves in a job's folder, and how a job is found.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instep_recorder::{Snapshot, folder};
use serde::{Deserialize, Serialize};

/// The launcher's own file.
const FILE: &str = "job.json";
/// How long after each other the launchers of a job end.
const ENDED_TOGETHER: Duration = Duration::from_secs(60);
/// No launcher writes a longer one.
const LONGEST: u64 = 16 << 20;

/// What a launcher knows of its part of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Job {
    /// `--rdzv-id`, or a random one.
    pub name: String,
    /// What runs, as people know it.
    pub program: String,
    pub host: String,
    /// Its ranks here, as they are now.
    pub workers: Vec<Worker>,
    /// The first that failed: the launcher has ended the others for it.
    #[serde(default)]
    pub failed: Option<u32>,
}

/// A rank as its launcher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Worker {
    /// Its number in the job.
    pub rank: u32,
    pub process: u32,
    /// When that started, in ticks since boot.
    pub started: u64,
}

impl Job {
    /// Leaves it in a job's folder; it appears complete or not at all.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let unfinished = folder.join("job.new");
        fs::write(&unfinished, serde_json::to_vec(self)?)?;
        fs::rename(unfinished, folder.join(FILE))
    }

    /// What a launcher left there; none without our launcher.
    pub fn read(folder: &Path) -> Option<Job> {
        let path = folder.join(FILE);
        fs::metadata(&path).ok().filter(|found| found.is_file() && found.len() <= LONGEST)?;
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }
}

/// The folders that somebody means: a folder, a process of a job, or a job's name. Without a word: all jobs that run.
pub fn find(base: &Path, meant: Option<&str>) -> Vec<PathBuf> {
    let all = folder::jobs(base);
    let Some(meant) = meant else { return all.into_iter().filter(|folder| is_running(folder)).collect() };
    let as_path = Path::new(meant);
    if meant.contains('/') && as_path.is_dir() {
        return if is_job(as_path) { vec![as_path.to_owned()] } else { Vec::new() };
    }
    if let Ok(process) = meant.parse::<u32>() {
        let found: Vec<PathBuf> = all.iter().filter(|folder| has_process(folder, process)).take(1).cloned().collect();
        if !found.is_empty() {
            return found;
        }
    }
    let named = |folder: &&PathBuf| {
        let own_name = folder.file_name().is_some_and(|name| name == meant);
        own_name || Job::read(folder).is_some_and(|job| job.name == meant) || names(folder).any(|name| name == meant)
    };
    // Of a job that was started several times, what runs counts; otherwise what ended last, on all of its nodes here.
    let named: Vec<PathBuf> = all.iter().filter(named).cloned().collect();
    let running: Vec<PathBuf> = named.iter().filter(|folder| is_running(folder)).cloned().collect();
    if !running.is_empty() {
        return running;
    }
    let changed = |folder: &PathBuf| fs::metadata(folder).and_then(|found| found.modified()).ok();
    let newest = named.first().and_then(changed);
    let together = |folder: &PathBuf| {
        let apart = newest.zip(changed(folder)).and_then(|(newest, changed)| newest.duration_since(changed).ok());
        apart.is_none_or(|apart| apart <= ENDED_TOGETHER)
    };
    named.into_iter().filter(together).collect()
}

/// Whether a launcher or a rank has left something there.
fn is_job(folder: &Path) -> bool {
    Job::read(folder).is_some() || !folder::records(folder).is_empty()
}

fn snapshots(folder: &Path) -> impl Iterator<Item = Snapshot> + use<> {
    folder::records(folder).into_iter().filter_map(|path| Snapshot::read(&path).ok())
}

fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    snapshots(folder).map(|snapshot| snapshot.identity.job).filter(|name| !name.is_empty())
}

/// Whether the launcher lives, or a rank does.
pub fn is_running(folder: &Path) -> bool {
    let alive = instep_recorder::process::is_alive;
    let ours = Job::read(folder).is_some() && folder::is_live(folder);
    ours || snapshots(folder).any(|one| alive(one.identity.process, one.identity.process_started))
}

fn has_process(folder: &Path, process: u32) -> bool {
    folder::owner_of(folder).is_some_and(|(owner, _)| owner == process)
        || Job::read(folder).is_some_and(|job| job.workers.iter().any(|worker| worker.process == process))
        || snapshots(folder).any(|one| one.identity.process == process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    #[test]
    fn a_job_is_found_by_name_process_and_folder() {
        let base = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let here = folder::create(base.path(), "mine", own).unwrap();
        let job = Job {
            name: "mine".to_owned(),
            workers: vec![Worker { rank: 0, process: 4_000_000, started: 1 }],
            ..Job::default()
        };
        job.write(&here).unwrap();
        assert_eq!(Job::read(&here), Some(job));
        let expected = vec![here.clone()];
        for meant in [None, Some("mine"), Some("4000000"), Some(own.to_string().as_str()), here.to_str()] {
            assert_eq!(find(base.path(), meant), expected, "{meant:?}");
        }
        assert!(find(base.path(), Some("other")).is_empty() && find(base.path(), Some("77")).is_empty());
        assert!(find(base.path(), base.path().to_str()).is_empty(), "a folder without a job");
        fs::write(here.join("owner"), "1 1\n").unwrap();
        assert!(find(base.path(), None).is_empty(), "it has ended");
        assert_eq!(find(base.path(), Some("mine")), expected, "and can be asked for");
    }

    proptest! {
        #[test]
        fn any_file_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(FILE), &bytes).unwrap();
            let _ = Job::read(folder.path());
        }
    }
}
