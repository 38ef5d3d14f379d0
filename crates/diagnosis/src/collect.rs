//! Evidence from the machine: records, processes, stacks. Everything here has a deadline.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instep_recorder::{Snapshot, folder, process, stack_request};

use crate::dump;
use crate::evidence::{Condition, Evidence, Stacks};
use crate::job::Job;
use crate::stacks;

/// How long a process may take to say what it does: a second to get the interpreter, and then some.
const ANSWER_WITHIN: Duration = Duration::from_millis(2500);
/// How often those without records are looked at, and the time between: ranks that wait for each other do so all the time.
const READ_ATTEMPTS: usize = 3;
const READ_PAUSE: Duration = Duration::from_millis(500);
/// A script that is longer is not looked into.
const LONGEST_SCRIPT: u64 = 4 << 20;
/// Characters of a line that are shown.
const LONGEST_LINE: usize = 100;

/// A rank, and where its records are.
struct Collected {
    evidence: Evidence,
    records: Option<PathBuf>,
    /// The launcher started this process itself.
    listed: bool,
    /// Of its job.
    folder: PathBuf,
}

/// What is known of all ranks in these folders; without stacks nobody is asked anything.
pub fn collect(folders: &[PathBuf], with_stacks: bool) -> Vec<Evidence> {
    let mut found: BTreeMap<(Option<u32>, u32), Collected> = BTreeMap::new();
    for folder in folders {
        for one in in_folder(folder) {
            found.insert((one.evidence.rank, one.evidence.process), one);
        }
    }
    let mut found: Vec<Collected> = found.into_values().collect();
    newest_of_each(&mut found);
    if with_stacks {
        request_stacks(&mut found);
    }
    found.into_iter().map(|one| one.evidence).collect()
}

fn in_folder(folder: &Path) -> Vec<Collected> {
    let job = Job::read(folder).unwrap_or_default();
    let readable = folder::records(folder).into_iter().filter_map(|path| Some((Snapshot::read(&path).ok()?, path)));
    // Those that the launcher ended are not dead by themselves.
    let seen = |rank: Option<u32>, condition: Condition| match condition {
        Condition::Dead if job.failed.is_some() && job.failed != rank => Condition::Ended,
        other => other,
    };
    let mut found: Vec<Collected> = readable
        .map(|(snapshot, path)| {
            let identity = &snapshot.identity;
            let condition = seen(identity.rank, condition(identity.process, identity.process_started, snapshot.ended));
            let (rank, host, process) = (identity.rank, identity.host.clone(), identity.process);
            let stacks = Stacks::Unknown("nobody asked".to_owned());
            let records = Some(snapshot);
            let waits_in = process::waits_in(process);
            let evidence = Evidence { rank, host, process, condition, waits_in, records, stacks, still: false };
            let listed = job.workers.iter().any(|worker| worker.process == process);
            Collected { evidence, records: Some(path), listed, folder: folder.to_owned() }
        })
        .collect();
    for worker in &job.workers {
        let known =
            found.iter().any(|one| one.evidence.process == worker.process || one.evidence.rank == Some(worker.rank));
        if !known {
            let evidence = Evidence {
                rank: Some(worker.rank),
                host: job.host.clone(),
                process: worker.process,
                condition: seen(Some(worker.rank), condition(worker.process, worker.started, false)),
                waits_in: process::waits_in(worker.process),
                records: None,
                stacks: Stacks::Unknown("nobody asked".to_owned()),
                still: false,
            };
            found.push(Collected { evidence, records: None, listed: true, folder: folder.to_owned() });
        }
    }
    found
}

/// A rank that was started again counts as it is now. One that starts a job of its own is not what it starts.
fn newest_of_each(found: &mut Vec<Collected>) {
    let age = |one: &Collected| {
        one.evidence.records.as_ref().map_or((0, 0), |records| (records.identity.incarnation, records.made.0))
    };
    found.sort_by_key(|one| (one.evidence.rank, !one.listed, std::cmp::Reverse(age(one))));
    found.dedup_by(|one, before| one.evidence.rank.is_some() && one.evidence.rank == before.evidence.rank);
}

fn condition(process: u32, started: u64, ended: bool) -> Condition {
    match process::stat(process).filter(|stat| stat.started == started) {
        Some(stat) => match stat.state {
            'T' | 't' => Condition::Stopped,
            'Z' | 'X' if ended => Condition::Ended,
            'Z' | 'X' => Condition::Dead,
            state => Condition::Alive(state),
        },
        None if ended => Condition::Ended,
        None => Condition::Dead,
    }
}

/// Asks everybody at once, then waits for all of them together.
fn request_stacks(found: &mut [Collected]) {
    let deadline = Instant::now() + ANSWER_WITHIN;
    let requests: Vec<Option<u64>> = found
        .iter()
        .map(|one| match (&one.records, one.evidence.condition) {
            (Some(path), Condition::Alive(_)) => stack_request::request(path).ok(),
            _ => None,
        })
        .collect();
    let outside_by = deadline + ANSWER_WITHIN;
    request_unrecorded_stacks(found);
    for (one, request) in found.iter_mut().zip(requests) {
        if one.evidence.records.is_none() && one.evidence.stacks.main().is_some() {
            continue;
        }
        let answer =
            one.records.as_ref().zip(request).map(|(path, number)| stack_request::answer(path, number, deadline));
        one.evidence.stacks = match (one.evidence.condition, answer) {
            (Condition::Alive(_), Some(Some(text))) => understood(&text),
            (Condition::Alive(_), Some(None)) => outside(one.evidence.process, "it does not answer", outside_by),
            (Condition::Alive(_), None) => outside(one.evidence.process, "it cannot be asked", outside_by),
            (condition, _) => Stacks::Unknown(format!("its process is {}", condition.name())),
        };
    }
}

/// Asks those without records, by the signal that they are ready for: several times, to see who does not move.
fn request_unrecorded_stacks(found: &mut [Collected]) {
    let unrecorded =
        |one: &&mut Collected| one.records.is_none() && matches!(one.evidence.condition, Condition::Alive(_));
    for look in 0..READ_ATTEMPTS {
        if look > 0 {
            std::thread::sleep(READ_PAUSE);
        }
        let asked: Vec<(&mut Collected, dump::Dump)> = found
            .iter_mut()
            .filter(unrecorded)
            .filter_map(|one| dump::request(&one.folder, one.evidence.process).map(|dump| (one, dump)))
            .collect();
        if asked.is_empty() {
            return;
        }
        let deadline = Instant::now() + ANSWER_WITHIN;
        for (one, asked) in asked {
            let threads = dump::answer(&asked, deadline).map(|text| stacks::from_dump(&text)).unwrap_or_default();
            let unmoved = threads.first() == one.evidence.stacks.main();
            one.evidence.still = unmoved && (look == 1 || one.evidence.still) && !threads.is_empty();
            if !threads.is_empty() {
                one.evidence.stacks = Stacks::Known { threads, held: false };
            }
        }
    }
}

fn understood(text: &str) -> Stacks {
    match text.strip_prefix(stack_request::HELD) {
        Some(dump) => Stacks::Known { threads: stacks::from_dump(dump), held: true },
        None => match stacks::from_json(text) {
            Some(threads) => Stacks::Known { threads, held: false },
            None => Stacks::Unknown("its answer cannot be read".to_owned()),
        },
    }
}

/// From outside, where the tool for it is installed and may look.
fn outside(process: u32, why: &str, deadline: Instant) -> Stacks {
    match py_spy(process, deadline) {
        Ok(text) => match stacks::from_py_spy(&text) {
            Some(threads) => Stacks::Known { threads, held: false },
            None => Stacks::Unknown(format!("{why}, and py-spy's output is not valid")),
        },
        Err(reason) => Stacks::Unknown(format!("{why}, and {reason}")),
    }
}

fn py_spy(process: u32, deadline: Instant) -> Result<String, String> {
    let mut command = Command::new("py-spy");
    command.args(["dump", "--json", "--pid", &process.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|_| "py-spy is not installed".to_owned())?;
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.map(|output| output.take(1 << 20).read_to_string(&mut text));
        read.is_some_and(|read| read.is_ok()).then_some(text)
    });
    let ended = wait(&mut child, deadline);
    // Whatever it started ends with its output.
    let text = reader.join().ok().flatten();
    match (ended, text) {
        (true, Some(text)) => Ok(text),
        (true, None) => Err("py-spy is not permitted to inspect it".to_owned()),
        (false, _) => Err("py-spy timed out".to_owned()),
    }
}

/// Whether it ended well before then; it is ended otherwise.
fn wait(child: &mut Child, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// A line of a script, as far as it can be read and shown.
pub fn source_line(file: &str, line: u32) -> Option<String> {
    let found = fs::metadata(file).ok().filter(|found| found.is_file() && found.len() <= LONGEST_SCRIPT);
    let text = String::from_utf8_lossy(&fs::read(found.map(|_| file)?).ok()?).into_owned();
    let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?.trim();
    let shown: String = line.chars().filter(|letter| !letter.is_control()).take(LONGEST_LINE).collect();
    (!shown.is_empty()).then_some(shown)
}
