//! The machines, the network and the clock of the simulation, and what must hold in it.

mod following;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instep_policy::election::{Answer, Epoch, HostPort, Loss, SUCCESSORS, Successor, steps_down};
use instep_policy::membership::{
    Action, Event, LauncherId, Membership, MembershipTerms, NodeFacts, NodeId, Quorum, Vote,
};
use instep_testkit::Random;

use crate::elastic::launcher::{
    CoordinatorMessage, INTERVAL, JoinedNode, Launcher, LauncherMessage, WINDOW, Wire, Workers,
};

const STEP: Duration = Duration::from_millis(50);
/// Where the endpoint is.
const FIRST: usize = 0;

pub fn terms(min_nodes: usize, max_nodes: usize) -> MembershipTerms {
    MembershipTerms {
        min_nodes,
        max_nodes,
        fixed_ranks: false,
        max_restarts: 1000,
        last_call: Duration::from_secs(3),
        join_timeout: Duration::from_secs(3600),
        max_changes: 1000,
        settle: Duration::from_secs(1),
        rejoin_window: crate::elastic::launcher::COORDINATOR_WINDOW,
        fence: 4 * INTERVAL,
        quorum: Quorum::Majority,
        step_recovery: false,
    }
}

pub struct World {
    pub now: Duration,
    seed: u64,
    terms: MembershipTerms,
    machines: usize,
    launchers: BTreeMap<LauncherId, Launcher>,
    wires: BTreeMap<NodeId, Wire>,
    /// Which machines are on the far side of a cut.
    cut: BTreeSet<usize>,
    next: u64,
    slow: bool,
    /// A round was committed once.
    any_round: bool,
    /// One schedule is replayed: the story is wanted.
    verbose: bool,
    log: Vec<String>,
    /// How often others took the ranks of a node over.
    pub replaced: usize,
    /// How often a node got ranks that had stood by.
    pub promoted: usize,
}

impl World {
    pub fn new(seed: u64, verbose: bool, step_recovery: bool, random: &mut Random) -> World {
        let min = 1 + random.below(3);
        let max = min + 1 + random.below(3);
        let machines = (max + random.below(2)).max(2);
        let mut world = World {
            now: Duration::ZERO,
            seed,
            terms: MembershipTerms { step_recovery, ..terms(min, max) },
            machines,
            launchers: BTreeMap::new(),
            wires: BTreeMap::new(),
            cut: BTreeSet::new(),
            next: 1,
            slow: random.once_in(3),
            any_round: false,
            verbose,
            log: Vec::new(),
            replaced: 0,
            promoted: 0,
        };
        for machine in 0..machines {
            if machine == FIRST || !random.once_in(4) {
                world.launch(machine);
            }
        }
        world
    }

    fn note(&mut self, text: impl Fn() -> String) {
        if self.verbose {
            self.log.push(format!("{:>8.2} {}", self.now.as_secs_f64(), text()));
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!("SEED={}: {what}\n{}\n{:#?}", self.seed, self.log.join("\n"), self.describe());
    }

    fn describe(&self) -> Vec<String> {
        let launchers = self.launchers.values().map(|one| {
            let (id, machine, workers, link) = (one.id, one.machine, one.workers, one.link);
            format!(
                "{id:?} on {machine}: {workers:?}, link {link:?}, claims {:?}, searching {}",
                one.claim(),
                one.election.is_some()
            )
        });
        launchers.chain([format!("cut {:?}, {:?}", self.cut, self.terms)]).collect()
    }

    fn launch(&mut self, machine: usize) {
        let id = LauncherId(self.next);
        self.next += 1;
        let mut launcher = Launcher::new(id, machine, self.now);
        if machine == FIRST {
            launcher.lead(Membership::new(self.terms.clone(), self.now), false, self.now);
        }
        self.note(|| format!("{id:?} starts on {machine}"));
        self.launchers.insert(id, launcher);
        if machine == FIRST {
            self.join(id, id);
        }
    }

    fn connected(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&one) == self.cut.contains(&other)
    }

    fn awake(&self, launcher: &Launcher) -> bool {
        self.now >= launcher.paused_until
    }

    /// Something that nobody wanted, or somebody did.
    pub fn trouble(&mut self, random: &mut Random) {
        let ids: Vec<LauncherId> = self.launchers.keys().copied().collect();
        let someone = ids.get(random.below(ids.len().max(1))).copied();
        match random.below(12) {
            0 | 1 if self.cut.is_empty() => {
                self.cut = (0..self.machines).filter(|_| random.once_in(2)).collect();
                let cut = self.cut.clone();
                self.note(|| format!("cut off: {cut:?}"));
            }
            0..=3 if !self.cut.is_empty() => {
                self.cut.clear();
                self.note(|| "healed".to_owned());
            }
            4 | 5 => self.start_somewhere(random),
            6 | 7 => {
                if let Some(id) = someone {
                    self.note(|| format!("{id:?} is killed"));
                    self.kill(id);
                }
            }
            8 => {
                if let Some(launcher) = someone.and_then(|id| self.launchers.get_mut(&id)) {
                    launcher.draining = true;
                }
            }
            9 => {
                let until = self.now + Duration::from_millis(random.below(8000) as u64);
                if let Some(launcher) = someone.and_then(|id| self.launchers.get_mut(&id)) {
                    // Its workers would go on while it cannot end them: nobody promises anything about those.
                    if launcher.workers.is_none() && launcher.ending.is_none() {
                        launcher.paused_until = until;
                        let id = launcher.id;
                        self.note(|| format!("{id:?} is paused until {:.2}", until.as_secs_f64()));
                    }
                }
            }
            10 => {
                if let Some(launcher) = someone.and_then(|id| self.launchers.get_mut(&id))
                    && launcher.workers.is_some()
                    && launcher.ending.is_none()
                    && launcher.link.is_some()
                {
                    launcher.ending = Some(self.now);
                    let wire = launcher.link.map(|(_, node)| node);
                    self.say(wire, LauncherMessage::Failed, random);
                }
            }
            _ => {}
        }
    }

    /// A fresh launcher, where there is none. One at the endpoint knows nothing of a job that has moved, and is told by
    /// it within a second: so it comes only while it can be told.
    fn start_somewhere(&mut self, random: &mut Random) {
        let taken: BTreeSet<usize> = self.launchers.values().map(|one| one.machine).collect();
        let free: Vec<usize> = (0..self.machines).filter(|machine| !taken.contains(machine)).collect();
        if free.is_empty() {
            return;
        }
        let machine = *random.pick(&free);
        let all_awake = self.launchers.values().all(|one| self.awake(one));
        if machine != FIRST || (self.cut.is_empty() && all_awake) {
            self.launch(machine);
            if machine == FIRST {
                self.run_for(Duration::from_secs(4), random);
            }
        }
    }

    fn kill(&mut self, id: LauncherId) {
        self.launchers.remove(&id);
    }

    /// No more faults: one round runs with everybody there is room for.
    pub fn calm(&mut self, random: &mut Random) {
        self.cut.clear();
        self.slow = false;
        self.note(|| "calm".to_owned());
        for launcher in self.launchers.values_mut() {
            launcher.paused_until = Duration::ZERO;
        }
        // What was on its way ends first, and then whoever is missing comes.
        self.run_for(Duration::from_secs(20), random);
        for machine in 0..self.machines {
            if !self.launchers.values().any(|one| one.machine == machine) {
                self.launch(machine);
            }
        }
        self.run_for(Duration::from_secs(40), random);
        if !self.quorum_is_reachable() {
            return;
        }
        let able = self.launchers.values().filter(|one| !self.is_stranded(one)).count();
        // A round that keeps its step is not stopped for those who wait.
        let expected = if self.terms.step_recovery { 1 } else { able.min(self.terms.max_nodes) };
        let working: Vec<Workers> = self.launchers.values().filter_map(|one| one.workers).collect();
        if working.len() < expected {
            self.fail(&format!("{} of {expected} nodes work in the end", working.len()));
        }
    }

    /// Whether enough nodes live of the newest committed round of which any node knows, and one of them knows of it: a
    /// spare that has heard of a round cannot take it over.
    fn quorum_is_reachable(&self) -> bool {
        let known = self.launchers.values().filter_map(|one| one.epoch.as_ref());
        let Some(newest) = known.max_by_key(|epoch| epoch.round) else { return !self.any_round };
        let alive = newest.successors.iter().filter_map(|one| self.launchers.get(&one.launcher));
        let knows = |one: &Launcher| one.epoch.as_ref().is_some_and(|epoch| epoch.round == newest.round);
        alive.clone().any(knows) && 2 * alive.filter(|one| !self.is_stranded(one)).count() > newest.size
    }

    /// Whether a launcher comes from a round that may be committed, and of which too few live.
    fn is_stranded(&self, launcher: &Launcher) -> bool {
        let lost = |vote: &Vote| {
            let alive = vote.order.iter().filter(|launcher| self.launchers.contains_key(launcher));
            2 * alive.count() <= vote.size
        };
        launcher.votes.uncommitted().iter().any(lost)
    }

    pub fn run_for(&mut self, time: Duration, random: &mut Random) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            let ids: Vec<LauncherId> = self.launchers.keys().copied().collect();
            for id in ids {
                if self.launchers.get(&id).is_some_and(|launcher| self.awake(launcher)) {
                    self.lead_step(id, random);
                    self.follow_step(id, random);
                }
            }
        }
    }

    fn delay(&self, random: &mut Random) -> Duration {
        self.now + Duration::from_millis(random.below(if self.slow { 400 } else { 40 }) as u64)
    }

    fn say(&mut self, wire: Option<NodeId>, word: LauncherMessage, random: &mut Random) {
        let due = self.delay(random);
        if let Some(wire) = wire.and_then(|node| self.wires.get_mut(&node)) {
            wire.messages.push_back((due, word));
        }
    }

    fn order(&mut self, node: NodeId, order: CoordinatorMessage, random: &mut Random) {
        let due = self.delay(random);
        if let Some(wire) = self.wires.get_mut(&node) {
            wire.instructions.push_back((due, order));
        }
    }

    /// A launcher says hello to one that leads. False if that one does not take it.
    fn join(&mut self, id: LauncherId, leader: LauncherId) -> bool {
        let now = self.now;
        let Some(launcher) = self.launchers.get(&id) else { return false };
        let facts = NodeFacts {
            launcher: id,
            last_round: launcher.last_round,
            votes: launcher.votes.uncommitted(),
            busy: launcher.workers.is_some(),
            after_silence: launcher.loss == Loss::Silent,
            address: launcher.machine.to_string(),
            process: 1,
            workers: 1,
            role: "default".to_owned(),
            node_rank: 0,
            host: id == leader,
            foreign: false,
        };
        let address = launcher.address();
        let node = NodeId(self.next);
        self.next += 1;
        let Some(leading) = self.launchers.get_mut(&leader).and_then(|one| one.leading.as_mut()) else { return false };
        let earlier = leading.joined.iter().find(|(_, joined_node)| joined_node.launcher == id).map(|(node, _)| *node);
        let mut actions = Vec::new();
        if let Some(earlier) = earlier {
            leading.joined.remove(&earlier);
            let cause = "it connected again".to_owned();
            actions.extend(leading.membership.on(Event::Lost { node: earlier, cause, silent: true }, now));
        }
        let answer = leading.membership.on(Event::Joined { node, facts }, now);
        let refused = answer.iter().any(|action| matches!(action, Action::Refuse { .. }));
        actions.extend(answer);
        if !refused {
            leading.joined.insert(node, JoinedNode { launcher: id, heard: leading.failure_detector.awake_time(now) });
            leading.addresses.insert(id, address);
            let epoch = leading.epoch.clone();
            self.wires.insert(node, Wire::default());
            if let Some(launcher) = self.launchers.get_mut(&id) {
                launcher.link = Some((leader, node));
                launcher.heard = launcher.failure_detector.awake_time(now);
                launcher.confirmed = now;
                launcher.election = None;
                launcher.led_by = None;
                if let Some(epoch) = epoch {
                    launcher.learn(epoch);
                }
            }
        }
        // Carried out without delay: the answers on the wires take theirs.
        let mut random = Random::new(self.seed ^ self.next);
        self.perform(leader, actions, &mut random);
        !refused
    }

    fn perform(&mut self, leader: LauncherId, actions: Vec<Action>, random: &mut Random) {
        for action in actions {
            match action {
                Action::Start { round, restarts, changes, members, .. } => {
                    if !(self.terms.min_nodes..=self.terms.max_nodes).contains(&members.len()) {
                        self.fail("a round of a wrong size (M2)");
                    }
                    let Some(leading) = self.launchers.get_mut(&leader).and_then(|one| one.leading.as_mut()) else {
                        return;
                    };
                    let successor = |member: &instep_policy::membership::RoundMember| {
                        let launcher = leading.joined.get(&member.node)?.launcher;
                        Some(Successor { launcher, address: leading.addresses.get(&launcher)?.clone() })
                    };
                    let successors: Vec<Successor> = members.iter().filter_map(successor).take(SUCCESSORS).collect();
                    let size = members.len();
                    let epoch = Epoch { round, restarts, changes, size, host: Some(leader), successors };
                    leading.pending = Some(epoch.clone());
                    self.note(|| format!("{leader:?} starts round {round} with {size}"));
                    for member in &members {
                        let (rank, epoch) = (member.first_rank, epoch.clone());
                        self.order(member.node, CoordinatorMessage::Start { epoch, rank }, random);
                    }
                }
                Action::Commit { .. } => {
                    let Some(leading) = self.launchers.get_mut(&leader).and_then(|one| one.leading.as_mut()) else {
                        return;
                    };
                    leading.epoch = leading.pending.clone();
                    self.any_round = true;
                    let (nodes, epoch) = (leading.joined.keys().copied().collect::<Vec<_>>(), leading.epoch.clone());
                    for (node, epoch) in nodes.into_iter().zip(std::iter::repeat(epoch)) {
                        if let Some(epoch) = epoch {
                            self.order(node, CoordinatorMessage::Epoch(epoch), random);
                        }
                    }
                }
                Action::Stop { nodes, at_once, .. } => {
                    for node in nodes {
                        self.order(node, CoordinatorMessage::Stop { at_once }, random);
                    }
                }
                Action::Refuse { .. } | Action::Waiting { .. } => {}
                Action::Fail { reason } => self.fail(&format!("the job failed: {reason}")),
                Action::Complete => self.fail("the job completed"),
            }
        }
    }

    /// What becomes of the news that nodes are lost where others may take their ranks over: spares are there or not.
    fn replacing(&mut self, leader: LauncherId, event: Event, random: &mut Random) -> Vec<Event> {
        let lost = match &event {
            Event::Lost { node, silent, .. } => vec![(*node, *silent)],
            Event::Silent { nodes } => nodes.iter().map(|(node, _)| (*node, true)).collect(),
            _ => return vec![event],
        };
        let Some(leading) = self.launchers.get(&leader).and_then(|one| one.leading.as_ref()) else {
            return vec![event];
        };
        let membership = &leading.membership;
        let recovers = self.terms.step_recovery && membership.is_running() && membership.may_continue_without(&lost);
        if !recovers || lost.iter().any(|(node, _)| !membership.has_member(*node)) || random.once_in(3) {
            return vec![event];
        }
        let lost_nodes: Vec<NodeId> = lost.iter().map(|(node, _)| *node).collect();
        let (standbys, most) = membership.standbys(&lost_nodes);
        let round = membership.round().unwrap_or_default();
        let wanted = if random.once_in(2) { lost.len().min(most) } else { 0 };
        let called: Vec<NodeId> = standbys.into_iter().take(wanted).collect();
        self.replaced += lost.len();
        self.promoted += called.len();
        for node in &called {
            self.order(*node, CoordinatorMessage::CallUp { round }, random);
        }
        self.note(|| format!("{leader:?} has the ranks of {lost:?} taken over"));
        let replaced = |(node, silent)| Event::Replaced { node, cause: String::new(), silent };
        called.into_iter().map(|node| Event::Promoted { node }).chain(lost.into_iter().map(replaced)).collect()
    }

    /// What a coordinator does in a moment.
    fn lead_step(&mut self, id: LauncherId, random: &mut Random) {
        let now = self.now;
        let Some(machine) = self.launchers.get(&id).filter(|one| one.leading.is_some()).map(|one| one.machine) else {
            return;
        };
        let mut events = Vec::new();
        let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.as_mut()) else { return };
        let away = leading.failure_detector.tick(now);
        if leading.failure_detector.outlasts(away, WINDOW) {
            let joined =
                leading.joined.iter().filter(|(_, joined_node)| joined_node.launcher != id).map(|(node, _)| *node);
            let mut given_up = Vec::new();
            for node in joined.collect::<Vec<_>>() {
                leading.joined.remove(&node);
                if let Some(wire) = self.wires.get_mut(&node) {
                    wire.closed = true;
                }
                given_up.push((node, "we were away".to_owned()));
            }
            events.push(Event::Silent { nodes: given_up });
        }
        let joined: Vec<(NodeId, LauncherId)> = self.launchers[&id]
            .leading
            .iter()
            .flat_map(|leading| leading.joined.iter().map(|(node, joined_node)| (*node, joined_node.launcher)))
            .collect();
        for (node, launcher) in joined {
            // A machine that cannot be reached says nothing, and no system tells of its end.
            let there = self.launchers.get(&launcher).map(|one| one.machine);
            let where_it_was = there.or_else(|| self.machine_of(id, launcher));
            if !where_it_was.is_some_and(|other| self.connected(machine, other)) {
                continue;
            }
            let wire = self.wires.entry(node).or_default();
            while wire.messages.front().is_some_and(|(due, _)| *due <= now) {
                let Some((_, word)) = wire.messages.pop_front() else { break };
                let cause = String::new();
                events.push(match word {
                    LauncherMessage::Started => Event::Started { node },
                    LauncherMessage::Stopped => Event::Stopped { node },
                    LauncherMessage::Failed => Event::Failed { node, cause },
                    LauncherMessage::Draining => Event::Draining { node, cause },
                    LauncherMessage::Left => Event::Left { node, cause, failed: false },
                    LauncherMessage::Parting => Event::Lost { node, cause, silent: true },
                });
            }
            if (there.is_none() || wire.left) && wire.messages.is_empty() {
                events.push(Event::Lost { node, cause: "its connection broke".to_owned(), silent: false });
            }
        }
        let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.as_mut()) else { return };
        let silent: Vec<NodeId> = leading
            .joined
            .iter()
            .filter(|(_, joined_node)| {
                joined_node.launcher != id && leading.failure_detector.suspicion(joined_node.heard, now).is_some()
            })
            .map(|(node, _)| *node)
            .collect();
        for node in &silent {
            leading.joined.remove(node);
        }
        if !silent.is_empty() {
            let nodes = silent.iter().map(|node| (*node, "silent".to_owned())).collect();
            events.push(Event::Silent { nodes });
        }
        if leading.membership.wake_at().is_some_and(|due| due <= now) {
            events.push(Event::Tick);
        }
        for node in silent {
            self.order(node, CoordinatorMessage::Dropped, random);
            if let Some(wire) = self.wires.get_mut(&node) {
                wire.closed = true;
            }
        }
        for event in events {
            let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.as_mut()) else { return };
            if let Event::Lost { node, .. } | Event::Left { node, .. } = &event {
                let node = *node;
                leading.joined.remove(&node);
                if let Some(wire) = self.wires.get_mut(&node) {
                    wire.closed = true;
                }
            }
            for event in self.replacing(id, event, random) {
                let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.as_mut()) else { return };
                let actions = leading.membership.on(event, now);
                self.perform(id, actions, random);
            }
        }
        self.probe(id, machine, random);
    }

    /// Where a launcher that is gone was, as its coordinator knows.
    fn machine_of(&self, leader: LauncherId, launcher: LauncherId) -> Option<usize> {
        self.launchers.get(&leader)?.leading.as_ref()?.addresses.get(&launcher)?.host.parse().ok()
    }

    fn probe(&mut self, id: LauncherId, machine: usize, random: &mut Random) {
        let now = self.now;
        let Some(ours) = self.launchers[&id].claim() else { return };
        let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.as_mut()) else { return };
        if now < leading.next_probe {
            return;
        }
        leading.next_probe = now + Duration::from_millis(500);
        let missing = if ours.running { Vec::new() } else { leading.membership.unaccounted() };
        let mut targets: Vec<(HostPort, Option<LauncherId>)> =
            missing.into_iter().filter_map(|one| Some((leading.addresses.get(&one)?.clone(), Some(one)))).collect();
        if leading.resumed {
            targets.push((HostPort { host: FIRST.to_string(), port: 0 }, None));
        }
        let mut leaders = Vec::new();
        for (address, expected) in targets {
            match (self.ask(machine, &address, expected), expected) {
                (Answer::Ended, Some(launcher)) => {
                    let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.as_mut()) else {
                        return;
                    };
                    let actions = leading.membership.on(Event::Dead { launcher }, now);
                    self.perform(id, actions, random);
                }
                (Answer::Leading(claim), _) => leaders.push(claim.launcher),
                (Answer::Searching(_), _) => {
                    let (other, ours) = (self.at(&address).map(|one| one.id), self.launchers[&id].address());
                    let other = other.and_then(|other| self.launchers.get_mut(&other));
                    if let Some(election) = other.and_then(|other| other.election.as_mut()) {
                        election.also_ask(ours);
                    }
                }
                (Answer::Following(address), _) => leaders.extend(self.at(&address).map(|one| one.id)),
                _ => {}
            }
        }
        for other in leaders {
            let reached =
                self.launchers.get(&other).is_some_and(|one| self.awake(one) && self.connected(machine, one.machine));
            let (Some(ours), Some(theirs)) =
                (self.launchers[&id].claim(), self.launchers.get(&other).and_then(Launcher::claim))
            else {
                continue;
            };
            if reached && steps_down(&ours, &theirs) {
                return self.give_way(id, other, random);
            }
            if reached && steps_down(&theirs, &ours) {
                self.give_way(other, id, random);
            }
        }
    }

    fn give_way(&mut self, id: LauncherId, to: LauncherId, random: &mut Random) {
        self.note(|| format!("{id:?} gives way to {to:?}"));
        let address = self.launchers[&to].address();
        let Some(leading) = self.launchers.get_mut(&id).and_then(|one| one.leading.take()) else { return };
        for node in leading.joined.keys() {
            self.order(*node, CoordinatorMessage::Moved(address.clone()), random);
            if let Some(wire) = self.wires.get_mut(node) {
                wire.closed = true;
            }
        }
    }

    /// The launcher at a place: whoever listens at the endpoint, or the one that told of its own port.
    fn at(&self, address: &HostPort) -> Option<&Launcher> {
        let machine: usize = address.host.parse().expect("a machine");
        self.launchers.values().find(|one| one.machine == machine && (address.port == 0 || one.address() == *address))
    }

    fn ask(&self, from: usize, address: &HostPort, expected: Option<LauncherId>) -> Answer {
        let machine: usize = address.host.parse().expect("a machine");
        if !self.connected(from, machine) {
            return Answer::Silent;
        }
        let Some(launcher) = self.at(address) else { return Answer::Ended };
        if !self.awake(launcher) {
            return Answer::Silent;
        }
        if let Some(claim) = launcher.claim() {
            return if expected.is_some_and(|id| id != launcher.id) { Answer::Ended } else { Answer::Leading(claim) };
        }
        match launcher.link.and_then(|(leader, _)| self.launchers.get(&leader)) {
            Some(leader) => Answer::Following(leader.address()),
            None => Answer::Searching(launcher.epoch.as_ref().map(|epoch| epoch.round)),
        }
    }
}
