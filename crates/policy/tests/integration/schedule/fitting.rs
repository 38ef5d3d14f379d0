//! Which machines take a request.

use instep_policy::schedule::Fitting;

use crate::schedule::world::World;

fn agents(world: &World) -> Vec<String> {
    world.placement().into_iter().map(|(agent, _)| agent).collect()
}

#[test]
fn best_fit_takes_the_fullest_and_worst_fit_the_emptiest() {
    for (fitting, expected) in [(Fitting::Best, "a2"), (Fitting::Worst, "a3")] {
        let mut world = World::of(&[4, 4, 4], false);
        world.pool().settings.fitting = fitting;
        world.runs("x", 42, "a1", 0..1);
        world.runs("y", 42, "a2", 0..2);
        world.waits("task", 42, 2);
        assert_eq!(agents(&world), [expected], "{fitting:?}");
    }
}

#[test]
fn worst_fit_looks_at_the_share_that_is_free() {
    let mut world = World::of(&[8, 4], false);
    world.pool().settings.fitting = Fitting::Worst;
    world.runs("x", 42, "a1", 0..3);
    world.waits("task", 42, 1);
    assert_eq!(agents(&world), ["a2"], "4 of 4 are more than 5 of 8");
}

#[test]
fn equal_machines_are_chosen_by_name_alone_and_in_turn() {
    let mut world = World::of(&[8; 8], false);
    world.pool().settings.fitting = Fitting::Worst;
    world.waits("task", 42, 1);
    let first = agents(&world);
    world.pool().agents.reverse();
    assert_eq!(agents(&world), first, "the order in which agents came does not matter");
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..40 {
        world.queue.waiting[0].id = format!("task-{index}");
        seen.extend(agents(&world));
    }
    assert!(seen.len() > 4, "{seen:?}");
}

#[test]
fn one_machine_is_preferred_to_several() {
    let mut world = World::of(&[4, 4, 8], false);
    world.waits("task", 42, 8);
    assert_eq!(agents(&world), ["a3"]);
}

#[test]
fn fact_eight_slots_fit_on_two_idle_machines_of_four() {
    let mut world = World::of(&[4, 4], false);
    world.waits("task", 42, 8);
    let all = vec![0, 1, 2, 3];
    assert_eq!(world.placement(), [("a1".to_owned(), all.clone()), ("a2".to_owned(), all)]);
    world.queue.waiting[0].single_node = true;
    assert_eq!(
        world.reason("task"),
        "waiting: needs 8 slots on one agent, but pool default can give one task at most 4 (it has 2 agents with 4 slots)"
    );
}

#[test]
fn fact_six_slots_do_not_fit_on_two_machines_of_four() {
    let mut world = World::of(&[4, 4], false);
    world.waits("task", 42, 6);
    assert_eq!(
        world.reason("task"),
        "waiting: needs 6 slots, which pool default cannot divide evenly over its agents (it has 2 agents with 4 slots)"
    );
}

#[test]
fn several_machines_must_be_idle_and_alike_and_the_large_ones_come_first() {
    let mut world = World::of(&[2, 2, 2, 2, 4, 4], false);
    world.waits("task", 42, 8);
    assert_eq!(agents(&world), ["a5", "a6"]);
    world.runs("x", 42, "a5", 0..1);
    assert_eq!(agents(&world), ["a1", "a2", "a3", "a4"]);
    world.runs("y", 42, "a1", 0..1);
    assert_eq!(
        world.reason("task"),
        "waiting: needs 8 slots, pool default has 14 free, but at most 4 on one agent and too few idle agents"
    );
}

#[test]
fn unlike_machines_serve_together_where_that_is_allowed() {
    let mut world = World::of(&[2, 4, 1], false);
    world.waits("task", 42, 6);
    assert!(world.starts().is_empty());
    world.pool().settings.heterogeneous = true;
    assert_eq!(agents(&world), ["a2", "a1"]);
    world.queue.waiting[0].slots = 5;
    assert_eq!(agents(&world), ["a2", "a3"]);
    world.queue.waiting[0].slots = 7;
    assert_eq!(agents(&world), ["a2", "a1", "a3"]);
}

#[test]
fn disabled_slots_and_agents_are_not_used() {
    let mut world = World::of(&[4, 4], false);
    world.pool().agents[0].takes_work = false;
    world.pool().agents[1].slots[1].enabled = false;
    world.waits("task", 42, 3);
    assert_eq!(world.placement(), [("a2".to_owned(), vec![0, 2, 3])]);
    world.queue.waiting[0].slots = 4;
    assert_eq!(
        world.reason("task"),
        "waiting: needs 4 slots, but pool default can give one task at most 3 (it has 1 agent with 3 slots); \
         it would fit if all agents were enabled and connected"
    );
}

#[test]
fn a_slot_that_was_disabled_under_its_holder_is_not_given_to_the_next() {
    let mut world = World::of(&[2], true);
    world.runs("x", 60, "a1", 0..2);
    world.pool().agents[0].slots[0].enabled = false;
    world.waits("urgent", 1, 2);
    assert!(world.pass().preempt.is_empty(), "stopping x would give one slot only");
    world.queue.waiting[0].slots = 1;
    assert_eq!(world.pass().preempt.len(), 1);
}

#[test]
fn excluded_machines_are_avoided() {
    let mut world = World::of(&[4, 4], false);
    world.waits("task", 42, 4).excluded.insert("a1".to_owned());
    assert_eq!(agents(&world), ["a2"]);
    world.queue.waiting[0].slots = 8;
    assert_eq!(
        world.reason("task"),
        "waiting: needs 8 slots, but pool default can give one task at most 4 (it has 1 agent with 4 slots), \
         and a log policy keeps it off a1"
    );
}
