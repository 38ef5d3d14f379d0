//! Recovery at a step, simulated: launchers that tell of losses late, ranks that follow the protocol, losses at any moment.
//!
//! Messages between a launcher and the coordinator arrive in order and at any time, as over TCP; several may arrive at once.
//! A rank of generation g votes for its step and commits it when all ranks of g have voted; when a newer generation is
//! published it shows its step to the others, and all take the newest one, which newcomers receive.
//!
//! Nodes are lost too. The processes of one whose connection broke end with it; those of one that is only silent live on as
//! *ghosts* until their launcher comes back and ends them, or until they see that others have their ranks. Some launchers
//! have no ranks at first and stand by for those of lost nodes.
//!
//! `SEED=... cargo test -p instep-policy recovery` replays one schedule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use instep_policy::membership::NodeId;
use instep_policy::recovery::{Decision, Loss, LossKind, MAX_SIGNALS, NodeLoss, Recovery, RoundNode};
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
    /// Which of all processes, as the system numbers them.
    pid: usize,
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
    /// As the coordinator knows it, and as the launcher does, which may not have heard yet that a rank has moved to it.
    ranks: Vec<usize>,
    own: BTreeSet<usize>,
    reports: VecDeque<Report>,
    orders: VecDeque<Order>,
    /// Ends of processes that it has not noticed yet.
    unnoticed: Vec<Loss>,
    spares: usize,
    /// It had no ranks at first.
    stood_by: bool,
    /// Since its node was lost it hears nothing; the coordinator knows that, or not yet.
    lost: Option<Noticed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noticed {
    NotYet,
    Yes,
}

/// The ranks to start in a generation: their incarnations, and for those that move the launcher.
type Order = (u64, BTreeMap<usize, u32>, BTreeMap<usize, NodeId>);

/// What the coordinator serves to ranks.
#[derive(Debug, Default)]
struct Store {
    sessions: BTreeSet<usize>,
    latest: u64,
    incarnations: BTreeMap<usize, u32>,
    resumed: BTreeMap<u64, u64>,
    /// By generation and rank: the process that is there, and its step.
    shown: BTreeMap<u64, BTreeMap<usize, (usize, Option<u64>)>>,
    votes: BTreeMap<(u64, u64), BTreeSet<usize>>,
}

struct World {
    seed: u64,
    random: Random,
    policy: Recovery,
    store: Store,
    launchers: Vec<Launcher>,
    processes: BTreeMap<usize, Process>,
    /// How many there have been.
    started: usize,
    /// Processes of silent nodes whose ranks others have, with their rank and launcher.
    ghosts: Vec<(usize, usize, Process)>,
    finished: BTreeSet<usize>,
    world_size: usize,
    /// The job has no more nodes than this at a time.
    max_nodes: usize,
    losses_left: usize,
    /// Of each rank: errors of its own, signals.
    faults: BTreeMap<usize, (u32, u32)>,
    ended: Option<Decision>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (mut launchers, mut nodes) = (Vec::new(), Vec::new());
        let mut world_size = 0;
        for number in 0..1 + random.below(4) {
            let (workers, spares) = (1 + random.below(3), random.below(4));
            let ranks = world_size..world_size + workers;
            let (node, role) = (NodeId(number as u64), "default".to_owned());
            nodes.push(RoundNode { node, ranks: ranks.clone(), spares, role });
            let own = ranks.clone().collect();
            launchers.push(Launcher { ranks: ranks.collect(), own, spares, ..Launcher::default() });
            world_size += workers;
        }
        let max_nodes = nodes.len() + random.below(2);
        for _ in 0..random.below(3) {
            launchers.push(Launcher { spares: 1 + random.below(4), stood_by: true, ..Launcher::default() });
        }
        let fresh = |pid| Process { pid, incarnation: 0, generation: 0, step: Some(0), doing: Doing::Starting };
        World {
            seed,
            policy: Recovery::new(&nodes),
            store: Store::default(),
            launchers,
            processes: (0..world_size).map(|rank| (rank, fresh(rank))).collect(),
            started: world_size,
            ghosts: Vec::new(),
            finished: BTreeSet::new(),
            world_size,
            max_nodes,
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
        match self.random.below(9) {
            0 if self.losses_left > 0 && self.random.once_in(4) => self.lose_some(),
            0 if self.losses_left > 0 && self.random.once_in(16) => self.lose_node(),
            0 | 1 => self.notice(),
            2 => self.deliver_reports(),
            3 => self.deliver_order(),
            4 => self.haunt(),
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
                LossKind::Signal | LossKind::NotStarted | LossKind::WithNode => faults.1 += 1,
            }
            let process = self.processes.remove(&rank).expect("alive");
            let loss = Loss { rank, incarnation: process.incarnation, kind, cause: format!("rank {rank} was lost") };
            self.owner(rank).unnoticed.push(loss);
        }
    }

    /// The launcher that has this rank now.
    fn owner(&mut self, rank: usize) -> &mut Launcher {
        self.launchers.iter_mut().find(|launcher| launcher.ranks.contains(&rank)).expect("every rank has a launcher")
    }

    /// A node dies, or is cut off; the first one has the coordinator.
    fn lose_node(&mut self) {
        let which = self.random.below(self.launchers.len());
        if which == 0 || self.launchers[which].lost.is_some() {
            return;
        }
        self.losses_left -= 1;
        let launcher = &mut self.launchers[which];
        launcher.lost = Some(Noticed::NotYet);
        launcher.orders.clear();
        if self.random.once_in(2) {
            self.processes.retain(|rank, _| !self.launchers[which].ranks.contains(rank));
        }
    }

    /// What lives on a node that was given up does something, or ends with its launcher.
    fn haunt(&mut self) {
        if self.ghosts.is_empty() {
            return;
        }
        let which = self.random.below(self.ghosts.len());
        let (rank, launcher, process) = self.ghosts.swap_remove(which);
        if self.random.once_in(8) {
            self.ghosts.retain(|(_, of, _)| *of != launcher);
        } else if let Some(process) = self.act(rank, process) {
            self.ghosts.push((rank, launcher, process));
        }
    }

    /// A launcher notices which of its workers have ended.
    fn notice(&mut self) {
        let which = self.random.below(self.launchers.len());
        let launcher = &mut self.launchers[which];
        if !launcher.unnoticed.is_empty() && launcher.lost.is_none() {
            launcher.reports.push_back(Report::Lost(std::mem::take(&mut launcher.unnoticed)));
        }
    }

    /// The coordinator reads what some launchers have sent; what arrives together is decided together.
    fn deliver_reports(&mut self) {
        let (mut losses, mut finished, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        for which in 0..self.launchers.len() {
            if self.launchers[which].lost == Some(Noticed::NotYet) && self.random.once_in(2) {
                self.launchers[which].lost = Some(Noticed::Yes);
                // What it has said before is read first.
                let said = std::mem::take(&mut self.launchers[which].reports);
                finished.extend(said.iter().filter_map(|report| match report {
                    Report::Finished(rank) => Some(*rank),
                    Report::Lost(_) => None,
                }));
                nodes.push(NodeLoss { node: NodeId(which as u64), cause: format!("node {which} was lost") });
            }
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
            let (standbys, most) = self.standbys();
            self.policy.stand_by(&standbys, most);
            let decision = self.policy.lost(&losses, &nodes, |rank| self.store.sessions.contains(&rank));
            let unfinished = nodes.iter().flat_map(|loss| &self.launchers[loss.node.0 as usize].ranks);
            if decision.is_none() && unfinished.clone().any(|rank| !self.finished.contains(rank)) {
                panic!("nobody has the ranks {:?}, SEED={}", unfinished.collect::<Vec<_>>(), self.seed);
            }
            self.carry_out(decision);
        }
    }

    /// The launchers that the coordinator knows and that have no part in the round, and how many of them may get one.
    fn standbys(&self) -> (Vec<RoundNode>, usize) {
        let there = |which: &usize| self.launchers[*which].lost != Some(Noticed::Yes);
        let known = (0..self.launchers.len()).filter(there).map(|which| (which, NodeId(which as u64)));
        let (members, others): (Vec<_>, Vec<_>) = known.partition(|(_, node)| self.policy.has_node(*node));
        let standby = |(which, node): (usize, NodeId)| {
            let (spares, role) = (self.launchers[which].spares, "default".to_owned());
            RoundNode { node, ranks: 0..0, spares, role }
        };
        (others.into_iter().map(standby).collect(), self.max_nodes - members.len())
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
            Some(Decision::Replace { generation, incarnations, moved, .. }) => {
                assert_eq!(generation, self.store.latest + 1, "generations count up, {}", self.seed);
                self.store.latest = generation;
                self.store.incarnations.extend(&incarnations);
                for (rank, node) in &moved {
                    self.move_rank(*rank, node.0 as usize);
                }
                for launcher in self.launchers.iter_mut().filter(|launcher| launcher.lost.is_none()) {
                    launcher.orders.push_back((generation, incarnations.clone(), moved.clone()));
                }
            }
            Some(end) => {
                assert!(self.ended.is_none(), "nothing follows the end, SEED={}", self.seed);
                self.ended = Some(end);
            }
        }
    }

    /// From now on another launcher has this rank; what its node has left of it becomes a ghost.
    fn move_rank(&mut self, rank: usize, to: usize) {
        let from = self.launchers.iter().position(|launcher| launcher.ranks.contains(&rank)).expect("somebody has it");
        assert_eq!(self.launchers[from].lost, Some(Noticed::Yes), "rank {rank} had a node, SEED={}", self.seed);
        assert_ne!(self.launchers[to].lost, Some(Noticed::Yes), "rank {rank} has no node, SEED={}", self.seed);
        assert!(self.launchers[to].spares > 0, "node {to} has no spare for rank {rank}, SEED={}", self.seed);
        self.launchers[to].spares -= 1;
        self.launchers[from].ranks.retain(|own| *own != rank);
        self.launchers[to].ranks.push(rank);
        if let Some(process) = self.processes.remove(&rank) {
            self.ghosts.push((rank, from, process));
        }
    }

    /// A launcher starts its part of a generation.
    fn deliver_order(&mut self) {
        let which = self.random.below(self.launchers.len());
        let launcher = &mut self.launchers[which];
        let Some((generation, incarnations, moved)) = launcher.orders.pop_front() else { return };
        launcher.own.extend(moved.iter().filter(|(_, node)| node.0 as usize == which).map(|(rank, _)| *rank));
        for (rank, incarnation) in incarnations.into_iter().filter(|(rank, _)| launcher.own.contains(rank)) {
            let process = Process { pid: self.started, incarnation, generation, step: None, doing: Doing::Starting };
            self.started += 1;
            let alive = self.processes.insert(rank, process);
            assert!(alive.is_none(), "M7: rank {rank} has two processes, SEED={}", self.seed);
        }
    }

    /// A rank does the next thing of the protocol, if it can.
    fn advance(&mut self, rank: usize) {
        let process = self.processes.remove(&rank).expect("alive");
        match self.act(rank, process) {
            Some(process) => drop(self.processes.insert(rank, process)),
            None => {
                self.finished.insert(rank);
                self.owner(rank).reports.push_back(Report::Finished(rank));
            }
        }
    }

    /// What a process does next, of whichever generation; nothing is left of one that ends.
    fn act(&mut self, rank: usize, mut process: Process) -> Option<Process> {
        let everyone = self.world_size;
        let store = &mut self.store;
        let vote = (process.generation, process.step.unwrap_or_default());
        let is_superseded = store.incarnations.get(&rank).is_some_and(|newest| *newest > process.incarnation);
        match process.doing {
            Doing::Voting if store.votes[&vote].len() == everyone => {
                process.step = Some(vote.1 + 1);
                process.doing = Doing::Training;
                return (vote.1 + 1 < STEPS).then_some(process);
            }
            // It finds another incarnation in the newest generation.
            _ if is_superseded => return None,
            Doing::Starting => {
                store.sessions.insert(rank);
                if process.incarnation == 0 && store.latest == 0 {
                    process.doing = Doing::Training;
                } else {
                    self.join(rank, &mut process);
                }
            }
            Doing::Meeting => match store.shown.get(&process.generation) {
                Some(shown) if shown.len() == everyone => {
                    let newest = shown.values().filter_map(|(_, step)| *step).max().expect("somebody has the state");
                    assert!(process.step <= Some(newest), "rank {rank} would do a step twice, SEED={}", self.seed);
                    process.step = Some(newest);
                    process.doing = Doing::Training;
                    store.resumed.insert(process.generation, newest);
                }
                _ if store.latest > process.generation => self.join(rank, &mut process),
                _ => {}
            },
            Doing::Training if store.latest > process.generation => self.join(rank, &mut process),
            Doing::Training => {
                store.votes.entry(vote).or_default().insert(rank);
                process.doing = Doing::Voting;
            }
            Doing::Voting if store.latest > process.generation => self.join(rank, &mut process),
            Doing::Voting => {}
        }
        Some(process)
    }

    /// A rank shows its step in the newest generation.
    fn join(&mut self, rank: usize, process: &mut Process) {
        process.generation = self.store.latest;
        process.doing = Doing::Meeting;
        let shown = self.store.shown.entry(self.store.latest).or_default();
        let before = shown.insert(rank, (process.pid, process.step));
        let same = before.is_none_or(|(pid, _)| pid == process.pid);
        assert!(same, "M7: two processes of rank {rank} are in one generation, SEED={}", self.seed);
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
                let whole = self.launchers.iter().any(|launcher| launcher.lost.is_some());
                assert!(whole || self.faults.len() == self.world_size, "{reason}, SEED={seed}");
            }
            Some(Decision::RestartAll { reason, .. }) if reason.contains("short (--spares)") => {
                let gone = self.launchers.iter().filter(|launcher| launcher.lost == Some(Noticed::Yes));
                let unplaced: usize = gone.map(|launcher| launcher.ranks.len()).sum();
                let (standbys, most) = self.standbys();
                let is_member = |which: &usize| self.policy.has_node(NodeId(*which as u64));
                let members = (0..self.launchers.len()).filter(is_member).map(|which| self.launchers[which].spares);
                let mut room: Vec<usize> = standbys.iter().map(|standby| standby.spares).collect();
                room.sort_unstable();
                let most_room: usize = room.iter().rev().take(most).sum();
                assert!(unplaced > members.sum::<usize>() + most_room, "{reason}, SEED={seed}");
            }
            Some(Decision::RestartAll { reason, .. }) => {
                let without = (0..self.world_size).find(|rank| !self.store.sessions.contains(rank));
                assert!(without.is_some() && reason.contains("has no instep.elastic.Session"), "{reason}, SEED={seed}");
            }
            Some(Decision::Replace { .. }) => unreachable!("carried out at once"),
        }
    }
}

#[test]
fn random_losses_keep_one_process_a_rank_and_every_step_is_done_once() {
    let (mut recovered, mut restarted, mut failed, mut moved, mut promoted, mut short) = (0, 0, 0, 0, 0, 0);
    let seeds = seeds(1700, 900, &[139_884_034_075_126_349]);
    for seed in &seeds {
        let mut world = World::new(*seed);
        for _ in 0..MAX_TURNS {
            if world.is_over() {
                break;
            }
            world.turn();
        }
        world.check_end();
        let node_lost = world.launchers.iter().any(|launcher| launcher.lost == Some(Noticed::Yes));
        match world.ended {
            None => {
                recovered += usize::from(world.store.latest > 0);
                moved += usize::from(node_lost);
                let stood_by = |launcher: &Launcher| launcher.stood_by && !launcher.ranks.is_empty();
                promoted += usize::from(world.launchers.iter().any(stood_by));
            }
            Some(Decision::RestartAll { reason, .. }) if reason.contains("short") => short += 1,
            Some(Decision::End { .. }) => failed += 1,
            Some(_) => restarted += 1,
        }
    }
    // Each kind of end must come up, or nothing was tested.
    if seeds.len() > 1 {
        let kinds = [recovered, restarted, failed, moved, promoted, short];
        let enough = recovered > 300 && restarted > 100 && failed > 0 && moved > 50 && promoted > 10 && short > 20;
        assert!(enough, "{kinds:?}");
    }
}
