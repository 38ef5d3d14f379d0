//! The folder of the ranks' flight recorders, and `--hang-after`: a thread that looks at them and says why nothing moves.
//!
//! Once a second the thread reads the records of this node's ranks. When an operation has been under way for too long it asks
//! the ranks for their stacks and tells the supervisor, once for each operation. It also keeps the list of this node's ranks
//! in the folder, for `instep diagnose`. Under `--recover step` it names the rank that hangs ([`HangWatch::hung`]), for the
//! supervisor to have it replaced. Nothing here can hold up or fail the job: without a folder there is no diagnosis.
//!
//! In a job of several nodes the thread has the coordinator ask all of them ([`HangWatch::messages`]), and the launcher in the
//! coordinator's process reports what they say together ([`Inquiry`]). The others report what they see themselves.
//!
//! Shutdown: [`HangWatch::close`], or dropping it, ends the thread. It may be asking ranks just then, for some seconds at most.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use instep_diagnosis::job::{Job, Worker};
use instep_diagnosis::remote::{self, NodeEvidence};
use instep_diagnosis::{Diagnosis, Evidence, analysis, collect, diagnose, report};
use instep_recorder::{clock, folder, process};
use serde_json::json;

use crate::console::Note;
use crate::control::{DiagnoseRequest, ToCoordinator};
use crate::events::EventLog;
use crate::failure::hang_detector::{HangDetector, HungRank};
use crate::failure::inquiry::Inquiry;
use crate::plan::Plan;

/// Tells the backend where to write.
pub(crate) const VARIABLE: &str = "INSTEP_RECORDER_DIR";
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a report waits for the coordinator to ask all nodes, which may be about to report more.
const ASKED_WITHIN: Duration = Duration::from_secs(3);

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
    /// The coordinator asks.
    Diagnose(DiagnoseRequest),
    /// What a node has answered.
    Answered(u64, Box<NodeEvidence>),
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct HangWatch {
    folder: Option<PathBuf>,
    commands: Option<Sender<WatcherCommand>>,
    hung: Option<Receiver<HungRank>>,
    messages: Option<Receiver<ToCoordinator>>,
    thread: Option<JoinHandle<()>>,
}

impl HangWatch {
    /// Makes the folder.
    pub(crate) fn new(plan: &Plan) -> HangWatch {
        let made = folder::create(&folder::base(), &plan.job.run_id, std::process::id());
        HangWatch { folder: made.ok(), commands: None, hung: None, messages: None, thread: None }
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
            let (hung, hung_ranks) = mpsc::channel();
            let (outbox, messages) = mpsc::channel();
            let watcher = Watcher {
                folder: folder.clone(),
                job,
                hang_after: plan.hang_after,
                notes,
                events,
                reported: BTreeSet::new(),
                hung: plan.terms.step_recovery.then_some(hung),
                detector: HangDetector::default(),
                outbox: (plan.terms.max_nodes > 1).then_some(outbox),
                held: None,
                inquiry: None,
            };
            let builder = std::thread::Builder::new().name("instep-hang".to_owned());
            self.thread = builder.spawn(move || watcher.watch(&commands)).ok();
            self.commands = Some(sender);
            self.hung = Some(hung_ranks);
            self.messages = Some(messages);
        }
        self.command(WatcherCommand::Started(ranks));
    }

    /// Ranks that were found to hang since the last call: with `--recover step` alone.
    pub(crate) fn hung(&self) -> Vec<HungRank> {
        self.hung.iter().flat_map(Receiver::try_iter).collect()
    }

    /// What the coordinator is to be told since the last call.
    pub(crate) fn messages(&self) -> Vec<ToCoordinator> {
        self.messages.iter().flat_map(Receiver::try_iter).collect()
    }

    /// The coordinator wants to know what the ranks of this node do.
    pub(crate) fn diagnose(&self, request: DiagnoseRequest) {
        self.command(WatcherCommand::Diagnose(request));
    }

    /// A node has answered a question of which this launcher concludes.
    pub(crate) fn answered(&self, number: u64, evidence: Box<NodeEvidence>) {
        self.command(WatcherCommand::Answered(number, evidence));
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

/// What was found here, until it is known who reports.
struct Findings {
    evidence: Vec<Evidence>,
    /// When that was, by the monotonic clock in nanoseconds.
    seen: u64,
    diagnosis: Diagnosis,
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
    detector: HangDetector,
    /// To the coordinator; none where this node is the only one.
    outbox: Option<Sender<ToCoordinator>>,
    held: Option<Findings>,
    inquiry: Option<Inquiry>,
}

impl Watcher {
    fn watch(mut self, commands: &Receiver<WatcherCommand>) {
        folder::tidy(&folder::base(), SystemTime::now());
        loop {
            match commands.recv_timeout(CHECK_INTERVAL) {
                Ok(WatcherCommand::Started(ranks)) => self.record_ranks(&ranks),
                Ok(WatcherCommand::Failed(rank)) => self.failed(rank),
                Ok(WatcherCommand::Diagnose(request)) => self.answer(&request),
                Ok(WatcherCommand::Answered(number, evidence)) => {
                    if let Some(inquiry) = &mut self.inquiry {
                        inquiry.answered(number, *evidence);
                    }
                    self.conclude();
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.check();
                    self.report_unasked();
                    self.conclude();
                }
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
        self.detector = HangDetector::default();
        (self.held, self.inquiry) = (None, None);
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
            self.detector = HangDetector::default();
            return;
        }
        let news = !overdue.is_subset(&self.reported);
        let looks = self.hung.is_some() && self.detector.is_due(clock::monotonic());
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
            if looks
                && let Some(hung) = self.detector.look(&diagnosis, &evidence, process::session_ran, now, hang_after)
            {
                self.tell(hung);
            }
            if news {
                self.reported.extend(analysis::overdue(&evidence, now, hang_after));
                self.found(Findings { evidence, seen: now, diagnosis });
            }
        }
    }

    /// Reports what was found, unless other nodes may know more.
    fn found(&mut self, findings: Findings) {
        match &self.outbox {
            None => self.report_own(&findings),
            Some(outbox) => {
                let _ = outbox.send(ToCoordinator::Overdue {});
                self.held = Some(findings);
            }
        }
    }

    fn report_own(&self, findings: &Findings) {
        let Findings { evidence, seen, diagnosis } = findings;
        self.report(diagnosis, report::render(diagnosis, evidence, *seen, &collect::source_line));
    }

    /// Nobody has asked: the coordinator is gone, or did so a moment ago.
    fn report_unasked(&mut self) {
        let since = |seen: u64| Duration::from_nanos(clock::monotonic().saturating_sub(seen));
        if let Some(findings) = self.held.take_if(|findings| since(findings.seen) >= ASKED_WITHIN) {
            self.report_own(&findings);
        }
    }

    /// Says what the ranks here do. What they did a moment ago is still true, and asking for stacks takes seconds.
    fn answer(&mut self, request: &DiagnoseRequest) {
        let Some(outbox) = self.outbox.clone() else { return };
        let (evidence, seen) = match self.held.take() {
            Some(findings) => {
                if request.concludes_from.is_none() {
                    self.report_own(&findings);
                }
                (findings.evidence, findings.seen)
            }
            None => (collect::collect(std::slice::from_ref(&self.folder), true), clock::monotonic()),
        };
        if let Some(nodes) = request.concludes_from {
            self.inquiry = Some(Inquiry::new(request.number, nodes, clock::monotonic()));
        }
        let node = NodeEvidence::within(request.limit, &self.job.host, &evidence, seen, &collect::source_line);
        let _ = outbox.send(ToCoordinator::Evidence { number: request.number, evidence: Box::new(node) });
    }

    /// Reports what all nodes say, when they have said it.
    fn conclude(&mut self) {
        let now = clock::monotonic();
        let Some(inquiry) = self.inquiry.take_if(|inquiry| inquiry.is_complete(now)) else { return };
        let Some(hang_after) = self.hang_after else { return };
        let answers = inquiry.close();
        let (evidence, lines) = remote::combine(answers.nodes, now);
        let line = |file: &str, line: u32| lines.get(&(file.to_owned(), line)).cloned();
        let mut diagnosis = diagnose(&evidence, now, hang_after, &line);
        diagnosis.remarks.extend(answers.remarks);
        // All may have gone on while the nodes were asked.
        if !diagnosis.findings.is_empty() {
            self.report(&diagnosis, report::render(&diagnosis, &evidence, now, &line));
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
