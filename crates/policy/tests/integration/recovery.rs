//! Recovery at a step, simulated: launchers that tell of losses late, ranks that follow the protocol, losses at any moment.
//!
//! Messages between a launcher and the coordinator arrive in order and at any time, as over TCP; several may arrive at once.
//! A rank of generation g votes for its step and commits it when all ranks of g have voted; when a newer generation is
//! published it shows its step to the others, and all take the newest one, which newcomers receive.
//!
//! `SEED=... cargo test -p instep-policy recovery` replays one schedule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use instep_policy::recovery::{Decision, Loss, LossKind, MAX_SIGNALS, Recovery};
use instep_testkit::{Random, seeds};

/// A job is done when it has committed so many steps.
const STEPS: u64 = 6;
/// More turns than any job needs once nothing more goes wrong.
const MAX_TURNS: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Has not reached its session.
    Starting,
    /// Has shown its step to the others of its generation.
    Meeting,
    /// Computes.
    Training,
    /// Has voted for its step.
    Voting,
}

/// One process of a rank.
#[derive(Debug)]
struct Process {
    incarnation: u32,
    generation: u64,
    /// Steps committed; nothing before a newcomer has received the state.
    step: Option<u64>,
    doing: Doing,
}

#[derive(Debug, Clone)]
enum Report {
    Lost(Vec<Loss>),
    Finished(usize),
}

#[derive(Debug, Default)]
struct Launcher {
    ranks: Vec<usize>,
    reports: VecDeque<Report>,
    /// Ranks to start, with their incarnations, and the generation.
    orders: VecDeque<(u64, BTreeMap<usize, u32>)>,
    /// Ends of processes that it has not noticed yet.
    unnoticed: Vec<Loss>,
}

/// What the coordinator serves to ranks.
#[derive(Debug, Default)]
struct Store {
    sessions: BTreeSet<usize>,
    latest: u64,
    resumed: BTreeMap<u64, u64>,
    shown: BTreeMap<u64, BTreeMap<usize, Option<u64>>>,
    votes: BTreeMap<(u64, u64), BTreeSet<usize>>,
}

struct World {
    seed: u64,
    random: Random,
    policy: Recovery,
    store: Store,
    launchers: Vec<Launcher>,
    processes: BTreeMap<usize, Process>,
    finished: BTreeSet<usize>,
    world_size: usize,
    losses_left: usize,
    /// Of each rank: errors of its own, signals.
    faults: BTreeMap<usize, (u32, u32)>,
    ended: Option<Decision>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mut launchers = Vec::new();
        let mut world_size = 0;
        for _ in 0..1 + random.below(3) {
            let workers = 1 + random.below(3);
            let ranks = (world_size..world_size + workers).collect();
            launchers.push(Launcher { ranks, ..Launcher::default() });
            world_size += workers;
        }
        let fresh = || Process { incarnation: 0, generation: 0, step: Some(0), doing: Doing::Starting };
        World {
            seed,
            policy: Recovery::new(world_size),
            store: Store::default(),
            launchers,
            processes: (0..world_size).map(|rank| (rank, fresh())).collect(),
            finished: BTreeSet::new(),
            world_size,
            losses_left: random.below(9),
            faults: BTreeMap::new(),
            ended: None,
            random,
        }
    }

    fn is_over(&self) -> bool {
        self.ended.is_some() || self.finished.len() == self.world_size
    }

    fn turn(&mut self) {
        match self.random.below(8) {
            0 if self.losses_left > 0 && self.random.once_in(4) => self.lose_some(),
            0 | 1 => self.notice(),
            2 => self.deliver_reports(),
            3 => self.deliver_order(),
            _ => {
                let alive: Vec<usize> = self.processes.keys().copied().collect();
                if !alive.is_empty() {
                    let rank = *self.random.pick(&alive);
                    self.advance(rank);
                }
            }
        }
        self.check();
    }

    /// One or several processes end at the same moment.
    fn lose_some(&mut self) {
        self.losses_left -= 1;
        let together = if self.random.once_in(3) { 2 } else { 1 };
        for _ in 0..together {
            let alive: Vec<usize> = self.processes.keys().copied().collect();
            if alive.is_empty() {
                return;
            }
            let rank = *self.random.pick(&alive);
            let kind = if self.random.once_in(5) { LossKind::OwnError } else { LossKind::Signal };
            let faults = self.faults.entry(rank).or_default();
            match kind {
                LossKind::OwnError => faults.0 += 1,
                LossKind::Signal | LossKind::NotStarted => faults.1 += 1,
            }
            let process = self.processes.remove(&rank).expect("alive");
            let loss = Loss { rank, incarnation: process.incarnation, kind, cause: format!("rank {rank} was lost") };
            let owner = self.launchers.iter_mut().find(|launcher| launcher.ranks.contains(&rank));
            owner.expect("every rank has a launcher").unnoticed.push(loss);
        }
    }

    /// A launcher notices which of its workers have ended.
    fn notice(&mut self) {
        let which = self.random.below(self.launchers.len());
        let launcher = &mut self.launchers[which];
        if !launcher.unnoticed.is_empty() {
            launcher.reports.push_back(Report::Lost(std::mem::take(&mut launcher.unnoticed)));
        }
    }

    /// The coordinator reads what some launchers have sent; what arrives together is decided together.
    fn deliver_reports(&mut self) {
        let (mut losses, mut finished) = (Vec::new(), Vec::new());
        for which in 0..self.launchers.len() {
            let arrived = self.random.below(3).min(self.launchers[which].reports.len());
            for report in self.launchers[which].reports.drain(..arrived) {
                match report {
                    Report::Lost(lost) => losses.extend(lost),
                    Report::Finished(rank) => finished.push(rank),
                }
            }
        }
        self.read_resumed();
        for rank in finished {
            let decision = self.policy.finished(rank);
            self.carry_out(decision);
        }
        if self.ended.is_none() {
            let decision = self.policy.lost(&losses, |rank| self.store.sessions.contains(&rank));
            self.carry_out(decision);
        }
    }

    fn read_resumed(&mut self) {
        let newest = self.policy.unresumed().rev().find(|generation| self.store.resumed.contains_key(generation));
        if let Some(generation) = newest {
            let decision = self.policy.resumed(generation, self.store.resumed[&generation]);
            self.carry_out(decision);
        }
    }

    fn carry_out(&mut self, decision: Option<Decision>) {
        match decision {
            None => {}
            Some(Decision::Replace { generation, incarnations, .. }) => {
                assert_eq!(generation, self.store.latest + 1, "generations count up, {}", self.seed);
                self.store.latest = generation;
                for launcher in &mut self.launchers {
                    launcher.orders.push_back((generation, incarnations.clone()));
                }
            }
            Some(end) => {
                assert!(self.ended.is_none(), "nothing follows the end, SEED={}", self.seed);
                self.ended = Some(end);
            }
        }
    }

    /// A launcher starts its part of a generation.
    fn deliver_order(&mut self) {
        let which = self.random.below(self.launchers.len());
        let launcher = &mut self.launchers[which];
        let Some((generation, incarnations)) = launcher.orders.pop_front() else { return };
        for (rank, incarnation) in incarnations.into_iter().filter(|(rank, _)| launcher.ranks.contains(rank)) {
            let process = Process { incarnation, generation, step: None, doing: Doing::Starting };
            let alive = self.processes.insert(rank, process);
            assert!(alive.is_none(), "M7: rank {rank} has two processes, SEED={}", self.seed);
        }
    }

    /// A rank does the next thing of the protocol, if it can.
    fn advance(&mut self, rank: usize) {
        let everyone = self.world_size;
        let process = self.processes.get_mut(&rank).expect("alive");
        let store = &mut self.store;
        let vote = (process.generation, process.step.unwrap_or_default());
        match process.doing {
            Doing::Starting => {
                store.sessions.insert(rank);
                if process.incarnation == 0 && store.latest == 0 {
                    process.doing = Doing::Training;
                } else {
                    join(rank, process, store);
                }
            }
            Doing::Meeting => match store.shown.get(&process.generation) {
                Some(shown) if shown.len() == everyone => {
                    let newest = shown.values().flatten().max().copied().expect("somebody has the state");
                    assert!(process.step <= Some(newest), "rank {rank} would do a step twice, SEED={}", self.seed);
                    process.step = Some(newest);
                    process.doing = Doing::Training;
                    store.resumed.insert(process.generation, newest);
                }
                _ if store.latest > process.generation => join(rank, process, store),
                _ => {}
            },
            Doing::Training if store.latest > process.generation => join(rank, process, store),
            Doing::Training => {
                store.votes.entry(vote).or_default().insert(rank);
                process.doing = Doing::Voting;
            }
            Doing::Voting if store.votes[&vote].len() == everyone => {
                process.step = Some(vote.1 + 1);
                process.doing = Doing::Training;
                if vote.1 + 1 == STEPS {
                    self.processes.remove(&rank);
                    self.finished.insert(rank);
                    let owner = self.launchers.iter_mut().find(|launcher| launcher.ranks.contains(&rank));
                    owner.expect("every rank has a launcher").reports.push_back(Report::Finished(rank));
                }
            }
            Doing::Voting if store.latest > process.generation => join(rank, process, store),
            Doing::Voting => {}
        }
    }

    /// What must hold at any time: ranks that have the state are at most one step apart.
    fn check(&self) {
        let done = self.finished.iter().map(|_| STEPS);
        let steps: BTreeSet<u64> = self.processes.values().filter_map(|process| process.step).chain(done).collect();
        if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
            assert!(last - first <= 1, "a step was skipped: {steps:?}, SEED={}", self.seed);
        }
    }

    /// A job ends early only for a reason that the world agrees with.
    fn check_end(&self) {
        let seed = self.seed;
        match &self.ended {
            None => assert_eq!(self.finished.len(), self.world_size, "the job never ended, SEED={seed}"),
            Some(Decision::End { rank, reason }) => {
                let (own, signals) = self.faults[rank];
                assert!(own >= 2 || signals > MAX_SIGNALS, "{reason}, SEED={seed}");
            }
            Some(Decision::RestartAll { reason, .. }) if reason.contains("has already finished") => {
                assert!(!self.finished.is_empty(), "{reason}, SEED={seed}");
            }
            Some(Decision::RestartAll { reason, .. }) if reason.contains("no rank with the state") => {
                assert_eq!(self.faults.len(), self.world_size, "{reason}, SEED={seed}");
            }
            Some(Decision::RestartAll { reason, .. }) => {
                let without = (0..self.world_size).find(|rank| !self.store.sessions.contains(rank));
                assert!(without.is_some() && reason.contains("has no instep.elastic.Session"), "{reason}, SEED={seed}");
            }
            Some(Decision::Replace { .. }) => unreachable!("carried out at once"),
        }
    }
}

/// A rank shows its step in the newest generation.
fn join(rank: usize, process: &mut Process, store: &mut Store) {
    process.generation = store.latest;
    process.doing = Doing::Meeting;
    store.shown.entry(store.latest).or_default().insert(rank, process.step);
}

#[test]
fn random_losses_keep_one_process_a_rank_and_every_step_is_done_once() {
    let (mut recovered, mut restarted, mut failed) = (0, 0, 0);
    let seeds = seeds(1700, 300, &[]);
    for seed in &seeds {
        let mut world = World::new(*seed);
        for _ in 0..MAX_TURNS {
            if world.is_over() {
                break;
            }
            world.turn();
        }
        world.check_end();
        match world.ended {
            None => recovered += usize::from(world.store.latest > 0),
            Some(Decision::End { .. }) => failed += 1,
            Some(_) => restarted += 1,
        }
    }
    // Each kind of end must come up, or nothing was tested.
    if seeds.len() > 1 {
        assert!(recovered > 100 && restarted > 100 && failed > 0, "{recovered} {restarted} {failed}");
    }
}
