//! The shares of one allocation, one on each machine: they live and end together.
//!
//! The first share that fails takes the others along. The whole succeeds when all shares that are not daemons ended
//! with 0; daemons (such as an ssh server that serves another share) are then ended without that being a failure. One that fails
//! before is a failure like any other: a rank that it started has failed.

use instep_api::link::Exit;
use serde::{Deserialize, Serialize};

use super::run_end::End;

/// What is known of one share.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Member {
    started: bool,
    daemon: bool,
    exit: Option<Exit>,
}

/// The shares of one allocation, in the order of their ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    members: Vec<Member>,
    /// The first thing that went wrong, or the end by the master's word.
    fate: Option<End>,
    told_to_end: bool,
}

/// What follows from something that happened to a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Every share runs.
    AllStarted,
    /// The shares that still run must be ended.
    EndOthers {
        /// For people.
        why: String,
    },
    /// Nothing of the allocation runs any more.
    Over(End),
}

impl Gang {
    /// An allocation of this many shares, none of which runs yet.
    pub fn new(shares: usize) -> Gang {
        Gang { members: vec![Member::default(); shares], fate: None, told_to_end: false }
    }

    /// A share runs. What is being ended is not said to run, however late a share reports that it has started.
    pub fn started(&mut self, rank: usize) -> Option<Step> {
        let member = self.members.get_mut(rank)?;
        if member.started {
            return None;
        }
        member.started = true;
        let all_started = self.members.iter().all(|member| member.started);
        (all_started && !self.told_to_end).then_some(Step::AllStarted)
    }

    /// Whether the shares that still run are to be ended: an agent that missed the order is told again.
    pub fn is_ending(&self) -> bool {
        self.told_to_end
    }

    /// A share is a daemon: nobody waits for its end.
    pub fn is_daemon(&mut self, rank: usize) {
        if let Some(member) = self.members.get_mut(rank) {
            member.daemon = true;
        }
    }

    /// The master ends the whole allocation now.
    pub fn ending(&mut self) {
        self.told_to_end = true;
        if self.members.iter().all(|member| member.exit.is_none()) {
            self.fate.get_or_insert(End::Killed);
        }
    }

    /// A share has ended. Hearing it twice changes nothing.
    pub fn exited(&mut self, rank: usize, exit: Exit) -> Vec<Step> {
        let Some(member) = self.members.get_mut(rank).filter(|member| member.exit.is_none()) else {
            return Vec::new();
        };
        let failure_of = failure_of(&exit, member.daemon && self.told_to_end);
        member.exit = Some(exit);
        let mut steps = Vec::new();
        if let Some(end) = failure_of {
            self.fate.get_or_insert(end);
        }
        if self.is_over() {
            steps.push(Step::Over(self.fate.clone().unwrap_or(End::Exited { code: 0 })));
        } else if !self.told_to_end
            && let Some(why) = self.reason_to_end(rank)
        {
            self.told_to_end = true;
            steps.push(Step::EndOthers { why });
        }
        steps
    }

    /// How many shares there are.
    pub fn shares(&self) -> usize {
        self.members.len()
    }

    /// The ranks of the shares that have not ended.
    pub fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        self.members.iter().enumerate().filter(|(_, member)| member.exit.is_none()).map(|(rank, _)| rank)
    }

    fn is_over(&self) -> bool {
        self.members.iter().all(|member| member.exit.is_some())
    }

    fn reason_to_end(&self, rank: usize) -> Option<String> {
        if self.fate.is_some() {
            return Some(format!("the share of rank {rank} failed"));
        }
        let workers_done = self.members.iter().all(|member| member.daemon || member.exit.is_some());
        workers_done.then(|| "all that is waited for has ended".to_owned())
    }
}

/// What is wrong with an exit, if anything; `expected` if it is a daemon's that was ended.
fn failure_of(exit: &Exit, expected: bool) -> Option<End> {
    match exit {
        Exit::Code { code: 0, .. } => None,
        Exit::Code { .. } | Exit::Killed if expected => None,
        Exit::Code { code, .. } => Some(End::Exited { code: *code }),
        Exit::Killed => Some(End::Killed),
        Exit::Failed { why } => Some(End::NotStarted { why: why.clone() }),
        Exit::Lost { why } => Some(End::Lost { why: why.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(code: i32) -> Exit {
        Exit::code(code)
    }

    fn over(steps: &[Step]) -> Option<&End> {
        steps.iter().find_map(|step| match step {
            Step::Over(end) => Some(end),
            _ => None,
        })
    }

    #[test]
    fn a_share_that_reports_its_start_too_late_does_not_run_alone() {
        let mut gang = Gang::new(2);
        assert_eq!(gang.started(0), None);
        assert!(matches!(gang.exited(0, code(1)).as_slice(), [Step::EndOthers { .. }]));
        assert_eq!(gang.started(1), None);
        assert!(gang.is_ending());
    }

    #[test]
    fn all_must_start_and_all_must_end_with_zero() {
        let mut gang = Gang::new(2);
        assert_eq!((gang.started(0), gang.started(0)), (None, None));
        assert_eq!(gang.started(1), Some(Step::AllStarted));
        assert!(gang.exited(1, code(0)).is_empty());
        assert!(gang.exited(1, code(1)).is_empty(), "said twice");
        assert_eq!(over(&gang.exited(0, code(0))), Some(&End::Exited { code: 0 }));
    }

    #[test]
    fn the_first_failure_ends_the_others_and_is_the_end() {
        let mut gang = Gang::new(3);
        assert!(matches!(gang.exited(1, code(3)).as_slice(), [Step::EndOthers { .. }]));
        assert!(gang.exited(0, Exit::Killed).is_empty());
        assert_eq!(over(&gang.exited(2, code(143))), Some(&End::Exited { code: 3 }));
    }

    #[test]
    fn what_the_master_ends_while_all_run_is_no_failure() {
        let mut gang = Gang::new(2);
        gang.ending();
        assert!(gang.exited(0, code(1)).is_empty());
        assert_eq!(over(&gang.exited(1, Exit::Killed)), Some(&End::Killed));
    }

    #[test]
    fn what_had_failed_before_the_master_ended_it_is_one() {
        let mut gang = Gang::new(2);
        gang.exited(0, code(1));
        gang.ending();
        assert_eq!(over(&gang.exited(1, Exit::Killed)), Some(&End::Exited { code: 1 }));
    }

    #[test]
    fn daemons_are_ended_when_the_others_are_done() {
        let mut gang = Gang::new(2);
        gang.is_daemon(1);
        assert!(matches!(gang.exited(0, code(0)).as_slice(), [Step::EndOthers { .. }]));
        assert_eq!(over(&gang.exited(1, Exit::Killed)), Some(&End::Exited { code: 0 }));
    }

    #[test]
    fn a_daemon_that_fails_while_others_run_fails_the_whole() {
        let mut gang = Gang::new(3);
        gang.is_daemon(1);
        gang.is_daemon(2);
        assert!(gang.exited(2, code(0)).is_empty(), "its ranks have ended");
        assert!(matches!(gang.exited(1, code(78)).as_slice(), [Step::EndOthers { .. }]));
        assert_eq!(over(&gang.exited(0, Exit::Killed)), Some(&End::Exited { code: 78 }));
    }

    #[test]
    fn a_lost_share_is_not_the_scripts_fault() {
        let mut gang = Gang::new(2);
        gang.exited(0, Exit::Lost { why: "cut off".to_owned() });
        assert_eq!(over(&gang.exited(1, code(1))), Some(&End::Lost { why: "cut off".to_owned() }));
        let mut gang = Gang::new(1);
        let end = gang.exited(0, Exit::Failed { why: "no disk".to_owned() });
        assert_eq!(over(&end), Some(&End::NotStarted { why: "no disk".to_owned() }));
    }
}
