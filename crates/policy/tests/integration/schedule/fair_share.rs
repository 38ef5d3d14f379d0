//! Fair shares: the facts, and what follows when shares change.

use crate::schedule::world::{World, preempted, started};

#[test]
fn fact_a_limit_on_slots_is_kept_and_the_rest_goes_to_the_other() {
    let mut world = World::fair(&[4]);
    world.job("limited", 42).max_slots = Some(1);
    world.job("free", 42);
    for index in 1..=4 {
        world.asks("limited", &format!("limited-{index}"), 1);
        world.asks("free", &format!("free-{index}"), 1);
    }
    assert_eq!(world.starts(), ["limited-1", "free-1", "free-2", "free-3"]);
    assert_eq!(
        world.reason("limited-2"),
        "waiting: needs 1 slot, its job holds 1 of its fair share of 1 (max_slots is 1)"
    );
}

#[test]
fn fact_shares_follow_the_weights() {
    let mut world = World::fair(&[8]);
    world.job("light", 42).weight = 10.0;
    world.job("heavy", 42).weight = 30.0;
    for index in 0..7 {
        if index < 3 {
            world.asks("light", &format!("light-{index}"), 1);
        }
        world.asks("heavy", &format!("heavy-{index}"), 1);
    }
    let starts = world.starts();
    let light = starts.iter().filter(|name| name.starts_with("light")).count();
    assert_eq!((light, starts.len()), (2, 8));
}

#[test]
fn fact_an_offer_that_is_too_small_for_both_goes_to_the_older() {
    let mut world = World::fair(&[2]);
    for name in ["old", "new", "newest"] {
        world.waits(name, 42, 2);
    }
    assert_eq!(world.starts(), ["old"]);
    assert_eq!(world.reason("new"), "waiting: needs 2 slots, its job holds 0 of its fair share of 0");
}

#[test]
fn fact_what_is_larger_than_the_cluster_is_left_out() {
    let mut world = World::fair(&[4]);
    world.waits("too-large", 42, 5);
    world.waits("right", 42, 4);
    assert_eq!(world.starts(), ["right"]);
    assert_eq!(
        world.reason("too-large"),
        "waiting: needs 5 slots, but pool default can give one task at most 4 (it has 1 agent with 4 slots)"
    );
}

#[test]
fn a_job_gives_back_what_a_new_one_has_a_right_to() {
    let mut world = World::fair(&[4]);
    world.job("old", 42);
    for index in 0..4u32 {
        world.holds("old", &format!("old-{index}"), "a1", index..index + 1);
    }
    assert!(world.pass().preempt.is_empty(), "nobody else wants them");
    world.job("new", 42);
    world.asks("new", "new-1", 1);
    world.asks("new", "new-2", 1);
    let pass = world.pass();
    assert_eq!(preempted(&pass), ["old-3", "old-2"], "the newest");
    assert_eq!(pass.preempt[0].reason, "its job's fair share is 2 slots now, and it holds 4");
    world.queue.running[3].stopping = true;
    world.queue.running[2].stopping = true;
    assert!(world.pass().preempt.is_empty(), "what stops is not counted");
    world.queue.running.truncate(2);
    assert_eq!(started(&world.pass()), ["new-1", "new-2"]);
}

#[test]
fn what_cannot_be_asked_to_stop_is_counted_first() {
    let mut world = World::fair(&[4]);
    world.runs("stubborn", 42, "a1", 0..3).preemptible = false;
    world.job("other", 42);
    for index in 0..3 {
        world.asks("other", &format!("other-{index}"), 1);
    }
    let pass = world.pass();
    assert_eq!((started(&pass), preempted(&pass)), (vec!["other-0"], vec![]));
}

#[test]
fn weights_that_make_no_sense_do_no_harm() {
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut world = World::fair(&[4]);
        world.job("odd", 42).weight = weight;
        world.asks("odd", "odd", 1);
        world.waits("normal", 42, 1);
        assert_eq!(world.starts().len(), 2, "{weight}");
    }
}
