//! The jobs of an engine, under every order of kills, losses and answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use instep_api::wire::Timestamp;
use instep_policy::engine::{Action, JobId, Jobs, Phase, Seen, Wanted};
use instep_testkit::{Random, seeds};

const SECOND: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp(second * SECOND)
}

fn wanted(placed: bool) -> BTreeMap<String, Wanted> {
    let placed = placed.then(|| JobId("7".to_owned()));
    BTreeMap::from([("t.1".to_owned(), Wanted { nodes: 2, placed })])
}

fn seen(job: &str, phase: Phase) -> Seen {
    Seen { job: JobId(job.to_owned()), allocation: "t.1".to_owned(), phase }
}

fn waiting() -> Phase {
    Phase::Waiting { reason: "Resources".to_owned() }
}

fn running() -> Phase {
    Phase::Running { nodes: "n[1-2]".to_owned() }
}

fn ended(why: &str) -> Phase {
    Phase::Ended { why: why.to_owned(), in_order: false }
}

fn submit() -> Vec<Action> {
    vec![Action::Submit { allocation: "t.1".to_owned() }]
}

fn cancel(job: &str) -> Action {
    Action::Cancel { job: JobId(job.to_owned()) }
}

/// A table that has heard from its engine, and has submitted job 7.
fn submitted() -> Jobs {
    let mut jobs = Jobs::new("Slurm");
    jobs.listed(Ok(Vec::new()), at(0));
    assert_eq!(jobs.reconcile(&wanted(false), at(1)), submit());
    assert_eq!(jobs.submitted("t.1", Ok(JobId("7".to_owned())), at(2)), []);
    jobs
}

#[test]
fn an_allocation_waits_starts_and_ends_with_its_job() {
    let mut jobs = submitted();
    assert_eq!(jobs.reconcile(&wanted(false), at(3)), [], "once");
    jobs.listed(Ok(vec![seen("7", waiting())]), at(4));
    assert_eq!(jobs.reason("t.1").unwrap(), "waiting: Slurm job 7 is pending (Resources)");
    jobs.listed(Err("timed out".to_owned()), at(5));
    assert!(jobs.reason("t.1").unwrap().ends_with("Slurm does not answer: timed out"));
    jobs.listed(Ok(vec![seen("7", running())]), at(6));
    let job = JobId("7".to_owned());
    jobs.admit("t.1", &job).unwrap();
    assert_eq!(jobs.joined("t.1", 1, "n9-7"), None);
    // Pods of a Job start one by one.
    jobs.listed(Ok(vec![seen("7", waiting())]), at(6));
    assert_eq!(jobs.reason("t.1").unwrap(), "starting: Slurm job 7 is pending (Resources), 1 of 2 agents are here");
    jobs.listed(Ok(vec![seen("7", running())]), at(6));
    // The newest on a node counts, and whoever comes again is nobody else.
    assert_eq!(jobs.joined("t.1", 1, "n2-7").as_deref(), Some("n9-7"));
    assert_eq!(jobs.joined("t.1", 1, "n2-7"), None);
    assert_eq!(jobs.reason("t.1").unwrap(), "starting: Slurm job 7 runs on n[1-2], 1 of 2 agents are here");
    assert_eq!(jobs.ready(), []);
    jobs.joined("t.1", 0, "n1-7");
    assert_eq!(jobs.ready()[0].agents, ["n1-7", "n2-7"]);
    jobs.reconcile(&wanted(true), at(7));
    assert_eq!(jobs.ready(), []);
    let over = jobs.reconcile(&BTreeMap::new(), at(8));
    assert!(matches!(&over[..], [Action::Leave { .. }, Action::Leave { .. }]), "{over:?}");
    assert_eq!(jobs.listed(Ok(vec![seen("7", running())]), at(10)), [], "they are leaving");
    assert_eq!(jobs.listed(Ok(vec![seen("7", running())]), at(60)), [cancel("7")], "E3");
    let done = Phase::Ended { why: "COMPLETED".to_owned(), in_order: true };
    assert_eq!(jobs.listed(Ok(vec![seen("7", done)]), at(70)), []);
    assert!(jobs.wants_list());
    jobs.listed(Ok(Vec::new()), at(80));
    assert!(!jobs.wants_list());
}

#[test]
fn no_agent_takes_the_job_of_another_allocation() {
    let mut jobs = submitted();
    let others = Wanted { nodes: 1, placed: None };
    let both: BTreeMap<String, Wanted> = wanted(false).into_iter().chain([("t.2".to_owned(), others)]).collect();
    assert_eq!(jobs.reconcile(&both, at(3)), [Action::Submit { allocation: "t.2".to_owned() }]);
    let why = jobs.admit("t.2", &JobId("7".to_owned())).unwrap_err();
    assert_eq!(why, "Slurm job 7 is another allocation's");
    jobs.admit("t.2", &JobId("8".to_owned())).unwrap();
}

#[test]
fn a_waiting_allocation_ends_with_its_job_and_one_that_runs_only_says_why() {
    let mut jobs = submitted();
    let said = jobs.listed(Ok(vec![seen("7", ended("CANCELLED"))]), at(4));
    let why = "Slurm job 7 has ended: CANCELLED".to_owned();
    assert_eq!(said, [Action::Gone { allocation: "t.1".to_owned(), why: why.clone() }], "E4");
    assert_eq!(jobs.listed(Ok(vec![seen("7", ended("CANCELLED"))]), at(5)), [], "once");
    jobs.admit("t.1", &JobId("7".to_owned())).unwrap_err();

    let mut jobs = submitted();
    jobs.reconcile(&wanted(true), at(3));
    let said = jobs.listed(Ok(vec![seen("7", ended("CANCELLED"))]), at(4));
    assert_eq!(said, [Action::Note { allocation: "t.1".to_owned(), why }]);
    jobs.admit("t.1", &JobId("7".to_owned())).unwrap();
    assert_eq!(jobs.reconcile(&BTreeMap::new(), at(5)), []);
    assert_eq!(jobs.listed(Ok(vec![seen("7", ended("CANCELLED"))]), at(6)), [], "it was said");
}

#[test]
fn the_end_of_a_job_is_explained_although_its_allocation_ended_before() {
    let mut jobs = submitted();
    jobs.reconcile(&wanted(true), at(3));
    jobs.joined("t.1", 0, "n1-7");
    jobs.reconcile(&BTreeMap::new(), at(3));
    let said = jobs.listed(Ok(vec![seen("7", ended("TIMEOUT"))]), at(4));
    assert!(matches!(&said[..], [Action::Note { why, .. }] if why.contains("TIMEOUT")), "{said:?}");
}

#[test]
fn a_forgotten_job_is_adopted_and_a_second_one_cancelled() {
    let mut jobs = Jobs::new("Slurm");
    assert_eq!(jobs.reconcile(&wanted(false), at(0)), [], "E1: the engine was not asked yet");
    let both = vec![seen("7", waiting()), seen("8", waiting())];
    assert_eq!(jobs.listed(Ok(both.clone()), at(1)), [cancel("7")]);
    assert_eq!(jobs.reconcile(&wanted(false), at(2)), []);
    assert_eq!(jobs.listed(Ok(both), at(3)), [cancel("7")], "as often as it is seen");
    let why = jobs.admit("t.1", &JobId("7".to_owned())).unwrap_err();
    assert!(why.contains("has ended"), "{why}");
    let why = jobs.admit("t.1", &JobId("9".to_owned())).unwrap_err();
    assert!(why.contains("runs in Slurm job 8, not in job 9"), "{why}");
}

#[test]
fn a_failed_submission_is_tried_again_after_a_look() {
    let mut jobs = Jobs::new("Slurm");
    jobs.listed(Ok(Vec::new()), at(0));
    assert_eq!(jobs.reconcile(&wanted(false), at(1)), submit());
    jobs.submitted("t.1", Err("Invalid account".to_owned()), at(2));
    assert!(jobs.reason("t.1").unwrap().contains("Invalid account"));
    assert_eq!(jobs.reconcile(&wanted(false), at(40)), [], "not before a list");
    jobs.listed(Ok(Vec::new()), at(41));
    assert_eq!(jobs.deadline(), Some(at(32)));
    assert_eq!(jobs.reconcile(&wanted(false), at(42)), submit());
}

#[test]
fn a_job_of_an_unknown_allocation_is_cancelled_after_a_while() {
    let mut jobs = Jobs::new("Slurm");
    assert_eq!(jobs.listed(Ok(vec![seen("7", running())]), at(0)), []);
    assert_eq!(jobs.listed(Ok(vec![seen("7", running())]), at(10)), []);
    assert_eq!(jobs.listed(Ok(vec![seen("7", running())]), at(31)), [cancel("7")]);
}

/// What the one who carries actions out does, one at a time.
#[derive(Debug, Clone)]
enum Call {
    Submit(String),
    Cancel(JobId),
    List,
}

/// What was answered, and is not heard yet.
enum Answer {
    Submitted(String, Result<JobId, String>),
    Listed(Result<Vec<Seen>, String>),
}

/// An engine that forgets answers, hangs and kills, a master that is killed, and jobs with agents.
struct World {
    random: Random,
    now: i64,
    /// In the order of submission.
    jobs: Vec<(Seen, bool)>,
    /// Submissions that arrive late, as of a client that was killed.
    late: Vec<String>,
    table: Jobs,
    calls: VecDeque<Call>,
    answer: Option<Answer>,
    allocations: BTreeMap<String, Wanted>,
    /// The jobs on whose agents shares were made.
    placed: BTreeMap<String, JobId>,
    /// Successful submissions that the master has heard of or that were never lost, by allocation.
    made: usize,
    /// Names that were ever alive at the same time in two jobs although no submission was lost.
    lost_answers: BTreeSet<String>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Random::new(seed),
            now: 0,
            jobs: Vec::new(),
            late: Vec::new(),
            table: Jobs::new("Slurm"),
            calls: VecDeque::new(),
            answer: None,
            allocations: BTreeMap::new(),
            placed: BTreeMap::new(),
            made: 0,
            lost_answers: BTreeSet::new(),
        }
    }

    fn submit(&mut self, allocation: &str) -> JobId {
        self.made += 1;
        let job = JobId(self.made.to_string());
        let one = Seen { job: job.clone(), allocation: allocation.to_owned(), phase: waiting() };
        self.jobs.push((one, false));
        job
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Submit { allocation } => {
                    assert!(self.allocations[&allocation].placed.is_none(), "E1: {allocation} has shares");
                    self.calls.push_back(Call::Submit(allocation));
                }
                Action::Cancel { job } => {
                    assert!(!self.placed.values().any(|placed| *placed == job), "{job} has shares");
                    self.calls.push_back(Call::Cancel(job));
                }
                Action::Gone { allocation, .. } => {
                    assert!(self.allocations[&allocation].placed.is_none());
                    self.allocations.remove(&allocation);
                }
                Action::Note { .. } | Action::Leave { .. } => {}
            }
        }
    }

    /// One thing is carried out, and its answer may get lost.
    fn carry_out(&mut self, calm: bool) {
        if self.answer.is_some() {
            return;
        }
        let Some(call) = self.calls.pop_front() else {
            self.calls.push_back(Call::List);
            return;
        };
        let fails = !calm && self.random.once_in(6);
        match call {
            Call::Submit(allocation) => {
                if !self.lost_answers.contains(&allocation) {
                    let alive = |(one, _): &&(Seen, bool)| one.allocation == allocation && is_alive(&one.phase);
                    assert_eq!(self.jobs.iter().filter(alive).count(), 0, "E1: {allocation} has a job");
                }
                let answer = if !fails {
                    Ok(self.submit(&allocation))
                } else {
                    match self.random.below(3) {
                        0 => {}
                        1 => drop(self.submit(&allocation)),
                        _ => {
                            self.lost_answers.insert(allocation.clone());
                            self.late.push(allocation.clone());
                        }
                    }
                    Err("timed out".to_owned())
                };
                self.answer = Some(Answer::Submitted(allocation, answer));
            }
            Call::Cancel(job) if !fails => self.end(&job, "CANCELLED"),
            Call::Cancel(_) => {}
            Call::List => {
                let all = self.jobs.iter().map(|(one, _)| one.clone()).collect();
                self.answer = Some(Answer::Listed(if fails { Err("no answer".to_owned()) } else { Ok(all) }));
            }
        }
    }

    fn end(&mut self, job: &JobId, why: &str) {
        for (one, _) in self.jobs.iter_mut().filter(|(one, _)| one.job == *job && is_alive(&one.phase)) {
            one.phase = ended(why);
        }
        if let Some((allocation, _)) = self.placed.iter().find(|(_, placed)| **placed == *job) {
            // Its agents, or their silence, end the allocation.
            let allocation = allocation.clone();
            self.placed.remove(&allocation);
            self.allocations.remove(&allocation);
        }
    }

    fn hear(&mut self) {
        let now = at(self.now);
        let actions = match self.answer.take() {
            Some(Answer::Submitted(allocation, answer)) => self.table.submitted(&allocation, answer, now),
            Some(Answer::Listed(answer)) => self.table.listed(answer, now),
            None => return,
        };
        self.act(actions);
    }

    /// The agents of a job that runs say hello, or come back.
    fn agents_come(&mut self) {
        let running: Vec<Seen> = self
            .jobs
            .iter()
            .filter(|(one, _)| matches!(one.phase, Phase::Running { .. }))
            .map(|(one, _)| one.clone())
            .collect();
        for one in running {
            let node = u32::from(self.random.once_in(2));
            let name = format!("n{node}-{}", one.job);
            // A master welcomes agents of shares alone once there are shares.
            let stranger = self.placed.get(&one.allocation).is_some_and(|placed| *placed != one.job);
            if !stranger && self.table.admit(&one.allocation, &one.job).is_ok() {
                self.table.joined(&one.allocation, node, &name);
                if self.random.once_in(10) {
                    self.table.left(&one.allocation, &name);
                }
            }
        }
        for ready in self.table.ready() {
            let job = JobId(ready.agents[0].rsplit_once('-').expect("it ends with its job").1.to_owned());
            assert_eq!(ready.agents, [format!("n0-{job}"), format!("n1-{job}")], "E2: of one job");
            assert!(self.placed.insert(ready.allocation.clone(), job.clone()).is_none(), "E2: placed twice");
            self.allocations.get_mut(&ready.allocation).expect("it waits").placed = Some(job);
        }
    }

    fn step(&mut self, number: usize) {
        self.now += 1;
        match self.random.below(12) {
            0 if number < 400 => {
                let fresh = Wanted { nodes: 2, placed: None };
                self.allocations.insert(format!("t.{number}"), fresh);
            }
            1 | 2 => {
                if let Some((one, _)) = self.jobs.iter_mut().find(|(one, _)| matches!(one.phase, Phase::Waiting { .. }))
                {
                    one.phase = running();
                }
            }
            3 | 4 => self.agents_come(),
            5 => {
                if self.random.once_in(4)
                    && let Some(job) = self.jobs.last().map(|(one, _)| one.job.clone())
                {
                    self.end(&job, "TIMEOUT");
                }
            }
            6 => {
                // Somebody ends an allocation, or its work is done.
                let names: Vec<String> = self.allocations.keys().cloned().collect();
                if !names.is_empty() && self.random.once_in(3) {
                    let name = self.random.pick(&names).clone();
                    self.allocations.remove(&name);
                    self.placed.remove(&name);
                }
            }
            7 if self.random.once_in(4) => {
                // The master is killed: what it asked for may happen all the same, and nobody hears of it.
                let calls = std::mem::take(&mut self.calls);
                if let Some(Call::Submit(allocation)) = calls.front().cloned() {
                    self.lost_answers.insert(allocation.clone());
                    self.late.push(allocation);
                }
                self.answer = None;
                self.table = Jobs::new("Slurm");
            }
            8 => {
                if let Some(allocation) = self.late.pop() {
                    self.submit(&allocation);
                }
            }
            9 => self.hear(),
            _ => self.carry_out(false),
        }
        let actions = self.table.reconcile(&self.allocations.clone(), at(self.now));
        self.act(actions);
    }
}

fn is_alive(phase: &Phase) -> bool {
    matches!(phase, Phase::Waiting { .. } | Phase::Running { .. })
}

#[test]
fn no_job_is_submitted_twice_and_none_is_left_behind() {
    for seed in seeds(300, 50, &[]) {
        let mut world = World::new(seed);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..600 {
                world.step(number);
            }
            // Calm: everything is answered, and nobody ends anything any more.
            while let Some(allocation) = world.late.pop() {
                world.submit(&allocation);
            }
            for _ in 0..400 {
                world.now += 1;
                world.carry_out(true);
                world.hear();
                let actions = world.table.reconcile(&world.allocations.clone(), at(world.now));
                world.act(actions);
            }
            let mut alive: BTreeMap<&str, usize> = BTreeMap::new();
            for (one, _) in world.jobs.iter().filter(|(one, _)| is_alive(&one.phase)) {
                *alive.entry(&one.allocation).or_default() += 1;
            }
            let expected: BTreeMap<&str, usize> = world.allocations.keys().map(|name| (name.as_str(), 1)).collect();
            assert_eq!(alive, expected, "every allocation has one job, and no job is left without one");
        }));
        assert!(outcome.is_ok(), "SEED={seed}");
    }
}
