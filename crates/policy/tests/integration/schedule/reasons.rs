//! The sentences that people see.

use crate::schedule::world::World;

#[test]
fn whoever_waits_for_room_is_told_how_much_there_is_and_who_is_before() {
    let mut world = World::of(&[4, 4], false);
    world.runs("running", 42, "a1", 0..4);
    world.waits("experiment 1", 42, 8);
    assert_eq!(world.reason("experiment 1"), "waiting: needs 8 slots, pool default has 4 free");
    world.waits("experiment 2", 42, 8);
    assert_eq!(world.reason("experiment 2"), "waiting: needs 8 slots, pool default has 4 free, behind experiment 1");
    world.asks("experiment 2", "its second trial", 8);
    assert!(world.reason("its second trial").ends_with(", behind experiment 1"), "its own job is not ahead of it");
    world.waits("experiment 3", 42, 8);
    world.waits("experiment 4", 42, 8);
    assert!(world.reason("experiment 3").ends_with("free, behind experiment 1 and 1 other job"));
    assert!(world.reason("experiment 4").ends_with("free, behind experiment 1 and 2 other jobs"));
}

#[test]
fn slots_that_nobody_has_are_called_so() {
    let mut world = World::of(&[8, 8, 4], false);
    world.waits("task", 42, 64);
    assert_eq!(
        world.reason("task"),
        "waiting: needs 64 slots, but pool default can give one task at most 16 \
         (it has 2 agents with 8 slots, 1 agent with 4 slots)"
    );
}

#[test]
fn a_pool_without_agents_says_what_to_do() {
    let mut world = World::of(&[], false);
    world.waits("task", 42, 1);
    world.waits("guest", 42, 0);
    let start_one = "waiting: pool default has no agents; hint: start one with `instep agent`";
    assert_eq!((world.reason("task").as_str(), world.reason("guest").as_str()), (start_one, start_one));
    let mut world = World::of(&[2, 2], false);
    world.pool().agents.iter_mut().for_each(|agent| agent.takes_work = false);
    world.waits("task", 42, 1);
    assert_eq!(
        world.reason("task"),
        "waiting: none of the 2 agents of pool default takes work (disabled, draining or offline)"
    );
}

#[test]
fn a_pool_that_is_not_there_is_named() {
    let mut world = World::of(&[1], false);
    world.job("task", 42).pool = "gpu".to_owned();
    world.asks("task", "task", 1);
    assert_eq!(world.reason("task"), "waiting: there is no pool gpu; hint: there is default");
    world.cluster.pools.clear();
    assert_eq!(world.reason("task"), "waiting: there is no pool gpu, and no other pool; hint: start an agent");
}

#[test]
fn whoever_only_waits_for_the_others_to_stop_is_told_so() {
    let mut world = World::of(&[1, 1], true);
    world.runs("low", 60, "a1", 0..1);
    world.runs("stubborn", 60, "a2", 0..1).preemptible = false;
    world.waits("urgent", 1, 1);
    assert_eq!(world.reason("urgent"), "waiting: needs 1 slot, which low is giving up");
    let mut world = World::of(&[2, 1], true);
    world.runs("low", 60, "a1", 0..1);
    world.waits("urgent", 1, 2);
    world.waits("normal", 42, 1);
    assert_eq!(world.reason("normal"), "waiting: there is room, and it starts when others have stopped");
}
