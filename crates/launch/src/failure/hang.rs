//! The folder of the ranks' flight recorders, and `--hang-after`: a thread that looks at them and says why nothing moves.
//!
//! Once a second the thread reads the records of this node's ranks. When an operation has been under way for too long it asks
//! the ranks for their stacks and tells the supervisor, once for each operation. It also keeps the list of this node's ranks
//! in the folder, for `instep diagnose`. Under `--recover step` it names the rank that hangs ([`HangWatch::hung`]), for the
//! supervisor to have it replaced. Nothing here can hold up or fail the job: without a folder there is no diagnosis.
//!
//! Shutdown: [`HangWatch::close`], or dropping it, ends the thread. It may be asking ranks just then, for some seconds at most.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use instep_diagnosis::job::{Job, Worker};
use instep_diagnosis::{Diagnosis, analysis, collect, diagnose, report};
use instep_recorder::{clock, folder, process};
use serde_json::json;

use crate::console::Note;
use crate::events::EventLog;
use crate::failure::verdict::{HungRank, Verdicts};
use crate::plan::Plan;

/// Tells the backend where to write.
pub(crate) const VARIABLE: &str = "INSTEP_RECORDER_DIR";
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Where the ranks of this launcher write.
pub(crate) fn folder_of(plan: &Plan) -> PathBuf {
    folder::path_of(&folder::base(), &plan.job.run_id, std::process::id())
}

/// What the supervisor tells the thread.
#[derive(Debug)]
enum WatcherCommand {
    /// These ranks run now, with their processes.
    Started(Vec<(usize, i32)>),
    /// This one failed first, and the others are ended for it.
    Failed(usize),
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct HangWatch {
    folder: Option<PathBuf>,
    commands: Option<Sender<WatcherCommand>>,
    verdicts: Option<Receiver<HungRank>>,
    thread: Option<JoinHandle<()>>,
}

impl HangWatch {
    /// Makes the folder.
    pub(crate) fn new(plan: &Plan) -> HangWatch {
        let made = folder::create(&folder::base(), &plan.job.run_id, std::process::id());
        HangWatch { folder: made.ok(), commands: None, verdicts: None, thread: None }
    }

    /// Where the ranks write, if they can.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The ranks of the round before have ended: what they left says nothing about those that come.
    pub(crate) fn clear(&self) {
        self.remove_records("rank-", None);
    }

    /// The process of this rank has ended and this one replaces it, which may write already: a hot spare does.
    pub(crate) fn forget(&self, rank: usize, successor: i32) {
        let prefix = format!("rank-{rank}-");
        self.remove_records(&prefix, Some(&format!("{prefix}{successor}.")));
    }

    fn remove_records(&self, prefix: &str, except: Option<&str>) {
        for path in self.folder.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten()) {
            let name = path.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(prefix) && !except.is_some_and(|except| name.starts_with(except)) {
                let _ = fs::remove_file(path.path());
            }
        }
    }

    /// These ranks run now, with their processes.
    pub(crate) fn started(&mut self, plan: &Plan, ranks: Vec<(usize, i32)>, notes: &Sender<Note>, events: &EventLog) {
        let Some(folder) = &self.folder else { return };
        if self.thread.is_none() {
            let (sender, commands) = mpsc::channel();
            let job = Job {
                name: plan.job.run_id.clone(),
                program: plan.program_name.clone(),
                host: plan.address.clone(),
                ..Job::default()
            };
            let (notes, events) = (notes.clone(), events.clone());
            let (hung, verdicts) = mpsc::channel();
            let watcher = Watcher {
                folder: folder.clone(),
                job,
                hang_after: plan.hang_after,
                notes,
                events,
                reported: BTreeSet::new(),
                hung: plan.terms.step_recovery.then_some(hung),
                verdicts: Verdicts::default(),
            };
            let builder = std::thread::Builder::new().name("instep-hang".to_owned());
            self.thread = builder.spawn(move || watcher.watch(&commands)).ok();
            self.commands = Some(sender);
            self.verdicts = Some(verdicts);
        }
        self.command(WatcherCommand::Started(ranks));
    }

    /// Ranks that were found to hang since the last call: with `--recover step` alone.
    pub(crate) fn hung(&self) -> Vec<HungRank> {
        self.verdicts.iter().flat_map(Receiver::try_iter).collect()
    }

    /// This rank was the first to fail.
    pub(crate) fn failed(&self, rank: usize) {
        self.command(WatcherCommand::Failed(rank));
    }

    fn command(&self, command: WatcherCommand) {
        // Fails when the thread could not be started.
        let _ = self.commands.as_ref().map(|sender| sender.send(command));
    }

    /// Ends the thread. What the ranks of a job that failed did last is kept, and where; none if they left nothing.
    pub(crate) fn close(&mut self, success: bool) -> Option<PathBuf> {
        self.end();
        let folder = self.folder.take()?;
        if success || folder::records(&folder).is_empty() {
            let _ = fs::remove_dir_all(folder);
            return None;
        }
        Some(folder)
    }

    fn end(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for HangWatch {
    fn drop(&mut self) {
        self.end();
        if let Some(folder) = self.folder.take().filter(|folder| folder::records(folder).is_empty()) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

struct Watcher {
    folder: PathBuf,
    job: Job,
    /// None: nobody wants to know.
    hang_after: Option<Duration>,
    notes: Sender<Note>,
    events: EventLog,
    /// Operations that were spoken of.
    reported: BTreeSet<String>,
    /// Where ranks that hang are told; none where nobody replaces them.
    hung: Option<Sender<HungRank>>,
    verdicts: Verdicts,
}

impl Watcher {
    fn watch(mut self, commands: &Receiver<WatcherCommand>) {
        folder::tidy(&folder::base(), SystemTime::now());
        loop {
            match commands.recv_timeout(CHECK_INTERVAL) {
                Ok(WatcherCommand::Started(ranks)) => self.record_ranks(&ranks),
                Ok(WatcherCommand::Failed(rank)) => self.failed(rank),
                Err(RecvTimeoutError::Timeout) => self.check(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn record_ranks(&mut self, ranks: &[(usize, i32)]) {
        let worker = |(rank, process): &(usize, i32)| {
            let (rank, process) = (u32::try_from(*rank).ok()?, u32::try_from(*process).ok()?);
            Some(Worker { rank, process, started: process::stat(process)?.started })
        };
        self.job.workers = ranks.iter().filter_map(worker).collect();
        self.job.failed = None;
        self.reported.clear();
        self.verdicts = Verdicts::default();
        // Without it `instep diagnose` finds the ranks that have records.
        let _ = self.job.write(&self.folder);
    }

    fn failed(&mut self, rank: usize) {
        self.job.failed = self.job.failed.or(u32::try_from(rank).ok());
        let _ = self.job.write(&self.folder);
    }

    fn check(&mut self) {
        let Some(hang_after) = self.hang_after else { return };
        let folders = std::slice::from_ref(&self.folder);
        let quick = collect::collect(folders, false);
        let overdue = analysis::overdue(&quick, clock::monotonic(), hang_after);
        self.reported.retain(|known| overdue.contains(known));
        if overdue.is_empty() {
            self.verdicts = Verdicts::default();
            return;
        }
        let news = !overdue.is_subset(&self.reported);
        let looks = self.hung.is_some() && self.verdicts.is_due(clock::monotonic());
        if !news && !looks {
            return;
        }
        let evidence = collect::collect(folders, true);
        let now = clock::monotonic();
        let diagnosis = diagnose(&evidence, now, hang_after, &collect::source_line);
        // They may have gone on meanwhile.
        if diagnosis
            .findings
            .iter()
            .any(|finding| finding.operation.as_ref().is_some_and(|operation| !operation.failed))
        {
            if news {
                self.report(&diagnosis, report::render(&diagnosis, &evidence, now, &collect::source_line));
                self.reported.extend(analysis::overdue(&evidence, now, hang_after));
            }
            if looks
                && let Some(hung) = self.verdicts.look(&diagnosis, &evidence, process::session_ran, now, hang_after)
            {
                self.tell(hung);
            }
        }
    }

    fn tell(&self, hung: HungRank) {
        // Somebody looks at one that is traced.
        let is_traced = process::stat(hung.process).is_some_and(|stat| stat.state == 't');
        // What the launcher started may have started the rank in turn.
        let started = self.job.workers.iter().find(|worker| u32::try_from(hung.rank) == Ok(worker.rank));
        if let (false, Some(worker), Some(sender)) = (is_traced, started, &self.hung) {
            // The supervisor is there as long as this thread.
            let _ = sender.send(HungRank { process: worker.process, ..hung });
        }
    }

    fn report(&self, diagnosis: &Diagnosis, text: String) {
        let sentences: Vec<&str> = diagnosis.findings.iter().map(|finding| finding.sentence.as_str()).collect();
        self.events.note("hang", json!({"reasons": sentences, "findings": diagnosis.findings}));
        // The supervisor is there as long as this thread.
        let _ = self.notes.send(Note::Warning(text.trim_end().to_owned()));
    }
}

/// What people can do with a folder that was kept.
pub(crate) fn hint(folder: &Path) -> String {
    format!("the ranks' last operations are recorded: instep diagnose {}", folder.display())
}
