//! Losses as tables of cases: which are replaced, and which end the round or the job.

use super::{Decision, Loss, LossKind, MAX_SIGNALS, NodeLoss, Recovery, RoundNode};
use crate::membership::NodeId;
use std::collections::BTreeMap;

fn loss(rank: usize, incarnation: u32, kind: LossKind) -> Loss {
    let how = match kind {
        LossKind::Signal => "was killed by SIGKILL",
        LossKind::OwnError => "exited with code 1 (ValueError: no)",
        LossKind::NotStarted => "could not be started",
        LossKind::WithNode => "was lost with its node",
    };
    Loss { rank, incarnation, kind, cause: format!("rank {rank} {how}") }
}

fn killed(rank: usize, incarnation: u32) -> Loss {
    loss(rank, incarnation, LossKind::Signal)
}

fn raised(rank: usize, incarnation: u32) -> Loss {
    loss(rank, incarnation, LossKind::OwnError)
}

/// Nodes 1, 2 and so on, with so many ranks and spares each.
fn on_nodes(nodes: &[(usize, usize)]) -> Recovery {
    let mut next = 0;
    let numbered = nodes.iter().zip(1..).map(|((workers, spares), id)| {
        let ranks = next..next + workers;
        next = ranks.end;
        RoundNode { node: NodeId(id), ranks, spares: *spares, role: "default".to_owned() }
    });
    Recovery::new(&numbered.collect::<Vec<_>>())
}

pub(super) fn on_one_node(world_size: usize) -> Recovery {
    on_nodes(&[(world_size, 0)])
}

fn gone(node: u64) -> NodeLoss {
    NodeLoss { node: NodeId(node), cause: format!("node {node} was lost") }
}

/// All ranks have a session.
fn all(_: usize) -> bool {
    true
}

/// Which ranks a replacement moves, and to which nodes.
fn moved(decision: &Option<Decision>) -> Vec<(usize, u64)> {
    match decision {
        Some(Decision::Replace { moved, .. }) => moved.iter().map(|(rank, node)| (*rank, node.0)).collect(),
        other => panic!("expected a replacement, found {other:?}"),
    }
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
    let mut round = on_one_node(4);
    let decision = round.lost(&[killed(3, 0)], &[], all);
    let reason = "rank 3 was killed by SIGKILL".to_owned();
    let incarnations = BTreeMap::from([(3, 1)]);
    assert_eq!(decision, Some(Decision::Replace { generation: 1, incarnations, moved: BTreeMap::new(), reason }));
    assert_eq!(round.resumed(1, 17), None);
    assert_eq!(replaced(round.lost(&[killed(3, 1)], &[], all)), (2, vec![(3, 2)]));
    assert_eq!(replaced(round.lost(&[killed(0, 0)], &[], all)), (3, vec![(0, 1)]), "during a recovery");
    assert_eq!(round.incarnations(), BTreeMap::from([(0, 1), (3, 2)]));
    assert_eq!(round.unresumed(), 2..=3);
}

#[test]
fn ranks_that_are_lost_together_are_replaced_in_one_generation() {
    let mut round = on_one_node(4);
    let decision = round.lost(&[killed(1, 0), killed(2, 0)], &[], all);
    assert!(
        matches!(&decision, Some(Decision::Replace { reason, .. }) if reason.contains("rank 1 was killed by SIGKILL; rank 2"))
    );
    assert_eq!(replaced(decision), (1, vec![(1, 1), (2, 1)]));
}

#[test]
fn a_loss_that_was_told_before_changes_nothing() {
    let mut round = on_one_node(2);
    replaced(round.lost(&[killed(1, 0)], &[], all));
    assert_eq!(round.lost(&[killed(1, 0), killed(9, 0)], &[], all), None);
    assert_eq!(round.generation(), 1);
}

#[test]
fn all_restart_where_a_surviving_rank_has_no_session() {
    let mut round = on_one_node(4);
    let told = sentence(round.lost(&[killed(3, 0)], &[], |rank| rank != 2));
    assert_eq!(told, "rank 3 was killed by SIGKILL: rank 2 has no instep.elastic.Session, so all workers restart");
    assert_eq!(round.lost(&[killed(1, 0)], &[], all), None, "nothing follows");
    let mut round = on_one_node(2);
    replaced(round.lost(&[killed(1, 0)], &[], |rank| rank == 0));
}

#[test]
fn a_replacement_that_has_not_reached_its_session_is_no_rank_without_one() {
    let mut round = on_one_node(4);
    let sessions = |rank: usize| rank != 3;
    replaced(round.lost(&[killed(3, 0)], &[], sessions));
    assert_eq!(replaced(round.lost(&[killed(0, 0)], &[], sessions)), (2, vec![(0, 1)]));
}

#[test]
fn all_restart_where_no_state_is_left_or_a_rank_has_finished() {
    let mut round = on_one_node(2);
    let told = sentence(round.lost(&[killed(0, 0), killed(1, 0)], &[], all));
    assert!(told.ends_with(": no rank with the state of the step is left, so all workers restart"), "{told}");

    let mut round = on_one_node(2);
    replaced(round.lost(&[killed(0, 0)], &[], all));
    let told = sentence(round.lost(&[killed(1, 0)], &[], all));
    assert!(told.contains("no rank with the state"), "the replacement of rank 0 has none yet: {told}");

    let mut round = on_one_node(2);
    replaced(round.lost(&[killed(0, 0)], &[], all));
    assert_eq!(round.resumed(1, 3), None);
    replaced(round.lost(&[killed(1, 0)], &[], all));

    let mut round = on_one_node(3);
    assert_eq!(round.finished(2), None);
    let told = sentence(round.lost(&[killed(0, 0)], &[], all));
    assert!(told.ends_with(": rank 2 has already finished, so all workers restart"), "{told}");
}

#[test]
fn all_restart_where_a_rank_turns_out_to_have_finished_before_it_heard_of_the_generation() {
    let mut round = on_one_node(3);
    replaced(round.lost(&[killed(0, 0)], &[], all));
    let told = sentence(round.finished(2));
    assert_eq!(told, "rank 0 was killed by SIGKILL: rank 2 has already finished, so all workers restart");
    assert_eq!(round.finished(1), None, "nothing follows");

    let mut round = on_one_node(2);
    replaced(round.lost(&[killed(0, 0)], &[], all));
    assert_eq!(round.resumed(1, 9), None);
    assert_eq!((round.finished(1), round.finished(0)), (None, None), "after the recovery that is the end of the job");
}

#[test]
fn all_restart_where_a_replacement_cannot_be_started() {
    let mut round = on_one_node(2);
    replaced(round.lost(&[killed(1, 0)], &[], all));
    let told = sentence(round.lost(&[loss(1, 1, LossKind::NotStarted)], &[], all));
    assert!(told.ends_with(": its replacement could not be started, so all workers restart"), "{told}");
}

#[test]
fn a_rank_that_fails_by_itself_twice_in_one_step_ends_the_job() {
    let mut round = on_one_node(4);
    replaced(round.lost(&[raised(3, 0)], &[], all));
    assert_eq!(round.resumed(1, 17), None);
    replaced(round.lost(&[raised(3, 1)], &[], all));
    let end = round.resumed(2, 17);
    let reason = "rank 3 failed twice in step 17: rank 3 exited with code 1 (ValueError: no)".to_owned();
    assert_eq!(end, Some(Decision::End { rank: 3, reason }));
    assert_eq!(round.lost(&[raised(3, 2)], &[], all), None, "nothing follows");
}

#[test]
fn errors_in_different_steps_or_of_different_ranks_are_replaced() {
    let mut round = on_one_node(4);
    for (generation, rank) in [(1, 3), (2, 3), (3, 2), (4, 3)] {
        let incarnation = round.incarnations().get(&rank).copied().unwrap_or(0);
        assert_eq!(replaced(round.lost(&[raised(rank, incarnation)], &[], all)).0, generation);
        assert_eq!(round.resumed(generation, 10 * generation), None);
    }
    replaced(round.lost(&[raised(1, 0)], &[], all));
    assert_eq!(round.resumed(5, 40), None, "another rank in the step of rank 3");
}

#[test]
fn two_errors_before_a_step_is_known_are_in_the_same_step() {
    let mut round = on_one_node(4);
    replaced(round.lost(&[raised(3, 0)], &[], all));
    let told = sentence(round.lost(&[raised(3, 1)], &[], all));
    assert!(told.starts_with("rank 3 failed twice before a step was redone: rank 3 exited"), "{told}");
}

#[test]
fn signals_in_one_step_are_allowed_so_often_and_no_more() {
    let mut round = on_one_node(2);
    for incarnation in 0..MAX_SIGNALS {
        let generation = u64::from(incarnation) + 1;
        assert_eq!(replaced(round.lost(&[killed(1, incarnation)], &[], all)).0, generation);
        assert_eq!(round.resumed(generation, 5), None);
    }
    replaced(round.lost(&[killed(1, MAX_SIGNALS)], &[], all));
    let told = sentence(round.resumed(u64::from(MAX_SIGNALS) + 1, 5));
    assert_eq!(told, "rank 1 was killed 6 times in step 5: rank 1 was killed by SIGKILL");
}

#[test]
fn generations_that_are_unknown_or_told_twice_are_ignored() {
    let mut round = on_one_node(2);
    assert_eq!(round.resumed(1, 3), None);
    replaced(round.lost(&[raised(1, 0)], &[], all));
    assert_eq!(round.resumed(9, 3), None);
    assert_eq!(round.resumed(1, 3), None);
    replaced(round.lost(&[raised(1, 1)], &[], all));
    assert_eq!(round.resumed(1, 3), None, "told twice: it says nothing of the second loss");
    assert_eq!(round.resumed(2, 4), None);
}

#[test]
fn the_ranks_of_a_lost_node_move_to_spares_of_the_others() {
    let mut round = on_nodes(&[(2, 1), (2, 1), (2, 1)]);
    let decision = round.lost(&[], &[gone(2)], all);
    assert_eq!(moved(&decision), [(2, 1), (3, 3)]);
    assert!(matches!(&decision, Some(Decision::Replace { reason, .. }) if reason == "node 2 was lost"), "said once");
    assert_eq!(replaced(decision), (1, vec![(2, 1), (3, 1)]));
    assert!(!round.has_node(NodeId(2)) && round.has_node(NodeId(3)));
    assert_eq!(round.lost(&[killed(2, 0)], &[gone(2)], all), None, "known already");
    assert_eq!(round.resumed(1, 9), None);
    let again = round.lost(&[killed(3, 1)], &[], all);
    assert_eq!((moved(&again), replaced(again)), (vec![], (2, vec![(3, 2)])), "it stays where it is now");
}

#[test]
fn ranks_that_have_moved_move_on_with_those_of_the_next_node() {
    let mut round = on_nodes(&[(1, 2), (1, 0), (1, 1)]);
    assert_eq!(moved(&round.lost(&[], &[gone(2)], all)), [(1, 1)]);
    assert_eq!(round.resumed(1, 3), None);
    assert_eq!(moved(&round.lost(&[], &[gone(3)], all)), [(2, 1)], "all are on one node now");
}

#[test]
fn a_rank_that_was_lost_with_its_node_is_replaced_once() {
    let mut round = on_nodes(&[(2, 1), (1, 0)]);
    let decision = round.lost(&[killed(2, 0), killed(1, 0)], &[gone(2)], all);
    assert_eq!(moved(&decision), [(2, 1)]);
    assert_eq!(replaced(decision), (1, vec![(1, 1), (2, 1)]));
}

#[test]
fn all_restart_where_the_other_nodes_have_too_few_spares() {
    let mut round = on_nodes(&[(2, 1), (2, 1)]);
    let told = sentence(round.lost(&[], &[gone(2)], all));
    assert_eq!(told, "node 2 was lost: the other nodes are 1 spare short (--spares), so all workers restart");
    let mut round = on_nodes(&[(2, 1), (2, 9), (1, 2)]);
    let told = sentence(round.lost(&[], &[gone(2), gone(3)], all));
    assert!(told.contains("the other nodes are 2 spares short"), "nodes that are lost too have none: {told}");
}

#[test]
fn the_loss_of_a_node_counts_neither_as_an_error_nor_as_a_signal() {
    let mut round = on_nodes(&[(1, 9), (1, 0), (1, 9), (1, 9)]);
    for (generation, node) in [(1, 2), (2, 1), (3, 3)] {
        assert_eq!(replaced(round.lost(&[], &[gone(node)], all)).0, generation);
        assert_eq!(round.resumed(generation, 5), None, "all in one step");
    }
}

#[test]
fn a_node_whose_ranks_have_all_finished_is_no_loss() {
    let mut round = on_nodes(&[(1, 1), (1, 1)]);
    assert_eq!(round.finished(1), None);
    assert_eq!(round.lost(&[], &[gone(2)], all), None);
    let mut round = on_nodes(&[(1, 2), (2, 0)]);
    assert_eq!(round.finished(1), None);
    let told = sentence(round.lost(&[], &[gone(2)], all));
    assert!(told.ends_with("rank 1 has already finished, so all workers restart"), "{told}");
}

#[test]
fn a_node_that_joined_later_takes_the_ranks_of_a_lost_one_and_loses_them_like_any_other() {
    let mut round = on_nodes(&[(2, 0), (2, 0)]);
    let newcomer = RoundNode { node: NodeId(5), ranks: 0..0, spares: 2, role: "default".to_owned() };
    round.stand_by(std::slice::from_ref(&newcomer), 1);
    assert!(!round.has_node(NodeId(5)), "it has no rank yet");
    assert_eq!(moved(&round.lost(&[], &[gone(2)], all)), [(2, 5), (3, 5)]);
    assert!(round.has_node(NodeId(5)));
    assert_eq!(replaced(round.lost(&[killed(3, 1)], &[], all)), (2, vec![(3, 2)]), "in its new place");
    let told = sentence(round.lost(&[], &[gone(5)], all));
    assert!(told.contains("2 spares short"), "{told}");
}
