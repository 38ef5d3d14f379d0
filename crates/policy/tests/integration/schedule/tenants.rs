//! Machines that serve one user: those of agents without root, whose tasks all run as one Unix user.

use instep_api::link::Serves;

use crate::schedule::world::World;

fn serves(world: &mut World, agent: usize, name: &str) {
    world.pool().agents[agent].serves = Serves::User { name: name.to_owned() };
}

#[test]
fn a_machine_of_one_user_takes_nobody_elses_tasks() {
    let mut world = World::of(&[8, 1], false);
    serves(&mut world, 0, "carol");
    world.waits("of dave", 42, 1).user = "dave".to_owned();
    assert_eq!(world.placement(), [("a2".to_owned(), vec![0])], "the larger one would be free");
    world.waits("command of dave", 42, 0).user = "dave".to_owned();
    world.waits("of carol", 42, 8).user = "carol".to_owned();
    let starts = world.pass().start;
    let agent_of = |request: &str| {
        let start = starts.iter().find(|start| start.request == request).unwrap();
        start.placement[0].agent.clone()
    };
    assert_eq!([agent_of("of dave"), agent_of("command of dave"), agent_of("of carol")], ["a2", "a2", "a1"]);
}

#[test]
fn a_machine_that_serves_whoever_comes_first_serves_one_user_within_a_pass() {
    for slots in [0, 1] {
        let mut world = World::of(&[4], false);
        world.pool().agents[0].serves = Serves::First;
        world.waits("of carol", 42, slots).user = "carol".to_owned();
        world.waits("of dave", 42, slots).user = "dave".to_owned();
        world.waits("again of carol", 42, slots).user = "carol".to_owned();
        assert_eq!(world.starts(), ["of carol", "again of carol"]);
        let reason = world.reason("of dave");
        assert!(reason.starts_with("waiting: no agent of pool default serves user dave"), "{reason}");
    }
}

#[test]
fn whoever_is_served_by_nobody_is_told_why_and_what_to_do() {
    let mut world = World::of(&[2, 2, 2, 2, 2], false);
    for agent in 0..5 {
        serves(&mut world, agent, "carol");
    }
    world.waits("task", 42, 1).user = "dave".to_owned();
    assert_eq!(
        world.reason("task"),
        "waiting: no agent of pool default serves user dave (agent a1 serves only carol, agent a2 serves only carol, \
         agent a3 serves only carol, and 2 more agents serve others); hint: an agent without root serves one user, unless \
         it runs with --shared-uid; start one as root, or with --serve-user dave"
    );
}

#[test]
fn slots_for_others_do_not_count_as_free() {
    let mut world = World::of(&[2, 2], false);
    serves(&mut world, 0, "carol");
    world.runs("running", 42, "a2", 0..1);
    world.waits("task", 42, 2).user = "dave".to_owned();
    assert_eq!(
        world.reason("task"),
        "waiting: needs 2 slots, pool default has 1 free, and 1 agent serves only another user"
    );
    world.waits("larger", 42, 4).user = "dave".to_owned();
    assert_eq!(
        world.reason("larger"),
        "waiting: needs 4 slots, but pool default can give one task at most 2 (it has 1 agent with 2 slots), and 1 agent \
         serves only another user"
    );
}

#[test]
fn a_task_that_nobody_serves_does_not_keep_others_waiting() {
    let mut world = World::of(&[2], false);
    serves(&mut world, 0, "carol");
    world.waits("important, of dave", 1, 1).user = "dave".to_owned();
    world.waits("of carol", 42, 1).user = "carol".to_owned();
    assert_eq!(world.starts(), ["of carol"]);
}

#[test]
fn nobody_makes_room_on_a_machine_that_the_other_may_not_use() {
    let mut world = World::of(&[2], true);
    serves(&mut world, 0, "carol");
    world.runs("of carol", 42, "a1", 0..2);
    world.waits("important, of dave", 1, 1).user = "dave".to_owned();
    assert_eq!(world.pass().preempt, []);
}
