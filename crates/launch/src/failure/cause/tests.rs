//! The cause of a round's end as a table of cases, in every order in which the ends can arrive.

use super::{Cause, Round, WorkerEnd, root_cause};
use crate::failure::blame::{Blame, BlameKind};

fn end(rank: usize, time: f64) -> WorkerEnd {
    WorkerEnd { rank, success: false, time, stopped: false, after_stop: false, blame: None }
}

/// Ended with 0.
fn left(rank: usize, time: f64) -> WorkerEnd {
    WorkerEnd { success: true, ..end(rank, time) }
}

/// Ended by the launcher.
fn stopped(rank: usize, time: f64) -> WorkerEnd {
    WorkerEnd { stopped: true, after_stop: true, ..end(rank, time) }
}

fn blames(rank: usize, time: f64, kind: BlameKind, ranks: &[usize]) -> WorkerEnd {
    WorkerEnd { blame: Some(Blame { kind, ranks: ranks.to_vec(), operation: None }), ..end(rank, time) }
}

fn lost(rank: usize, time: f64, ranks: &[usize]) -> WorkerEnd {
    blames(rank, time, BlameKind::Lost, ranks)
}

fn late(rank: usize, time: f64, ranks: &[usize]) -> WorkerEnd {
    blames(rank, time, BlameKind::Late, ranks)
}

/// All orders of so few ends, and some of many.
fn orders(ends: &[WorkerEnd]) -> Vec<Vec<WorkerEnd>> {
    if ends.len() > 5 {
        return (0..ends.len()).map(|by| [&ends[by..], &ends[..by]].concat()).collect();
    }
    let Some((last, rest)) = ends.split_last() else { return vec![Vec::new()] };
    let insert = |order: Vec<WorkerEnd>| {
        let at = move |place: usize| [&order[..place], std::slice::from_ref(last), &order[place..]].concat();
        (0..=rest.len()).map(at)
    };
    orders(rest).into_iter().flat_map(insert).collect()
}

/// Whom the decision names, in any order of arrival: `None` for unknown.
fn named(ends: &[WorkerEnd], world_size: usize) -> Option<usize> {
    let round = Round { world_size, is_final: true };
    let mut causes = orders(ends).into_iter().map(|order| root_cause(&order, round).expect("somebody failed"));
    let first = causes.next().expect("an order");
    causes.for_each(|cause| assert_eq!(cause, first, "it depends on the order: {ends:?}"));
    first.rank()
}

#[test]
fn the_rank_that_failed_by_itself_is_named_whoever_was_seen_first() {
    let nobody: &[usize] = &[];
    let cases: Vec<(&str, Vec<WorkerEnd>, usize, Option<usize>)> = vec![
        ("one raises, the other loses it and is seen first", vec![lost(0, 1.0, &[1]), end(1, 2.0)], 2, Some(1)),
        ("gloo does not say whom it lost", vec![lost(0, 1.0, nobody), lost(2, 1.5, nobody), end(1, 2.0)], 3, Some(1)),
        ("the earliest of two that failed by themselves", vec![end(0, 2.0), end(1, 1.0)], 2, Some(1)),
        ("a chain", vec![lost(0, 1.0, &[1]), lost(1, 2.0, &[2]), end(2, 3.0)], 3, Some(2)),
        ("a chain to a rank that left", vec![lost(0, 1.0, &[1]), lost(1, 2.0, &[2]), left(2, 0.5)], 3, Some(2)),
        ("a rank left", vec![lost(0, 1.0, &[1]), left(1, 0.5)], 2, Some(1)),
        ("a rank left, on gloo", vec![lost(0, 1.0, nobody), lost(2, 1.0, nobody), left(1, 0.5)], 3, Some(1)),
        ("a rank never came", vec![late(0, 9.0, &[1]), late(2, 9.0, &[1]), stopped(1, 9.5)], 3, Some(1)),
        ("a rank never came, on gloo", vec![late(0, 9.0, nobody), late(2, 9.1, nobody), stopped(1, 14.0)], 3, Some(1)),
        ("several left, on gloo", vec![lost(0, 1.0, nobody), left(1, 0.5), left(2, 0.5)], 3, None),
        ("others were stopped, on gloo", vec![lost(0, 1.0, nobody), stopped(1, 6.0), stopped(2, 6.0)], 3, None),
        ("all waited, on gloo", vec![late(0, 9.0, nobody), late(1, 9.1, nobody)], 2, None),
        ("the cable between them is cut", vec![lost(0, 9.0, &[1]), lost(1, 9.1, &[0])], 2, None),
        (
            "it fails because it was stopped",
            vec![late(0, 9.0, &[1]), WorkerEnd { stopped: false, ..stopped(2, 9.1) }],
            3,
            Some(1),
        ),
        ("the rest was stopped", vec![end(1, 1.0), stopped(0, 0.9), stopped(2, 2.0)], 3, Some(1)),
        (
            "one that fails when it is told to end, for a reason outside of this node's workers",
            vec![stopped(0, 2.0), WorkerEnd { stopped: false, ..stopped(1, 1.0) }],
            2,
            Some(1),
        ),
        (
            "it runs on another node, of which nothing is known",
            vec![lost(0, 1.0, &[5]), lost(1, 1.1, &[5])],
            8,
            Some(5),
        ),
        ("another node, on gloo", vec![lost(0, 1.0, nobody), lost(1, 1.1, nobody)], 4, None),
        (
            "they disagree",
            vec![blames(0, 1.0, BlameKind::Disagreement, &[0, 1]), blames(1, 1.0, BlameKind::Disagreement, &[0, 1])],
            2,
            Some(0),
        ),
        (
            "they disagree, on gloo",
            vec![lost(0, 2.0, nobody), blames(1, 1.0, BlameKind::Disagreement, nobody)],
            2,
            None,
        ),
    ];
    for (name, ends, world_size, expected) in cases {
        assert_eq!(named(&ends, world_size), expected, "{name}");
    }
}

#[test]
fn workers_that_the_launcher_ended_are_no_cause() {
    let round = Round { world_size: 2, is_final: true };
    assert_eq!(root_cause(&[stopped(0, 2.0), stopped(1, 1.0)], round), None);
}

#[test]
fn in_worlds_of_any_size_each_rank_can_be_the_cause() {
    for world in 2..=8 {
        for cause in 0..world {
            let others = || (0..world).filter(move |rank| *rank != cause);
            let of_others =
                |blamed: &[usize]| others().map(|rank| lost(rank, 1.0 + rank as f64, blamed)).collect::<Vec<_>>();
            for blamed in [vec![cause], vec![]] {
                for own in [end(cause, 99.0), left(cause, 0.5)] {
                    let ends = [of_others(&blamed), vec![own]].concat();
                    assert_eq!(named(&ends, world), Some(cause), "{ends:?}");
                }
            }
        }
    }
}

#[test]
fn a_decision_waits_only_for_what_can_change_it() {
    let wait =
        |ends: &[WorkerEnd], world_size: usize| root_cause(ends, Round { world_size, is_final: false }).is_none();
    assert!(!wait(&[end(0, 1.0)], 2), "it failed by itself");
    assert!(wait(&[lost(0, 1.0, &[1])], 2), "rank 1 is about to end");
    assert!(!wait(&[lost(0, 1.0, &[1]), left(1, 0.5)], 3), "rank 1 has ended");
    assert!(!wait(&[late(0, 9.0, &[1])], 3), "rank 1 may never end");
    assert!(wait(&[late(0, 9.0, &[])], 2), "rank 1 may wait itself");
    assert!(wait(&[lost(0, 1.0, &[])], 3) && wait(&[lost(0, 1.0, &[]), left(1, 0.5)], 3), "rank 2 may be the cause");
    assert!(!wait(&[lost(0, 1.0, &[]), left(1, 0.5)], 2), "nobody else is there");
    assert!(wait(&[lost(0, 1.0, &[5])], 8), "the other node will say");
    assert!(wait(&[left(0, 1.0)], 2), "nobody failed");
    assert!(!wait(&[lost(0, 9.0, &[1]), lost(1, 9.1, &[0])], 2), "all is known");
}

#[test]
fn what_is_known_of_the_wait_is_kept() {
    let blame = Blame { kind: BlameKind::Lost, ranks: vec![1], operation: Some("all_reduce".to_owned()) };
    let ends = [left(1, 0.5), WorkerEnd { blame: Some(blame), ..end(0, 1.0) }];
    let cause = root_cause(&ends, Round { world_size: 2, is_final: false });
    let operation = Some("all_reduce".to_owned());
    assert_eq!(cause, Some(Cause::Absent { ranks: vec![1], waiting: 0, kind: BlameKind::Lost, operation }));
}
