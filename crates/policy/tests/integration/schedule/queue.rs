//! The order of the queue and how jobs are moved in it.

use instep_policy::schedule::{Moved, Side, jobs_in_order, move_job};

use crate::schedule::world::World;

fn three() -> World {
    let mut world = World::of(&[1], false);
    for name in ["one", "two", "three"] {
        world.waits(name, 42, 1);
    }
    world.waits("urgent", 7, 1);
    world
}

fn apply(world: &mut World, moved: Vec<Moved>) {
    for change in moved {
        let job = world.queue.jobs.get_mut(&change.job).expect("there");
        (job.priority, job.position) = (change.priority, change.position);
    }
}

#[test]
fn jobs_move_ahead_of_and_behind_others() {
    for (job, side, anchor, expected) in [
        ("three", Side::Ahead, "one", ["urgent", "three", "one", "two"]),
        ("one", Side::Behind, "two", ["urgent", "two", "one", "three"]),
        ("one", Side::Behind, "three", ["urgent", "two", "three", "one"]),
        ("three", Side::Behind, "two", ["urgent", "one", "two", "three"]),
    ] {
        let mut world = three();
        let moved = move_job(&world.queue, job, side, anchor).expect("they are in one pool");
        apply(&mut world, moved);
        assert_eq!(jobs_in_order(&world.queue, "default"), expected, "{job} {side:?} {anchor}");
        world.waits("new", 42, 1);
        assert_eq!(jobs_in_order(&world.queue, "default").last(), Some(&"new"), "new ones still come last");
    }
}

#[test]
fn a_job_takes_on_the_priority_of_its_new_neighbour() {
    let mut world = three();
    let moved = move_job(&world.queue, "three", Side::Ahead, "urgent").expect("they are in one pool");
    apply(&mut world, moved);
    assert_eq!(world.queue.jobs["three"].priority, 7);
    assert_eq!(world.starts(), ["three"]);
}

#[test]
fn equal_positions_are_told_apart_by_a_move() {
    let mut world = three();
    world.queue.jobs.values_mut().for_each(|job| job.position = 5);
    let moved = move_job(&world.queue, "three", Side::Ahead, "one").expect("they are in one pool");
    apply(&mut world, moved);
    assert_eq!(jobs_in_order(&world.queue, "default"), ["urgent", "three", "one", "two"]);
}

#[test]
fn moves_that_make_no_sense_are_refused() {
    let mut world = three();
    world.job("elsewhere", 42).pool = "other".to_owned();
    let refusal = |job, anchor| move_job(&world.queue, job, Side::Ahead, anchor).expect_err("refused");
    assert_eq!(refusal("one", "nobody"), "there is no job nobody in the queue");
    assert_eq!(refusal("one", "one"), "one cannot be moved next to itself");
    assert_eq!(refusal("one", "elsewhere"), "one is in pool default, elsewhere is in pool other");
}
