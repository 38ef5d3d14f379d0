//! The rule by priority: order, blocking, filling gaps, making room.

use crate::schedule::world::{World, preempted, started};

#[test]
fn the_more_important_first_and_within_a_priority_the_earlier() {
    let mut world = World::of(&[2], false);
    world.waits("late", 42, 1);
    world.waits("later", 42, 1);
    world.waits("urgent", 1, 1);
    assert_eq!(world.starts(), ["urgent", "late"]);
}

#[test]
fn a_smaller_one_of_the_same_priority_overtakes_what_does_not_fit() {
    let mut world = World::of(&[4], false);
    world.runs("running", 42, "a1", 0..2);
    world.waits("large", 42, 4);
    world.waits("small", 42, 2);
    assert_eq!(world.starts(), ["small"]);
}

#[test]
fn without_preemption_what_does_not_fit_blocks_everything_less_important() {
    let mut world = World::of(&[4, 4], false);
    world.runs("running", 45, "a1", 0..4);
    world.waits("large", 40, 8);
    world.waits("small", 50, 1);
    let pass = world.pass();
    assert!(pass.start.is_empty() && pass.preempt.is_empty(), "{pass:?}");
    assert_eq!(world.reason("small"), "waiting: needs 1 slot, behind large (priority 40), which waits for 8 slots");
}

#[test]
fn fact_only_the_middle_one_makes_room_and_nothing_starts() {
    let mut world = World::of(&[4, 4], true);
    world.runs("medium", 45, "a1", 0..4);
    world.runs("high", 40, "a2", 0..4);
    world.waits("high-4", 40, 4);
    world.waits("high-8", 40, 8);
    world.waits("low-1", 50, 1);
    let pass = world.pass();
    assert_eq!((started(&pass), preempted(&pass)), (vec![], vec!["medium"]));
    assert_eq!(pass.preempt[0].reason, "high-4 (priority 40) needs its slots");
}

#[test]
fn fact_gaps_are_filled_and_the_least_important_makes_room() {
    let mut world = World::of(&[4, 4], true);
    world.runs("lowest-1", 55, "a1", 0..1);
    world.runs("high", 40, "a2", 0..4);
    world.waits("lower-1", 50, 1);
    world.waits("medium-1", 45, 1);
    world.waits("high-2", 40, 2);
    world.waits("high-8", 40, 8);
    let pass = world.pass();
    assert_eq!((started(&pass), preempted(&pass)), (vec!["high-2", "medium-1"], vec!["lowest-1"]));
    let backfilled: Vec<bool> = pass.start.iter().map(|start| start.backfilled).collect();
    assert_eq!(backfilled, [false, true]);
}

#[test]
fn only_what_can_be_asked_to_stop_later_fills_gaps() {
    let mut world = World::of(&[4, 4], true);
    world.runs("other", 40, "a1", 0..1);
    world.waits("large", 40, 8);
    world.waits("stubborn", 50, 1).preemptible = false;
    assert!(world.starts().is_empty());
    world.waits("willing", 50, 1);
    assert_eq!(world.starts(), ["willing"]);
}

#[test]
fn the_newest_of_the_least_important_goes_first_and_no_more_than_needed() {
    let mut world = World::of(&[4], true);
    world.runs("less", 50, "a1", 0..1);
    world.runs("least-old", 60, "a1", 1..2);
    world.runs("least-new", 60, "a1", 2..4);
    world.waits("urgent", 1, 1);
    assert_eq!(preempted(&world.pass()), ["least-new"]);
    world.queue.waiting[0].slots = 3;
    assert_eq!(preempted(&world.pass()), ["least-old", "least-new"]);
    world.queue.waiting[0].slots = 4;
    assert_eq!(preempted(&world.pass()).len(), 3);
    world.queue.waiting[0].slots = 5;
    assert!(world.pass().preempt.is_empty(), "nobody stops for what would not fit anyway");
}

#[test]
fn jobs_that_block_nobody_are_not_preempted() {
    let mut world = World::of(&[2, 4], true);
    world.runs("small", 60, "a1", 0..2);
    world.runs("large", 50, "a2", 0..4);
    world.waits("urgent", 1, 4);
    assert_eq!(preempted(&world.pass()), ["large"], "slots of a1 would not help");
}

#[test]
fn of_the_same_priority_only_the_later_make_room_and_never_for_their_own_job() {
    let mut world = World::of(&[2], true);
    world.runs("early", 42, "a1", 0..1);
    world.job("mine", 42);
    world.runs("late", 42, "a1", 1..2);
    world.asks("mine", "mine.1", 1);
    assert_eq!(preempted(&world.pass()), ["late"]);
    let mut world = World::of(&[1], true);
    world.job("mine", 42);
    world.asks("mine", "mine.1", 1);
    world.holds("mine", "mine.2", "a1", 0..1);
    assert!(world.pass().preempt.is_empty());
}

#[test]
fn the_stubborn_and_the_more_important_are_left_alone() {
    let mut world = World::of(&[2], true);
    world.runs("stubborn", 60, "a1", 0..1).preemptible = false;
    world.runs("important", 10, "a1", 1..2);
    world.waits("normal", 42, 1);
    let pass = world.pass();
    assert!(pass.preempt.is_empty() && pass.start.is_empty());
}

#[test]
fn room_that_is_being_made_is_kept_and_nobody_else_is_asked() {
    let mut world = World::of(&[4, 4], true);
    world.runs("leaving", 60, "a1", 0..4).stopping = true;
    world.runs("staying", 60, "a2", 0..3);
    world.waits("urgent", 1, 4);
    world.waits("large", 50, 4);
    world.waits("small", 50, 1);
    let pass = world.pass();
    assert_eq!(world.reason("urgent"), "waiting: needs 4 slots, which leaving is giving up");
    assert!(pass.preempt.is_empty(), "enough is stopping for the urgent one, and the large one would not fit anyway");
    assert_eq!(started(&pass), ["small"], "and the free slot of a2 is not wasted meanwhile");
}

#[test]
fn what_a_preempted_one_leaves_over_serves_the_next() {
    let mut world = World::of(&[4], true);
    world.runs("wide", 60, "a1", 0..4);
    world.waits("first", 1, 1);
    world.waits("second", 1, 3);
    let pass = world.pass();
    assert_eq!(preempted(&pass), ["wide"], "asked once");
    assert_eq!(world.reason("second"), "waiting: needs 3 slots, which wide is giving up");
}

#[test]
fn tasks_without_slots_have_their_own_queue() {
    let mut world = World::of(&[1], false);
    world.pool().settings.most_without_slots = 2;
    world.waits("large", 1, 9);
    for name in ["g1", "g2", "g3"] {
        world.waits(name, 99, 0);
    }
    assert_eq!(world.starts(), ["g1", "g2"]);
    assert_eq!(
        world.reason("g3"),
        "waiting: every agent of pool default already runs 2 tasks without slots, the maximum"
    );
    world.runs("guest", 42, "a1", 0..0);
    assert_eq!(world.starts(), ["g1"], "those that run count too");
}

#[test]
fn pools_do_not_see_each_other() {
    let mut world = World::of(&[2], false);
    let mut other = world.cluster.pools["default"].clone();
    other.agents[0].id = "b1".to_owned();
    world.cluster.pools.insert("other".to_owned(), other);
    world.waits("blocked", 1, 9);
    world.waits("elsewhere", 99, 2);
    world.job("elsewhere", 99);
    world.queue.jobs.get_mut("elsewhere").expect("there").pool = "other".to_owned();
    let pass = world.pass();
    assert_eq!(started(&pass), ["elsewhere"]);
    assert_eq!(pass.start[0].placement[0].agent, "b1");
}
