//! What launchers do that follow: obey, notice that their leader is gone, look for another one.

use std::time::Duration;

use instep_policy::election::{Election, ElectionStep, HostPort, Loss};
use instep_policy::membership::{LauncherId, Membership, NodeId};
use instep_testkit::Random;

use super::{FIRST, World};
use crate::elastic::launcher::{CoordinatorMessage, INTERVAL, LauncherMessage, WINDOW, Workers};

/// Where the ranks of nodes begin that have joined a round while it ran.
const CALLED_UP: usize = 1000;

impl World {
    /// What a launcher does in a moment.
    pub(super) fn follow_step(&mut self, id: LauncherId, random: &mut Random) {
        let now = self.now;
        let Some(launcher) = self.launchers.get_mut(&id) else { return };
        launcher.failure_detector.tick(now);
        let away = now.saturating_sub(launcher.confirmed) > WINDOW + INTERVAL && launcher.workers.is_none();
        match launcher.link.filter(|_| away) {
            Some((leader, node)) if leader == id => self.let_orders_pass(node, random),
            Some((_, node)) => {
                self.say(Some(node), LauncherMessage::Parting, random);
                self.lose_leader(id, Loss::Silent, None);
            }
            None => {}
        }
        self.apply(id, random);
        let Some(launcher) = self.launchers.get_mut(&id) else { return };
        if launcher.ending.is_some_and(|due| due <= now) {
            (launcher.workers, launcher.ending) = (None, None);
            let wire = launcher.link.map(|(_, node)| node);
            if std::mem::take(&mut launcher.told) {
                launcher.owes = false;
                self.say(wire, LauncherMessage::Stopped, random);
            }
        }
        self.drain(id, random);
        self.look_after_the_link(id, random);
        self.sweep(id);
    }

    /// Whoever leads and was away does not start what it ordered itself before.
    fn let_orders_pass(&mut self, node: NodeId, random: &mut Random) {
        let Some(wire) = self.wires.get_mut(&node) else { return };
        let before = wire.instructions.len();
        let starts = |order: &CoordinatorMessage| {
            matches!(order, CoordinatorMessage::Start { .. } | CoordinatorMessage::CallUp { .. })
        };
        wire.instructions.retain(|(_, order)| !starts(order));
        for _ in wire.instructions.len()..before {
            self.say(Some(node), LauncherMessage::Stopped, random);
        }
    }

    fn apply(&mut self, id: LauncherId, random: &mut Random) {
        let now = self.now;
        while let Some((leader, node)) = self.launchers.get(&id).and_then(|one| one.link) {
            let Some(machine) = self.launchers.get(&id).map(|one| one.machine) else { return };
            let from = self.launchers.get(&leader).map(|one| one.machine);
            if from.is_some_and(|from| !self.connected(from, machine)) {
                return;
            }
            let Some(wire) = self.wires.get_mut(&node) else { return };
            if wire.instructions.front().is_none_or(|(due, _)| *due > now) {
                return;
            }
            let Some((_, order)) = wire.instructions.pop_front() else { return };
            self.carry_out(id, leader, order, random);
        }
    }

    fn carry_out(&mut self, id: LauncherId, leader: LauncherId, order: CoordinatorMessage, random: &mut Random) {
        let now = self.now;
        let ending = now + Duration::from_millis(random.below(1500) as u64);
        match order {
            CoordinatorMessage::Start { epoch, rank } => {
                let (round, size) = (epoch.round, epoch.size);
                if let Some(launcher) = self.launchers.get_mut(&id) {
                    launcher.led_by = epoch.host;
                    launcher.votes.started(epoch);
                }
                self.begin(id, leader, round, rank, size);
                let wire = self.launchers.get(&id).and_then(|one| one.link).map(|(_, node)| node);
                self.say(wire, LauncherMessage::Started, random);
            }
            CoordinatorMessage::CallUp { round } => {
                // Its ranks are those of nodes that are gone: here they have a number of their own.
                self.begin(id, leader, round, CALLED_UP + usize::try_from(id.0).unwrap_or_default(), usize::MAX);
            }
            CoordinatorMessage::Stop { at_once } => {
                let Some(launcher) = self.launchers.get_mut(&id) else { return };
                if !launcher.owes {
                    return;
                }
                launcher.told = true;
                let due = if launcher.workers.is_some() && !at_once { ending } else { now };
                launcher.ending = Some(launcher.ending.map_or(due, |earlier| earlier.min(due)));
            }
            CoordinatorMessage::Epoch(epoch) => {
                if let Some(launcher) = self.launchers.get_mut(&id) {
                    launcher.learn(epoch);
                }
            }
            CoordinatorMessage::Dropped => self.lose_leader(id, Loss::Silent, None),
            CoordinatorMessage::Moved(address) => self.lose_leader(id, Loss::Silent, Some(address)),
        }
    }

    /// Workers start: here everything must be right.
    fn begin(&mut self, id: LauncherId, leader: LauncherId, round: u64, rank: usize, size: usize) {
        let Some(launcher) = self.launchers.get_mut(&id) else { return };
        if launcher.draining {
            return;
        }
        launcher.told = false;
        launcher.owes = true;
        let before = launcher.workers.replace(Workers { round, rank, leader });
        let was_ending = launcher.ending.is_some();
        if before.is_some() || was_ending {
            self.fail(&format!("{id:?} starts workers while others are alive (M1)"));
        }
        for other in self.launchers.values().filter(|other| other.id != id) {
            let Some(theirs) = other.workers else { continue };
            if (theirs.round, theirs.leader) != (round, leader) {
                self.fail(&format!("{id:?} starts round {round} while {:?} works in {theirs:?} (M6)", other.id));
            }
            if theirs.rank == rank || rank >= size {
                self.fail(&format!("rank {rank} twice (M4)"));
            }
        }
    }

    fn drain(&mut self, id: LauncherId, random: &mut Random) {
        let Some(launcher) = self.launchers.get_mut(&id).filter(|one| one.draining) else { return };
        let wire = launcher.link.map(|(_, node)| node);
        if launcher.workers.is_some() {
            if launcher.ending.is_none() {
                launcher.ending = Some(self.now + Duration::from_millis(random.below(3000) as u64));
                self.say(wire, LauncherMessage::Draining, random);
            }
            return;
        }
        self.note(|| format!("{id:?} has drained"));
        self.say(wire, LauncherMessage::Left, random);
        self.kill(id);
    }

    fn look_after_the_link(&mut self, id: LauncherId, random: &mut Random) {
        let now = self.now;
        let Some(launcher) = self.launchers.get(&id) else { return };
        let Some((leader, node)) = launcher.link else {
            if launcher.election.is_none() {
                self.lose_leader(id, Loss::Broken, None);
            }
            return;
        };
        let machine = launcher.machine;
        let silent = leader != id && launcher.failure_detector.suspicion(launcher.heard, now).is_some();
        let pings = now >= launcher.next_ping;
        let alive = self.launchers.get(&leader).map(|one| one.machine);
        let there = alive.or_else(|| {
            let epoch = launcher.epoch.as_ref()?;
            epoch.successors.iter().find(|one| one.launcher == leader)?.address.host.parse().ok()
        });
        let reached = there.is_none_or(|there| self.connected(machine, there));
        // The end of a connection arrives behind everything that was said on it.
        let all_heard = self.wires.get(&node).is_none_or(|wire| wire.instructions.is_empty());
        let closed = self.wires.get(&node).is_none_or(|wire| wire.closed);
        if reached && all_heard && (alive.is_none() || closed) {
            // The far end is closed: by the system of one that has ended, or by one that has let us go.
            let loss = if alive.is_none() { Loss::Broken } else { Loss::Silent };
            return self.lose_leader(id, loss, None);
        }
        if silent {
            self.say(Some(node), LauncherMessage::Parting, random);
            return self.lose_leader(id, Loss::Silent, None);
        }
        if pings {
            if let Some(launcher) = self.launchers.get_mut(&id) {
                launcher.next_ping = now + INTERVAL;
            }
            let awake = self.launchers.get(&leader).is_some_and(|one| self.awake(one));
            let leading = self.launchers.get_mut(&leader).and_then(|one| one.leading.as_mut());
            let Some(leading) = leading.filter(|_| reached) else { return };
            let mark = leading.failure_detector.awake_time(now);
            // What one that is paused reads later is no news to it, and its answer comes too late to matter.
            let Some(joined_node) = leading.joined.get_mut(&node).filter(|_| awake) else { return };
            joined_node.heard = mark;
            if let Some(launcher) = self.launchers.get_mut(&id) {
                launcher.heard = launcher.failure_detector.awake_time(now);
                launcher.confirmed = now;
            }
        }
    }

    fn lose_leader(&mut self, id: LauncherId, loss: Loss, hint: Option<HostPort>) {
        let now = self.now;
        self.note(|| format!("{id:?} has lost its leader: {loss:?}"));
        let Some(launcher) = self.launchers.get_mut(&id) else { return };
        if let Some((_, node)) = launcher.link.take()
            && let Some(wire) = self.wires.get_mut(&node)
        {
            wire.left = true;
        }
        if launcher.workers.is_some() {
            let patience = if loss == Loss::Silent { Duration::ZERO } else { Duration::from_millis(700) };
            let due = now + patience;
            launcher.ending = Some(launcher.ending.map_or(due, |ending| ending.min(due)));
            launcher.told = true;
        }
        if loss == Loss::Silent && launcher.workers.is_some() {
            // Killed, not asked to end.
            (launcher.workers, launcher.ending) = (None, None);
            launcher.owes = false;
        }
        let mut others = vec![HostPort { host: FIRST.to_string(), port: 0 }];
        others.extend(hint);
        let led_by_its_host =
            launcher.led_by.is_some() && launcher.led_by == launcher.epoch.as_ref().and_then(|epoch| epoch.host);
        if led_by_its_host || loss == Loss::Silent {
            launcher.loss = loss;
        }
        if let Some(leader) = launcher.led_by.take().filter(|_| loss == Loss::Broken) {
            launcher.votes.ended(leader);
        }
        let loss = launcher.loss;
        launcher.election = Some(
            Election::new(id, launcher.epoch.clone(), loss, String::new(), others)
                .with(launcher.votes.uncommitted_members()),
        );
        launcher.next_sweep = now;
    }

    fn sweep(&mut self, id: LauncherId) {
        let now = self.now;
        let Some(launcher) = self.launchers.get(&id).filter(|one| one.election.is_some() && now >= one.next_sweep)
        else {
            return;
        };
        let (machine, own) = (launcher.machine, launcher.address());
        let Some(election) = &launcher.election else { return };
        let targets = election.targets();
        let answers: Vec<_> = targets
            .into_iter()
            .filter(|(address, _)| *address != own && !(address.port == 0 && machine == FIRST))
            .map(|(address, expected)| {
                let answer = self.ask(machine, &address, expected);
                (address, expected, answer)
            })
            .collect();
        let Some(launcher) = self.launchers.get_mut(&id) else { return };
        let Some(election) = &mut launcher.election else { return };
        match election.decide(&answers) {
            ElectionStep::Join(address) => {
                let leader = self.at(&address).map(|one| one.id);
                if !leader.is_some_and(|leader| self.join(id, leader)) {
                    let Some(launcher) = self.launchers.get_mut(&id) else { return };
                    launcher.next_sweep = now + Duration::from_millis(200);
                }
            }
            ElectionStep::Lead(resumption) => {
                let membership = Membership::resume(self.terms.clone(), *resumption, now);
                self.note(|| format!("{id:?} leads"));
                if let Some(launcher) = self.launchers.get_mut(&id) {
                    launcher.lead(membership, machine != FIRST, now);
                }
                self.join(id, id);
            }
            ElectionStep::Ask(wait) => launcher.next_sweep = now + wait,
        }
    }
}
