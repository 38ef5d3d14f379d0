//! What a launcher does when its coordinator is gone: whom to ask, whom to join, when to lead itself.
//!
//! Every launcher of an elastic job knows the first nodes of its round in order of group rank ([`Lineage`]), each with
//! a port at which its launcher answers. A launcher without a coordinator asks them all where they stand ([`Answer`])
//! and decides ([`Search::decide`]):
//!
//! 1. Somebody leads: join. Of several, the one with the newest round, then the one that runs, then the lowest.
//! 2. Somebody follows a coordinator: ask that one too, and wait. If it is the one that is gone, they will notice.
//! 3. Nobody who was asked and comes before us searches too: lead.
//! 4. Else another one that is searching as we are will lead: the one that knows of the newest round, and of several the
//!    lowest. Ask again in a moment.
//!
//! Leading is only an offer: whether a round may start is for [`crate::membership`] to say, by majority. So two who both
//! lead, because they do not hear each other, cannot both start; when they meet, [`yields`] says who gives way.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::membership::{LauncherId, Pledge, Resumption};

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
pub struct Place {
    /// Address or name.
    pub address: String,
    /// Port.
    pub port: u16,
}

/// One who may lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// Who.
    pub launcher: LauncherId,
    /// Where it answers, as the coordinator sees it.
    pub place: Place,
}

/// What a launcher must know of the newest committed round in case its coordinator is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The round.
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
pub struct Pledges {
    /// With whether the one who led is known to have ended.
    rounds: Vec<(Lineage, bool)>,
}

impl Pledges {
    /// The launcher was told to start this round. Whoever told it has given up the one before.
    pub fn started(&mut self, lineage: Lineage) {
        self.rounds.retain(|(earlier, _)| earlier.host != lineage.host);
        self.rounds.push((lineage, false));
    }

    /// A round is committed, and all before it are past. True if the launcher is in it: one that only hears of it has no
    /// say in who takes it over.
    pub fn committed(&mut self, committed: &Lineage) -> bool {
        let same = |(lineage, _): &(Lineage, bool)| (lineage.round, lineage.host) == (committed.round, committed.host);
        let takes_part = self.rounds.iter().any(same);
        self.rounds.retain(|(lineage, _)| lineage.round > committed.round);
        takes_part
    }

    /// This one has ended.
    pub fn ended(&mut self, host: LauncherId) {
        for (_, ended) in self.rounds.iter_mut().filter(|(lineage, _)| lineage.host == Some(host)) {
            *ended = true;
        }
    }

    /// What is told to a coordinator.
    pub fn told(&self) -> Vec<Pledge> {
        let pledge = |(lineage, host_ended): &(Lineage, bool)| {
            Some(Pledge {
                round: lineage.round,
                host: lineage.host?,
                host_ended: *host_ended,
                size: lineage.size,
                order: lineage.successors.iter().map(|successor| successor.launcher).collect(),
            })
        };
        self.rounds.iter().filter_map(pledge).collect()
    }

    /// The nodes of those rounds.
    pub fn companions(&self) -> Vec<Successor> {
        self.rounds.iter().flat_map(|(lineage, _)| lineage.successors.iter().cloned()).collect()
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
    /// It follows the coordinator at this place.
    Following(Place),
    /// It leads.
    Leading(Claim),
}

/// What one who leads has to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Who.
    pub launcher: LauncherId,
    /// Its newest committed round; none if there is none.
    pub round: Option<u64>,
    /// Its workers run.
    pub running: bool,
    /// Its place in that round.
    pub precedence: usize,
}

impl Claim {
    fn strength(&self) -> (Option<u64>, bool, std::cmp::Reverse<(usize, LauncherId)>) {
        (self.round, self.running, std::cmp::Reverse((self.precedence, self.launcher)))
    }
}

/// Whether one who leads gives way to another of the same job.
pub fn yields(ours: &Claim, theirs: &Claim) -> bool {
    // Whoever runs keeps running: with a majority nobody else does.
    !ours.running && ours.launcher != theirs.launcher && theirs.strength() > ours.strength()
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Join the one who leads there.
    Join(Place),
    /// Lead.
    Lead(Box<Resumption>),
    /// Ask again after this long.
    Ask(Duration),
}

/// A launcher's search for a coordinator. See the module documentation.
#[derive(Debug)]
pub struct Search {
    own: LauncherId,
    lineage: Option<Lineage>,
    loss: Loss,
    reason: String,
    /// Nodes of a later round that was started and not committed.
    companions: Vec<Successor>,
    breadth: usize,
    /// Places beside the lineage: the endpoint, and where others say that the coordinator is.
    others: Vec<Place>,
}

impl Search {
    /// `others` are places to ask beside those of the lineage; without a lineage we never lead.
    pub fn new(own: LauncherId, lineage: Option<Lineage>, loss: Loss, reason: String, others: Vec<Place>) -> Search {
        Search { own, lineage, loss, reason, companions: Vec::new(), breadth: FIRST_SWEEP, others }
    }

    /// Asks these also, who were in a round that was not committed.
    pub fn with(self, companions: Vec<Successor>) -> Search {
        Search { companions, ..self }
    }

    /// Somebody says that the job is led there.
    pub fn also_ask(&mut self, place: Place) {
        if self.others.len() < SUCCESSORS && !self.others.contains(&place) {
            self.others.push(place);
        }
    }

    /// Whom to ask now, all at once: where, and which launcher is expected there.
    pub fn targets(&self) -> Vec<(Place, Option<LauncherId>)> {
        let skipped =
            |launcher: LauncherId| launcher == self.own || (self.loss == Loss::Broken && self.host() == Some(launcher));
        let mut targets: Vec<(Place, Option<LauncherId>)> = self
            .successors()
            .iter()
            .take(self.breadth)
            .chain(self.companions.iter().take(self.breadth))
            .filter(|successor| !skipped(successor.launcher))
            .map(|successor| (successor.place.clone(), Some(successor.launcher)))
            .collect();
        targets.dedup();
        for place in &self.others {
            if !targets.iter().any(|(known, _)| known == place) {
                targets.push((place.clone(), None));
            }
        }
        targets
    }

    fn successors(&self) -> &[Successor] {
        self.lineage.as_ref().map_or(&[], |lineage| &lineage.successors)
    }

    fn host(&self) -> Option<LauncherId> {
        self.lineage.as_ref().and_then(|lineage| lineage.host)
    }

    /// Takes in the answers to [`Search::targets`], in their order.
    pub fn decide(&mut self, answers: &[(Place, Option<LauncherId>, Answer)]) -> Step {
        let leading = answers.iter().filter_map(|(place, _, answer)| match answer {
            // Somebody who leads a fresh job at the endpoint knows nothing of ours, and will be told.
            Answer::Leading(claim) if claim.round >= self.lineage.as_ref().map(|lineage| lineage.round) => {
                Some((claim.strength(), place))
            }
            _ => None,
        });
        if let Some((_, place)) = leading.max_by(|one, other| one.0.cmp(&other.0)) {
            return Step::Join(place.clone());
        }
        let mut followed = false;
        for (_, _, answer) in answers {
            if let Answer::Following(place) = answer {
                followed = true;
                self.also_ask(place.clone());
            }
        }
        let silent = answers.iter().any(|(_, _, answer)| *answer == Answer::Silent);
        let again = Step::Ask(if silent { RETRY_SLOWLY } else { RETRY });
        let position = self.successors().iter().position(|successor| successor.launcher == self.own);
        let all_before_asked = position.is_some_and(|position| position <= self.breadth);
        self.breadth = (self.breadth * 2).min(SUCCESSORS);
        if followed || !all_before_asked {
            return again;
        }
        let ours = self.lineage.as_ref().map(|lineage| lineage.round);
        let place_of = |launcher: LauncherId| self.successors().iter().position(|one| one.launcher == launcher);
        let another_first = answers.iter().any(|(_, launcher, answer)| match (answer, launcher) {
            (Answer::Searching(theirs), _) if *theirs > ours => true,
            (Answer::Searching(theirs), Some(launcher)) if *theirs == ours => {
                place_of(*launcher).is_some_and(|theirs| Some(theirs) < position)
            }
            _ => false,
        });
        match self.resumption(answers) {
            Some(resumption) if !another_first => Step::Lead(Box::new(resumption)),
            _ => again,
        }
    }

    fn resumption(&self, answers: &[(Place, Option<LauncherId>, Answer)]) -> Option<Resumption> {
        let lineage = self.lineage.as_ref()?;
        let host = lineage.host?;
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
            round: lineage.round,
            restarts: lineage.restarts,
            changes: lineage.changes,
            size: lineage.size,
            order: lineage.successors.iter().map(|successor| successor.launcher).collect(),
            host,
            dead,
            reason: self.reason.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Claim, Lineage, Loss, Place, Search, Step, Successor, yields};
    use crate::membership::LauncherId;

    fn place(number: u64) -> Place {
        Place { address: format!("10.0.0.{number}"), port: 1 }
    }

    fn lineage(size: u64) -> Lineage {
        let successor = |number| Successor { launcher: LauncherId(number), place: place(number) };
        Lineage {
            round: 3,
            size: size as usize,
            host: Some(LauncherId(0)),
            successors: (0..size).map(successor).collect(),
            ..Lineage::default()
        }
    }

    fn search(own: u64, loss: Loss) -> Search {
        Search::new(LauncherId(own), Some(lineage(4)), loss, "the first node was lost".to_owned(), Vec::new())
    }

    fn answers(search: &Search, answer: impl Fn(u64) -> Answer) -> Vec<(Place, Option<LauncherId>, Answer)> {
        let targets = search.targets().into_iter();
        targets.map(|(place, id)| (place, id, id.map_or(Answer::Silent, |id| answer(id.0)))).collect()
    }

    #[test]
    fn the_lowest_survivor_leads_and_the_others_wait_for_it() {
        let mut second = search(1, Loss::Broken);
        let seen = answers(&second, |_| Answer::Searching(Some(3)));
        assert_eq!(seen.len(), 2, "neither itself nor the host, which has ended");
        let Step::Lead(resumption) = second.decide(&seen) else { panic!("expected it to lead") };
        assert_eq!((resumption.round, resumption.dead), (3, vec![LauncherId(0)]));
        let mut third = search(2, Loss::Broken);
        let seen = answers(&third, |_| Answer::Searching(Some(3)));
        assert!(matches!(third.decide(&seen), Step::Ask(_)));
        let claim = Claim { launcher: LauncherId(1), round: Some(3), running: false, precedence: 1 };
        let leads = |id| if id == 1 { Answer::Leading(claim) } else { Answer::Searching(Some(3)) };
        let seen = answers(&third, leads);
        assert_eq!(third.decide(&seen), Step::Join(place(1)));
    }

    #[test]
    fn those_who_ended_are_passed_over_and_counted_as_ended() {
        let mut third = search(2, Loss::Broken);
        let seen = answers(&third, |id| if id == 1 { Answer::Ended } else { Answer::Searching(Some(3)) });
        let Step::Lead(resumption) = third.decide(&seen) else { panic!("expected it to lead") };
        assert_eq!(resumption.dead, [LauncherId(0), LauncherId(1)]);
        let mut silent = search(2, Loss::Silent);
        let seen = answers(&silent, |_| Answer::Silent);
        assert_eq!(seen.len(), 3, "the host may be alive");
        let Step::Lead(resumption) = silent.decide(&seen) else { panic!("expected it to lead") };
        assert_eq!(resumption.dead, []);
    }

    #[test]
    fn whoever_knows_of_a_newer_round_comes_first() {
        let mut second = search(1, Loss::Broken);
        let seen = answers(&second, |id| Answer::Searching(Some(if id == 3 { 4 } else { 3 })));
        assert!(matches!(second.decide(&seen), Step::Ask(_)));
        let mut last = search(3, Loss::Broken);
        let seen = answers(&last, |_| Answer::Searching(Some(2)));
        assert!(matches!(last.decide(&seen), Step::Lead(_)), "the others know less");
    }

    #[test]
    fn a_coordinator_that_others_still_follow_is_looked_for() {
        let mut second = search(1, Loss::Silent);
        let elsewhere = place(9);
        let seen = answers(&second, |id| if id == 2 { Answer::Following(place(9)) } else { Answer::Silent });
        assert!(matches!(second.decide(&seen), Step::Ask(_)));
        assert!(second.targets().contains(&(elsewhere, None)));
    }

    #[test]
    fn a_node_without_a_lineage_never_leads() {
        let mut spare = Search::new(LauncherId(9), None, Loss::Broken, String::new(), vec![place(0)]);
        assert!(matches!(spare.decide(&[(place(0), None, Answer::Ended)]), Step::Ask(_)));
    }

    #[test]
    fn one_of_two_who_lead_gives_way() {
        let claim =
            |launcher, round, running, precedence| Claim { launcher: LauncherId(launcher), round, running, precedence };
        let cases = [
            (claim(1, Some(3), false, 1), claim(2, Some(4), true, 0)),
            (claim(1, None, false, usize::MAX), claim(2, Some(0), true, 0)),
            (claim(2, Some(3), false, 2), claim(1, Some(3), false, 1)),
            (claim(2, None, false, usize::MAX), claim(1, None, false, usize::MAX)),
        ];
        for (weak, strong) in cases {
            assert!(yields(&weak, &strong) && !yields(&strong, &weak), "{weak:?} {strong:?}");
        }
        assert!(!yields(&claim(1, Some(1), true, 0), &claim(2, Some(2), true, 0)));
    }
}
