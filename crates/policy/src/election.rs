//! What a launcher does when its coordinator is gone: whom to ask, whom to join, when to lead itself.
//!
//! Every launcher of an elastic job knows the first nodes of its round in order of group rank ([`Epoch`]), each with
//! a port at which its launcher answers. A launcher without a coordinator asks them all who leads ([`Answer`])
//! and decides ([`Election::decide`]):
//!
//! 1. Somebody leads: join. Of several, the one with the newest round, then the one that runs, then the lowest.
//! 2. Somebody follows a coordinator: ask that one too, and wait. If it is the one that is gone, they will notice. One that
//!    leads an earlier round than ours is not waited for: it may lack us to go on, and steps down for whoever leads ours.
//! 3. Nobody who was asked and comes before us searches too: lead.
//! 4. Else another one that is searching as we are will lead: the one that knows of the newest round, and of several the
//!    lowest. Ask again in a moment.
//!
//! Leading is only an offer: whether a round may start is for [`crate::membership`] to say, by majority. So two who both
//! lead, because they do not hear each other, cannot both start; when they meet, [`steps_down`] says which of them steps down.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::membership::{LauncherId, Resumption, Vote};

/// How many nodes a round tells of: enough that one is alive, and few enough that 1,000 nodes do not cost 1,000 × 1,000.
pub const SUCCESSORS: usize = 64;
/// How many are asked at first; each sweep that decides nothing asks twice as many.
const FIRST_SWEEP: usize = 4;
/// Between two sweeps.
const RETRY: Duration = Duration::from_millis(100);
/// Between two sweeps when somebody was silent, whose answer took its time already.
const RETRY_SLOWLY: Duration = Duration::from_millis(500);

/// Where a launcher answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct HostPort {
    /// An address or a name.
    #[serde(rename = "address")]
    pub host: String,
    pub port: u16,
}

/// A launcher that may lead next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Successor {
    pub launcher: LauncherId,
    /// Where it answers, as the coordinator sees it.
    #[serde(rename = "place")]
    pub address: HostPort,
}

/// What a launcher must know of the newest committed round in case its coordinator is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Epoch {
    pub round: u64,
    /// Restarts spent.
    pub restarts: u32,
    /// Membership changes so far.
    pub changes: u32,
    /// Nodes in the round.
    pub size: usize,
    /// Who leads it.
    pub host: Option<LauncherId>,
    /// The first [`SUCCESSORS`] of the round in order of group rank.
    pub successors: Vec<Successor>,
}

/// Rounds that a launcher was told to start, and of which it has not heard that they are committed.
#[derive(Debug, Default)]
pub struct Votes {
    /// With whether the one who led is known to have ended.
    rounds: Vec<(Epoch, bool)>,
}

impl Votes {
    /// The launcher was told to start this round. Whoever told it has given up the one before.
    pub fn started(&mut self, epoch: Epoch) {
        self.rounds.retain(|(earlier, _)| earlier.host != epoch.host);
        self.rounds.push((epoch, false));
    }

    /// A round is committed, and all before it are past. True if the launcher is in it: one that only hears of it has no
    /// say in who takes it over.
    pub fn committed(&mut self, committed: &Epoch) -> bool {
        let same = |(epoch, _): &(Epoch, bool)| (epoch.round, epoch.host) == (committed.round, committed.host);
        let takes_part = self.rounds.iter().any(same);
        self.rounds.retain(|(epoch, _)| epoch.round > committed.round);
        takes_part
    }

    /// This one has ended.
    pub fn ended(&mut self, host: LauncherId) {
        for (_, ended) in self.rounds.iter_mut().filter(|(epoch, _)| epoch.host == Some(host)) {
            *ended = true;
        }
    }

    /// What is told to a coordinator.
    pub fn uncommitted(&self) -> Vec<Vote> {
        let vote = |(epoch, host_ended): &(Epoch, bool)| {
            Some(Vote {
                round: epoch.round,
                host: epoch.host?,
                host_ended: *host_ended,
                size: epoch.size,
                order: epoch.successors.iter().map(|successor| successor.launcher).collect(),
            })
        };
        self.rounds.iter().filter_map(vote).collect()
    }

    /// The nodes of those rounds.
    pub fn uncommitted_members(&self) -> Vec<Successor> {
        self.rounds.iter().flat_map(|(epoch, _)| epoch.successors.iter().cloned()).collect()
    }
}

/// How the coordinator was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its system closed the connection: it has ended.
    Broken,
    /// It is silent, or let us go: it may be alive.
    Silent,
}

/// What one who was asked says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its system refuses the connection, or somebody else answers there: it has ended.
    Ended,
    /// No answer.
    Silent,
    /// It has no coordinator either; with the newest committed round of which it knows.
    Searching(Option<u64>),
    /// It follows the coordinator at this address.
    Following(HostPort),
    /// It leads.
    Leading(Claim),
}

/// What one who leads has to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names say what the fields hold")]
pub struct Claim {
    pub launcher: LauncherId,
    /// Its newest committed round; none if there is none.
    pub round: Option<u64>,
    /// Its workers run.
    pub running: bool,
    /// Its group rank in that round.
    pub precedence: usize,
}

impl Claim {
    fn strength(&self) -> (Option<u64>, bool, std::cmp::Reverse<(usize, LauncherId)>) {
        (self.round, self.running, std::cmp::Reverse((self.precedence, self.launcher)))
    }
}

/// Whether one who leads steps down for another of the same job.
pub fn steps_down(ours: &Claim, theirs: &Claim) -> bool {
    // Whoever runs keeps running: with a majority nobody else does.
    !ours.running && ours.launcher != theirs.launcher && theirs.strength() > ours.strength()
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionStep {
    /// Join the one who leads there.
    Join(HostPort),
    /// Lead.
    Lead(Box<Resumption>),
    /// Ask again after this long.
    Ask(Duration),
}

/// A launcher's search for a coordinator. See the module documentation.
#[derive(Debug)]
pub struct Election {
    own: LauncherId,
    epoch: Option<Epoch>,
    loss: Loss,
    reason: String,
    /// Nodes of a later round that was started and not committed.
    uncommitted_members: Vec<Successor>,
    breadth: usize,
    /// Addresses beside those of the epoch: the endpoint, and where others say that the coordinator is.
    others: Vec<HostPort>,
}

impl Election {
    /// `others` are addresses to ask beside those of the epoch; without an epoch we never lead.
    pub fn new(own: LauncherId, epoch: Option<Epoch>, loss: Loss, reason: String, others: Vec<HostPort>) -> Election {
        Election { own, epoch, loss, reason, uncommitted_members: Vec::new(), breadth: FIRST_SWEEP, others }
    }

    /// Asks these also, who were in a round that was not committed.
    pub fn with(self, uncommitted_members: Vec<Successor>) -> Election {
        Election { uncommitted_members, ..self }
    }

    /// Somebody says that the job is led there.
    pub fn also_ask(&mut self, address: HostPort) {
        if self.others.len() < SUCCESSORS && !self.others.contains(&address) {
            self.others.push(address);
        }
    }

    /// Whom to ask now, all at once: where, and which launcher is expected there.
    pub fn targets(&self) -> Vec<(HostPort, Option<LauncherId>)> {
        let skipped =
            |launcher: LauncherId| launcher == self.own || (self.loss == Loss::Broken && self.host() == Some(launcher));
        let mut targets: Vec<(HostPort, Option<LauncherId>)> = self
            .successors()
            .iter()
            .take(self.breadth)
            .chain(self.uncommitted_members.iter().take(self.breadth))
            .filter(|successor| !skipped(successor.launcher))
            .map(|successor| (successor.address.clone(), Some(successor.launcher)))
            .collect();
        targets.dedup();
        for address in &self.others {
            if !targets.iter().any(|(known, _)| known == address) {
                targets.push((address.clone(), None));
            }
        }
        targets
    }

    fn successors(&self) -> &[Successor] {
        self.epoch.as_ref().map_or(&[], |epoch| &epoch.successors)
    }

    fn host(&self) -> Option<LauncherId> {
        self.epoch.as_ref().and_then(|epoch| epoch.host)
    }

    /// Takes in the answers to [`Election::targets`], in their order.
    pub fn decide(&mut self, answers: &[(HostPort, Option<LauncherId>, Answer)]) -> ElectionStep {
        let leading = answers.iter().filter_map(|(address, _, answer)| match answer {
            // Somebody who leads a fresh job at the endpoint knows nothing of ours, and will be told.
            Answer::Leading(claim) if claim.round >= self.epoch.as_ref().map(|epoch| epoch.round) => {
                Some((claim.strength(), address))
            }
            _ => None,
        });
        if let Some((_, address)) = leading.max_by(|one, other| one.0.cmp(&other.0)) {
            return ElectionStep::Join(address.clone());
        }
        // Whoever leads and was not joined knows of earlier rounds only, and those who follow it have nothing to notice.
        let is_behind = |leader: &HostPort| {
            answers.iter().any(|(address, _, answer)| address == leader && matches!(answer, Answer::Leading(_)))
        };
        let mut followed = false;
        for (_, _, answer) in answers {
            if let Answer::Following(address) = answer {
                followed |= !is_behind(address);
                self.also_ask(address.clone());
            }
        }
        let silent = answers.iter().any(|(_, _, answer)| *answer == Answer::Silent);
        let again = ElectionStep::Ask(if silent { RETRY_SLOWLY } else { RETRY });
        let position = self.successors().iter().position(|successor| successor.launcher == self.own);
        let all_before_asked = position.is_some_and(|position| position <= self.breadth);
        self.breadth = (self.breadth * 2).min(SUCCESSORS);
        if followed || !all_before_asked {
            return again;
        }
        let ours = self.epoch.as_ref().map(|epoch| epoch.round);
        let rank_of = |launcher: LauncherId| self.successors().iter().position(|one| one.launcher == launcher);
        let another_first = answers.iter().any(|(_, launcher, answer)| match (answer, launcher) {
            (Answer::Searching(theirs), _) if *theirs > ours => true,
            (Answer::Searching(theirs), Some(launcher)) if *theirs == ours => {
                rank_of(*launcher).is_some_and(|theirs| Some(theirs) < position)
            }
            _ => false,
        });
        match self.resumption(answers) {
            Some(resumption) if !another_first => ElectionStep::Lead(Box::new(resumption)),
            _ => again,
        }
    }

    fn resumption(&self, answers: &[(HostPort, Option<LauncherId>, Answer)]) -> Option<Resumption> {
        let epoch = self.epoch.as_ref()?;
        let host = epoch.host?;
        let mut dead = Vec::new();
        if self.loss == Loss::Broken {
            dead.push(host);
            dead.extend(
                answers
                    .iter()
                    .filter(|(_, _, answer)| *answer == Answer::Ended)
                    .filter_map(|(_, launcher, _)| *launcher),
            );
        }
        Some(Resumption {
            round: epoch.round,
            restarts: epoch.restarts,
            changes: epoch.changes,
            size: epoch.size,
            order: epoch.successors.iter().map(|successor| successor.launcher).collect(),
            host,
            dead,
            reason: self.reason.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Claim, Election, ElectionStep, Epoch, HostPort, Loss, Successor, steps_down};
    use crate::membership::LauncherId;

    fn address(number: u64) -> HostPort {
        HostPort { host: format!("10.0.0.{number}"), port: 1 }
    }

    fn epoch(size: u64) -> Epoch {
        let successor = |number| Successor { launcher: LauncherId(number), address: address(number) };
        Epoch {
            round: 3,
            size: size as usize,
            host: Some(LauncherId(0)),
            successors: (0..size).map(successor).collect(),
            ..Epoch::default()
        }
    }

    fn election(own: u64, loss: Loss) -> Election {
        Election::new(LauncherId(own), Some(epoch(4)), loss, "the first node was lost".to_owned(), Vec::new())
    }

    fn answers(election: &Election, answer: impl Fn(u64) -> Answer) -> Vec<(HostPort, Option<LauncherId>, Answer)> {
        let targets = election.targets().into_iter();
        targets.map(|(address, id)| (address, id, id.map_or(Answer::Silent, |id| answer(id.0)))).collect()
    }

    #[test]
    fn the_lowest_survivor_leads_and_the_others_wait_for_it() {
        let mut second = election(1, Loss::Broken);
        let seen = answers(&second, |_| Answer::Searching(Some(3)));
        assert_eq!(seen.len(), 2, "neither itself nor the host, which has ended");
        let ElectionStep::Lead(resumption) = second.decide(&seen) else { panic!("expected it to lead") };
        assert_eq!((resumption.round, resumption.dead), (3, vec![LauncherId(0)]));
        let mut third = election(2, Loss::Broken);
        let seen = answers(&third, |_| Answer::Searching(Some(3)));
        assert!(matches!(third.decide(&seen), ElectionStep::Ask(_)));
        let claim = Claim { launcher: LauncherId(1), round: Some(3), running: false, precedence: 1 };
        let leads = |id| if id == 1 { Answer::Leading(claim) } else { Answer::Searching(Some(3)) };
        let seen = answers(&third, leads);
        assert_eq!(third.decide(&seen), ElectionStep::Join(address(1)));
    }

    #[test]
    fn launchers_that_ended_are_skipped_and_reported_dead() {
        let mut third = election(2, Loss::Broken);
        let seen = answers(&third, |id| if id == 1 { Answer::Ended } else { Answer::Searching(Some(3)) });
        let ElectionStep::Lead(resumption) = third.decide(&seen) else { panic!("expected it to lead") };
        assert_eq!(resumption.dead, [LauncherId(0), LauncherId(1)]);
        let mut silent = election(2, Loss::Silent);
        let seen = answers(&silent, |_| Answer::Silent);
        assert_eq!(seen.len(), 3, "the host may be alive");
        let ElectionStep::Lead(resumption) = silent.decide(&seen) else { panic!("expected it to lead") };
        assert_eq!(resumption.dead, []);
    }

    #[test]
    fn the_launcher_that_knows_the_newest_round_leads() {
        let mut second = election(1, Loss::Broken);
        let seen = answers(&second, |id| Answer::Searching(Some(if id == 3 { 4 } else { 3 })));
        assert!(matches!(second.decide(&seen), ElectionStep::Ask(_)));
        let mut last = election(3, Loss::Broken);
        let seen = answers(&last, |_| Answer::Searching(Some(2)));
        assert!(matches!(last.decide(&seen), ElectionStep::Lead(_)), "the others know less");
    }

    #[test]
    fn a_coordinator_that_others_still_follow_is_asked_too() {
        let mut second = election(1, Loss::Silent);
        let elsewhere = address(9);
        let seen = answers(&second, |id| if id == 2 { Answer::Following(address(9)) } else { Answer::Silent });
        assert!(matches!(second.decide(&seen), ElectionStep::Ask(_)));
        assert!(second.targets().contains(&(elsewhere, None)));
    }

    #[test]
    fn a_coordinator_of_an_earlier_round_is_not_waited_for_though_others_follow_it() {
        let mut second = election(1, Loss::Broken);
        let claim = Claim { launcher: LauncherId(9), round: Some(2), running: false, precedence: 0 };
        let mut seen = answers(&second, |id| if id == 2 { Answer::Following(address(9)) } else { Answer::Ended });
        assert!(matches!(second.decide(&seen), ElectionStep::Ask(_)), "its round is not known yet");
        seen.push((address(9), None, Answer::Silent));
        assert!(matches!(second.decide(&seen), ElectionStep::Ask(_)), "it may have started a newer round");
        seen.pop();
        seen.push((address(9), None, Answer::Leading(claim)));
        assert!(matches!(second.decide(&seen), ElectionStep::Lead(_)));
        seen.pop();
        seen.push((address(9), None, Answer::Leading(Claim { round: Some(3), ..claim })));
        assert_eq!(second.decide(&seen), ElectionStep::Join(address(9)));
    }

    #[test]
    fn a_node_without_an_epoch_never_leads() {
        let mut spare = Election::new(LauncherId(9), None, Loss::Broken, String::new(), vec![address(0)]);
        assert!(matches!(spare.decide(&[(address(0), None, Answer::Ended)]), ElectionStep::Ask(_)));
    }

    #[test]
    fn of_two_leaders_the_one_with_the_weaker_claim_steps_down() {
        let claim =
            |launcher, round, running, precedence| Claim { launcher: LauncherId(launcher), round, running, precedence };
        let cases = [
            (claim(1, Some(3), false, 1), claim(2, Some(4), true, 0)),
            (claim(1, None, false, usize::MAX), claim(2, Some(0), true, 0)),
            (claim(2, Some(3), false, 2), claim(1, Some(3), false, 1)),
            (claim(2, None, false, usize::MAX), claim(1, None, false, usize::MAX)),
        ];
        for (weak, strong) in cases {
            assert!(steps_down(&weak, &strong) && !steps_down(&strong, &weak), "{weak:?} {strong:?}");
        }
        assert!(!steps_down(&claim(1, Some(1), true, 0), &claim(2, Some(2), true, 0)));
    }
}
