//! What ranks and launchers say of the script, apart from losses: that it uses its session wrongly, in which step it fails,
//! that it cannot recover, that it waits for a rank which has ended by itself, or that a rank hangs.

use std::collections::BTreeSet;

use super::{Decision, Recovery};

impl Recovery {
    /// A rank ended because its session refuses how the script uses it. So it is on every rank and every time.
    pub fn refused(&mut self, rank: usize, incarnation: u32, cause: &str) -> Option<Decision> {
        if !self.is_newest(rank, incarnation) {
            return None;
        }
        self.over = true;
        let reason = format!("{cause}: the script uses its session wrongly, which no replacement and no restart mends");
        Some(Decision::End { rank, reason })
    }

    /// A rank says in which step it fails by its own error, before it is lost.
    pub fn failed_in(&mut self, rank: usize, incarnation: u32, step: u64) {
        if self.is_newest(rank, incarnation) {
            self.faults.entry(rank).or_default().failed_in(step);
        }
    }

    /// A rank says that it cannot recover, and why.
    pub fn impossible(&mut self, why: &str) -> Option<Decision> {
        let reason = match self.cause.as_str() {
            "" => format!("{why}, so all workers restart"),
            cause => format!("{cause}: {why}, so all workers restart"),
        };
        self.restart_all(reason)
    }

    /// A rank has lost a peer and waits for a generation. Where a rank has ended with 0 there will be none; which rank that
    /// is comes with the decision.
    pub fn awaits(&mut self, rank: usize, generation: u64) -> Option<(usize, Decision)> {
        let left = *self.finished.iter().find(|left| **left != rank).filter(|_| generation > self.generation)?;
        let reason =
            format!("rank {left} ended with exit code 0 while rank {rank} was training, so all workers restart");
        Some((left, self.restart_all(reason)?))
    }

    /// Whether a rank would be replaced if it were lost now: asked before one that hangs is killed.
    pub fn would_replace(&self, rank: usize, incarnation: u32, has_session: impl Fn(usize) -> bool) -> bool {
        let others_have_the_state = self.intact.iter().any(|other| *other != rank);
        let begun = self.is_newest(rank, incarnation) && has_session(rank) && others_have_the_state;
        begun && self.objection(&[], &BTreeSet::from([rank]), has_session).is_none()
    }

    /// Whether any rank has ended with 0.
    pub fn has_finished_ranks(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Whether something can still follow for this process of a rank.
    fn is_newest(&self, rank: usize, incarnation: u32) -> bool {
        !self.over && self.incarnations.get(rank) == Some(&incarnation)
    }

    fn restart_all(&mut self, reason: String) -> Option<Decision> {
        let first = !std::mem::replace(&mut self.over, true);
        first.then_some(Decision::RestartAll { generation: self.generation + 1, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decision, Loss, LossKind, Recovery};

    fn round(world_size: usize) -> Recovery {
        Recovery::new(world_size)
    }

    fn raised(rank: usize, incarnation: u32) -> Loss {
        let cause = format!("rank {rank} exited with code 1 (ValueError: no)");
        Loss { rank, incarnation, kind: LossKind::OwnError, cause }
    }

    fn lose(round: &mut Recovery, rank: usize, incarnation: u32, step: Option<u64>) -> Option<Decision> {
        step.into_iter().for_each(|step| round.failed_in(rank, incarnation, step));
        round.lost(&[raised(rank, incarnation)], |_| true)
    }

    fn is_replaced(decision: &Option<Decision>) -> bool {
        matches!(decision, Some(Decision::Replace { .. }))
    }

    fn sentence(decision: Option<Decision>) -> String {
        match decision {
            Some(Decision::RestartAll { reason, .. } | Decision::End { reason, .. }) => reason,
            other => panic!("expected an end, found {other:?}"),
        }
    }

    #[test]
    fn a_rank_that_says_in_which_step_it_fails_is_not_replaced_a_second_time() {
        let mut job = round(2);
        assert!(is_replaced(&lose(&mut job, 1, 0, Some(17))));
        assert_eq!(job.resumed(1, 17), None);
        let told = sentence(lose(&mut job, 1, 1, Some(17)));
        assert_eq!(told, "rank 1 failed twice in step 17: rank 1 exited with code 1 (ValueError: no)");

        let mut job = round(2);
        assert!(is_replaced(&lose(&mut job, 1, 0, Some(17))));
        let told = sentence(lose(&mut job, 1, 1, None));
        assert!(told.starts_with("rank 1 failed twice in step 17"), "before the ranks have resumed: {told}");
    }

    #[test]
    fn errors_in_different_steps_are_replaced_wherever_the_ranks_resume() {
        let mut job = round(2);
        assert!(is_replaced(&lose(&mut job, 1, 0, Some(16))));
        // Its peers had passed the vote of step 16.
        assert_eq!(job.resumed(1, 17), None);
        assert!(is_replaced(&lose(&mut job, 1, 1, Some(17))));
        assert_eq!(job.resumed(2, 17), None);
        assert!(sentence(lose(&mut job, 1, 2, Some(17))).starts_with("rank 1 failed twice in step 17"));
    }

    #[test]
    fn what_an_earlier_process_said_of_its_step_does_not_count() {
        let mut job = round(2);
        assert!(is_replaced(&lose(&mut job, 1, 0, Some(3))));
        assert_eq!(job.resumed(1, 3), None);
        job.failed_in(1, 0, 3);
        assert!(is_replaced(&lose(&mut job, 1, 1, Some(4))));
    }

    #[test]
    fn a_refusal_of_the_session_ends_the_job_at_the_first_rank() {
        let mut job = round(2);
        let told = sentence(job.refused(1, 0, "rank 1 exited with code 1 (SessionMisuse: twice)"));
        assert!(told.starts_with("rank 1 exited with code 1 (SessionMisuse: twice): the script uses its session"));
        assert_eq!(job.refused(0, 0, "rank 0"), None, "nothing follows");
        let mut job = round(2);
        assert!(is_replaced(&lose(&mut job, 1, 0, None)));
        assert_eq!(job.refused(1, 0, "told twice"), None);
    }

    #[test]
    fn a_rank_that_cannot_recover_has_all_restart_at_once() {
        let mut job = round(3);
        assert!(is_replaced(&lose(&mut job, 1, 0, None)));
        let told = sentence(job.impossible("ranks 1 and 2 were lost together"));
        let cause = "rank 1 exited with code 1 (ValueError: no)";
        assert_eq!(told, format!("{cause}: ranks 1 and 2 were lost together, so all workers restart"));
        assert_eq!(job.impossible("told by another rank, too"), None);
        assert_eq!(sentence(round(2).impossible("no")), "no, so all workers restart");
    }

    #[test]
    fn a_rank_that_ends_with_0_while_another_waits_for_it_has_all_restart() {
        let expected = "rank 1 ended with exit code 0 while rank 0 was training, so all workers restart";
        let mut job = round(2);
        assert_eq!(job.awaits(0, 1), None, "nobody has ended");
        assert_eq!(job.finished(1), None);
        let (left, decision) = job.awaits(0, 1).expect("a decision");
        assert_eq!((left, sentence(Some(decision)).as_str()), (1, expected));
        assert_eq!(job.awaits(0, 1), None, "nothing follows");

        let mut job = round(3);
        assert!(is_replaced(&lose(&mut job, 2, 0, None)));
        assert_eq!(job.resumed(1, 9), None);
        assert_eq!(job.finished(1), None);
        assert_eq!(job.awaits(0, 1), None, "what it waited for before");
        assert!(job.awaits(0, 2).is_some());
    }

    #[test]
    fn a_rank_that_hangs_is_killed_only_where_it_would_be_replaced() {
        let mut job = round(3);
        assert!(job.would_replace(1, 0, |_| true));
        assert!(!job.would_replace(1, 1, |_| true), "another process");
        for without in 0..3 {
            assert!(!job.would_replace(1, 0, |rank| rank != without), "rank {without} has no session");
        }
        assert!(is_replaced(&lose(&mut job, 0, 0, None)));
        assert!(job.would_replace(1, 0, |_| true), "rank 2 has the state");
        assert!(is_replaced(&lose(&mut job, 2, 0, None)));
        assert!(!job.would_replace(1, 0, |_| true), "nobody else has the state");
        let mut job = round(2);
        assert_eq!(job.finished(0), None);
        assert!(!job.would_replace(1, 0, |_| true), "rank 0 has finished");
    }
}
