//! The table of an engine's jobs, as far as a master knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instep_api::wire::Timestamp;

use super::seen::{JobId, Phase, Seen};
use crate::lifecycle::allocation::after;

/// After a submission that failed, the next one waits this long.
const SUBMIT_AGAIN: Duration = Duration::from_secs(30);
/// What agents that were told to leave may take, before their job is cancelled.
const LEAVING: Duration = Duration::from_secs(30);

/// An allocation that an engine is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// How many agents it needs.
    pub nodes: u32,
    /// The job on whose agents it has its shares, if it has.
    pub placed: Option<JobId>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Submit a job for an allocation, and call [`Jobs::submitted`] with the answer.
    Submit {
        /// Its name.
        allocation: String,
    },
    /// Cancel a job; one that has ended meanwhile is fine.
    Cancel {
        /// Which.
        job: JobId,
    },
    /// Tell an agent to leave.
    Leave {
        /// Its name.
        agent: String,
        /// For people.
        why: String,
    },
    /// An allocation that waits ends: its job has.
    Gone {
        /// Its name.
        allocation: String,
        /// For people.
        why: String,
    },
    /// The job of an allocation that had started was ended by the engine: whoever reads its log should know why.
    Note {
        /// Its name.
        allocation: String,
        /// For people.
        why: String,
    },
}

/// An allocation whose agents are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Ready {
    pub allocation: String,
    /// In the order of the job's nodes.
    pub agents: Vec<String>,
}

/// How far an allocation is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// A list is to show whether there is a job.
    Unknown { submit_at: Timestamp },
    /// There is none.
    Due { at: Timestamp },
    /// The engine has been asked.
    Submitting,
    /// This is its job.
    Has { job: JobId, phase: Option<Phase>, agents: BTreeMap<u32, String> },
    /// Its job has ended, and it is about to.
    Over,
}

#[derive(Debug)]
struct Record {
    wanted: Wanted,
    stage: Stage,
    /// Why the last submission failed.
    trouble: Option<String>,
}

/// A job that no allocation wants any more.
#[derive(Debug)]
struct Dismissed {
    allocation: String,
    /// When it is cancelled, should it not have ended by then.
    cancel_at: Timestamp,
    /// It was cancelled on our word, or people know how it ended.
    explained: bool,
}

/// The jobs of one engine.
#[derive(Debug)]
pub struct Jobs {
    /// How people call the engine.
    engine: &'static str,
    /// Whether the engine was ever heard.
    listed: bool,
    /// Why it cannot be heard at present.
    silent: Option<String>,
    records: BTreeMap<String, Record>,
    /// Allocations whose submission was not answered yet, wanted or not.
    submitting: BTreeSet<String>,
    dismissed: BTreeMap<JobId, Dismissed>,
}

impl Jobs {
    /// Those of an engine that people call so.
    pub fn new(engine: &'static str) -> Jobs {
        Jobs {
            engine,
            listed: false,
            silent: None,
            records: BTreeMap::new(),
            submitting: BTreeSet::new(),
            dismissed: BTreeMap::new(),
        }
    }

    /// Whether a list would tell anything.
    pub fn wants_list(&self) -> bool {
        !self.listed || !self.records.is_empty() || !self.dismissed.is_empty()
    }

    /// Why the engine cannot be heard at present, if it cannot.
    pub fn silence(&self) -> Option<&str> {
        self.silent.as_deref()
    }

    /// When something must be done even if nothing happens.
    pub fn deadline(&self) -> Option<Timestamp> {
        let due = |record: &Record| match record.stage {
            Stage::Due { at } => Some(at),
            _ => None,
        };
        self.records.values().filter_map(due).min()
    }

    /// Compares with the allocations that there are now.
    pub fn reconcile(&mut self, wanted: &BTreeMap<String, Wanted>, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        let over: Vec<String> = self.records.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in over {
            if let Some(record) = self.records.remove(&name) {
                self.release(name, record, now, &mut actions);
            }
        }
        for (name, wanted) in wanted {
            let record = self.records.entry(name.clone()).or_insert_with(|| {
                let stage = match &wanted.placed {
                    Some(job) => Stage::Has { job: job.clone(), phase: None, agents: BTreeMap::new() },
                    None if self.listed && !self.submitting.contains(name) => Stage::Due { at: now },
                    // E1: of one that was given up while its submission was under way, the answer comes first.
                    None => Stage::Unknown { submit_at: now },
                };
                Record { wanted: wanted.clone(), stage, trouble: None }
            });
            if record.wanted != *wanted {
                record.wanted = wanted.clone();
            }
            let is_due = matches!(record.stage, Stage::Due { at } if at <= now);
            if is_due && self.submitting.insert(name.clone()) {
                record.stage = Stage::Submitting;
                actions.push(Action::Submit { allocation: name.clone() });
            }
        }
        actions
    }

    /// E3: lets go of an allocation that has ended.
    fn release(&mut self, allocation: String, record: Record, now: Timestamp, actions: &mut Vec<Action>) {
        let Stage::Has { job, phase, agents } = record.stage else { return };
        let is_known_to_have_ended = matches!(phase, Some(Phase::Ended { .. }));
        if agents.is_empty() && !is_known_to_have_ended {
            actions.push(Action::Cancel { job: job.clone() });
        }
        let why = format!("allocation {allocation} has ended");
        actions.extend(agents.into_values().map(|agent| Action::Leave { agent, why: why.clone() }));
        // Where shares have lost their agents, the engine may have ended them.
        let explained = record.wanted.placed.is_none() || is_known_to_have_ended;
        self.dismissed.insert(job, Dismissed { allocation, cancel_at: after(now, LEAVING), explained });
    }

    /// E3: cancels a job that nobody wants.
    fn dismiss(&mut self, job: JobId, allocation: &str, now: Timestamp, actions: &mut Vec<Action>) {
        actions.push(Action::Cancel { job: job.clone() });
        let allocation = allocation.to_owned();
        self.dismissed.insert(job, Dismissed { allocation, cancel_at: now, explained: true });
    }

    /// The engine has answered a submission, or failed to.
    pub fn submitted(&mut self, allocation: &str, answer: Result<JobId, String>, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        self.submitting.remove(allocation);
        let record = self.records.get_mut(allocation);
        match (answer, record) {
            (Ok(job), Some(record)) if matches!(record.stage, Stage::Submitting | Stage::Unknown { .. }) => {
                record.trouble = None;
                record.stage = Stage::Has { job, phase: None, agents: BTreeMap::new() };
            }
            // Its agents were here before the answer.
            (Ok(job), Some(Record { stage: Stage::Has { job: known, .. }, .. })) if *known == job => {}
            (Ok(job), _) => self.dismiss(job, allocation, now, &mut actions),
            (Err(why), Some(record)) => {
                record.trouble = Some(why);
                if record.stage == Stage::Submitting {
                    record.stage = Stage::Unknown { submit_at: after(now, SUBMIT_AGAIN) };
                }
            }
            (Err(_), None) => {}
        }
        actions
    }

    /// The engine has listed all its jobs of this cluster, the oldest first, or failed to.
    pub fn listed(&mut self, answer: Result<Vec<Seen>, String>, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        let seen = match answer {
            Ok(seen) => seen,
            Err(why) => {
                self.silent = Some(why);
                return actions;
            }
        };
        (self.listed, self.silent) = (true, None);
        let mut by_allocation: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
        for one in seen.iter().filter(|one| !self.dismissed.contains_key(&one.job)) {
            by_allocation.entry(&one.allocation).or_default().push(one);
        }
        let names: Vec<String> = self.records.keys().cloned().collect();
        for name in names {
            let mine = by_allocation.remove(name.as_str()).unwrap_or_default();
            self.listed_of(&name, &mine, now, &mut actions);
        }
        self.look_at_dismissed(&seen, now, &mut actions);
        // Of an allocation that nobody knows: it has ended, in a time that nobody remembers. Not cancelled before it has
        // been seen for a while: a master that was replaced must not cancel what the next one submits.
        let strays = by_allocation.into_values().flatten().filter(|one| one.phase.is_alive());
        for stray in strays.filter(|stray| !self.submitting.contains(&stray.allocation)).collect::<Vec<_>>() {
            let cancel_at = after(now, LEAVING);
            let dismissed = Dismissed { allocation: stray.allocation.clone(), cancel_at, explained: true };
            self.dismissed.insert(stray.job.clone(), dismissed);
        }
        actions
    }

    /// What a list says of one allocation.
    fn listed_of(&mut self, name: &str, mine: &[&Seen], now: Timestamp, actions: &mut Vec<Action>) {
        let engine = self.engine;
        let Some(record) = self.records.get_mut(name) else { return };
        let kept = match &mut record.stage {
            Stage::Has { job, phase, agents } => {
                let found = mine.iter().find(|one| one.job == *job).map(|one| one.phase.clone());
                if found.is_none() && !agents.is_empty() {
                    // Its agents know better: it was listed while it began, or the engine has forgotten it.
                    return;
                }
                let gone = || Phase::Ended { why: "the engine does not know it any more".to_owned(), in_order: false };
                let found = found.unwrap_or_else(gone);
                let news = phase.as_ref() != Some(&found);
                let job = job.clone();
                *phase = Some(found.clone());
                if let Phase::Ended { why, in_order } = found
                    && news
                {
                    let (allocation, why) = (name.to_owned(), format!("{engine} job {job} has ended: {why}"));
                    if record.wanted.placed.is_none() {
                        record.stage = Stage::Over;
                        actions.push(Action::Gone { allocation, why });
                    } else if !in_order {
                        actions.push(Action::Note { allocation, why });
                    }
                }
                Some(job)
            }
            // The newest counts.
            Stage::Unknown { submit_at } => match mine.iter().rfind(|one| one.phase.is_alive()) {
                Some(one) => {
                    record.trouble = None;
                    let phase = Some(one.phase.clone());
                    record.stage = Stage::Has { job: one.job.clone(), phase, agents: BTreeMap::new() };
                    Some(one.job.clone())
                }
                None => {
                    let ended = mine.iter().rev().find_map(|one| match &one.phase {
                        Phase::Ended { why, .. } => Some((&one.job, why)),
                        Phase::Ending | Phase::Waiting { .. } | Phase::Running { .. } => None,
                    });
                    match ended {
                        Some((job, why)) => {
                            let why = format!("{engine} job {job} has ended: {why}");
                            record.stage = Stage::Over;
                            actions.push(Action::Gone { allocation: name.to_owned(), why });
                        }
                        // One whose processes are being ended is listed again, and an answer is still to come.
                        None if !mine.is_empty() || self.submitting.contains(name) => {}
                        None => record.stage = Stage::Due { at: *submit_at },
                    }
                    None
                }
            },
            // Nobody has submitted it, as far as is known, or the answer says which of them counts.
            Stage::Submitting => return,
            Stage::Due { .. } | Stage::Over => None,
        };
        for other in mine.iter().filter(|one| one.phase.is_alive() && Some(&one.job) != kept.as_ref()) {
            self.dismiss(other.job.clone(), name, now, actions);
        }
    }

    /// E3: what nobody wants is cancelled as often as it is seen alive.
    fn look_at_dismissed(&mut self, seen: &[Seen], now: Timestamp, actions: &mut Vec<Action>) {
        let by_job: BTreeMap<&JobId, &Phase> = seen.iter().map(|one| (&one.job, &one.phase)).collect();
        self.dismissed.retain(|job, _| by_job.contains_key(job));
        for (job, dismissed) in &mut self.dismissed {
            match by_job[job] {
                Phase::Waiting { .. } | Phase::Running { .. } if dismissed.cancel_at <= now => {
                    dismissed.explained = true;
                    let cancel = Action::Cancel { job: job.clone() };
                    if !actions.contains(&cancel) {
                        actions.push(cancel);
                    }
                }
                Phase::Ended { why, in_order: false } if !dismissed.explained => {
                    dismissed.explained = true;
                    let why = format!("{} job {job} has ended: {why}", self.engine);
                    actions.push(Action::Note { allocation: dismissed.allocation.clone(), why });
                }
                Phase::Waiting { .. } | Phase::Running { .. } | Phase::Ending | Phase::Ended { .. } => {}
            }
        }
    }

    /// E2: an agent of a job wants in; `Err` says why not.
    pub fn admit(&mut self, allocation: &str, job: &JobId) -> Result<(), String> {
        let engine = self.engine;
        let ended = || format!("allocation {allocation} has ended, or does not run in {engine}");
        let dismissed = self.dismissed.contains_key(job);
        let is_of = |record: &Record| matches!(&record.stage, Stage::Has { job: known, .. } if known == job);
        if self.records.iter().any(|(name, record)| name != allocation && is_of(record)) {
            return Err(format!("{engine} job {job} is another allocation's"));
        }
        let record = self.records.get_mut(allocation).filter(|_| !dismissed).ok_or_else(ended)?;
        match &record.stage {
            Stage::Has { job: known, .. } if known == job => Ok(()),
            Stage::Has { job: known, .. } => {
                Err(format!("allocation {allocation} runs in {engine} job {known}, not in job {job}"))
            }
            Stage::Over => Err(ended()),
            // It came before the answer to its submission, or before the first list.
            Stage::Unknown { .. } | Stage::Due { .. } | Stage::Submitting => {
                record.trouble = None;
                record.stage = Stage::Has { job: job.clone(), phase: None, agents: BTreeMap::new() };
                Ok(())
            }
        }
    }

    /// An agent of the job that counts is here. Gives the one that was on its node, if that was another: there is one on
    /// each, and the newest counts.
    pub fn joined(&mut self, allocation: &str, node: u32, agent: &str) -> Option<String> {
        let Some(Record { stage: Stage::Has { agents, .. }, .. }) = self.records.get_mut(allocation) else {
            return None;
        };
        agents.retain(|other, known| *other == node || known != agent);
        agents.insert(node, agent.to_owned()).filter(|before| before != agent)
    }

    /// An agent has no connection any more.
    pub fn left(&mut self, allocation: &str, agent: &str) {
        if let Some(Record { stage: Stage::Has { agents, .. }, .. }) = self.records.get_mut(allocation) {
            agents.retain(|_, known| known != agent);
        }
    }

    /// The allocations that can start.
    pub fn ready(&self) -> Vec<Ready> {
        let complete = |(name, record): (&String, &Record)| {
            let Stage::Has { agents, .. } = &record.stage else { return None };
            let all = agents.keys().copied().eq(0..record.wanted.nodes);
            let ready = || Ready { allocation: name.clone(), agents: agents.values().cloned().collect() };
            (all && record.wanted.placed.is_none()).then(ready)
        };
        self.records.iter().filter_map(complete).collect()
    }

    /// Why an allocation waits, for people; `None` if it is not one of these.
    pub fn reason(&self, allocation: &str) -> Option<String> {
        let record = self.records.get(allocation)?;
        let engine = self.engine;
        let reason = match &record.stage {
            Stage::Has { job, phase: None, agents } if agents.is_empty() => {
                format!("waiting: {engine} job {job} was submitted")
            }
            Stage::Has { job, phase: Some(Phase::Waiting { reason }), agents } if agents.is_empty() => {
                format!("waiting: {engine} job {job} is pending ({reason})")
            }
            Stage::Has { job, phase, agents } => {
                let (here, all) = (agents.len(), record.wanted.nodes);
                let state = match phase {
                    // The pods of a Job start one by one.
                    Some(Phase::Waiting { reason }) => format!("is pending ({reason})"),
                    Some(Phase::Running { nodes }) => format!("runs on {nodes}"),
                    _ => "runs".to_owned(),
                };
                format!("starting: {engine} job {job} {state}, {here} of {all} agents are here")
            }
            Stage::Submitting | Stage::Due { .. } | Stage::Unknown { .. } => match &record.trouble {
                Some(why) => format!("waiting: {engine} did not take the job, which is submitted again: {why}"),
                None => format!("waiting to be submitted to {engine}"),
            },
            Stage::Over => format!("its {engine} job has ended"),
        };
        match &self.silent {
            Some(why) => Some(format!("{reason}; {engine} does not answer: {why}")),
            None => Some(reason),
        }
    }
}
