//! Losses as tables of cases: which are replaced, and which end the round or the job.

use super::{Decision, Loss, LossKind, MAX_SIGNALS, Recovery};
use std::collections::BTreeMap;

fn loss(rank: usize, incarnation: u32, kind: LossKind) -> Loss {
    let how = match kind {
        LossKind::Signal => "was killed by SIGKILL",
        LossKind::OwnError => "exited with code 1 (ValueError: no)",
        LossKind::NotStarted => "could not be started",
    };
    Loss { rank, incarnation, kind, cause: format!("rank {rank} {how}") }
}

fn killed(rank: usize, incarnation: u32) -> Loss {
    loss(rank, incarnation, LossKind::Signal)
}

fn raised(rank: usize, incarnation: u32) -> Loss {
    loss(rank, incarnation, LossKind::OwnError)
}

/// All ranks have a session.
fn all(_: usize) -> bool {
    true
}

/// The generation and the incarnations of a replacement.
fn replaced(decision: Option<Decision>) -> (u64, Vec<(usize, u32)>) {
    match decision {
        Some(Decision::Replace { generation, incarnations, .. }) => (generation, incarnations.into_iter().collect()),
        other => panic!("expected a replacement, found {other:?}"),
    }
}

fn sentence(decision: Option<Decision>) -> String {
    match decision {
        Some(Decision::RestartAll { reason, .. } | Decision::End { reason, .. }) => reason,
        other => panic!("expected an end, found {other:?}"),
    }
}

#[test]
fn a_killed_rank_is_replaced_and_the_next_loss_is_the_next_generation() {
    let mut round = Recovery::new(4);
    let decision = round.lost(&[killed(3, 0)], all);
    let reason = "rank 3 was killed by SIGKILL".to_owned();
    let incarnations = BTreeMap::from([(3, 1)]);
    assert_eq!(decision, Some(Decision::Replace { generation: 1, incarnations, reason }));
    assert_eq!(round.resumed(1, 17), None);
    assert_eq!(replaced(round.lost(&[killed(3, 1)], all)), (2, vec![(3, 2)]));
    assert_eq!(replaced(round.lost(&[killed(0, 0)], all)), (3, vec![(0, 1)]), "during a recovery");
    assert_eq!(round.incarnations(), BTreeMap::from([(0, 1), (3, 2)]));
    assert_eq!(round.unresumed(), 2..=3);
}

#[test]
fn ranks_that_are_lost_together_are_replaced_in_one_generation() {
    let mut round = Recovery::new(4);
    let decision = round.lost(&[killed(1, 0), killed(2, 0)], all);
    assert!(
        matches!(&decision, Some(Decision::Replace { reason, .. }) if reason.contains("rank 1 was killed by SIGKILL; rank 2"))
    );
    assert_eq!(replaced(decision), (1, vec![(1, 1), (2, 1)]));
}

#[test]
fn a_loss_that_was_told_before_changes_nothing() {
    let mut round = Recovery::new(2);
    replaced(round.lost(&[killed(1, 0)], all));
    assert_eq!(round.lost(&[killed(1, 0), killed(9, 0)], all), None);
    assert_eq!(round.generation(), 1);
}

#[test]
fn all_restart_where_a_surviving_rank_has_no_session() {
    let mut round = Recovery::new(4);
    let told = sentence(round.lost(&[killed(3, 0)], |rank| rank != 2));
    assert_eq!(told, "rank 3 was killed by SIGKILL: rank 2 has no instep.elastic.Session, so all workers restart");
    assert_eq!(round.lost(&[killed(1, 0)], all), None, "nothing follows");
    let mut round = Recovery::new(2);
    replaced(round.lost(&[killed(1, 0)], |rank| rank == 0));
}

#[test]
fn a_replacement_that_has_not_reached_its_session_is_no_rank_without_one() {
    let mut round = Recovery::new(4);
    let sessions = |rank: usize| rank != 3;
    replaced(round.lost(&[killed(3, 0)], sessions));
    assert_eq!(replaced(round.lost(&[killed(0, 0)], sessions)), (2, vec![(0, 1)]));
}

#[test]
fn all_restart_where_no_state_is_left_or_a_rank_has_finished() {
    let mut round = Recovery::new(2);
    let told = sentence(round.lost(&[killed(0, 0), killed(1, 0)], all));
    assert!(told.ends_with(": no rank with the state of the step is left, so all workers restart"), "{told}");

    let mut round = Recovery::new(2);
    replaced(round.lost(&[killed(0, 0)], all));
    let told = sentence(round.lost(&[killed(1, 0)], all));
    assert!(told.contains("no rank with the state"), "the replacement of rank 0 has none yet: {told}");

    let mut round = Recovery::new(2);
    replaced(round.lost(&[killed(0, 0)], all));
    assert_eq!(round.resumed(1, 3), None);
    replaced(round.lost(&[killed(1, 0)], all));

    let mut round = Recovery::new(3);
    assert_eq!(round.finished(2), None);
    let told = sentence(round.lost(&[killed(0, 0)], all));
    assert!(told.ends_with(": rank 2 has already finished, so all workers restart"), "{told}");
}

#[test]
fn all_restart_where_a_rank_turns_out_to_have_finished_before_it_heard_of_the_generation() {
    let mut round = Recovery::new(3);
    replaced(round.lost(&[killed(0, 0)], all));
    let told = sentence(round.finished(2));
    assert_eq!(told, "rank 0 was killed by SIGKILL: rank 2 has already finished, so all workers restart");
    assert_eq!(round.finished(1), None, "nothing follows");

    let mut round = Recovery::new(2);
    replaced(round.lost(&[killed(0, 0)], all));
    assert_eq!(round.resumed(1, 9), None);
    assert_eq!((round.finished(1), round.finished(0)), (None, None), "after the recovery that is the end of the job");
}

#[test]
fn all_restart_where_a_replacement_cannot_be_started() {
    let mut round = Recovery::new(2);
    replaced(round.lost(&[killed(1, 0)], all));
    let told = sentence(round.lost(&[loss(1, 1, LossKind::NotStarted)], all));
    assert!(told.ends_with(": its replacement could not be started, so all workers restart"), "{told}");
}

#[test]
fn a_rank_that_fails_by_itself_twice_in_one_step_ends_the_job() {
    let mut round = Recovery::new(4);
    replaced(round.lost(&[raised(3, 0)], all));
    assert_eq!(round.resumed(1, 17), None);
    replaced(round.lost(&[raised(3, 1)], all));
    let end = round.resumed(2, 17);
    let reason = "rank 3 failed twice in step 17: rank 3 exited with code 1 (ValueError: no)".to_owned();
    assert_eq!(end, Some(Decision::End { rank: 3, reason }));
    assert_eq!(round.lost(&[raised(3, 2)], all), None, "nothing follows");
}

#[test]
fn errors_in_different_steps_or_of_different_ranks_are_replaced() {
    let mut round = Recovery::new(4);
    for (generation, rank) in [(1, 3), (2, 3), (3, 2), (4, 3)] {
        let incarnation = round.incarnations().get(&rank).copied().unwrap_or(0);
        assert_eq!(replaced(round.lost(&[raised(rank, incarnation)], all)).0, generation);
        assert_eq!(round.resumed(generation, 10 * generation), None);
    }
    replaced(round.lost(&[raised(1, 0)], all));
    assert_eq!(round.resumed(5, 40), None, "another rank in the step of rank 3");
}

#[test]
fn two_errors_before_a_step_is_known_are_in_the_same_step() {
    let mut round = Recovery::new(4);
    replaced(round.lost(&[raised(3, 0)], all));
    let told = sentence(round.lost(&[raised(3, 1)], all));
    assert!(told.starts_with("rank 3 failed twice before a step was redone: rank 3 exited"), "{told}");
}

#[test]
fn signals_in_one_step_are_allowed_so_often_and_no_more() {
    let mut round = Recovery::new(2);
    for incarnation in 0..MAX_SIGNALS {
        let generation = u64::from(incarnation) + 1;
        assert_eq!(replaced(round.lost(&[killed(1, incarnation)], all)).0, generation);
        assert_eq!(round.resumed(generation, 5), None);
    }
    replaced(round.lost(&[killed(1, MAX_SIGNALS)], all));
    let told = sentence(round.resumed(u64::from(MAX_SIGNALS) + 1, 5));
    assert_eq!(told, "rank 1 was killed 6 times in step 5: rank 1 was killed by SIGKILL");
}

#[test]
fn generations_that_are_unknown_or_told_twice_are_ignored() {
    let mut round = Recovery::new(2);
    assert_eq!(round.resumed(1, 3), None);
    replaced(round.lost(&[raised(1, 0)], all));
    assert_eq!(round.resumed(9, 3), None);
    assert_eq!(round.resumed(1, 3), None);
    replaced(round.lost(&[raised(1, 1)], all));
    assert_eq!(round.resumed(1, 3), None, "told twice: it says nothing of the second loss");
    assert_eq!(round.resumed(2, 4), None);
}
